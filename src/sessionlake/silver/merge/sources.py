"""The sources of the two MERGEs: the latest row of each session, and the net change of each table row.

Small ranges are worked out in the driver, which saves Spark jobs; large ones on the cluster. Both run the
same pure function (`net.net_changes`). On a laptop the cluster is the driver's own machine, where Arrow alone takes
a fifth of the CPU time that Spark's shuffle and Python workers add: there, what fits into memory is small.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.lake.names import CHANGES, CUTS, PROGRESS, ROWS
from sessionlake.lake.reading import Condition, DirectReader, SparkReader, TooLargeError, among
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.arrow import are_of
from sessionlake.protocol.columns import RESCUED
from sessionlake.runtime.frames import as_frame
from sessionlake.silver.merge.seq_history import Read, history_of
from sessionlake.silver.tables.net import MARKS, NetChanges, Refolded, net_changes, net_ddl, refolded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ("topic", "session_id", "row_id")
SESSION = ("topic", "session_id")
# Up to this many rows of changes the driver does the work: a few tens of megabytes.
SMALL_CHANGES = 100_000
# The same on a laptop; in all it takes about four times the bytes.
_LOCAL_CHANGES = 2_000_000
DRIVER_BYTES = 384 << 20
# Cleared sessions up to this number are looked up by name, which lets Delta skip files.
_NAMED_SESSIONS = 500


@dataclass(frozen=True)
class BatchRange:
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


def sources(
    spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, changes: int
) -> tuple[DataFrame, DataFrame]:
    """What a range of batches comes to, for `session_rows` and for `sessions`.

    Args:
        changes: how many rows of changes and progress it has.
    """
    if changes <= (_LOCAL_CHANGES if lake.local else SMALL_CHANGES):
        with contextlib.suppress(TooLargeError):
            small = DriverSource(spark, lake, settings, batches)
            return small.rows(), small.sessions()
    large = ClusterSource(spark, lake, settings, batches)
    return large.rows(), large.sessions()


class _Source:
    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange) -> None:
        self._spark = spark
        self._lake = lake
        self._batches = batches
        self._columns = settings.capture.declared

    @property
    def _read(self) -> tuple[str, ...]:
        declared = (column.name for column in self._columns)
        return (*KEY, *declared, RESCUED, *MARKS, "change", "_set", "_position", "ordinal", "_life")

    def _held(self, cleared: DataFrame, names: list[str]) -> DataFrame:
        """Keys that the table holds now of these sessions.

        Args:
            names: their ids, if they are few; with one more than `_NAMED_SESSIONS` they are not looked up by name.
        """
        from pyspark.sql import functions as F

        held = self._lake.read(self._spark, ROWS).select(*KEY)
        if len(names) <= _NAMED_SESSIONS:
            held = held.where(F.col("session_id").isin(names))
        return held.join(F.broadcast(cleared), list(SESSION), "left_semi")


class DriverSource(_Source):
    """Works in the driver.

    Raises:
        TooLargeError: what it would read of local tables is too much for that.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange) -> None:
        super().__init__(spark, lake, settings, batches)
        own = partial(DirectReader(lake).table, at_most=DRIVER_BYTES) if lake.local else SparkReader(lake, spark).table
        self._table: Read = own
        self._changes = self._rows(CHANGES, self._read)
        self._progress = self._rows(PROGRESS, None)

    def _rows(self, table: str, columns: Sequence[str] | None) -> pa.Table:
        """The range's rows: those at hand, or the table's."""
        known = self._batches.at_hand(table)
        if known is not None:
            return known if columns is None else known.select(columns)
        batches: list[Condition] = [
            ("_batch", operator.ge, self._batches.first),
            ("_batch", operator.le, self._batches.last),
        ]
        return self._table(table, *batches, columns=columns)

    def sessions(self) -> DataFrame:
        """The last row of each session out of the batches' progress."""
        progress = self._progress.sort_by([("_batch", "descending")])
        index = pa.array(range(progress.num_rows), pa.int64())
        newest = progress.append_column("_index", index).group_by(list(SESSION)).aggregate([("_index", "min")])
        latest = progress.take(newest["_index_min"]).drop_columns(["beneath", "_batch"])
        return as_frame(self._spark, latest)

    def rows(self) -> DataFrame:
        """Net changes (see `net.net_schema`), with a delete for each row that a clear leaves behind."""
        changes = self._changes
        beneath = self._progress.filter(self._progress["beneath"]).group_by(list(SESSION)).aggregate([])
        if beneath.num_rows:
            usual = net_changes(changes.filter(pc.invert(are_of(changes, beneath))), self._columns)
            net = pa.concat_tables([usual, self._refolded(beneath)])
        else:
            net = net_changes(changes, self._columns)
        marks = pc.is_null(net["row_id"])
        rows, clears = net.filter(pc.invert(marks)), net.filter(marks).select(SESSION)
        if clears.num_rows:
            named = clears["session_id"].slice(0, _NAMED_SESSIONS + 1).to_pylist()
            held = self._held(as_frame(self._spark, clears), named).toArrow()
            gone = held.join(rows.select(KEY), list(KEY), join_type="left anti")
            rows = pa.concat_tables([rows, _deletes(gone, rows.schema)])
        return as_frame(self._spark, rows)

    def _refolded(self, sessions: pa.Table) -> pa.Table:
        """Net changes of sessions (class `once`) in which something was applied beneath newer messages.

        Who wrote a value last is then a matter of more than the range's changes.
        """
        ids = sessions["session_id"].to_pylist()
        named: list[Condition] = [("session_id", among, ids)] if len(ids) <= _NAMED_SESSIONS else []
        cuts = self._table(CUTS, *named, ("_batch", operator.lt, self._batches.first))
        rows, changes = history_of(self._table, sessions, cuts, self._batches.last, self._columns, named)
        return refolded(changes, self._columns, rows)


