"""The life of a table of gold: begun with all that gold has read, held to one logic, made anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sessionlake.delta.commit import retire
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import CHANGE_FEED
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, GOLD, LATE_POINTS, RESTATEMENTS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.aggregate.late import by_topic
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.changes import declared_in
from sessionlake.gold.compare import compared
from sessionlake.gold.declared import GoldTable, finals_of, with_finals
from sessionlake.gold.enrich.table import Enriched
from sessionlake.gold.expiry import above, due, note_floors
from sessionlake.gold.final import make_final_anew, places_of
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.kept_up import kept_up, note_names
from sessionlake.gold.late import make_late_anew
from sessionlake.gold.making import note_making, replace_table
from sessionlake.gold.recompute import changes_read, recomputed, refuse_removed, version_read
from sessionlake.gold.references.joined import enriched_rows
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.handover import next_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T", bound=GoldTable)

LOGIC = "sessionlake.logic"
"""Property of a table: what its rows rest on. It is set once the table has all that gold has read."""
_SHARDS = "sessionlake.goldShards"
_POINTS = "sessionlake.rollingPoints"


def hold_shards(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Notes the number of shards in `gold.rolling_average` the first time, and compares it ever after.

    Of other shards, series would not find their states.

    Raises:
        LakeError: gold was built with another one.
    """
    found = shards_noted(spark, lake)
    if found is None:
        note_shards(spark, lake, shards)
    elif found != shards:
        raise LakeError(
            f"gold.shards is {shards}, but gold was built with {found}: set it back, or move its states with "
            f"`sessionlake reshard {shards}`"
        )


def shards_noted(spark: SparkSession, lake: Lake) -> int | None:
    """The number of shards that gold's states are of; None before it has begun."""
    if not lake.exists(spark, AVERAGES):
        return None
    found = lake.storage.properties(spark, AVERAGES).get(_SHARDS)
    return None if found is None else int(found)


def note_shards(spark: SparkSession, lake: Lake, shards: int) -> None:
    """Notes the number of shards that gold's states are of."""
    lake.set_property(spark, AVERAGES, _SHARDS, str(shards))


