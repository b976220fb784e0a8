"""Computes the whole tables to store at the cuts of a range of batches: rows of `session_snapshots` and its index.

Each table is computed from the session's last table stored before the range and the changes since. These never change.
So a range that is merged again gives the same rows, even together with later batches. Small ranges are computed in the
driver, large ones with Spark.
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
from sessionlake.delta.storage.values import convert_to_python_value, convert_to_python_values
from sessionlake.protocol.arrow import (
    SESSION,
    build_session_key_of_each_row,
    mask_rows_of_sessions,
    select_matching_rows,
)
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.kept_cuts import ReadTable, read_cuts_with_stored_tables
from sessionlake.silver.merge.seq_history import read_stored_rows_and_later_changes
from sessionlake.silver.merge.snapshot_cluster import NAMED_SESSIONS, SnapshotsToStore, SparkSnapshotComputer
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    build_snapshots_schema,
    compute_snapshots,
    count_rows_of_each_snapshot,
    list_columns_of_session_changes,
    select_last_cut_of_each_session,
)
from sessionlake.silver.tables.weights import build_snapshot_weights, mark_cuts_of_storing_sessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SnapshotComputer:
    """Computes the whole tables of sessions to store at the cuts of a range of batches, in the driver or with Spark."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._columns = settings.capture.declared_columns

    def compute_snapshots_to_store(
        self, batches: BatchRange, cut_count: int, min_task_count: int = 1
    ) -> SnapshotsToStore:
        """Returns the rows to add to `session_snapshots` and `session_snapshot_index`.

        Args:
            batches: The range of batches.
            cut_count: Number of cuts in the batches.
            min_task_count: The lowest number of Spark tasks to use, if Spark does the work.
        """
        if cut_count <= self._lake.driver_limits.driver_cuts:
            with contextlib.suppress(TooLargeError):
                return self._compute_in_driver(batches)
        return SparkSnapshotComputer(self._spark, self._lake, self._settings).compute_snapshots_to_store(
            batches, cut_count, min_task_count
        )

    def _compute_in_driver(self, batches: BatchRange) -> SnapshotsToStore:
        """Computes the whole tables in the driver.

        Raises:
            TooLargeError: The rows to read do not fit into the driver's memory.
        """
        read = partial(self._lake.reader(self._spark).read_arrow_table, max_bytes=self._lake.driver_limits.driver_bytes)
        due = batches.find_rows_in_memory(CUTS)
        if due is None:
            due = read(CUTS, ("_batch", operator.ge, batches.first), ("_batch", operator.le, batches.last))
        before = ("_batch", operator.lt, batches.first)
        kept = read_cuts_with_stored_tables(read, *_build_session_conditions(due), before, sessions=due)
        last = select_last_cut_of_each_session(kept)
        weights = build_snapshot_weights(
            last, _read_cuts_since_last_stored(read, last, *_build_session_conditions(due), before)
        )
        due = due.filter(mark_cuts_of_storing_sessions(due, weights))
        made = [build_snapshots_schema(self._columns).empty_table()]
        if due.num_rows:
            rows, changes, late_filled = self._read_rows_and_changes_for_snapshots(
                read, due, last.filter(mask_rows_of_sessions(last, due)), kept, batches.last
            )
            weighed = due.select([*CUT_COLUMNS, "changes"])
            made += compute_snapshots(weighed, weights, rows, changes, late_filled, self._columns)
        rows_made = pa.concat_tables(made)
        counted = due.schema.field("changes").with_name("rows")
        keys = pa.schema([*(due.schema.field(name) for name in CUT_COLUMNS), counted])
        index = due.join(
            count_rows_of_each_snapshot(rows_made).select(keys.names).cast(keys), list(CUT_COLUMNS), join_type="inner"
        )
        return SnapshotsToStore(rows_made.filter(pc.is_valid(rows_made["row_id"])), index)

    def _read_rows_and_changes_for_snapshots(
        self, read_table: ReadTable, due: pa.Table, last: pa.Table, kept: pa.Table, last_batch: int
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Reads what the whole tables of sessions are computed from.

        Args:
            read_table: Reads a table.
            due: The cuts to compute tables for.
            last: The last cut of each of these sessions, before the range, whose table is stored.
            kept: All cuts of these sessions, before the range, whose tables are stored.
            last_batch: The last batch of the range.

        Returns:
            The stored tables to start from, the changes since, and the sessions with late fills.
        """
        until = *_build_session_conditions(due), ("_batch", operator.le, last_batch)
        columns = [*list_columns_of_session_changes(self._columns), "_batch"]
        changes = read_table(CHANGES, _build_since_condition(due, last), *until, columns=columns, sessions=due)
        changes = changes.filter(_compare_with_last_cut(changes, "_position", pc.greater, last, "position"))
        late_filled = self._find_late_filled_sessions(read_table, changes, last, until)
        changes, last = (
            changes.drop_columns(["_batch"]),
            last.filter(pc.invert(mask_rows_of_sessions(last, late_filled))),
        )
        times = convert_to_python_values(pc.unique(last["snapshot_at"]))
        held = read_table(SNAPSHOTS, ("snapshot_at", is_in, times), *_build_session_conditions(due), sessions=last)
        rows = select_matching_rows(held, CUT_COLUMNS, last)
        if late_filled.num_rows:
            begun, history = read_stored_rows_and_later_changes(
                read_table, late_filled, kept, last_batch, self._columns, _build_session_conditions(due)
            )
            rows = pa.concat_tables([rows.select(begun.column_names).cast(begun.schema), begun])
            changes = pa.concat_tables(
                [changes.filter(pc.invert(mask_rows_of_sessions(changes, late_filled))), history]
            )
        return rows, changes, late_filled

    def _find_late_filled_sessions(
        self, read_table: ReadTable, changes: pa.Table, last_kept: pa.Table, range_conditions: Sequence[Condition]
    ) -> pa.Table:
        """Returns the sessions that had a late fill since their last tables were stored.

        Args:
            read_table: Reads a table.
            changes: The changes since these tables were stored.
            last_kept: The last cut of each session whose table is stored.
            range_conditions: Conditions that exclude rows after the range.
        """
        oldest = pc.min(changes["_batch"]).as_py()
        if oldest is None:
            return changes.select(SESSION)
        conditions = ("beneath", operator.eq, True), ("_batch", operator.ge, oldest), *range_conditions
        found = read_table(PROGRESS, *conditions, columns=[*SESSION, "_batch"], sessions=changes.select(SESSION))
        found = found.filter(_compare_with_last_cut(found, "_batch", pc.greater_equal, last_kept, "_batch"))
        return found.group_by(list(SESSION)).aggregate([])


def _build_session_conditions(due: pa.Table) -> tuple[Condition, ...]:
    """Returns a condition that selects the sessions by their ids; an empty tuple if there are too many."""
    ids = pc.unique(due["session_id"]).to_pylist()
    return (("session_id", is_in, ids),) if len(ids) <= NAMED_SESSIONS else ()


def _read_cuts_since_last_stored(read_table: ReadTable, last: pa.Table, *conditions: Condition) -> pa.Table:
    """Returns the cuts of these sessions from the oldest of their last stored ones on, with their number of `changes`.

    Args:
        read_table: Reads a table.
        last: The last cut of each session whose table is stored.
        conditions: More conditions on the cuts.
    """
    oldest = pc.min(last["_batch"]).as_py()
    since: Condition = ("_batch", operator.lt, 0) if oldest is None else ("_batch", operator.ge, oldest)
    return read_table(CUTS, since, *conditions, columns=[*SESSION, "position", "changes"], sessions=last)


def _build_since_condition(due: pa.Table, last: pa.Table) -> Condition:
    """Returns a condition that all changes since the sessions' last stored tables meet. Other changes may meet it, too.

    Changes after a cut have at least the cut's time. Without a cut, they have at least the time of the first change.

    Args:
        due: The cuts to compute tables for.
        last: The last cut of each session whose table is stored.
    """
    first = due.filter(pc.invert(mask_rows_of_sessions(due, last)))["changed_at"]
    times = [
        time for time in map(convert_to_python_value, (pc.min(first), pc.min(last["snapshot_at"]))) if time is not None
    ]
    return ("_applied_at", operator.ge, min(times)) if times else ("_batch", operator.lt, 0)


def _compare_with_last_cut(
    rows: pa.Table, column: str, compare: Callable[..., Any], last: pa.Table, last_column: str
) -> pa.Array:
    """Compares a column of each row with its session's last stored cut. True if the session has no such cut.

    Args:
        rows: The rows.
        column: The column of the rows to compare.
        compare: An Arrow compute function that returns booleans, such as `greater`.
        last: The last cut of each session whose table is stored.
        last_column: The column of `last` to compare with.
    """
    value = last[last_column].take(
        pc.index_in(build_session_key_of_each_row(rows), value_set=build_session_key_of_each_row(last))
    )
    return pc.fill_null(compare(rows[column], value), pa.scalar(value=True))


def find_lowest_value(rows: DataFrame | pa.Table, column: str) -> Any:
    """Returns the lowest value of a column of times or integers; None if there are no rows."""
    from pyspark.sql import functions as F

    if isinstance(rows, pa.Table):
        return convert_to_python_value(pc.min(rows[column]))
    if dict(rows.dtypes)[column] != "timestamp":
        return rows.agg(F.min(column)).collect()[0][0]
    # Collecting a timestamp would lose its time zone, so it is collected as a number.
    micros = rows.agg(F.unix_micros(F.min(column))).collect()[0][0]
    return None if micros is None else convert_to_python_value(pa.scalar(micros, pa.timestamp("us", "UTC")))
