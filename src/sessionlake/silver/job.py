"""`bronze.messages` to silver's append-only tables: judged in a stateful stream, committed exactly once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import append
from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    DECISIONS,
    EVENTS,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    SILVER,
)
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import IntegrityViolationError, LakeError
from sessionlake.integrity.rules import Decision, DecisionKey
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput, config_hash
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings, milliseconds
from sessionlake.silver.decisions import binding_decisions, taken
from sessionlake.silver.fold.pack import BRONZE_COLUMNS, Packer
from sessionlake.silver.fold.schemas import PartitionCounts, ShardReport, SilverOutput, Violation, read_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.fold.unpack import Unpack, unpacked
from sessionlake.silver.quarantine import whole
from sessionlake.silver.stream_times import StreamTimesLog, require_continued, stored_times
from sessionlake.spark.frames import Mapped, Rows
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import last_committed, last_planned, starting_options
from sessionlake.streaming.folded import Folded, collect
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.guards import refuse_fresh_checkpoint, refuse_removed_history
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import discard_building, require_uninterrupted
from sessionlake.streaming.manifest import committing, note_shards, note_stop
from sessionlake.streaming.operation import REBUILD_SILVER
from sessionlake.streaming.payloads import rules_of
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import PACKED_SCHEMA, ShardFold, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYER = SILVER
APPENDED = (
    (SilverOutput.CHANGES, CHANGES),
    (SilverOutput.PROGRESS, PROGRESS),
    (SilverOutput.EVENTS, EVENTS),
    (SilverOutput.CUTS, CUTS),
)

OnBatch = Callable[[LedgerEntry, Mapping[str, pa.Table]], None]


def start(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: OnBatch | None = None,
) -> LayerQuery:
    """Starts the silver stream.

    Args:
        once: fold what bronze holds now, then end.
        on_batch: told of every batch that is committed, with those of its appended rows that are at hand, by table.

    Raises:
        LakeError: the checkpoint is new and the tables are not, declared columns do not fit the tables, or a topic of
            which changes are gone is of class `once` now.
    """
    lake = Lake(settings)
    _prepare(spark, lake)
    begin = handover.read_active(settings)
    decided = binding_decisions(lake.reader(spark))
    first_batch = begin.first_batch if begin else 0
    log = offset_log(spark, lake, settings, LAYER, first_batch)
    times = StreamTimesLog.begin(spark, settings, LAYER, log.last_offsets)
    job = _SilverBatch(lake, settings, decided, first_batch, log, times, on_batch)
    frame = folded(spark, lake, settings, decided, begin)
    query = LayerQuery(LAYER, settings.checkpoint(LAYER))
    return query.start(frame, job, trigger=settings.silver.trigger, once=once)


def _prepare(spark: SparkSession, lake: Lake) -> None:
    """Creates silver's tables, if it may go on in the lake; see `start`."""
    settings = lake.settings
    require_uninterrupted(settings, LAYER)
    discard_building(settings, REBUILD_SILVER)
    lake.ensure(spark, [MESSAGES, CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, DECISIONS, LEDGER])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    refuse_removed_history(lake.reader(spark), settings)
    handover.refuse_changed_shards(settings)
    note_shards(settings)


def folded(
    spark: SparkSession, lake: Lake, settings: Settings, decided: dict[DecisionKey, Decision], begin: Handover | None
) -> DataFrame:
    """The stateful stream: bronze packed, folded by shard; `kind string, payload binary`."""
    capture = settings.capture
    interval = milliseconds(settings.silver.snapshot_interval)
    fold: ShardFold = SilverFold(capture.declared, capture, decided, interval)
    if begin is not None:
        fold = handover.ResumedFold(fold, str(handover.active_folder(settings)))
    return fold_shards(packed(spark, lake, settings, LAYER, begin=begin), fold)


def offset_log(spark: SparkSession, lake: Lake, settings: Settings, layer: str, first_batch: int = 0) -> OffsetLog:
    """Where the batches end that come before the one that a layer's query makes next, though the ledger has it."""
    checkpoint = Generations(settings.checkpoint(layer), layer).current
    done = last_committed(checkpoint.folder)
    following = first_batch + (0 if done is None else done + 1)
    before = None if checkpoint.app_id is None else Txn(checkpoint.app_id, following)
    return OffsetLog.load(spark, lake, layer, before)


