"""The input of the judge: a shard's messages as columns, and the sessions they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sessionlake.integrity.cursor import Cursors
from sessionlake.integrity.outcome import MessageHeader
from sessionlake.integrity.rules import Decision, Rules
from sessionlake.protocol.kafka_time import message_times
from sessionlake.protocol.types import Int8s, Int32s, Int64s, Objects


@dataclass(frozen=True)
class Stream:
    """Well-formed messages as arrays of one length, sorted by session and then by offset. Times are in ms.

    Attributes:
        starts: Index of each session's first message.
        seq: `NO_SEQ` where the message has none.
        lane: Index of the topic-partition in the shard's clock.
        kafka_ts: The timestamp in Kafka; `protocol.kafka_time` says what it can be.
        now: Stream time of the topic-partition when the message arrived.
        size: Bytes of the message's value.
        changes: Number of table changes that the message makes.
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

    @property
    def ends(self) -> Int64s:
        """One past the index of each session's last message."""
        return np.append(self.starts[1:], len(self.seq))

    @cached_property
    def time(self) -> Int64s:
        """The time of each message: its Kafka timestamp, or stream time if it has none."""
        return message_times(self.kafka_ts, self.now)

    def header(self, index: int, base: int = 0) -> MessageHeader:
        """Returns one message, whose index in the outcome is `base + index`."""
        columns: Any = (getattr(self, name)[index].item() for name in STREAM_COLUMNS)
        return MessageHeader(*(*columns, base + index))


STREAM_COLUMNS = ("type", "seq", "ts", "offset", "kafka_ts", "partition", "lane", "now", "size", "changes")


@dataclass
class ShardBatch:
    """The sessions to judge: first those with messages, in the stream's order, then silent ones with something due.

    In the outcome, held messages come first: a stream message has its own index plus the number of held messages.

    Attributes:
        cursors: The cursors, updated in place.
        memories: The encoded memories of the cursors, replaced in place.
        rules: The rules of each session.
        ends: Stream time of each session's topic-partition at the end of the batch.
        held: Messages held back, sorted by session and then by (`ts`, `seq`).
        held_bounds: For each session the index of its first held message; the next item is the end.
        decisions: Operators' decisions by session number and then by offset.
    """

    stream: Stream
    cursors: Cursors
    memories: Objects
    rules: Sequence[Rules]
    ends: Int64s
    held: Stream
    held_bounds: Int64s
    decisions: Mapping[int, Mapping[int, Decision]] = field(default_factory=dict)
