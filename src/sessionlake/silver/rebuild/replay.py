"""Silver computed a second time from bronze, beside the live tables: in batch, slice after slice in offset order.

The fold is a pure function of state and messages, so it needs no stream: a slice is a range of offsets of every
topic-partition, whatever files they are in, and hands its state to the next. Memory is bounded by the slice, and by the
changes of the session that has the most: its table is told in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Integrity, Settings, milliseconds
from sessionlake.errors import LakeError
from sessionlake.integrity.rules import Decision, DecisionKey, RuleBook
from sessionlake.integrity.stream_times import StreamTimes
from sessionlake.lake.commit import append
from sessionlake.lake.ledger import OffsetRange, config_hash
from sessionlake.lake.names import (
    CHANGES,
    CUTS,
    DECISIONS,
    EVENTS,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSIONS,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.lake.offset_log import OffsetLog
from sessionlake.lake.offset_ranges import OffsetRanges, slices, within
from sessionlake.lake.reading import TableReader
from sessionlake.lake.retained import beginnings, begins
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.protocol.types import TopicPartition
from sessionlake.runtime.frames import as_frame
from sessionlake.silver.decisions import decisions
from sessionlake.silver.fold.pack import Packer
from sessionlake.silver.fold.schemas import PartitionCounts, ShardReport, SilverOutput, read_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import (
    APPENDED,
    ranges_of,
    row_ddl,
    rows_of,
    total,
    violation_of,
    with_messages,
)
from sessionlake.silver.merge.batch_range import SESSION, BatchRange
from sessionlake.silver.merge.sessions import newest_progress
from sessionlake.silver.merge.snapshot_cluster import ClusterSnapshots
from sessionlake.silver.stream_times import ends_of, require_continued
from sessionlake.silver.tables.net_changes import NetChanges, Refolded, net_ddl
from sessionlake.streaming.folded import Folded, collect
from sessionlake.streaming.payloads import rules_of
from sessionlake.streaming.sharded import PACKED_SCHEMA, fold_slice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAYED = (CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, ROWS, SESSIONS, SNAPSHOTS, SNAPSHOT_INDEX)
SLICE_MESSAGES = 1_000_000
SLICE_BYTES = 1 << 30
# What one Python worker reduces at a time.
_TASK_CHANGES = 500_000
_LAST_SLICE = 2**31
_LAYER = "a rebuild of silver"


@dataclass(frozen=True)
class Selection:
    """Sessions: all, those of a topic, or those with one of some ids."""

    topic: str | None = None
    sessions: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether no session is left out."""
        return self.topic is None and not self.sessions

    def __str__(self) -> str:
        who = f"the sessions {', '.join(map(repr, self.sessions))}" if self.sessions else "all sessions"
        return who if self.topic is None else f"{who} of topic {self.topic}"

    def __call__(self, topic: str, session: str) -> bool:
        """Whether it has this session."""
        return self.topic in (None, topic) and (not self.sessions or session in self.sessions)

    def rows(self) -> Column:
        """Its rows in a table; a message without a session is in no selection but everything, or its whole topic."""
        from pyspark.sql import functions as F

        of_topic = F.lit(col=True) if self.topic is None else F.col("topic") == self.topic
        named = F.coalesce(F.col("session_id").isin(*self.sessions), F.lit(col=False))
        return of_topic & (named if self.sessions else F.lit(col=True))


@dataclass(frozen=True)
class Replayed:
    """What a replay took in.

    Attributes:
        version: of bronze.
        partitions: the counts of every topic-partition.
        states: the shards' final states: `shard int, chunk binary`.
    """

    version: int
    partitions: tuple[PartitionCounts, ...]
    states: DataFrame | None

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """What it took in, as the ledger tells it."""
        return ranges_of(self.partitions)


def require_silver(spark: SparkSession, settings: Settings) -> Lake:
    """The lake, with all tables that a replay has to do with.

    Raises:
        LakeError: there is no silver in it.
    """
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES) or not lake.exists(spark, LEDGER):
        raise LakeError(f"there is no silver in {settings.place} yet: run `sessionlake run all`")
    lake.ensure(spark, [*REPLAYED, DECISIONS, LEDGER])
    return lake