class ClusterSource(_Source):
    """Works in Spark: for any size."""

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
        beneath = self._between(PROGRESS).where("beneath").select(*SESSION).distinct()
        anew = [row["session_id"] for row in beneath.select("session_id").limit(_NAMED_SESSIONS + 1).collect()]
        if anew:
            changes = changes.join(F.broadcast(beneath), list(SESSION), "left_anti").select(*changes.columns)
        tasks = self._spark.sparkContext.defaultParallelism
        by_session = changes.repartition(tasks, *(F.col(name) for name in SESSION))
        net = by_session.mapInArrow(NetChanges(self._columns), net_ddl(self._columns))
        if anew:
            net = net.unionByName(self._refolded(beneath, anew))
        net = net.localCheckpoint()
        rows, clears = net.where(F.col("row_id").isNotNull()), net.where(F.col("row_id").isNull()).select(*SESSION)
        named = [row["session_id"] for row in clears.select("session_id").limit(_NAMED_SESSIONS + 1).collect()]
        if not named:
            return rows
        gone = self._held(clears, named).join(rows.select(*KEY), list(KEY), "left_anti")
        return rows.unionByName(gone.withColumn("_delete", F.lit(col=True)), allowMissingColumns=True)

    def _refolded(self, sessions: DataFrame, names: list[str]) -> DataFrame:
        """See `DriverSource._refolded`; here out of all changes of these sessions up to the range's end."""
        from pyspark.sql import functions as F

        history = self._lake.read(self._spark, CHANGES).where(F.col("_batch") <= self._batches.last)
        if len(names) <= _NAMED_SESSIONS:
            history = history.where(F.col("session_id").isin(names))
        own = history.join(F.broadcast(sessions), list(SESSION), "left_semi")
        by_session = own.select(*(quote(name) for name in self._read)).repartition(
            self._spark.sparkContext.defaultParallelism, *SESSION
        )
        return by_session.mapInArrow(Refolded(self._columns), net_ddl(self._columns))


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
