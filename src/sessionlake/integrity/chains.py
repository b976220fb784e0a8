"""Chains: counters that several sessions share, such as the sequence number of a connection that carries many books.

A chain is followed message by message before the sessions are judged one by one. What the chain shows is written into
the messages, as their `link`, and into gaps of the sessions: a missing message of a chain may belong to any of its
sessions, so it is a gap of each. These rules apply where the protocol leaves a choice:

- A session belongs to the chain of its last message. A snapshot that restarts a chain takes its session along; the
  other sessions leave the chain, because the restart does not show whether they have missed messages.
- A session that returns to a chain, or comes from another one, needs a snapshot. If another message comes first, there
  is a gap before it.
- After a silence that is longer than the session timeout, the next message starts the chain again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.outcome import unwrap_counter
from sessionlake.integrity.rules import RuleLookup, Rules
from sessionlake.protocol.arrow import build_session_key, split_session_key
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, choose_message_time
from sessionlake.protocol.message import ANY_SEQ, NO_SEQ, Link, MessageType
from sessionlake.protocol.types import Int64s, TopicPartition
from sessionlake.settings.section import Integrity

MAX_CHAINS = 1_000
"""The most chains of a topic-partition. A new one replaces the one whose last message is the oldest."""
ReadTimes = Callable[[pa.Table], Int64s]
"""Returns the stream time (ms) at each of some messages."""


class ChainCursor(msgspec.Struct, array_like=True):
    """What must be remembered of a chain.

    Attributes:
        last_seq: The highest seq of its messages since it started.
        offset: Kafka offset of its last message.
        time: Time of its last message, ms.
        sessions: Keys of the sessions that belong to it.
    """

    last_seq: int
    offset: int
    time: int
    sessions: set[str]


Chains = dict[str, ChainCursor]
"""Chains by key, which `build_session_key` makes of topic, partition and the chain's name."""


@dataclass(frozen=True)
class ChainGap:
    """A gap of a chain, as it concerns one of its sessions.

    Attributes:
        offset: Kafka offset of the message that revealed the gap.
        kafka_ts: Kafka timestamp of that message, ms.
        partition: Kafka partition of that message.
        now: Stream time at that message, ms.
        expected: The seq that the chain should have had next; None if it is not known.
        actual: The seq of the message.
    """

    offset: int
    kafka_ts: int
    partition: int
    now: int
    expected: int | None
    actual: int


class _Row(NamedTuple):
    """A part of a message that has a place in a chain."""

    place: int
    topic: str
    partition: int
    offset: int
    chain: str
    session_id: str | None
    type: int
    seq: int
    after: int | None
    link: int
    kafka_ts: int
    now: int

    @property
    def session(self) -> str | None:
        """Key of the session; None for a message that its feed ignores."""
        return None if self.session_id is None else build_session_key(self.topic, self.partition, self.session_id)


@dataclass
class ChainFollower:
    """Follows the chains of a shard through one batch.

    Attributes:
        chains: The chains, updated in place.
        rules: Looks up the rules of topics.
        known_sessions: Keys of the sessions that the shard has. Those of the batch are added.
        gaps: The gaps found so far, by session key, each session's in order of their offsets.
    """

    chains: Chains
    rules: RuleLookup
    known_sessions: set[str]
    gaps: dict[str, list[ChainGap]] = field(default_factory=dict)
    _links: dict[int, int] = field(default_factory=dict)
    _seqs: dict[int, int] = field(default_factory=dict)

    def follow(self, messages: pa.Table, read_times: ReadTimes) -> pa.Table:
        """Follows the chains of the messages, and returns the messages with what the chains show in `link` and `seq`.

        Args:
            messages: The messages of the batch: rows of a chunk.
            read_times: Returns the stream times at some of the messages.
        """
        places = np.flatnonzero(pc.is_valid(messages["chain"]).to_numpy())
        for _, parts in groupby(_list_rows(messages, places, read_times), _place_in_chain):
            self._follow_message(list(parts))
        return _replace_values(_replace_values(messages, "link", self._links), "seq", self._seqs)

    def _follow_message(self, parts: Sequence[_Row]) -> None:
        """Follows a chain through one message, whose parts all have the same place in it."""
        first, rules = parts[0], self.rules.find_rules(parts[0].topic)
        if rules.integrity is Integrity.NONE:
            return
        key = build_session_key(first.topic, first.partition, first.chain)
        chain = self.chains.get(key)
        time = choose_message_time(first.kafka_ts, first.now)
        if chain is None or _has_fallen_silent(chain, first.now, time, rules):
            chain = self._start_chain(key, first, time)
        elif any(part.link == Link.RESTART for part in parts):
            chain.sessions, chain.last_seq = set(), first.seq
        else:
            seq = unwrap_counter(first.seq, chain.last_seq, rules.modulo) if rules.modulo else first.seq
            for part in parts:
                self._seqs[part.place] = seq
            if _is_repeated(parts, seq, chain.last_seq):
                self._links |= {part.place: Link.REPEATED for part in parts}
                return
            if _has_gap(first, seq, chain.last_seq, rules):
                expected = None if first.link == Link.LINK else chain.last_seq + 1
                for session in chain.sessions:
                    self._add_gap(session, first, expected, seq)
            chain.last_seq = max(seq, chain.last_seq)
        chain.offset, chain.time = first.offset, time
        for part in parts:
            self._join_chain(part, key, chain)

    def _start_chain(self, key: str, first: _Row, time: int) -> ChainCursor:
        topic, partition, _ = split_session_key(key)
        if key not in self.chains:
            own = [name for name in self.chains if split_session_key(name)[:2] == (topic, partition)]
            if len(own) >= MAX_CHAINS:
                del self.chains[min(own, key=lambda name: self.chains[name].offset)]
        chain = self.chains[key] = ChainCursor(first.seq, first.offset, time, set())
        return chain

    def _join_chain(self, part: _Row, key: str, chain: ChainCursor) -> None:
        """Makes the session of a message belong to the message's chain, and sets the link of the message."""
        session = part.session
        if session is None:
            return
        self._links[part.place] = Link.CHAINED
        if session not in chain.sessions and session in self.known_sessions:
            if part.type != MessageType.SNAPSHOT:
                self._add_gap(session, part, None, self._seqs.get(part.place, part.seq))
            for name, other in self.chains.items():
                if name != key:
                    other.sessions.discard(session)
        chain.sessions.add(session)
        self.known_sessions.add(session)

    def _add_gap(self, session: str, row: _Row, expected: int | None, actual: int) -> None:
        gap = ChainGap(row.offset, row.kafka_ts, row.partition, row.now, expected, actual)
        self.gaps.setdefault(session, []).append(gap)


