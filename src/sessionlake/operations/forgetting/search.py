"""Searches all files of a home for a text: the proof that nothing of a session is left.

Parquet files are searched value by value, in all columns and including deleted rows. Spark's state files are
decompressed first, and the Arrow tables in states are searched by their values. All other files are searched as bytes.

A text is found only where no letter, digit, `-` or `_` is next to it, so `17` is not found in `2017`. Its JSON escapes,
and the escapes of these, are found as well.
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
"""An escaped character that can come before the text in JSON."""
_BLOCK = b"LZ4Block"
_HEAD = 21
"""Length of a block's header in lz4-java: magic, token, compressed and original length, checksum."""
_RAW = 0x10
_BEGIN = re.compile(rb"(?=\xff{4}(.{4}))", re.DOTALL)
"""Start of an Arrow stream: a marker, and the length of what follows."""
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class FileSearchMatch:
    """A place where the text was found: a file, or a column of a Parquet file.

    Attributes:
        place: The file, relative to the folder that was searched.
        column: The column of a Parquet file; None in other files.
        values: The number of values with the text; 1 in other files.
    """

    place: str
    column: str | None
    values: int

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.place}{column}: {self.values}"


@dataclass(frozen=True)
class FileSearchResult:
    """The result of a search.

    Attributes:
        files: The number of files searched.
        size: The size of these files in bytes.
        found: The files and columns that contain the text.
        unread: Parquet files that cannot be read, for example because they are incomplete. Their compressed data was
            not searched.
    """

    files: int
    size: int
    found: tuple[FileSearchMatch, ...]
    unread: tuple[str, ...] = ()


def build_search_pattern(text: str) -> str:
    """Returns a regular expression that finds a text and its JSON escapes. It is valid in Python, Java and RE2."""
    forms = {text}
    for ascii_only in (True, False):
        inner = text
        for _ in range(2):
            inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
            forms.add(inner)
    return rf"(?s)(?:^|{_BETWEEN}|{_ESCAPED})(?:{'|'.join(map(re.escape, sorted(forms)))})(?:$|{_BETWEEN})"


def search_folder_for_text(folder: Path, text: str, excluded: tuple[str, ...] = ()) -> FileSearchResult:
    """Searches all files in a folder and its sub-folders for a text.

    Args:
        folder: The folder.
        text: The text to find.
        excluded: Names of sub-folders that are not searched.
    """
    files = size = 0
    found: list[FileSearchMatch] = []
    unread: list[str] = []
    for file in sorted(folder.rglob("*")):
        place = file.relative_to(folder)
        if place.parts[0] in excluded or file.is_symlink() or not file.is_file():
            continue
        files, size = files + 1, size + file.stat().st_size
        hits, read = _search_file_for_text(file, text)
        found += [FileSearchMatch(str(place), column, values) for column, values in hits]
        unread += [] if read else [str(place)]
    return FileSearchResult(files, size, tuple(found), tuple(unread))


def _search_file_for_text(path: Path, text: str) -> tuple[list[tuple[str | None, int]], bool]:
    """Searches one file for a text.

    Returns:
        First, a pair for each Parquet column that contains the text: the column's name and its number of values with
            the text; for other files, `(None, 1)` if they contain the text. Second, False if it is a Parquet file that
            cannot be read, so that its compressed data was not searched; else True.
    """
    # Also finds incomplete files, which have another suffix. Checksum files have `.parquet` in their names, too.
    packed = ".parquet" in path.name and path.suffix != ".crc" and path.stat().st_size > 0
    if packed:
        try:
            return [*_count_text_matches_in_parquet_columns(path, text)], True
        except (pa.ArrowException, OSError):  # the file is incomplete
            pass
    return [(None, 1)] if any(
        _contains_text(piece, text) for piece in _read_overlapping_file_chunks(path)
    ) else [], not packed


def _count_text_matches_in_parquet_columns(file: Path, text: str) -> Iterator[tuple[str, int]]:
    """Yields the name of each column that contains the text, and the number of its values that contain it."""
    pattern = build_search_pattern(text)
    counts: dict[str, int] = {}
    with pq.ParquetFile(file) as content:
        for batch in content.iter_batches():
            for name, leaf in _list_text_columns(batch):
                hits = pc.sum(pc.match_substring_regex(leaf, pattern)).as_py() or 0
                counts[name] = counts.get(name, 0) + hits
    yield from ((name, hits) for name, hits in sorted(counts.items()) if hits)


def _list_text_columns(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yields each column of texts or bytes in a batch, at any nesting depth, with its name such as `rows.id`."""
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


def _read_overlapping_file_chunks(file: Path) -> Iterator[bytes]:
    """Yields a file's bytes in overlapping pieces, so that no session id is cut.

    Yields Spark's state files also decompressed.
    """
    with file.open("rb") as source:
        before = b""
        while piece := source.read(_PIECE_BYTES):
            yield before + piece
            before = piece[-4096:]
        source.seek(0)
        packed = source.read(len(_BLOCK)) == _BLOCK
        if packed or file.suffix == ".state":
            source.seek(0)
            content = b"".join(_decompress_lz4_blocks(source.read())) if packed else source.read()
            yield content
            yield from _extract_texts_from_arrow_state(content)


def _decompress_lz4_blocks(packed: bytes) -> Iterator[bytes]:
    """Yields the decompressed blocks of a stream in the format of lz4-java, which Spark's state files have."""
    codec, place = pa.Codec("lz4_raw"), 0
    while packed.startswith(_BLOCK, place):
        token = packed[place + len(_BLOCK)]
        length, original = (int.from_bytes(packed[place + at : place + at + 4], "little") for at in (9, 13))
        block = packed[place + _HEAD : place + _HEAD + length]
        place += _HEAD + length
        if length:
            yield block if token & 0xF0 == _RAW else codec.decompress(block, original, asbytes=True)


def _extract_texts_from_arrow_state(stored: bytes) -> Iterator[bytes]:
    """Yields, for each column of each Arrow table in a stored state, all its texts joined by zero bytes."""
    buffer = pa.py_buffer(stored)
    for begin in _BEGIN.finditer(stored):
        if not 0 < int.from_bytes(begin[1], "little") < len(stored):
            continue  # numbers that only look like the start of a stream
        try:
            table = pa.ipc.open_stream(buffer.slice(begin.start())).read_all()
        except (pa.ArrowException, OSError):
            continue
        for batch in table.to_batches():
            for _, leaf in _list_text_columns(batch):
                yield b"\0".join(value for value in leaf.to_pylist() if value is not None)


def _contains_text(content: bytes, text: str) -> bool:
    return re.search(build_search_pattern(text).encode(), content) is not None
