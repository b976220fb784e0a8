"""Gold verified against a recomputation, and its products made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.cli import processors
from sessionlake.cli.options import Say
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.errors import UsageError
from sessionlake.gold.changes import refuse_shorter
from sessionlake.gold.declared.tables import GoldTable, tables_of, with_finals
from sessionlake.gold.job import rebuild_tables
from sessionlake.gold.tables.expiry import describe_floors, read_floors
from sessionlake.gold.tables.notes import complete_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.operations.pipeline import Layer, claimed
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.streaming.journal import require_uninterrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Says of each table whether it is what its source makes of it; so they all are."""
    require_uninterrupted(settings, GOLD)
    with claimed(spark, settings, Layer.GOLD, "verifies gold"):
        products = tables_of(settings)
        complete = complete_tables(spark, Lake(settings), products)
        found = verify_gold(spark, settings, complete)
        begins = read_floors(Lake(settings).reader(spark), _tables(complete))
    for one in found:
        say(str(one))
    for table, floors in begins.items():
        say(f"{describe_floors(table, floors)}, and not compared")
    for product in products:
        if product not in complete:
            say(f"{product.table} is not compared: it is yet to be made, by `sessionlake run gold`")
    of_tables = [processors.verify(spark, settings, own, say) for own in _of_tables(settings)]
    return all(one.first is None for one in found) and all(of_tables)


def rebuild(spark: SparkSession, settings: Settings, table: str | None, say: Say, *, shorten: bool = False) -> None:
    """Makes a product anew, or all of them, out of all that silver holds.

    Args:
        shorten: though retention has removed changes, so that what is made begins later.

    Raises:
        LakeError: retention has removed some, and it must not.
        UsageError: there is no such product.
    """
    known, of_tables = tables_of(settings), _of_tables(settings)
    chosen = [product for product in known if table in (None, product.table)]
    beside = [own for own in of_tables if table in (None, own.into)]
    if not chosen and not beside:
        names = ", ".join([*(product.table for product in known), *(own.into for own in of_tables)])
        raise UsageError(f"{table} is no product of gold: there are {names}")
    if chosen:
        _rebuild_kept_up(spark, settings, chosen, table, say, shorten=shorten)
    for own in beside:
        processors.rebuild(spark, settings, own.name, OutputFormat.TABLE, say)


def _rebuild_kept_up(
    spark: SparkSession, settings: Settings, chosen: Sequence[GoldTable], table: str | None, say: Say, *, shorten: bool
) -> None:
    with claimed(spark, settings, Layer.GOLD, f"rebuilds {table or 'gold'}"):
        if not shorten:
            refuse_shorter(Lake(settings), spark)
        for name, made in rebuild_tables(spark, settings, chosen).items():
            what = "nothing was other before" if made.before is None else f"before:\n  {made.before}"
            say(f"{name} is made anew: {made.rows:,} rows; {what}")
        for name, floors in read_floors(Lake(settings).reader(spark), _tables(chosen)).items():
            say(describe_floors(name, floors))


def _of_tables(settings: Settings) -> list[ProductProcessor]:
    """The products that are made of tables, each behind those that it is made of."""
    return [own for own in settings.processors if isinstance(own, ProductProcessor)]


def _tables(products: Sequence[GoldTable]) -> list[str]:
    return [table.table for table in with_finals(products)]
