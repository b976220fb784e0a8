"""A table of gold compared row by row with what it is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.lake.storage import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of the numbers that a result was added up from: what the order of adding may change.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Compared:
    """How a table compares.

    Attributes:
        rows: that it is to have.
        different: rows that are other, missing or too many.
        first: one of these, as text; None if there is none.
    """

    table: str
    rows: int
    different: int
    first: str | None

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.table} is exact: {self.rows:,} rows"
        return f"{self.table}: {self.different:,} of {self.rows:,} rows differ; the first difference:\n  {self.first}"


def compared(table: str, keys: Sequence[str], results: Sequence[str], found: DataFrame, truth: DataFrame) -> Compared:
    """Compares row by row.

    Args:
        keys: columns that tell rows apart.
        results: columns that are compared; of those that `truth` has under the same name behind a `~`, too, that says
            how large the numbers were that they were added up from, and so how far apart they may be.
    """
    from pyspark.sql import functions as F

    figures = F.struct(*map(quote, results))
    left = found.groupBy(*map(quote, keys)).agg(F.first(figures).alias("t"), F.count("*").alias("here"))
    sizes = [name for name in truth.columns if name.startswith("~")]
    right = truth.select(
        *map(quote, keys), F.struct(*map(quote, results)).alias("s"), *map(quote, sizes), F.lit(1).alias("there")
    )
    both = left.join(right, list(keys), "full")
    same = reduce(lambda a, b: a & b, (_same(name, f"~{name}" in sizes) for name in results))
    wrong = F.col("here").isNull() | (F.col("here") > 1) | F.col("there").isNull() | ~same
    rows, different = both.select(F.count("there"), F.count_if(wrong)).collect()[0]
    first = both.where(wrong).first() if different else None
    if first is None:
        return Compared(table, rows, different, None)
    named = ", ".join(f"{key}={first[key]}" for key in keys)
    is_, should = (None if first[side] is None else first[side].asDict() for side in ("t", "s"))
    often = f", {first['here']} times" if (first["here"] or 0) > 1 else ""
    return Compared(table, rows, different, f"{table}: {named}: is {is_}{often}, should be {should}")


def _same(name: str, inexact: bool) -> Column:
    from pyspark.sql import functions as F

    a, b = F.col(f"t.{quote(name)}"), F.col(f"s.{quote(name)}")
    if not inexact:
        return a.eqNullSafe(b)
    near = F.abs(a - b) <= _TOLERANCE * F.greatest(F.abs(a), F.abs(b), F.col(quote(f"~{name}")))
    # Of sums beyond the range of doubles, each engine makes something else.
    beyond = F.col(quote(f"~{name}")) == float("inf")
    return F.coalesce(near, F.lit(col=False)) | F.coalesce(beyond, F.lit(col=False)) | a.eqNullSafe(b)
