"""Computes silver again from bronze, in batch, into staging tables beside the live ones.

The fold is a pure function of state and messages, so it needs no stream. Bronze is read in slices: each is a range of
offsets of every topic-partition, and passes its states to the next. So memory is bounded by the size of a slice, and by
the changes of the largest session, whose table is computed in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    RETAINED,
    ROWS,
    SESSIONS,
    SILVER,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.retained import describe_partition_start, read_partition_starts
from sessionlake.operations.rebuild.slices import BronzeSliceReplayer
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.names import DELETE, WRITTEN
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.settings.section import Integrity, convert_duration_to_ms
from sessionlake.silver.decisions import read_operator_decisions_in_force
from sessionlake.silver.fold.schemas import PartitionMessageCounts, ShardReport, SilverPayloadKind, decode_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import (
    APPENDED_TABLES,
    build_payload_ddl,
    select_table_rows,
    sum_partition_counts,
)
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.sessions import select_newest_progress_frame
from sessionlake.silver.merge.snapshot_source import SnapshotComputer
from sessionlake.silver.quarantine import join_raw_messages
from sessionlake.silver.tables.net_changes import NetChangesMapper, build_net_changes_ddl
from sessionlake.silver.tables.splits import ID, build_split_events
from sessionlake.silver.unread import read_unread_silences
from sessionlake.spark.frames import apply_to_batches, convert_to_spark_frame
from sessionlake.streaming.folded import FoldedBatch
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAYED = (CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, ROWS, SESSIONS, SNAPSHOTS, SNAPSHOT_INDEX)
# The number of changes from which one Python worker computes tables at a time.
_TASK_CHANGES = 500_000
_LAST_SLICE = 2**31
_LAYER = "a rebuild of silver"


@dataclass(frozen=True)
class SessionSelection:
    """The sessions to rebuild. If both a topic and ids are set, a session must have the topic and one of the ids.

    Attributes:
        topic: Only sessions of this topic; None means of every topic.
        sessions: Only sessions with one of these ids; empty means with any id.
    """

    topic: str | None = None
    sessions: tuple[str, ...] = ()

    @property
    def includes_all_sessions(self) -> bool:
        """True if all sessions are chosen."""
        return self.topic is None and not self.sessions

    def __str__(self) -> str:
        who = f"the sessions {', '.join(map(repr, self.sessions))}" if self.sessions else "all sessions"
        return who if self.topic is None else f"{who} of topic {self.topic}"

    def __call__(self, topic: str, partition: int, session: str) -> bool:
        """Returns True if the session is chosen. The partition does not matter."""
        del partition
        return self.topic in (None, topic) and (not self.sessions or session in self.sessions)

    def build_spark_condition(self) -> Column:
        """Returns a Spark condition that is true for rows of chosen sessions.

        A row without a session, such as a malformed message, is chosen only if no session ids are given.
        """
        from pyspark.sql import functions as F

        of_topic = F.lit(col=True) if self.topic is None else F.col("topic") == self.topic
        named = F.coalesce(F.col("session_id").isin(*self.sessions), F.lit(col=False))
        return of_topic & (named if self.sessions else F.lit(col=True))


@dataclass(frozen=True)
class ReplayResult:
    """The result of computing silver again into staging tables.

    Attributes:
        version: The version of `bronze.messages` that was read.
        partitions: The counts of messages of each topic-partition, by how they were judged.
        states: The final states of the shards, `shard int, chunk binary`; None if bronze has no message.
    """

    version: int
    partitions: tuple[PartitionMessageCounts, ...]
    states: DataFrame | None


def open_silver_lake(spark: SparkSession, settings: Settings) -> Lake:
    """Returns the lake, after creating those tables that a replay needs and that do not exist yet.

    Raises:
        LakeError: The lake has no silver, or its tables do not have the declared columns.
    """
    lake = _open_lake_with_bronze_and_ledger(spark, settings)
    lake.create_or_update_tables(spark, [*REPLAYED, DECISIONS, LEDGER])
    return lake


def open_lake_to_replace_silver(spark: SparkSession, settings: Settings) -> tuple[Lake, str | None]:
    """Opens the lake for an operation that replaces silver's tables. Their columns may differ from the declared ones.

    Returns:
        The lake, and a text that says how the tables' columns differ from the declared ones; None if they do not.
        Tables with other columns stay unchanged.

    Raises:
        LakeError: The lake has no silver.
    """
    lake = _open_lake_with_bronze_and_ledger(spark, settings)
    difference = lake.find_column_conflict(spark, REPLAYED)
    silver = [table for table in REPLAYED if difference is None or not lake.exists(spark, table)]
    lake.create_or_update_tables(spark, [*silver, DECISIONS, LEDGER])
    return lake, difference


def _open_lake_with_bronze_and_ledger(spark: SparkSession, settings: Settings) -> Lake:
    """Returns the lake. Raises a `LakeError` if it has no bronze or no ledger."""
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES) or not lake.exists(spark, LEDGER):
        raise LakeError(
            f"silver has not run in {settings.lake_location} yet, so there is nothing to rebuild",
            fix="Run `sessionlake run all`, or name another home with SESSIONLAKE_HOME",
        )
    return lake


def require_complete_bronze(reader: TableReader, target: str = "silver") -> None:
    """Checks that retention has removed no messages from bronze.

    Without the first messages, sessions and stream time would start later.

    Args:
        target: What is to be built from bronze, for the error text.

    Raises:
        LakeError: Retention has removed messages.
    """
    gone = sorted(read_partition_starts(reader).items())
    if gone:
        more = f", and {len(gone) - 1} more topic-partitions begin later" if len(gone) > 1 else ""
        raise LakeError(
            f"{describe_partition_start(*gone[0])}{more}",
            why=f"So {target} cannot be built from the messages that are left. Nothing was changed",
            fix="Restore lost tables or states from a backup, and set maintain.retention so that bronze is kept",
        )


def is_bronze_small(spark: SparkSession, lake: Lake) -> bool:
    """Returns True if bronze is so small that Spark is faster without generating code for its queries."""
    few = lake.driver_limits.few_messages
    return few > 0 and lake.reader(spark).count_rows(MESSAGES) <= few


def replay_messages_into_staging(
    spark: SparkSession,
    settings: Settings,
    *,
    version: int,
    last_offsets: Mapping[TopicPartition, int] | None = None,
    slice_messages: int | None = None,
) -> ReplayResult:
    """Computes silver's tables from bronze into the staging tables.

    Args:
        version: The version of bronze to read.
        last_offsets: The last offset to read, by topic-partition; other topic-partitions are left out. None means all
            messages.
        slice_messages: About how many messages are read at a time; None means the default of `BronzeSliceReplayer`.

    Raises:
        LakeError: Retention has removed messages, bronze was restored to an older version, or under `fail` a violation
            has no decision.
        OffsetHoleError: Bronze lacks messages, or has some twice.
    """
    lake = Lake(settings)
    require_complete_bronze(lake.reader(spark))
    refuse_restored_tables(spark, lake, [MESSAGES, RETAINED])
    decided = read_operator_decisions_in_force(lake.reader(spark))
    _recreate_silver_staging_tables(spark, lake.build_staging_lake())
    source, capture = lake.read(spark, MESSAGES, version), settings.capture
    fold = SilverFold(
        capture.declared_columns, capture, dict(decided), convert_duration_to_ms(settings.silver.snapshot_interval)
    )
    unread = () if last_offsets is None else read_unread_silences(spark, settings, SILVER, last_offsets)
    slices = BronzeSliceReplayer(
        "a rebuild of silver", SilverPayloadKind.REPORT, decode_report, last_offsets, slice_messages, unread=unread
    )
    states: DataFrame | None = None
    partitions: list[PartitionMessageCounts] = []
    for part in slices.fold_bronze_slices(spark, settings, source, fold):
        _append_slice_rows_to_staging(spark, settings, source, part.folded, part.reports, part.number)
        partitions += part.partitions
        states = part.states
    _fill_staging_session_rows(spark, settings)
    _fill_staging_sessions(spark, settings)
    _fill_split_session_events(spark, settings)
    _fill_staging_snapshots(spark, settings)
    return ReplayResult(version, tuple(sum_partition_counts([ShardReport(partitions, {})])), states)


def remove_staging_tables(spark: SparkSession, settings: Settings) -> None:
    """Removes the staging tables of silver."""
    staging = Lake(settings).build_staging_lake()
    for table in REPLAYED:
        staging.drop_table(spark, table)


def _recreate_silver_staging_tables(spark: SparkSession, staging: Lake) -> None:
    """Drops silver's staging tables, and creates them again without rows."""
    for table in REPLAYED:
        staging.drop_table(spark, table)
    staging.create_or_update_tables(spark, REPLAYED)


