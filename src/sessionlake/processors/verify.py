"""Checks the table of a product that reads another table: plain Spark SQL computes it again from that table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.properties import CHANGE_FEED
from sessionlake.processors.by_product import ProductComputation
from sessionlake.processors.keyed import KeyedProcessorTable
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.spark.compare import TableComparison, compare_rows
from sessionlake.streaming.handover import read_last_processed_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_product(spark: SparkSession, settings: Settings, config: ProductProcessor) -> TableComparison | str:
    """Compares a product's table with the rows that plain Spark SQL computes from the source table now.

    Returns:
        The comparison, or a text that says why the table cannot be compared yet.

    Raises:
        LakeError: The processor stopped within a batch, or the source table lacks rows.
    """
    first = f"Run `sessionlake run processor {config.name} --once` first"
    if not Lake(settings).exists(spark, config.output_table):
        return f"{config.output_table} is not compared: it does not exist yet. {first}"
    table = KeyedProcessorTable(spark, settings, config)
    if not table.is_up_to_date(spark):
        return (
            f"{config.output_table} is not compared: it is incomplete. Run `sessionlake rebuild {config.output_table}`"
        )
    now = table.lake.latest_version(spark, config.source)
    if has_unread_source_changes(spark, settings, table, config, now):
        return f"{config.output_table} is not compared: {config.source} has rows that it has not read yet. {first}"
    work = ProductComputation(config, table.lake.storage.read_column_types(spark, config.source))
    truth = work.recompute_rows_in_sql(table.read_source_table(spark, now))
    return compare_rows(
        config.output_table,
        work.keys,
        work.product.result_columns,
        table.lake.read_small_table_into_memory(spark, config.output_table),
        truth,
    )


def has_unread_source_changes(
    spark: SparkSession, settings: Settings, table: KeyedProcessorTable, config: ProductProcessor, source_version: int
) -> bool:
    """Returns True if the source table has changes that the processor has not read yet.

    A newer version alone is not enough: not every version adds or changes rows.

    Args:
        spark: The Spark session.
        settings: The configuration.
        table: The product's table.
        config: The settings of the processor that maintains it.
        source_version: The present version of the source table.
    """
    feed = table.lake.storage.read_properties(spark, config.source).get(CHANGE_FEED) == "true"
    version = read_last_processed_version(settings, config.layer, reads_change_feed=feed)
    if version is None:
        return not table.read_source_table(spark, source_version).isEmpty()
    if version >= source_version:
        return False
    if feed:
        since = {"readChangeFeed": "true", "startingVersion": version + 1}
        return not table.lake.storage.read(spark, config.source, since).isEmpty()
    return table.read_source_table(spark, source_version).count() != table.read_source_table(spark, version).count()
