"""The life of a table of gold: begun with all that gold has read, held to one logic, made anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED
from sessionlake.errors import LakeError
from sessionlake.gold.changes import require_all_changes
from sessionlake.gold.declared.tables import GoldTable, finals_of, with_finals
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T", bound=GoldTable)
LOGIC = "sessionlake.logic"
"""Property of a table: what its rows rest on. It is set once the table has all that gold has read."""
_SHARDS = "sessionlake.goldShards"
MAINTAINED = "sessionlake.products"
"""Property of `gold.rolling_average`: the tables that gold keeps up, without `gold.`.

After gold was emptied, until it starts: all tables that were.
"""


def require_same_shards(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Notes the number of shards in `gold.rolling_average` the first time, and compares it ever after.

    Of other shards, series would not find their states.

    Raises:
        LakeError: gold was built with another one.
    """
    found = stored_shards(spark, lake)
    if found is None:
        store_shards(spark, lake, shards)
    elif found != shards:
        raise LakeError(
            f"gold.shards is {shards}, but gold was built with {found}: set it back, or move its states with "
            f"`sessionlake reshard {shards}`"
        )


def stored_shards(spark: SparkSession, lake: Lake) -> int | None:
    """The number of shards that gold's states are of; None before it has begun."""
    if not lake.exists(spark, AVERAGES):
        return None
    found = lake.storage.properties(spark, AVERAGES).get(_SHARDS)
    return None if found is None else int(found)


def store_shards(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Notes the number of shards that gold's states are of."""
    lake.set_property(spark, AVERAGES, _SHARDS, str(shards))


def skipped_tables(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """The products that gold did not keep up when it ran last: they have missed batches."""
    noted = maintained_names(spark, lake)
    if noted is None:
        return []
    return [one for one in products if one.table != AVERAGES and one.name not in noted]  # that is never left out


def tables_to_rebuild(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """Those whose tables are not there, or not whole: gold died while it made them, or has left them out for a while.

    Raises:
        LakeError: a table rests on other logic than its present one, or would begin later, made anew, than it does.
    """
    for product in products:
        found = _logic(spark, lake, product)
        if found not in (None, product.logic):
            raise LakeError(
                f"{product.table} was made by other logic ({found}, now {product.logic}): "
                f"`sessionlake rebuild {product.table}` makes it anew"
            )
    for product in skipped_tables(spark, lake, products):
        _refuse_cut(spark, lake, product)
        mark_incomplete(spark, lake, product)
    return [product for product in products if _logic(spark, lake, product) is None]


def _refuse_cut(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Returns if a table that is to be made anew would lose none of the changes that it was made of."""
    if _logic(spark, lake, product) is None or not lake.reader(spark).any(product.table):
        return
    try:
        require_all_changes(lake, spark)
    except LakeError as error:
        raise LakeError(
            f"{error}. {product.table} was left out of the configuration for a while: made anew with what it missed, "
            f"it would begin later. Leave it out, or have it so: `sessionlake rebuild {product.table} --shorten-gold`"
        ) from error


def store_maintained(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Notes which products take in what comes from now on."""
    store_maintained_names(spark, lake, (product.name for product in products))


def set_change_feeds(spark: SparkSession, lake: Lake, settings: Settings, products: Iterable[GoldTable]) -> None:
    """Switches the tables' change feeds on, and off, as the configuration has it."""
    for table in with_finals(products):
        wanted = table.name in settings.gold.change_feed
        if wanted != (lake.storage.properties(spark, table.table).get(CHANGE_FEED) == "true"):
            lake.set_property(spark, table.table, CHANGE_FEED, str(wanted).lower())


def set_table_properties(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Sets the tables' change feeds as configured, and has Delta refuse whatever would change a final row.

    `forget` has had to open the tables of final rows; retention removes rows of those that it is configured for.
    """
    set_change_feeds(spark, lake, lake.settings, products)
    for final in finals_of(products):
        if final.retention_ms is None and lake.storage.properties(spark, final.table).get(APPEND_ONLY) != "true":
            lake.set_property(spark, final.table, APPEND_ONLY, "true")


def require_maintained(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Returns if these are all that gold keeps up: of another's states nothing would be known.

    Raises:
        LakeError: naming one that is lacking, or is not whole.
    """
    names = {product.name for product in complete_tables(spark, lake, products)}
    lacking = sorted({*(maintained_names(spark, lake) or ())} - names)
    if lacking:
        raise LakeError(
            f"gold keeps up {', '.join(lacking)}, which the configuration lacks, or has otherwise: put that back, or "
            "run `sessionlake run gold --once` without it under the former gold.shards, then reshard"
        )


def complete_tables(spark: SparkSession | None, lake: Lake, products: Sequence[T]) -> list[T]:
    """Those whose tables have all that gold has read, by their present logic."""
    return [product for product in products if _logic(spark, lake, product) == product.logic]


def mark_incomplete(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Sees to it that a table that is being made anew is made anew if that does not come to its end."""
    if _logic(spark, lake, product) is not None:
        lake.set_property(spark, product.table, LOGIC, "")


def _logic(spark: SparkSession | None, lake: Lake, product: GoldTable) -> str | None:
    if not all(lake.exists(spark, one.table) for one in with_finals([product])):
        return None
    return lake.storage.properties(spark, product.table).get(LOGIC) or None


def maintained_names(spark: SparkSession, lake: Lake) -> list[str] | None:
    """The names of the tables; None if gold has never noted them."""
    noted = lake.storage.properties(spark, AVERAGES).get(MAINTAINED)
    return None if noted is None else noted.split(",") if noted else []


def store_maintained_names(spark: SparkSession, lake: Lake, names: Iterable[str]) -> None:
    """Notes the names of the tables that take in what comes from now on."""
    wanted = sorted(names)
    if maintained_names(spark, lake) != wanted:
        lake.set_property(spark, AVERAGES, MAINTAINED, ",".join(wanted))
