"""The sources of the two MERGEs: the latest row of each session, and the net change of each table row.

Small stretches are worked out in the driver, which saves Spark jobs; large ones on the cluster. Both run the
same pure function (`net.net_changes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.columns import RESCUED
from sessionlake.silver.job import CHANGES, PROGRESS
from sessionlake.silver.net import MARKS, NetChanges, net_changes, net_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "silver.session_rows"
KEY = ("topic", "session_id", "row_id")
SESSION = ("topic", "session_id")
# Up to this many rows of changes the driver does the work: a few tens of megabytes.
SMALL_CHANGES = 100_000
# Cleared sessions up to this number are looked up by name, which lets Delta skip files.
_NAMED_SESSIONS = 500


class _Source:
    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._columns = settings.capture.declared

    def _between(self, table: str, first: int, last: int) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(self._spark, table).where(F.col("_batch").between(first, last))

    def _changes(self, first: int, last: int) -> DataFrame:
        declared = (column.name for column in self._columns)
        read = (*KEY, *declared, RESCUED, *MARKS, "change", "_set", "_position", "ordinal")
        return self._between(CHANGES, first, last).select(*(quote(name) for name in read))

    def _held(self, sessions: list[str]) -> DataFrame:
        """Keys that the table holds now; of these sessions only, if they are few enough to name."""
        from pyspark.sql import functions as F

        held = self._lake.read(self._spark, ROWS).select(*KEY)
        return held.where(F.col("session_id").isin(sessions)) if len(sessions) <= _NAMED_SESSIONS else held


class DriverSource(_Source):
    """Works in the driver: for stretches of up to `SMALL_CHANGES` rows."""

    def sessions(self, first: int, last: int) -> DataFrame:
        """The last row of each session out of the batches' progress."""
        progress = self._between(PROGRESS, first, last).toArrow().sort_by([("_batch", "descending")])
        index = pa.array(range(progress.num_rows), pa.int64())
        newest = progress.append_column("_index", index).group_by(list(SESSION)).aggregate([("_index", "min")])
        latest = progress.take(newest["_index_min"]).drop_columns(["_batch"])
        return self._spark.createDataFrame(latest)

    def rows(self, first: int, last: int) -> DataFrame:
        """Net changes (see `net.net_schema`), with a delete for each row that a clear leaves behind."""
        net = net_changes(self._changes(first, last).toArrow(), self._columns)
        marks = pc.is_null(net["row_id"])
        rows, clears = net.filter(pc.invert(marks)), net.filter(marks).select(SESSION)
        if clears.num_rows:
            held = self._held(clears["session_id"].to_pylist()).toArrow()
            gone = held.join(clears, list(SESSION), join_type="left semi").join(
                rows.select(KEY), list(KEY), join_type="left anti"
            )
            rows = pa.concat_tables([rows, _deletes(gone, rows.schema)])
        return self._spark.createDataFrame(rows)


class ClusterSource(_Source):
    """Works in Spark: for any size."""

    def sessions(self, first: int, last: int) -> DataFrame:
        """See `DriverSource.sessions`."""
        from pyspark.sql import functions as F

        progress = self._between(PROGRESS, first, last)
        fields = [name for name in progress.columns if name not in {*SESSION, "_batch"}]
        newest = progress.groupBy(*SESSION).agg(F.max_by(F.struct(*fields), "_batch").alias("newest"))
        # MERGE reads its source twice: it is computed once, here, and leaves its plan behind.
        return newest.select(*SESSION, "newest.*").localCheckpoint()

    def rows(self, first: int, last: int) -> DataFrame:
        """See `DriverSource.rows`."""
        from pyspark.sql import functions as F

        tasks = self._spark.sparkContext.defaultParallelism
        by_session = self._changes(first, last).repartition(tasks, *(F.col(name) for name in SESSION))
        net = by_session.mapInArrow(NetChanges(self._columns), net_ddl(self._columns)).localCheckpoint()
        rows, clears = net.where(F.col("row_id").isNotNull()), net.where(F.col("row_id").isNull()).select(*SESSION)
        named = [row["session_id"] for row in clears.select("session_id").limit(_NAMED_SESSIONS + 1).collect()]
        if not named:
            return rows
        held = self._held(named).join(F.broadcast(clears), list(SESSION), "left_semi")
        gone = held.join(rows.select(*KEY), list(KEY), "left_anti").withColumn("_delete", F.lit(col=True))
        return rows.unionByName(gone, allowMissingColumns=True)


def _deletes(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    count = keys.num_rows
    given = {**{name: keys[name] for name in KEY}, "_delete": pa.array([True] * count, pa.bool_())}
    return pa.Table.from_arrays([given.get(f.name, pa.nulls(count, f.type)) for f in schema], schema=schema)
