"""Offsets that hold no message, and why. They explain gaps in the offsets of `bronze.messages`.

There are three kinds: offsets between two generations of a topic (`ops.topics`), offsets that Kafka uses for
transactions, and messages that an operator made bronze skip. The last two kinds are rows of `ops.absent_offsets`.
Bronze commits these rows before the messages around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from operator import eq, ge, le
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ABSENT, TOPICS
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.topics import UnusedOffsets, find_offsets_between_generations, parse_topics_table_rows
from sessionlake.protocol.types import Int64s, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OffsetInterval = tuple[int, int]
"""Consecutive offsets of one topic-partition, from `first` to just before `end`: `(first, end)`."""
NO_END = 2**63 - 1
"""The `end` of an interval without an upper limit."""


class AbsentOffsetReason(StrEnum):
    """Why the topic-partition has no message at an offset: a value of `ops.absent_offsets.reason`."""

    TRANSACTION = "transaction"
    """An aborted record or a transaction marker has the offset. `read_committed` consumers never get these."""
    SKIPPED = "skipped"
    """An operator decided that bronze does not read this message."""


@dataclass(frozen=True)
class AbsentOffsetFinder:
    """Finds the offsets of topic-partitions at which there is no message, and never will be.

    Attributes:
        reader: reads the tables `ops.topics` and `ops.absent_offsets`, again at each call. None if there are no tables
            yet.
        unused_offsets: offsets between two generations of a topic, by topic-partition. None to read them from
            `ops.topics`.
    """

    reader: TableReader | None = None
    unused_offsets: UnusedOffsets | None = None

    def find_absent_offset_intervals(
        self, searched_offsets: Mapping[TopicPartition, OffsetInterval]
    ) -> dict[TopicPartition, list[OffsetInterval]]:
        """Returns the intervals of offsets without messages that overlap the searched offsets, by topic-partition.

        An interval is a pair `(first, end)`: the offsets from `first` to `end` - 1. They are unordered and may overlap.

        Args:
            searched_offsets: the offsets `(first, end)` to look up, by topic-partition.

        Returns:
            A list of intervals for each searched topic-partition; an empty list if there are none.
        """
        found: dict[TopicPartition, list[OffsetInterval]] = {place: [] for place in searched_offsets}
        if not searched_offsets:
            return found
        for place, intervals in chain(
            self._read_offsets_between_generations().items(),
            read_absent_offset_intervals(self.reader, searched_offsets).items(),
        ):
            if place in found:
                found[place].extend(intervals)
        return found

    def _read_offsets_between_generations(self) -> UnusedOffsets:
        if self.unused_offsets is None and self.reader is not None:
            return find_offsets_between_generations(parse_topics_table_rows(self.reader.read_rows(TOPICS)))
        return self.unused_offsets or {}


def read_absent_offset_intervals(
    reader: TableReader | None,
    searched_offsets: Mapping[TopicPartition, OffsetInterval],
    reason: AbsentOffsetReason | None = None,
) -> dict[TopicPartition, list[OffsetInterval]]:
    """Returns the intervals of `ops.absent_offsets` that overlap the searched offsets, by topic-partition.

    An interval is a pair `(first, end)`: the offsets from `first` to `end` - 1 have no message. Topic-partitions
    without such intervals are missing in the result. It is empty if the table does not exist.

    Args:
        reader: reads the table; None if there are no tables yet.
        searched_offsets: the offsets `(first, end)` to look up, by topic-partition.
        reason: the reason that returned intervals have; None for any reason.
    """
    if reader is None or not searched_offsets:
        return {}
    conditions: list[Condition] = [
        ("last", ge, min(first for first, _ in searched_offsets.values())),
        ("first", le, max(end for _, end in searched_offsets.values()) - 1),
    ]
    if reason is not None:
        conditions.append(("reason", eq, str(reason)))
    found: dict[TopicPartition, list[OffsetInterval]] = {}
    for row in reader.read_rows(ABSENT, *conditions, columns=["topic", "partition", "first", "last"]):
        place, interval = (row["topic"], row["partition"]), (row["first"], row["last"] + 1)
        if (
            place in searched_offsets
            and interval[1] > searched_offsets[place][0]
            and interval[0] < searched_offsets[place][1]
        ):
            found.setdefault(place, []).append(interval)
    return found


def count_offsets_in_intervals(intervals: Iterable[OffsetInterval], first: int, end: int) -> int:
    """Counts the offsets from `first` to `end` - 1 that are in at least one of the intervals. Intervals may overlap."""
    cut = np.array(sorted((max(a, first), min(b, end)) for a, b in intervals if b > first and a < end), np.int64)
    if not len(cut):
        return 0
    starts, ends = cut[:, 0], cut[:, 1]
    reached = np.maximum.accumulate(np.concatenate([[first], ends[:-1]]))
    return int(np.maximum(ends - np.maximum(starts, reached), 0).sum())


def find_offset_after_intervals(intervals: Iterable[OffsetInterval], offset: int) -> int:
    """Returns the lowest offset, equal to `offset` or higher, that is in none of the intervals `(first, end)`."""
    for first, end in sorted(intervals):
        if first <= offset < end:
            offset = end
    return offset


def find_missing_offset_intervals(offsets: Int64s, first: int, end: int) -> list[OffsetInterval]:
    """Returns the intervals `(first, end)` of consecutive offsets that are missing in `offsets`.

    Args:
        offsets: offsets in ascending order, each from `first` to `end` - 1.
        first: the lowest offset that can be missing.
        end: one past the highest offset that can be missing.
    """
    edges = np.concatenate([[first - 1], offsets, [end]])
    at = np.flatnonzero(np.diff(edges) > 1)
    return [(int(edges[i]) + 1, int(edges[i + 1])) for i in at]


def record_absent_offsets(
    spark: SparkSession,
    lake: Lake,
    intervals: Mapping[TopicPartition, Iterable[OffsetInterval]],
    txn: Txn,
    *,
    reason: AbsentOffsetReason,
    who: str | None = None,
    why: str | None = None,
) -> None:
    """Adds intervals of offsets without messages to `ops.absent_offsets`. A replay of the transaction adds nothing.

    Args:
        spark: the session to write with.
        lake: the lake that has the table.
        intervals: the intervals `(first, end)` of each topic-partition.
        txn: the Delta transaction of the write.
        reason: why there are no messages.
        who: the operator who skipped the messages; None for transactions.
        why: the operator's note; None for transactions.
    """
    lake.create_or_update_tables(spark, [ABSENT])
    now = datetime.now(UTC)
    rows = [
        {"topic": topic, "partition": partition, "first": first, "last": end - 1}
        | {"reason": str(reason), "who": who, "why": why, "noted_at": now}
        for (topic, partition), found in sorted(intervals.items())
        for first, end in found
    ]
    append_rows(spark, lake, ABSENT, pa.Table.from_pylist(rows, arrow_schema(ABSENT)), txn)
