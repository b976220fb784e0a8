"""Snapshots without Spark: made as the table merger makes them, from what a folder's batches gave."""

from __future__ import annotations

import operator

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import CUTS, SNAPSHOT_INDEX
from sessionlake.integrity.cuts import NO_OFFSET
from sessionlake.protocol.arrow import SESSION, is_of_sessions, session_keys
from sessionlake.settings.model import CaptureSettings
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, PROGRESS_SCHEMA, SilverOutput, changes_schema
from sessionlake.silver.merge.kept_cuts import kept_cuts
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    change_columns,
    last_cuts,
    sizes,
    snapshots,
    snapshots_schema,
)
from sessionlake.silver.tables.weights import of_kept, since_kept
from support.folding import Folder
from support.tables import Tables

INDEX_SCHEMA = pa.schema([*CUTS_SCHEMA, ("rows", pa.int64()), ("_batch", pa.int64())])


class Cutter:
    """Makes the snapshots of stretches of batches, each from the last kept tables before and what was applied since.

    Args:
        uncounted: how many batches were judged by a version that counted no changes, which all have their tables kept.
        unlisted: how many of these were merged by it, too: their tables are not in the index.

    Attributes:
        found: rows of `session_snapshots`.
        index: rows of `session_snapshot_index`.
    """

    def __init__(self, folder: Folder, capture: CaptureSettings, uncounted: int = 0, unlisted: int = 0) -> None:
        self._columns, self._folder = capture.declared, folder
        self._uncounted, self._unlisted = uncounted, unlisted
        self.found = snapshots_schema(self._columns).empty_table()
        self.index = INDEX_SCHEMA.empty_table()

    def make(self, start: int, end: int) -> None:
        """The batches from `start` to before `end`."""
        cuts = self.cuts
        due = cuts.filter(pc.and_(pc.greater_equal(cuts["_batch"], start), pc.less(cuts["_batch"], end)))
        kept = kept_cuts(Tables({CUTS: cuts, SNAPSHOT_INDEX: self.index}).table, ("_batch", operator.lt, start))
        last = last_cuts(kept.filter(is_of_sessions(kept, due)))
        weights = since_kept(last, cuts.filter(pc.less(cuts["_batch"], start)))
        due = due.filter(of_kept(due, weights))
        last = last.filter(is_of_sessions(last, due))
        changes = self._until(end, self._folder.table(SilverOutput.CHANGES, changes_schema(self._columns)))
        progress = self._until(end, self._folder.table(SilverOutput.PROGRESS, PROGRESS_SCHEMA))
        anew = progress.filter(progress["beneath"]).group_by(list(SESSION)).aggregate([])
        base = last["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(last)))
        since = pc.greater(changes["_position"], pc.fill_null(base, NO_OFFSET))
        changes = changes.filter(pc.or_(since, is_of_sessions(changes, anew))).select(change_columns(self._columns))
        rows = self.found.join(last.select(CUT_COLUMNS), list(CUT_COLUMNS), join_type="left semi")
        rows = rows.filter(pc.invert(is_of_sessions(rows, anew)))
        weighed = due.select([*CUT_COLUMNS, "changes"])
        made = list(snapshots(weighed, weights, rows, changes, anew, self._columns))
        whole = pa.concat_tables([self.found.slice(0, 0), *made])
        self.found = pa.concat_tables([self.found, whole.filter(pc.is_valid(whole["row_id"]))])
        index = due.join(sizes(whole), list(CUT_COLUMNS), join_type="inner")
        index = index.filter(pc.field("_batch") >= self._unlisted)
        self.index = pa.concat_tables([self.index, index.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)])

    @property
    def cuts(self) -> pa.Table:
        """Rows of `session_cuts`."""
        cuts = self._folder.table(SilverOutput.CUTS, CUTS_SCHEMA)
        counted = pc.greater_equal(cuts["_batch"], self._uncounted)
        changes = pc.if_else(counted, cuts["changes"], pa.scalar(None, pa.int64()))
        return cuts.set_column(cuts.column_names.index("changes"), "changes", changes)

    @staticmethod
    def _until(end: int, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["_batch"], end))
