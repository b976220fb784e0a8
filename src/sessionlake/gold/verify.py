"""Gold compared with a recomputation by plain Spark SQL, which shares nothing with the aggregates that keep it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import POINTS, Declared, text_field, value_field
from sessionlake.gold.changes import declared_in
from sessionlake.gold.recompute import changes_read
from sessionlake.lake.names import AVERAGES
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import Lake
from sessionlake.protocol.columns import FIRST_MS, LAST_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Of the numbers that a result was added up from: what the order of adding may change.
_TOLERANCE = 1e-9
_WINDOW_KEY = ("topic", "session_id", "row_id", "metric")


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


def verify_gold(spark: SparkSession, settings: Settings, products: Sequence[Product]) -> list[Compared]:
    """Compares rolling averages and products with what the changes that gold has read come to.

    Raises:
        LakeError: gold has stopped within a version of silver's table.
    """
    lake, declared = Lake(settings), declared_in(settings)
    changes = changes_read(spark, lake, settings)
    if changes is None:
        return []
    events = {source: _events(changes, declared, source is POINTS) for source in {p.source for p in products}}
    found = [_averages(lake.read(spark, AVERAGES), _events(changes, declared, numbers=True), settings)]
    for product in products:
        results = [name for name in product.aggregates if not name.startswith("_")]
        truth = _by_sql(events[product.source], product)
        found.append(_compared(product.table, product.row_keys, results, lake.read(spark, product.table), truth))
    return found


def _events(changes: DataFrame, declared: Declared, numbers: bool) -> DataFrame:
    """One row for each value that was set."""
    from pyspark.sql import functions as F

    names, field = (declared.numbers, value_field) if numbers else (declared.texts, text_field)
    called = "metric" if numbers else "column"
    marks = ("topic", "session_id", "row_id", "ts", "position", "ordinal")
    kind = "double" if numbers else "string"
    empty = changes.limit(0).select(*marks, F.lit("").alias(called), F.lit(None).cast(kind).alias("value"))
    parts = (
        changes.select(*marks, F.lit(name).alias(called), F.col(f"`{field(i)}`").alias("value"))
        for i, name in enumerate(names)
    )
    whole = reduce(lambda a, b: a.unionByName(b), parts, empty).where("value IS NOT NULL")
    return whole.where("NOT isnan(value)").withColumn("value", F.expr("value + 0.0D")) if numbers else whole


def _by_sql(events: DataFrame, product: Product) -> DataFrame:
    """The product's results, and `~` in front of its name for how large the numbers were that one came from."""
    from pyspark.sql import functions as F

    if product.bucket_ms is not None:
        start = F.timestamp_millis(F.expr(f"ts - pmod(ts, {product.bucket_ms}L)"))
        events = events.where(F.col("ts").between(FIRST_MS, LAST_MS)).withColumn(START, start)
    results = [F.expr(one.sql()).alias(name) for name, one in product.aggregates.items()]
    sizes = [
        F.expr(size).alias(f"~{name}")
        for name, one in product.aggregates.items()
        if (size := one.magnitude()) is not None
    ]
    return events.groupBy(*map(quote, product.row_keys)).agg(*results, *sizes)


def _averages(table: DataFrame, points: DataFrame, settings: Settings) -> Compared:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy(*_WINDOW_KEY).orderBy("ts", "position", "ordinal")
    last = line.rowsBetween(1 - settings.gold.rolling_points, Window.currentRow)
    truth = points.select(
        *_WINDOW_KEY, "ts", "position", "ordinal", "value",
        F.avg("value").over(last).alias("average"), F.count("value").over(last).alias("points"),
        F.avg(F.abs("value")).over(last).alias("~average"),
    )  # fmt: skip
    keys = (*_WINDOW_KEY, "ts", "position", "ordinal")
    return _compared(AVERAGES, keys, ["value", "average", "points"], table, truth)


def _compared(table: str, keys: Sequence[str], results: Sequence[str], found: DataFrame, truth: DataFrame) -> Compared:
    """Compares row by row; what was added up, by how far apart the sums of its numbers may be."""
    from pyspark.sql import functions as F

    left = found.select(*map(quote, keys), F.struct(*map(quote, results)).alias("t"), F.lit(1).alias("here"))
    sizes = [name for name in truth.columns if name.startswith("~")]
    right = truth.select(
        *map(quote, keys), F.struct(*map(quote, results)).alias("s"), *map(quote, sizes), F.lit(1).alias("there")
    )
    both = left.join(right, list(keys), "full")
    same = reduce(lambda a, b: a & b, (_same(name, f"~{name}" in sizes) for name in results))
    wrong = both.where(F.col("here").isNull() | F.col("there").isNull() | ~same).persist()
    try:
        rows, different, first = truth.count(), wrong.count(), wrong.first()
    finally:
        wrong.unpersist()
    if first is None:
        return Compared(table, rows, different, None)
    named = ", ".join(f"{key}={first[key]}" for key in keys)
    is_, should = (None if first[side] is None else first[side].asDict() for side in ("t", "s"))
    return Compared(table, rows, different, f"{table}: {named}: is {is_}, should be {should}")


def _same(name: str, inexact: bool) -> Column:
    from pyspark.sql import functions as F

    a, b = F.col(f"t.{quote(name)}"), F.col(f"s.{quote(name)}")
    if not inexact:
        return a.eqNullSafe(b)
    near = F.abs(a - b) <= _TOLERANCE * F.greatest(F.abs(a), F.abs(b), F.col(quote(f"~{name}")))
    return F.coalesce(near, F.lit(col=False)) | a.eqNullSafe(b)
