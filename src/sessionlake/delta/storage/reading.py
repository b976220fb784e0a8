"""`TableReader`: reads rows of the lake's tables into the driver's memory, as Arrow data or dictionaries.

On a laptop rows are read with delta-rs and Arrow, before Spark could even start. In a catalog Spark reads them. Both
return the same rows. Files are skipped if their statistics show that no row can match.
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

from sessionlake.delta.storage.far_times import OutOfRangeTime, time_to_micros
from sessionlake.delta.storage.values import to_rows, to_value, to_values
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import SESSION, to_contiguous
from sessionlake.protocol.types import Row

# A condition on rows: column name, comparison and value. The comparison is a function of the module `operator`, or one
# of `is_in`, `starts_with` and `is_null`. It works on expressions of Arrow and of Spark.
Condition = tuple[str, Callable[[Any, Any], Any], Any]
# A condition lists up to this many values. For more values it has only a lower and an upper bound.
_NAMED = 1_000


def is_in(column: Any, values: Sequence[Any]) -> Any:
    """Comparison for conditions: the column's value is one of `values`."""
    return column.isin(values)


def starts_with(column: Any, text: str) -> Any:
    """Comparison for conditions: the column's value starts with `text`."""
    return pc.starts_with(column, text) if isinstance(column, pc.Expression) else column.startswith(text)


def is_null(column: Any, _: None) -> Any:
    """Comparison for conditions: the column is null. The condition's value must be None."""
    return column.is_null() if isinstance(column, pc.Expression) else column.isNull()


def to_arrow_expression(conditions: Sequence[Condition]) -> pc.Expression | None:
    """Combines all conditions into one Arrow expression; None if there are none."""
    meets = [compare(pc.field(name), _to_comparable(value)) for name, compare, value in conditions]
    return reduce(operator.and_, meets) if meets else None


def _to_comparable(value: Any) -> Any:
    """Converts a condition's value to a form that Arrow can compare with a column."""
    if isinstance(value, list):
        return [_to_comparable(one) for one in value]
    return pa.scalar(time_to_micros(value), pa.timestamp("us", "UTC")) if isinstance(value, OutOfRangeTime) else value


def build_key_conditions(rows: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Condition]:
    """Returns conditions that select table rows with the same keys as `rows`, and perhaps further rows.

    There is one condition per key column on its values, or two on its minimum and maximum if it has over 1,000 values.

    Args:
        keys: names of the key columns.
        schema: the columns of the table that is searched; values are cast to its types.
    """
    conditions: list[Condition] = []
    for name in keys:
        values = pc.unique(rows[name].cast(schema.field(name).type))
        if len(values) <= _NAMED:
            conditions.append((name, is_in, to_values(values)))
        else:
            ends = to_value(pc.min_max(values))
            conditions += [(name, operator.ge, ends["min"]), (name, operator.le, ends["max"])]
    return conditions


class TooLargeError(LakeError):
    """The rows to read are larger than the limit that the caller has set for its memory."""


@dataclass(frozen=True)
class TableSize:
    """Size of a table at its latest version, according to its log: rows, number of files, and bytes of these files."""

    version: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class FilesRead:
    """The files that a query must open.

    Attributes:
        read: paths of the files to open, relative to the table's folder.
        total: number of all files of the table's latest version.
    """

    read: frozenset[str]
    total: int


