"""Finds the offsets that both bronze and Kafka should have. Pure: it gets the ranges of both sides as arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sessionlake.bronze.topic_rules import Seen, change_of
from sessionlake.delta.storage.offset_ranges import OffsetRanges
from sessionlake.ledger.progress import Span
from sessionlake.ledger.topics import Topic, TopicState
from sessionlake.protocol.types import TopicPartition


@dataclass(frozen=True)
class Overlap:
    """The offsets that both sides should have, and what cannot be compared.

    Attributes:
        ranges: Offsets of `bronze.messages`, by topic-partition; without topic-partitions that have nothing to compare.
        unread: Number of offsets in Kafka that bronze has not read yet.
        gone: Topics of bronze that Kafka does not have any longer.
        recreated_topics: Topics of bronze that were deleted in Kafka and created again, and not read since.
    """

    ranges: OffsetRanges
    unread: int
    gone: tuple[str, ...]
    recreated_topics: tuple[str, ...]


def overlap(spans: Iterable[Span], known: Mapping[str, Topic], seen: Mapping[str, Seen]) -> Overlap:
    """Returns the offsets that both sides should have: from the later first offset to the earlier last one.

    If a topic was created again and read on, Kafka has only its last generation. Offsets below that generation's
    `offset_shift` are then below Kafka's first offset.

    Args:
        spans: The offsets that bronze has read.
        known: The last generation of every topic. A topic that is missing here is assumed to be unchanged.
        seen: Topics that Kafka has now: those of bronze, and those that bronze is going to read.
    """
    taken = {(span.topic, span.partition): (span.first, span.last) for span in spans}
    ours = sorted({topic for topic, _ in taken})
    recreated_topics = tuple(name for name in ours if name in seen and _is_another(known.get(name), seen[name]))
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    unread = 0
    for name in sorted(seen.keys() - set(recreated_topics)):
        shift = known[name].offset_shift if name in known else 0
        for number, (kafka_first, kafka_end) in sorted(seen[name].partitions.items()):
            first, end = kafka_first + shift, kafka_end + shift
            taken_first, taken_last = taken.get((name, number), (first, first - 1))
            both = max(first, taken_first), min(end - 1, taken_last)
            if both[0] <= both[1]:
                ranges[name, number] = both
            unread += max(0, end - max(first, taken_last + 1))
    return Overlap(ranges, unread, tuple(name for name in ours if name not in seen), recreated_topics)


def _is_another(topic: Topic | None, found: Seen) -> bool:
    change = None if topic is None else change_of(topic, found)
    return change is not None and change.state is TopicState.RECREATED
