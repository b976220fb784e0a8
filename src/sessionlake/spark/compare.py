"""A table of gold compared row by row with what it is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.names import internal, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of the numbers that a result was added up from: what the order of adding may change.
_TOLERANCE = 1e-9
_FOUND, _TRUTH, _OFTEN, _DUE = map(internal, ("found", "truth", "often", "due"))


def size_of(name: str) -> str:
    """The column that says how large the numbers were that a result was added up from."""
    return internal(f"size:{name}")


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
        results: columns that are compared; of those that `truth` has under `size_of` their names, too, that says
            how large the numbers were that they were added up from, and so how far apart they may be.
    """
    from pyspark.sql import functions as F

    figures = F.struct(*map(quote, results))
    left = found.groupBy(*map(quote, keys)).agg(F.first(figures).alias(_FOUND), F.count("*").alias(_OFTEN))
    sizes = [name for name in truth.columns if name in {*map(size_of, results)}]
    right = truth.select(
        *map(quote, keys), F.struct(*map(quote, results)).alias(_TRUTH), *map(quote, sizes), F.lit(1).alias(_DUE)
    )
    both = left.join(right, list(keys), "full")
    same = reduce(lambda a, b: a & b, (_same(name, size_of(name) in sizes) for name in results))
    wrong = F.col(_OFTEN).isNull() | (F.col(_OFTEN) > 1) | F.col(_DUE).isNull() | ~same
    rows, different = both.select(F.count(_DUE), F.count_if(wrong)).collect()[0]
    first = both.where(wrong).first() if different else None
    if first is None:
        return Compared(table, rows, different, None)
    named = ", ".join(f"{key}={first[key]}" for key in keys)
    is_, should = (None if first[side] is None else first[side].asDict() for side in (_FOUND, _TRUTH))
    often = f", {first[_OFTEN]} times" if (first[_OFTEN] or 0) > 1 else ""
    return Compared(table, rows, different, f"{table}: {named}: is {is_}{often}, should be {should}")


def _same(name: str, inexact: bool) -> Column:
    from pyspark.sql import functions as F

    a, b = F.col(_FOUND)[name], F.col(_TRUTH)[name]
    if not inexact:
        return a.eqNullSafe(b)
    near = F.abs(a - b) <= _TOLERANCE * F.greatest(F.abs(a), F.abs(b), F.col(quote(size_of(name))))
    # Of sums beyond the range of doubles, each engine makes something else.
    beyond = F.col(quote(size_of(name))) == float("inf")
    return F.coalesce(near, F.lit(col=False)) | F.coalesce(beyond, F.lit(col=False)) | a.eqNullSafe(b)
