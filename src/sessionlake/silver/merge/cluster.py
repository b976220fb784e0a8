"""Computes the rows to merge into `session_rows` and `sessions` with Spark, for ranges of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, PROGRESS, ROWS
from sessionlake.protocol.names import DELETE, quote
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.net_changes import NetChangesMapper, build_net_changes_ddl
from sessionlake.silver.tables.snapshots import ROW_KEY
from sessionlake.spark.frames import apply_to_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from sessionlake.protocol.arrow import SESSION
from sessionlake.silver.merge.batch_range import NAMED_SESSIONS, BatchRange, MergeRowsComputer
from sessionlake.silver.merge.sessions import select_newest_progress_frame

# A task sorts its changes in memory, so their number is limited.
_CHANGES_A_TASK = 1_000_000


class SparkMergeRowsComputer(MergeRowsComputer):
    """Computes with Spark the rows to merge into `session_rows` and `sessions`.

    Args:
        spark: The Spark session.
        lake: The lake.
        settings: The settings of the lake.
        batches: The range of batches to merge.
        changes: The approximate number of changes in the range, which decides the number of Spark tasks.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, changes: int) -> None:
        super().__init__(spark, lake, settings, batches)
        self._tasks = max(spark.sparkContext.defaultParallelism, changes // _CHANGES_A_TASK)

    def _read_rows_of_batch_range(self, table: str) -> DataFrame:
        from pyspark.sql import functions as F

        batches = F.col("_batch").between(self._batches.first, self._batches.last)
        return self._lake.read(self._spark, table).where(batches)

    def compute_session_rows_to_merge(self) -> DataFrame:
        """Returns the rows to merge into `sessions`: each session's newest row in the range's `session_progress`."""
        # MERGE reads its source twice. The checkpoint has the source computed once.
        return select_newest_progress_frame(self._read_rows_of_batch_range(PROGRESS)).localCheckpoint()

    def compute_net_changes_to_merge(self) -> DataFrame:
        """Returns the net changes to merge into `session_rows`, with a delete for each row that a clear removes."""
        from pyspark.sql import functions as F

        changes = self._read_rows_of_batch_range(CHANGES).select(*(quote(name) for name in self._change_column_names))
        filled_late = self._read_rows_of_batch_range(PROGRESS).where("beneath").select(*SESSION).distinct()
        refolded_ids = [
            row["session_id"] for row in filled_late.select("session_id").limit(NAMED_SESSIONS + 1).collect()
        ]
        if refolded_ids:
            changes = changes.join(F.broadcast(filled_late), list(SESSION), "left_anti").select(
                *map(quote, changes.columns)
            )
        by_session = changes.repartition(self._tasks, *(F.col(name) for name in SESSION))
        net = apply_to_batches(by_session, NetChangesMapper(self._columns), build_net_changes_ddl(self._columns))
        if refolded_ids:
            net = net.unionByName(self._recompute_late_filled_sessions(filled_late, refolded_ids))
        net = net.localCheckpoint()
        rows, clears = net.where(F.col("row_id").isNotNull()), net.where(F.col("row_id").isNull()).select(*SESSION)
        named = [row["session_id"] for row in clears.select("session_id").limit(NAMED_SESSIONS + 1).collect()]
        if not named:
            return rows
        gone = self._read_present_row_ids(clears, named).join(rows.select(*ROW_KEY), list(ROW_KEY), "left_anti")
        all_rows = rows.unionByName(gone.withColumn(DELETE, F.lit(col=True)), allowMissingColumns=True)
        return all_rows.localCheckpoint()  # it is also read to find the bounds of its keys

    def _read_present_row_ids(self, cleared: DataFrame, session_ids: list[str]) -> DataFrame:
        """Returns the keys of the rows that `session_rows` has now for these sessions.

        Args:
            cleared: The sessions, whose tables were cleared.
            session_ids: Their ids, by which files are skipped if there are not too many.
        """
        from pyspark.sql import functions as F

        held = self._lake.read(self._spark, ROWS).select(*ROW_KEY)
        if len(session_ids) <= NAMED_SESSIONS:
            held = held.where(F.col("session_id").isin(session_ids))
        return held.join(F.broadcast(cleared), list(SESSION), "left_semi")

    def _recompute_late_filled_sessions(self, refold_sessions: DataFrame, session_ids: list[str]) -> DataFrame:
        """Returns the net changes of sessions with late fills, from all their changes up to the end of the range."""
        from pyspark.sql import functions as F

        history = self._lake.read(self._spark, CHANGES).where(F.col("_batch") <= self._batches.last)
        if len(session_ids) <= NAMED_SESSIONS:
            history = history.where(F.col("session_id").isin(session_ids))
        own = history.join(F.broadcast(refold_sessions), list(SESSION), "left_semi")
        by_session = own.select(*(quote(name) for name in self._change_column_names)).repartition(self._tasks, *SESSION)
        return apply_to_batches(
            by_session, NetChangesMapper(self._columns, in_seq_order=True), build_net_changes_ddl(self._columns)
        )