def require_whole_bronze(reader: TableReader) -> None:
    """A session of which messages are gone would be built as if they had never come, and time would begin later.

    Raises:
        LakeError: retention has removed messages.
    """
    gone = sorted(beginnings(reader).items())
    if gone:
        more = f", and {len(gone) - 1} more begin later" if len(gone) > 1 else ""
        raise LakeError(f"{begins(*gone[0])}{more}: silver cannot be built from what is left. Nothing was changed")


def is_small(spark: SparkSession, lake: Lake) -> bool:
    """Whether all of bronze is replayed, compared and published before code for it would be written."""
    few = lake.limits.few_messages
    return few > 0 and lake.read(spark, MESSAGES).limit(few + 1).count() <= few


def replay(
    spark: SparkSession,
    settings: Settings,
    *,
    version: int,
    ends: Mapping[TopicPartition, int] | None = None,
    slice_messages: int | None = None,
) -> Replayed:
    """Fills the staging tables from bronze.

    Args:
        version: of bronze to read.
        ends: last offset to take in of each topic-partition; all others are left out. By default everything.
        slice_messages: about how many messages to take in at a time, `SLICE_MESSAGES` by default.

    Raises:
        LakeError: retention has removed messages; or, under `fail`, at a place that nobody has decided about.
        OffsetHoleError: bronze lacks messages, or has some more than once.
    """
    lake = Lake(settings)
    require_whole_bronze(lake.reader(spark))
    decided = decisions(lake.reader(spark))
    _empty(spark, lake.staging())
    source = lake.read(spark, MESSAGES, version)
    states: DataFrame | None = None
    partitions: list[PartitionCounts] = []
    log, times = OffsetLog.empty(spark, lake), StreamTimes()
    for number, part in enumerate(_slices(source, ends, slice_messages or SLICE_MESSAGES)):
        shards = _fold(spark, settings, source.where(within(part)), states, times, decided).localCheckpoint()
        emitted = shards.where("kind <> 'state'").select("kind", "payload")
        folded, written = collect(emitted, SilverOutput.REPORT, lake.limits.inline_bytes)
        reports = [read_report(report) for report in written]
        _refuse_violations(settings, reports)
        whole = total(reports)
        _take_note(log, whole, allow_gaps=settings.kafka.allow_offset_gaps)
        times = times.noted(ends_of(whole))
        _append(spark, settings, source, folded, reports, number)
        partitions += whole
        states = shards.where("kind = 'state'").selectExpr("shard", "payload AS chunk")
    _fill_rows(spark, settings)
    _fill_sessions(spark, settings)
    _fill_snapshots(spark, settings)
    return Replayed(version, tuple(total([ShardReport(partitions, {})])), states)


def _refuse_violations(settings: Settings, reports: list[ShardReport]) -> None:
    violation = violation_of(reports)
    if violation is not None:
        raise LakeError(
            f"made anew under this configuration, silver would stop at {violation.place}. Nothing was changed. "
            "Use the configuration that it was made by (its batches' config_hash is in ops.ledger, this one is "
            f"{config_hash(settings)}), or set capture.on_violation to isolate or record"
        )


def clear(spark: SparkSession, settings: Settings) -> None:
    """Removes the staging tables."""
    beside = Lake(settings).staging()
    for table in REPLAYED:
        beside.drop(spark, table)


def _empty(spark: SparkSession, beside: Lake) -> None:
    """Fresh staging tables."""
    for table in REPLAYED:
        beside.drop(spark, table)
    beside.ensure(spark, REPLAYED)


