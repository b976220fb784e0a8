"""Reads a few rows of the lake's tables into the driver, as Arrow or as dictionaries.

On a laptop delta-rs reads them, faster than Spark would start. In a catalog Spark reads them. Both return the same
rows. Files whose statistics rule out a matching row are skipped.
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
from sessionlake.protocol.arrow import SESSION, contiguous
from sessionlake.protocol.types import Row

# A condition: a column, a comparison and a value. The comparison works on Arrow's and Spark's expressions alike: it
# comes from the module `operator`, or is one of those below.
Condition = tuple[str, Callable[[Any, Any], Any], Any]
# A condition lists up to this many values; beyond that it has a lower and an upper bound.
_NAMED = 1_000


def is_in(column: Any, values: Sequence[Any]) -> Any:
    """Comparison: the column's value is one of these."""
    return column.isin(values)


def starts_with(column: Any, text: str) -> Any:
    """Comparison: the column's value starts with the text."""
    return pc.starts_with(column, text) if isinstance(column, pc.Expression) else column.startswith(text)


def is_null(column: Any, _: None) -> Any:
    """Comparison: the column is null."""
    return column.is_null() if isinstance(column, pc.Expression) else column.isNull()


def expression(conditions: Sequence[Condition]) -> pc.Expression | None:
    """Combines all conditions into one Arrow expression; None if there are none."""
    meets = [compare(pc.field(name), _comparable(value)) for name, compare, value in conditions]
    return reduce(operator.and_, meets) if meets else None


def _comparable(value: Any) -> Any:
    """Returns a condition's value in the form that Arrow compares."""
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return pa.scalar(micros_of(value), pa.timestamp("us", "UTC")) if isinstance(value, FarTime) else value


def key_conditions(rows: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Condition]:
    """Returns conditions that all rows with the keys of `rows` meet, and few other rows.

    Args:
        schema: the columns of the table that is searched.
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
    """A query's result is larger than its caller can hold in memory."""


@dataclass(frozen=True)
class TableSize:
    """Size of a table at its latest version, according to its log."""

    version: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class FilesRead:
    """Which files of a table's latest version a query opens, and how many there are."""

    read: frozenset[str]
    total: int


class TableReader(ABC):
    """Reads tables. A table that does not exist has no rows."""

    @abstractmethod
    def batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that meet all conditions, in record batches; times are in UTC."""

    @abstractmethod
    def read_with_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        """Returns the rows that meet all conditions, and the table's total row count, both of one version.

        The table must exist. The count comes from its log.
        """

    @abstractmethod
    def exists(self, table: str) -> bool:
        """True if the table has been created."""

    @abstractmethod
    def schema(self, table: str) -> pa.Schema:
        """Returns the columns of a table, which must exist."""

    @abstractmethod
    def size(self, table: str) -> TableSize:
        """Returns the size of a table, which must exist. Reads no rows."""

    @abstractmethod
    def files(self, table: str, *conditions: Condition) -> FilesRead | None:
        """Returns the files that may have rows which meet all conditions, by their statistics; None if unknown.

        The table must exist.
        """

    def count(self, table: str) -> int:
        """Returns a table's row count from its log; 0 if the table does not exist."""
        return self.size(table).rows if self.exists(table) else 0

    def rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """Yields the rows that meet all conditions, with times in UTC.

        A time outside datetime's range is a `FarTime`.
        """
        for batch in self.batches(table, *conditions, columns=columns):
            yield from rows_of(batch)

    def sample(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        """Returns up to `max_rows` arbitrary rows of a table, and reads little more than them."""
        return list(islice(self.rows(table, columns=columns), max_rows))

    def table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """Returns the rows that meet all conditions as one Arrow table. The table must exist.

        Args:
            sessions: only rows of these sessions are returned. They are identified by those columns of `SESSION` that
                this table has; `columns` must include them.
            max_bytes: limit of the result's size in memory.

        Raises:
            TooLargeError: the result is larger than `max_bytes`.
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
                raise TooLargeError(f"{table}: the selected rows have more than {max_bytes} bytes")
            found.append(rows)
        if found:
            return pa.concat_tables(found)
        schema = self.schema(table)
        return schema.empty_table().select(schema.names if columns is None else list(columns))

    def any(self, table: str, *conditions: Condition) -> bool:
        """True if a row meets all conditions. Reading stops at the first such row."""
        named = [name for name, _, _ in conditions]
        return any(batch.num_rows for batch in self.batches(table, *conditions, columns=named or None))

    def count_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        """Counts the rows that meet all conditions for each combination of values of the columns `by`.

        Only the combinations are in memory, whatever the number of rows.
        """
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in self.batches(table, *conditions, columns=by):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([([], "count_all")])
            found.update(counter_of(groups.select([*by, "count_all"])))
        return found

    def highest(self, table: str, of: str, by: Sequence[str], *conditions: Condition) -> dict[tuple[Any, ...], Any]:
        """Returns a column's highest value for each combination of values of the columns `by`.

        Only rows that meet all conditions count. Only the combinations are in memory, whatever the number of rows.
        """
        found: dict[tuple[Any, ...], Any] = {}
        for batch in self.batches(table, *conditions, columns=[*by, of]):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([(of, "max")])
            for key, value in by_key(groups.select([*by, f"{of}_max"])).items():
                found[key] = max(value, found.get(key, value))
        return found


def session_columns(sessions: pa.Table) -> list[str]:
    """Returns those of the columns `SESSION` that this table of sessions has."""
    return [name for name in SESSION if name in sessions.column_names]


def _joined(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    parts = (contiguous(rows[name]).cast(pa.string()) for name in names)
    return pc.binary_join_element_wise(*parts, "\0")


def by_key(groups: pa.Table) -> dict[tuple[Any, ...], Any]:
    """Returns the groups as a dictionary: the last column is the value, the others are the key."""
    *keys, values = map(values_of, groups.columns)
    return dict(zip(zip(*keys, strict=True), values, strict=True))


def counter_of(groups: pa.Table) -> Counter[tuple[Any, ...]]:
    """Returns the groups as a counter: the last column is the number of rows, the others are the key."""
    return Counter(by_key(groups))
