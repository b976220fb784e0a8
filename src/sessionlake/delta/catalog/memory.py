"""Caches tables of a catalog while a layer starts, since a start reads them many times, and each read costs Spark jobs.

The cache ends with the block `cache_tables`. A table's rows are dropped earlier if this process commits to the table.
If another process commits to it meanwhile, the start does not see that commit, as if it came just after the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.schemas.names import DECISIONS, ERASURES, LEDGER, POSITIONS, RETAINED, TOPICS
from sessionlake.delta.storage.reading import (
    Condition,
    FilesRead,
    TableReader,
    TableSize,
    TooLargeError,
    to_arrow_expression,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from typing import Any

    from sessionlake.protocol.types import Row

# Tables whose rows are cached: they are small, or read repeatedly with the same condition.
_CACHED_TABLES = frozenset({LEDGER, POSITIONS, TOPICS, ERASURES, RETAINED, DECISIONS})
# If a table has up to this many bytes, its first read caches all its rows.
_SMALL_BYTES = 2 << 20


@dataclass
class CachedTable:
    """The cache entry of one table, which exists in the catalog.

    Attributes:
        properties: the table's Delta properties; None until they are read.
        rows: tuples of conditions, the matching rows with all columns, and the table's row count (None if unknown).
        is_small: True if the table is so small that all its rows are cached at once; None until that is known.
        commits: number of commits by this process since caching began. Rows that were read before the last commit are
            not cached.
    """

    properties: dict[str, str] | None = None
    rows: list[tuple[Sequence[Condition], pa.Table, int | None]] = field(default_factory=list)
    is_small: bool | None = None
    commits: int = 0

    def forget_rows(self) -> None:
        """Drops the cached rows, because this process has committed to the table."""
        self.commits += 1
        self.rows, self.is_small = [], None


TableCache = dict[str, CachedTable]
"""The cached tables by their full, quoted names in SQL."""

_current_cache: ContextVar[TableCache | None] = ContextVar("memory", default=None)
_all_caches: dict[int, TableCache] = {}
"""The caches of all threads, by Python's `id` of each cache, since two caches may have equal content."""


@contextmanager
def cache_tables() -> Iterator[None]:
    """Caches what this thread reads of tables until the block ends. In nested blocks, the outermost one counts."""
    if _current_cache.get() is not None:
        yield
        return
    memory: TableCache = {}
    token = _current_cache.set(memory)
    _all_caches[id(memory)] = memory
    try:
        yield
    finally:
        del _all_caches[id(memory)]
        _current_cache.reset(token)


def cached_table(identifier: str) -> CachedTable | None:
    """Returns this thread's cache entry of a table; None if it has none.

    Args:
        identifier: the table's full, quoted name in SQL.
    """
    memory = _current_cache.get()
    return None if memory is None else memory.get(identifier)


def note_exists(identifier: str) -> None:
    """Adds a cache entry for a table that exists. Does nothing outside `cache_tables`."""
    memory = _current_cache.get()
    if memory is not None:
        memory.setdefault(identifier, CachedTable())


def forget_cached_rows(identifier: str) -> None:
    """Drops the rows of a table from the caches of all threads. Call it after each commit to the table."""
    for memory in tuple(_all_caches.values()):
        if (known := memory.get(identifier)) is not None:
            known.forget_rows()


def forget_cached_table(identifier: str) -> None:
    """Removes the cache entry of a table from the caches of all threads. Call it before the table is dropped."""
    for memory in tuple(_all_caches.values()):
        memory.pop(identifier, None)


