"""Decides what to do about each topic that was deleted, created again or cut in Kafka. Pure: no Kafka, no clock.

A topic is *cut* if Kafka's retention has removed messages that bronze has not read. The columns are the values of the
rule, `kafka.on_topic_change`:

| a topic was | `fail` | `forget` | `restart` |
|---|---|---|---|
| deleted | stops bronze | no longer read | waits for a topic of that name |
| deleted and created again | stops bronze | neither is read | reads the new one from its start, as next generation |
| cut | stops bronze | no longer read | reads the remaining messages, as next generation |

The number of lost messages is recorded under every rule. Under `fail`, bronze stops at each start until the rule is
changed. A forgotten topic stays forgotten until there is another topic of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sessionlake.ledger.topics import PartitionOffsets, TopicGeneration, TopicState
from sessionlake.settings.model import OnTopicChange

SUBSCRIBED = frozenset({TopicState.ACTIVE})
"""States of topics that are subscribed to."""
MAY_BE_ABSENT = frozenset({TopicState.DELETED, TopicState.FORGOTTEN})
"""States of topics that Kafka need not list."""
# A topic counts as deleted after Kafka lacked it for this time and in this many checks.
_DELETED_AFTER_SECONDS = 10.0
_DELETED_AFTER_LOOKS = 5


@dataclass(frozen=True)
class KafkaTopic:
    """A topic as it is in Kafka now.

    Attributes:
        topic_id: The topic's id; None if the brokers give none.
        partitions: Kafka's first offset and end (one past the last offset), by partition.
    """

    topic_id: str | None
    partitions: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class TopicAbsenceCounts:
    """Counts for each topic how often in a row Kafka has not listed it.

    A broker that has just started may not know every topic yet. So a topic counts as deleted only after several checks
    in a row, over some seconds, did not list it. A topic that was created again is noticed at once by its id.

    Attributes:
        looked_at: When the last check was answered, in seconds of the monotonic clock.
        missing: By topic, when the first check in a row that lacked it was answered, and the number of these checks.
    """

    looked_at: float = 0.0
    missing: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def count_topics_missing_in_check(self, missing: Iterable[str], now: float) -> TopicAbsenceCounts:
        """Returns the counts after one more check.

        Args:
            missing: Topics that Kafka did not list.
            now: When the check was answered, in seconds of the monotonic clock.
        """
        before = {name: self.missing.get(name, (now, 0)) for name in missing}
        return TopicAbsenceCounts(now, {name: (since, looks + 1) for name, (since, looks) in before.items()})

    @property
    def deleted_topics(self) -> frozenset[str]:
        """Topics that Kafka has not listed for long enough to count as deleted."""
        return frozenset(
            name
            for name, (since, looks) in self.missing.items()
            if looks >= _DELETED_AFTER_LOOKS and self.looked_at - since >= _DELETED_AFTER_SECONDS
        )

    @property
    def possibly_deleted_topics(self) -> frozenset[str]:
        """Topics that Kafka did not list, but not yet often enough to count as deleted."""
        return frozenset(self.missing) - self.deleted_topics


@dataclass(frozen=True)
class TopicChange:
    """A change of a topic in Kafka, about which `kafka.on_topic_change` decides.

    Attributes:
        state: The topic's new state: deleted, recreated or cut.
        what: What happened, as a text for the operator. It continues after the topic's name.
    """

    state: TopicState
    what: str


@dataclass(frozen=True)
class TopicsTableUpdate:
    """How `ops.topics` changes after all topics were compared with Kafka, and whether bronze must stop.

    Attributes:
        rows: New or changed rows to write to `ops.topics`.
        refusals: Texts that say why bronze must stop, one per topic; empty if bronze may continue.
    """

    rows: tuple[TopicGeneration, ...]
    refusals: tuple[str, ...] = ()


def decide_topic_update(
    known_topics: Mapping[str, TopicGeneration],
    kafka_topics: Mapping[str, KafkaTopic],
    *,
    rule: OnTopicChange,
    now: datetime,
    inactive_after: timedelta,
) -> TopicsTableUpdate:
    """Compares the topics in `ops.topics` with Kafka's, and applies `kafka.on_topic_change` to those that changed.

    Args:
        known_topics: Last generation of each topic in `ops.topics`, by name. Each `next_offset` must be up to date.
        kafka_topics: Topics that Kafka has now, by name, including new ones.
        rule: The setting `kafka.on_topic_change`.
        now: Time to record in the rows.
        inactive_after: A topic without a message for this time becomes inactive.
    """
    rows: list[TopicGeneration] = []
    refusals: list[str] = []
    for name in sorted(known_topics.keys() | kafka_topics.keys()):
        topic, found = known_topics.get(name), kafka_topics.get(name)
        if topic is None:
            if found is not None:
                rows.append(_build_new_topic(name, found, now))
            continue
        change = find_topic_change(topic, found)
        if change is None:
            rows.append(topic if found is None else _update_unchanged_topic(topic, found, now, inactive_after))
        elif rule is OnTopicChange.FAIL:
            rows.append(replace(topic, state=change.state))
            refusals.append(f"topic {name} {change.what}; {_describe_read_offsets(topic)}")
        else:
            rows.extend(_update_changed_topic(topic, found, change, rule, now))
    return TopicsTableUpdate(tuple(rows), tuple(refusals))


def find_topic_change(topic: TopicGeneration, kafka_topic: KafkaTopic | None) -> TopicChange | None:
    """Returns how a topic has changed in Kafka.

    Returns None if it has not changed, or if the change was decided before.

    Args:
        topic: Last generation of the topic in `ops.topics`.
        kafka_topic: The topic as Kafka has it now; None if Kafka does not have it.
    """
    if kafka_topic is None:
        gone = TopicChange(TopicState.DELETED, "was deleted, or this client may no longer see it")
        return None if topic.state is TopicState.FORGOTTEN else gone
    if None not in {topic.topic_id, kafka_topic.topic_id} and topic.topic_id != kafka_topic.topic_id:
        return TopicChange(TopicState.RECREATED, "was deleted and created again")
    if topic.state is TopicState.FORGOTTEN:
        return None
    if topic.state is TopicState.RECREATED:  # refused before; its offsets may look right again by now
        return TopicChange(TopicState.RECREATED, "was deleted and created again")
    if topic.state is TopicState.DELETED and None in {topic.topic_id, kafka_topic.topic_id}:
        # Without ids it may be another topic. Reading it again costs duplicates; resuming could lose messages.
        return TopicChange(TopicState.RECREATED, "was gone and has come back")
    return next(
        (
            change
            for part in topic.partitions
            for change in _find_partition_changes(part, topic.offset_shift, kafka_topic)
        ),
        None,
    )


def _find_partition_changes(
    partition: PartitionOffsets, offset_shift: int, kafka_topic: KafkaTopic
) -> Iterator[TopicChange]:
    number, at = partition.partition, partition.next_offset
    first, end = kafka_topic.partitions.get(number, (0, -1))
    if end + offset_shift < at:
        yield TopicChange(TopicState.RECREATED, f"ends below the offset up to which its partition {number} was read")
    elif first + offset_shift > at:
        lost = f"offsets {at} to {first + offset_shift - 1} of its partition {number}"
        yield TopicChange(TopicState.CUT, f"was cut by Kafka's retention: {lost} are gone")


def _build_new_topic(name: str, kafka_topic: KafkaTopic, now: datetime) -> TopicGeneration:
    parts = tuple(
        PartitionOffsets(number, first, first, end) for number, (first, end) in sorted(kafka_topic.partitions.items())
    )
    return TopicGeneration(name, 0, TopicState.ACTIVE, kafka_topic.topic_id, now, now, partitions=parts)


def _update_unchanged_topic(
    topic: TopicGeneration, kafka_topic: KafkaTopic, now: datetime, inactive_after: timedelta
) -> TopicGeneration:
    parts = tuple(_update_partitions(topic, kafka_topic))
    waiting = any(part.end_offset > part.next_offset for part in parts)
    quiet = now - (topic.last_message_at or topic.first_seen) >= inactive_after
    state = TopicState.INACTIVE if quiet and not waiting else TopicState.ACTIVE
    if topic.state is TopicState.FORGOTTEN:
        state, parts = topic.state, topic.partitions
    return replace(topic, state=state, topic_id=topic.topic_id or kafka_topic.topic_id, last_seen=now, partitions=parts)


def _update_partitions(topic: TopicGeneration, kafka_topic: KafkaTopic) -> Iterator[PartitionOffsets]:
    """Yields the offsets of each partition that Kafka has now: known ones with the new end, and new ones.

    Args:
        topic: The topic's row in `ops.topics`.
        kafka_topic: The topic as Kafka has it now.
    """
    known, offset_shift = {part.partition: part for part in topic.partitions}, topic.offset_shift
    for number, (first, end) in sorted(kafka_topic.partitions.items()):
        if number in known:
            yield replace(known[number], end_offset=end + offset_shift)
        else:
            yield PartitionOffsets(number, first + offset_shift, first + offset_shift, end + offset_shift)


def _update_changed_topic(
    topic: TopicGeneration, kafka_topic: KafkaTopic | None, change: TopicChange, rule: OnTopicChange, now: datetime
) -> Iterator[TopicGeneration]:
    """Yields the rows of `ops.topics` for a changed topic: its ended generation, and the next one if there is one.

    Args:
        topic: Last generation of the topic in `ops.topics`.
        kafka_topic: The topic as Kafka has it now; None if Kafka does not have it.
        change: How the topic changed.
        rule: `forget` or `restart`, the setting `kafka.on_topic_change`.
        now: Time to record in the rows.
    """
    forgets = rule is OnTopicChange.FORGET
    if kafka_topic is None or (forgets and change.state is TopicState.CUT):
        ends = (
            {}
            if kafka_topic is None
            else {n: end + topic.offset_shift for n, (_, end) in kafka_topic.partitions.items()}
        )
        yield _end_topic_generation(topic, TopicState.FORGOTTEN if forgets else change.state, ends)
        return
    cut = change.state is TopicState.CUT
    offset_shift = topic.offset_shift if cut else topic.first_free_offset
    parts = tuple(
        PartitionOffsets(number, max(first + offset_shift, after), max(first + offset_shift, after), end + offset_shift)
        for number, (first, end) in sorted(kafka_topic.partitions.items())
        for after in [_find_next_offset_of_partition(topic, number) if cut else 0]
    )
    starts = {part.partition: part.first_offset for part in parts} if cut else {}
    if topic.state is not TopicState.FORGOTTEN:
        yield _end_topic_generation(topic, change.state, starts)
    state = TopicState.FORGOTTEN if forgets else TopicState.ACTIVE
    fresh = TopicGeneration(
        topic.topic, topic.generation + 1, state, kafka_topic.topic_id, now, now, None, offset_shift, parts
    )
    yield replace(fresh, lost=_count_unread_offsets(parts)) if forgets else fresh


def _end_topic_generation(topic: TopicGeneration, state: TopicState, end_offsets: Mapping[int, int]) -> TopicGeneration:
    parts = tuple(
        replace(part, end_offset=max(part.next_offset, end_offsets.get(part.partition, part.end_offset)))
        for part in topic.partitions
    )
    return replace(topic, state=state, partitions=parts, lost=_count_unread_offsets(parts))


def _count_unread_offsets(partitions: tuple[PartitionOffsets, ...]) -> int:
    return sum(part.end_offset - part.next_offset for part in partitions)


def _find_next_offset_of_partition(topic: TopicGeneration, partition: int) -> int:
    return next((part.next_offset for part in topic.partitions if part.partition == partition), 0)


def _describe_read_offsets(topic: TopicGeneration) -> str:
    read = [
        f"partition {part.partition} up to offset {part.next_offset - 1}"
        + (f" (Kafka last had {part.end_offset - 1})" if part.end_offset > part.next_offset else "")
        for part in topic.partitions
        if part.next_offset > part.first_offset or part.end_offset > part.next_offset
    ]
    return f"read of it: {', '.join(read)}" if read else "nothing of it had been read"


def update_topic_after_read(
    row: TopicGeneration, partition: int, first: int, end: int, now: datetime
) -> TopicGeneration:
    """Returns the topic's row of `ops.topics` after bronze has read offsets `first` to `end` - 1 of a partition.

    Offsets of earlier generations of the topic are ignored.
    """
    parts = {part.partition: part for part in row.partitions}
    part = parts.get(partition)
    if part is None:
        if end <= row.offset_shift:
            return row
        begin = max(first, row.offset_shift)
        part = PartitionOffsets(partition, begin, begin, begin)
    if end <= part.next_offset:
        return row
    begun = part.first_offset if part.next_offset > part.first_offset else max(first, part.first_offset)
    parts[partition] = PartitionOffsets(partition, begun, end, max(end, part.end_offset))
    state = TopicState.ACTIVE if row.state is TopicState.INACTIVE else row.state
    at = max(now, row.last_message_at or now)
    held = tuple(parts[number] for number in sorted(parts))
    return replace(row, state=state, partitions=held, last_message_at=at, last_seen=max(now, row.last_seen))


def has_other_topic_id(row: TopicGeneration, present_id: str | None) -> bool:
    """Returns True if a topic with Kafka's present id is not the same topic as the row of `ops.topics`.

    It is also True if the row says that its topic was deleted.
    """
    if row.state is TopicState.DELETED:
        return True
    return row.topic_id is not None and present_id is not None and row.topic_id != present_id
