"""Caches the keys of data files and their Parquet footers in memory, up to a limit.

Data files never change. So a MERGE of few rows into a large table only reads the keys of new files. In some large files
many consecutive rows have equal values in all key columns but the last, as the rows of a session do. For such files
only these equal values are cached, in a `PrefixIndex`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.file_rows import ParquetFooter
from sessionlake.delta.folders.key_index import KeyIndex, PrefixIndex
from sessionlake.delta.folders.table_files import TableFile

_Name = tuple[Path, tuple[str, ...]]
# An entry that one of the last searches used, up to this many, is not evicted for a new entry.
_IN_USE = 64
# A file with at least this many rows is cached as a `PrefixIndex`, if runs have at least `_LONG` rows on average.
_LARGE = 1 << 18
_LONG = 16
_PART = 1 << 21  # rows whose keys are read and indexed at once
Part = tuple[int, KeyIndex | PrefixIndex]
"""A part of a file (one or more row groups): the number of its first row in the file, and an index of its keys."""


@dataclass
class _CachedDataFile:
    """What is cached of one data file: its keys and its footer.

    Attributes:
        parts: indexes that together have all keys of the file.
        size: size of these indexes in bytes.
        used: number of the search that last used the file.
        footer: the file's footer; None if it is not cached.
    """

    parts: tuple[Part, ...]
    size: int
    used: int
    footer: ParquetFooter | None = None

    @property
    def nbytes(self) -> int:
        """Memory used by the indexes and the footer, in bytes."""
        return self.size + (0 if self.footer is None else self.footer.nbytes)


class FileKeyCache:
    """Caches the keys and footers of data files in memory. Several threads may use it.

    Args:
        max_bytes: limit of the cache in bytes. If it is reached, footers are dropped first. If keys still do not fit,
            they are read from the file in each search.
    """

    def __init__(self, max_bytes: int) -> None:
        self._most, self._bytes, self._searches = max_bytes, 0, 0
        self._kept = OrderedDict[_Name, _CachedDataFile]()  # least recently used first
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Memory used by the cached keys and footers, in bytes."""
        return self._bytes

    def evict_files_not_in_table(self, files: Sequence[TableFile]) -> None:
        """Starts a search in a table. Drops from the cache files that are no longer part of the table.

        Args:
            files: all files of the table's version.
        """
        there, folders = {file.full_path for file in files}, {file.folder for file in files}
        with self._lock:
            self._searches += 1
            gone = [name for name in self._kept if name[0].parent in folders and name[0] not in there]
            for name in gone:
                self._evict_file(name)

    def read_key_indexes(self, path: Path, names: Sequence[str], schema: pa.Schema) -> Iterator[Part]:
        """Yields indexes that together have all keys of a file. Reads the keys if they are not cached.

        Args:
            path: full path of the file.
            names: the key columns.
            schema: the table's columns.
        """
        name = path, tuple(names)
        known = self._find_cached_file(name)
        if known is not None:
            yield from known.parts
            return
        new, size = list[Part](), 0
        for group in _read_key_indexes_from_file(path, names, schema):
            yield group
            size += group[1].nbytes
            if size <= self._most:
                new.append(group)
            else:
                new.clear()
        self._cache_key_indexes(name, tuple(new), size)

    def read_footer(self, path: Path, names: Sequence[str]) -> ParquetFooter:
        """Returns the footer of a file, from the cache or from the file. Call `read_key_indexes` for the file before.

        Args:
            path: full path of the file.
            names: the key columns that `read_key_indexes` got.
        """
        name = path, tuple(names)
        known = self._find_cached_file(name)
        footer = None if known is None else known.footer
        if footer is None:
            footer = ParquetFooter.read_footer(path)
            with self._lock:
                known = self._kept.get(name)
                if known is not None and known.footer is None and self._evict_unused_to_fit(footer.nbytes):
                    known.footer = footer
                    self._bytes += footer.nbytes
        return footer

    def _find_cached_file(self, name: _Name) -> _CachedDataFile | None:
        with self._lock:
            known = self._kept.get(name)
            if known is not None:
                known.used = self._searches
                self._kept.move_to_end(name)
            return known

    def _cache_key_indexes(self, name: _Name, parts: tuple[Part, ...], size: int) -> None:
        with self._lock:
            if name not in self._kept and self._evict_unused_to_fit(size, instead_of_footers=True):
                self._kept[name] = _CachedDataFile(parts, size, self._searches)
                self._bytes += size

    def _evict_unused_to_fit(self, size: int, *, instead_of_footers: bool = False) -> bool:
        """Makes room in the cache by dropping files that the present search does not use.

        If that is not enough, drops nothing.

        Args:
            size: number of bytes that are needed.
            instead_of_footers: True to drop footers of used files, too.

        Returns:
            True if there is room now.
        """
        lacking, gone, without = self._bytes + size - self._most, list[_Name](), list[_CachedDataFile]()
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
            self._evict_file(name)
        for known in without:
            self._bytes -= known.nbytes - known.size
            known.footer = None
        return True

    def _evict_file(self, name: _Name) -> None:
        self._bytes -= self._kept.pop(name).nbytes


def _read_key_indexes_from_file(path: Path, names: Sequence[str], schema: pa.Schema) -> Iterator[Part]:
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    heads, first = list(names[:-1]), 0
    with pq.ParquetFile(path, read_dictionary=texts, coerce_int96_timestamp_unit="us") as content:
        large = heads and content.metadata.num_rows >= _LARGE
        for groups in _list_row_groups_to_read_together(content.metadata):
            runs = (
                PrefixIndex.from_rows(content.read_row_groups(groups, columns=heads).select(heads), schema)
                if large
                else None
            )
            if runs is not None and len(runs.first) * _LONG <= (count := int(runs.length.sum())):
                yield first, runs
            else:
                rows = content.read_row_groups(groups, columns=list(names)).select(list(names))
                count = rows.num_rows
                yield first, KeyIndex.from_rows(rows, schema)
            first += count


def _list_row_groups_to_read_together(footer: pq.FileMetaData) -> Iterator[list[int]]:
    """Yields lists of consecutive row groups to read at once, because files that MERGE wrote have small ones."""
    groups, rows = list[int](), 0
    for number in range(footer.num_row_groups):
        groups.append(number)
        rows += footer.row_group(number).num_rows
        if rows >= _PART:
            yield groups
            groups, rows = [], 0
    if rows:
        yield groups
