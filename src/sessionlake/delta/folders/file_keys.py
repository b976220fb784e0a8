"""Caches the keys of files in memory, up to a limit, with the files' footers.

Files never change. So a MERGE of few rows into many only reads keys of new files. For a large file whose rows share all
key columns but the last, as the rows of a session do, only these shared parts are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.file_rows import Footer
from sessionlake.delta.folders.key_index import KeyIndex, RunIndex
from sessionlake.delta.folders.table_files import TableFile

_Name = tuple[Path, tuple[str, ...]]
# An entry used within this many searches is not evicted for a new one.
_IN_USE = 64
# A file with at least this many rows is cached by shared key parts, if each has many rows on average.
_LARGE = 1 << 18
_LONG = 16
_PART = 1 << 21  # rows whose keys are read and indexed at once
Part = tuple[int, KeyIndex | RunIndex]
"""The number of a part's first row, and the index of the part's keys."""


@dataclass
class _Known:
    """What is cached of a file.

    Attributes:
        parts: indexes of its keys.
        size: their bytes.
        used: number of the search that last used them.
        footer: the file's footer; None if there is no room for it.
    """

    parts: tuple[Part, ...]
    size: int
    used: int
    footer: Footer | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.size + (0 if self.footer is None else self.footer.nbytes)


class FileKeys:
    """Caches the keys and footers of files. Safe for several threads.

    Args:
        most: limit in bytes. If it is reached, footers are read again each time, and then keys.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._searches = most, 0, 0
        self._kept = OrderedDict[_Name, _Known]()  # least recently used first
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds."""
        return self._bytes

    def begin_search(self, files: Sequence[TableFile]) -> None:
        """Starts a search in a table.

        Args:
            files: all files of a version. Entries of other files in its folder are evicted.
        """
        there, folders = {file.path for file in files}, {file.folder for file in files}
        with self._lock:
            self._searches += 1
            gone = [name for name in self._kept if name[0].parent in folders and name[0] not in there]
            for name in gone:
                self._evict(name)

    def parts(self, path: Path, names: Sequence[str], schema: pa.Schema) -> Iterator[Part]:
        """Yields the indexes of a file's keys, reading the keys if they are not cached."""
        name = path, tuple(names)
        known = self._used(name)
        if known is not None:
            yield from known.parts
            return
        new, size = list[Part](), 0
        for group in _read(path, names, schema):
            yield group
            size += group[1].nbytes
            if size <= self._most:
                new.append(group)
            else:
                new.clear()
        self._keep(name, tuple(new), size)

    def footer(self, path: Path, names: Sequence[str]) -> Footer:
        """Returns the footer of a file whose keys were read before."""
        name = path, tuple(names)
        known = self._used(name)
        footer = None if known is None else known.footer
        if footer is None:
            footer = Footer.read(path)
            with self._lock:
                known = self._kept.get(name)
                if known is not None and known.footer is None and self._has_room(footer.nbytes):
                    known.footer = footer
                    self._bytes += footer.nbytes
        return footer

    def _used(self, name: _Name) -> _Known | None:
        with self._lock:
            known = self._kept.get(name)
            if known is not None:
                known.used = self._searches
                self._kept.move_to_end(name)
            return known

    def _keep(self, name: _Name, parts: tuple[Part, ...], size: int) -> None:
        with self._lock:
            if name not in self._kept and self._has_room(size, instead_of_footers=True):
                self._kept[name] = _Known(parts, size, self._searches)
                self._bytes += size

    def _has_room(self, size: int, *, instead_of_footers: bool = False) -> bool:
        """True if there is room, after evicting unused entries and, if allowed, footers."""
        lacking, gone, without = self._bytes + size - self._most, list[_Name](), list[_Known]()
        for name, known in self._kept.items():
            if lacking <= 0:
                break
            if self._searches - known.used >= _IN_USE:
                gone.append(name)
                lacking -= known.nbytes
            elif instead_of_footers and known.footer is not None:
                without.append(known)
                lacking -= known.footer.nbytes
        if lacking > 0:
            return False
        for name in gone:
            self._evict(name)
        for known in without:
            self._bytes -= known.nbytes - known.size
            known.footer = None
        return True

    def _evict(self, name: _Name) -> None:
        self._bytes -= self._kept.pop(name).nbytes


def _read(path: Path, names: Sequence[str], schema: pa.Schema) -> Iterator[Part]:
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    heads, first = list(names[:-1]), 0
    with pq.ParquetFile(path, read_dictionary=texts, coerce_int96_timestamp_unit="us") as content:
        large = heads and content.metadata.num_rows >= _LARGE
        for groups in _together(content.metadata):
            runs = RunIndex.of(content.read_row_groups(groups, columns=heads).select(heads), schema) if large else None
            if runs is not None and len(runs.first) * _LONG <= (count := int(runs.length.sum())):
                yield first, runs
            else:
                rows = content.read_row_groups(groups, columns=list(names)).select(list(names))
                count = rows.num_rows
                yield first, KeyIndex.of(rows, schema)
            first += count


def _together(footer: pq.FileMetaData) -> Iterator[list[int]]:
    """Yields groups of row groups that are read together, since tables for merging have small row groups."""
    groups, rows = list[int](), 0
    for number in range(footer.num_row_groups):
        groups.append(number)
        rows += footer.row_group(number).num_rows
        if rows >= _PART:
            yield groups
            groups, rows = [], 0
    if rows:
        yield groups