def _slices(source: DataFrame, ends: Mapping[TopicPartition, int] | None, size: int) -> Iterator[OffsetRanges]:
    """Cuts every topic-partition's offsets into the same number of ranges."""
    from pyspark.sql import functions as F

    # Counted, and weighed, are messages behind `ends`, too: there are few.
    columns = F.min("offset"), F.max("offset"), F.count("*"), F.sum(F.length("value"))
    held: dict[TopicPartition, tuple[int, int]] = {}
    messages = weight = 0
    for topic, partition, first, last, count, length in source.groupBy("topic", "partition").agg(*columns).collect():
        if ends is not None and ends.get((topic, partition), first - 1) < first:
            continue
        held[topic, partition] = first, last if ends is None else min(last, ends[topic, partition])
        messages += count
        weight += length or 0
    number = max(1, -(-messages // size), -(-weight // SLICE_BYTES))
    yield from slices(held, number)


def _fold(
    spark: SparkSession,
    settings: Settings,
    messages: DataFrame,
    states: DataFrame | None,
    times: StreamTimes,
    decided: Mapping[DecisionKey, Decision],
) -> DataFrame:
    from pyspark.sql import functions as F

    capture, shards = settings.capture, settings.silver.shards
    interval = milliseconds(settings.silver.snapshot_interval)
    shard = F.pmod(F.xxhash64("topic", "key"), F.lit(shards)).cast("int").alias("shard")
    raw = messages.select(shard, "topic", "partition", "offset", "timestamp", "key", "value")
    packed = raw.mapInArrow(Packer(rules_of(capture), shards, times=times), PACKED_SCHEMA)
    before = states if states is not None else spark.createDataFrame([], PACKED_SCHEMA)
    return fold_slice(packed, before, SilverFold(capture.declared, capture, dict(decided), interval))


def _take_note(log: OffsetLog, whole: list[PartitionCounts], *, allow_gaps: bool) -> None:
    """Notes a slice, which must go on where the one before it ended."""
    ranges = ranges_of(whole)
    log.check(ranges, allow_gaps=allow_gaps, layer=_LAYER)
    require_continued(_LAYER, whole, log.ends)
    log.advance(ranges)


def _append(
    spark: SparkSession,
    settings: Settings,
    source: DataFrame,
    folded: Folded,
    reports: list[ShardReport],
    number: int,
) -> None:
    beside, txn = Lake(settings).staging(), Txn("rebuild", number)
    for kind, table in (*APPENDED, (SilverOutput.QUARANTINE, QUARANTINE)):
        count = sum(report.rows.get(kind, 0) for report in reports)
        if not count:
            continue
        rows = rows_of(folded, kind, txn, row_ddl(settings, table))
        if kind is SilverOutput.QUARANTINE:
            rows = with_messages(source, as_frame(spark, rows), reports)
        append(spark, beside, table, rows, txn)
        found = beside.last_commit(spark, table).rows
        if found != count:
            raise LakeError(f"{table}: a rebuilt slice of {count} rows left {found}; report a fault of sessionlake")


def _fill_rows(spark: SparkSession, settings: Settings) -> None:
    """The tables of all sessions out of all their changes."""
    from pyspark.sql import functions as F

    beside, columns = Lake(settings).staging(), settings.capture.declared
    changes = beside.read(spark, CHANGES).drop("_batch", "partition", "kafka_timestamp")
    tasks = max(spark.sparkContext.defaultParallelism, -(-changes.count() // _TASK_CHANGES))
    by_session = changes.repartition(tasks, *(F.col(name) for name in SESSION))
    rules = RuleBook(settings.capture)
    topics = [row["topic"] for row in changes.select("topic").distinct().collect()]
    by_seq = [topic for topic in topics if rules.of(topic).integrity is Integrity.ONCE]
    usual = by_session.where(~F.col("topic").isin(by_seq)).mapInArrow(NetChanges(columns), net_ddl(columns))
    in_seq = by_session.where(F.col("topic").isin(by_seq)).mapInArrow(Refolded(columns), net_ddl(columns))
    net = usual.unionByName(in_seq) if by_seq else usual
    rows = net.where(F.col("row_id").isNotNull() & ~F.col("_delete")).drop("_delete", "_written")
    append(spark, beside, ROWS, rows, Txn("rebuild", 0))


def _fill_sessions(spark: SparkSession, settings: Settings) -> None:
    beside = Lake(settings).staging()
    append(spark, beside, SESSIONS, newest_progress(beside.read(spark, PROGRESS)), Txn("rebuild", 0))


def _fill_snapshots(spark: SparkSession, settings: Settings) -> None:
    """The tables at all cuts out of all changes."""
    beside = Lake(settings).staging()
    cuts, changes = (beside.read(spark, table).count() for table in (CUTS, CHANGES))
    if cuts:
        whole, tasks = BatchRange(0, _LAST_SLICE), -(-changes // _TASK_CHANGES)
        made = ClusterSnapshots(spark, beside, settings).of(whole, cuts, tasks)
        append(spark, beside, SNAPSHOTS, made.rows, Txn("rebuild", 0))
        append(spark, beside, SNAPSHOT_INDEX, made.index, Txn("rebuild", 0))
