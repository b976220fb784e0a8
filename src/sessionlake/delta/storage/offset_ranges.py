"""Ranges of offsets in many topic-partitions: combines and divides them, and builds the Spark condition for a range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import Column

OffsetRanges = Mapping[TopicPartition, tuple[int, int]]
"""One range of offsets for each topic-partition: its first and last offset, both included."""


def compute_enclosing_ranges(ranges: Iterable[tuple[str, int, int, int]]) -> OffsetRanges:
    """Returns, by topic-partition, the smallest range of offsets that contains all its spans.

    Args:
        ranges: tuples `(topic, partition, first, last)`, in any order.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    for topic, partition, first, last in ranges:
        known = found.get((topic, partition), (first, last))
        found[topic, partition] = min(first, known[0]), max(last, known[1])
    return found


def slice_ranges(ranges: OffsetRanges, number: int) -> Iterator[OffsetRanges]:
    """Divides ranges of offsets into `number` slices, which are processed one after the other.

    Slice i contains the i-th part of each topic-partition's range, so its messages arrived at about the same time and
    are in few files. If ranges are short, a slice lacks some or all topic-partitions.

    Args:
        ranges: first and last offset, by topic-partition.
        number: the number of slices.

    Yields:
        First and last offset by topic-partition, for each slice.
    """
    for i in range(number):
        cut = {
            place: (first + (last + 1 - first) * i // number, first + (last + 1 - first) * (i + 1) // number - 1)
            for place, (first, last) in ranges.items()
        }
        yield {place: offset_range for place, offset_range in cut.items() if offset_range[0] <= offset_range[1]}


def subtract_offset_intervals(
    ranges: OffsetRanges, intervals: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> Iterator[OffsetRanges]:
    """Removes intervals of offsets from ranges, and yields what remains, as few sets of ranges as possible.

    A set has one range per topic-partition. So several sets are needed if an interval divides a range.

    Args:
        ranges: first and last offset, by topic-partition.
        intervals: intervals to remove, by topic-partition: first offset, and one past the last.
    """
    left: dict[TopicPartition, list[tuple[int, int]]] = {}
    for place, (first, last) in ranges.items():
        cuts = [(first, first), *sorted(intervals.get(place, ())), (last + 1, last + 1)]
        reached = accumulate((end for _, end in cuts), max)
        gaps = ((before, min(start - 1, last)) for before, (start, _) in zip(reached, cuts[1:], strict=False))
        left[place] = [(start, end) for start, end in gaps if start <= end]
    for number in range(max(map(len, left.values()), default=0)):
        yield {place: parts[number] for place, parts in left.items() if len(parts) > number}


def build_offsets_condition(ranges: OffsetRanges) -> Column:
    """Returns a Spark condition: a row's offset is in the range of its topic-partition.

    Delta skips files without such rows.

    Args:
        ranges: first and last offset, by topic-partition.
    """
    from pyspark.sql import functions as F

    return _build_any_condition(
        [
            (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").between(first, last)
            for (topic, partition), (first, last) in ranges.items()
        ]
    )


def _build_any_condition(conditions: Sequence[Column]) -> Column:
    """Combines conditions with OR in a balanced tree, because a chain of thousands would overflow Spark's stack."""
    from pyspark.sql import functions as F

    if len(conditions) <= 1:
        return conditions[0] if conditions else F.lit(col=False)
    middle = len(conditions) // 2
    return _build_any_condition(conditions[:middle]) | _build_any_condition(conditions[middle:])
