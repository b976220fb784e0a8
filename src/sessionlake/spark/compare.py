"""Compares a gold table row by row with its expected content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.names import add_internal_prefix, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Relative to the magnitude of the summed numbers: the order of additions may change a result by this much.
_TOLERANCE = 1e-9
_FOUND, _TRUTH, _OFTEN, _DUE = map(add_internal_prefix, ("found", "truth", "often", "due"))


def build_magnitude_column_name(name: str) -> str:
    """Returns the name of the column that has the magnitude of a result column.

    The magnitude is the same sum or average, but of absolute values. It bounds the rounding error of the result.
    """
    return add_internal_prefix(f"size:{name}")


@dataclass(frozen=True)
class TableComparison:
    """The result of comparing a table with its expected rows.

    Attributes:
        table: The table's name.
        expected_rows: The number of expected rows.
        different_rows: The number of rows that differ, are missing or are unexpected.
        first_difference: A text about one differing row; None if all rows are equal.
    """

    table: str
    expected_rows: int
    different_rows: int
    first_difference: str | None

    def __str__(self) -> str:
        if self.first_difference is None:
            return f"{self.table} is exact: {self.expected_rows:,} rows"
        return (
            f"{self.table}: {self.different_rows:,} of {self.expected_rows:,} rows differ; the first difference:\n  "
            f"{self.first_difference}"
        )


def compare_rows(
    table: str, key_columns: Sequence[str], compared_columns: Sequence[str], actual: DataFrame, expected: DataFrame
) -> TableComparison:
    """Compares the rows of a table with the expected rows.

    Args:
        table: The table's name, for the result.
        key_columns: The columns that identify a row.
        compared_columns: The columns to compare. Numbers may differ by 1e-9 of their magnitude if `expected` also has
            the column that `build_magnitude_column_name` names. All other values must be equal.
        actual: The rows of the table.
        expected: The expected rows.
    """
    from pyspark.sql import functions as F

    figures = F.struct(*map(quote, compared_columns))
    left = actual.groupBy(*map(quote, key_columns)).agg(F.first(figures).alias(_FOUND), F.count("*").alias(_OFTEN))
    sizes = [name for name in expected.columns if name in {*map(build_magnitude_column_name, compared_columns)}]
    right = expected.select(
        *map(quote, key_columns),
        F.struct(*map(quote, compared_columns)).alias(_TRUTH),
        *map(quote, sizes),
        F.lit(1).alias(_DUE),
    )
    both = left.join(right, list(key_columns), "full")
    kinds = dict(expected.dtypes)
    same = reduce(
        lambda a, b: a & b,
        (
            _build_equality_condition(name, build_magnitude_column_name(name) in sizes, kinds[name])
            for name in compared_columns
        ),
    )
    wrong = F.col(_OFTEN).isNull() | (F.col(_OFTEN) > 1) | F.col(_DUE).isNull() | ~same
    rows, different = both.select(F.count(_DUE), F.count_if(wrong)).collect()[0]
    first = both.where(wrong).first() if different else None
    if first is None:
        return TableComparison(table, rows, different, None)
    named = ", ".join(f"{key}={first[key]}" for key in key_columns)
    is_, should = (None if first[side] is None else first[side].asDict() for side in (_FOUND, _TRUTH))
    often = f", {first[_OFTEN]} times" if (first[_OFTEN] or 0) > 1 else ""
    return TableComparison(table, rows, different, f"{table}: {named}: is {is_}{often}, should be {should}")


def _build_equality_condition(column: str, has_magnitude: bool, sql_type: str) -> Column:
    """Returns a Spark condition that is true if a column's actual and expected values count as equal.

    Args:
        column: The column's name.
        has_magnitude: True if the expected rows have a column with the magnitude, so that numbers may differ a little.
        sql_type: The column's Spark SQL type.
    """
    from pyspark.sql import functions as F

    a, b = F.col(_FOUND)[column], F.col(_TRUTH)[column]
    if not has_magnitude:
        return a.eqNullSafe(b)
    # Decimals are summed exactly, so they have no tolerance.
    near = F.lit(col=False) if sql_type.startswith("decimal") else _build_nearness_condition(column, a, b)
    # Engines differ on sums that exceed the range of their type, so any value is accepted.
    beyond = F.col(quote(build_magnitude_column_name(column))) == float("inf")
    return F.coalesce(near, F.lit(col=False)) | F.coalesce(beyond, F.lit(col=False)) | a.eqNullSafe(b)


def _build_nearness_condition(column: str, actual: Column, expected: Column) -> Column:
    """Returns a Spark condition that is true if two numbers differ by at most 1e-9 of the column's magnitude."""
    from pyspark.sql import functions as F

    return F.abs(actual - expected) <= _TOLERANCE * F.greatest(
        F.abs(actual), F.abs(expected), F.col(quote(build_magnitude_column_name(column)))
    )
