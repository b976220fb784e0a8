"""Merges silver's append-only tables into `session_rows`, `sessions` and `session_snapshots`.

`session_changes` is already exact when it is appended, and a MERGE costs seconds whatever its size. So merging runs
beside the stream. It merges all batches committed since the last merge at once, as net changes: for each column of a
row the last change counts, and a clear or delete removes the row.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import append_rows, build_merge_app_id, make_delta_skip_transaction, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    EVENTS,
    LEDGER,
    PROGRESS,
    RETAINED,
    ROWS,
    SESSIONS,
    SILVER,
    SILVER_TABLES,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput, hash_settings_of_layers
from sessionlake.ledger.progress import read_last_merged_batch_number, read_ledger_entries_after_batch
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.feed_views import create_feed_views
from sessionlake.silver.merge.snapshot_source import SnapshotComputer, find_lowest_value
from sessionlake.silver.merge.sources import UPSERT_SESSIONS, build_row_upsert, compute_rows_to_merge
from sessionlake.silver.merge.splits import record_split_sessions
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake.silver.tables.snapshots import CUT_COLUMNS
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.spark.session import create_separate_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Limits of one merge, so that its memory is bounded. A single batch above them is merged alone.
_MERGE_MESSAGES = 2_000_000
_MERGE_CHANGES = 10_000_000
# If all pending batches have more changes than this, their rows are not kept in memory but read again for the merge.
_CHANGES_IN_MEMORY = 100_000
_MERGED = (CHANGES, PROGRESS, CUTS)
_WRITTEN = (ROWS, SESSIONS, EVENTS, SNAPSHOTS, SNAPSHOT_INDEX, LEDGER)
_CREATED = (CHANGES, PROGRESS, CUTS, *_WRITTEN)


@dataclass(frozen=True)
class PendingBatch:
    """A batch committed by the stream but not yet merged.

    Attributes:
        app_id: The transaction id of the stream.
        batch: The number of the batch.
        messages: Number of messages.
        changes: Number of rows of `session_changes` and `session_progress` together.
        cuts: Number of cuts.
        rows: The batch's appended rows by table, if they are still in memory.
        starts: The first offset of each topic-partition in the batch.
    """

    app_id: str
    batch: int
    messages: int
    changes: int
    cuts: int = 0
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


def select_batches_to_merge(pending: Sequence[PendingBatch]) -> list[PendingBatch]:
    """Returns the oldest of the pending batches, as many as one merge may have, but at least one."""
    messages = changes = 0
    for number, item in enumerate(pending):
        messages, changes = messages + item.messages, changes + item.changes
        if number and (messages > _MERGE_MESSAGES or changes > _MERGE_CHANGES):
            return [*pending[:number]]
    return [*pending]


def _build_merge_app_id(pending: Sequence[PendingBatch]) -> str:
    """Returns the transaction id of the merges of a stream's batches."""
    return build_merge_app_id(pending[0].app_id)


def _count_changes(outputs: Iterable[TableOutput]) -> int:
    return sum(output.rows for output in outputs if output.table in {CHANGES, PROGRESS})


def _count_cuts(outputs: Iterable[TableOutput]) -> int:
    return sum(output.rows for output in outputs if output.table == CUTS)


def _are_all_in_memory(rows: Mapping[str, pa.Table], outputs: Iterable[TableOutput]) -> bool:
    """Returns True if all rows that a merge of the batch needs are still in memory.

    Args:
        rows: The batch's rows in memory, by table. Tables with too many rows are missing.
        outputs: The numbers of rows that the batch has appended.
    """
    written = {output.table: output.rows for output in outputs if output.table in _MERGED}
    return written == {table: rows[table].num_rows for table in _MERGED if table in rows}


def _build_pending_batch(row: Row) -> PendingBatch:
    """Returns a ledger entry of silver as a batch that is to be merged."""
    outputs = [TableOutput(**output) for output in row["outputs"]]
    starts = {(part["topic"], part["partition"]): part["first"] for part in row["offsets"]}
    changes, cuts = _count_changes(outputs), _count_cuts(outputs)
    return PendingBatch(row["app_id"], row["batch_id"], row["messages"], changes, cuts, starts=starts)


