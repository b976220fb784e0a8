"""Finds, checks and reads the members of archive files, without holding a member in memory.

A member of a `.zip` is an entry of it. A `.gz` is a chain of gzip members, like concatenated gzip files. Members that
sessionlake wrote have their length in their gzip header, so that the next one is found without reading them. A member
that another program wrote must be read to find the next one.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sessionlake.bronze.archive.files import LastOpenedZip
from sessionlake.bronze.archive.lines import (
    MAX_LINE_BYTES,
    ArchivedMessage,
    DamagedArchiveMemberError,
    MemberDamage,
    MemberHeader,
    parse_footer_line,
    parse_header_line,
    parse_message_line,
)

SUFFIXES = (".zip", ".gz")
MAX_MEMBER_BYTES = 1024**3
"""The most bytes that a member may decompress to. Without a limit, a few kilobytes could fill the disk or memory."""
_CHUNK = 256 * 1024
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_GZIP = b"\x1f\x8b\x08"
_EXTRA = 4
_LENGTH = b"SL"
"""The subfield of a gzip header that has the member's length in bytes. Only sessionlake writes it."""
_HEAD, _FIELD = struct.Struct("<3sBIBBH"), struct.Struct("<2sHQ")
# If messages have no offsets, an offset is composed of three numbers: that of the file, that of the member in the file,
# and that of the message in the member.
_MEMBER_BITS, _MESSAGE_BITS = 16, 24
_MAX_MEMBERS = 1 << _MEMBER_BITS
# Errors that the library raises for files that it cannot read as a zip.
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, LookupError, ValueError, struct.error, EOFError)


@dataclass(frozen=True)
class ArchiveMember:
    """Where a member of an archive file is: an entry of a zip, or a member of a gzip file.

    Attributes:
        path: Path of the file.
        file: Number of the file among all files that were ever read, from 0.
        number: Number of the member in its file, from 0.
        name: Name of the entry in a zip; empty in a gzip file.
        start: Index of the member's first byte in a gzip file; 0 in a zip.
        size: Number of compressed bytes. None for a gzip member whose header has no length. It then stands for all
            members from there to the end of the file.
    """

    path: str
    file: int
    number: int
    name: str = ""
    start: int = 0
    size: int | None = None

    @property
    def default_first_offset(self) -> int:
        """The offset of the member's first message if the archive gives no offsets.

        It is higher than those of earlier members.
        """
        return (self.file << _MEMBER_BITS | self.number) << _MESSAGE_BITS


@dataclass(frozen=True)
class CheckedMember:
    """The result of reading a member of an archive file to its end.

    Attributes:
        member: Where the member is.
        header: The member's first line, parsed; None if it cannot be read.
        damage: The kind of damage; None if the member is intact.
        why: Details of the damage; empty if there is none.
        end: Index of the first byte after the member in the file; None if not known.
    """

    member: ArchiveMember
    header: MemberHeader | None = None
    damage: MemberDamage | None = None
    why: str = ""
    end: int | None = None


def list_members(path: Path, file: int) -> list[ArchiveMember]:
    """Returns the members of an archive file that can be found without reading their content.

    If the path is no regular file, or the file is no zip although its name says so, the result is one member that
    cannot be read. If a file has too many members, the first one above the limit is returned too, so that it is
    reported as damaged.

    Args:
        path: Path of the file.
        file: Number of the file among all files that were ever read, from 0.
    """
    if not path.is_file():
        return [ArchiveMember(str(path), file, 0, size=0)]
    if path.suffix == ".zip":
        return _list_zip_members(path, file)
    found: list[ArchiveMember] = []
    start, file_size = 0, path.stat().st_size
    with path.open("rb") as stream:
        while start < file_size:
            size = _read_gzip_member_size(stream.read(_HEAD.size + _FIELD.size))
            if size is None or size <= 0 or start + size > file_size or len(found) == _MAX_MEMBERS:
                return [*found, ArchiveMember(str(path), file, len(found), start=start)]
            found.append(ArchiveMember(str(path), file, len(found), start=start, size=size))
            start += size
            stream.seek(start)
    return found


