"""Gold verified against a recomputation, and its products made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import UsageError
from sessionlake.gold.declared import GoldTable, tables_of, with_finals
from sessionlake.gold.expiry import floors_in, told
from sessionlake.gold.job import make_tables
from sessionlake.gold.products import whole
from sessionlake.gold.recompute import refuse_removed
from sessionlake.gold.verify import verify_gold
from sessionlake.lake.tables import Lake
from sessionlake.pipeline import Layer, claimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def verify(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Says of each table whether it is what silver makes of it; so they all are."""
    with claimed(spark, settings, Layer.GOLD, "verifies gold"):
        products = tables_of(settings)
        complete = whole(spark, Lake(settings), products)
        found = verify_gold(spark, settings, complete)
        begins = floors_in(Lake(settings).reader(spark), _tables(complete))
    for one in found:
        if one.first is None:
            say(f"{one.table} is exact: {one.rows:,} rows")
        else:
            say(f"{one.table}: {one.different:,} of {one.rows:,} rows differ; the first difference:\n  {one.first}")
    for table, floors in begins.items():
        say(f"{told(table, floors)}, and not compared")
    for product in products:
        if product not in complete:
            say(f"{product.table} is not compared: it is yet to be made, by `sessionlake run gold`")
    return all(one.first is None for one in found)


def rebuild(spark: SparkSession, settings: Settings, table: str | None, say: Say) -> None:
    """Makes a product anew, or all of them, out of all that silver holds."""
    known = tables_of(settings)
    chosen = [product for product in known if table in (None, product.table)]
    if not chosen:
        names = ", ".join(product.table for product in known)
        raise UsageError(f"{table} is no product of gold: there are {names}")
    with claimed(spark, settings, Layer.GOLD, f"rebuilds {table or 'gold'}"):
        refuse_removed(Lake(settings), spark)
        for name, made in make_tables(spark, settings, chosen).items():
            what = "nothing was other before" if made.before is None else f"before:\n  {made.before}"
            say(f"{name} is made anew: {made.rows:,} rows; {what}")
        for name, floors in floors_in(Lake(settings).reader(spark), _tables(chosen)).items():
            say(told(name, floors))


def _tables(products: Sequence[GoldTable]) -> list[str]:
    return [table.table for table in with_finals(products)]
