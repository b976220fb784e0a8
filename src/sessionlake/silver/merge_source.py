"""The sources of the two MERGEs: the latest row of each session, and the net change of each table row.

Small stretches are worked out in the driver, which saves Spark jobs; large ones on the cluster. Both run the
same pure function (`net.net_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.arrow import are_of
from sessionlake.protocol.columns import RESCUED
from sessionlake.runtime.frames import as_frame
from sessionlake.silver.job import CHANGES, PROGRESS
from sessionlake.silver.net import MARKS, NetChanges, Refolded, net_changes, net_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "silver.session_rows"
KEY = ("topic", "session_id", "row_id")
SESSION = ("topic", "session_id")
# Up to this many rows of changes the driver does the work: a few tens of megabytes.
SMALL_CHANGES = 100_000
# Cleared sessions up to this number are looked up by name, which lets Delta skip files.
_NAMED_SESSIONS = 500


@dataclass(frozen=True)
class Stretch:
    """Batches that are merged at once.

    Attributes:
        rows: for each of them, its rows by table where they are at hand.
    """

    first: int
    last: int
    rows: tuple[Mapping[str, pa.Table], ...] = ()

    def at_hand(self, table: str) -> pa.Table | None:
        """All rows of a table, or None if some must be read. A batch that wrote none has none to hand over."""
        if not self.rows or not all(self.rows):
            return None
        found = [rows[table] for rows in self.rows if table in rows]
        return pa.concat_tables(found) if found else None


class _Source:
    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._columns = settings.capture.declared

    def _between(self, table: str, stretch: Stretch) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(self._spark, table).where(F.col("_batch").between(stretch.first, stretch.last))

    def _changes(self, stretch: Stretch) -> DataFrame:
        return self._between(CHANGES, stretch).select(*(quote(name) for name in self._read))

    @property
    def _read(self) -> tuple[str, ...]:
        declared = (column.name for column in self._columns)
        return (*KEY, *declared, RESCUED, *MARKS, "change", "_set", "_position", "ordinal", "_life")

    def _held(self, sessions: list[str]) -> DataFrame:
        """Keys that the table holds now; of these sessions only, if they are few enough to name."""
        from pyspark.sql import functions as F

        held = self._lake.read(self._spark, ROWS).select(*KEY)
        return held.where(F.col("session_id").isin(sessions)) if len(sessions) <= _NAMED_SESSIONS else held

    def _refolded(self, sessions: DataFrame, names: list[str], stretch: Stretch) -> DataFrame:
        """Net changes of sessions (class `once`) in which something was applied beneath newer messages.

        Who wrote a value last is then a matter of all their changes, up to the stretch's end, not of the stretch's.
        """
        from pyspark.sql import functions as F

        history = self._lake.read(self._spark, CHANGES).where(F.col("_batch") <= stretch.last)
        if len(names) <= _NAMED_SESSIONS:
            history = history.where(F.col("session_id").isin(names))
        own = history.join(F.broadcast(sessions), list(SESSION), "left_semi")
        by_session = own.select(*(quote(name) for name in self._read)).repartition(
            self._spark.sparkContext.defaultParallelism, *SESSION
        )
        return by_session.mapInArrow(Refolded(self._columns), net_ddl(self._columns))


class DriverSource(_Source):
    """Works in the driver: for stretches of up to `SMALL_CHANGES` rows."""

    def sessions(self, stretch: Stretch) -> DataFrame:
        """The last row of each session out of the batches' progress."""
        progress = self._progress(stretch).sort_by([("_batch", "descending")])
        index = pa.array(range(progress.num_rows), pa.int64())
        newest = progress.append_column("_index", index).group_by(list(SESSION)).aggregate([("_index", "min")])
        latest = progress.take(newest["_index_min"]).drop_columns(["beneath", "_batch"])
        return as_frame(self._spark, latest)

    def rows(self, stretch: Stretch) -> DataFrame:
        """Net changes (see `net.net_schema`), with a delete for each row that a clear leaves behind."""
        known = stretch.at_hand(CHANGES)
        changes = self._changes(stretch).toArrow() if known is None else known.select(self._read)
        progress = self._progress(stretch)
        beneath = progress.filter(progress["beneath"]).group_by(list(SESSION)).aggregate([])
        if beneath.num_rows:
            usual = net_changes(changes.filter(pc.invert(are_of(changes, beneath))), self._columns)
            names = beneath["session_id"].to_pylist()
            anew = self._refolded(as_frame(self._spark, beneath), names, stretch).toArrow()
            net = pa.concat_tables([usual, anew.cast(usual.schema)])
        else:
            net = net_changes(changes, self._columns)
        marks = pc.is_null(net["row_id"])
        rows, clears = net.filter(pc.invert(marks)), net.filter(marks).select(SESSION)
        if clears.num_rows:
            held = self._held(clears["session_id"].to_pylist()).toArrow()
            gone = held.join(clears, list(SESSION), join_type="left semi").join(
                rows.select(KEY), list(KEY), join_type="left anti"
            )
            rows = pa.concat_tables([rows, _deletes(gone, rows.schema)])
        return as_frame(self._spark, rows)

    def _progress(self, stretch: Stretch) -> pa.Table:
        known = stretch.at_hand(PROGRESS)
        return self._between(PROGRESS, stretch).toArrow() if known is None else known


