"""What of bronze Kafka still holds, by offsets. Pure: what bronze has taken in and what Kafka says in, ranges out."""

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
    """Which offsets both sides should have, and what of either is beyond comparison.

    Attributes:
        ranges: offsets of `bronze.messages`, of every topic-partition that there is something to compare of.
        unread: how many offsets behind bronze's Kafka has.
        gone: topics of bronze that Kafka has no more.
        anew: topics of bronze whose name another topic has in Kafka, which bronze has not begun to read.
    """

    ranges: OffsetRanges
    unread: int
    gone: tuple[str, ...]
    anew: tuple[str, ...]


def overlap(spans: Iterable[Span], known: Mapping[str, Topic], seen: Mapping[str, Seen]) -> Overlap:
    """From the later of the first offsets of both sides to the earlier of their last ones.

    Of a topic that was made anew and read on, Kafka holds the last generation alone: what is before its `offset_shift`
    lies before Kafka's first offset.

    Args:
        spans: what bronze has taken in.
        known: the last generation of every topic; one that is not here is taken for the one that was read.
        seen: topics that Kafka has now: bronze's, and those that it is going to read.
    """
    taken = {(span.topic, span.partition): (span.first, span.last) for span in spans}
    ours = sorted({topic for topic, _ in taken})
    anew = tuple(name for name in ours if name in seen and _is_another(known.get(name), seen[name]))
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    unread = 0
    for name in sorted(seen.keys() - set(anew)):
        shift = known[name].offset_shift if name in known else 0
        for number, (kafka_first, kafka_end) in sorted(seen[name].partitions.items()):
            first, end = kafka_first + shift, kafka_end + shift
            taken_first, taken_last = taken.get((name, number), (first, first - 1))
            both = max(first, taken_first), min(end - 1, taken_last)
            if both[0] <= both[1]:
                ranges[name, number] = both
            unread += max(0, end - max(first, taken_last + 1))
    return Overlap(ranges, unread, tuple(name for name in ours if name not in seen), anew)


def _is_another(topic: Topic | None, found: Seen) -> bool:
    change = None if topic is None else change_of(topic, found)
    return change is not None and change.state is TopicState.RECREATED
