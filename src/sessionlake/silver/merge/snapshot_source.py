"""The source of the MERGE into `session_snapshots`: whole tables at the cuts of a range of batches.

Each from the session's last snapshot before the range and the changes since, both of which are there for good: so a
range that is merged again, with more behind it, gives the same rows. On a laptop they are made in the driver, if they
fit into it, else on the cluster.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.lake.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.lake.reading import Condition, TooLargeError, among
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import Lake
from sessionlake.protocol.arrow import are_of, session_keys
from sessionlake.silver.merge.batch_range import SESSION, BatchRange
from sessionlake.silver.merge.seq_history import history_of
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    SnapshotTables,
    change_columns,
    last_cuts,
    snapshots,
    snapshots_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EPOCH = datetime.fromtimestamp(0, UTC)
# Sessions up to this number are named to the files.
_NAMED_SESSIONS = 500
# A task of the cluster takes about so many cuts.
_CUTS_A_TASK = 2_000


class SnapshotSource:
    """Makes the snapshots of a range of batches."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._columns = settings.capture.declared

    def of(self, batches: BatchRange, cuts: int) -> DataFrame | pa.Table:
        """Rows of `session_snapshots`, at hand if the driver has made them.

        Args:
            cuts: how many the batches have.
        """
        if cuts <= self._lake.limits.driver_cuts:
            with contextlib.suppress(TooLargeError):
                return self._in_driver(batches)
        return self.on_cluster(batches, cuts)

    # -- in the driver, without Spark

    def _in_driver(self, batches: BatchRange) -> pa.Table:
        """The rows.

        Raises:
            TooLargeError: what they are made of does not fit into memory.
        """
        read = partial(self._lake.reader(self._spark).table, at_most=self._lake.limits.driver_bytes)
        due = batches.at_hand(CUTS)
        if due is None:
            due = read(CUTS, ("_batch", operator.ge, batches.first), ("_batch", operator.le, batches.last))
        ids = pc.unique(due["session_id"]).to_pylist()
        named: list[Condition] = [("session_id", among, ids)] if len(ids) <= _NAMED_SESSIONS else []
        earlier = read(CUTS, *named, ("_batch", operator.lt, batches.first))
        last = last_cuts(earlier.filter(are_of(earlier, due)))
        until = *named, ("_batch", operator.le, batches.last)
        columns = [*change_columns(self._columns), "_batch"]
        changes = read(CHANGES, _since(pc.min(due["changed_at"]).as_py()), *until, columns=columns)
        changes = changes.filter(are_of(changes, due))
        changes = changes.filter(_since_last(changes, "_position", pc.greater, last, "position"))
        anew = self._anew(read, changes, last, until)
        changes, last = changes.drop_columns(["_batch"]), last.filter(pc.invert(are_of(last, anew)))
        held = read(SNAPSHOTS, ("snapshot_at", among, pc.unique(last["snapshot_at"]).to_pylist()), *named)
        rows = held.join(last.select(CUT_COLUMNS), list(CUT_COLUMNS), join_type="left semi")
        if anew.num_rows:
            begun, history = history_of(read, anew, earlier, batches.last, self._columns, named)
            rows = pa.concat_tables([rows.select(begun.column_names).cast(begun.schema), begun])
            changes = pa.concat_tables([changes.filter(pc.invert(are_of(changes, anew))), history])
        made = snapshots(due.select(CUT_COLUMNS), rows, changes, anew, self._columns)
        return pa.concat_tables([snapshots_schema(self._columns).empty_table(), *made])

    def _anew(
        self, read: Callable[..., pa.Table], changes: pa.Table, last: pa.Table, until: Sequence[Condition]
    ) -> pa.Table:
        """The sessions that had a late fill since their last cuts.

        Args:
            changes: what was applied since then.
        """
        oldest = pc.min(changes["_batch"]).as_py()
        if oldest is None:
            return changes.select(SESSION)
        conditions = ("beneath", operator.eq, True), ("_batch", operator.ge, oldest), *until
        found = read(PROGRESS, *conditions, columns=[*SESSION, "_batch"])
        found = found.filter(are_of(found, changes))
        found = found.filter(_since_last(found, "_batch", pc.greater_equal, last, "_batch"))
        return found.group_by(list(SESSION)).aggregate([])

    # -- on the cluster

    def on_cluster(self, batches: BatchRange, cuts: int, tasks: int = 1) -> DataFrame:
        """The snapshots of a range of batches, made by Spark, whatever their size.

        Args:
            tasks: among how many, at least, to share the work.
        """
        from pyspark.sql import functions as F

        due = self._read(CUTS).where(F.col("_batch").between(batches.first, batches.last))
        sessions = due.select(*SESSION).distinct()
        earlier = self._read(CUTS).where(F.col("_batch") < batches.first).join(sessions, list(SESSION), "left_semi")
        newest = F.max(F.struct("position", "snapshot_at", "reason", "_batch")).alias("last")
        last = earlier.groupBy(*SESSION).agg(newest).select(*SESSION, "last.*").localCheckpoint()
        filled_late = self._read(PROGRESS).where(F.col("beneath") & (F.col("_batch") <= batches.last))
        anew = (
            filled_late.join(sessions, list(SESSION), "left_semi")
            .join(last.select(*SESSION, F.col("_batch").alias("_last")), list(SESSION), "left")
            .where(F.col("_last").isNull() | (F.col("_batch") >= F.col("_last")))
            .select(*SESSION)
            .distinct()
            .withColumn("_anew", F.lit(1).cast("bigint"))
            .localCheckpoint()
        )
        since = due.agg(F.min("changed_at")).first()
        history = self._read(CHANGES).where(F.col("_batch") <= batches.last)
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
        rows = self._read(SNAPSHOTS).join(last.select(*CUT_COLUMNS), list(CUT_COLUMNS), "left_semi")
        heads = due.select(*CUT_COLUMNS).join(anew, list(SESSION), "left")
        parts = [
            heads.withColumnsRenamed({"position": "_position", "_anew": "_life"}).withColumn("_kind", F.lit("cut")),
            rows.drop("snapshot_at", "reason", "position").withColumn("_kind", F.lit("row")),
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


def _since(moment: Any) -> Condition:
    """Every change since a session's last cut is as late as the first of them; without a change there is none."""
    return ("_batch", operator.lt, 0) if moment is None else ("_applied_at", operator.ge, moment)


def _since_last(rows: pa.Table, column: str, compare: Callable[..., Any], last: pa.Table, name: str) -> pa.Array:
    """Which rows compare so with their session's last cut; all of those whose session has none."""
    value = last[name].take(pc.index_in(session_keys(rows), value_set=session_keys(last)))
    return pc.fill_null(compare(rows[column], value), pa.scalar(value=True))


def oldest_of(made: DataFrame | pa.Table) -> datetime | None:
    """The time of the oldest of some snapshots; None if there are none."""
    from pyspark.sql import functions as F

    if isinstance(made, pa.Table):
        return pc.min(made["snapshot_at"]).as_py()
    row = made.agg(F.unix_micros(F.min("snapshot_at"))).first()  # a collected timestamp has lost its zone
    return None if row is None or row[0] is None else _EPOCH + timedelta(microseconds=row[0])


def same_row(oldest: datetime) -> Column:
    """The condition under which a row of `session_snapshots` (alias `t`) is one of the source's (alias `s`).

    Args:
        oldest: of the source's; older ones are not looked at.
    """
    from pyspark.sql import functions as F

    same = F.col("t.snapshot_at") >= F.lit(oldest)
    for name in (*CUT_COLUMNS, "row_id"):
        same &= F.col(f"t.{name}") == F.col(f"s.{name}")
    return same
