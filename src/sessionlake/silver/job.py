"""The stream of silver: judges the messages in `bronze.messages` and appends the results to silver's tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
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
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import IntegrityViolationError, LakeError
from sessionlake.integrity.rules import DecisionKey, OperatorDecision
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput, hash_settings_of_layers
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.protocol.names import quote
from sessionlake.settings.feed_history import list_feed_mappings
from sessionlake.settings.model import Settings
from sessionlake.settings.section import convert_duration_to_ms
from sessionlake.silver.decisions import list_ledger_decisions, read_operator_decisions_in_force
from sessionlake.silver.fold.schemas import (
    PartitionMessageCounts,
    ShardReport,
    SilverPayloadKind,
    StoppingViolation,
    decode_report,
)
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.fold.unpack import PayloadUnpacker, unpack_rows
from sessionlake.silver.mappings import refuse_changed_feeds
from sessionlake.silver.packing import build_packed_stream
from sessionlake.silver.quarantine import add_raw_messages
from sessionlake.silver.stream_times import StreamTimesLog, require_continued_stream_times
from sessionlake.spark.frames import DeferredArrowMap, Rows
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_last_committed_batch
from sessionlake.streaming.folded import FoldedBatch, collect_fold_reports
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.guards import refuse_class_once_with_removed_changes, refuse_new_checkpoint_over_data
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import discard_building_record, refuse_interrupted_operations
from sessionlake.streaming.manifest import record_batch_commit, record_message_that_stopped_layer, record_shard_count
from sessionlake.streaming.operation import REBUILD_SILVER
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import ShardFold, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYER = SILVER
APPENDED_TABLES = (
    (SilverPayloadKind.CHANGES, CHANGES),
    (SilverPayloadKind.PROGRESS, PROGRESS),
    (SilverPayloadKind.EVENTS, EVENTS),
    (SilverPayloadKind.CUTS, CUTS),
)

BatchCallback = Callable[[LedgerEntry, Mapping[str, pa.Table]], None]


def start(
    spark: SparkSession, settings: Settings, *, once: bool = False, on_batch: BatchCallback | None = None
) -> LayerQuery:
    """Starts silver's stream, which judges the messages of bronze and fills silver's append-only tables.

    Args:
        spark: The Spark session.
        settings: The settings of the lake.
        once: True to process the messages that bronze has now, and then end. False to run until the query is stopped.
        on_batch: Called after every committed batch with its ledger entry and its appended rows by table. Tables whose
            rows are no longer in memory are missing.

    Returns:
        The running query.

    Raises:
        LakeError: The checkpoint is new although the tables have rows. Or the declared columns do not fit the tables.
            Or a topic now has class `once` although some of its changes were removed. Or the mapping of a feed has
            changed.
    """
    lake = Lake(settings)
    _create_silver_tables(spark, lake)
    resume_from = handover.read_active_handover(settings)
    decided = read_operator_decisions_in_force(lake.reader(spark))
    first_batch = resume_from.first_batch if resume_from else 0
    log = load_offset_log(spark, lake, settings, LAYER, first_batch)
    last_batch = handover.read_next_batch_number(settings, LAYER) - 1
    refuse_changed_feeds(lake.reader(spark), settings, last_batch, {topic for topic, _ in log.last_offsets})
    times = StreamTimesLog.open_log(spark, settings, LAYER, log.last_offsets)
    job = _SilverBatchWriter(lake, settings, decided, first_batch, log, times, on_batch)
    frame = build_folded_stream(spark, lake, settings, decided, resume_from)
    query = LayerQuery(LAYER, settings.checkpoint_path(LAYER))
    return query.start(frame, job, trigger=settings.silver.trigger, once=once)


def _create_silver_tables(spark: SparkSession, lake: Lake) -> None:
    """Checks that silver's stream may start in this lake, and creates those of its tables that do not exist yet."""
    settings = lake.settings
    refuse_interrupted_operations(settings, LAYER)
    discard_building_record(settings, REBUILD_SILVER)
    lake.create_or_update_tables(spark, [MESSAGES, CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, DECISIONS, LEDGER])
    refuse_new_checkpoint_over_data(spark, lake, settings, LAYER)
    refuse_class_once_with_removed_changes(lake.reader(spark), settings)
    handover.refuse_changed_shard_count(settings)
    record_shard_count(settings)


