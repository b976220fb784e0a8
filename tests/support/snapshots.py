"""Computes snapshots without Spark from a folder's batches, as the table merger does."""

from __future__ import annotations

import operator

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import CUTS, SNAPSHOT_INDEX
from sessionlake.integrity.cuts import NO_OFFSET
from sessionlake.protocol.arrow import SESSION, build_session_key_of_each_row, mask_rows_of_sessions
from sessionlake.settings.model import CaptureSettings
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, PROGRESS_SCHEMA, SilverPayloadKind, build_changes_schema
from sessionlake.silver.merge.kept_cuts import read_cuts_with_stored_tables
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    build_snapshots_schema,
    compute_snapshots,
    count_rows_of_each_snapshot,
    list_columns_of_session_changes,
    select_last_cut_of_each_session,
)
from sessionlake.silver.tables.weights import build_snapshot_weights, mark_cuts_of_storing_sessions
from support.folding import Folder
from support.tables import Tables

INDEX_SCHEMA = pa.schema([*CUTS_SCHEMA, ("rows", pa.int64()), ("_batch", pa.int64())])


class Cutter:
    """Computes the snapshots of ranges of batches, each from earlier snapshots and the changes since.

    Args:
        folder: The folder with the batches.
        capture: Capture settings.
        uncounted: Number of batches from a version that did not count changes; all their tables are stored.
        unlisted: Number of these that were also merged by that version; their tables are not in the index.

    Attributes:
        found: Rows of `session_snapshots`.
        index: Rows of `session_snapshot_index`.
    """

    def __init__(self, folder: Folder, capture: CaptureSettings, uncounted: int = 0, unlisted: int = 0) -> None:
        self._columns, self._folder = capture.declared_columns, folder
        self._uncounted, self._unlisted = uncounted, unlisted
        self.found = build_snapshots_schema(self._columns).empty_table()
        self.index = INDEX_SCHEMA.empty_table()

    def make(self, start: int, end: int) -> None:
        """Computes the snapshots of the batches from `start` up to but not including `end`."""
        cuts = self.cuts
        due = cuts.filter(pc.and_(pc.greater_equal(cuts["_batch"], start), pc.less(cuts["_batch"], end)))
        kept = read_cuts_with_stored_tables(
            Tables({CUTS: cuts, SNAPSHOT_INDEX: self.index}).read_arrow_table, ("_batch", operator.lt, start)
        )
        last = select_last_cut_of_each_session(kept.filter(mask_rows_of_sessions(kept, due)))
        weights = build_snapshot_weights(last, cuts.filter(pc.less(cuts["_batch"], start)))
        due = due.filter(mark_cuts_of_storing_sessions(due, weights))
        last = last.filter(mask_rows_of_sessions(last, due))
        changes = self._until(end, self._folder.table(SilverPayloadKind.CHANGES, build_changes_schema(self._columns)))
        progress = self._until(end, self._folder.table(SilverPayloadKind.PROGRESS, PROGRESS_SCHEMA))
        remade = progress.filter(progress["beneath"]).group_by(list(SESSION)).aggregate([])
        base = last["position"].take(
            pc.index_in(build_session_key_of_each_row(changes), value_set=build_session_key_of_each_row(last))
        )
        since = pc.greater(changes["_position"], pc.fill_null(base, NO_OFFSET))
        changes = changes.filter(pc.or_(since, mask_rows_of_sessions(changes, remade))).select(
            list_columns_of_session_changes(self._columns)
        )
        rows = self.found.join(last.select(CUT_COLUMNS), list(CUT_COLUMNS), join_type="left semi")
        rows = rows.filter(pc.invert(mask_rows_of_sessions(rows, remade)))
        weighed = due.select([*CUT_COLUMNS, "changes"])
        made = list(compute_snapshots(weighed, weights, rows, changes, remade, self._columns))
        combined = pa.concat_tables([self.found.slice(0, 0), *made])
        self.found = pa.concat_tables([self.found, combined.filter(pc.is_valid(combined["row_id"]))])
        index = due.join(count_rows_of_each_snapshot(combined), list(CUT_COLUMNS), join_type="inner")
        index = index.filter(pc.field("_batch") >= self._unlisted)
        self.index = pa.concat_tables([self.index, index.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)])

    @property
    def cuts(self) -> pa.Table:
        """Returns the rows of `session_cuts`."""
        cuts = self._folder.table(SilverPayloadKind.CUTS, CUTS_SCHEMA)
        counted = pc.greater_equal(cuts["_batch"], self._uncounted)
        changes = pc.if_else(counted, cuts["changes"], pa.scalar(None, pa.int64()))
        return cuts.set_column(cuts.column_names.index("changes"), "changes", changes)

    @staticmethod
    def _until(end: int, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["_batch"], end))
