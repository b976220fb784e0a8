"""Computes what is added to `session_snapshots` and its index: whole tables at the cuts of a range of batches.

Each table is computed from the session's last table stored before the range and the changes since. Neither ever
changes, so a range that is merged again, even together with later batches, gives the same rows. Small ranges are
computed in the driver, others with Spark.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.delta.storage.reading import Condition, TooLargeError, is_in
from sessionlake.delta.storage.values import value_of, values_of
from sessionlake.protocol.arrow import SESSION, is_of_sessions, semi_join, session_keys
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.kept_cuts import ReadTable, kept_cuts
from sessionlake.silver.merge.seq_history import read_seq_history
from sessionlake.silver.merge.snapshot_cluster import NAMED_SESSIONS, ClusterSnapshots, KeptTables
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    change_columns,
    compute_snapshots,
    last_cuts,
    snapshots_schema,
    table_sizes,
)
from sessionlake.silver.tables.weights import cuts_of_kept_sessions, weights_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SnapshotSource:
    """Computes the whole tables to store for a range of batches."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._columns = settings.capture.declared

    def compute(self, batches: BatchRange, cuts: int, tasks: int = 1) -> KeptTables:
        """Returns what to add to the two tables.

        Args:
            batches: The range.
            cuts: Number of cuts in the batches.
            tasks: The lowest number of tasks, if Spark does the work.
        """
        if cuts <= self._lake.limits.driver_cuts:
            with contextlib.suppress(TooLargeError):
                return self._in_driver(batches)
        return ClusterSnapshots(self._spark, self._lake, self._settings).compute(batches, cuts, tasks)

    def _in_driver(self, batches: BatchRange) -> KeptTables:
        """Computes the tables in the driver.

        Raises:
            TooLargeError: The data to read does not fit into memory.
        """
        read = partial(self._lake.reader(self._spark).table, max_bytes=self._lake.limits.driver_bytes)
        due = batches.rows_in_memory(CUTS)
        if due is None:
            due = read(CUTS, ("_batch", operator.ge, batches.first), ("_batch", operator.le, batches.last))
        before = ("_batch", operator.lt, batches.first)
        kept = kept_cuts(read, *_named(due), before, of=due)
        last = last_cuts(kept)
        weights = weights_input(last, _passed(read, last, *_named(due), before))
        due = due.filter(cuts_of_kept_sessions(due, weights))
        made = [snapshots_schema(self._columns).empty_table()]
        if due.num_rows:
            rows, changes, late_filled = self._history(
                read, due, last.filter(is_of_sessions(last, due)), kept, batches.last
            )
            weighed = due.select([*CUT_COLUMNS, "changes"])
            made += compute_snapshots(weighed, weights, rows, changes, late_filled, self._columns)
        rows_made = pa.concat_tables(made)
        counted = due.schema.field("changes").with_name("rows")
        keys = pa.schema([*(due.schema.field(name) for name in CUT_COLUMNS), counted])
        index = due.join(table_sizes(rows_made).select(keys.names).cast(keys), list(CUT_COLUMNS), join_type="inner")
        return KeptTables(rows_made.filter(pc.is_valid(rows_made["row_id"])), index)

    def _history(
        self, read: ReadTable, due: pa.Table, last: pa.Table, kept: pa.Table, last_batch: int
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Returns what the tables are computed from: stored tables, changes since, and sessions with late fills.

        Args:
            read: Reads a table.
            due: The cuts to compute tables for.
            last: The last cuts of the same sessions before the range whose tables are stored.
            kept: All such cuts, not only the last ones.
            last_batch: The last batch of the range.
        """
        until = *_named(due), ("_batch", operator.le, last_batch)
        columns = [*change_columns(self._columns), "_batch"]
        changes = read(CHANGES, _since(due, last), *until, columns=columns, sessions=due)
        changes = changes.filter(_since_last(changes, "_position", pc.greater, last, "position"))
        late_filled = self._with_late_fills(read, changes, last, until)
        changes, last = changes.drop_columns(["_batch"]), last.filter(pc.invert(is_of_sessions(last, late_filled)))
        times = values_of(pc.unique(last["snapshot_at"]))
        held = read(SNAPSHOTS, ("snapshot_at", is_in, times), *_named(due), sessions=last)
        rows = semi_join(held, CUT_COLUMNS, last)
        if late_filled.num_rows:
            begun, history = read_seq_history(read, late_filled, kept, last_batch, self._columns, _named(due))
            rows = pa.concat_tables([rows.select(begun.column_names).cast(begun.schema), begun])
            changes = pa.concat_tables([changes.filter(pc.invert(is_of_sessions(changes, late_filled))), history])
        return rows, changes, late_filled

    def _with_late_fills(
        self, read: ReadTable, changes: pa.Table, last: pa.Table, until: Sequence[Condition]
    ) -> pa.Table:
        """Returns the sessions that had a late fill since their last tables were stored.

        Args:
            read: Reads a table.
            changes: The changes since then.
            last: The last cuts whose tables are stored.
            until: Conditions that end the range.
        """
        oldest = pc.min(changes["_batch"]).as_py()
        if oldest is None:
            return changes.select(SESSION)
        conditions = ("beneath", operator.eq, True), ("_batch", operator.ge, oldest), *until
        found = read(PROGRESS, *conditions, columns=[*SESSION, "_batch"], sessions=changes.select(SESSION))
        found = found.filter(_since_last(found, "_batch", pc.greater_equal, last, "_batch"))
        return found.group_by(list(SESSION)).aggregate([])


def _named(due: pa.Table) -> tuple[Condition, ...]:
    """Returns a condition that names the sessions, if they are few."""
    ids = pc.unique(due["session_id"]).to_pylist()
    return (("session_id", is_in, ids),) if len(ids) <= NAMED_SESSIONS else ()


def _passed(read: ReadTable, last: pa.Table, *conditions: Condition) -> pa.Table:
    """Returns the cuts after the last ones whose tables are stored."""
    oldest = pc.min(last["_batch"]).as_py()
    since: Condition = ("_batch", operator.lt, 0) if oldest is None else ("_batch", operator.ge, oldest)
    return read(CUTS, since, *conditions, columns=[*SESSION, "position", "changes"], sessions=last)


def _since(due: pa.Table, last: pa.Table) -> Condition:
    """Returns the condition that selects all changes since the sessions' last stored tables.

    Changes since a cut are not older than the cut. Without a cut, they are not older than the session's first change.
    """
    first = due.filter(pc.invert(is_of_sessions(due, last)))["changed_at"]
    times = [time for time in map(value_of, (pc.min(first), pc.min(last["snapshot_at"]))) if time is not None]
    return ("_applied_at", operator.ge, min(times)) if times else ("_batch", operator.lt, 0)


def _since_last(rows: pa.Table, column: str, compare: Callable[..., Any], last: pa.Table, name: str) -> pa.Array:
    """Returns True for rows that compare so with their session's last cut, and for rows of sessions without one."""
    value = last[name].take(pc.index_in(session_keys(rows), value_set=session_keys(last)))
    return pc.fill_null(compare(rows[column], value), pa.scalar(value=True))


def lowest_value(made: DataFrame | pa.Table, column: str) -> Any:
    """Returns the lowest value of a column, a time or a number; None without rows."""
    from pyspark.sql import functions as F

    if isinstance(made, pa.Table):
        return value_of(pc.min(made[column]))
    if dict(made.dtypes)[column] != "timestamp":
        return made.agg(F.min(column)).collect()[0][0]
    # Collecting a timestamp would lose its time zone, so it is collected as a number.
    micros = made.agg(F.unix_micros(F.min(column))).collect()[0][0]
    return None if micros is None else value_of(pa.scalar(micros, pa.timestamp("us", "UTC")))