class ClusterSource(_Source):
    """Works in Spark: for any size."""

    def sessions(self, stretch: Stretch) -> DataFrame:
        """See `DriverSource.sessions`."""
        # MERGE reads its source twice: it is computed once, here, and leaves its plan behind.
        return newest_progress(self._between(PROGRESS, stretch)).localCheckpoint()

    def rows(self, stretch: Stretch) -> DataFrame:
        """See `DriverSource.rows`."""
        from pyspark.sql import functions as F

        changes = self._changes(stretch)
        beneath = self._between(PROGRESS, stretch).where("beneath").select(*SESSION).distinct()
        anew = [row["session_id"] for row in beneath.select("session_id").limit(_NAMED_SESSIONS + 1).collect()]
        if anew:
            changes = changes.join(F.broadcast(beneath), list(SESSION), "left_anti").select(*changes.columns)
        tasks = self._spark.sparkContext.defaultParallelism
        by_session = changes.repartition(tasks, *(F.col(name) for name in SESSION))
        net = by_session.mapInArrow(NetChanges(self._columns), net_ddl(self._columns))
        if anew:
            net = net.unionByName(self._refolded(beneath, anew, stretch))
        net = net.localCheckpoint()
        rows, clears = net.where(F.col("row_id").isNotNull()), net.where(F.col("row_id").isNull()).select(*SESSION)
        named = [row["session_id"] for row in clears.select("session_id").limit(_NAMED_SESSIONS + 1).collect()]
        if not named:
            return rows
        held = self._held(named).join(F.broadcast(clears), list(SESSION), "left_semi")
        gone = held.join(rows.select(*KEY), list(KEY), "left_anti").withColumn("_delete", F.lit(col=True))
        return rows.unionByName(gone, allowMissingColumns=True)


def newest_progress(progress: DataFrame) -> DataFrame:
    """Rows of `silver.sessions` out of those of `session_progress`: each session's last."""
    from pyspark.sql import functions as F

    fields = [name for name in progress.columns if name not in {*SESSION, "beneath", "_batch"}]
    newest = progress.groupBy(*SESSION).agg(F.max_by(F.struct(*fields), "_batch").alias("newest"))
    return newest.select(*SESSION, "newest.*")


def _deletes(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    count = keys.num_rows
    given = {**{name: keys[name] for name in KEY}, "_delete": pa.array([True] * count, pa.bool_())}
    return pa.Table.from_arrays([given.get(f.name, pa.nulls(count, f.type)) for f in schema], schema=schema)
