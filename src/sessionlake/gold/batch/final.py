"""Appends the final rows of products with `output: append` to a second table: each row once, as soon as it is final.

For each topic-partition, the last bucket in the second table shows up to where rows were appended. All older rows are
there, and no row can follow, since its changes would be too late. So no other progress is stored. Each append has the
batch's transaction, like every commit.

Rows become final only by the stream times of versions of silver's table that gold has read completely. Within a version
the files of different sessions have no order. So one file may contain later stream times than another file that is
still unread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD
from sessionlake.delta.storage.far_times import convert_time_to_ms, find_nearest_datetime
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError, is_in
from sessionlake.delta.storage.spark_reader import to_spark_literal
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.final import (
    BATCH,
    FinalRowProgress,
    FinalTable,
    PartitionTimes,
    look_up_time_limit_of_each_row,
    select_newly_final_rows,
)
from sessionlake.gold.aggregate.late import APPLIED, NEVER, merge_latest_times
from sessionlake.gold.aggregate.product import START, Product, compute_bucket_starts_ms
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.declared.tables import find_final_tables
from sessionlake.gold.tables.expiry import BucketExpiry, ExpiryTimes, drop_expired_arrow_rows
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.arrow import add_constant_columns
from sessionlake.protocol.names import build_ddl, quote
from sessionlake.protocol.types import TopicPartition
from sessionlake.spark.frames import (
    FunctionPerArrowBatch,
    Rows,
    apply_to_batches,
    apply_to_rows,
    convert_to_spark_frame,
)
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_last_committed_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = ("topic", PARTITION)


class FinalRowAppender:
    """Appends the final rows of products to their second tables, and remembers up to which bucket it has done so.

    The gold stream has one instance.
    """

    def __init__(self, spark: SparkSession, lake: Lake, products: Iterable[Product], expiry: BucketExpiry) -> None:
        self._lake, self._expiry = lake, expiry
        self._first = handover.read_first_batch_number(lake.settings, GOLD)
        following, reader = handover.read_next_batch_number(lake.settings, GOLD), lake.reader(spark)
        self._tables = {
            final.product.table_name: _read_final_row_progress(reader, final, following)
            for final in find_final_tables(products)
        }
        self._times = _read_stream_times_of_partly_read_version(spark, lake) if self._tables else {}

    def require_open_buckets(self, spark: SparkSession, product: Product, rows: Rows, earliest_start: int) -> None:
        """Checks that a batch has no rows for buckets that are already final.

        Args:
            product: The product.
            rows: The batch's rows of the product.
            earliest_start: The earliest `window_start` of these rows, in microseconds.

        Raises:
            LakeError: A row's bucket is already final, because silver applied a change at an earlier stream time than
                it had reached before.
        """
        progress = self._tables.get(product.table_name)
        if progress is None or earliest_start >= max(progress.appended_until.values(), default=NEVER) * 1000:
            return
        if not isinstance(rows, pa.Table):
            rows = _find_earliest_bucket_starts(convert_to_spark_frame(spark, rows))
        closed = rows.filter(
            pa.array(compute_bucket_starts_ms(rows) < look_up_time_limit_of_each_row(rows, progress.appended_until))
        )
        if closed.num_rows:
            one = closed.slice(0, 1).select([*_PLACE, START]).to_pylist()[0]
            final_name, begin = progress.final_table.table_name, f"{one[START]:%Y-%m-%d %H:%M:%SZ}"
            where = f"topic {one['topic']}, partition {one[PARTITION]}"
            raise LakeError(
                f"{final_name}: {where}: silver changed a row of the bucket of {begin} after gold had "
                "stored the bucket's rows as final",
                why=f"Final rows are never changed, so {final_name} may have wrong rows. Possible causes: a "
                "session moved to another topic-partition while some of its messages were held back, or "
                "session_timeout was shortened",
                fix="Wait until silver has read all of bronze (`sessionlake status`), then run `sessionlake "
                f"rebuild {product.table_name}`, which also rebuilds {final_name}",
            )

    def append_final_rows(self, spark: SparkSession, stream_times: PartitionTimes, txn: Txn) -> Iterator[TableOutput]:
        """Appends the rows that have become final with a batch. Must be called after the batch's MERGEs.

        Yields the new version and the number of added rows of each table of final rows that has new rows.

        Args:
            stream_times: By topic-partition, the highest stream time of the batch's changes, in ms.
        """
        if not self._tables:
            return
        self._times = merge_latest_times(self._times, stream_times)
        _, is_complete = handover.read_version_reached_by_batch(self._lake.settings, GOLD, txn.version - self._first)
        if not is_complete:
            return
        for progress in self._tables.values():
            until, since = progress.compute_times_to_append_until(self._times), progress.appended_until
            output = self._append_final_rows_between(spark, progress.final_table, since, until, txn) if until else None
            if output is not None:
                yield output
            progress.mark_appended(until)
        self._times = {}

    def _append_final_rows_between(
        self, spark: SparkSession, final_table: FinalTable, since: PartitionTimes, until: PartitionTimes, txn: Txn
    ) -> TableOutput | None:
        reader, table = self._lake.reader(spark), final_table.product.table_name
        floors = [self._expiry.get_expiry_times(table) for table in (table, final_table.table_name)]
        names, most, found = (
            [name for name, _ in final_table.copied_columns],
            self._lake.driver_limits.driver_bytes,
            list[pa.Table](),
        )
        try:
            for some in _build_bucket_range_conditions(since, until):
                found.append(reader.read_arrow_table(table, *some, columns=names, max_bytes=most))
            near: Rows = pa.concat_tables(found)
        except TooLargeError:
            near = _select_candidate_rows(final_table, self._lake.read(spark, table), since, until)
        rows = apply_to_rows(
            near,
            _build_final_row_filter(final_table, since, until, txn.version, *floors),
            build_ddl(final_table.column_types),
        )
        count = rows.num_rows if isinstance(rows, pa.Table) else convert_to_spark_frame(spark, rows).count()
        if not count:
            return None
        return TableOutput(
            final_table.table_name, append_rows(spark, self._lake, final_table.table_name, rows, txn).version, count
        )


def _build_final_row_filter(
    final_table: FinalTable, since: PartitionTimes, until: PartitionTimes, batch: int, *expiry_times: ExpiryTimes
) -> Callable[[pa.Table], pa.Table]:
    """Returns a function that selects the rows of a product that became final between two limits.

    The function leaves out expired rows, and returns the columns of the table of final rows.

    Args:
        final_table: The table of final rows.
        since: By topic-partition, the bucket start in ms from which rows are wanted.
        until: By topic-partition, the bucket start in ms up to which rows are wanted. It is not included.
        batch: The batch number to write in the rows.
        expiry_times: For the product's two tables, the first time in ms that has not expired, by topic.
    """
    names, stamps = [name for name, _ in final_table.copied_columns], {BATCH: pa.scalar(batch, pa.int64())}
    return lambda rows: add_constant_columns(
        drop_expired_arrow_rows(select_newly_final_rows(rows.select(names), since, until), *expiry_times), stamps
    )


def rebuild_final_rows(
    spark: SparkSession, lake: Lake, final_table: FinalTable, rows: DataFrame, times: PartitionTimes, batch: int
) -> None:
    """Replaces all rows of a table of final rows, in one commit.

    Args:
        final_table: The table of final rows.
        rows: All rows of the product that have not expired.
        times: By topic-partition, the stream time in ms up to which gold has read. It decides which rows are
            final_table.
        batch: The last batch of gold that the rows include.
    """
    until = final_table.compute_first_open_buckets(times)
    keep = FunctionPerArrowBatch(_build_final_row_filter(final_table, {}, until, batch))
    found = apply_to_batches(
        _select_candidate_rows(final_table, rows, {}, until), keep, build_ddl(final_table.column_types)
    )
    lake.storage.require_claims_before_commit(final_table.table_name)
    lake.overwrite_table(spark, final_table.table_name, found, Txn(f"anew-{uuid4().hex[:12]}", 0), "{}")


def find_latest_stream_times(changes: DataFrame) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the highest stream time in ms at which a change was applied.

    Args:
        changes: Changes with `topic`, `partition` and `applied`.
    """
    from pyspark.sql import functions as F

    found = changes.groupBy(*_PLACE).agg(F.max(APPLIED).alias("time")).where("time IS NOT NULL").collect()
    return {(row["topic"], row[PARTITION]): row["time"] for row in found}


