"""The sources of the MERGEs into `session_rows` and `sessions`, made by Spark: for any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, PROGRESS, ROWS
from sessionlake.protocol.names import DELETE, quote
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.net_changes import NetChanges, Refolded, net_ddl
from sessionlake.silver.tables.snapshots import ROW_KEY
from sessionlake.spark.frames import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from sessionlake.protocol.arrow import SESSION
from sessionlake.silver.merge.batch_range import NAMED_SESSIONS, BatchRange, Source
from sessionlake.silver.merge.sessions import newest_progress

# A task sorts its changes in memory.
_CHANGES_A_TASK = 1_000_000


class ClusterSource(Source):
    """Makes the sources of the two MERGEs by Spark, for ranges of any size.

    Args:
        changes: about how many rows there are.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, changes: int) -> None:
        super().__init__(spark, lake, settings, batches)
        self._tasks = max(spark.sparkContext.defaultParallelism, changes // _CHANGES_A_TASK)

    def _between(self, table: str) -> DataFrame:
        from pyspark.sql import functions as F

        batches = F.col("_batch").between(self._batches.first, self._batches.last)
        return self._lake.read(self._spark, table).where(batches)

    def sessions(self) -> DataFrame:
        """See `DriverSource.sessions`."""
        # MERGE reads its source twice: it is computed once, here, and leaves its plan behind.
        return newest_progress(self._between(PROGRESS)).localCheckpoint()

    def rows(self) -> DataFrame:
        """See `DriverSource.rows`."""
        from pyspark.sql import functions as F

        changes = self._between(CHANGES).select(*(quote(name) for name in self._read))
        filled_late = self._between(PROGRESS).where("beneath").select(*SESSION).distinct()
        anew = [row["session_id"] for row in filled_late.select("session_id").limit(NAMED_SESSIONS + 1).collect()]
        if anew:
            changes = changes.join(F.broadcast(filled_late), list(SESSION), "left_anti").select(
                *map(quote, changes.columns)
            )
        by_session = changes.repartition(self._tasks, *(F.col(name) for name in SESSION))
        net = map_batches(by_session, NetChanges(self._columns), net_ddl(self._columns))
        if anew:
            net = net.unionByName(self._refolded(filled_late, anew))
        net = net.localCheckpoint()
        rows, clears = net.where(F.col("row_id").isNotNull()), net.where(F.col("row_id").isNull()).select(*SESSION)
        named = [row["session_id"] for row in clears.select("session_id").limit(NAMED_SESSIONS + 1).collect()]
        if not named:
            return rows
        gone = self._held(clears, named).join(rows.select(*ROW_KEY), list(ROW_KEY), "left_anti")
        whole = rows.unionByName(gone.withColumn(DELETE, F.lit(col=True)), allowMissingColumns=True)
        return whole.localCheckpoint()  # it is read for bounds, too

    def _held(self, cleared: DataFrame, names: list[str]) -> DataFrame:
        """Keys that the table holds now of these sessions.

        Args:
            names: their ids, if they are few; with one more than `NAMED_SESSIONS` they are not looked up by name.
        """
        from pyspark.sql import functions as F

        held = self._lake.read(self._spark, ROWS).select(*ROW_KEY)
        if len(names) <= NAMED_SESSIONS:
            held = held.where(F.col("session_id").isin(names))
        return held.join(F.broadcast(cleared), list(SESSION), "left_semi")

    def _refolded(self, sessions: DataFrame, names: list[str]) -> DataFrame:
        """See `DriverSource._refolded`; here out of all changes of these sessions up to the range's end."""
        from pyspark.sql import functions as F

        history = self._lake.read(self._spark, CHANGES).where(F.col("_batch") <= self._batches.last)
        if len(names) <= NAMED_SESSIONS:
            history = history.where(F.col("session_id").isin(names))
        own = history.join(F.broadcast(sessions), list(SESSION), "left_semi")
        by_session = own.select(*(quote(name) for name in self._read)).repartition(self._tasks, *SESSION)
        return map_batches(by_session, Refolded(self._columns), net_ddl(self._columns))
