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

from sessionlake.integrity.outcome import unwrap_restarting_counter
from sessionlake.integrity.rules import JudgingRuleLookup, JudgingRules
from sessionlake.protocol.arrow import build_session_key, split_session_key
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, choose_kafka_or_stream_time
from sessionlake.protocol.message import ANY_SEQ, NO_SEQ, MessageType, SeqLink
from sessionlake.protocol.types import Int64s, TopicPartition
from sessionlake.settings.section import Integrity

MAX_CHAINS = 1_000
"""The most chains of a topic-partition. A new one replaces the one whose last message is the oldest."""
ReadStreamTimesOfMessages = Callable[[pa.Table], Int64s]
"""Returns the stream time (ms) at each of some messages."""


class ChainCursor(msgspec.Struct, array_like=True):
    """What is remembered of a chain: a counter that several sessions share.

    Attributes:
        last_seq: The highest seq of its messages since it started.
        offset: The Kafka offset of its last message.
        time: The time of its last message, ms.
        sessions: The keys of the sessions that belong to it.
    """

    last_seq: int
    offset: int
    time: int
    sessions: set[str]


Chains = dict[str, ChainCursor]
"""Chains by key, which `build_session_key` makes of topic, partition and the chain's name."""


@dataclass(frozen=True)
class ChainGap:
    """Missing seqs of a chain (a counter that several sessions share), as they concern one of its sessions.

    Attributes:
        offset: The Kafka offset of the message that revealed the gap.
        kafka_ts: The Kafka timestamp of that message, ms.
        partition: The Kafka partition of that message.
        now: The stream time at that message, ms.
        expected: The seq that the chain should have had next; None if it is not known.
        actual: The seq of the message.
    """

    offset: int
    kafka_ts: int
    partition: int
    now: int
    expected: int | None
    actual: int


class _ChainMessagePart(NamedTuple):
    """A message, or a part of a split message, that has a seq of a chain.

    Its fields are columns of the decoded messages.
    """

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
    def session_key(self) -> str | None:
        """Key of the session; None for a message that its feed ignores."""
        return None if self.session_id is None else build_session_key(self.topic, self.partition, self.session_id)


@dataclass
class ChainGapFinder:
    """Finds gaps and repeated messages in the chains of a shard's batch.

    A chain is a counter that several sessions share.

    Attributes:
        chains: The chains, updated in place.
        rules: Looks up the rules of topics.
        known_sessions: The keys of the sessions that the shard has. Those of the batch are added.
        gaps: The gaps found so far, by session key, each session's in order of their offsets.
    """

    chains: Chains
    rules: JudgingRuleLookup
    known_sessions: set[str]
    gaps: dict[str, list[ChainGap]] = field(default_factory=dict)
    _links: dict[int, int] = field(default_factory=dict)
    _seqs: dict[int, int] = field(default_factory=dict)

    def find_gaps_and_link_messages(self, messages: pa.Table, read_stream_times: ReadStreamTimesOfMessages) -> pa.Table:
        """Follows the chains through the batch, and collects their gaps in `gaps`.

        Args:
            messages: The decoded messages of the batch.
            read_stream_times: Returns the stream times at some of the messages.

        Returns:
            The messages with `link` set as their chains show (repeated or continued), and `seq` without restarts of the
            counter.
        """
        places = np.flatnonzero(pc.is_valid(messages["chain"]).to_numpy())
        for _, parts in groupby(
            _list_sorted_chain_message_parts(messages, places, read_stream_times), _get_chain_sort_key
        ):
            self._update_chain_with_message(list(parts))
        return _replace_column_values(_replace_column_values(messages, "link", self._links), "seq", self._seqs)

    def _update_chain_with_message(self, rows: Sequence[_ChainMessagePart]) -> None:
        """Follows a chain through one message.

        Args:
            rows: The parts of the message that have the same seq of this chain.
        """
        first, rules = rows[0], self.rules.find_judging_rules(rows[0].topic)
        if rules.integrity is Integrity.NONE:
            return
        key = build_session_key(first.topic, first.partition, first.chain)
        chain = self.chains.get(key)
        time = choose_kafka_or_stream_time(first.kafka_ts, first.now)
        if chain is None or _has_chain_been_silent_too_long(chain, first.now, time, rules):
            chain = self._start_or_restart_chain(key, first, time)
        elif any(part.link == SeqLink.RESTART for part in rows):
            chain.sessions, chain.last_seq = set(), first.seq
        else:
            seq = unwrap_restarting_counter(first.seq, chain.last_seq, rules.modulo) if rules.modulo else first.seq
            for part in rows:
                self._seqs[part.place] = seq
            if _is_repeated_message_of_chain(rows, seq, chain.last_seq):
                self._links |= {part.place: SeqLink.REPEATED for part in rows}
                return
            if _has_gap_in_chain_before_message(first, seq, chain.last_seq, rules):
                expected = None if first.link == SeqLink.LINK else chain.last_seq + 1
                for session in chain.sessions:
                    self._add_chain_gap_to_session(session, first, expected, seq)
            chain.last_seq = max(seq, chain.last_seq)
        chain.offset, chain.time = first.offset, time
        for part in rows:
            self._add_session_of_message_to_chain(part, key, chain)

    def _start_or_restart_chain(self, key: str, first_row: _ChainMessagePart, time: int) -> ChainCursor:
        """Creates a chain, or starts it again, at a message.

        If the topic-partition has too many, its oldest one is dropped.

        Args:
            key: The chain's key.
            first_row: The message.
            time: The time of the message, ms.
        """
        topic, partition, _ = split_session_key(key)
        if key not in self.chains:
            own = [name for name in self.chains if split_session_key(name)[:2] == (topic, partition)]
            if len(own) >= MAX_CHAINS:
                del self.chains[min(own, key=lambda name: self.chains[name].offset)]
        chain = self.chains[key] = ChainCursor(first_row.seq, first_row.offset, time, set())
        return chain

    def _add_session_of_message_to_chain(self, row: _ChainMessagePart, key: str, chain: ChainCursor) -> None:
        """Adds a message's session to the chain, and removes it from its other chains. Sets the message's link."""
        session = row.session_key
        if session is None:
            return
        self._links[row.place] = SeqLink.CHAINED
        if session not in chain.sessions and session in self.known_sessions:
            if row.type != MessageType.SNAPSHOT:
                self._add_chain_gap_to_session(session, row, None, self._seqs.get(row.place, row.seq))
            for name, other in self.chains.items():
                if name != key:
                    other.sessions.discard(session)
        chain.sessions.add(session)
        self.known_sessions.add(session)

    def _add_chain_gap_to_session(
        self, session_key: str, row: _ChainMessagePart, expected: int | None, actual: int
    ) -> None:
        """Adds a gap that this message has revealed to the gaps of a session."""
        gap = ChainGap(row.offset, row.kafka_ts, row.partition, row.now, expected, actual)
        self.gaps.setdefault(session_key, []).append(gap)


