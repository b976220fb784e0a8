"""Removes old rows table by table, up to the limits that `rules` and `by_session` compute.

A limit is the last offset, position or batch number that may be removed, of a topic-partition or session. Limits are
recorded in `ops.retained` before rows are removed, so that readers can tell removed rows from lost ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import eq
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.bronze.kafka_times import build_valid_kafka_time_column
from sessionlake.delta.commit import remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    EVENTS,
    GOLD,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    SESSIONS,
    SILVER,
    SNAPSHOTS,
)
from sessionlake.delta.storage.expired import LIMIT
from sessionlake.errors import ClaimedByOtherProcessError, DataLossError, InterruptedOperationError
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.progress import (
    read_first_batch_number_since,
    read_first_offsets_since,
    read_last_batch_number,
    read_last_merged_batch_number,
    read_last_offsets,
)
from sessionlake.ledger.retained import (
    CLAIM,
    LIMITS,
    TABLES_REMOVED_TOGETHER,
    RetentionRecord,
    read_limits_changed_by_last_removal,
    read_removal_record_of_table,
    read_removal_records,
    read_removal_records_without_limits,
    select_rows_removed_by_retention,
    store_removal_record,
)
from sessionlake.operations.retention import by_session, rules
from sessionlake.operations.retention.ledger import remove_old_ledger_entries
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.settings.section import convert_duration_to_ms
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake.streaming.checkpoint import is_reading_initial_snapshot
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    MESSAGES: "bronze",
    CHANGES: "changes",
    PROGRESS: "progress",
    SNAPSHOTS: "snapshots",
    QUARANTINE: "quarantine",
    EVENTS: "events",
    LEDGER: "ledger",
}
_RULES = {
    CHANGES: by_session.compute_removal_limits_of_changes,
    SNAPSHOTS: by_session.compute_removal_limits_of_snapshots,
    PROGRESS: by_session.compute_removal_limits_of_progress,
}
_PLACE = ("topic", "partition")
# A table is checked again after its retention period divided by this number: with a period of a day, once an hour.
_STEPS = 24
# Silver drops a session's state after this number of session timeouts without a message, as `integrity.judge` does.
_TIMEOUTS = 2


@dataclass(frozen=True)
class RowRemovalResult:
    """The result of removing old rows of one table.

    Attributes:
        rows: The number of rows removed.
        waits: A text that says why old rows could not be removed; empty if there was no obstacle.
    """

    rows: int = 0
    waits: str = ""


@dataclass(frozen=True)
class _RemovableRowLimits:
    """The limits up to which rows of a table may be removed now.

    Attributes:
        limits: A row per topic-partition or session: its last offset, position or batch that may be removed.
        batch: The number of silver's last batch that is old enough; -1 if the table's rows have no batch numbers.
    """

    limits: pa.Table
    batch: int = -1


def _list_limit_key_columns(table: str) -> tuple[str, ...]:
    """Returns the key columns of a table's limits: topic and partition, or topic, partition and session id."""
    return _PLACE if table in {MESSAGES, QUARANTINE, EVENTS} else SESSION


class _RemovalBlockedError(Exception):
    """No row of the table may be removed now. The text says why."""


