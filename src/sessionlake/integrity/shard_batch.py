"""A shard's batch as it comes before the judge: messages as columns, and the sessions they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sessionlake.integrity.cursor import Cursors
from sessionlake.integrity.outcome import MessageHeader
from sessionlake.integrity.rules import Decision, Rules
from sessionlake.protocol.kafka_time import own_times
from sessionlake.protocol.types import Int8s, Int32s, Int64s, Objects


@dataclass(frozen=True)
class Stream:
    """Well-formed messages, session after session, each session in offset order. Arrays of one length; times in ms.

    Attributes:
        starts: index of each session's first message.
        seq: `NO_SEQ` where there is none.
        lane: place of the topic-partition in the shard's clock.
        kafka_ts: as Kafka says it, see `protocol.kafka_time`.
        now: stream time of the topic-partition when the message came.
        size: bytes of the value.
        changes: how many each makes.
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
        """One past each session's last message."""
        return np.append(self.starts[1:], len(self.seq))

    @cached_property
    def time(self) -> Int64s:
        """The messages' own times."""
        return own_times(self.kafka_ts, self.now)

    def header(self, index: int, base: int = 0) -> MessageHeader:
        """One message; the outcome knows it as `base + index`."""
        columns: Any = (getattr(self, name)[index].item() for name in STREAM_COLUMNS)
        return MessageHeader(*(*columns, base + index))


STREAM_COLUMNS = ("type", "seq", "ts", "offset", "kafka_ts", "partition", "lane", "now", "size", "changes")


@dataclass
class ShardBatch:
    """The sessions to judge: first those with messages, in the stream's order, then silent ones for which it is time.

    Attributes:
        cursors: moved on, in place.
        memories: their encoded memories, replaced in place.
        rules: one a session.
        ends: stream time of each session's topic-partition at the end of the batch.
        held: messages held back, session after session, each in (`ts`, `seq`) order. The outcome knows them by their
            index, and the stream's messages by theirs plus the number of these.
        held_bounds: where each session's begin and, in the next item, end.
        decisions: by session number, by offset.
    """

    stream: Stream
    cursors: Cursors
    memories: Objects
    rules: Sequence[Rules]
    ends: Int64s
    held: Stream
    held_bounds: Int64s
    decisions: Mapping[int, Mapping[int, Decision]] = field(default_factory=dict)