def list_silent_chains(
    chains: Chains, rules: JudgingRuleLookup, stream_times: Mapping[TopicPartition, int]
) -> list[str]:
    """Returns the keys of the chains that have been silent for so long that any later message would start them again.

    Args:
        chains: The chains.
        rules: Looks up the rules of topics.
        stream_times: Stream time of each topic-partition, ms.
    """
    found = []
    for key, chain in chains.items():
        topic, partition, _ = split_session_key(key)
        now = stream_times.get((topic, partition), NO_KAFKA_TIME)
        if _has_chain_been_silent_too_long(chain, now, chain.time, rules.find_judging_rules(topic)):
            found.append(key)
    return found


def _list_sorted_chain_message_parts(
    messages: pa.Table, places: Int64s, read_stream_times: ReadStreamTimesOfMessages
) -> Iterator[_ChainMessagePart]:
    """Yields the messages at these indices, sorted by topic-partition and offset; the parts of one message by chain."""
    chosen = messages.take(pa.array(places))
    columns: dict[str, list[Any]] = {
        "place": places.tolist(),
        "seq": pc.fill_null(chosen["seq"], NO_SEQ).to_pylist(),
        "now": read_stream_times(chosen).tolist(),
    }
    columns |= {name: chosen[name].to_pylist() for name in _ChainMessagePart._fields if name not in columns}
    rows = [
        _ChainMessagePart(*fields)
        for fields in zip(*(columns[name] for name in _ChainMessagePart._fields), strict=True)
    ]
    yield from sorted(rows, key=_get_chain_sort_key)


def _get_chain_sort_key(row: _ChainMessagePart) -> tuple[str, int, int, str]:
    return row.topic, row.partition, row.offset, row.chain


def _has_chain_been_silent_too_long(chain: ChainCursor, now: int, message_time: int, rules: JudgingRules) -> bool:
    """Returns True if a message starts the chain again, because it comes after more than the session timeout.

    Args:
        now: The stream time at the message, ms.
        message_time: The time of the message, ms.
    """
    if NO_KAFKA_TIME in {chain.time, now}:
        return False
    return message_time - chain.time > rules.session_timeout or now - chain.time > 2 * rules.session_timeout


def _is_repeated_message_of_chain(rows: Sequence[_ChainMessagePart], seq: int, last_seq: int) -> bool:
    """Returns True if a chain has had this message already. A heartbeat with the chain's last seq is no repetition."""
    is_keep_alive = rows[0].after == seq == last_seq and all(part.type == MessageType.HEARTBEAT for part in rows)
    return seq <= last_seq and not is_keep_alive


def _has_gap_in_chain_before_message(row: _ChainMessagePart, seq: int, last_seq: int, rules: JudgingRules) -> bool:
    """Returns True if seqs are missing between the chain's last seq and a message with this seq."""
    if rules.modulo is not None:
        return seq > last_seq + 1
    after = ANY_SEQ if row.after is None else row.after
    return after != last_seq if row.link == SeqLink.LINK else after > last_seq


def _replace_column_values(messages: pa.Table, column_name: str, values: Mapping[int, int]) -> pa.Table:
    """Returns the messages with new values in a column. `values` has the new value by the message's index."""
    if not values:
        return messages
    place, found = (
        messages.schema.get_field_index(column_name),
        pc.fill_null(messages[column_name], NO_SEQ).to_numpy().copy(),
    )
    found[[*values]] = [*values.values()]
    column = messages.schema.field(place)
    return messages.set_column(place, column, pa.array(found, column.type, mask=found == NO_SEQ))
