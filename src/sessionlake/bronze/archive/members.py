"""The members of an archive's files: found, read without holding them in memory, and checked before they are used.

A member of a `.zip` is an entry of it. A `.gz` is a chain of gzip members, as of files put one behind the other. Ours
tell their length in a field of their header, so that they are found without being read; of others, one is found when
the one before it has been read.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sessionlake.bronze.archive.files import Files
from sessionlake.bronze.archive.lines import (
    LONGEST_LINE,
    Damage,
    DamagedError,
    Header,
    Message,
    read_footer,
    read_header,
    read_message,
)

SUFFIXES = (".zip", ".gz")
LONGEST_MEMBER = 1024**3
"""A member may decompress to so many bytes: a few kilobytes can promise any number of them."""
_CHUNK = 256 * 1024
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_GZIP = b"\x1f\x8b\x08"
_EXTRA = 4
_LENGTH = b"SL"
"""The subfield of a gzip header in which ours have their length in bytes."""
_HEAD, _FIELD = struct.Struct("<3sBIBBH"), struct.Struct("<2sHQ")
# Where messages have no offsets: of the file, of the member in it, and of the message in that.
_MEMBER_BITS, _MESSAGE_BITS = 16, 24
_MOST_MEMBERS = 1 << _MEMBER_BITS
# What the library makes of bytes that are no zip, or none that it can read.
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, LookupError, ValueError, struct.error, EOFError)


@dataclass(frozen=True)
class Member:
    """Where a member is.

    Attributes:
        path: of the file.
        file: its number among all that were ever taken, from 0.
        number: of the member in its file, from 0.
        name: of a zip's entry; empty in a gzip file.
        start: byte of the file at which it begins; 0 in a zip.
        size: in bytes of the file; None of a gzip member that does not tell: it, and all behind it.
    """

    path: str
    file: int
    number: int
    name: str = ""
    start: int = 0
    size: int | None = None

    @property
    def base(self) -> int:
        """The offset of its first message, if the archive says none."""
        return (self.file << _MEMBER_BITS | self.number) << _MESSAGE_BITS


@dataclass(frozen=True)
class Checked:
    """What is known of a member that was read to its end.

    Attributes:
        header: None if it cannot be read.
        damage: None if it is whole.
        end: byte of the file behind it; None if that is not known.
    """

    member: Member
    header: Header | None = None
    damage: Damage | None = None
    why: str = ""
    end: int | None = None


def members_of(path: Path, file: int) -> list[Member]:
    """The members of a file, as far as they are found without being read; at most one beyond the limit of members.

    What is no regular file, or no zip though its name says so, is one member, which cannot be read.
    """
    if not path.is_file():
        return [Member(str(path), file, 0, size=0)]
    if path.suffix == ".zip":
        return _zip_members(path, file)
    found: list[Member] = []
    start, file_size = 0, path.stat().st_size
    with path.open("rb") as stream:
        while start < file_size:
            size = _told_size(stream.read(_HEAD.size + _FIELD.size))
            if size is None or size <= 0 or start + size > file_size or len(found) == _MOST_MEMBERS:
                return [*found, Member(str(path), file, len(found), start=start)]
            found.append(Member(str(path), file, len(found), start=start, size=size))
            start += size
            stream.seek(start)
    return found


def _zip_members(path: Path, file: int) -> list[Member]:
    try:
        with Files() as files:
            infos = [(n, i) for n, i in enumerate(files.zip(str(path)).infolist()) if not i.filename.endswith("/")]
    except _NO_ZIP:
        return [Member(str(path), file, 0, size=path.stat().st_size)]
    found = [Member(str(path), file, n, info.filename, size=info.compress_size) for n, info in infos]
    return found[: _MOST_MEMBERS + 1]


def checked(member: Member, files: Files) -> Iterator[Checked]:
    """Reads a member to its end; one that does not tell its length, and each behind it, in turn."""
    while True:
        found = _check(member, files)
        yield found
        if member.size is not None or found.end is None or found.end >= Path(member.path).stat().st_size:
            return
        member = replace(member, number=member.number + 1, start=found.end)


def messages_of(whole: Checked, files: Files) -> Iterator[Message]:
    """The messages of a member that was found to be whole, each with an offset."""
    lines = _lines(whole.member, files, [])
    header = read_header(next(lines))
    first = whole.member.base if header.first_offset is None else header.first_offset
    held = next(lines)
    for number, line in enumerate(lines):
        yield _placed(read_message(held), first + number)
        held = line


def gzip_member(content: bytes) -> bytes:
    """The content as a gzip member that tells its length."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = packer.compress(content) + packer.flush()
    length = _HEAD.size + _FIELD.size + len(body) + 8
    head = _HEAD.pack(_GZIP, _EXTRA, 0, 0, 255, _FIELD.size) + _FIELD.pack(_LENGTH, 8, length)
    return head + body + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def _told_size(head: bytes) -> int | None:
    if len(head) < _HEAD.size + _FIELD.size:
        return None
    magic, flags, *_ = _HEAD.unpack_from(head)
    name, length, size = _FIELD.unpack_from(head, _HEAD.size)
    told = magic == _GZIP and flags & _EXTRA and name == _LENGTH and length == _FIELD.size - 4
    return int(size) if told else None


