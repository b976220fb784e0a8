"""The source of the MERGE into `session_snapshots`: whole tables at the cuts of a stretch of batches.

Each from the session's last snapshot before the stretch and the changes since, both of which are there for good: so a
stretch that is merged again, with more behind it, gives the same rows. Few are made in the driver, many on the cluster.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.lake.reading import DirectReader, among
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.arrow import are_of, session_keys
from sessionlake.runtime.frames import as_frame
from sessionlake.silver.job import CHANGES, CUTS, PROGRESS
from sessionlake.silver.merge_source import SESSION, Stretch
from sessionlake.silver.snapshots import CUT, SnapshotTables, change_columns, last_cuts, snapshots, snapshots_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SNAPSHOTS = "silver.session_snapshots"
# So many sessions at most are named to the files, and so many rows read, where the driver does the work.
_FEW_SESSIONS = 500
_FEW_ROWS = 500_000
# A task of the cluster takes about so many cuts.
_CUTS_A_TASK = 2_000


class SnapshotSource:
    """Makes the snapshots of a stretch."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._columns = settings.capture.declared

    def of(self, stretch: Stretch, cuts: int) -> DataFrame:
        """Rows of `session_snapshots`.

        Args:
            cuts: how many the stretch has.
        """
        few = self._in_driver(stretch) if self._lake.local and cuts <= _FEW_SESSIONS else None
        return self.on_cluster(stretch, cuts) if few is None else as_frame(self._spark, few)

    # -- in the driver, without Spark

    def _in_driver(self, stretch: Stretch) -> pa.Table | None:
        """The rows; None if they, or what they are made of, are too many."""
        reader = DirectReader(self._lake)
        due = stretch.at_hand(CUTS)
        if due is None:
            due = reader.table(CUTS, ("_batch", operator.ge, stretch.first), ("_batch", operator.le, stretch.last))
        named = ("session_id", among, pc.unique(due["session_id"]).to_pylist())
        earlier = reader.table(CUTS, named, ("_batch", operator.lt, stretch.first))
        last = last_cuts(earlier.filter(are_of(earlier, due)))
        anew = self._anew(reader, due, last, stretch)
        held = [("snapshot_at", among, pc.unique(last["snapshot_at"]).to_pylist()), named]
        since = [] if anew.num_rows else _since(pc.min(due["changed_at"]).as_py())
        wanted = [named, *since, ("_batch", operator.le, stretch.last)]
        if reader.count(SNAPSHOTS, *held) + reader.count(CHANGES, *wanted) > _FEW_ROWS:
            return None
        changes = reader.table(CHANGES, *wanted, columns=change_columns(self._columns))
        position = last["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(last)))
        later = pc.fill_null(pc.greater(changes["_position"], position), pa.scalar(value=True))
        changes = changes.filter(pc.or_(later, are_of(changes, anew)))
        rows = reader.table(SNAPSHOTS, *held).join(last.select(CUT), list(CUT), join_type="left semi")
        made = snapshots(due.select(CUT), rows, changes, anew, self._columns)
        return pa.concat_tables([snapshots_schema(self._columns).empty_table(), *made])

    def _anew(self, reader: DirectReader, due: pa.Table, last: pa.Table, stretch: Stretch) -> pa.Table:
        """The sessions that something was applied beneath newer messages in, since their last cuts."""
        found = reader.table(
            PROGRESS,
            ("beneath", operator.eq, True),
            ("_batch", operator.le, stretch.last),
            columns=[*SESSION, "_batch"],
        )
        found = found.filter(are_of(found, due))
        batch = last["_batch"].take(pc.index_in(session_keys(found), value_set=session_keys(last)))
        later = pc.fill_null(pc.greater_equal(found["_batch"], batch), pa.scalar(value=True))
        return found.filter(later).group_by(list(SESSION)).aggregate([])

    # -- on the cluster

    def on_cluster(self, stretch: Stretch, cuts: int, tasks: int = 1) -> DataFrame:
        """The same by Spark, whatever the size.

        Args:
            tasks: among how many, at least, to share the work.
        """
        from pyspark.sql import functions as F

        due = self._read(CUTS).where(F.col("_batch").between(stretch.first, stretch.last))
        sessions = due.select(*SESSION).distinct()
        earlier = self._read(CUTS).where(F.col("_batch") < stretch.first).join(sessions, list(SESSION), "left_semi")
        newest = F.max(F.struct("position", "snapshot_at", "reason", "_batch")).alias("last")
        last = earlier.groupBy(*SESSION).agg(newest).select(*SESSION, "last.*").localCheckpoint()
        beneath = self._read(PROGRESS).where(F.col("beneath") & (F.col("_batch") <= stretch.last))
        anew = (
            beneath.join(sessions, list(SESSION), "left_semi")
            .join(last.select(*SESSION, F.col("_batch").alias("_last")), list(SESSION), "left")
            .where(F.col("_last").isNull() | (F.col("_batch") >= F.col("_last")))
            .select(*SESSION)
            .distinct()
            .withColumn("_anew", F.lit(1).cast("bigint"))
            .localCheckpoint()
        )
        since = due.agg(F.min("changed_at")).first()
        history = self._read(CHANGES).where(F.col("_batch") <= stretch.last)
        if since and since[0] is not None and anew.isEmpty():
            history = history.where(F.col("_applied_at") >= F.lit(since[0]))
        changes = (
            history.select(*map(quote, change_columns(self._columns)))
            .join(sessions, list(SESSION), "left_semi")
            .join(last.select(*SESSION, F.col("position").alias("_last")), list(SESSION), "left")
            .join(anew, list(SESSION), "left")
            .where(F.col("_anew").isNotNull() | F.col("_last").isNull() | (F.col("_position") > F.col("_last")))
            .drop("_anew", "_last")
        )
        rows = self._read(SNAPSHOTS).join(last.select(*CUT), list(CUT), "left_semi").drop("reason", "position")
        heads = due.select(*CUT).join(anew, list(SESSION), "left")
        parts = [
            heads.withColumnsRenamed({"position": "_position", "_anew": "_life"}).withColumn("_kind", F.lit("cut")),
            rows.drop("snapshot_at").withColumn("_kind", F.lit("row")),
            changes.withColumn("_kind", F.lit("change")),
        ]
        whole = parts[2]
        for part in parts[:2]:
            whole = whole.unionByName(part, allowMissingColumns=True)
        tasks = max(self._spark.sparkContext.defaultParallelism, cuts // _CUTS_A_TASK, tasks)
        made = whole.repartition(tasks, *SESSION).mapInArrow(
            SnapshotTables(self._columns), self._read(SNAPSHOTS).schema
        )
        return made.localCheckpoint()

    def _read(self, table: str) -> DataFrame:
        return self._lake.read(self._spark, table)


def _since(moment: Any) -> list[Any]:
    """Every change since a session's last cut is as late as the first of them; without a change there is none."""
    return [] if moment is None else [("_applied_at", operator.ge, moment)]


def same_row(source: DataFrame) -> Column:
    """The condition under which a row of `session_snapshots` (alias `t`) is one of the source's (alias `s`).

    Snapshots older than the source's oldest are not looked at.
    """
    from pyspark.sql import functions as F

    oldest = source.agg(F.min("snapshot_at")).first()
    same = F.col("t.snapshot_at") >= F.lit(oldest[0] if oldest else None)
    for name in (*CUT, "row_id"):
        same &= F.col(f"t.{name}") == F.col(f"s.{name}")
    return same
