"""What a start remembers of a catalog's tables. It asks a dozen questions about the same few, each some Spark jobs.

Nothing outlives the block in which it is remembered, or a commit to the table by this process. What another process
commits meanwhile is as if it came just after the start.
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
    expression,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from typing import Any

    from sessionlake.protocol.types import Row

# The tables whose rows are remembered: small, or asked for again and again with the same condition.
_CACHED_TABLES = frozenset({LEDGER, POSITIONS, TOPICS, ERASURES, RETAINED, DECISIONS})
# Up to so many bytes, all rows of a table are read at the first question.
_SMALL_BYTES = 2 << 20


@dataclass
class CachedTable:
    """What is remembered of one table that exists.

    Attributes:
        properties: None before they are asked for.
        rows: all columns of the rows that meet conditions, and how many rows the table has, if that was asked.
        is_small: whether all rows may be remembered; None before they are asked for.
        commits: number of commits to the table by this process meanwhile: what was read before one is not kept.
    """

    properties: dict[str, str] | None = None
    rows: list[tuple[Sequence[Condition], pa.Table, int | None]] = field(default_factory=list)
    is_small: bool | None = None
    commits: int = 0

    def forget_rows(self) -> None:
        """Drops the rows: the table has other ones now."""
        self.commits += 1
        self.rows, self.is_small = [], None


TableCache = dict[str, CachedTable]
"""By the table's name in SQL."""

_here: ContextVar[TableCache | None] = ContextVar("memory", default=None)
_all: dict[int, TableCache] = {}
"""Those of all threads, by `id`: two may be equal."""


@contextmanager
def cache_tables() -> Iterator[None]:
    """Remembers until the block is left, in this thread; inside another such block, until that one is."""
    if _here.get() is not None:
        yield
        return
    memory: TableCache = {}
    token = _here.set(memory)
    _all[id(memory)] = memory
    try:
        yield
    finally:
        del _all[id(memory)]
        _here.reset(token)


def cached_table(identifier: str) -> CachedTable | None:
    """What is remembered of a table; None if nothing is, or it is not known to be there."""
    memory = _here.get()
    return None if memory is None else memory.get(identifier)


def note_exists(identifier: str) -> None:
    """Remembers that a table is there, if anything is remembered now."""
    memory = _here.get()
    if memory is not None:
        memory.setdefault(identifier, CachedTable())


def drop_rows(identifier: str) -> None:
    """Drops the rows of a table that was committed to, by whichever thread."""
    for memory in tuple(_all.values()):
        if (known := memory.get(identifier)) is not None:
            known.forget_rows()


def drop_table(identifier: str) -> None:
    """Drops all that is remembered of a table."""
    for memory in tuple(_all.values()):
        memory.pop(identifier, None)


class CachingReader(TableReader):
    """Reads tables, those that are small once, while anything is remembered.

    Args:
        asked: reads what is not remembered.
        identifier: gives a table's name in SQL.
        surely_empty: says that a table has no rows, if that is known without reading.
    """

    def __init__(
        self, asked: TableReader, identifier: Callable[[str], str], surely_empty: Callable[[str], bool]
    ) -> None:
        self._asked, self._identifier, self._surely_empty = asked, identifier, surely_empty

    def exists(self, table: str) -> bool:
        return self._asked.exists(table)

    def schema(self, table: str) -> pa.Schema:
        return self._asked.schema(table)

    def size(self, table: str) -> TableSize:
        return self._asked.size(table)

    def files(self, table: str, *conditions: Condition) -> FilesRead | None:
        return self._asked.files(table, *conditions)

    def count(self, table: str) -> int:
        whole = self._held(table, ())
        return self._asked.count(table) if whole is None else whole.num_rows

    def batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._of(table, conditions).batches(table, *conditions, columns=columns)

    def table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        of: pa.Table | None = None,
        at_most: int | None = None,
    ) -> pa.Table:
        return self._of(table, conditions).table(table, *conditions, columns=columns, of=of, at_most=at_most)

    def some(self, table: str, at_most: int, columns: Sequence[str]) -> list[Row]:
        return self._of(table, ()).some(table, at_most, columns)

    def any(self, table: str, *conditions: Condition) -> bool:
        return self._of(table, conditions).any(table, *conditions)

    def counts(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        return self._of(table, conditions).counts(table, by, *conditions)

    def highest(self, table: str, of: str, by: Sequence[str], *conditions: Condition) -> dict[tuple[Any, ...], Any]:
        return self._of(table, conditions).highest(table, of, by, *conditions)

    def counted(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        whole, known = self._held(table, ()), self._known(table)
        if whole is not None:
            found, rows = _filtered(whole, conditions), whole.num_rows
        elif known is None:
            return self._asked.counted(table, *conditions, columns=columns)
        else:
            told = next(((held, n) for asked, held, n in known.rows if asked == conditions and n is not None), None)
            commits = known.commits
            found, rows = told or self._asked.counted(table, *conditions)
            if told is None and found.nbytes <= _SMALL_BYTES and commits == known.commits:
                known.rows.append((conditions, found, rows))
        return (found if columns is None else found.select(list(columns))), rows

    def _of(self, table: str, conditions: Sequence[Condition]) -> TableReader:
        """What answers a question about rows that meet these conditions."""
        held = self._held(table, conditions)
        return self._asked if held is None else _RowsReader(self._asked, held)

    def _known(self, table: str) -> CachedTable | None:
        return cached_table(self._identifier(table)) if table in _CACHED_TABLES and self.exists(table) else None

    def _held(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        """The rows that meet these conditions, and perhaps others; None if they are to be asked for."""
        known = self._known(table)
        if known is None:
            return None
        if known.is_small is None:
            commits = known.commits
            whole = self.schema(table).empty_table() if self._surely_empty(table) else self._read(table, ())
            if commits != known.commits:
                return whole
            known.is_small = whole is not None
            if whole is not None:
                known.rows = [((), whole, whole.num_rows)]
        wanted = () if known.is_small else tuple(conditions)
        held = next((rows for asked, rows, _ in known.rows if asked == wanted), None)
        if held is None and wanted:
            commits, held = known.commits, self._read(table, wanted)
            if held is not None and commits == known.commits:
                known.rows.append((wanted, held, None))
        return held

    def _read(self, table: str, conditions: Sequence[Condition]) -> pa.Table | None:
        try:
            return self._asked.table(table, *conditions, at_most=_SMALL_BYTES)
        except TooLargeError:
            return None


class _RowsReader(TableReader):
    """Answers questions about one table, out of rows that are in memory."""

    def __init__(self, asked: TableReader, rows: pa.Table) -> None:
        self._asked, self._rows = asked, rows

    def exists(self, table: str) -> bool:
        return self._asked.exists(table)

    def schema(self, table: str) -> pa.Schema:
        del table
        return self._rows.schema

    def size(self, table: str) -> TableSize:
        return self._asked.size(table)

    def files(self, table: str, *conditions: Condition) -> FilesRead | None:
        return self._asked.files(table, *conditions)

    def batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        del table
        found = _filtered(self._rows, conditions)
        yield from (found if columns is None else found.select(list(columns))).to_batches()

    def counted(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        return self._asked.counted(table, *conditions, columns=columns)


def _filtered(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    wanted = expression(conditions)
    return rows if wanted is None else rows.filter(wanted)
