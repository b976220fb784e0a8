"""Which events come too late for a product that does not wait for ever, and what is told of them.

An event's place is the bucket that it belongs to; where there are none, its event time. It is late once the stream time
at which it was applied has come as far as the place's end and the lateness together. Both are the change's own, so what
is late is settled by silver alone, whatever gold's batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.sources import MARKS, Declared, Source
from sessionlake.protocol.arrow import number_combinations
from sessionlake.protocol.types import Bools, TopicPartition

T = TypeVar("T")

APPLIED = "applied"
"""Of a change: the stream time at which it was applied, in ms."""
# Of changes that do not tell it, as those of early versions: they are not late.
NEVER = -(1 << 62)
OFFSET = "offset"
WITH_PLACE = (*MARKS, "position", APPLIED, OFFSET)
"""Columns of an event that a late point is written from."""
LATE_KEYS = ("table", "topic", "session_id", "partition", "row_id", "name", "position", "ordinal")
"""What tells late points apart."""
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
"""Of `gold.late_points`, less `_batch`: `name` is the metric's or the column's; times are in ms."""


def is_late(changes: pa.Table, bucket_ms: int | None, lateness_ms: int) -> Bools:
    """Which changes are late.

    Args:
        changes: with `ts` and `applied`.
    """
    length = bucket_ms or 1
    # By the numbers of buckets: ends of the last ones there are would be beyond what a number can be.
    applied = changes[APPLIED].fill_null(NEVER).to_numpy()
    passed = np.floor_divide(applied - lateness_ms, length)
    late: Bools = np.floor_divide(changes["ts"].to_numpy(), length) < passed
    return late


def stream_times(changes: pa.Table) -> dict[TopicPartition, int]:
    """Of each topic-partition, the highest stream time at which a change was applied; `NEVER` where none tells it."""
    code, (topics, partitions) = number_combinations(changes["topic"], changes["partition"])
    times = np.full(len(topics), NEVER)
    np.maximum.at(times, code, changes[APPLIED].fill_null(NEVER).to_numpy())
    return dict(zip(zip(topics.to_pylist(), partitions.to_pylist(), strict=True), times.tolist(), strict=True))


def by_topic(times: Mapping[TopicPartition, int]) -> dict[str, int]:
    """The highest time of any of its partitions, by topic."""
    found: dict[str, int] = {}
    for (topic, _), time in times.items():
        found[topic] = max(found.get(topic, time), time)
    return found


def latest(one: Mapping[T, int], other: Mapping[T, int]) -> dict[T, int]:
    """The later time of each."""
    return {**one, **{name: max(time, one.get(name, time)) for name, time in other.items()}}


def first_kept(stream_time: int, bucket_ms: int, retention_ms: int) -> int:
    """Where a table begins at a stream time: the first bucket whose end it has not passed by the retention."""
    return (stream_time - retention_ms) // bucket_ms * bucket_ms


def late_points(table: str, changes: pa.Table, source: Source, declared: Declared) -> pa.Table:
    """The rows of `gold.late_points` for changes that are late for a table."""
    events = source.events(changes, declared, WITH_PLACE)
    called = "metric" if source.numbers else "column"
    columns = {name: events[name] for name, _ in LATE_COLUMNS if name in events.column_names}
    columns["table"] = pa.array([table]).take(pa.array(np.zeros(events.num_rows, np.int32)))
    columns |= {"name": events[called], "stream_time": events[APPLIED]}
    return pa.table({name: columns[name] for name, _ in LATE_COLUMNS})
