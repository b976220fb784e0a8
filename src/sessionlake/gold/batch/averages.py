"""Writes a batch's averages: restatements (changes of published averages), new rows, and existing rows that changed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import append_rows, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.limits import DriverLimits
from sessionlake.delta.storage.reading import TableReader, TooLargeError, build_key_conditions
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.batch.rows import GoldFoldResult, read_payload_rows
from sessionlake.gold.fold.outputs import AveragesPayloadKind, RowCountAndTimeRange, append_report_payload
from sessionlake.gold.fold.pack import ReadChangesSummary, combine_partition_and_offset
from sessionlake.gold.fold.series import EXACT, EXACT_TYPES, RollingAverage
from sessionlake.gold.fold.shard import recompute_averages
from sessionlake.gold.references.applied import MEMORY_FACTOR
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.arrow import add_constant_columns, select_matching_rows
from sessionlake.protocol.names import build_ddl, quote
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import apply_to_groups, apply_to_rows, convert_to_spark_frame
from sessionlake.streaming.payload_files import encode_payloads
from sessionlake.streaming.sharded import FOLDED_SCHEMA, convert_payloads_to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIGURES = ("average", "points", "revision", "pane")
_STAMPS = ("restated_at", "_batch")
_STAMPED = build_ddl(TABLES[RESTATEMENTS].column_types)
_RESTATED = build_ddl(column for column in TABLES[RESTATEMENTS].column_types if column[0] not in _STAMPS)
# Up to this number of sessions or rows, the query names them so that Delta can skip files. With more, most files are
# touched anyway.
_NAMED = 200


@dataclass(frozen=True)
class AverageWriter:
    """Writes the averages of one batch.

    Restatements are written first, because they need the values that the tables had before the batch.

    Attributes:
        fold_result: The encoded rows that the shards computed for the batch.
        txn: The batch's transaction.
        shards: Number of shards.
    """

    spark: SparkSession
    lake: Lake
    fold_result: GoldFoldResult
    txn: Txn
    shards: int

    def write_averages(self, averages: Sequence[RollingAverage]) -> list[TableOutput]:
        """Commits the batch's averages. Returns the new version and the number of rows of each written table.

        Args:
            averages: The tables of averages.
        """
        parts = [self.fold_result, *self._recompute_averages_for_old_points(averages)]
        outputs = [
            self._write_restatements(parts, averages),
            *(self._write_average_rows(parts, series) for series in averages),
        ]
        return [output for output in outputs if output is not None]

    def _recompute_averages_for_old_points(self, averages: Sequence[RollingAverage]) -> Iterator[GoldFoldResult]:
        """Computes averages from the tables, for new points that are too old for the points in the state.

        Yields one result for each table of averages that has such new points.
        """
        spark, limits = self.spark, self.lake.driver_limits
        for series in averages:
            beyond = AveragesPayloadKind.BEYOND.build_payload_kind(series)
            if beyond not in self.fold_result.report.spans:
                continue
            points, found = read_payload_rows([self.fold_result], [beyond], build_older_points_ddl(series)), None
            if isinstance(points, pa.Table):
                found = recompute_averages_in_driver(points, self.lake.reader(spark), series, limits)
            if found is not None:
                yield GoldFoldResult.from_payloads(spark, found)
            else:
                held = self.lake.read(spark, series.table_name)
                frame = recompute_averages_on_cluster(
                    convert_to_spark_frame(spark, points), held, series, shards=self.shards
                )
                # A checkpoint, not persist(): Spark would compute persisted rows again after each write to the table.
                yield GoldFoldResult.collect_payloads(frame.localCheckpoint(), limits.inline_bytes)

    def _write_restatements(
        self, fold_results: Sequence[GoldFoldResult], averages: Sequence[RollingAverage]
    ) -> TableOutput | None:
        kinds = [AveragesPayloadKind.RESTATED.build_payload_kind(series) for series in averages]
        span = _sum_counts_and_time_ranges(fold_results, kinds)
        if span is None:
            return None
        values = (pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), pa.scalar(self.txn.version, pa.int64()))
        stamps = dict(zip(_STAMPS, values, strict=True))
        rows = apply_to_rows(
            read_payload_rows(fold_results, kinds, _RESTATED), lambda some: add_constant_columns(some, stamps), _STAMPED
        )
        commit = append_rows(self.spark, self.lake, RESTATEMENTS, rows, self.txn)
        return TableOutput(RESTATEMENTS, commit.version, span.rows)

    def _write_average_rows(self, fold_results: Sequence[GoldFoldResult], series: RollingAverage) -> TableOutput | None:
        """Appends the new rows, and merges the changed rows, of one table of averages.

        Most rows of a batch are new and need no lookup.

        Returns:
            The table's new version and the number of written rows; None if the batch has no rows for the table.
        """
        new, changed = (
            _sum_counts_and_time_ranges(fold_results, [kind.build_payload_kind(series)])
            for kind in (AveragesPayloadKind.NEW, AveragesPayloadKind.CHANGED)
        )
        if not new and not changed:
            return None
        if new:
            rows = read_payload_rows(
                fold_results, [AveragesPayloadKind.NEW.build_payload_kind(series)], series.columns_ddl
            )
            commit = append_rows(self.spark, self.lake, series.table_name, rows, self.txn)
        if changed:
            rows = read_payload_rows(
                fold_results, [AveragesPayloadKind.CHANGED.build_payload_kind(series)], series.columns_ddl
            )
            # The rows are known to exist, so the MERGE needs no outer join.
            upsert = Upsert(series.row_keys, _FIGURES, pruned_by=("ts",), inserts=False)
            commit = merge_rows(self.spark, self.lake, series.table_name, rows, upsert, self.txn.txn_of_second_write)
        return TableOutput(series.table_name, commit.version, sum(span.rows for span in (new, changed) if span))


def _sum_counts_and_time_ranges(
    fold_results: Sequence[GoldFoldResult], payload_kinds: Iterable[str]
) -> RowCountAndTimeRange | None:
    found = [part.report.spans[kind] for part in fold_results for kind in payload_kinds if kind in part.report.spans]
    return reduce(operator.add, found) if found else None


def build_older_points_ddl(series: RollingAverage) -> str:
    """Returns the DDL of the columns of new points that are older than the points in the state.

    The averages of such points are computed from the rows of the table.
    """
    keys = ", ".join(f"{name} string" for name in series.text_keys)
    order = "".join(f", {name} bigint" for name in series.seq_order_columns)
    order += "".join(f", {name} {sql}" for name, sql in EXACT_TYPES)
    return f"{keys}, ts bigint, ordinal int, value double, place bigint, partition bigint, offset bigint{order}"


def recompute_averages_on_cluster(
    new_points: DataFrame, stored_rows: DataFrame, series: RollingAverage, *, shards: int
) -> DataFrame:
    """Computes the averages that new points add or change, from all points of their series in the table.

    Args:
        new_points: The new points, columns as in `build_older_points_ddl`.
        stored_rows: The table of averages, with all points before this batch. In a replay it may already have this
            batch's points.
        series: The declaration of the table of averages.
        shards: Number of groups in which to compute. The points of one group must fit into memory.

    Returns:
        Encoded rows of several kinds: `kind string, payload binary`.
    """
    from pyspark.sql import functions as F

    columns, new = _list_columns_to_recompute_from(series), new_points.columns
    asked = F.broadcast(new_points.select(*map(quote, series.keys)).distinct())
    history = (
        _filter_to_sessions_of_points(stored_rows, new_points, series)
        .join(asked, list(series.keys), "left_semi")
        .select(*map(quote, columns))
    )
    both = history.withColumn("fresh", F.lit(col=False)).unionByName(
        new_points.withColumn("fresh", F.lit(col=True)), allowMissingColumns=True
    )

    def recompute_averages_of_group(rows: pa.Table) -> pa.Table:
        is_new = rows["fresh"]
        points = combine_new_and_stored_points(
            series, rows.filter(is_new).select(new), rows.filter(pc.invert(is_new)).select(columns)
        )
        return convert_payloads_to_table(_build_recomputed_payloads(points, series))

    return apply_to_groups(both, series.keys, shards, recompute_averages_of_group, FOLDED_SCHEMA)


def recompute_averages_in_driver(
    new_points: pa.Table, reader: TableReader, series: RollingAverage, limits: DriverLimits
) -> Payloads | None:
    """Computes the averages that new points add or change, from all points of their series, without Spark.

    Args:
        new_points: The new points, columns as in `build_older_points_ddl`.
        reader: Reads the table of averages.
        series: The declaration of the table of averages.
        limits: The most rows and bytes that the driver may process.

    Returns:
        Encoded rows, as pairs of kind and payload. None if computing them would exceed the limits.
    """
    if new_points.num_rows > limits.driver_changes:
        return None
    conditions = build_key_conditions(new_points, series.keys, reader.read_table_schema(series.table_name))
    try:
        most = limits.driver_bytes // MEMORY_FACTOR
        rows = reader.read_arrow_table(
            series.table_name, *conditions, columns=_list_columns_to_recompute_from(series), max_bytes=most
        )
    except TooLargeError:
        return None
    return _build_recomputed_payloads(combine_new_and_stored_points(series, new_points, rows), series)


def _list_columns_to_recompute_from(series: RollingAverage) -> list[str]:
    """Returns the names of a table's columns from which averages are recomputed."""
    places = ["position"] if series.is_per_session else ["partition", "offset"]
    own = [*series.keys, "ts", "ordinal", "value", *places, *series.seq_order_columns, "revision", *EXACT]
    return [*dict.fromkeys(own)]


