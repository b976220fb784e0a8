"""Finds the offsets that both bronze and Kafka should have. Pure: the offset ranges of both are arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sessionlake.bronze.topic_rules import KafkaTopic, find_topic_change
from sessionlake.delta.storage.offset_ranges import OffsetRanges
from sessionlake.ledger.progress import LayerReadOffsets
from sessionlake.ledger.topics import TopicGeneration, TopicState
from sessionlake.protocol.types import TopicPartition


@dataclass(frozen=True)
class KafkaBronzeOverlap:
    """The offsets that both bronze and Kafka should have, and what cannot be compared.

    Attributes:
        ranges: First and last offset to compare, by topic-partition, numbered as in `bronze.messages`. Topic-partitions
            without such offsets are absent.
        unread: Number of offsets in Kafka that bronze has not read yet.
        gone: Names of bronze's topics that Kafka no longer has.
        recreated_topics: Names of bronze's topics that were deleted in Kafka and created again, if bronze has not read
            the new topic yet.
    """

    ranges: OffsetRanges
    unread: int
    gone: tuple[str, ...]
    recreated_topics: tuple[str, ...]


def find_offsets_in_kafka_and_bronze(
    bronze_ranges: Iterable[LayerReadOffsets],
    known_topics: Mapping[str, TopicGeneration],
    kafka_topics: Mapping[str, KafkaTopic],
) -> KafkaBronzeOverlap:
    """Returns the offsets that both bronze and Kafka should have, so that their messages can be compared.

    In each topic-partition, they start at the higher of the two first offsets and end at the lower of the two last
    offsets. If a topic was created again and bronze has read the new one, the messages of the old one are not compared.

    Args:
        bronze_ranges: First and last offset that bronze has read, per topic-partition.
        known_topics: The last generation of every topic in `ops.topics`. A topic that is not in it counts as unchanged.
        kafka_topics: Bronze's topics, and topics that bronze is going to read, as Kafka has them now.
    """
    taken = {(span.topic, span.partition): (span.first, span.last) for span in bronze_ranges}
    ours = sorted({topic for topic, _ in taken})
    recreated_topics = tuple(
        name
        for name in ours
        if name in kafka_topics and _was_topic_recreated(known_topics.get(name), kafka_topics[name])
    )
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    unread = 0
    for name in sorted(kafka_topics.keys() - set(recreated_topics)):
        shift = known_topics[name].offset_shift if name in known_topics else 0
        for number, (kafka_first, kafka_end) in sorted(kafka_topics[name].partitions.items()):
            first, end = kafka_first + shift, kafka_end + shift
            taken_first, taken_last = taken.get((name, number), (first, first - 1))
            both = max(first, taken_first), min(end - 1, taken_last)
            if both[0] <= both[1]:
                ranges[name, number] = both
            unread += max(0, end - max(first, taken_last + 1))
    return KafkaBronzeOverlap(
        ranges, unread, tuple(name for name in ours if name not in kafka_topics), recreated_topics
    )


def _was_topic_recreated(topic: TopicGeneration | None, kafka_topic: KafkaTopic) -> bool:
    change = None if topic is None else find_topic_change(topic, kafka_topic)
    return change is not None and change.state is TopicState.RECREATED
