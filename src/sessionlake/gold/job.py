"""`silver.session_changes` to the gold tables: points folded in a stateful stream, rows appended and merged."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.config import Settings, milliseconds
from sessionlake.gold.fold.outputs import GoldOutput, RowRange
from sessionlake.gold.fold.pack import PointPacker, value_field
from sessionlake.gold.fold.shard import GoldFold
from sessionlake.gold.folded import Part, rows_of
from sessionlake.gold.slow import BEYOND_DDL, recomputed
from sessionlake.gold.targets import TARGETS, Target
from sessionlake.gold.window import hold_settings
from sessionlake.lake.commit import append, merge
from sessionlake.lake.ledger import LedgerEntry, TableOutput, config_hash, write
from sessionlake.lake.names import AVERAGES, CHANGES, GOLD, LEDGER, MINUTES
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import PASSING_REMOVALS, Lake
from sessionlake.lake.txn import Txn
from sessionlake.runtime.frames import as_frame
from sessionlake.runtime.interpreted import interpreted
from sessionlake.streaming.guards import refuse_fresh_checkpoint, refuse_interrupted_rebuild
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import PACKED_SCHEMA, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LAYER = GOLD
# Silver forgets a session at twice its timeout, too.
_IDLE_TIMEOUTS = 2


def start(spark: SparkSession, settings: Settings, *, once: bool = False) -> LayerQuery:
    """Starts the gold stream.

    Args:
        once: take in what silver holds now, then end.

    Raises:
        LakeError: the checkpoint is new and the tables are not, or they were built with another number of points or
            of shards, or a rebuild of silver was interrupted.
    """
    lake = Lake(settings)
    lake.ensure(spark, [CHANGES, AVERAGES, MINUTES, LEDGER])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    refuse_interrupted_rebuild(settings)
    hold_settings(spark, lake, settings.gold)
    query = LayerQuery(LAYER, settings.checkpoint(LAYER))
    return query.start(
        folded(spark, lake, settings), _GoldBatch(lake, settings), trigger=settings.gold.trigger, once=once
    )


def metrics_of(settings: Settings) -> tuple[str, ...]:
    """The declared numeric columns, of which gold computes averages and minutes."""
    return tuple(column.name for column in settings.capture.declared if column.numeric)


def folded(spark: SparkSession, lake: Lake, settings: Settings) -> DataFrame:
    """The stateful stream: points packed, folded by shard; `kind string, payload binary`."""
    from pyspark.sql import functions as F

    metrics = metrics_of(settings)
    shard = F.pmod(F.xxhash64("topic", "session_id"), F.lit(settings.gold.shards)).cast("int").alias("shard")
    values = [_value(name).alias(value_field(i)) for i, name in enumerate(metrics)]
    points = lake.stream(spark, CHANGES, settings.gold.max_bytes_per_trigger, PASSING_REMOVALS).select(
        shard,
        "topic",
        "session_id",
        "row_id",
        "partition",
        F.unix_millis("kafka_timestamp").alias("kafka_ms"),
        F.col("_ts").alias("ts"),
        F.col("_position").alias("position"),
        "ordinal",
        F.col("_batch").alias("batch"),
        *values,
    )
    packed = points.mapInArrow(PointPacker(len(metrics)), PACKED_SCHEMA)
    idle_ms = _IDLE_TIMEOUTS * milliseconds(settings.capture.session_timeout)
    return fold_shards(packed, GoldFold(metrics, settings.gold.rolling_points, idle_ms))


def _value(metric: str) -> Column:
    """The metric's value where a change set it, else null. Integers beyond 2^53 lose their last digits."""
    from pyspark.sql import functions as F

    was_set = (F.col("change") == "upsert") & F.array_contains("_set", metric)
    return F.when(was_set, F.col(quote(metric)).cast("double"))


class _GoldBatch:
    """Commits one micro-batch: both tables, then the ledger row."""

    def __init__(self, lake: Lake, settings: Settings) -> None:
        self._lake = lake
        self._settings = settings

    def __call__(self, folded: DataFrame, txn: Txn) -> None:
        started, spark = datetime.now(UTC), folded.sparkSession
        inline, few = self._lake.limits.inline_bytes, self._lake.limits.few_changes
        folded.persist()
        try:
            parts = [Part.collect(folded, inline)]
            if GoldOutput.BEYOND in parts[0].report.spans:
                parts.append(Part.collect(self._recomputed(parts[0]), inline))
            with interpreted(spark, when=parts[0].report.read.changes <= few):
                outputs = [self._write(target, parts, txn) for target in TARGETS]
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
            outputs=tuple(output for output in outputs if output),
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

    def _write(self, target: Target, parts: Sequence[Part], txn: Txn) -> TableOutput | None:
        """Appends the new rows, for which nothing is looked up: they are most of what a batch brings; merges others."""
        spark = parts[0].folded.frame.sparkSession
        new, changed = (_span(parts, kind) for kind in (target.new, target.changed))
        if not new and not changed:
            return None
        if new:
            rows = rows_of(parts, target.new, target.ddl)
            append(spark, self._lake, target.table, rows, txn)
        if changed:
            source = as_frame(spark, rows_of(parts, target.changed, target.ddl))
            commit = merge(self._lake, target.table, source, target.same(changed), target.clauses, txn.second)
        else:
            commit = self._lake.last_commit(spark, target.table)
        return TableOutput(target.table, commit.version, sum(span.rows for span in (new, changed) if span))


def _span(parts: Sequence[Part], kind: GoldOutput) -> RowRange | None:
    found = [part.report.spans[kind] for part in parts if kind in part.report.spans]
    return reduce(operator.add, found) if found else None
