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

from sessionlake.delta.storage.far_times import OutOfRangeTime, convert_time_to_micros
from sessionlake.delta.storage.values import convert_to_python_value, convert_to_python_values, convert_to_row_dicts
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import SESSION, convert_to_contiguous_array
from sessionlake.protocol.types import Row

# A condition on rows: column name, comparison and value. The comparison is a function of the module `operator`, or one
# of `is_in`, `starts_with` and `is_null`. It works on expressions of Arrow and of Spark.
Condition = tuple[str, Callable[[Any, Any], Any], Any]
# A condition lists up to this many values. For more values it has only a lower and an upper bound.
_NAMED = 1_000


def is_in(column: Any, values: Sequence[Any]) -> Any:
    """Comparison operator for a `Condition`: the column's value is one of `values`."""
    return column.isin(values)


def starts_with(column: Any, text: str) -> Any:
    """Comparison operator for a `Condition`: the column's value starts with `text`."""
    return pc.starts_with(column, text) if isinstance(column, pc.Expression) else column.startswith(text)


def is_null(column: Any, _: None) -> Any:
    """Comparison operator for a `Condition`: the column is null. The condition's value must be None."""
    return column.is_null() if isinstance(column, pc.Expression) else column.isNull()


def build_arrow_expression(conditions: Sequence[Condition]) -> pc.Expression | None:
    """Combines conditions into one Arrow expression that is true if all are met; None if there are none."""
    meets = [compare(pc.field(name), _convert_to_comparable_value(value)) for name, compare, value in conditions]
    return reduce(operator.and_, meets) if meets else None


def _convert_to_comparable_value(value: Any) -> Any:
    """Converts the value of a condition to a type that Arrow can compare with a column."""
    if isinstance(value, list):
        return [_convert_to_comparable_value(one) for one in value]
    return (
        pa.scalar(convert_time_to_micros(value), pa.timestamp("us", "UTC"))
        if isinstance(value, OutOfRangeTime)
        else value
    )


def build_key_conditions(rows: pa.Table, keys: Sequence[str], schema: pa.Schema) -> list[Condition]:
    """Returns conditions that all table rows with the same keys as `rows` meet. Further rows may meet them, too.

    There is one condition per key column on its values, or two on its minimum and maximum if it has over 1,000 values.

    Args:
        rows: rows with the keys to search for.
        keys: names of the key columns.
        schema: the columns of the table that is searched; values are converted to its types.
    """
    conditions: list[Condition] = []
    for name in keys:
        values = pc.unique(rows[name].cast(schema.field(name).type))
        if len(values) <= _NAMED:
            conditions.append((name, is_in, convert_to_python_values(values)))
        else:
            ends = convert_to_python_value(pc.min_max(values))
            conditions += [(name, operator.ge, ends["min"]), (name, operator.le, ends["max"])]
    return conditions


class TooLargeError(LakeError):
    """The rows to read are larger than the limit that the calling code has set for its memory."""


@dataclass(frozen=True)
class TableSize:
    """Size of a table at its latest version, according to Delta's log.

    Attributes:
        version: the latest version.
        rows: number of rows.
        files: number of data files.
        bytes: size of all data files in bytes.
    """

    version: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class FilesToRead:
    """The data files that a query must open.

    Attributes:
        read: paths of the files to open, relative to the table's folder.
        total: number of all data files of the table's latest version.
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
        """Yields the rows of a table that meet all conditions, as record batches. Times are in UTC."""

    @abstractmethod
    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        """Returns the rows of a table that meet all conditions, and the number of all its rows.

        Both belong to the same version of the table. The number comes from its log. The table must exist.
        """

    @abstractmethod
    def exists(self, table: str) -> bool:
        """True if the table exists."""

    @abstractmethod
    def read_table_schema(self, table: str) -> pa.Schema:
        """Returns the columns of a table, which must exist."""

    @abstractmethod
    def read_size(self, table: str) -> TableSize:
        """Returns the size of a table, which must exist, from its log."""

    @abstractmethod
    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesToRead | None:
        """Returns the data files that a read with these conditions must open, according to the files' statistics.

        None if the storage cannot say. The table must exist.
        """

    def count_rows(self, table: str) -> int:
        """Returns a table's row count from its log; 0 if the table does not exist."""
        return self.read_size(table).rows if self.exists(table) else 0

    def read_rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """Yields the rows of a table that meet all conditions, as dictionaries by column name. Times are in UTC.

        A time outside the range of Python's datetime is an `OutOfRangeTime`.
        """
        for batch in self.read_batches(table, *conditions, columns=columns):
            yield from convert_to_row_dicts(batch)

    def sample_rows(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        """Returns at most `max_rows` rows of a table, whichever are found first, without reading the whole table."""
        return list(islice(self.read_rows(table, columns=columns), max_rows))

    def read_arrow_table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """Returns the rows of a table that meet all conditions, as one Arrow table. The table must exist.

        Args:
            table: the table's two-level name.
            conditions: conditions that rows must meet.
            columns: names of the columns to return; None for all.
            sessions: one row for each session whose rows are returned, with some of the columns `topic`, `partition`
                and `session_id`. `columns` must include these columns. None for all sessions.
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
        """True if at least one row of the table meets all conditions. Reading stops at the first such row."""
        named = [name for name, _, _ in conditions]
        return any(batch.num_rows for batch in self.read_batches(table, *conditions, columns=named or None))

    def count_rows_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        """Counts the rows of a table that meet all conditions, grouped by the columns `by`.

        Only the counts are held in memory, not the rows.

        Returns:
            The number of rows, by the values of the columns `by` as a tuple.
        """
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in self.read_batches(table, *conditions, columns=by):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([([], "count_all")])
            found.update(convert_groups_to_counter(groups.select([*by, "count_all"])))
        return found

    def find_highest_values(
        self, table: str, column: str, by: Sequence[str], *conditions: Condition
    ) -> dict[tuple[Any, ...], Any]:
        """Returns the highest value of a column in each group of rows that have the same values in the columns `by`.

        Only rows that meet all conditions count. Only the results are held in memory, not the rows.

        Returns:
            The highest value, by the values of the columns `by` as a tuple.
        """
        found: dict[tuple[Any, ...], Any] = {}
        for batch in self.read_batches(table, *conditions, columns=[*by, column]):
            groups = pa.Table.from_batches([batch]).group_by(list(by)).aggregate([(column, "max")])
            for key, value in convert_groups_to_dict(groups.select([*by, f"{column}_max"])).items():
                found[key] = max(value, found.get(key, value))
        return found


def list_session_columns(sessions: pa.Table) -> list[str]:
    """Returns which of the columns `topic`, `partition` and `session_id` the table has."""
    return [name for name in SESSION if name in sessions.column_names]


def _join_columns(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    parts = (convert_to_contiguous_array(rows[name]).cast(pa.string()) for name in names)
    return pc.binary_join_element_wise(*parts, "\0")


def convert_groups_to_dict(groups: pa.Table) -> dict[tuple[Any, ...], Any]:
    """Converts a table with one row per group to a dictionary.

    The values of the last column become the dictionary's values. All other columns together are the key, as a tuple.
    """
    *keys, values = map(convert_to_python_values, groups.columns)
    return dict(zip(zip(*keys, strict=True), values, strict=True))


def convert_groups_to_counter(groups: pa.Table) -> Counter[tuple[Any, ...]]:
    """Converts a table with one row per group to a counter.

    The last column is the number of rows in the group. All other columns together are the key, as a tuple.
    """
    return Counter(convert_groups_to_dict(groups))