def combine_new_and_stored_points(
    series: RollingAverage, new_points: pa.Table, stored_rows: pa.Table | None = None
) -> pa.Table:
    """Returns new points and the table's points of the same series, with the columns of `recompute_averages`.

    Args:
        series: The table of averages.
        new_points: New points, columns as in `build_older_points_ddl`, or with `position` instead of `place`.
        stored_rows: Rows of the table; None for none. Rows of series without a new point are dropped.
    """
    parts = [_convert_rows_to_points(series, new_points, is_new=True)]
    if stored_rows is not None:
        parts.insert(
            0, select_matching_rows(_convert_rows_to_points(series, stored_rows, is_new=False), series.keys, parts[0])
        )
    return pa.concat_tables(parts, promote_options="default")


def _convert_rows_to_points(series: RollingAverage, rows: pa.Table, *, is_new: bool) -> pa.Table:
    names = rows.column_names
    numbers = {
        name: rows[name].cast(pa.int64()) for name in ("place", "position", "partition", "offset") if name in names
    }
    if "place" not in numbers:
        apart = (numbers["partition"].to_numpy(), numbers["offset"].to_numpy()) if not series.is_per_session else ()
        numbers["place"] = pa.array(combine_partition_and_offset(*apart)) if apart else numbers["position"]
    zeros = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    own = (*series.text_keys, "ts", "ordinal", "value", *series.seq_order_columns, *EXACT)
    columns = {name: rows[name] for name in own}
    columns |= {name: numbers[name] for name in ("place", "partition", "offset") if name in numbers}
    revision = zeros if is_new else rows["revision"].cast(pa.int64())
    return pa.table(columns | {"revision": revision, "fresh": pa.repeat(is_new, rows.num_rows)})


def _build_recomputed_payloads(points: pa.Table, series: RollingAverage) -> Payloads:
    return encode_payloads(append_report_payload(ReadChangesSummary(), 0, recompute_averages(points, series)))


def _filter_to_sessions_of_points(stored_rows: DataFrame, new_points: DataFrame, series: RollingAverage) -> DataFrame:
    """Filters a table to the sessions or row ids of new points, so that Delta reads fewer files.

    With more than 200 sessions or row ids, the table is returned without a filter.
    """
    from pyspark.sql import functions as F

    name = "session_id" if series.is_per_session else series.keys[0] if "row_id" not in series.keys else "row_id"
    named = [row[0] for row in new_points.select(name).distinct().limit(_NAMED + 1).collect()]
    return stored_rows if len(named) > _NAMED else stored_rows.where(F.col(name).isin(named))