def _append_slice_rows_to_staging(
    spark: SparkSession,
    settings: Settings,
    source: DataFrame,
    folded: FoldedBatch,
    reports: list[ShardReport],
    number: int,
) -> None:
    """Appends the rows that the fold of one slice has made to the staging tables.

    Args:
        source: The rows of `bronze.messages`, for the raw bytes of quarantined messages.
        folded: The output of the slice's fold.
        reports: The reports of its shards, which have the numbers of rows.
        number: The slice's number, from 0.
    """
    staging, txn = Lake(settings).build_staging_lake(), Txn("rebuild", number)
    for kind, table in (*APPENDED_TABLES, (SilverPayloadKind.QUARANTINE, QUARANTINE)):
        count = sum(report.rows.get(kind, 0) for report in reports)
        if not count:
            continue
        rows = select_table_rows(folded, kind, txn, build_payload_ddl(settings, table))
        if kind is SilverPayloadKind.QUARANTINE:
            rows = join_raw_messages(source, convert_to_spark_frame(spark, rows), reports)
        written = append_rows(spark, staging, table, rows, txn).rows
        if written not in (0, count):  # 0: the latest commit is a compaction
            raise LakeError(
                f"{table}: the rebuild should have written {count} rows, but wrote {written}",
                why="So the new table is not right, and does not replace the old one",
                fix="Report this as a bug of sessionlake",
            )


