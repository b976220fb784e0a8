"""Ranges of offsets of many topic-partitions, and their condition on a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import Column

OffsetRanges = Mapping[TopicPartition, tuple[int, int]]
"""First and last offset of each topic-partition, both included."""


def enclosing_ranges(spans: Iterable[tuple[str, int, int, int]]) -> OffsetRanges:
    """Returns the smallest range of each topic-partition that holds all of its `(topic, partition, first, last)`."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for topic, partition, first, last in spans:
        known = found.get((topic, partition), (first, last))
        found[topic, partition] = min(first, known[0]), max(last, known[1])
    return found


def slice_ranges(spans: OffsetRanges, number: int) -> Iterator[OffsetRanges]:
    """Cuts each topic-partition's offsets into the same number of consecutive ranges, one per slice.

    Messages that arrived at about the same time are then in one slice, and so in few files. A slice can lack some
    topic-partitions, or all.
    """
    for i in range(number):
        cut = {
            place: (first + (last + 1 - first) * i // number, first + (last + 1 - first) * (i + 1) // number - 1)
            for place, (first, last) in spans.items()
        }
        yield {place: span for place, span in cut.items() if span[0] <= span[1]}


def subtract_runs(
    spans: OffsetRanges, runs: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> Iterator[OffsetRanges]:
    """Yields the offsets of `spans` outside the runs `[first, end)`, in as few parts as possible."""
    left: dict[TopicPartition, list[tuple[int, int]]] = {}
    for place, (first, last) in spans.items():
        cuts = [(first, first), *sorted(runs.get(place, ())), (last + 1, last + 1)]
        reached = accumulate((end for _, end in cuts), max)
        gaps = ((before, min(start - 1, last)) for before, (start, _) in zip(reached, cuts[1:], strict=False))
        left[place] = [(start, end) for start, end in gaps if start <= end]
    for number in range(max(map(len, left.values()), default=0)):
        yield {place: parts[number] for place, parts in left.items() if len(parts) > number}


def offsets_condition(spans: OffsetRanges) -> Column:
    """Returns the condition for rows of these offsets. It lets Delta skip files that hold none."""
    from pyspark.sql import functions as F

    return _any(
        [
            (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").between(first, last)
            for (topic, partition), (first, last) in spans.items()
        ]
    )


def _any(conditions: Sequence[Column]) -> Column:
    """Combines conditions with OR in a balanced tree: a chain of thousands overflows the stack of Spark's planner."""
    from pyspark.sql import functions as F

    if len(conditions) <= 1:
        return conditions[0] if conditions else F.lit(col=False)
    middle = len(conditions) // 2
    return _any(conditions[:middle]) | _any(conditions[middle:])
