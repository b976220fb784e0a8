"""The life of a product's table: begun with all that gold has read, held to one logic, made anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.changes import declared_in
from sessionlake.gold.compare import compared
from sessionlake.gold.recompute import changes_read, recomputed
from sessionlake.lake.names import AVERAGES
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_UP = "sessionlake.products"
"""Property of `gold.rolling_average`: the products that gold keeps up."""
LOGIC = "sessionlake.logic"
"""Property of a product's table: what its rows rest on. It is set once the table has all that gold has read."""


def refuse_other_logic(spark: SparkSession, lake: Lake, products: Sequence[Product]) -> None:
    """Returns if no product's table rests on other logic than the product's present one.

    Raises:
        LakeError: naming one that does, and what to do.
    """
    for product in products:
        found = _logic(spark, lake, product)
        if found not in (None, product.logic):
            raise LakeError(
                f"{product.table} was made by other logic ({found}, now {product.logic}): "
                f"`sessionlake rebuild {product.table}` makes it anew"
            )


def begin_again(spark: SparkSession, lake: Lake, products: Sequence[Product]) -> None:
    """Notes which products gold keeps up; one that it did not keep up before has missed batches, and is made anew."""
    names = [product.name for product in products]
    before = lake.storage.properties(spark, AVERAGES).get(KEPT_UP)
    noted = names if before is None else before.split(",")
    for product in products:
        if product.name not in noted:
            mark_incomplete(spark, lake, product)
    if before != ",".join(names):
        lake.set_property(spark, AVERAGES, KEPT_UP, ",".join(names))


def to_begin(spark: SparkSession, lake: Lake, products: Sequence[Product]) -> list[Product]:
    """Products whose tables are not there, or not whole: of an earlier version, or of one that died beginning it."""
    return [product for product in products if _logic(spark, lake, product) is None]


def mark_incomplete(spark: SparkSession, lake: Lake, product: Product) -> None:
    """Sees to it that a product that is being made anew is made anew if that does not come to its end."""
    if _logic(spark, lake, product) is not None:
        lake.set_property(spark, product.table, LOGIC, "")


@dataclass(frozen=True)
class Made:
    """A product's table that was made anew.

    Attributes:
        before: the first row that was other before, as text; None if there was none, or no such table.
    """

    rows: int
    before: str | None


def make_anew(spark: SparkSession, lake: Lake, settings: Settings, product: Product) -> Made:
    """Puts all that gold has read into the product's table, in one commit.

    Raises:
        LakeError: gold has stopped within a version of silver's table.
    """
    changes = changes_read(spark, lake, settings)
    if changes is None:
        lake.ensure(spark, [product.table])
        made = Made(0, None)
    else:
        if not lake.exists(spark, product.table):
            lake.ensure(spark, [product.table])
        whole = recomputed(changes, product, declared_in(settings)).localCheckpoint()
        made = Made(whole.count(), _first_other(lake.read(spark, product.table), whole, product))
        lake.storage.make_sure(product.table)
        writer = whole.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        lake.storage.save(writer, product.table)
        lake.ensure(spark, [product.table])
    # Last: without it the table is taken for one that is not whole.
    lake.set_property(spark, product.table, LOGIC, product.logic)
    return made


def _first_other(live: DataFrame, whole: DataFrame, product: Product) -> str | None:
    """The first row that is other than in the live table; None, too, where its columns are."""
    if not {*product.row_keys, *product.results} <= {*live.columns}:
        return None
    return compared(product.table, product.row_keys, product.results, live, whole).first


def _logic(spark: SparkSession, lake: Lake, product: Product) -> str | None:
    if not lake.exists(spark, product.table):
        return None
    return lake.storage.properties(spark, product.table).get(LOGIC) or None