def _read_final_row_progress(reader: TableReader, final_table: FinalTable, next_batch: int) -> FinalRowProgress:
    """Reads from a table of final rows up to which bucket rows were appended before gold's next batch.

    Args:
        reader: Reads the table.
        final_table: The table of final rows.
        next_batch: Number of gold's next batch. It may be a replay whose rows the table already has.
    """

    def read_end_of_last_appended_bucket(*conditions: Condition) -> PartitionTimes:
        last = reader.find_highest_values(final_table.table_name, START, _PLACE, *conditions)
        starts = {(topic, partition): convert_time_to_ms(start) for (topic, partition), start in last.items()}
        return final_table.compute_bucket_ends(starts)

    is_there = reader.has_rows(final_table.table_name, (BATCH, operator.ge, next_batch))
    return FinalRowProgress(
        final_table,
        read_end_of_last_appended_bucket((BATCH, operator.lt, next_batch)),
        read_end_of_last_appended_bucket() if is_there else {},
    )


def _read_stream_times_of_partly_read_version(spark: SparkSession, lake: Lake) -> dict[TopicPartition, int]:
    """Returns the stream times in the version of silver's changes that gold has read only in part.

    Empty if there is no such version. These stream times have made no row final yet.

    Returns:
        By topic-partition, the highest stream time in ms.
    """
    from pyspark.sql import functions as F

    batch = read_last_committed_batch(lake.settings.checkpoint_path(GOLD))
    if batch is None:
        return {}
    version, is_complete = handover.read_version_reached_by_batch(lake.settings, GOLD, batch)
    if is_complete:
        return {}
    changes = lake.read(spark, CHANGES, version)
    return find_latest_stream_times(changes.select(*_PLACE, F.unix_millis("_applied_at").alias(APPLIED)))