def build_folded_stream(
    spark: SparkSession,
    lake: Lake,
    settings: Settings,
    decisions: dict[DecisionKey, OperatorDecision],
    resume_from: Handover | None,
) -> DataFrame:
    """Returns the stream of what silver's shards emit for bronze's messages: rows `kind string, payload binary`.

    Args:
        decisions: Operators' decisions by message.
        resume_from: The handover whose states the stream starts with; None for empty states.
    """
    capture = settings.capture
    interval = convert_duration_to_ms(settings.silver.snapshot_interval)
    fold: ShardFold = SilverFold(capture.declared_columns, capture, decisions, interval)
    if resume_from is not None:
        fold = handover.FoldResumedFromHandover(fold, str(handover.find_active_handover_folder(settings)))
    return fold_shards(build_packed_stream(spark, lake, settings, LAYER, resume_from=resume_from), fold)


def load_offset_log(spark: SparkSession, lake: Lake, settings: Settings, layer: str, first_batch: int = 0) -> OffsetLog:
    """Returns the log of offsets that a layer has committed, up to its last batch that Spark counts as committed.

    The ledger may already have the next batch, which Spark will run again. Its offsets are left out.
    """
    checkpoint = CheckpointGenerations(settings.checkpoint_path(layer), layer).current_generation
    done = read_last_committed_batch(checkpoint.folder)
    following = first_batch + (0 if done is None else done + 1)
    before = None if checkpoint.app_id is None else Txn(checkpoint.app_id, following)
    return OffsetLog.load_from_ledger(spark, lake, layer, before)


