"""From silver's append-only tables to `session_rows`, `sessions` and `session_snapshots`, by MERGE.

`session_changes` is already exact when it is appended; MERGE costs seconds whatever it merges. So merging
runs beside the stream and takes all batches that have come since its last time at once: the net change of
each row, where the last writer of each column counts, and clears and deletes are writers of absence.
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

from sessionlake.delta.commit import append, fence_off, merge, merge_app_id
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
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput, config_hash
from sessionlake.ledger.progress import batches_after, last_merged_batch
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.snapshot_source import SnapshotSource, least_of
from sessionlake.silver.merge.sources import UPSERT_SESSIONS, sources, upsert_rows
from sessionlake.silver.merge.splits import record_splits
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake.silver.tables.snapshots import CUT_COLUMNS
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import interpreted
from sessionlake.spark.session import separate_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One merge takes in at most so many messages, and changes (or one batch, if that is larger): its memory is bounded.
_MERGE_MESSAGES = 2_000_000
_MERGE_CHANGES = 10_000_000
# Of batches that wait, so many changes are kept in memory; those of more are read again.
_CHANGES_AT_HAND = 100_000
_MERGED = (CHANGES, PROGRESS, CUTS)
_WRITTEN = (ROWS, SESSIONS, EVENTS, SNAPSHOTS, SNAPSHOT_INDEX, LEDGER)
_CREATED = (CHANGES, PROGRESS, CUTS, *_WRITTEN)


@dataclass(frozen=True)
class Waiting:
    """A batch of the stream that is not merged yet.

    Attributes:
        rows: its appended rows by table, where the stream still had them at hand.
        starts: the first offset that it has of each topic-partition.
    """

    app_id: str
    batch: int
    messages: int
    changes: int
    cuts: int = 0
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


def at_once(waiting: Sequence[Waiting]) -> list[Waiting]:
    """The first of the batches: as many as one merge takes in."""
    messages = changes = 0
    for number, item in enumerate(waiting):
        messages, changes = messages + item.messages, changes + item.changes
        if number and (messages > _MERGE_MESSAGES or changes > _MERGE_CHANGES):
            return [*waiting[:number]]
    return [*waiting]


def _app_id(waiting: Sequence[Waiting]) -> str:
    return merge_app_id(waiting[0].app_id)


def _changes(outputs: Iterable[TableOutput]) -> int:
    return sum(output.rows for output in outputs if output.table in {CHANGES, PROGRESS})


def _cuts(outputs: Iterable[TableOutput]) -> int:
    return sum(output.rows for output in outputs if output.table == CUTS)


def _are_whole(rows: Mapping[str, pa.Table], outputs: Iterable[TableOutput]) -> bool:
    """Whether all is at hand that a merge takes in of a batch: of one table it may be, of another too large."""
    written = {output.table: output.rows for output in outputs if output.table in _MERGED}
    return written == {table: rows[table].num_rows for table in _MERGED if table in rows}


def _waiting(row: Row) -> Waiting:
    outputs = [TableOutput(**output) for output in row["outputs"]]
    starts = {(part["topic"], part["partition"]): part["first"] for part in row["offsets"]}
    changes, cuts = _changes(outputs), _cuts(outputs)
    return Waiting(row["app_id"], row["batch_id"], row["messages"], changes, cuts, starts=starts)


def _starts(waiting: Iterable[Waiting]) -> dict[TopicPartition, int]:
    """The first offset that batches have of each topic-partition."""
    found: dict[TopicPartition, int] = {}
    for item in waiting:
        for place, first in item.starts.items():
            found[place] = min(first, found.get(place, first))
    return found


class TableMerger:
    """Keeps `session_rows`, `sessions` and `session_snapshots` up with the silver stream."""

    def __init__(
        self, spark: SparkSession, settings: Settings, on_merge: Callable[[LedgerEntry], None] | None = None
    ) -> None:
        self._on_merge = on_merge
        self._spark = separate_session(spark)  # MERGE sets its transaction in the session: nobody else may use it
        self._lake = Lake(settings)
        self._ledger = Ledger(self._lake)
        self._settings = settings
        with self._lake.storage.caching():
            self._lake.ensure(self._spark, _CREATED)
            if self._lake.storage.functions_persist:
                self._lake.ensure(self._spark, [RETAINED])
                create_session_as_of(self._spark, self._lake)  # SQL warehouses have it from now on
        self._stop = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting: list[Waiting] | None = None  # None: not read from the ledger yet
        self.error: BaseException | None = None

    def announce(self, entry: LedgerEntry, rows: Mapping[str, pa.Table]) -> None:
        """Says that the stream has committed a batch, and hands over such of its rows as are at hand."""
        batch, changes = entry.txn.version, _changes(entry.outputs)
        with self._lock:
            if self._waiting is not None and all(item.batch != batch for item in self._waiting):
                held = sum(item.changes for item in self._waiting) + changes
                kept = rows if _are_whole(rows, entry.outputs) and held <= _CHANGES_AT_HAND else {}
                cuts = _cuts(entry.outputs)
                starts = {(part.topic, part.partition): part.first for part in entry.offsets}
                self._waiting.append(Waiting(entry.txn.app_id, batch, entry.messages, changes, cuts, kept, starts))
        self._news.set()

    def start(self) -> TableMerger:
        """Merges in the background until `stop`, no sooner than the merge interval after the last time."""
        self._thread = threading.Thread(target=self._run, name="silver-tables", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the background merging after the merge under way."""
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def drain(self) -> None:
        """Waits until the background merging has taken in everything committed so far, or has failed."""
        while self.error is None and self._thread is not None and self._thread.is_alive():
            with self._lock:
                if not self._waiting and self._waiting is not None:
                    return
            self._news.set()
            self._stop.wait(0.1)

    def catch_up(self) -> int:
        """Merges everything committed so far; returns the number of merges."""
        done = 0
        while self._merge_next():
            done += 1
        return done

    def _run(self) -> None:
        pause = self._settings.silver.merge_interval.total_seconds()
        try:
            self.catch_up()
            while not self._stop.is_set():
                self._news.wait()
                self._news.clear()
                begun = time.monotonic()
                self.catch_up()
                self._stop.wait(max(0.0, pause - (time.monotonic() - begun)))
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the job
            self.error = error

    def _merge_next(self) -> bool:
        taken = self._next()
        if not taken:
            return False
        first, last = taken[0].batch, taken[-1].batch
        started, own = datetime.now(UTC), Txn(_app_id(taken), last)
        txn = own.fenced_by(self._lake.storage.token(SILVER))
        changes = sum(item.changes for item in taken)
        batches = BatchRange(first, last, tuple(item.rows for item in taken))
        with interpreted(self._spark, when=changes <= self._lake.limits.few_changes):
            merged = sources(self._spark, self._lake, self._settings, batches, changes)
            outputs = (
                self._merge(ROWS, merged.rows, upsert_rows(self._settings.capture.declared), txn),
                self._merge(SESSIONS, merged.sessions, UPSERT_SESSIONS, txn),
                *record_splits(self._spark, self._lake, merged.sessions, _starts(taken), last, txn),
                *self._merge_snapshots(batches, sum(item.cuts for item in taken), txn),
            )
        entry = LedgerEntry(
            layer=SILVER_TABLES,
            txn=own,
            source=CHANGES,
            source_from=first,
            source_to=last,
            started_at=started,
            outputs=outputs,
            messages=sum(item.messages for item in taken),
            config_hash=config_hash(self._settings),
        )
        self._ledger.write(self._spark, entry, txn)
        with self._lock:
            self._waiting = [item for item in self._waiting or () if item.batch > last]
        if self._on_merge:
            self._on_merge(entry)
        return True

    def _next(self) -> list[Waiting]:
        """The next batches to merge at once."""
        with self._lock:
            if self._waiting is None:
                self._waiting = self._not_merged_by_others()
            return at_once(self._waiting)

    def _not_merged_by_others(self) -> list[Waiting]:
        """As `_not_merged`, for good: what a holder before may yet write is passed over.

        Which batches a merge takes in, and which rows it finds, is no plan of Spark's: done by another later, it would
        not be the same.
        """
        token, waiting = self._lake.storage.token(SILVER), self._not_merged()
        if not token or not waiting:
            return waiting
        fence_off(self._spark, self._lake, _WRITTEN, Txn.before_holder(_app_id(waiting), token))
        return self._not_merged()

    def _not_merged(self) -> list[Waiting]:
        """From the ledger: the stream's batches that no merge has taken in yet."""
        reader = self._lake.reader(self._spark)
        with self._lake.storage.caching():
            behind = batches_after(reader, SILVER, last_merged_batch(reader), "messages", "outputs", "offsets")
        return [*map(_waiting, behind)]

    def _merge(self, table: str, rows: Rows, upsert: Upsert, txn: Txn) -> TableOutput:
        commit = merge(self._spark, self._lake, table, rows, upsert, txn)
        return TableOutput(table, commit.version, commit.rows)

    def _merge_snapshots(self, batches: BatchRange, cuts: int, txn: Txn) -> tuple[TableOutput, ...]:
        """Whole tables at the cuts of the batches, where they are kept; where there are no cuts, no job runs."""
        if not cuts:
            return ()
        made, outputs = SnapshotSource(self._spark, self._lake, self._settings).of(batches, cuts), []
        for table, rows, ascending, keys in (
            (SNAPSHOTS, made.rows, "snapshot_at", (*CUT_COLUMNS, "row_id")),
            (SNAPSHOT_INDEX, made.index, "_batch", CUT_COLUMNS),
        ):
            least = least_of(rows, ascending)
            if least is not None:
                outputs.append(self._add(table, rows, (ascending, least), keys, txn))
        return tuple(outputs)

    def _add(
        self, table: str, rows: DataFrame | pa.Table, least: tuple[str, Any], keys: tuple[str, ...], txn: Txn
    ) -> TableOutput:
        """Adds rows that may be there already, if a merge of them has died.

        Args:
            least: a column, and its least value among these rows: of the table's, lower ones are not looked at.
            keys: what tells rows apart.
        """
        column, value = least
        if not self._lake.reader(self._spark).any(table, (column, operator.ge, value)):
            append(self._spark, self._lake, table, rows, txn)  # none of them can be there: a MERGE would append
            commit = self._lake.last_commit(self._spark, table)
            return TableOutput(table, commit.version, commit.rows)
        names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
        others = tuple(name for name in names if name not in keys)
        return self._merge(table, rows, Upsert(keys, others, pruned_by=(column,), updates=False), txn)
