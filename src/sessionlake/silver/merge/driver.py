"""Computes the rows to merge into `session_rows` and `sessions` in the driver, with few Spark jobs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, PROGRESS, ROWS
from sessionlake.delta.storage.reading import Condition, is_in
from sessionlake.protocol.arrow import SESSION, mask_rows_of_sessions
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.kept_cuts import ReadTable, read_cuts_with_stored_tables
from sessionlake.silver.merge.seq_history import read_stored_rows_and_later_changes
from sessionlake.silver.tables.net_changes import compute_net_changes, compute_net_changes_in_seq_order
from sessionlake.silver.tables.snapshots import ROW_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from sessionlake.silver.merge.batch_range import NAMED_SESSIONS, BatchRange, MergeRowsComputer
from sessionlake.silver.merge.sessions import select_newest_progress


class DriverMergeRowsComputer(MergeRowsComputer):
    """Computes in the driver the rows to merge into `session_rows` and `sessions`, for ranges that fit into its memory.

    Raises:
        TooLargeError: The rows to read do not fit into the driver's memory.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange) -> None:
        super().__init__(spark, lake, settings, batches)
        self._table: ReadTable = partial(lake.reader(spark).read_arrow_table, max_bytes=lake.driver_limits.driver_bytes)
        self._changes = self._read_rows_of_batch_range(CHANGES, self._change_column_names)
        self._progress = self._read_rows_of_batch_range(PROGRESS, None)

    def _read_rows_of_batch_range(self, table: str, columns: Sequence[str] | None) -> pa.Table:
        """Returns the rows that the range has appended to a table: from memory if all are there, else read."""
        known = self._batches.find_rows_in_memory(table)
        if known is not None:
            return known if columns is None else known.select(columns)
        batches: list[Condition] = [
            ("_batch", operator.ge, self._batches.first),
            ("_batch", operator.le, self._batches.last),
        ]
        return self._table(table, *batches, columns=columns)

    def compute_session_rows_to_merge(self) -> pa.Table:
        """Returns the rows to merge into `sessions`: each session's newest row in the range's `session_progress`."""
        return select_newest_progress(self._progress)

    def compute_net_changes_to_merge(self) -> pa.Table:
        """Returns the net changes to merge into `session_rows`, with a delete for each row that a clear removes."""
        changes = self._changes
        filled_late = self._progress.filter(self._progress["beneath"]).group_by(list(SESSION)).aggregate([])
        if filled_late.num_rows:
            usual = compute_net_changes(
                changes.filter(pc.invert(mask_rows_of_sessions(changes, filled_late))), self._columns
            )
            net = pa.concat_tables([usual, self._recompute_late_filled_sessions(filled_late)])
        else:
            net = compute_net_changes(changes, self._columns)
        marks = pc.is_null(net["row_id"])
        rows, clears = net.filter(pc.invert(marks)), net.filter(marks).select(SESSION)
        if clears.num_rows:
            held = self._table(ROWS, *_build_session_conditions(clears), columns=ROW_KEY, sessions=clears)
            gone = held.join(rows.select(ROW_KEY), list(ROW_KEY), join_type="left anti")
            rows = pa.concat_tables([rows, _build_delete_rows(gone, rows.schema)])
        return rows

    def _recompute_late_filled_sessions(self, sessions: pa.Table) -> pa.Table:
        """Returns the net changes of sessions (class `once`) with late fills, computed from all their changes.

        A late fill is applied after messages with higher seqs but takes effect below them. So the range's changes alone
        do not show which change of a value is the last one in seq order.
        """
        named = _build_session_conditions(sessions)
        cuts = read_cuts_with_stored_tables(
            self._table, *named, ("_batch", operator.lt, self._batches.first), sessions=sessions
        )
        rows, changes = read_stored_rows_and_later_changes(
            self._table, sessions, cuts, self._batches.last, self._columns, named
        )
        return compute_net_changes_in_seq_order(changes, self._columns, rows)


def _build_session_conditions(sessions: pa.Table) -> list[Condition]:
    """Returns a condition that selects the sessions by their ids; an empty list if there are too many."""
    ids = sessions["session_id"].to_pylist()
    return [("session_id", is_in, ids)] if len(ids) <= NAMED_SESSIONS else []


def _build_delete_rows(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns net changes that delete the rows with these keys."""
    count = keys.num_rows
    given = {**{name: keys[name] for name in ROW_KEY}, DELETE: pa.array([True] * count, pa.bool_())}
    return pa.Table.from_arrays([given.get(f.name, pa.nulls(count, f.type)) for f in schema], schema=schema)