def _list_zip_members(path: Path, file: int) -> list[ArchiveMember]:
    try:
        with LastOpenedZip() as open_zip:
            infos = [
                (n, i) for n, i in enumerate(open_zip.open_zip(str(path)).infolist()) if not i.filename.endswith("/")
            ]
    except _ZIP_ERRORS:
        return [ArchiveMember(str(path), file, 0, size=path.stat().st_size)]
    found = [ArchiveMember(str(path), file, n, info.filename, size=info.compress_size) for n, info in infos]
    return found[: _MAX_MEMBERS + 1]


def read_and_check_members(member: ArchiveMember, open_zip: LastOpenedZip) -> Iterator[CheckedMember]:
    """Reads a member of an archive file to its end, and yields whether it is intact.

    If the member's size is unknown, does the same for each further member of the file.
    """
    while True:
        found = _read_and_check_member(member, open_zip)
        yield found
        if member.size is not None or found.end is None or found.end >= Path(member.path).stat().st_size:
            return
        member = replace(member, number=member.number + 1, start=found.end)


def read_member_messages(checked_member: CheckedMember, open_zip: LastOpenedZip) -> Iterator[ArchivedMessage]:
    """Yields the messages of an intact member. If the archive gives no offsets, numbers the messages."""
    lines = _read_lines(checked_member.member, open_zip, [])
    header = parse_header_line(next(lines))
    first = checked_member.member.default_first_offset if header.first_offset is None else header.first_offset
    held = next(lines)
    for number, line in enumerate(lines):
        yield _fill_missing_offset(parse_message_line(held), first + number)
        held = line