def list_silent_chains(chains: Chains, rules: RuleLookup, stream_times: Mapping[TopicPartition, int]) -> list[str]:
    """Returns the keys of the chains that every later message would start again.

    Args:
        chains: The chains.
        rules: Looks up the rules of topics.
        stream_times: Stream time of each topic-partition, ms.
    """
    found = []
    for key, chain in chains.items():
        topic, partition, _ = split_session_key(key)
        now = stream_times.get((topic, partition), NO_KAFKA_TIME)
        if _has_fallen_silent(chain, now, chain.time, rules.find_rules(topic)):
            found.append(key)
    return found


def _list_rows(messages: pa.Table, places: Int64s, read_times: ReadTimes) -> Iterator[_Row]:
    """Yields the messages at some indices by topic-partition and offset, and the parts of a message by chain."""
    chosen = messages.take(pa.array(places))
    columns: dict[str, list[Any]] = {
        "place": places.tolist(),
        "seq": pc.fill_null(chosen["seq"], NO_SEQ).to_pylist(),
        "now": read_times(chosen).tolist(),
    }
    columns |= {name: chosen[name].to_pylist() for name in _Row._fields if name not in columns}
    rows = [_Row(*fields) for fields in zip(*(columns[name] for name in _Row._fields), strict=True)]
    yield from sorted(rows, key=_place_in_chain)


def _place_in_chain(row: _Row) -> tuple[str, int, int, str]:
    return row.topic, row.partition, row.offset, row.chain


def _has_fallen_silent(chain: ChainCursor, now: int, time: int, rules: Rules) -> bool:
    """Returns True if a message at stream time `now`, of time `time` (ms), starts the chain again."""
    if NO_KAFKA_TIME in {chain.time, now}:
        return False
    return time - chain.time > rules.session_timeout or now - chain.time > 2 * rules.session_timeout


def _is_repeated(parts: Sequence[_Row], seq: int, last_seq: int) -> bool:
    is_keep_alive = parts[0].after == seq == last_seq and all(part.type == MessageType.HEARTBEAT for part in parts)
    return seq <= last_seq and not is_keep_alive


def _has_gap(first: _Row, seq: int, last_seq: int, rules: Rules) -> bool:
    if rules.modulo is not None:
        return seq > last_seq + 1
    after = ANY_SEQ if first.after is None else first.after
    return after != last_seq if first.link == Link.LINK else after > last_seq


def _replace_values(messages: pa.Table, name: str, values: Mapping[int, int]) -> pa.Table:
    """Returns the messages with other values of a column at some indices."""
    if not values:
        return messages
    place, found = messages.schema.get_field_index(name), pc.fill_null(messages[name], NO_SEQ).to_numpy().copy()
    found[[*values]] = [*values.values()]
    column = messages.schema.field(place)
    return messages.set_column(place, column, pa.array(found, column.type, mask=found == NO_SEQ))