def _fill_staging_session_rows(spark: SparkSession, settings: Settings) -> None:
    """Computes the staging table of `session_rows` from all changes of all sessions."""
    from pyspark.sql import functions as F

    staging, columns = Lake(settings).build_staging_lake(), settings.capture.declared_columns
    changes = staging.read_small_table_into_memory(spark, CHANGES).drop("_batch", "kafka_timestamp")
    tasks = max(spark.sparkContext.defaultParallelism, -(-staging.reader(spark).count_rows(CHANGES) // _TASK_CHANGES))
    by_session = changes.repartition(tasks, *(F.col(name) for name in SESSION))
    rules = JudgingRuleLookup(settings.capture)
    topics = [row["topic"] for row in changes.select("topic").distinct().collect()]
    by_seq = [topic for topic in topics if rules.find_judging_rules(topic).integrity is Integrity.ONCE]
    usual = apply_to_batches(
        by_session.where(~F.col("topic").isin(by_seq)), NetChangesMapper(columns), build_net_changes_ddl(columns)
    )
    in_seq = apply_to_batches(
        by_session.where(F.col("topic").isin(by_seq)),
        NetChangesMapper(columns, in_seq_order=True),
        build_net_changes_ddl(columns),
    )
    net = usual.unionByName(in_seq) if by_seq else usual
    rows = net.where(F.col("row_id").isNotNull() & ~F.col(DELETE)).drop(DELETE, WRITTEN)
    append_rows(spark, staging, ROWS, rows, Txn("rebuild", 0))


def _fill_staging_sessions(spark: SparkSession, settings: Settings) -> None:
    """Computes the staging table of `sessions`: the newest row of each session in `session_progress`."""
    staging = Lake(settings).build_staging_lake()
    append_rows(
        spark,
        staging,
        SESSIONS,
        select_newest_progress_frame(staging.read_small_table_into_memory(spark, PROGRESS)),
        Txn("rebuild", 0),
    )


def _fill_split_session_events(spark: SparkSession, settings: Settings) -> None:
    """Adds an event `split_session` for each session id that occurs in several partitions of a topic."""
    from pyspark.sql import functions as F

    staging = Lake(settings).build_staging_lake()
    sessions = staging.read_small_table_into_memory(spark, SESSIONS).select(*SESSION)
    split = sessions.groupBy(*ID).agg(F.count("*").alias("sessions")).where("sessions > 1")
    split_sessions = sessions.join(split, list(ID), "left_semi").toArrow()
    if split_sessions.num_rows:
        events = build_split_events(split_sessions, split_sessions.slice(0, 0), JudgingRuleLookup(settings.capture))
        rows = events.append_column("_batch", pa.repeat(0, events.num_rows))
        append_rows(spark, staging, EVENTS, rows, Txn("rebuild:splits", 0))


def _fill_staging_snapshots(spark: SparkSession, settings: Settings) -> None:
    """Computes the staging table of `session_snapshots`: a session's whole table at each of its cuts."""
    staging = Lake(settings).build_staging_lake()
    cuts, changes = (staging.reader(spark).count_rows(table) for table in (CUTS, CHANGES))
    if cuts:
        all_batches, tasks = BatchRange(0, _LAST_SLICE), -(-changes // _TASK_CHANGES)
        snapshots = SnapshotComputer(spark, staging, settings).compute_snapshots_to_store(all_batches, cuts, tasks)
        append_rows(spark, staging, SNAPSHOTS, snapshots.rows, Txn("rebuild", 0))
        append_rows(spark, staging, SNAPSHOT_INDEX, snapshots.index, Txn("rebuild", 0))
