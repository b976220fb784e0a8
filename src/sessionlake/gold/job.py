"""`silver.session_changes` to gold: averages folded in a stateful stream, products merged into their tables."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.config import Settings, milliseconds
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.changes import declared_in, marks
from sessionlake.gold.declared import products_of, schemas_of
from sessionlake.gold.definitions import keep_definitions
from sessionlake.gold.fold.outputs import METRIC_KEY, GoldOutput, RowRange
from sessionlake.gold.fold.pack import PointPacker
from sessionlake.gold.fold.shard import GoldFold
from sessionlake.gold.folded import Part, rows_of
from sessionlake.gold.merging import ProductMerger
from sessionlake.gold.products import (
    Made,
    make_anew,
    mark_incomplete,
    mark_left_out,
    note_kept_up,
    refuse_other_logic,
    to_begin,
    whole,
)
from sessionlake.gold.slow import BEYOND_DDL, recomputed
from sessionlake.gold.window import hold_settings
from sessionlake.lake.commit import append, merge
from sessionlake.lake.ledger import LedgerEntry, TableOutput, config_hash, write
from sessionlake.lake.names import AVERAGES, CHANGES, GOLD, LEDGER
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import PASSING_REMOVALS, Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import Upsert
from sessionlake.runtime.frames import as_frame
from sessionlake.runtime.interpreted import interpreted
from sessionlake.streaming.checkpoint import last_planned
from sessionlake.streaming.guards import refuse_fresh_checkpoint, refuse_interrupted_rebuild
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import PACKED_SCHEMA, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYER = GOLD
AVERAGES_DDL = ", ".join(f"{name} {sql}" for name, sql in TABLES[AVERAGES].columns)
# That a row is there is known, which spares Delta an outer join.
REFINED = Upsert((*METRIC_KEY, "ts", "position", "ordinal"), ("average", "points"), bounded=("ts",), inserts=False)
# Silver forgets a session at twice its timeout, too.
_IDLE_TIMEOUTS = 2


def start(spark: SparkSession, settings: Settings, *, once: bool = False) -> LayerQuery:
    """Starts the gold stream.

    Args:
        once: take in what silver holds now, then end.

    Raises:
        LakeError: the checkpoint is new and the tables are not, or they were built with another number of points or
            of shards, or a product by other logic, or a rebuild of silver was interrupted.
    """
    lake, products = _checked(spark, settings), products_of(settings)
    refuse_other_logic(spark, lake, products)
    mark_left_out(spark, lake, products)
    new = to_begin(spark, lake, products)
    lake.ensure(spark, [product.table for product in products if product not in new])
    if new:
        make_products(spark, settings, new)
    if lake.storage.keeps_functions:
        keep_definitions(spark, settings)
    return _started(spark, lake, settings, products, once=once)


def make_products(spark: SparkSession, settings: Settings, products: Sequence[Product]) -> dict[str, Made]:
    """Makes products' tables of all that silver holds, once all others that are whole have it.

    Raises:
        LakeError: as `start`.
    """
    lake = _checked(spark, settings)
    for product in products:
        mark_incomplete(spark, lake, product)
    if last_planned(settings.checkpoint(LAYER)) is not None:
        others = whole(spark, lake, products_of(settings))
        _started(spark, lake, settings, others, once=True).wait()
    return {product.table: make_anew(spark, lake, settings, product) for product in products}


def _checked(spark: SparkSession, settings: Settings) -> Lake:
    """The lake, if gold may go on in it; see `start`."""
    lake = Lake(settings, schemas_of(settings))
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    refuse_interrupted_rebuild(settings)
    lake.ensure(spark, [CHANGES, AVERAGES, LEDGER])
    hold_settings(spark, lake, settings.gold)
    return lake


def _started(
    spark: SparkSession, lake: Lake, settings: Settings, products: Sequence[Product], *, once: bool
) -> LayerQuery:
    note_kept_up(spark, lake, products)
    query = LayerQuery(LAYER, settings.checkpoint(LAYER))
    batch = _GoldBatch(lake, settings, products)
    return query.start(folded(spark, lake, settings), batch, trigger=settings.gold.trigger, once=once)


def folded(spark: SparkSession, lake: Lake, settings: Settings) -> DataFrame:
    """The stateful stream: changes packed, folded by shard; `kind string, payload binary`."""
    from pyspark.sql import functions as F

    declared = declared_in(settings)
    shard = F.pmod(F.xxhash64("topic", "session_id"), F.lit(settings.gold.shards)).cast("int").alias("shard")
    read = lake.stream(spark, CHANGES, settings.gold.max_bytes_per_trigger, PASSING_REMOVALS)
    changes = read.select(shard, *marks(declared))
    made = tuple(product for product in products_of(settings) if product.below is None)
    packed = changes.mapInArrow(PointPacker(declared, made), PACKED_SCHEMA)
    idle_ms = _IDLE_TIMEOUTS * milliseconds(settings.capture.session_timeout)
    return fold_shards(packed, GoldFold(declared.numbers, settings.gold.rolling_points, idle_ms))


class _GoldBatch:
    """Commits one micro-batch: table by table, then the ledger row."""

    def __init__(self, lake: Lake, settings: Settings, products: Sequence[Product]) -> None:
        self._lake = lake
        self._settings = settings
        self._products = products
        self._all = products_of(settings)

    def __call__(self, folded: DataFrame, txn: Txn) -> None:
        started, spark = datetime.now(UTC), folded.sparkSession
        inline, few = self._lake.limits.inline_bytes, self._lake.limits.few_changes
        folded.persist()
        try:
            parts = [Part.collect(folded, inline)]
            if GoldOutput.BEYOND in parts[0].report.spans:
                parts.append(Part.collect(self._recomputed(parts[0]), inline))
            with interpreted(spark, when=parts[0].report.read.changes <= few):
                averages = self._write(parts, txn)
                merger = ProductMerger(spark, self._lake, parts[0].folded, txn)
                made = merger.merge(self._all, self._products)
                outputs = [*filter(None, [averages]), *made]
        finally:
            folded.unpersist()
        report = parts[0].report
        entry = LedgerEntry(
            layer=LAYER,
            txn=txn,
            source=CHANGES,
            source_from=report.read.first,
            source_to=report.read.last,
            started_at=started,
            outputs=tuple(outputs),
            messages=report.read.changes,
            applied=report.read.changes,
            config_hash=config_hash(self._settings),
        )
        write(spark, self._lake, entry)

    def _recomputed(self, fast: Part) -> DataFrame:
        gold = self._settings.gold
        spark = fast.folded.frame.sparkSession
        beyond = as_frame(spark, rows_of([fast], GoldOutput.BEYOND, BEYOND_DDL))
        averages = self._lake.read(spark, AVERAGES)
        found = recomputed(beyond, averages, window=gold.rolling_points, shards=gold.shards)
        # Not persisted: Spark would compute it again after each write to the table that it was read from.
        return found.localCheckpoint()

    def _write(self, parts: Sequence[Part], txn: Txn) -> TableOutput | None:
        """Appends new averages, for which nothing is looked up: they are most of what a batch brings; merges others."""
        spark = parts[0].folded.frame.sparkSession
        new, changed = (_span(parts, kind) for kind in (GoldOutput.NEW_AVERAGES, GoldOutput.CHANGED_AVERAGES))
        if not new and not changed:
            return None
        if new:
            append(spark, self._lake, AVERAGES, rows_of(parts, GoldOutput.NEW_AVERAGES, AVERAGES_DDL), txn)
        if changed:
            source = rows_of(parts, GoldOutput.CHANGED_AVERAGES, AVERAGES_DDL)
            commit = merge(spark, self._lake, AVERAGES, source, REFINED, txn.second)
        else:
            commit = self._lake.last_commit(spark, AVERAGES)
        return TableOutput(AVERAGES, commit.version, sum(span.rows for span in (new, changed) if span))


def _span(parts: Sequence[Part], kind: GoldOutput) -> RowRange | None:
    found = [part.report.spans[kind] for part in parts if kind in part.report.spans]
    return reduce(operator.add, found) if found else None