def _placed(message: Message, otherwise: int) -> Message:
    return message if message.offset is not None else replace(message, offset=otherwise)


def _check(member: Member, files: Files) -> Checked:
    header: Header | None = None
    if member.number >= _MOST_MEMBERS:
        why = f"a file may have {_MOST_MEMBERS} members, and this one is behind them"
        return Checked(member, None, Damage.HEADER, why)
    end: list[int] = []
    lines = _lines(member, files, end)
    try:
        header = read_header(next(lines, b""))
        _check_messages(lines, member, header)
    except DamagedError as error:
        # Behind what cannot be decompressed, where the next one begins is not known.
        for _ in () if error.damage is Damage.UNREADABLE else _rest(lines):
            pass
        return Checked(member, header, error.damage, str(error), end[0] if end else None)
    return Checked(member, header, end=end[0] if end else None)


def _rest(lines: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from lines
    except DamagedError:
        return


def _check_messages(lines: Iterator[bytes], member: Member, header: Header) -> None:
    """Reads to the end.

    Raises:
        DamagedError: what the footer says is not so, or there is none.
    """
    held, count, checksum, before = next(lines, b""), 0, 0, -1
    first = member.base if header.first_offset is None else header.first_offset
    for line in lines:
        offset = _placed(read_message(held), first + count).offset
        if offset is None or not before < offset < 2**63:
            raise DamagedError(Damage.MESSAGE, f"offset {offset} does not rise above {before}")
        before, count, checksum, held = offset, count + 1, zlib.crc32(held, checksum), line
    footer = read_footer(held)
    if footer.messages != count or count >= 1 << _MESSAGE_BITS:
        raise DamagedError(Damage.COUNT, f"its footer says {footer.messages} messages, it has {count}")
    if footer.crc32 != f"{checksum:08x}":
        raise DamagedError(Damage.CHECKSUM, f"its footer says {footer.crc32}, it has {checksum:08x}")


def _lines(member: Member, files: Files, end: list[int]) -> Iterator[bytes]:
    """Lines with their ends.

    Args:
        end: takes the byte behind the member, once it is known.

    Raises:
        DamagedError: it cannot be decompressed, or a line is too long.
    """
    begun: list[bytes] = []  # the parts of a line that has not ended yet
    length = 0
    chunks = _content(member, files, end)
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        length += len(first)
        if others:
            yield b"".join(begun) + b"\n"
            yield from (line + b"\n" for line in others[:-1])
            begun, length = [others[-1]], len(others[-1])
        if length > LONGEST_LINE:
            for _ in chunks:  # to its end, behind which the next one is
                pass
            raise DamagedError(Damage.MESSAGE, f"a line has more than {LONGEST_LINE} bytes")
    if length:
        yield b"".join(begun)


def _content(member: Member, files: Files, end: list[int]) -> Iterator[bytes]:
    """What a member decompresses to, in parts."""
    if not Path(member.path).is_file():
        raise DamagedError(Damage.UNREADABLE, "it is no regular file")
    total = 0
    try:
        for chunk in _unzipped(member, files) if Path(member.path).suffix == ".zip" else _unpacked(member, end):
            total += len(chunk)
            if total > LONGEST_MEMBER:
                raise DamagedError(Damage.UNREADABLE, f"it decompresses to more than {LONGEST_MEMBER} bytes")
            yield chunk
    except (zlib.error, *_NO_ZIP) as error:
        raise DamagedError(Damage.UNREADABLE, str(error)) from None


def _unzipped(member: Member, files: Files) -> Iterator[bytes]:
    archive = files.zip(member.path)
    info = archive.infolist()[member.number]
    if info.compress_type not in _METHODS:  # bzip2 and LZMA have no bound on what a few bytes decompress to
        raise zipfile.BadZipFile(f"it is compressed by method {info.compress_type}: only stored and deflated are read")
    if not 0 <= info.header_offset < Path(member.path).stat().st_size:  # else the system would refuse to go there
        raise zipfile.BadZipFile("the archive's directory names a place outside of it")
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _unpacked(member: Member, end: list[int]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    with Path(member.path).open("rb") as stream:
        stream.seek(member.start)
        left = member.size if member.size is not None else -1
        while not unpacker.eof:
            packed = unpacker.unconsumed_tail
            if not packed:
                packed = stream.read(_CHUNK if left < 0 else min(_CHUNK, left))
                left -= len(packed) if left >= 0 else 0
                if not packed:
                    raise EOFError("it is cut short")
            yield unpacker.decompress(packed, _CHUNK)
        end.append(stream.tell() - len(unpacker.unused_data))
        if left > 0 or (member.size is not None and unpacker.unused_data):
            raise EOFError("something is behind it")
