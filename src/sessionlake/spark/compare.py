"""Compares a gold table row by row with its expected content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.names import internal, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Relative to the magnitude of the summed numbers: the order of additions may change a result by this much.
_TOLERANCE = 1e-9
_FOUND, _TRUTH, _OFTEN, _DUE = map(internal, ("found", "truth", "often", "due"))


def build_magnitude_column_name(name: str) -> str:
    """Returns the name of the column with a result's magnitude: the same sum or average, over absolute values."""
    return internal(f"size:{name}")


@dataclass(frozen=True)
class TableComparison:
    """Result of comparing a table with its expected content.

    Attributes:
        table: Name of the table.
        rows: Number of expected rows.
        different: Number of rows that differ, are missing or are unexpected.
        first: Description of one differing row; None if all rows are equal.
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
        table: Name of the table, for the result.
        key_columns: Columns that identify a row.
        compared_columns: Columns to compare. They must be equal, unless `expected` has a column with the magnitude of
            the values (`build_magnitude_column_name`): then they may differ by the tolerance times the magnitude.
        actual: Rows of the table.
        expected: Expected rows.
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
        (_values_are_equal(name, build_magnitude_column_name(name) in sizes, kinds[name]) for name in compared_columns),
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


def _values_are_equal(name: str, has_magnitude: bool, kind: str) -> Column:
    from pyspark.sql import functions as F

    a, b = F.col(_FOUND)[name], F.col(_TRUTH)[name]
    if not has_magnitude:
        return a.eqNullSafe(b)
    # Decimals are summed exactly, so they have no tolerance.
    near = F.lit(col=False) if kind.startswith("decimal") else _is_near(name, a, b)
    # Engines differ on sums that exceed the range of their type, so any value is accepted.
    beyond = F.col(quote(build_magnitude_column_name(name))) == float("inf")
    return F.coalesce(near, F.lit(col=False)) | F.coalesce(beyond, F.lit(col=False)) | a.eqNullSafe(b)


def _is_near(name: str, a: Column, b: Column) -> Column:
    from pyspark.sql import functions as F

    return F.abs(a - b) <= _TOLERANCE * F.greatest(F.abs(a), F.abs(b), F.col(quote(build_magnitude_column_name(name))))