def refuse_other_logic(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Returns if no table rests on other logic than its present one.

    Raises:
        LakeError: naming one that does, and what to do.
    """
    for product in products:
        found = _logic(spark, lake, product) or _adopted(spark, lake, product)
        if found not in (None, product.logic):
            raise LakeError(
                f"{product.table} was made by other logic ({found}, now {product.logic}): "
                f"`sessionlake rebuild {product.table}` makes it anew"
            )


def _adopted(spark: SparkSession, lake: Lake, product: GoldTable) -> str | None:
    """The logic of a `rolling_average` of a version that noted the number of points alone."""
    if product.table != AVERAGES or not isinstance(product, RollingAverage):
        return None
    noted = lake.storage.properties(spark, AVERAGES)
    points = noted.get(_POINTS)
    if points is None or LOGIC in noted:
        return None
    logic = RollingAverage(product.name, product.keys, int(points)).logic
    lake.set_property(spark, AVERAGES, LOGIC, logic)
    return logic


def left_out(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """The products that gold did not keep up when it ran last: they have missed batches."""
    noted = kept_up(spark, lake)
    if noted is None:
        return []
    return [one for one in products if one.table != AVERAGES and one.name not in noted]  # that is never left out


def mark_left_out(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Marks the products that have missed batches.

    Raises:
        LakeError: made anew, one of them would begin later than it does.
    """
    for product in left_out(spark, lake, products):
        _refuse_cut(spark, lake, product)
        mark_incomplete(spark, lake, product)


def _refuse_cut(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Returns if a table that is to be made anew would lose none of the changes that it was made of."""
    if _logic(spark, lake, product) is None or not lake.reader(spark).any(product.table):
        return
    try:
        refuse_removed(lake, spark)
    except LakeError as error:
        raise LakeError(
            f"{error}. {product.table} was left out of the configuration for a while: made anew with what it missed, "
            f"it would begin later. Leave it out, or have it so: `sessionlake rebuild {product.table} --shorten-gold`"
        ) from error


def note_kept_up(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Notes which products take in what comes from now on."""
    note_names(spark, lake, (product.name for product in products))


def hold_feeds(spark: SparkSession, lake: Lake, settings: Settings, products: Iterable[GoldTable]) -> None:
    """Switches the tables' change feeds on, and off, as the configuration has it."""
    for table in with_finals(products):
        wanted = table.name in settings.gold.change_feed
        if wanted != (lake.storage.properties(spark, table.table).get(CHANGE_FEED) == "true"):
            lake.set_property(spark, table.table, CHANGE_FEED, str(wanted).lower())


def require_kept_up(spark: SparkSession, lake: Lake, products: Sequence[GoldTable]) -> None:
    """Returns if these are all that gold keeps up: of another's states nothing would be known.

    Raises:
        LakeError: naming one that is lacking, or is not whole.
    """
    names = {product.name for product in whole(spark, lake, products)}
    lacking = sorted({*(kept_up(spark, lake) or ())} - names)
    if lacking:
        raise LakeError(
            f"gold keeps up {', '.join(lacking)}, which the configuration lacks, or has otherwise: put that back, or "
            "run `sessionlake run gold --once` without it under the former gold.shards, then reshard"
        )


def whole(spark: SparkSession | None, lake: Lake, products: Sequence[T]) -> list[T]:
    """Those whose tables have all that gold has read, by their present logic."""
    return [product for product in products if _logic(spark, lake, product) == product.logic]


def to_begin(spark: SparkSession, lake: Lake, products: Sequence[T]) -> list[T]:
    """Those whose tables are not there, or not whole: of an earlier version, or of one that died beginning it."""
    return [product for product in products if _logic(spark, lake, product) is None]


def mark_incomplete(spark: SparkSession, lake: Lake, product: GoldTable) -> None:
    """Sees to it that a table that is being made anew is made anew if that does not come to its end."""
    if _logic(spark, lake, product) is not None:
        lake.set_property(spark, product.table, LOGIC, "")


@dataclass(frozen=True)
class Made:
    """A table that was made anew.

    Attributes:
        before: the first row that was other before, as text; None if there was none, or no such table.
    """

    rows: int
    before: str | None


def make_anew(spark: SparkSession, lake: Lake, settings: Settings, product: GoldTable) -> Made:
    """Puts all that gold has read into the table, in one commit; a table of other columns is dropped first.

    Raises:
        LakeError: gold has stopped within a version of silver's table.
    """
    changes, table = changes_read(spark, lake, settings), product.table
    for one in with_finals([product]):
        _ensure_columns(spark, lake, one, empty=changes is None)
    hold_feeds(spark, lake, settings, [product])
    made = Made(0, None)
    if changes is not None:
        rows = _rows(spark, lake, settings, product, changes)
        times = places_of(changes) if isinstance(product, Product) else {}
        if isinstance(product, Product):
            floors = due(product, by_topic(times))
            note_floors(spark, lake, [one.table for one in with_finals([product])], floors)
            rows = above(rows, floors)
        rows = rows.localCheckpoint()
        made = Made(rows.count(), _first_other(lake.read_near(spark, table), rows, product))
        replace_table(spark, lake, table, rows)
        _pass_over_batches_read(spark, lake, settings, table)
        for final in finals_of([product]):
            make_final_anew(spark, lake, final, rows, times, next_batch(settings, GOLD) - 1)
            _pass_over_batches_read(spark, lake, settings, final.table)
        if isinstance(product, RollingAverage):
            note_making(spark, lake, settings, product, rows)
            _pass_over_batches_read(spark, lake, settings, RESTATEMENTS)
        elif isinstance(product, Product):
            make_late_anew(spark, lake, changes, product, declared_in(settings))
            if product.lateness_ms is not None:
                _pass_over_batches_read(spark, lake, settings, LATE_POINTS)
    # Last: without it the table is taken for one that is not whole.
    lake.storage.make_sure(table)
    lake.set_property(spark, table, LOGIC, product.logic)
    return made


def _ensure_columns(spark: SparkSession, lake: Lake, table: GoldTable | FinalTable, *, empty: bool) -> None:
    """Sees to it that a table that is made anew is there, with its columns."""
    present = lake.storage.columns(spark, table.table) if lake.exists(spark, table.table) else None
    # The table that has gold's own notes always has these keys, and stays.
    if present is not None and table.table != AVERAGES and (empty or present != dict(table.columns)):
        # What files tell of their columns, and how rows are clustered, goes by the definition.
        lake.drop(spark, table.table)
    lake.ensure(spark, [table.table])


def _pass_over_batches_read(spark: SparkSession, lake: Lake, settings: Settings, table: str) -> None:
    """Has a batch that the rows are of change nothing, should it be repeated, as where Spark's note of it is lost."""
    app_id = Generations(settings.checkpoint(GOLD), GOLD).present.app_id
    if app_id is not None:
        last = Txn(app_id, next_batch(settings, GOLD) - 1)
        for txn in (last, last.second):
            retire(spark, lake, [table], txn)


def _rows(spark: SparkSession, lake: Lake, settings: Settings, product: GoldTable, changes: DataFrame) -> DataFrame:
    if isinstance(product, Enriched):
        return enriched_rows(spark, lake, lake.read(spark, CHANGES, version_read(settings)), product)
    return recomputed(changes, product, declared_in(settings))


def _first_other(live: DataFrame, rows: DataFrame, product: GoldTable) -> str | None:
    """The first row that is other than in the live table; None, too, where that was empty."""
    if live.isEmpty():
        return None
    return compared(product.table, product.row_keys, product.results, live, rows).first


def _logic(spark: SparkSession | None, lake: Lake, product: GoldTable) -> str | None:
    if not all(lake.exists(spark, one.table) for one in with_finals([product])):
        return None
    return lake.storage.properties(spark, product.table).get(LOGIC) or None
