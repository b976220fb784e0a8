"""Decides which rows of a product are final, and describes the second table to which final rows are appended.

A change is too late for a bucket once stream time has reached the bucket's end plus the product's lateness
(`gold.aggregate.late`). From then on, nothing changes the bucket's rows: they are final. When a bucket becomes final
depends only on the changes. The batches and the machine's clock have no influence.

A bucket is open until its rows are final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.late import NEVER, compute_first_unexpired_bucket_start, merge_latest_times
from sessionlake.gold.aggregate.product import APPEND, Product, compute_bucket_starts_ms
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.arrow import number_distinct_combinations
from sessionlake.protocol.types import Int64s, TopicPartition

BATCH = "_batch"
"""The batch of gold with which a row became final; for rows of a rebuild, the last batch that the rebuild includes."""
PartitionTimes = Mapping[TopicPartition, int]
"""A time by topic-partition, in ms. Mostly the start of the first open bucket: buckets before it are final."""


@dataclass(frozen=True)
class FinalTable:
    """The table `<product>_final` of one product: its final rows, each appended once.

    It has the product's keys and results, without the columns that are only needed to merge.
    """

    product: Product

    @property
    def name(self) -> str:
        """The table's name in the schema `gold`."""
        return f"{self.product.name}_final"

    @property
    def table_name(self) -> str:
        """The table's two-level name, `gold.<name>`."""
        return f"gold.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the product's key columns."""
        return self.product.keys

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The names of the columns that identify a row, the same as in the product's table."""
        return self.product.row_keys

    @property
    def result_columns(self) -> tuple[str, ...]:
        """The names of the result columns."""
        return self.product.result_columns

    @property
    def bucket_ms(self) -> int:
        """Length of the buckets, in ms."""
        return self.product.bucket_ms or 1

    @property
    def retention_ms(self) -> int | None:
        """How long a row stays after the end of its bucket, in ms of stream time. None if rows stay for ever."""
        return self.product.retention_ms

    @property
    def lateness_ms(self) -> int:
        """How long after the end of its bucket an event may still arrive, in ms of stream time."""
        return self.product.lateness_ms or 0

    @property
    def comment(self) -> str:
        """The table's description in the catalog."""
        return f"Rows of {self.product.table_name} that are final, each appended once"

    @property
    def copied_columns(self) -> tuple[tuple[str, str], ...]:
        """The columns that are copied from the product's table, as pairs of name and Spark SQL type."""
        shown = {*self.product.row_keys, *self.product.result_columns}
        return tuple(column for column in self.product.column_types if column[0] in shown)

    @property
    def column_types(self) -> tuple[tuple[str, str], ...]:
        """All columns of the table in order, as pairs of name and Spark SQL type. The last one is the batch."""
        return (*self.copied_columns, (BATCH, "bigint"))

    def compute_first_open_buckets(self, stream_times: PartitionTimes) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the start in ms of the first bucket that is still open.

        All earlier buckets are final. Topic-partitions whose stream time is unknown (`NEVER`) are left out.

        Args:
            stream_times: Stream time by topic-partition, in ms.
        """
        known = {place: time for place, time in stream_times.items() if time > NEVER}
        return {
            place: compute_first_unexpired_bucket_start(time, self.bucket_ms, self.lateness_ms)
            for place, time in known.items()
        }

    def compute_bucket_ends(self, bucket_starts: PartitionTimes) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the end in ms of the last bucket that was appended.

        Args:
            bucket_starts: Start of that bucket by topic-partition, in ms.
        """
        return {place: start + self.bucket_ms for place, start in bucket_starts.items()}


@dataclass
class FinalRowProgress:
    """How far the final rows of one product have been appended to their table. Kept in memory by the gold stream.

    Attributes:
        final_table: The table to which final rows are appended.
        appended_until: By topic-partition, the end in ms of the last bucket that earlier batches appended.
        already_in_table: By topic-partition, the end in ms of the last bucket in the table. Set only if the next batch
            is a repeated one whose rows the table already has. Otherwise it is empty.
    """

    final_table: FinalTable
    appended_until: PartitionTimes
    already_in_table: PartitionTimes

    def compute_times_to_append_until(self, stream_times: PartitionTimes) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the start in ms of the first bucket that is not final yet.

        Rows of earlier buckets can be appended now. Topic-partitions without newly final buckets are left out.

        Args:
            stream_times: Stream time by topic-partition, in ms, after all changes that came since the last append.
        """
        return {
            place: end
            for place, end in self.final_table.compute_first_open_buckets(stream_times).items()
            if end > self.appended_until.get(place, NEVER)
        }

    def mark_appended(self, appended_before: PartitionTimes) -> None:
        """Records that all buckets that start before `appended_before` have been appended.

        Args:
            appended_before: A bucket start in ms, by topic-partition.
        """
        self.appended_until, self.already_in_table = (
            merge_latest_times(merge_latest_times(self.appended_until, self.already_in_table), appended_before),
            {},
        )


def find_final_table(product: Product) -> FinalTable | None:
    """Returns the table of a product's final rows; None if the product does not have `output: append`."""
    return FinalTable(product) if product.output == APPEND else None


def select_newly_final_rows(rows: pa.Table, since: PartitionTimes, until: PartitionTimes) -> pa.Table:
    """Returns the rows whose bucket starts at or after the limit in `since` and before the limit in `until`.

    Args:
        rows: Rows with `topic`, `partition` and `window_start`.
        since: By topic-partition, the first bucket start in ms that has not been appended yet. A topic-partition
            without an entry has no lower limit.
        until: By topic-partition, the first bucket start in ms that is not final yet. Rows of a topic-partition without
            an entry are left out.
    """
    start = compute_bucket_starts_ms(rows)
    return rows.filter(
        pa.array(
            (start >= look_up_time_limit_of_each_row(rows, since))
            & (start < look_up_time_limit_of_each_row(rows, until))
        )
    )


def look_up_time_limit_of_each_row(rows: pa.Table, limits: PartitionTimes) -> Int64s:
    """Returns, for each row, the limit of the row's topic-partition in ms.

    The result is `NEVER`, which is earlier than all times, for a topic-partition without a limit.

    Args:
        rows: Rows with `topic` and `partition`.
        limits: A time in ms by topic-partition.
    """
    code, (topics, partitions) = number_distinct_combinations(rows["topic"], rows[PARTITION])
    places = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
    known: Int64s = np.array([limits.get(place, NEVER) for place in places], np.int64)
    return known[code] if len(code) else np.zeros(0, np.int64)