class CachingReader(TableReader):
    """Reads tables from this thread's cache if possible, and else with another reader.

    Args:
        reader: the reader for everything that is not cached.
        identifier: function that returns the full, quoted SQL name of a table, given its two-level name.
        is_known_empty: function that returns True if a table is known to be empty without a Spark job.
    """

    def __init__(
        self, reader: TableReader, identifier: Callable[[str], str], is_known_empty: Callable[[str], bool]
    ) -> None:
        self._source, self._identifier, self._is_known_empty = reader, identifier, is_known_empty

    def exists(self, table: str) -> bool:
        return self._source.exists(table)

    def read_table_schema(self, table: str) -> pa.Schema:
        return self._source.read_table_schema(table)

    def read_size(self, table: str) -> TableSize:
        return self._source.read_size(table)

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesRead | None:
        return self._source.find_files_to_read(table, *conditions)

    def count_rows(self, table: str) -> int:
        all_rows = self._cached_rows(table, ())
        return self._source.count_rows(table) if all_rows is None else all_rows.num_rows

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._reader_for(table, conditions).read_batches(table, *conditions, columns=columns)

    def read_arrow_table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        return self._reader_for(table, conditions).read_arrow_table(
            table, *conditions, columns=columns, sessions=sessions, max_bytes=max_bytes
        )

    def sample_rows(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        return self._reader_for(table, ()).sample_rows(table, max_rows, columns)

    def has_rows(self, table: str, *conditions: Condition) -> bool:
        return self._reader_for(table, conditions).has_rows(table, *conditions)

    def count_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        return self._reader_for(table, conditions).count_by(table, by, *conditions)

    def find_highest_values(
        self, table: str, column: str, by: Sequence[str], *conditions: Condition
    ) -> dict[tuple[Any, ...], Any]:
        return self._reader_for(table, conditions).find_highest_values(table, column, by, *conditions)

    def read_with_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        all_rows, known = self._cached_rows(table, ()), self._cached_table(table)
        if all_rows is not None:
            found, rows = _filter_rows(all_rows, conditions), all_rows.num_rows
        elif known is None:
            return self._source.read_with_count(table, *conditions, columns=columns)
        else:
            cached = next(((held, n) for asked, held, n in known.rows if asked == conditions and n is not None), None)
            commits = known.commits
            found, rows = cached or self._source.read_with_count(table, *conditions)
            if cached is None and found.nbytes <= _SMALL_BYTES and commits == known.commits:
                known.rows.append((conditions, found, rows))
        return (found if columns is None else found.select(list(columns))), rows

    def _reader_for(self, table: str, conditions: Sequence[Condition]) -> TableReader:
        """Returns the reader for rows that meet these conditions: over cached rows if possible, else `asked`."""
        held = self._cached_rows(table, conditions)
        return self._source if held is None else _RowsReader(self._source, held)

    def _cached_table(self, table: str) -> CachedTable | None:
        return cached_table(self._identifier(table)) if table in _CACHED_TABLES and self.exists(table) else None

    def _cached_rows(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        """Returns cached rows that include all rows which meet these conditions. Reads and caches them first if needed.

        None if rows of the table are not cached.
        """
        known = self._cached_table(table)
        if known is None:
            return None
        if known.is_small is None:
            commits = known.commits
            all_rows = (
                self.read_table_schema(table).empty_table()
                if self._is_known_empty(table)
                else self._read_into_cache(table, ())
            )
            if commits != known.commits:
                return all_rows
            known.is_small = all_rows is not None
            if all_rows is not None:
                known.rows = [((), all_rows, all_rows.num_rows)]
        wanted = () if known.is_small else tuple(conditions)
        held = next((rows for asked, rows, _ in known.rows if asked == wanted), None)
        if held is None and wanted:
            commits, held = known.commits, self._read_into_cache(table, wanted)
            if held is not None and commits == known.commits:
                known.rows.append((wanted, held, None))
        return held

    def _read_into_cache(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        try:
            return self._source.read_arrow_table(table, *conditions, max_bytes=_SMALL_BYTES)
        except TooLargeError:
            return None


class _RowsReader(TableReader):
    """Implements `TableReader` for one table, over rows in memory."""

    def __init__(self, reader: TableReader, rows: pa.Table) -> None:
        self._source, self._rows = reader, rows

    def exists(self, table: str) -> bool:
        return self._source.exists(table)

    def read_table_schema(self, table: str) -> pa.Schema:
        del table
        return self._rows.schema

    def read_size(self, table: str) -> TableSize:
        return self._source.read_size(table)

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesRead | None:
        return self._source.find_files_to_read(table, *conditions)

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        del table
        found = _filter_rows(self._rows, conditions)
        yield from (found if columns is None else found.select(list(columns))).to_batches()

    def read_with_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        return self._source.read_with_count(table, *conditions, columns=columns)


def _filter_rows(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    wanted = to_arrow_expression(conditions)
    return rows if wanted is None else rows.filter(wanted)