def _build_bucket_range_conditions(since: PartitionTimes, until: PartitionTimes) -> Iterator[list[Condition]]:
    """Yields lists of conditions. Each row between two limits meets all conditions of one list.

    The conditions let Delta skip files, and may select further rows. If a topic has a partition without a lower limit,
    they select all buckets of that topic before the upper limit.

    Args:
        since: By topic-partition, the bucket start in ms from which rows are wanted.
        until: By topic-partition, the bucket start in ms up to which rows are wanted. It is not included.
    """
    begun = {topic for topic, _ in until} - {place[0] for place in until if place not in since}
    for topics in (begun, {topic for topic, _ in until} - begun):
        some = {place: end for place, end in until.items() if place[0] in topics}
        if some:
            low, high = min(since.get(place, NEVER) for place in some), max(some.values())
            partitions = {partition for _, partition in some}
            conditions: list[Condition] = [("topic", is_in, sorted(topics)), (PARTITION, is_in, sorted(partitions))]
            yield [
                *conditions,
                (START, operator.ge, find_nearest_datetime(low)),
                (START, operator.lt, find_nearest_datetime(high)),
            ]


def _select_candidate_rows(
    final_table: FinalTable, rows: DataFrame, since: PartitionTimes, until: PartitionTimes
) -> DataFrame:
    """Returns all rows of a product that became final between two limits, and possibly some other rows.

    Args:
        final_table: The table of final rows.
        rows: Rows of the product.
        since: By topic-partition, the bucket start in ms from which rows are wanted.
        until: By topic-partition, the bucket start in ms up to which rows are wanted. It is not included.
    """
    rows = rows.select(*(quote(name) for name, _ in final_table.copied_columns))
    if not until:
        return rows.limit(0)
    return rows.where(
        reduce(
            or_,
            (
                reduce(and_, map(_convert_to_spark_condition, some))
                for some in _build_bucket_range_conditions(since, until)
            ),
        )
    )


def _convert_to_spark_condition(condition: Condition) -> Column:
    from pyspark.sql import functions as F

    name, compare, value = condition
    found: Column = compare(F.col(name), to_spark_literal(value))
    return found


def _find_earliest_bucket_starts(rows: DataFrame) -> pa.Table:
    """Returns the earliest `window_start` of each topic-partition: `topic`, `partition`, `window_start`."""
    from pyspark.sql import functions as F

    return rows.groupBy(*_PLACE).agg(F.min(START).alias(START)).toArrow()
