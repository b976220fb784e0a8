"""Tables of declared products compared with plain Spark SQL over the tables that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.properties import CHANGE_FEED
from sessionlake.processors.by_product import ByProduct
from sessionlake.processors.keyed import KeyedTable
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.spark.compare import Compared, compared
from sessionlake.streaming.handover import taken_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_product(spark: SparkSession, settings: Settings, own: ProductProcessor) -> Compared | str:
    """Compares a product's table with what its source comes to now; if not all of that is in it yet, says so.

    Raises:
        LakeError: it has stopped within a batch, or its source lacks rows.
    """
    first = f"run `sessionlake run processor {own.name} --once` first"
    if not Lake(settings).exists(spark, own.into):
        return f"{own.into} is not compared: it is yet to be made; {first}"
    table = KeyedTable(spark, settings, own)
    if not table.is_whole(spark):
        return f"{own.into} is not compared: it is to be made anew, by `sessionlake rebuild {own.into}`"
    now = table.lake.latest_version(spark, own.source)
    if _has_unread(spark, settings, table, own, now):
        return f"{own.into} is not compared: {own.source} has rows that it has yet to read; {first}"
    work = ByProduct(own, table.lake.storage.columns(spark, own.source))
    truth = work.truth(table.source(spark, now))
    return compared(own.into, work.keys, work.product.results, table.lake.read_small_in_memory(spark, own.into), truth)


def _has_unread(spark: SparkSession, settings: Settings, table: KeyedTable, own: ProductProcessor, now: int) -> bool:
    """Whether rows came or changed behind the last version that was read: not every version has some."""
    feed = table.lake.storage.properties(spark, own.source).get(CHANGE_FEED) == "true"
    version = taken_in(settings, own.layer, feed=feed)
    if version is None:
        return not table.source(spark, now).isEmpty()
    if version >= now:
        return False
    if feed:
        since = {"readChangeFeed": "true", "startingVersion": version + 1}
        return not table.lake.storage.read(spark, own.source, since).isEmpty()
    return table.source(spark, now).count() != table.source(spark, version).count()