def encode_gzip_member(content: bytes) -> bytes:
    """Returns a gzip member with this content, compressed. Its header has the number of compressed bytes."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = packer.compress(content) + packer.flush()
    length = _HEAD.size + _FIELD.size + len(body) + 8
    head = _HEAD.pack(_GZIP, _EXTRA, 0, 0, 255, _FIELD.size) + _FIELD.pack(_LENGTH, 8, length)
    return head + body + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def _read_gzip_member_size(first_bytes: bytes) -> int | None:
    """Returns the number of bytes of a gzip member from its header; None if the header does not have it.

    Args:
        first_bytes: The first bytes of the member.
    """
    if len(first_bytes) < _HEAD.size + _FIELD.size:
        return None
    magic, flags, *_ = _HEAD.unpack_from(first_bytes)
    name, length, size = _FIELD.unpack_from(first_bytes, _HEAD.size)
    has_size = magic == _GZIP and flags & _EXTRA and name == _LENGTH and length == _FIELD.size - 4
    return int(size) if has_size else None


def _fill_missing_offset(message: ArchivedMessage, default_offset: int) -> ArchivedMessage:
    return message if message.offset is not None else replace(message, offset=default_offset)


def _read_and_check_member(member: ArchiveMember, open_zip: LastOpenedZip) -> CheckedMember:
    header: MemberHeader | None = None
    if member.number >= _MAX_MEMBERS:
        why = f"the file has more than {_MAX_MEMBERS} members, and this is the first one too many"
        return CheckedMember(member, None, MemberDamage.HEADER, why)
    end: list[int] = []
    lines = _read_lines(member, open_zip, end)
    try:
        header = parse_header_line(next(lines, b""))
        _check_member_messages(lines, member, header)
    except DamagedArchiveMemberError as error:
        # The rest is read to find the next member, unless the member cannot be decompressed.
        for _ in () if error.damage is MemberDamage.UNREADABLE else _read_lines_until_damage(lines):
            pass
        return CheckedMember(member, header, error.damage, str(error), end[0] if end else None)
    return CheckedMember(member, header, end=end[0] if end else None)


def _read_lines_until_damage(lines: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from lines
    except DamagedArchiveMemberError:
        return


def _check_member_messages(lines: Iterator[bytes], member: ArchiveMember, header: MemberHeader) -> None:
    """Reads the messages and the footer of a member, and checks them.

    Args:
        lines: The member's lines after the header.
        member: Where the member is.
        header: The member's first line, parsed.

    Raises:
        DamagedError: A message is damaged, or the footer is missing or does not match the messages.
    """
    held, count, checksum, before = next(lines, b""), 0, 0, -1
    first = member.default_first_offset if header.first_offset is None else header.first_offset
    for line in lines:
        offset = _fill_missing_offset(parse_message_line(held), first + count).offset
        if offset is None or not before < offset < 2**63:
            raise DamagedArchiveMemberError(MemberDamage.MESSAGE, f"offset {offset} does not rise above {before}")
        before, count, checksum, held = offset, count + 1, zlib.crc32(held, checksum), line
    footer = parse_footer_line(held)
    if footer.messages != count or count >= 1 << _MESSAGE_BITS:
        raise DamagedArchiveMemberError(
            MemberDamage.COUNT, f"the footer says {footer.messages} messages, but the member has {count}"
        )
    if footer.crc32 != f"{checksum:08x}":
        raise DamagedArchiveMemberError(
            MemberDamage.CHECKSUM, f"the footer says {footer.crc32}, but the checksum is {checksum:08x}"
        )


def _read_lines(member: ArchiveMember, open_zip: LastOpenedZip, end: list[int]) -> Iterator[bytes]:
    """Yields the lines of an archive's member as bytes, each with its line end.

    Args:
        member: The member to read.
        open_zip: Opened files.
        end: An empty list, to which the index of the first byte after the member is appended once it is known.

    Raises:
        DamagedError: The member cannot be decompressed, or a line is too long.
    """
    begun: list[bytes] = []  # the parts of a line that has not ended yet
    length = 0
    chunks = _decompress_member(member, open_zip, end)
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        length += len(first)
        if others:
            yield b"".join(begun) + b"\n"
            yield from (line + b"\n" for line in others[:-1])
            begun, length = [others[-1]], len(others[-1])
        if length > MAX_LINE_BYTES:
            for _ in chunks:  # read to the end, to find the next member
                pass
            raise DamagedArchiveMemberError(MemberDamage.MESSAGE, f"a line has more than {MAX_LINE_BYTES} bytes")
    if length:
        yield b"".join(begun)


def _decompress_member(member: ArchiveMember, open_zip: LastOpenedZip, end: list[int]) -> Iterator[bytes]:
    """Yields the decompressed content of an archive's member in chunks.

    Args:
        member: The member to read.
        open_zip: Opened files.
        end: An empty list, to which the index of the first byte after the member is appended once it is known.
    """
    if not Path(member.path).is_file():
        raise DamagedArchiveMemberError(MemberDamage.UNREADABLE, "it is not a regular file")
    total = 0
    try:
        for chunk in (
            _read_zip_member(member, open_zip) if Path(member.path).suffix == ".zip" else _read_gzip_member(member, end)
        ):
            total += len(chunk)
            if total > MAX_MEMBER_BYTES:
                raise DamagedArchiveMemberError(
                    MemberDamage.UNREADABLE, f"it decompresses to more than {MAX_MEMBER_BYTES} bytes"
                )
            yield chunk
    except (zlib.error, *_ZIP_ERRORS) as error:
        raise DamagedArchiveMemberError(MemberDamage.UNREADABLE, str(error)) from None


def _read_zip_member(member: ArchiveMember, open_zip: LastOpenedZip) -> Iterator[bytes]:
    archive = open_zip.open_zip(member.path)
    info = archive.infolist()[member.number]
    if info.compress_type not in _METHODS:  # with bzip2 and LZMA a few bytes can decompress to any number of bytes
        raise zipfile.BadZipFile(
            f"it is compressed by method {info.compress_type}, but only stored and deflated can be read"
        )
    if not 0 <= info.header_offset < Path(member.path).stat().st_size:  # seeking there would raise an OSError
        raise zipfile.BadZipFile("the archive's directory names a position outside of the file")
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _read_gzip_member(member: ArchiveMember, end: list[int]) -> Iterator[bytes]:
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
            raise EOFError("something follows it")
