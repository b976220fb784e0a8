"""Aggregates that can be merged: the results of two sets of events combine to the result of both sets, in any order.

An event is one value that a change sets, or one row of another table. An aggregate stores its result, and what it needs
to merge, in columns of the product's table. There is no other state. Names of columns that are not results begin with
an underscore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.gold.aggregate.order import LIFE, TURN
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Bools

ORDER = (("ts", "ts", "bigint"), ("life", LIFE, "bigint"), ("position", TURN, "bigint"), ("ordinal", "ordinal", "int"))
"""The columns that order events: event time first, then the columns that order changes of equal event time.

Each item has a short name, the name of the events' column, and its Spark SQL type.
"""
ORDER_SQL = "struct({})".format(", ".join(f"`{column}`" for _, column, _ in ORDER))
_SPLIT = 134_217_729.0  # 2^27 + 1


class Aggregate(ABC):
    """One result column of a product, computed from events. Partial results of different batches can be merged.

    A subclass defines one way to compute it, for example a sum.
    """

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The names of the columns of events that the aggregate needs."""
        return ()

    @abstractmethod
    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        """Returns the columns that the aggregate stores, as pairs of name and Spark SQL type. The result comes first.

        Args:
            result_name: Name of the result.
        """

    @abstractmethod
    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        """Returns the values of the stored columns for each event alone: one array per column, one item per event."""

    @abstractmethod
    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        """Merges pairs of partial results: row i of `left` with row i of `right`. Returns the merged columns."""

    def merge_partial_results_by_group(self, result_name: str, partial_results: pa.Table, groups: RowGroups) -> Columns:
        """Merges the partial results in `partial_results` into one row per group.

        Args:
            result_name: Name of the result.
            partial_results: Rows with the aggregate's columns, any number per group.
            groups: The groups of rows of `partial_results` that are merged into one row each.
        """
        held = {column: partial_results[column].to_numpy() for column, _ in self.list_state_columns(result_name)}
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            return groups.merge_rows_of_each_group(held, partial(self.combine_partial_results, result_name))

    @property
    def column_comment(self) -> str:
        """A description of the result in words, used as the column's comment."""
        return f"Computed by the aggregate {type(self).__name__}"

    @abstractmethod
    def build_result_sql(self) -> str:
        """Returns the Spark SQL expression that computes the result from all events of a row.

        `sessionlake verify gold` compares its value with the merged result.
        """

    def build_rounding_error_scale_sql(self) -> str | None:
        """Returns a SQL expression for the magnitude of the summed numbers; None if the result is exact.

        `sessionlake verify gold` tolerates an error in proportion to this magnitude.
        """
        return None


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of events."""

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        return ((result_name, "bigint"),)

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        return {result_name: np.ones(events.num_rows, np.int64)}

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        return {result_name: left[result_name] + right[result_name]}

    @property
    def column_comment(self) -> str:
        return "Number of values"

    def build_result_sql(self) -> str:
        return "count(*)"


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column or of its squares, whatever the order of the events.

    It is the double nearest to the exact sum, except in rare cases.

    Attributes:
        of: Name of the column.
        squared: True to sum the squares.
    """

    of: str
    squared: bool = False

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of,)

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        # The second column is the rounding error of the sum.
        return (result_name, "double"), (_build_extra_column_name(result_name, "rest"), "double")

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        values = _read_doubles(events, self.of)
        if not self.squared:
            return {result_name: values, _build_extra_column_name(result_name, "rest"): np.zeros(len(values))}
        with np.errstate(over="ignore", invalid="ignore"):
            squares, rest = _multiply_with_rounding_error(values, values)
        return {result_name: squares, _build_extra_column_name(result_name, "rest"): rest}

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        """Adds two sums with Knuth's two-sum. A second column adds up the rounding errors."""
        rest = _build_extra_column_name(result_name, "rest")
        a, b = left[result_name], right[result_name]
        added = a + b
        back = added - a
        lost = (a - (added - back)) + (b - back) + left[rest] + right[rest]
        total = added + lost
        finite = np.isfinite(total)
        return {result_name: np.where(finite, total, added), rest: np.where(finite, lost - (total - added), 0.0)}

    @property
    def column_comment(self) -> str:
        return f"Sum of the squares of {self.of}" if self.squared else f"Sum of {self.of}"

    def build_result_sql(self) -> str:
        of = quote(self.of)
        return f"sum({of} * {of})" if self.squared else f"sum({of})"

    def build_rounding_error_scale_sql(self) -> str | None:
        of = quote(self.of)
        return f"sum({of} * {of})" if self.squared else f"sum(abs({of}))"


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The lowest or highest value of a column.

    Attributes:
        of: Name of the column.
        greatest: True for the highest value, False for the lowest.
        type: Spark SQL type of the column.
    """

    of: str
    greatest: bool
    type: str = "double"

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of,)

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        return ((result_name, self.type),)

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        return {result_name: _read_doubles(events, self.of) if self.type == "double" else events[self.of]}

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        pick: Any = np.maximum if self.greatest else np.minimum
        return {result_name: pick(left[result_name], right[result_name])}

    @property
    def column_comment(self) -> str:
        end = "Highest" if self.greatest else "Lowest"
        return f"{end} event time, ms since 1970" if self.of == "ts" else f"{end} {self.of}"

    def build_result_sql(self) -> str:
        return f"{'max' if self.greatest else 'min'}({quote(self.of)})"


@dataclass(frozen=True)
class Endmost(Aggregate):
    """The number that a column has in the event that is first or last in event time.

    Attributes:
        of: Name of the column.
        last: True for the last event, False for the first.
        format: Version of the layout of the stored columns.
        type: Spark SQL type of the column, `double` or a decimal. The repr lacks it, as the product's source has it.
    """

    of: str
    last: bool
    format: int = 2
    type: str = field(default="double", repr=False)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of, *(column for _, column, _ in ORDER))

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        # The other columns store the event's place in `ORDER`.
        return (result_name, self.type), *((_build_extra_column_name(result_name, part), sql) for part, _, sql in ORDER)

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        places = {_build_extra_column_name(result_name, part): events[column].to_numpy() for part, column, _ in ORDER}
        return {result_name: _read_doubles(events, self.of) if self.type == "double" else events[self.of]} | places

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        a, b = left[_build_extra_column_name(result_name, "ts")], right[_build_extra_column_name(result_name, "ts")]
        later = b > a
        ties = np.flatnonzero(a == b)  # mostly few
        if len(ties):
            sides = (
                {part: side[_build_extra_column_name(result_name, part)][ties] for part, _, _ in ORDER}
                for side in (left, right)
            )
            later[ties] = are_right_events_later_than_left(*sides)
        picked = later if self.last else ~later
        return {
            column: np.where(picked, right[column], left[column]) for column, _ in self.list_state_columns(result_name)
        }

    @property
    def column_comment(self) -> str:
        return f"{'Last' if self.last else 'First'} {self.of} in event time"

    def build_result_sql(self) -> str:
        return f"{'max' if self.last else 'min'}_by({quote(self.of)}, {ORDER_SQL})"


class DerivedAggregate(ABC):
    """A column that is computed from other columns of the same row, and not merged."""

    type = "double"

    @property
    def column_comment(self) -> str:
        """A description of the column, used as its comment."""
        return f"Computed by the aggregate {type(self).__name__}"

    @abstractmethod
    def compute_from_results(self, results: Columns) -> Any:
        """Returns the column's values, one per row. NaN where a row has none.

        Args:
            results: The other columns of the rows, by name.
        """

    @abstractmethod
    def build_result_sql(self) -> str:
        """Returns the Spark SQL expression that computes the value from all events of a row; SQL null for no value."""

    @abstractmethod
    def build_rounding_error_scale_sql(self) -> str:
        """Returns a SQL expression for the magnitude of the numbers from which the value was computed.

        `sessionlake verify gold` tolerates an error in proportion to this magnitude.
        """


@dataclass(frozen=True)
class Mean(DerivedAggregate):
    """The mean of a column, computed from its sum and the number of events.

    Attributes:
        sum: Name of the aggregate with the sum.
        count: Name of the aggregate with the number of events.
        value: Name of the events' column, for the SQL.
    """

    sum: str
    count: str
    value: str = "value"

    def compute_from_results(self, results: Columns) -> Any:
        return results[self.sum] / results[self.count]

    @property
    def column_comment(self) -> str:
        return f"Mean of {self.value}"

    def build_result_sql(self) -> str:
        return f"avg({quote(self.value)})"

    def build_rounding_error_scale_sql(self) -> str:
        return f"avg(abs({quote(self.value)}))"


@dataclass(frozen=True)
class Variance(DerivedAggregate):
    """The sample variance of a column, computed from its sum, the sum of its squares and the number of events.

    Both sums have twice the digits of a double. So the subtraction of two large, nearly equal numbers loses nothing.

    Attributes:
        sum: Name of the aggregate with the sum.
        squares: Name of the aggregate with the sum of squares.
        count: Name of the aggregate with the number of events.
        value: Name of the events' column, for the SQL.
    """

    sum: str
    squares: str
    count: str
    value: str = "value"

    def compute_from_results(self, results: Columns) -> Any:
        # A single event has no variance. There is also none if the squares exceed the range of doubles.
        n, total, rest = results[self.count], results[self.sum], results[_build_extra_column_name(self.sum, "rest")]
        square, lost = _multiply_with_rounding_error(total, total)
        mean = square / n
        back, behind = _multiply_with_rounding_error(mean, n.astype(np.float64))
        mean_rest = ((square - back) - behind + lost + 2 * total * rest) / n
        spread = (results[self.squares] - mean) + (results[_build_extra_column_name(self.squares, "rest")] - mean_rest)
        # The squared sum is no larger than this product, so it has not overflowed either.
        has_variance = (n > 1) & np.isfinite(results[self.squares] * n)
        return np.maximum(spread, 0.0) / np.where(has_variance, n - 1, np.nan)

    @property
    def column_comment(self) -> str:
        return f"Sample variance of {self.value}; null if there is one, or squares are beyond the range of doubles"

    def build_result_sql(self) -> str:
        value = quote(self.value)
        squares = f"count({value}) * sum({value} * {value})"
        return f"CASE WHEN {squares} < double('Infinity') THEN var_samp({value}) END"

    def build_rounding_error_scale_sql(self) -> str:
        # Comparisons multiply this by 1e-9. The product is the possible error of SQL's own variance.
        value = quote(self.value)
        apart = f"max(abs({value})) * coalesce(stddev_samp({value}), 0)"
        return f"1e-6 * {apart} + 1e-18 * max({value} * {value})"


def are_right_events_later_than_left(left: Columns, right: Columns) -> Bools:
    """Returns True for each row i in which event i of `right` is later than event i of `left`.

    Args:
        left: One event per row, with the columns `ts`, `life`, `position` and `ordinal`, compared in this order.
        right: Further events, with the same columns.
    """
    later = np.zeros(len(left["ts"]), np.bool_)
    for part, _, _ in reversed(ORDER):
        later = (right[part] > left[part]) | ((right[part] == left[part]) & later)
    return later


def _build_extra_column_name(result_name: str, part: str) -> str:
    """Returns the name of a column that an aggregate stores in addition to its result, for merging.

    Args:
        result_name: Name of the result.
        part: What the column holds, for example `rest` for the rounding error.
    """
    return f"_{result_name}_{part}"


def _read_doubles(events: pa.Table, column: str) -> Any:
    """Returns a column's values as doubles, with 0.0 for -0.0.

    Otherwise the sign of a zero would depend on the order of the events.
    """
    return events[column].to_numpy().astype(np.float64, copy=False) + 0.0


def _multiply_with_rounding_error(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns the products `a * b` as doubles, and their rounding errors (algorithm of Veltkamp and Dekker)."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = _split_double_into_halves(a), _split_double_into_halves(b)
    lost = ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low
    return total, np.where(np.isfinite(lost), lost, 0.0)


def _split_double_into_halves(value: Any) -> tuple[Any, Any]:
    high = _SPLIT * value
    high = high - (high - value)
    return high, value - high