def packed(
    spark: SparkSession, lake: Lake, settings: Settings, layer: str, topics: str = ".*", begin: Handover | None = None
) -> DataFrame:
    """The stream of bronze's messages, packed by shard; `shard int, chunk binary`.

    Args:
        layer: by whose notes of stream time.
        topics: pattern of whole names of those that are wanted.
        begin: what was rebuilt already, and is not read again.
    """
    from pyspark.sql import functions as F

    options = {"maxFilesPerTrigger": settings.silver.max_files_per_trigger, **SKIP_REMOVALS}
    if begin is not None:
        options["startingVersion"] = begin.bronze_version + 1
    elif last_planned(settings.checkpoint(layer)) is None:
        options |= _first_read(spark, lake, layer)
    else:
        options |= starting_options(settings.checkpoint(layer))
    raw = lake.stream(spark, MESSAGES, settings.silver.max_bytes_per_trigger, options)
    shard = F.pmod(F.xxhash64("topic", "key"), F.lit(settings.silver.shards)).cast("int").alias("shard")
    packer = Packer(rules_of(settings.capture), settings.silver.shards, topics, stored_times(settings, layer))
    return raw.select(shard, *BRONZE_COLUMNS).mapInArrow(packer, PACKED_SCHEMA)


def _first_read(spark: SparkSession, lake: Lake, layer: str) -> dict[str, int]:
    """See `Storage.first_read`."""
    try:
        return lake.storage.first_read_options(spark, MESSAGES)
    except LakeError as error:
        name = SILVER if layer == SILVER else f"processor:{layer.removeprefix('processor-')}"
        raise LakeError(f"{layer}: {error}. `sessionlake rebuild {name}` begins it with all that bronze has") from error


class _SilverBatch:
    """Commits one micro-batch: checks first, then the appended tables, then the ledger row."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        decided: dict[DecisionKey, Decision],
        first_batch: int,
        log: OffsetLog,
        times: StreamTimesLog,
        on_batch: OnBatch | None,
    ) -> None:
        self._lake = lake
        self._ledger = Ledger(lake)
        self._settings = settings
        self._decided = decided
        self._first_batch = first_batch
        self._on_batch = on_batch
        self._log = log
        self._times = times
        self._few = False  # whether the batch before was small, which is the best guess for the next

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        started, spark = datetime.now(UTC), frame.sparkSession
        txn = Txn(txn.app_id, self._first_batch + txn.version)
        frame.persist()
        try:
            with interpreted(spark, when=self._few):
                folded, written = collect(frame, SilverOutput.REPORT, self._lake.limits.inline_bytes)
            reports = [read_report(report) for report in written]
            partitions = total(reports)
            self._refuse_violations(reports)
            ranges = ranges_of(partitions)
            self._log.check(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            require_continued(LAYER, partitions, self._log.last_offsets)
            with committing(self._settings, LAYER, txn.version, config_hash(self._settings, SILVER), ranges):
                outputs, rows = self._append(folded, reports, txn)
                entry = LedgerEntry(
                    layer=LAYER,
                    txn=txn,
                    source=MESSAGES,
                    started_at=started,
                    offsets=ranges,
                    outputs=outputs,
                    **counts_of(partitions),
                    config_hash=config_hash(self._settings),
                    decisions=taken((place for report in reports for place in report.decided), self._decided),
                )
                self._lake.storage.require_claims()  # the notes may be of whoever has taken the layer over
                self._times.advance(partitions, reports)
                self._ledger.write(spark, entry)
        finally:
            frame.unpersist()
        self._log.advance(ranges)
        self._few = entry.messages <= self._lake.limits.few_messages
        if self._on_batch:
            self._on_batch(entry, rows)

    def _refuse_violations(self, reports: list[ShardReport]) -> None:
        """Stops the batch, before any commit, at its first violation under `on_violation: fail`.

        Raises:
            SilverStoppedError: naming the place, and the commands that decide the matter.
        """
        error = violation_of(reports)
        if error is not None:
            note_stop(self._settings, error.violation)
            raise error

    def _append(
        self, folded: Folded, reports: list[ShardReport], txn: Txn
    ) -> tuple[tuple[TableOutput, ...], dict[str, pa.Table]]:
        """Appends what there is; a table that gets nothing gets no commit."""
        spark, outputs, at_hand = folded.frame.sparkSession, [], {}
        for kind, table in (*APPENDED, (SilverOutput.QUARANTINE, QUARANTINE)):
            count = sum(report.rows.get(kind, 0) for report in reports)
            if not count:
                continue
            rows = rows_of(folded, kind, txn, row_ddl(self._settings, table))
            if kind is SilverOutput.QUARANTINE:
                rows = whole(spark, self._lake, rows, reports)
            if isinstance(rows, pa.Table):
                at_hand[table] = rows
            append(spark, self._lake, table, rows, txn)
            outputs.append(TableOutput(table, self._committed(spark, table, count), count))
        return tuple(outputs), at_hand

    def _committed(self, spark: SparkSession, table: str, count: int) -> int:
        """Version of the batch's commit, which must hold what was judged: 0 rows are a compaction's, come since.

        The merges beside the stream append to `integrity_events`, too, so its last commit may be theirs.
        """
        commit = self._lake.last_commit(spark, table)
        if table != EVENTS and commit.rows not in (0, count):
            raise LakeError(
                f"{table}: version {commit.version} holds {commit.rows} rows of a batch of {count}; if rows "
                f"were removed from {MESSAGES} by hand, restore it (RESTORE TABLE), else report a fault of sessionlake"
            )
        return commit.version


def rows_of(folded: Folded, kind: str, txn: Txn, ddl: str) -> Rows:
    """Rows for a table: at hand if their payloads are, else unpacked, as `ddl`, where they are."""
    from pyspark.sql import functions as F

    payloads = folded.inline_payloads([kind])
    if payloads is not None:
        return unpacked(payloads, txn.version)
    frame = folded.frame.where(F.col("kind") == str(kind)).select("payload")
    return Mapped(frame, Unpack(txn.version), ddl)


def row_ddl(settings: Settings, table: str) -> str:
    """DDL of what a fold's payloads for the table hold: its columns less the raw message."""
    from sessionlake.delta.schemas.tables import TABLES

    added = {"key", "value"}
    return ", ".join(f"{quote(name)} {sql}" for name, sql in TABLES[table].columns_for(settings) if name not in added)