class _SilverBatchWriter:
    """Commits one micro-batch: checks it, appends rows to silver's tables, and then writes the ledger entry."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        decided: dict[DecisionKey, OperatorDecision],
        first_batch: int,
        log: OffsetLog,
        times: StreamTimesLog,
        on_batch: BatchCallback | None,
    ) -> None:
        self._lake = lake
        self._ledger = Ledger(lake)
        self._settings = settings
        self._decided = decided
        self._first_batch = first_batch
        self._on_batch = on_batch
        self._log = log
        self._times = times
        self._was_small = False  # True if the last batch was small: the best guess for the next one

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        started, spark = datetime.now(UTC), frame.sparkSession
        txn = Txn(txn.app_id, self._first_batch + txn.version)
        frame.persist()
        try:
            with disable_code_generation(spark, enabled=self._was_small):
                folded, written = collect_fold_reports(
                    frame, SilverPayloadKind.REPORT, self._lake.driver_limits.inline_bytes
                )
            reports = [decode_report(report) for report in written]
            partitions = sum_partition_counts(reports)
            self._refuse_violations(reports)
            ranges = list_offset_ranges(partitions)
            followed_keys = [key for report in reports for key in report.decided]
            self._log.require_consecutive_ranges(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            require_continued_stream_times(LAYER, partitions, self._log.last_offsets)
            with record_batch_commit(
                self._settings, LAYER, txn.version, hash_settings_of_layers(self._settings, SILVER), ranges
            ):
                outputs, rows = self._append_rows(folded, reports, txn)
                entry = LedgerEntry(
                    layer=LAYER,
                    txn=txn,
                    source=MESSAGES,
                    started_at=started,
                    offsets=ranges,
                    outputs=outputs,
                    **sum_ledger_counts(partitions),
                    config_hash=hash_settings_of_layers(self._settings),
                    decisions=list_ledger_decisions(followed_keys, self._decided),
                    feeds=list_feed_mappings(self._settings.capture),
                )
                self._lake.storage.require_claims_still_held()  # else the notes could already be another process's
                self._times.add_batch_notes(partitions, reports)
                self._ledger.write_entry(spark, entry)
        finally:
            frame.unpersist()
        self._log.record_committed_ranges(ranges)
        self._was_small = entry.messages <= self._lake.driver_limits.few_messages
        if self._on_batch:
            self._on_batch(entry, rows)

    def _refuse_violations(self, reports: list[ShardReport]) -> None:
        """Raises an error, before anything is committed, if the batch has a violation under `on_violation: fail`.

        Raises:
            SilverStoppedError: There is a violation. The error names the message and the commands to decide about it.
        """
        error = build_stop_error(reports)
        if error is not None:
            record_message_that_stopped_layer(self._settings, error.violation)
            raise error

    def _append_rows(
        self, folded: FoldedBatch, reports: list[ShardReport], txn: Txn
    ) -> tuple[tuple[TableOutput, ...], dict[str, pa.Table]]:
        """Appends the batch's rows to silver's tables. A table without rows gets no commit.

        Args:
            folded: The output of the batch's fold.
            reports: The reports of its shards, which have the numbers of rows.
            txn: The transaction of the batch.

        Returns:
            For the ledger, the version and number of rows of each table; and, by table, the rows that are in memory.
        """
        spark, outputs, rows_by_table = folded.frame.sparkSession, [], {}
        for kind, table in (*APPENDED_TABLES, (SilverPayloadKind.QUARANTINE, QUARANTINE)):
            count = sum(report.rows.get(kind, 0) for report in reports)
            if not count:
                continue
            rows = select_table_rows(folded, kind, txn, build_payload_ddl(self._settings, table))
            if kind is SilverPayloadKind.QUARANTINE:
                rows = add_raw_messages(spark, self._lake, rows, reports)
            if isinstance(rows, pa.Table):
                rows_by_table[table] = rows
            commit = append_rows(spark, self._lake, table, rows, txn)
            _require_row_count(table, commit, count)
            outputs.append(TableOutput(table, commit.version, count))
        return tuple(outputs), rows_by_table


def _require_row_count(table: str, commit: TableCommit, row_count: int) -> None:
    """Checks that a batch's commit has the expected number of rows.

    A commit with 0 rows is a compaction that came after it. The last commit of `integrity_events` is not checked: it
    may come from a merge.

    Raises:
        LakeError: The commit has another number of rows.
    """
    if table != EVENTS and commit.rows not in (0, row_count):
        raise LakeError(
            f"{table}: version {commit.version} has {commit.rows} rows of a batch, but the repeated "
            f"batch gives {row_count}",
            why="A repeated batch must give the same rows",
            fix=f"If rows were removed from {MESSAGES} by hand, restore that table (RESTORE TABLE); otherwise "
            "report this as a bug of sessionlake",
        )


def select_table_rows(folded: FoldedBatch, kind: str, txn: Txn, columns_ddl: str) -> Rows:
    """Selects the rows that a batch has for one table.

    Args:
        folded: The payloads of the batch.
        kind: The kind of the table's payloads.
        txn: The transaction, whose number becomes the column `_batch`.
        columns_ddl: The columns of the rows, as Spark DDL.

    Returns:
        An Arrow table if all payloads of this kind are in memory; else a Spark frame with a function that unpacks them.
    """
    from pyspark.sql import functions as F

    payloads = folded.get_payloads_if_all_collected([kind])
    if payloads is not None:
        return unpack_rows(payloads, txn.version)
    frame = folded.frame.where(F.col("kind") == str(kind)).select("payload")
    return DeferredArrowMap(frame, PayloadUnpacker(txn.version), columns_ddl)


def build_payload_ddl(settings: Settings, table: str) -> str:
    """Returns, as Spark DDL, the columns of the rows that a fold emits for a table: all except `key` and `value`."""
    from sessionlake.delta.schemas.tables import TABLES

    added = {"key", "value"}
    return ", ".join(
        f"{quote(name)} {sql}" for name, sql in TABLES[table].list_column_types(settings) if name not in added
    )


def sum_partition_counts(reports: list[ShardReport]) -> list[PartitionMessageCounts]:
    """Adds up the counts of all shards by topic-partition. Returns the sums, sorted by topic-partition."""
    sums: dict[tuple[str, int], PartitionMessageCounts] = {}
    for part in (p for report in reports for p in report.partitions):
        known = sums.setdefault(
            (part.topic, part.partition), PartitionMessageCounts(part.topic, part.partition, -1, -1, 0)
        )
        if part.parts:
            known.first_offset = min(known.first_offset, part.first_offset) if known.parts else part.first_offset
            # Every shard should report the same offset. If one reports a lower one, it judged with a wrong stream time.
            before = part.previous_offset
            known.previous_offset = min(known.previous_offset, before) if known.parts else before
            known.stream_time = max(known.stream_time, part.stream_time)
            known.last_offset = max(known.last_offset, part.last_offset)
        for name in ("messages", *COUNTS, "erased"):
            setattr(known, name, getattr(known, name) + getattr(part, name))
    return [sums[place] for place in sorted(sums)]


def list_offset_ranges(partitions: Sequence[PartitionMessageCounts]) -> tuple[OffsetRange, ...]:
    """Returns the offset range of each topic-partition that has new messages in the batch.

    A topic-partition of which only held messages were released has none.
    """
    parts = (part for part in partitions if part.messages)
    return tuple(OffsetRange(p.topic, p.partition, p.first_offset, p.last_offset, p.messages) for p in parts)


def sum_ledger_counts(partitions: Sequence[PartitionMessageCounts]) -> dict[str, Any]:
    """Returns the numbers of messages, of their parts and of each verdict, by the ledger's column names.

    Erased messages count only in the offset ranges, because they are not judged.
    """
    counts = {name: sum(getattr(part, name) for part in partitions) for name in ("messages", *COUNTS)}
    erased = sum(part.erased for part in partitions)
    return counts | {name: counts[name] - erased for name in ("messages", "parts")}


class SilverStoppedError(IntegrityViolationError):
    """A batch has a message that violates its class, so nothing of it is committed.

    The error names the commands to decide.
    """

    def __init__(self, violation: StoppingViolation) -> None:
        what, commands = _describe_violation(violation), _list_decision_commands(violation)
        super().__init__(what, why="Nothing of the batch was committed", fix=commands)
        self.violation = violation

    @property
    def violation_text(self) -> str:
        """The message and the violation, as text, without the commands to decide."""
        return _describe_violation(self.violation)


def build_stop_error(reports: list[ShardReport]) -> SilverStoppedError | None:
    """Returns the error about the reports' first violation, ordered by topic, partition and offset.

    None without one.
    """
    found = [violation for report in reports for violation in report.violations]
    return SilverStoppedError(min(found, key=lambda v: (v.topic, v.partition, v.offset))) if found else None


def _describe_violation(violation: StoppingViolation) -> str:
    """Returns class, session, topic, partition, offset, expected seq and actual seq of a violation, as text."""
    due = {"orphan": "a snapshot", "after_end": "nothing"}.get(violation.event, f"seq {violation.expected_seq}")
    found = "no seq" if violation.actual_seq is None else f"seq {violation.actual_seq}"
    return (
        f"{violation.event}: session {violation.session_id!r} ({violation.integrity}), topic {violation.topic}, "
        f"partition {violation.partition}, offset {violation.offset}: expected {due}, found {found}"
    )


def _list_decision_commands(violation: StoppingViolation) -> str:
    """Returns the commands with which an operator decides about a violation, as text."""
    topic, offset = violation.topic, violation.offset
    session = f"sessionlake resolve --topic {shlex.quote(topic)} --session {shlex.quote(violation.session_id)}"
    return (
        "Choose one of these commands, then run silver again:\n"
        f"  {session} --offset {offset} --accept-gap  # apply the message all the same\n"
        f"  {session} --offset {offset} --isolate  # break the session until its next snapshot\n"
        f"  {session} --skip-message {offset}  # as if the message had not arrived\n"
        "or set capture.on_violation to isolate or record "
        f"(for this topic alone: under capture.by_topic, pattern {topic!r})"
    )
