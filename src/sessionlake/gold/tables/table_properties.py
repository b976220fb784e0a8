"""What gold stores in table properties: which tables are complete, which it maintains, and the number of shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED
from sessionlake.errors import LakeError
from sessionlake.gold.changes import require_all_read_changes_exist
from sessionlake.gold.declared.tables import GoldTable, add_final_tables_of_products, find_final_tables
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T", bound=GoldTable)
LOGIC = "sessionlake.logic"
"""Property of a table: the hash of the declaration that its rows were computed by.

It is set once the table is complete. A table is complete if it includes everything that gold has read.
"""
_SHARDS = "sessionlake.goldShards"
MAINTAINED = "sessionlake.products"
"""Property of `gold.rolling_average`: names of the tables that gold maintains, without `gold.`.

When gold is emptied, it still names all tables that were maintained before. Gold's next start stores the new names.
"""


def require_same_gold_shard_count(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Stores the number of shards at gold's first start, and checks it at every later start.

    With another number of shards, series would not find their states.

    Raises:
        LakeError: Gold's states were written for another number of shards.
    """
    found = read_gold_shard_count(spark, lake)
    if found is None:
        store_gold_shard_count(spark, lake, shards)
    elif found != shards:
        raise LakeError(
            f"gold.shards is {shards}, but gold's states were written for {found} shards",
            why="With another number, gold would not find the states of its averages",
            fix=f"Set gold.shards back to {found}, or move the states with `sessionlake reshard {shards}`",
        )


def read_gold_shard_count(spark: SparkSession, lake: Lake) -> int | None:
    """Returns the number of shards for which gold's states were written; None before gold's first start."""
    if not lake.exists(spark, AVERAGES):
        return None
    found = lake.storage.read_properties(spark, AVERAGES).get(_SHARDS)
    return None if found is None else int(found)