class TableReader(ABC):
    """Reads tables by their two-level names. A table that does not exist counts as a table without rows.

    In all methods, `conditions` select rows that meet all of them, and `columns` are the columns to return (None for
    all).
    """

    @abstractmethod
    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that meet all conditions, as record batches. Times are in UTC."""

    @abstractmethod
    def read_with_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        """Returns the rows that meet all conditions, and the number of all rows in the table.

        Both belong to the same version of the table. The number comes from its log. The table must exist.
        """

    @abstractmethod
    def exists(self, table: str) -> bool:
        """True if the table has been created."""

    @abstractmethod
    def read_table_schema(self, table: str) -> pa.Schema:
        """Returns the columns of a table, which must exist."""

    @abstractmethod
    def read_size(self, table: str) -> TableSize:
        """Returns the size of a table, which must exist, from its log."""

    @abstractmethod
    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesRead | None:
        """Returns the files that a read with these conditions must open, according to their statistics.

        None if the storage cannot say. The table must exist.
        """

    def count_rows(self, table: str) -> int:
        """Returns a table's row count from its log; 0 if the table does not exist."""
        return self.read_size(table).rows if self.exists(table) else 0

    def read_rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """Yields the rows that meet all conditions, as dictionaries. Times are in UTC.

        A time outside the range of Python's datetime is an `OutOfRangeTime`.
        """
        for batch in self.read_batches(table, *conditions, columns=columns):
            yield from to_rows(batch)

    def sample_rows(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        """Returns any rows of a table, at most `max_rows`, without reading the whole table."""
        return list(islice(self.read_rows(table, columns=columns), max_rows))

    def read_arrow_table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """Returns the rows that meet all conditions as one Arrow table. The table must exist.

        Args:
            sessions: one row for each session whose rows are returned, with all or some columns of `SESSION` (topic,
                partition, session id). `columns` must include these columns. None for all sessions.
            max_bytes: limit for the size of the result in memory, in bytes; None for no limit.

        Raises:
            TooLargeError: the result is larger than `max_bytes`.
        """
        names = [] if sessions is None else list_session_columns(sessions)
        wanted = None if sessions is None else _join_columns(sessions, names)
        found, size = [], 0
        for batch in self.read_batches(table, *conditions, columns=columns):
            rows = pa.Table.from_batches([batch])
            if wanted is not None:
                rows = rows.filter(pc.is_in(_join_columns(rows, names), value_set=wanted))
            size += rows.nbytes
            if max_bytes is not None and size > max_bytes:
                raise TooLargeError(
                    f"{table}: the selected rows have more than {max_bytes} bytes, the limit for one read into memory",
                    fix="Select fewer rows or columns",
                )
            found.append(rows)
        if found:
            return pa.concat_tables(found)
        schema = self.read_table_schema(table)
        return schema.empty_table().select(schema.names if columns is None else list(columns))

    def has_rows(self, table: str, *conditions: Condition) -> bool:
        """True if at least one row meets all conditions. Reading stops at the first such row."""
        named = [name for name, _, _ in conditions]
        return any(batch.num_rows for batch in self.read_batches(table, *conditions, columns=named or None))

    def count_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        """Counts the rows that meet all conditions, grouped by the columns `by`.

        Only the counts are held in memory, not the rows.

        Returns:
            The number of rows for each combination of values of `by`.
        """
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in self.read_batches(table, *conditions, columns=by):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([([], "count_all")])
            found.update(count_by_key(groups.select([*by, "count_all"])))
        return found

    def find_highest_values(
        self, table: str, column: str, by: Sequence[str], *conditions: Condition
    ) -> dict[tuple[Any, ...], Any]:
        """Returns the highest value of the column `column` for each combination of values of the columns `by`.

        Only rows that meet all conditions count. Only the results are held in memory, not the rows.
        """
        found: dict[tuple[Any, ...], Any] = {}
        for batch in self.read_batches(table, *conditions, columns=[*by, column]):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([(column, "max")])
            for key, value in group_by_key(groups.select([*by, f"{column}_max"])).items():
                found[key] = max(value, found.get(key, value))
        return found


def list_session_columns(sessions: pa.Table) -> list[str]:
    """Returns the names of the columns of `SESSION` (topic, partition, session id) that this table has."""
    return [name for name in SESSION if name in sessions.column_names]


def _join_columns(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    parts = (to_contiguous(rows[name]).cast(pa.string()) for name in names)
    return pc.binary_join_element_wise(*parts, "\0")


def group_by_key(groups: pa.Table) -> dict[tuple[Any, ...], Any]:
    """Converts a table with one row per group to a dictionary.

    The last column is the value. All other columns together are the key, as a tuple.
    """
    *keys, values = map(to_values, groups.columns)
    return dict(zip(zip(*keys, strict=True), values, strict=True))


def count_by_key(groups: pa.Table) -> Counter[tuple[Any, ...]]:
    """Converts a table with one row per group to a counter.

    The last column is the number of rows. All other columns together are the key, as a tuple.
    """
    return Counter(group_by_key(groups))
