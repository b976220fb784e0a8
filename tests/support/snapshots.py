"""Snapshots without Spark: made as the table merger makes them, from what a folder's batches gave."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import CaptureSettings
from sessionlake.integrity.cuts import NO_OFFSET
from sessionlake.protocol.arrow import are_of, session_keys
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, PROGRESS_SCHEMA, SilverOutput, changes_schema
from sessionlake.silver.tables.snapshots import CUT_COLUMNS, change_columns, last_cuts, snapshots, snapshots_schema
from support.folding import Folder

SESSION = ["topic", "session_id"]


class Cutter:
    """Makes the snapshots of stretches of batches, each from the last cuts before it and what was applied since."""

    def __init__(self, folder: Folder, capture: CaptureSettings) -> None:
        self._columns, self._folder = capture.declared, folder
        self.found = snapshots_schema(self._columns).empty_table()

    def make(self, start: int, end: int) -> None:
        """The batches from `start` to before `end`."""
        cuts = self._folder.table(SilverOutput.CUTS, CUTS_SCHEMA)
        due = cuts.filter(pc.and_(pc.greater_equal(cuts["_batch"], start), pc.less(cuts["_batch"], end)))
        earlier = cuts.filter(pc.less(cuts["_batch"], start))
        last = last_cuts(earlier.filter(are_of(earlier, due)))
        changes = self._until(end, self._folder.table(SilverOutput.CHANGES, changes_schema(self._columns)))
        progress = self._until(end, self._folder.table(SilverOutput.PROGRESS, PROGRESS_SCHEMA))
        anew = progress.filter(progress["beneath"]).group_by(SESSION).aggregate([])
        base = last["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(last)))
        since = pc.greater(changes["_position"], pc.fill_null(base, NO_OFFSET))
        changes = changes.filter(pc.or_(since, are_of(changes, anew))).select(change_columns(self._columns))
        rows = self.found.join(last.select(CUT_COLUMNS), list(CUT_COLUMNS), join_type="left semi")
        rows = rows.filter(pc.invert(are_of(rows, anew)))
        self.found = pa.concat_tables(
            [self.found, *snapshots(due.select(CUT_COLUMNS), rows, changes, anew, self._columns)]
        )

    @staticmethod
    def _until(end: int, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["_batch"], end))
