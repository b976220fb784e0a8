"""What became of each topic, and what the rule makes of it. Pure: what is known and what Kafka says in, rows out.

| Kafka says | `fail` | `forget` | `restart` |
|---|---|---|---|
| deleted | refuses | not read any more | waits for a topic of that name |
| created anew | refuses | not read any more, nor is the new one | the new one from its beginning, as next generation |
| cut before it was read | refuses | not read any more | what is left of it, as next generation |

What is lost is written down whatever the rule. A refusal is final until the rule changes; what was forgotten stays so
until there is yet another topic of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sessionlake.ledger.topics import PartitionOffsets, Topic, TopicState
from sessionlake.settings.model import OnTopicChange

READ = frozenset({TopicState.ACTIVE})
"""States of topics that are subscribed to."""
GONE = frozenset({TopicState.DELETED, TopicState.FORGOTTEN})
"""States of topics of which nothing is decided when Kafka does not list them."""
# So long, and in so many looks, Kafka must be without a topic until that counts as deleted.
_STEADY_SECONDS = 10.0
_STEADY_LOOKS = 5


@dataclass(frozen=True)
class Seen:
    """A topic as Kafka shows it now.

    Attributes:
        topic_id: None where the brokers give none.
        partitions: first offset and end of each, Kafka's own.
    """

    topic_id: str | None
    partitions: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Absences:
    """Topics that Kafka does not list, as looks at it have shown one after the other, in which it was never away.

    A broker that has just started may not know of every topic yet. So a topic that is not listed counts as deleted only
    when several looks in a row, over some seconds, have not shown it. One made anew is known by its id, at once.

    Attributes:
        looked_at: when the last look was answered; seconds of a clock that is never set.
        missing: of each topic that it lacked, the first of those looks in a row, and how many they are.
    """

    looked_at: float = 0.0
    missing: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def after(self, missing: Iterable[str], now: float) -> Absences:
        """With one more look, which was answered now."""
        before = {name: self.missing.get(name, (now, 0)) for name in missing}
        return Absences(now, {name: (since, looks + 1) for name, (since, looks) in before.items()})

    @property
    def deleted(self) -> frozenset[str]:
        """Topics that have been missing for long enough."""
        return frozenset(
            name
            for name, (since, looks) in self.missing.items()
            if looks >= _STEADY_LOOKS and self.looked_at - since >= _STEADY_SECONDS
        )

    @property
    def doubtful(self) -> frozenset[str]:
        """Topics that are missing, and may be there again at the next look."""
        return frozenset(self.missing) - self.deleted


@dataclass(frozen=True)
class Change:
    """What happened to a topic: its new state, and words for the operator."""

    state: TopicState
    what: str


@dataclass(frozen=True)
class TopicUpdate:
    """What is to be written to `ops.topics`, and why bronze must not go on, if it must not."""

    rows: tuple[Topic, ...]
    refusals: tuple[str, ...] = ()


def decide(
    known: Mapping[str, Topic],
    seen: Mapping[str, Seen],
    *,
    rule: OnTopicChange,
    now: datetime,
    inactive_after: timedelta,
) -> TopicUpdate:
    """Compares the last known generation of topics with Kafka.

    Args:
        known: every topic that is to be looked at, with `next_offset` up to date.
        seen: what Kafka has of them, and topics that are new.
    """
    rows: list[Topic] = []
    refusals: list[str] = []
    for name in sorted(known.keys() | seen.keys()):
        topic, found = known.get(name), seen.get(name)
        if topic is None:
            if found is not None:
                rows.append(_begun(name, found, now))
            continue
        change = change_of(topic, found)
        if change is None:
            rows.append(topic if found is None else _going_on(topic, found, now, inactive_after))
        elif rule is OnTopicChange.FAIL:
            rows.append(replace(topic, state=change.state))
            refusals.append(f"topic {name} {change.what}; {_read_so_far(topic)}")
        else:
            rows.extend(_handled(topic, found, change, rule, now))
    return TopicUpdate(tuple(rows), tuple(refusals))


def change_of(topic: Topic, found: Seen | None) -> Change | None:
    """What happened that a rule must decide about; None if nothing did, or it was decided before."""
    if found is None:
        gone = Change(TopicState.DELETED, "was deleted, or this client may not see it any more")
        return None if topic.state is TopicState.FORGOTTEN else gone
    if None not in {topic.topic_id, found.topic_id} and topic.topic_id != found.topic_id:
        return Change(TopicState.RECREATED, "was deleted and created anew")
    if topic.state is TopicState.FORGOTTEN:
        return None
    if topic.state is TopicState.RECREATED:  # refused before; it may have outgrown what showed it
        return Change(TopicState.RECREATED, "was deleted and created anew")
    if topic.state is TopicState.DELETED and None in {topic.topic_id, found.topic_id}:
        # Nothing says that it is the same one; to read it anew costs duplicates, to go on could cost messages.
        return Change(TopicState.RECREATED, "was gone, and is there again")
    return next((change for part in topic.partitions for change in _changes(part, topic.offset_shift, found)), None)


def _changes(part: PartitionOffsets, shift: int, found: Seen) -> Iterator[Change]:
    number, at = part.partition, part.next_offset
    first, end = found.partitions.get(number, (0, -1))
    if end + shift < at:
        yield Change(TopicState.RECREATED, f"ends before what was read of its partition {number}")
    elif first + shift > at:
        lost = f"offsets {at} to {first + shift - 1} of its partition {number}"
        yield Change(TopicState.CUT, f"was cut by Kafka's retention: {lost} are gone")


def _begun(name: str, found: Seen, now: datetime) -> Topic:
    parts = tuple(
        PartitionOffsets(number, first, first, end) for number, (first, end) in sorted(found.partitions.items())
    )
    return Topic(name, 0, TopicState.ACTIVE, found.topic_id, now, now, partitions=parts)


def _going_on(topic: Topic, found: Seen, now: datetime, inactive_after: timedelta) -> Topic:
    parts = tuple(_partitions(topic, found))
    waiting = any(part.end_offset > part.next_offset for part in parts)
    quiet = now - (topic.last_message_at or topic.first_seen) >= inactive_after
    state = TopicState.INACTIVE if quiet and not waiting else TopicState.ACTIVE
    if topic.state is TopicState.FORGOTTEN:
        state, parts = topic.state, topic.partitions
    return replace(topic, state=state, topic_id=topic.topic_id or found.topic_id, last_seen=now, partitions=parts)


def _partitions(topic: Topic, found: Seen) -> Iterator[PartitionOffsets]:
    known, shift = {part.partition: part for part in topic.partitions}, topic.offset_shift
    for number, (first, end) in sorted(found.partitions.items()):
        if number in known:
            yield replace(known[number], end_offset=end + shift)
        else:
            yield PartitionOffsets(number, first + shift, first + shift, end + shift)


def _handled(topic: Topic, found: Seen | None, change: Change, rule: OnTopicChange, now: datetime) -> Iterator[Topic]:
    """The rows that `forget` and `restart` leave: the generation that ended, and the next if there is one."""
    forgets = rule is OnTopicChange.FORGET
    if found is None or (forgets and change.state is TopicState.CUT):
        ends = {} if found is None else {n: end + topic.offset_shift for n, (_, end) in found.partitions.items()}
        yield _ended(topic, TopicState.FORGOTTEN if forgets else change.state, ends)
        return
    cut = change.state is TopicState.CUT
    shift = topic.offset_shift if cut else topic.free_offset
    parts = tuple(
        PartitionOffsets(number, max(first + shift, after), max(first + shift, after), end + shift)
        for number, (first, end) in sorted(found.partitions.items())
        for after in [_next(topic, number) if cut else 0]
    )
    starts = {part.partition: part.first_offset for part in parts} if cut else {}
    if topic.state is not TopicState.FORGOTTEN:
        yield _ended(topic, change.state, starts)
    state = TopicState.FORGOTTEN if forgets else TopicState.ACTIVE
    fresh = Topic(topic.topic, topic.generation + 1, state, found.topic_id, now, now, None, shift, parts)
    yield replace(fresh, lost=_unread(parts)) if forgets else fresh


def _ended(topic: Topic, state: TopicState, ends: Mapping[int, int]) -> Topic:
    parts = tuple(
        replace(part, end_offset=max(part.next_offset, ends.get(part.partition, part.end_offset)))
        for part in topic.partitions
    )
    return replace(topic, state=state, partitions=parts, lost=_unread(parts))


def _unread(parts: tuple[PartitionOffsets, ...]) -> int:
    return sum(part.end_offset - part.next_offset for part in parts)


def _next(topic: Topic, partition: int) -> int:
    return next((part.next_offset for part in topic.partitions if part.partition == partition), 0)


def _read_so_far(topic: Topic) -> str:
    read = [
        f"partition {part.partition} up to offset {part.next_offset - 1}"
        + (f" (Kafka last had {part.end_offset - 1})" if part.end_offset > part.next_offset else "")
        for part in topic.partitions
        if part.next_offset > part.first_offset or part.end_offset > part.next_offset
    ]
    return f"read of it: {', '.join(read)}" if read else "nothing of it had been read"