def total(reports: list[ShardReport]) -> list[PartitionCounts]:
    """The shards' reports, added up by topic-partition."""
    whole: dict[tuple[str, int], PartitionCounts] = {}
    for part in (p for report in reports for p in report.partitions):
        known = whole.setdefault((part.topic, part.partition), PartitionCounts(part.topic, part.partition, -1, -1, 0))
        if part.messages:
            known.first = min(known.first, part.first) if known.messages else part.first
            # All should know the same; if one does not, its messages were judged by a wrong time.
            known.since = min(known.since, part.since) if known.messages else part.since
            known.stream_time = max(known.stream_time, part.stream_time)
            known.last = max(known.last, part.last)
        for name in (*COUNTS, "erased"):
            setattr(known, name, getattr(known, name) + getattr(part, name))
    return [whole[place] for place in sorted(whole)]


def ranges_of(partitions: Sequence[PartitionCounts]) -> tuple[OffsetRange, ...]:
    """What came of each topic-partition; one that only released what it held back had nothing come."""
    return tuple(OffsetRange(p.topic, p.partition, p.first, p.last, p.messages) for p in partitions if p.messages)


def counts_of(partitions: Sequence[PartitionCounts]) -> dict[str, Any]:
    """What became of the messages, over all topic-partitions, as the ledger names it.

    Those that are erased are among the messages of the offsets alone, where nothing can become of them.
    """
    counts = {name: sum(getattr(part, name) for part in partitions) for name in COUNTS}
    return counts | {"messages": counts["messages"] - sum(part.erased for part in partitions)}


class SilverStoppedError(IntegrityViolationError):
    """Silver stops before the batch is committed: names the message that breaks its class, and the ways to go on."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(_told(violation))
        self.violation = violation

    @property
    def place(self) -> str:
        """The message and what is wrong with it, without the ways to go on."""
        return _place(self.violation)


def violation_of(reports: list[ShardReport]) -> SilverStoppedError | None:
    """The first violation under `on_violation: fail`, by topic, partition and offset."""
    found = [violation for report in reports for violation in report.violations]
    return SilverStoppedError(min(found, key=lambda v: (v.topic, v.partition, v.offset))) if found else None


def _place(first: Violation) -> str:
    """Names class, session, place, and expected and actual seq."""
    due = {"orphan": "a snapshot", "after_end": "nothing"}.get(first.event, f"seq {first.expected_seq}")
    found = "no seq" if first.actual_seq is None else f"seq {first.actual_seq}"
    return (
        f"{first.event}: session {first.session_id!r} ({first.integrity}), topic {first.topic}, "
        f"partition {first.partition}, offset {first.offset}: expected {due}, found {found}"
    )


def _told(first: Violation) -> str:
    """The place, and the commands that decide the matter."""
    session = f"sessionlake resolve --topic {shlex.quote(first.topic)} --session {shlex.quote(first.session_id)}"
    return (
        f"{_place(first)}. Nothing of the batch was committed. Decide, and run silver again:\n"
        f"  {session} --offset {first.offset} --accept-gap  # apply the message all the same\n"
        f"  {session} --offset {first.offset} --isolate  # break the session until its next snapshot\n"
        f"  {session} --skip-message {first.offset}  # as if the message had not arrived\n"
        "or set capture.on_violation to isolate or record "
        f"(for this topic alone: under capture.by_topic, pattern {first.topic!r})"
    )
