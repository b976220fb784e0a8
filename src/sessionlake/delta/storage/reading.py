"""A few rows out of the lake's tables, brought to the driver as Arrow or as dictionaries.

A question about one message, or about the ledger, is answered on a laptop by delta-rs before Spark would have started;
in a catalog Spark answers it. Both give the same rows. Of the append-only tables, only files whose statistics leave it
open are read.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.storage.far_times import FarTime, micros_of
from sessionlake.delta.storage.values import rows_of, value_of, values_of
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import SESSION, one
from sessionlake.protocol.types import Row

# A column, a comparison that both engines' expressions understand (one of the `operator` module, or one of those
# below), and a value.
Condition = tuple[str, Callable[[Any, Any], Any], Any]
# Up to so many values are named to the files.
_NAMED = 1_000


def is_in(column: Any, values: Sequence[Any]) -> Any:
    """A comparison: the column's value is one of these."""
    return column.isin(values)


def starts_with(column: Any, text: str) -> Any:
    """A comparison: the column's value begins with the text."""
    return pc.starts_with(column, text) if isinstance(column, pc.Expression) else column.startswith(text)


def is_null(column: Any, _: None) -> Any:
    """A comparison: the column has no value."""
    return column.is_null() if isinstance(column, pc.Expression) else column.isNull()


def expression(conditions: Sequence[Condition]) -> pc.Expression | None:
    """All conditions as one of Arrow's expressions; None if there are none."""
    meets = [compare(pc.field(name), _comparable(value)) for name, compare, value in conditions]
    return reduce(operator.and_, meets) if meets else None


def _comparable(value: Any) -> Any:
    """A condition's value as Arrow compares it."""
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return pa.scalar(micros_of(value), pa.timestamp("us", "UTC")) if isinstance(value, FarTime) else value


def key_conditions(rows: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Condition]:
    """Conditions that hold for all rows of a table with the keys of these, and for few others.

    Args:
        schema: of the table.
    """
    conditions: list[Condition] = []
    for name in keys:
        values = pc.unique(rows[name].cast(schema.field(name).type))
        if len(values) <= _NAMED:
            conditions.append((name, is_in, values_of(values)))
        else:
            ends = value_of(pc.min_max(values))
            conditions += [(name, operator.ge, ends["min"]), (name, operator.le, ends["max"])]
    return conditions


class TooLargeError(LakeError):
    """More was found than whoever asked can hold in memory."""


@dataclass(frozen=True)
class TableSize:
    """How much there is of a table at its present version, by its log."""

    version: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class FilesRead:
    """Which files of a table's present version a question opens, of how many."""

    read: frozenset[str]
    total: int


class TableReader(ABC):
    """Reads tables; one that is not there yet has no rows."""

    @abstractmethod
    def batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that meet all conditions, batch by batch; times are in UTC."""

    @abstractmethod
    def read_with_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        """The rows that meet all conditions, and how many the table has in all, by its log: both of one version.

        The table must be there.
        """

    @abstractmethod
    def exists(self, table: str) -> bool:
        """Whether the table has been created."""

    @abstractmethod
    def schema(self, table: str) -> pa.Schema:
        """Columns of a table that is there."""

    @abstractmethod
    def size(self, table: str) -> TableSize:
        """How much there is of a table that is there; its rows are not read."""

    @abstractmethod
    def files(self, table: str, *conditions: Condition) -> FilesRead | None:
        """The files whose statistics leave it open that they have rows which meet all conditions; None if unknown.

        The table must be there.
        """

    def count(self, table: str) -> int:
        """How many rows a table has, by its log; none if it is not there."""
        return self.size(table).rows if self.exists(table) else 0

    def rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """The rows that meet all conditions; times are aware, in UTC, and those that are no dates are `FarTime`s."""
        for batch in self.batches(table, *conditions, columns=columns):
            yield from rows_of(batch)

    def sample(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        """A few rows of a table, whichever; reads little more."""
        return list(islice(self.rows(table, columns=columns), max_rows))

    def table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """The rows that meet all conditions, as one Arrow table. The table must be there.

        Args:
            of: the sessions whose rows are meant, others are dropped as they are read: by those of the columns
                `SESSION` that it has, all of which must be read.
            max_bytes: bytes in memory.

        Raises:
            TooLargeError: it has more.
        """
        names = [] if sessions is None else session_columns(sessions)
        wanted = None if sessions is None else _joined(sessions, names)
        found, size = [], 0
        for batch in self.batches(table, *conditions, columns=columns):
            rows = pa.Table.from_batches([batch])
            if wanted is not None:
                rows = rows.filter(pc.is_in(_joined(rows, names), value_set=wanted))
            size += rows.nbytes
            if max_bytes is not None and size > max_bytes:
                raise TooLargeError(f"the rows asked for of {table} have more than {max_bytes} bytes")
            found.append(rows)
        if found:
            return pa.concat_tables(found)
        schema = self.schema(table)
        return schema.empty_table().select(schema.names if columns is None else list(columns))

    def any(self, table: str, *conditions: Condition) -> bool:
        """Whether a row meets all conditions; reads no further than to the first."""
        named = [name for name, _, _ in conditions]
        return any(batch.num_rows for batch in self.batches(table, *conditions, columns=named or None))

    def count_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        """How many rows that meet all conditions there are of each combination of these columns' values.

        What is kept in memory are the combinations, whatever the number of rows.
        """
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in self.batches(table, *conditions, columns=by):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([([], "count_all")])
            found.update(counter_of(groups.select([*by, "count_all"])))
        return found

    def highest(self, table: str, of: str, by: Sequence[str], *conditions: Condition) -> dict[tuple[Any, ...], Any]:
        """The highest value of a column, by other columns' values, of the rows that meet all conditions.

        What is kept in memory are the combinations, whatever the number of rows.
        """
        found: dict[tuple[Any, ...], Any] = {}
        for batch in self.batches(table, *conditions, columns=[*by, of]):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([(of, "max")])
            for key, value in by_key(groups.select([*by, f"{of}_max"])).items():
                found[key] = max(value, found.get(key, value))
        return found


def session_columns(sessions: pa.Table) -> list[str]:
    """Which of the columns `SESSION` tell the sessions that are meant; see `TableReader.table`."""
    return [name for name in SESSION if name in sessions.column_names]


def _joined(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    parts = (one(rows[name]).cast(pa.string()) for name in names)
    return pc.binary_join_element_wise(*parts, "\0")


def by_key(groups: pa.Table) -> dict[tuple[Any, ...], Any]:
    """Groups of rows by their keys: the last column is the value of each."""
    *keys, values = map(values_of, groups.columns)
    return dict(zip(zip(*keys, strict=True), values, strict=True))


def counter_of(groups: pa.Table) -> Counter[tuple[Any, ...]]:
    """Groups of rows as a counter: the last column is how many rows each has."""
    return Counter(by_key(groups))
