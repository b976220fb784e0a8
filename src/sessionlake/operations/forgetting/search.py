"""Whether a text is anywhere in a home's files, whatever they are: the proof that nothing of a session is left.

Parquet files are searched value by value, deleted rows and all columns among them; Spark's state files after they are
unpacked; states by the values of the Arrow tables in them; all others as bytes. A text counts as found where it stands
by itself, so that `17` is not found in `2017`; and so does what JSON makes of it, and JSON of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BETWEEN = r"[^0-9A-Za-z_\-]"
_ESCAPED = r"\\[bfnrt]|\\u[0-9a-fA-F]{4}"
"""How a character before it may stand in JSON."""
_BLOCK = b"LZ4Block"
_HEAD = 21
"""Of a block of lz4-java: magic, a token, compressed and original length, checksum."""
_RAW = 0x10
_BEGIN = re.compile(rb"(?=\xff{4}(.{4}))", re.DOTALL)
"""Of an Arrow stream: a mark, and the length of what follows."""
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Found:
    """Where the text stands.

    Attributes:
        place: the file, within the folder that was searched.
        column: of a Parquet file; None in any other.
        values: how many values have it; in other files, 1.
    """

    place: str
    column: str | None
    values: int

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.place}{column}: {self.values}"


@dataclass(frozen=True)
class Searched:
    """The outcome.

    Attributes:
        files: how many were searched.
        size: their bytes.
        found: where the text is.
        unread: Parquet files that cannot be read, as those that were cut off: what they have packed was not searched.
    """

    files: int
    size: int
    found: tuple[Found, ...]
    unread: tuple[str, ...] = ()


def pattern(text: str) -> str:
    """A regular expression, of Python's, Java's or RE2, for where a text stands by itself."""
    forms = {text}
    for ascii_only in (True, False):
        inner = text
        for _ in range(2):
            inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
            forms.add(inner)
    return rf"(?s)(?:^|{_BETWEEN}|{_ESCAPED})(?:{'|'.join(map(re.escape, sorted(forms)))})(?:$|{_BETWEEN})"


def search(folder: Path, text: str, leave_out: tuple[str, ...] = ()) -> Searched:
    """Searches all files of a folder.

    Args:
        leave_out: folders directly in it that are not searched.
    """
    files = size = 0
    found: list[Found] = []
    unread: list[str] = []
    for file in sorted(folder.rglob("*")):
        place = file.relative_to(folder)
        if place.parts[0] in leave_out or file.is_symlink() or not file.is_file():
            continue
        files, size = files + 1, size + file.stat().st_size
        hits, read = _found_in(file, text)
        found += [Found(str(place), column, values) for column, values in hits]
        unread += [] if read else [str(place)]
    return Searched(files, size, tuple(found), tuple(unread))


def _found_in(file: Path, text: str) -> tuple[list[tuple[str | None, int]], bool]:
    """In which columns of a file the text is, in how many values; and whether what it has packed could be read."""
    # Also under a name that it has until it is whole. Checksums beside it have its name, too.
    packed = ".parquet" in file.name and file.suffix != ".crc" and file.stat().st_size > 0
    if packed:
        try:
            return [*_in_parquet(file, text)], True
        except (pa.ArrowException, OSError):  # cut off as it was written
            pass
    return [(None, 1)] if any(_in_bytes(piece, text) for piece in _pieces(file)) else [], not packed


def _in_parquet(file: Path, text: str) -> Iterator[tuple[str, int]]:
    looked_for = pattern(text)
    counts: dict[str, int] = {}
    with pq.ParquetFile(file) as content:
        for batch in content.iter_batches():
            for name, leaf in _leaves(batch):
                hits = pc.sum(pc.match_substring_regex(leaf, looked_for)).as_py() or 0
                counts[name] = counts.get(name, 0) + hits
    yield from ((name, hits) for name, hits in sorted(counts.items()) if hits)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """The texts and bytes in a batch, however deep, by the names of the columns that they are in."""
    waiting = list(zip(batch.schema.names, batch.columns, strict=True))
    while waiting:
        name, column = waiting.pop()
        kind = column.type
        if pa.types.is_dictionary(kind):
            waiting.append((name, column.dictionary))
        elif pa.types.is_struct(kind):
            waiting += [(f"{name}.{kind.field(i).name}", column.field(i)) for i in range(kind.num_fields)]
        elif pa.types.is_map(kind):
            waiting += [(f"{name}.key", column.keys), (f"{name}.value", column.items)]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            waiting.append((name, column.flatten()))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
            yield name, column.cast(pa.binary())


def _pieces(file: Path) -> Iterator[bytes]:
    """A file's bytes, unpacked, in pieces that overlap by more than any text is long."""
    with file.open("rb") as source:
        before = b""
        while piece := source.read(_PIECE_BYTES):
            yield before + piece
            before = piece[-4096:]
        source.seek(0)
        packed = source.read(len(_BLOCK)) == _BLOCK
        if packed or file.suffix == ".state":
            source.seek(0)
            content = b"".join(_unpacked(source.read())) if packed else source.read()
            yield content
            yield from _arrow_in(content)


def _unpacked(packed: bytes) -> Iterator[bytes]:
    """The blocks of a stream of lz4-java, which Spark writes state files with."""
    codec, place = pa.Codec("lz4_raw"), 0
    while packed.startswith(_BLOCK, place):
        token = packed[place + len(_BLOCK)]
        length, original = (int.from_bytes(packed[place + at : place + at + 4], "little") for at in (9, 13))
        block = packed[place + _HEAD : place + _HEAD + length]
        place += _HEAD + length
        if length:
            yield block if token & 0xF0 == _RAW else codec.decompress(block, original, asbytes=True)


def _arrow_in(stored: bytes) -> Iterator[bytes]:
    """The texts of the Arrow streams in a state, whose columns may be compressed."""
    whole = pa.py_buffer(stored)
    for begin in _BEGIN.finditer(stored):
        if not 0 < int.from_bytes(begin[1], "little") < len(stored):
            continue  # numbers that look like one
        try:
            table = pa.ipc.open_stream(whole.slice(begin.start())).read_all()
        except (pa.ArrowException, OSError):
            continue
        for batch in table.to_batches():
            for _, leaf in _leaves(batch):
                yield b"\0".join(value for value in leaf.to_pylist() if value is not None)


def _in_bytes(content: bytes, text: str) -> bool:
    return re.search(pattern(text).encode(), content) is not None