class RetentionRunner:
    """Removes old rows of the tables for which `maintain.retention` sets a period."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings, self._lake = spark, settings, Lake(settings)
        self._last_attempts: dict[str, datetime] = {}

    def find_retention_period(self, table: str) -> timedelta | None:
        """Returns how long rows of a table are kept, from `maintain.retention`; None means forever."""
        name = _SETTINGS.get(table)
        period: timedelta | None = None if name is None else getattr(self._settings.maintain.retention, name)
        return period

    def remove_expired_rows(self, table: str, now: datetime, *, only_if_due: bool = False) -> RowRemovalResult:
        """Removes the rows of a table that are old enough and that no reader needs.

        Args:
            table: The table.
            now: The present time, from which the age of rows is computed.
            only_if_due: True to do nothing if the table was checked a short time ago.
        """
        span = self.find_retention_period(table)
        last = self._last_attempts.get(table)
        if span is None or (only_if_due and last is not None and now - last < span / _STEPS):
            return RowRemovalResult()
        self._last_attempts[table] = now
        try:
            with self._lake.storage.hold_exclusive_claim(self._spark, CLAIM, "removes old rows"):
                # An interrupted forgetting or rebuild has counted rows. It must remove them itself.
                refuse_interrupted_operations(self._settings, SILVER)
                if table == LEDGER:
                    return RowRemovalResult(remove_old_ledger_entries(self._spark, self._lake, now - span))
                return self._remove_rows_older_than(table, now - span)
        except ClaimedByOtherProcessError as error:
            del self._last_attempts[table]
            return RowRemovalResult(waits=str(error))
        except (_RemovalBlockedError, InterruptedOperationError, DataLossError) as error:
            return RowRemovalResult(waits=str(error))

    def finish_interrupted_removals(self) -> None:
        """Finishes the removals of processes that died. This process must hold the claim `retention`.

        Interrupted removals from the ledger are left alone: its entries are not counted by session.
        """
        for table, entry in read_removal_records_without_limits(self._lake.reader(self._spark)).items():
            if entry.pending and table in _SETTINGS and table != LEDGER:
                self._finish_interrupted_removal(self._read_removal_record(table, entry.before))

    def _remove_rows_older_than(self, table: str, keep_since: datetime) -> RowRemovalResult:
        """Removes a table's rows that are older than `keep_since` and that no reader needs.

        First finishes an interrupted removal.
        """
        before, finished = self._read_removal_record(table, keep_since), 0
        if before.pending:
            finished = self._finish_interrupted_removal(before)
            before = self._read_removal_record(table, keep_since)
        due = self._find_removable_row_limits(table, keep_since)
        limits = (
            rules.merge_removal_limits(before.limits, due.limits, _list_limit_key_columns(table))
            if table != PROGRESS
            else due.limits
        )
        batch = max(before.batch, due.batch)
        if table == MESSAGES:
            count, limits = self._add_highest_kafka_timestamps(limits)
        else:
            count = self._count_rows_up_to_limits(table, batch, limits)
        if not count:
            return RowRemovalResult(finished)
        noted = limits if table != PROGRESS else LIMITS.empty_table()
        now = RetentionRecord(table, max(before.before, keep_since), batch, before.removed, count, noted)
        refuse_restored_tables(self._spark, self._lake, [RETAINED])
        store_removal_record(self._spark, self._lake, now)
        self._remove_rows_up_to_limits(now, limits)
        return RowRemovalResult(finished + count)

    def _finish_interrupted_removal(self, entry: RetentionRecord) -> int:
        """Removes the rows that a process was removing when it died. Returns their number.

        Args:
            entry: The row of `ops.retained` about the interrupted removal.
        """
        count = self._count_rows_up_to_limits(entry.table, entry.batch, entry.limits)
        refuse_restored_tables(self._spark, self._lake, [RETAINED])
        self._remove_rows_up_to_limits(entry, entry.limits)
        return count

    def _remove_rows_up_to_limits(self, entry: RetentionRecord, limits: pa.Table) -> None:
        """Removes the rows of a table up to the limits, and records in `ops.retained` that they are removed."""
        for part in TABLES_REMOVED_TOGETHER.get(entry.table, (entry.table,)):
            remove_rows(self._spark, self._lake, part, select_rows_removed_by_retention(part, limits, entry.batch))
        finished = replace(entry, removed=entry.max_missing_rows, pending=0, limits=LIMITS.empty_table())
        store_removal_record(self._spark, self._lake, finished)

    def _read_removal_record(self, table: str, keep_since: datetime) -> RetentionRecord:
        """Returns the row of `ops.retained` for a table.

        If there is none, returns a new row with `keep_since` and no removals.

        Limits per topic-partition are all in it. Limits per session are in it only if a process died while it was
        removing rows: then those up to which it was removing them.
        """
        reader = self._lake.reader(self._spark)
        entry = read_removal_record_of_table(reader, table)
        if entry is None:
            return RetentionRecord(table, keep_since)
        if _list_limit_key_columns(table) == _PLACE:
            return read_removal_records(reader, [table])[table]
        if not entry.pending:
            return entry
        if table == PROGRESS:
            return replace(
                entry, limits=by_session.compute_removal_limits_of_progress(self._spark, self._lake, entry.batch)
            )
        return replace(entry, limits=read_limits_changed_by_last_removal(reader, entry))

    def _count_rows_up_to_limits(self, table: str, batch: int, limits: pa.Table) -> int:
        """Returns the number of rows up to the limits, in the table and in the tables that are shortened with it."""
        if not limits.num_rows:
            return 0
        storage, parts = self._lake.storage, TABLES_REMOVED_TOGETHER.get(table, (table,))
        return sum(
            storage.count_rows(self._spark, part, select_rows_removed_by_retention(part, limits, batch))
            for part in parts
        )

    def _add_highest_kafka_timestamps(self, limits: pa.Table) -> tuple[int, pa.Table]:
        """Returns the number of messages up to the limits, and the limits with their highest Kafka timestamps."""
        from pyspark.sql import functions as F

        places = convert_to_spark_frame(self._spark, limits.select([*_PLACE, LIMIT])).alias("s")
        rows = (
            self._lake.read(self._spark, MESSAGES)
            .alias("t")
            .join(places, select_rows_removed_by_retention(MESSAGES, limits).build_merge_condition())
        )
        highest = F.timestamp_millis(F.max(build_valid_kafka_time_column(self._settings, "t")))
        highest_times = rows.groupBy("t.topic", "t.partition").agg(highest, F.count("*")).toArrow()
        highest_times = highest_times.rename_columns([*_PLACE, "highest_timestamp", "rows"])
        added = highest_times.append_column("limit", pa.nulls(highest_times.num_rows, pa.int64())).append_column(
            "session_id", pa.nulls(highest_times.num_rows, pa.string())
        )
        count = pc.sum(highest_times["rows"]).as_py() or 0
        return count, rules.merge_removal_limits(limits, added.select(LIMITS.names).cast(LIMITS), _PLACE)

    # -- how far rows may be removed

    def _find_removable_row_limits(self, table: str, keep_since: datetime) -> _RemovableRowLimits:
        """Returns the limits up to which a table's rows are older than `keep_since` and needed by no reader."""
        ledger = read_removal_record_of_table(self._lake.reader(self._spark), LEDGER)
        if ledger is not None and ledger.before > keep_since:
            raise _RemovalBlockedError(
                f"{LEDGER} no longer reaches back so far, and is needed to know how old rows are"
            )
        if table == MESSAGES:
            return _RemovableRowLimits(
                rules.build_table_of_partition_removal_limits(self._find_removable_message_limits(keep_since))
            )
        batch = self._find_last_silver_batch_before(keep_since)
        if table in {QUARANTINE, EVENTS}:
            return _RemovableRowLimits(
                rules.build_table_of_partition_removal_limits(self._find_last_offsets_read_before(SILVER, keep_since)),
                batch,
            )
        batch = min(batch, read_last_merged_batch_number(self._lake.reader(self._spark)))
        if table == CHANGES:
            batch = min(batch, self._find_last_batch_read_by_gold())
        if batch < 0:
            return _RemovableRowLimits(LIMITS.empty_table())  # no batch is old enough
        return _RemovableRowLimits(_RULES[table](self._spark, self._lake, batch), batch)

    def _find_removable_message_limits(self, keep_since: datetime) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the last offset of bronze that may be removed."""
        reader = self._lake.reader(self._spark)
        aged, silver = self._find_last_offsets_read_before(BRONZE, keep_since), read_last_offsets(reader, SILVER)
        if not silver:
            raise _RemovalBlockedError(f"{SILVER} has not read anything yet")
        limits = rules.compute_removal_limits_of_messages(aged, [silver], self._read_lowest_session_start_offsets())
        for processor in self._settings.processors:
            if processor.key:
                continue  # it reads no messages
            read = read_last_offsets(reader, processor.layer)
            if not read:
                raise _RemovalBlockedError(f"{processor.layer} has not read anything yet")
            # The processor's ledger has only the topics that it reads.
            chosen = {place: limit for place, limit in limits.items() if re.fullmatch(processor.topics, place[0])}
            limits = {
                **limits,
                **dict.fromkeys(chosen, -1),
                **rules.compute_removal_limits_of_messages(chosen, [read], _NO_SESSIONS),
            }
        return {place: limit for place, limit in limits.items() if limit >= 0}

    def _find_last_offsets_read_before(self, layer: str, moment: datetime) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the last offset that the layer had read before a moment."""
        reader = self._lake.reader(self._spark)
        later = read_first_offsets_since(reader, layer, moment)
        return {
            place: min(last, later.get(place, last + 1) - 1) for place, last in read_last_offsets(reader, layer).items()
        }

    def _find_last_silver_batch_before(self, moment: datetime) -> int:
        """Returns the number of silver's last batch that was committed before a moment; -1 if there is none."""
        reader = self._lake.reader(self._spark)
        last = read_last_batch_number(reader, SILVER)
        if last is None:
            raise _RemovalBlockedError(f"{SILVER} has not read anything yet")
        first = read_first_batch_number_since(reader, SILVER, moment)
        return last if first is None else min(last, first - 1)

    def _find_last_batch_read_by_gold(self) -> int:
        """Returns the number of the last batch of silver whose changes gold has read completely."""
        if is_reading_initial_snapshot(self._settings.checkpoint_path(GOLD)):
            raise _RemovalBlockedError(f"{GOLD} still reads the first snapshot of {CHANGES}, whose order is not known")
        books = LedgerReader(self._lake.reader(self._spark), "source_to")
        read = [
            row["source_to"]
            for row in iterate_rows_as_dicts(books.read_entries_since_rebuild(("layer", eq, GOLD)))
            if row["source_to"] is not None
        ]
        if not read:
            raise _RemovalBlockedError(f"{GOLD} has not read anything yet, and is computed from all changes")
        return int(max(read)) - 1  # gold may have read only a part of the last one

    def _read_lowest_session_start_offsets(self) -> pa.Table:
        """Returns the lowest first offset of the sessions of which silver may have state, by topic-partition.

        The columns are `topic, partition, first_offset`. If a session has two rows, the earlier first offset and the
        later last message count, so that nothing is removed too early. Spark reads the rows, because the table has one
        for every session that ever existed.
        """
        from pyspark.sql import functions as F

        lake, spark = self._lake, self._spark
        first, last = F.coalesce("first_offset", F.lit(0)), F.unix_millis("last_kafka_timestamp")
        columns = *_PLACE, "session_id", first.alias("first"), last.alias("last")
        sessions = (
            lake.read(spark, PROGRESS)
            .where(F.col("_batch") > read_last_merged_batch_number(lake.reader(spark)))
            .select(*columns)
        )
        if lake.exists(spark, SESSIONS):
            sessions = sessions.unionByName(lake.read(spark, SESSIONS).select(*columns))
        known_times = sessions.select(*_PLACE, F.col("last").alias("time"))
        known_times = known_times.unionByName(convert_to_spark_frame(spark, self._read_stream_times_of_silver()))
        now = known_times.groupBy(*_PLACE).agg(F.max("time").alias("now"))
        each = sessions.groupBy(*_PLACE, "session_id").agg(F.min("first").alias("first"), F.max("last").alias("last"))
        timeouts = _TIMEOUTS * convert_duration_to_ms(self._settings.capture.session_timeout)
        is_over = F.coalesce(F.col("now") > F.col("last") + F.lit(timeouts), F.lit(col=False))
        in_state = each.join(F.broadcast(now), [*_PLACE]).where(~is_over)
        return in_state.groupBy(*_PLACE).agg(F.min("first").alias("first_offset")).toArrow()

    def _read_stream_times_of_silver(self) -> pa.Table:
        """Returns each topic-partition's stream time at the end of what silver has read: rows `topic, partition, time`.

        The time is in milliseconds, and includes silences.
        """
        judged = read_last_offsets(self._lake.reader(self._spark), SILVER)
        places, behind = list(judged), np.array([*judged.values()], np.int64) + 1
        times, _ = open_stored_stream_times(self._settings, SILVER).read_stream_times_before(places, behind)
        known = ((*place, time) for place, time in zip(places, times.tolist(), strict=True) if time != NO_TIME)
        return pa.Table.from_pylist([dict(zip(_TIMES.names, row, strict=True)) for row in known], _TIMES)


_TIMES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("time", pa.int64())])
_NO_SESSIONS = pa.table({"topic": pa.array([], pa.string()), "partition": pa.array([], pa.int32()),
                    "first_offset": pa.array([], pa.int64())})  # fmt: skip
