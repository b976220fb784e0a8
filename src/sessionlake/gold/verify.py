"""Gold compared with a recomputation by plain Spark SQL, which shares nothing with the aggregates that keep it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import MARKS
from sessionlake.gold.alerts.verify import verify_rules
from sessionlake.gold.changes import declared_in, events_of
from sessionlake.gold.compare import Compared, compared
from sessionlake.gold.recompute import changes_read, refuse_removed
from sessionlake.lake.names import AVERAGES
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import Lake
from sessionlake.protocol.columns import FIRST_MS, LAST_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WINDOW_KEY = ("topic", "session_id", "row_id", "metric")


def verify_gold(spark: SparkSession, settings: Settings, products: Sequence[Product]) -> list[Compared]:
    """Compares rolling averages and products with what the changes that gold has read come to.

    Raises:
        LakeError: gold has stopped within a version of silver's table, or retention has removed rows of it.
    """
    lake, declared = Lake(settings), declared_in(settings)
    refuse_removed(lake, spark)
    changes = changes_read(spark, lake, settings)
    if changes is None:
        return []
    numbers, texts = (events_of(changes, declared, MARKS, numbers=kind) for kind in (True, False))
    found = [_averages(lake.read(spark, AVERAGES), numbers, settings)]
    for product in products:
        truth = _by_sql(numbers if product.source.numbers else texts, product)
        found.append(compared(product.table, product.row_keys, product.results, lake.read(spark, product.table), truth))
    rules = verify_rules(spark, settings)
    return found if rules is None else [*found, rules]


def _by_sql(events: DataFrame, product: Product) -> DataFrame:
    """The product's results, and `~` in front of its name for how large the numbers were that one came from."""
    from pyspark.sql import functions as F

    if product.bucket_ms is not None:
        start = F.expr(f"ts - pmod(ts, {product.bucket_ms}L)")
        within = F.col("ts").between(FIRST_MS, LAST_MS) & (start >= FIRST_MS)
        events = events.where(within).withColumn(START, F.timestamp_millis(start))
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
    return compared(AVERAGES, keys, ["value", "average", "points"], table, truth)
