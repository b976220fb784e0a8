"""The input of judging: a shard's messages as columns, and the sessions to which they belong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from sessionlake.integrity.chains import ChainGap
from sessionlake.integrity.cursor import SessionCursors
from sessionlake.integrity.outcome import IntegrityEventKind, MessageHeader
from sessionlake.integrity.rules import JudgingRules, OperatorDecision
from sessionlake.protocol.kafka_time import choose_kafka_or_stream_times
from sessionlake.protocol.types import Int8s, Int32s, Int64s, Objects


class RowChangesOutcome(NamedTuple):
    """The result of applying a message to the rows of its session.

    Attributes:
        added_changes: The number of changes in addition to the message's own, such as removed rows beyond the limit of
            `keep`.
        checks: The number of checksums and expectations of the message that were compared.
        failed: A violation for each checksum or expectation that was wrong.
    """

    added_changes: int
    checks: int
    failed: Sequence[IntegrityEventKind]


class SessionRows(Protocol):
    """The rows of one session, kept in memory while its messages are judged because its feed needs them."""

    def apply_message_to_rows(self, index: int) -> RowChangesOutcome:
        """Applies a message's changes to the rows. `index` is the message's index in the batch's outcome."""
        ...

    def encode_rows(self) -> bytes:
        """Encodes the rows for the stored state."""
        ...


LoadSessionRows = Callable[[int, bytes | None], SessionRows]
"""Decodes a session's rows, from its number in the batch and what `SessionRows.encode` stored (None: no rows yet)."""


@dataclass(frozen=True)
class MessageArrays:
    """Well-formed messages as arrays, one value per message, sorted by session and then by offset. Times are in ms.

    Attributes:
        starts: Index of each session's first message; one value for each session.
        type: A `protocol.message.MessageType`.
        seq: `NO_SEQ` where the message has none.
        ts: Event time.
        offset: Kafka offset.
        kafka_ts: The timestamp in Kafka; the module `protocol.kafka_time` lists the values for a missing one.
        partition: Kafka partition.
        lane: Index of the topic-partition in the shard's clock.
        now: Stream time of the topic-partition when the message arrived.
        size: Bytes of the message's value.
        changes: Number of table changes that the message makes.
        after: The seq that the message follows: it covers the interval `(after, seq]`. `ANY_SEQ` follows every seq.
        link: A `protocol.message.Link`: how strictly `after` must match the session's last seq.
    """

    starts: Int64s
    type: Int8s
    seq: Int64s
    ts: Int64s
    offset: Int64s
    kafka_ts: Int64s
    partition: Int32s
    lane: Int32s
    now: Int64s
    size: Int32s
    changes: Int64s
    after: Int64s
    link: Int8s

    @property
    def session_ends(self) -> Int64s:
        """For each session, the index after its last message."""
        return np.append(self.starts[1:], len(self.seq))

    @cached_property
    def message_times(self) -> Int64s:
        """The time of each message in ms: its Kafka timestamp, or stream time if it has none."""
        return choose_kafka_or_stream_times(self.kafka_ts, self.now)

    def create_message_header(self, index: int, outcome_base: int = 0) -> MessageHeader:
        """Returns the message at an index. Its index in the batch's outcome is `outcome_base + index`."""
        columns: Any = (getattr(self, name)[index].item() for name in MESSAGE_ARRAY_NAMES)
        return MessageHeader(*(*columns, outcome_base + index))


MESSAGE_ARRAY_NAMES = (
    "type", "seq", "ts", "offset", "kafka_ts", "partition", "lane", "now", "size", "changes", "after", "link",
)  # fmt: skip


@dataclass
class ShardBatch:
    """A shard's sessions to judge in a batch: those with new messages, then those with something due by time.

    A session's number in the batch is its index in these sequences. Sessions with messages are in the stream's order.
    In the outcome, held messages come first. The index of a new message is its index in `new_messages` plus the number
    of held messages.

    Attributes:
        new_messages: The batch's new messages.
        cursors: The cursor of each session, updated in place.
        variable_parts: The encoded variable part of each cursor, replaced in place.
        rules: The rules of each session.
        ends: Stream time (ms) of each session's topic-partition at the end of the batch.
        held_messages: Messages held back by earlier batches, sorted by session and then by (`ts`, `seq`).
        held_bounds: For each session, the index of its first message in `held_messages`, and as the last value their
            number.
        decisions: Operators' decisions by session number and then by offset.
        chain_gaps: Gaps of the sessions' chains, by session number, each session's in order of their offsets.
        load_session_rows: Loads the rows of a session whose rules say `holds_rows`; None if no session has such rules.
    """

    new_messages: MessageArrays
    cursors: SessionCursors
    variable_parts: Objects
    rules: Sequence[JudgingRules]
    ends: Int64s
    held_messages: MessageArrays
    held_bounds: Int64s
    decisions: Mapping[int, Mapping[int, OperatorDecision]] = field(default_factory=dict)
    chain_gaps: Mapping[int, Sequence[ChainGap]] = field(default_factory=dict)
    load_session_rows: LoadSessionRows | None = None
