"""Caches tables of a catalog while a layer starts, since a start reads them many times, and each read costs Spark jobs.

The cache ends with the block `cache_table_reads`. Rows are dropped earlier if this process commits to their table.
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
    FilesToRead,
    TableReader,
    TableSize,
    TooLargeError,
    build_arrow_expression,
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
    """What is cached of one table, which exists in the catalog.

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

    def drop_cached_rows(self) -> None:
        """Drops the table's cached rows, because this process has committed to the table."""
        self.commits += 1
        self.rows, self.is_small = [], None


TableCache = dict[str, CachedTable]
"""The cached tables by their full, quoted names in SQL."""

_current_cache: ContextVar[TableCache | None] = ContextVar("memory", default=None)
_all_caches: dict[int, TableCache] = {}
"""The caches of all threads, by Python's `id` of each cache, since two caches may have equal content."""


@contextmanager
def cache_table_reads() -> Iterator[None]:
    """Caches what this thread reads of tables until the block ends. If blocks are nested, the outermost one decides."""
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


def find_cached_table(identifier: str) -> CachedTable | None:
    """Returns what this thread has cached of a table; None if it has cached nothing.

    Args:
        identifier: the table's full, quoted name in SQL.
    """
    memory = _current_cache.get()
    return None if memory is None else memory.get(identifier)


def remember_table_exists(identifier: str) -> None:
    """Remembers in the cache that a table exists. Does nothing outside `cache_table_reads`.

    Args:
        identifier: the table's full, quoted name in SQL.
    """
    memory = _current_cache.get()
    if memory is not None:
        memory.setdefault(identifier, CachedTable())


def forget_cached_rows(identifier: str) -> None:
    """Drops the rows of a table from the caches of all threads. Call it after each commit to the table.

    Args:
        identifier: the table's full, quoted name in SQL.
    """
    for memory in tuple(_all_caches.values()):
        if (known := memory.get(identifier)) is not None:
            known.drop_cached_rows()


def forget_cached_table(identifier: str) -> None:
    """Drops everything that the caches of all threads have of a table. Call it before the table is dropped.

    Args:
        identifier: the table's full, quoted name in SQL.
    """
    for memory in tuple(_all_caches.values()):
        memory.pop(identifier, None)


class CachingTableReader(TableReader):
    """Reads tables from this thread's cache if possible, and else with another reader.

    Args:
        reader: the reader for everything that is not cached.
        identifier: function that returns the full, quoted SQL name of a table, given its two-level name.
        has_no_files_by_checksum: function that returns True if a table is known to be empty without a Spark job.
    """

    def __init__(
        self, reader: TableReader, identifier: Callable[[str], str], has_no_files_by_checksum: Callable[[str], bool]
    ) -> None:
        self._source, self._identifier, self._is_known_empty = reader, identifier, has_no_files_by_checksum

    def exists(self, table: str) -> bool:
        return self._source.exists(table)

    def read_table_schema(self, table: str) -> pa.Schema:
        return self._source.read_table_schema(table)

    def read_size(self, table: str) -> TableSize:
        return self._source.read_size(table)

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesToRead | None:
        return self._source.find_files_to_read(table, *conditions)

    def count_rows(self, table: str) -> int:
        all_rows = self._find_cached_rows(table, ())
        return self._source.count_rows(table) if all_rows is None else all_rows.num_rows

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._choose_cache_or_table_reader(table, conditions).read_batches(table, *conditions, columns=columns)

    def read_arrow_table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        return self._choose_cache_or_table_reader(table, conditions).read_arrow_table(
            table, *conditions, columns=columns, sessions=sessions, max_bytes=max_bytes
        )

    def sample_rows(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        return self._choose_cache_or_table_reader(table, ()).sample_rows(table, max_rows, columns)

    def has_rows(self, table: str, *conditions: Condition) -> bool:
        return self._choose_cache_or_table_reader(table, conditions).has_rows(table, *conditions)

    def count_rows_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        return self._choose_cache_or_table_reader(table, conditions).count_rows_by(table, by, *conditions)

    def find_highest_values(
        self, table: str, column: str, by: Sequence[str], *conditions: Condition
    ) -> dict[tuple[Any, ...], Any]:
        return self._choose_cache_or_table_reader(table, conditions).find_highest_values(table, column, by, *conditions)

    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        all_rows, known = self._find_cached_rows(table, ()), self._find_cached_table_if_cacheable(table)
        if all_rows is not None:
            found, rows = _filter_rows_by_conditions(all_rows, conditions), all_rows.num_rows
        elif known is None:
            return self._source.read_rows_and_total_count(table, *conditions, columns=columns)
        else:
            cached = next(((held, n) for asked, held, n in known.rows if asked == conditions and n is not None), None)
            commits = known.commits
            found, rows = cached or self._source.read_rows_and_total_count(table, *conditions)
            if cached is None and found.nbytes <= _SMALL_BYTES and commits == known.commits:
                known.rows.append((conditions, found, rows))
        return (found if columns is None else found.select(list(columns))), rows

    def _choose_cache_or_table_reader(self, table: str, conditions: Sequence[Condition]) -> TableReader:
        """Returns a reader for rows that meet the conditions: over cached rows if possible, else of the table."""
        held = self._find_cached_rows(table, conditions)
        return self._source if held is None else _InMemoryTableReader(self._source, held)

    def _find_cached_table_if_cacheable(self, table: str) -> CachedTable | None:
        return find_cached_table(self._identifier(table)) if table in _CACHED_TABLES and self.exists(table) else None

    def _find_cached_rows(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        """Returns cached rows of a table, among which are all rows that meet the conditions.

        Reads them first if needed.

        Returns None if rows of the table are not cached.
        """
        known = self._find_cached_table_if_cacheable(table)
        if known is None:
            return None
        if known.is_small is None:
            commits = known.commits
            all_rows = (
                self.read_table_schema(table).empty_table()
                if self._is_known_empty(table)
                else self._cache_rows(table, ())
            )
            if commits != known.commits:
                return all_rows
            known.is_small = all_rows is not None
            if all_rows is not None:
                known.rows = [((), all_rows, all_rows.num_rows)]
        wanted = () if known.is_small else tuple(conditions)
        held = next((rows for asked, rows, _ in known.rows if asked == wanted), None)
        if held is None and wanted:
            commits, held = known.commits, self._cache_rows(table, wanted)
            if held is not None and commits == known.commits:
                known.rows.append((wanted, held, None))
        return held

    def _cache_rows(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        try:
            return self._source.read_arrow_table(table, *conditions, max_bytes=_SMALL_BYTES)
        except TooLargeError:
            return None


class _InMemoryTableReader(TableReader):
    """A `TableReader` for a single table whose rows are in memory.

    Args:
        reader: answers what the rows do not say, such as the table's size.
        rows: the rows.
    """

    def __init__(self, reader: TableReader, rows: pa.Table) -> None:
        self._source, self._rows = reader, rows

    def exists(self, table: str) -> bool:
        return self._source.exists(table)

    def read_table_schema(self, table: str) -> pa.Schema:
        del table
        return self._rows.schema

    def read_size(self, table: str) -> TableSize:
        return self._source.read_size(table)

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesToRead | None:
        return self._source.find_files_to_read(table, *conditions)

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        del table
        found = _filter_rows_by_conditions(self._rows, conditions)
        yield from (found if columns is None else found.select(list(columns))).to_batches()

    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        return self._source.read_rows_and_total_count(table, *conditions, columns=columns)


def _filter_rows_by_conditions(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    wanted = build_arrow_expression(conditions)
    return rows if wanted is None else rows.filter(wanted)
