"""`verify gold` and `rebuild gold`: compare gold with a recomputation, and rebuild its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.cli import processors
from sessionlake.cli.options import Say
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.errors import UsageError
from sessionlake.gold.changes import refuse_rebuild_from_fewer_changes
from sessionlake.gold.declared.tables import GoldTable, add_final_tables_of_products, list_declared_gold_tables
from sessionlake.gold.job import rebuild_tables
from sessionlake.gold.tables.expiry import describe_expiry, read_expiry_times
from sessionlake.gold.tables.table_properties import find_complete_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.streaming.journal import refuse_interrupted_operations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_gold_tables(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Compares each table of gold with a recomputation from its source, and tells the user the result.

    Returns True if all are equal.
    """
    refuse_interrupted_operations(settings, GOLD)
    with claim_layers(spark, settings, Layer.GOLD, "verifies gold"):
        products = list_declared_gold_tables(settings)
        complete = find_complete_tables(spark, Lake(settings), products)
        comparisons = verify_gold(spark, settings, complete)
        begins = read_expiry_times(Lake(settings).reader(spark), _list_table_names_of_products(complete))
    for comparison in comparisons:
        say(str(comparison))
    for table, floors in begins.items():
        say(f"{describe_expiry(table, floors)}, and not compared")
    for product in products:
        if product not in complete:
            name = product.table_name
            say(f"{name} is not compared, because it does not exist yet: `sessionlake run gold` creates it")
    are_equal = [
        processors.verify_processor_table(spark, settings, processor, say)
        for processor in _list_products_with_source(settings)
    ]
    return all(comparison.first_difference is None for comparison in comparisons) and all(are_equal)


def rebuild_gold_tables(
    spark: SparkSession, settings: Settings, table: str | None, say: Say, *, shorten: bool = False
) -> None:
    """Rebuilds one table of gold, or all of them, from all of silver.

    Args:
        spark: The Spark session.
        settings: The configuration.
        table: Name of the table; None means all tables of gold.
        say: Shows a line to the user.
        shorten: True to rebuild even if retention has removed changes of silver. The table then covers less time.

    Raises:
        LakeError: Retention has removed changes, and `shorten` is False.
        UsageError: Gold has no such table.
    """
    known, with_sources = list_declared_gold_tables(settings), _list_products_with_source(settings)
    chosen = [product for product in known if table in (None, product.table_name)]
    chosen_with_sources = [processor for processor in with_sources if table in (None, processor.output_table)]
    if not chosen and not chosen_with_sources:
        names = ", ".join(
            [*(product.table_name for product in known), *(processor.output_table for processor in with_sources)]
        )
        raise UsageError(f"{table} is not a table of gold", fix=f"Name one of the tables of gold: {names}")
    if chosen:
        _rebuild_gold_tables_from_silver(spark, settings, chosen, table, say, shorten=shorten)
    for processor in chosen_with_sources:
        processors.rebuild_processor(spark, settings, processor.name, OutputFormat.TABLE, say)


def _rebuild_gold_tables_from_silver(
    spark: SparkSession, settings: Settings, chosen: Sequence[GoldTable], table: str | None, say: Say, *, shorten: bool
) -> None:
    with claim_layers(spark, settings, Layer.GOLD, f"rebuilds {table or 'gold'}"):
        if not shorten:
            refuse_rebuild_from_fewer_changes(Lake(settings), spark)
        for name, made in rebuild_tables(spark, settings, chosen).items():
            difference = (
                "equal to the former table"
                if made.first_difference is None
                else f"first difference to the former table:\n  {made.first_difference}"
            )
            say(f"{name} is rebuilt: {made.rows:,} rows; {difference}")
        for name, floors in read_expiry_times(
            Lake(settings).reader(spark), _list_table_names_of_products(chosen)
        ).items():
            say(describe_expiry(name, floors))


def _list_products_with_source(settings: Settings) -> list[ProductProcessor]:
    """Returns the processors of gold's products with a `source`. A product comes after the products that it reads."""
    return [processor for processor in settings.processors if isinstance(processor, ProductProcessor)]


def _list_table_names_of_products(products: Sequence[GoldTable]) -> list[str]:
    return [table.table_name for table in add_final_tables_of_products(products)]
