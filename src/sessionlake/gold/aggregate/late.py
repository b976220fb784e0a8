"""Decides which events are too late for a product with a lateness, and lists them for `gold.late_points`.

An event belongs to a bucket or, without buckets, to its own event time. It is late if the stream time at which it was
applied has reached the bucket's end plus the lateness. Silver stores the event time and the stream time of each change.
So it does not matter how gold splits the changes into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.sources import CHANGE_KEY_AND_ORDER, DeclaredColumns, EventSource
from sessionlake.protocol.arrow import number_distinct_combinations
from sessionlake.protocol.types import Bools, TopicPartition

T = TypeVar("T")

APPLIED = "applied"
"""Column of a change: the stream time at which it was applied, in ms."""
# Stands for an unknown stream time. Changes written by early versions have none, and are never late.
NEVER = -(1 << 62)
OFFSET = "offset"
WITH_PLACE = (*CHANGE_KEY_AND_ORDER, "position", APPLIED, OFFSET)
"""The columns of an event that are needed to write a row of `gold.late_points`."""
LATE_KEYS = ("table", "topic", "session_id", "partition", "row_id", "name", "position", "ordinal")
"""The columns that identify a row of `gold.late_points`."""
LATE_COLUMNS = (
    ("table", "string"),
    ("topic", "string"),
    ("session_id", "string"),
    ("row_id", "string"),
    ("name", "string"),
    ("ts", "bigint"),
    ("stream_time", "bigint"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("position", "bigint"),
    ("ordinal", "int"),
)
"""The columns of `gold.late_points` without `_batch`, as pairs of name and Spark SQL type.

`name` is the name of the column that the change set: a metric or a text. `ts` and `stream_time` are in ms.
"""


def are_changes_late(changes: pa.Table, bucket_ms: int | None, lateness_ms: int) -> Bools:
    """Returns True for each change that is too late for a product.

    Args:
        changes: Changes with `ts` and `applied`, both in ms.
        bucket_ms: Length of the product's buckets, in ms. None if it has no buckets.
        lateness_ms: How long after the end of its bucket, in ms of stream time, a change is still accepted.
    """
    length = bucket_ms or 1
    # Compares numbers of buckets, since the ends of the last buckets would exceed a bigint.
    applied = changes[APPLIED].fill_null(NEVER).to_numpy()
    passed = np.floor_divide(applied - lateness_ms, length)
    late: Bools = np.floor_divide(changes["ts"].to_numpy(), length) < passed
    return late


def find_stream_times_by_partition(changes: pa.Table) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the highest stream time at which a change was applied, in ms.

    The value is `NEVER`, which is earlier than all times, if no change of the topic-partition has a stream time.
    """
    code, (topics, partitions) = number_distinct_combinations(changes["topic"], changes["partition"])
    times = np.full(len(topics), NEVER)
    np.maximum.at(times, code, changes[APPLIED].fill_null(NEVER).to_numpy())
    return dict(zip(zip(topics.to_pylist(), partitions.to_pylist(), strict=True), times.tolist(), strict=True))


def find_latest_time_by_topic(times: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Returns, by topic, the highest time among the topic's partitions, in ms."""
    found: dict[str, int] = {}
    for (topic, _), time in times.items():
        found[topic] = max(found.get(topic, time), time)
    return found


def merge_latest_times(times: Mapping[T, int], newer_times: Mapping[T, int]) -> dict[T, int]:
    """Returns all keys of two mappings, each with the later of its times in them."""
    return {**times, **{name: max(time, times.get(name, time)) for name, time in newer_times.items()}}


def compute_first_unexpired_bucket_start(stream_time: int, bucket_ms: int, retention_ms: int) -> int:
    """Returns the start in ms of the first bucket that has not expired at a stream time.

    A bucket expires once stream time has reached its end plus the retention. All arguments are in ms.
    """
    return (stream_time - retention_ms) // bucket_ms * bucket_ms


def create_late_point_rows(table: str, changes: pa.Table, source: EventSource, declared: DeclaredColumns) -> pa.Table:
    """Returns the rows of `gold.late_points` for changes that were too late for a product's table.

    Args:
        table: Name of the product's table, written to the column `table`.
        changes: The late changes.
        source: The product's source, which says which values of a change are events.
        declared: The declared columns that the changes have.
    """
    events = source.extract_events(changes, declared, WITH_PLACE)
    called = "metric" if source.is_numeric else "column"
    columns = {name: events[name] for name, _ in LATE_COLUMNS if name in events.column_names}
    columns["table"] = pa.array([table]).take(pa.array(np.zeros(events.num_rows, np.int32)))
    columns |= {"name": events[called], "stream_time": events[APPLIED]}
    return pa.table({name: columns[name] for name, _ in LATE_COLUMNS})
