"""A batch's averages written: restatements, new rows, and rows that others changed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import append, merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.limits import Limits
from sessionlake.delta.storage.reading import TableReader, TooLargeError, key_conditions
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.batch.rows import FoldResult, rows_of
from sessionlake.gold.fold.outputs import RowRange, SeriesOutput, with_report
from sessionlake.gold.fold.pack import ReadChanges, place_of
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import recompute
from sessionlake.gold.references.applied import MEMORY_FACTOR
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.arrow import among_keys, stamped
from sessionlake.protocol.names import ddl_of, quote
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import as_frame, map_groups, mapped
from sessionlake.streaming.carried import sent
from sessionlake.streaming.sharded import FOLDED_SCHEMA, folded_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIGURES = ("average", "points", "revision", "pane")
_STAMPS = ("restated_at", "_batch")
_STAMPED = ddl_of(TABLES[RESTATEMENTS].columns)
_RESTATED = ddl_of(column for column in TABLES[RESTATEMENTS].columns if column[0] not in _STAMPS)
# So many sessions, or rows, are named to Delta, which then skips files; beyond that most files are touched anyhow.
_NAMED = 200


@dataclass(frozen=True)
class AverageWriter:
    """Writes one folded batch.

    Restatements go first: what the tables say before the batch is known only until they take it in.
    """

    spark: SparkSession
    lake: Lake
    part: FoldResult
    txn: Txn
    shards: int

    def write(self, averages: Sequence[RollingAverage]) -> list[TableOutput]:
        """Commits the batch to the tables; what each took in."""
        parts = [self.part, *self._recompute_beyond_tails(averages)]
        outputs = [self._write_restatements(parts, averages), *(self._write_rows(parts, series) for series in averages)]
        return [output for output in outputs if output is not None]

    def _recompute_beyond_tails(self, averages: Sequence[RollingAverage]) -> Iterator[FoldResult]:
        """What follows from the tables, of each that has new points from before its tails."""
        spark, limits = self.spark, self.lake.limits
        for series in averages:
            beyond = SeriesOutput.BEYOND.of(series)
            if beyond not in self.part.report.spans:
                continue
            points, found = rows_of([self.part], [beyond], beyond_ddl(series)), None
            if isinstance(points, pa.Table):
                found = recompute_in_driver(points, self.lake.reader(spark), series, limits)
            if found is not None:
                yield FoldResult.of(spark, found)
            else:
                held = self.lake.read(spark, series.table)
                frame = recompute_on_cluster(as_frame(spark, points), held, series, shards=self.shards)
                # Not persisted: Spark would compute it again after each write to the table that it was read from.
                yield FoldResult.collect(frame.localCheckpoint(), limits.inline_bytes)

    def _write_restatements(
        self, parts: Sequence[FoldResult], averages: Sequence[RollingAverage]
    ) -> TableOutput | None:
        kinds = [SeriesOutput.RESTATED.of(series) for series in averages]
        span = _span(parts, kinds)
        if span is None:
            return None
        values = (pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), pa.scalar(self.txn.version, pa.int64()))
        stamps = dict(zip(_STAMPS, values, strict=True))
        rows = mapped(rows_of(parts, kinds, _RESTATED), lambda some: stamped(some, stamps), _STAMPED)
        append(self.spark, self.lake, RESTATEMENTS, rows, self.txn)
        return TableOutput(RESTATEMENTS, self.lake.latest_version(self.spark, RESTATEMENTS), span.rows)

    def _write_rows(self, parts: Sequence[FoldResult], series: RollingAverage) -> TableOutput | None:
        """Appends new rows, for which nothing is looked up: they are most of what a batch brings; merges others."""
        new, changed = (_span(parts, [kind.of(series)]) for kind in (SeriesOutput.NEW, SeriesOutput.CHANGED))
        if not new and not changed:
            return None
        if new:
            rows = rows_of(parts, [SeriesOutput.NEW.of(series)], series.ddl)
            append(self.spark, self.lake, series.table, rows, self.txn)
        if changed:
            rows = rows_of(parts, [SeriesOutput.CHANGED.of(series)], series.ddl)
            # That a row is there is known, which spares Delta an outer join.
            upsert = Upsert(series.row_keys, _FIGURES, pruned_by=("ts",), inserts=False)
            commit = merge(self.spark, self.lake, series.table, rows, upsert, self.txn.second_write)
        else:
            commit = self.lake.last_commit(self.spark, series.table)
        return TableOutput(series.table, commit.version, sum(span.rows for span in (new, changed) if span))


def _span(parts: Sequence[FoldResult], kinds: Iterable[str]) -> RowRange | None:
    found = [part.report.spans[kind] for part in parts for kind in kinds if kind in part.report.spans]
    return reduce(operator.add, found) if found else None


def beyond_ddl(series: RollingAverage) -> str:
    """Columns of the points that go on to the table."""
    keys = ", ".join(f"{name} string" for name in series.texts)
    order = "".join(f", {name} bigint" for name in series.seq_order)
    return f"{keys}, ts bigint, ordinal int, value double, place bigint, partition bigint, offset bigint{order}"


def recompute_on_cluster(beyond: DataFrame, held: DataFrame, series: RollingAverage, *, shards: int) -> DataFrame:
    """Rows that follow from the points.

    Args:
        beyond: new points, columns as in `beyond_ddl`.
        held: the table, with all points before this batch; a replay may find this batch's there, too.
        shards: in how many groups to work; each must fit into memory.

    Returns:
        `kind string, payload binary`, as the fold's.
    """
    from pyspark.sql import functions as F

    columns, new = _history_columns(series), beyond.columns
    asked = F.broadcast(beyond.select(*map(quote, series.keys)).distinct())
    history = (
        _in_touched_files(held, beyond, series).join(asked, list(series.keys), "left_semi").select(*map(quote, columns))
    )
    both = history.withColumn("fresh", F.lit(col=False)).unionByName(
        beyond.withColumn("fresh", F.lit(col=True)), allowMissingColumns=True
    )

    def call(rows: pa.Table) -> pa.Table:
        is_new = rows["fresh"]
        points = points_of(series, rows.filter(is_new).select(new), rows.filter(pc.invert(is_new)).select(columns))
        return folded_table(_emitted(points, series))

    return map_groups(both, series.keys, shards, call, FOLDED_SCHEMA)


def recompute_in_driver(beyond: pa.Table, held: TableReader, series: RollingAverage, limits: Limits) -> Payloads | None:
    """Computes what `recompute_on_cluster` does, from points in memory and without Spark.

    Args:
        beyond: New points that are older than their series' tails, columns as in `beyond_ddl`.
        held: Reads the table.
        limits: Limits of what the driver processes.

    Returns:
        The payloads of the rows; None if they need too much memory.
    """
    if beyond.num_rows > limits.driver_changes:
        return None
    conditions = key_conditions(beyond, series.keys, held.schema(series.table))
    try:
        most = limits.driver_bytes // MEMORY_FACTOR
        rows = held.table(series.table, *conditions, columns=_history_columns(series), max_bytes=most)
    except TooLargeError:
        return None
    return _emitted(points_of(series, beyond, rows), series)


def _history_columns(series: RollingAverage) -> list[str]:
    """The columns of the table that `points_of` reads."""
    places = ["position"] if series.of_session else ["partition", "offset"]
    return [*dict.fromkeys([*series.keys, "ts", "ordinal", "value", *places, *series.seq_order, "revision"])]


def points_of(series: RollingAverage, new: pa.Table, held: pa.Table | None = None) -> pa.Table:
    """Points as `recompute` takes them.

    Args:
        new: columns as in `beyond_ddl`, or `position` in the place of `place`.
        held: rows of the table; those of other series are passed over.
    """
    parts = [_as_points(series, new, fresh=True)]
    if held is not None:
        parts.insert(0, among_keys(_as_points(series, held, fresh=False), series.keys, parts[0]))
    return pa.concat_tables(parts, promote_options="default")


def _as_points(series: RollingAverage, rows: pa.Table, *, fresh: bool) -> pa.Table:
    names = rows.column_names
    numbers = {
        name: rows[name].cast(pa.int64()) for name in ("place", "position", "partition", "offset") if name in names
    }
    if "place" not in numbers:
        apart = (numbers["partition"].to_numpy(), numbers["offset"].to_numpy()) if not series.of_session else ()
        numbers["place"] = pa.array(place_of(*apart)) if apart else numbers["position"]
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    columns = {name: rows[name] for name in (*series.texts, "ts", "ordinal", "value", *series.seq_order)}
    columns |= {name: numbers[name] for name in ("place", "partition", "offset") if name in numbers}
    revision = zeros if fresh else rows["revision"].cast(pa.int64())
    return pa.table(columns | {"revision": revision, "fresh": pa.repeat(fresh, rows.num_rows)})


def _emitted(points: pa.Table, series: RollingAverage) -> Payloads:
    return sent(with_report(ReadChanges(), 0, recompute(points, series)))


def _in_touched_files(held: DataFrame, beyond: DataFrame, series: RollingAverage) -> DataFrame:
    """Less what files of other sessions, or of other rows, hold, if the points are of few."""
    from pyspark.sql import functions as F

    name = "session_id" if series.of_session else series.keys[0] if "row_id" not in series.keys else "row_id"
    named = [row[0] for row in beyond.select(name).distinct().limit(_NAMED + 1).collect()]
    return held if len(named) > _NAMED else held.where(F.col(name).isin(named))