def _find_lowest_first_offsets(pending: Iterable[PendingBatch]) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the lowest first offset of these batches."""
    found: dict[TopicPartition, int] = {}
    for item in pending:
        for place, first in item.starts.items():
            found[place] = min(first, found.get(place, first))
    return found


class TableMerger:
    """Merges the batches that silver's stream has committed into silver's tables, in a background thread or on demand.

    Attributes:
        error: The error that ended the background thread; None if there was none.
    """

    def __init__(
        self, spark: SparkSession, settings: Settings, on_merge: Callable[[LedgerEntry], None] | None = None
    ) -> None:
        self._on_merge = on_merge
        self._spark = create_separate_session(spark)  # MERGE sets its transaction in the session, so it needs its own
        self._lake = Lake(settings)
        self._ledger = Ledger(self._lake)
        self._settings = settings
        with self._lake.storage.cache_repeated_reads():
            self._lake.create_or_update_tables(self._spark, _CREATED)
            if self._lake.storage.functions_persist:
                self._lake.create_or_update_tables(self._spark, [RETAINED])
                create_session_as_of(self._spark, self._lake)  # for SQL warehouses
                create_feed_views(self._spark, self._lake)
        self._stop = threading.Event()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pending: list[PendingBatch] | None = None  # None: not read from the ledger yet
        self.error: BaseException | None = None

    def add_pending_batch(self, entry: LedgerEntry, rows: Mapping[str, pa.Table]) -> None:
        """Adds a batch that the stream has committed to the pending ones.

        Args:
            entry: The batch's ledger entry.
            rows: The rows that it has appended, by table, where they are in memory.
        """
        batch, changes = entry.txn.version, _count_changes(entry.outputs)
        with self._lock:
            if self._pending is not None and all(item.batch != batch for item in self._pending):
                held = sum(item.changes for item in self._pending) + changes
                kept = rows if _are_all_in_memory(rows, entry.outputs) and held <= _CHANGES_IN_MEMORY else {}
                cuts = _count_cuts(entry.outputs)
                starts = {(part.topic, part.partition): part.first for part in entry.offsets}
                self._pending.append(PendingBatch(entry.txn.app_id, batch, entry.messages, changes, cuts, kept, starts))
        self._wakeup.set()

    def start_background_merging(self) -> TableMerger:
        """Starts a background thread that merges at most once per merge interval. Returns this object."""
        self._thread = threading.Thread(target=self._merge_until_stopped, name="silver-tables", daemon=True)
        self._thread.start()
        return self

    def stop_background_merging(self) -> None:
        """Stops the background thread once the current merge finishes."""
        self._stop.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()

    def wait_for_merges(self) -> None:
        """Waits until the background thread has merged everything committed so far, or has failed."""
        while self.error is None and self._thread is not None and self._thread.is_alive():
            with self._lock:
                if not self._pending and self._pending is not None:
                    return
            self._wakeup.set()
            self._stop.wait(0.1)

    def merge_all_pending_batches(self) -> int:
        """Merges all batches committed so far, in the calling thread. Returns the number of merges."""
        done = 0
        while self._merge_next():
            done += 1
        return done

    def _merge_until_stopped(self) -> None:
        """Merges whenever batches are reported, at most once per merge interval, until told to stop.

        For the background thread.
        """
        pause = self._settings.silver.merge_interval.total_seconds()
        try:
            self.merge_all_pending_batches()
            while not self._stop.is_set():
                self._wakeup.wait()
                self._wakeup.clear()
                begun = time.monotonic()
                self.merge_all_pending_batches()
                self._stop.wait(max(0.0, pause - (time.monotonic() - begun)))
        except BaseException as error:  # noqa: BLE001 - raised again by the code that runs the job
            self.error = error

    def _merge_next(self) -> bool:
        """Merges the oldest pending batches into all tables, and writes the ledger entry.

        Returns False if none are pending.
        """
        batches_to_merge = self._choose_next_batches()
        if not batches_to_merge:
            return False
        first, last = batches_to_merge[0].batch, batches_to_merge[-1].batch
        started, merge_txn = datetime.now(UTC), Txn(_build_merge_app_id(batches_to_merge), last)
        txn = merge_txn.add_fencing_token(self._lake.storage.get_fencing_token(SILVER))
        changes = sum(item.changes for item in batches_to_merge)
        batches = BatchRange(first, last, tuple(item.rows for item in batches_to_merge))
        with disable_code_generation(self._spark, enabled=changes <= self._lake.driver_limits.few_changes):
            merged = compute_rows_to_merge(self._spark, self._lake, self._settings, batches, changes)
            outputs = (
                self._merge_into_table(
                    ROWS, merged.rows, build_row_upsert(self._settings.capture.declared_columns), txn
                ),
                self._merge_into_table(SESSIONS, merged.sessions, UPSERT_SESSIONS, txn),
                *record_split_sessions(
                    self._spark, self._lake, merged.sessions, _find_lowest_first_offsets(batches_to_merge), last, txn
                ),
                *self._store_snapshots_of_cuts(batches, sum(item.cuts for item in batches_to_merge), txn),
            )
        entry = LedgerEntry(
            layer=SILVER_TABLES,
            txn=merge_txn,
            source=CHANGES,
            source_from=first,
            source_to=last,
            started_at=started,
            outputs=outputs,
            messages=sum(item.messages for item in batches_to_merge),
            config_hash=hash_settings_of_layers(self._settings),
        )
        self._ledger.write_entry(self._spark, entry, txn)
        with self._lock:
            self._pending = [item for item in self._pending or () if item.batch > last]
        if self._on_merge:
            self._on_merge(entry)
        return True

    def _choose_next_batches(self) -> list[PendingBatch]:
        """Returns the batches for the next merge; an empty list if none are pending."""
        with self._lock:
            if self._pending is None:
                self._pending = self._read_pending_batches_after_takeover()
            return select_batches_to_merge(self._pending)

    def _read_pending_batches_after_takeover(self) -> list[PendingBatch]:
        """Returns the pending batches, after making sure that an earlier process can no longer merge them.

        No plan of Spark's fixes which batches a merge contains. So a merge that the earlier process completed later
        could contain other batches than this process assumes.
        """
        token, pending = self._lake.storage.get_fencing_token(SILVER), self._read_pending_batches()
        if not token or not pending:
            return pending
        make_delta_skip_transaction(
            self._spark, self._lake, _WRITTEN, Txn.build_txn_before_lease_holder(_build_merge_app_id(pending), token)
        )
        return self._read_pending_batches()

    def _read_pending_batches(self) -> list[PendingBatch]:
        """Returns the batches in the ledger that are not merged yet."""
        reader = self._lake.reader(self._spark)
        with self._lake.storage.cache_repeated_reads():
            behind = read_ledger_entries_after_batch(
                reader, SILVER, read_last_merged_batch_number(reader), "messages", "outputs", "offsets"
            )
        return [*map(_build_pending_batch, behind)]

    def _merge_into_table(self, table: str, rows: Rows, upsert: Upsert, txn: Txn) -> TableOutput:
        """Merges rows into a table. Returns the table's version and the number of rows, for the ledger."""
        commit = merge_rows(self._spark, self._lake, table, rows, upsert, txn)
        return TableOutput(table, commit.version, commit.rows)

    def _store_snapshots_of_cuts(self, batches: BatchRange, cut_count: int, txn: Txn) -> tuple[TableOutput, ...]:
        """Stores the whole tables of sessions that are due at the cuts of these batches.

        Without cuts, runs no Spark job.

        Args:
            batches: The range of batches.
            cut_count: The number of their cuts.
            txn: The transaction of the merge.
        """
        if not cut_count:
            return ()
        computer, outputs = SnapshotComputer(self._spark, self._lake, self._settings), []
        made = computer.compute_snapshots_to_store(batches, cut_count)
        for table, rows, ascending, keys in (
            (SNAPSHOTS, made.rows, "snapshot_at", (*CUT_COLUMNS, "row_id")),
            (SNAPSHOT_INDEX, made.index, "_batch", CUT_COLUMNS),
        ):
            least = find_lowest_value(rows, ascending)
            if least is not None:
                outputs.append(self._append_missing_rows(table, rows, (ascending, least), keys, txn))
        return tuple(outputs)

    def _append_missing_rows(
        self,
        table: str,
        rows: DataFrame | pa.Table,
        lowest_value: tuple[str, Any],
        key_columns: tuple[str, ...],
        txn: Txn,
    ) -> TableOutput:
        """Adds rows to a table. Rows that the table already has, from a merge that died, are not added twice.

        Args:
            table: The table to add to.
            rows: The rows.
            lowest_value: A column and its lowest value in these rows; rows of the table with lower values are not
                compared.
            key_columns: The columns that identify a row.
            txn: The transaction.
        """
        column, value = lowest_value
        if not self._lake.reader(self._spark).has_rows(table, (column, operator.ge, value)):
            # No row can be there already, so an append is enough.
            commit = append_rows(self._spark, self._lake, table, rows, txn)
            return TableOutput(table, commit.version, commit.rows)
        names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
        others = tuple(name for name in names if name not in key_columns)
        return self._merge_into_table(table, rows, Upsert(key_columns, others, pruned_by=(column,), updates=False), txn)