def store_gold_shard_count(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Stores the number of shards for which gold's states are written."""
    lake.set_property(spark, AVERAGES, _SHARDS, str(shards))


def find_skipped_tables(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """Returns those of the tables that gold did not maintain in its last run. They lack the batches of that run."""
    noted = read_maintained_table_names(spark, lake)
    if noted is None:
        return []
    return [
        one for one in products if one.table_name != AVERAGES and one.name not in noted
    ]  # AVERAGES is always maintained


def find_tables_to_rebuild(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """Returns the tables that must be rebuilt because they are missing or incomplete.

    A table is incomplete if gold died while it rebuilt the table, or if the configuration left the table out for a
    while.

    Raises:
        LakeError: A table was computed by another declaration than its present one. Or a rebuilt table would begin
            later, because retention has removed changes.
    """
    for product in products:
        found = _read_stored_logic_hash(spark, lake, product)
        if found not in (None, product.logic_hash):
            raise LakeError(
                f"{product.table_name} was computed with another declaration than the configuration has "
                f"now (hash {found}, now {product.logic_hash})",
                why="So its rows may be other ones than the present declaration gives",
                fix=f"Run `sessionlake rebuild {product.table_name}`, which computes it again",
            )
    for product in find_skipped_tables(spark, lake, products):
        _require_rebuildable(spark, lake, product)
        mark_table_incomplete(spark, lake, product)
    return [product for product in products if _read_stored_logic_hash(spark, lake, product) is None]


def _require_rebuildable(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Checks that all changes from which a table was computed still exist, so that a rebuild would lose nothing.

    Does nothing for an incomplete or empty table.

    Raises:
        LakeError: Retention has removed changes.
    """
    if _read_stored_logic_hash(spark, lake, product) is None or not lake.reader(spark).has_rows(product.table_name):
        return
    try:
        require_all_read_changes_exist(lake, spark)
    except LakeError as error:
        raise LakeError(
            f"{error}",
            why=f"The configuration did not declare {product.table_name} for a while, so the table lacks changes of "
            "that time. A rebuild would have all changes that are left, but would start later than the table does now",
            fix=f"Remove {product.table_name} from the configuration. Or accept the later start: run "
            f"`sessionlake rebuild {product.table_name} --shorten-gold`",
        ) from error


def store_maintained_tables(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Stores which tables gold maintains from its next batch on."""
    store_maintained_table_names(spark, lake, (product.name for product in products))


def set_change_feeds(spark: SparkSession, lake: Lake, settings: Settings, products: Iterable[GoldTable]) -> None:
    """Switches the change data feed of each table on or off, as `gold.change_feed` says."""
    for table in add_final_tables_of_products(products):
        wanted = table.name in settings.gold.change_feed
        if wanted != (lake.storage.read_properties(spark, table.table_name).get(CHANGE_FEED) == "true"):
            lake.set_property(spark, table.table_name, CHANGE_FEED, str(wanted).lower())


def set_table_properties(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Switches the tables' change data feeds on or off, and makes tables of final rows append-only.

    Forgetting a session makes tables of final rows writable, so the property is set again here. Tables of final rows
    with a retention stay writable.
    """
    set_change_feeds(spark, lake, lake.settings, products)
    for final in find_final_tables(products):
        if (
            final.retention_ms is None
            and lake.storage.read_properties(spark, final.table_name).get(APPEND_ONLY) != "true"
        ):
            lake.set_property(spark, final.table_name, APPEND_ONLY, "true")


def require_maintained_tables_are_complete(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Checks that every table that gold maintains is declared and complete, before gold's states are moved.

    The states of a maintained table that is not declared would be left behind.

    Args:
        products: The declared tables.

    Raises:
        LakeError: A maintained table is not among the declared ones, or is incomplete.
    """
    names = {product.name for product in find_complete_tables(spark, lake, products)}
    lacking = sorted({*(read_maintained_table_names(spark, lake) or ())} - names)
    if lacking:
        raise LakeError(
            f"gold has the tables {', '.join(lacking)}, which the configuration does not declare, or "
            "not as it did when gold last ran",
            why="Their states are to be moved to other shards, which needs the same declaration",
            fix="Restore the declarations and run the command again. If you do not want such a table any "
            f"more, first set gold.shards back to {read_gold_shard_count(spark, lake)} and run "
            "`sessionlake run gold --once`, then set the new number and run the command again",
        )


def find_complete_tables(spark: SparkSession | None, lake: Lake, products: Sequence[T]) -> list[T]:
    """Returns those of the tables that are complete.

    A complete table was computed by its present declaration from all changes that gold has read.
    """
    return [product for product in products if _read_stored_logic_hash(spark, lake, product) == product.logic_hash]


def mark_table_incomplete(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Marks a table as incomplete, so that gold's next start rebuilds it."""
    if _read_stored_logic_hash(spark, lake, product) is not None:
        lake.set_property(spark, product.table_name, LOGIC, "")


def _read_stored_logic_hash(spark: SparkSession | None, lake: Lake, product: GoldTable) -> str | None:
    if not all(lake.exists(spark, one.table_name) for one in add_final_tables_of_products([product])):
        return None
    return lake.storage.read_properties(spark, product.table_name).get(LOGIC) or None


def read_maintained_table_names(spark: SparkSession, lake: Lake) -> list[str] | None:
    """Returns the names of the tables that gold maintains; None if gold has never stored them."""
    noted = lake.storage.read_properties(spark, AVERAGES).get(MAINTAINED)
    return None if noted is None else noted.split(",") if noted else []


def store_maintained_table_names(spark: SparkSession, lake: Lake, names: Iterable[str]) -> None:
    """Stores the names of the tables that gold maintains from its next batch on."""
    wanted = sorted(names)
    if read_maintained_table_names(spark, lake) != wanted:
        lake.set_property(spark, AVERAGES, MAINTAINED, ",".join(wanted))
