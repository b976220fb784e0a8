"""The result of judging a batch: the verdict on each message, the integrity events, and the cuts of tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from sessionlake.integrity.cursor import NEVER, NO_EPOCH
from sessionlake.integrity.cuts import CUT_DTYPE, NO_OFFSET, CutReason, Cuts
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, message_time
from sessionlake.protocol.types import Int8s, Int64s


class Verdict(IntEnum):
    """The verdict on a message. The numbers are the places of its count in the batch report."""

    APPLIED = 0
    DUPLICATE = 1
    QUARANTINED = 2
    HELD = 3


class EventKind(StrEnum):
    """The kind of an integrity event: column `event` of `silver.integrity_events`."""

    DUPLICATE = "duplicate"
    GAP = "gap"
    ORPHAN = "orphan"
    AFTER_END = "after_end"
    LATE = "late"
    HEALED = "healed"
    HELD_LIMIT = "held_limit"
    GAP_LIMIT = "gap_limit"
    SKIPPED = "skipped"
    SPLIT_SESSION = "split_session"


class Action(StrEnum):
    """What was done about an integrity event: column `action` of `silver.integrity_events`."""

    DROPPED = "dropped"
    APPLIED = "applied"
    ISOLATED = "isolated"
    RECORDED = "recorded"
    QUARANTINED = "quarantined"
    ACCEPTED = "accepted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """The part of a message that judging needs. Times are in ms, the size in bytes.

    Attributes:
        seq: `NO_SEQ` where the message has none (class `none`).
        kafka_ts: The timestamp in Kafka; `protocol.kafka_time` says what it can be.
        lane: Index of the topic-partition in the shard's clock.
        now: Stream time of the topic-partition when the message arrived.
        size: Bytes of the message's value.
        changes: Number of table changes that the message makes.
        index: Its place in the outcome, where the messages held back before the batch come first.
    """

    type: int
    seq: int
    ts: int
    offset: int
    kafka_ts: int
    partition: int
    lane: int
    now: int
    size: int
    changes: int
    index: int

    @property
    def time(self) -> int:
        """The time of the message: its Kafka timestamp, or stream time if it has none."""
        return message_time(self.kafka_ts, self.now)


@dataclass(frozen=True, slots=True)
class Event:
    """One integrity event: a judgement other than "applied". Times are in ms.

    Attributes:
        session: Number of the session in the batch.
        expected: The expected seq; None if any seq was acceptable.
        actual: The seq of the message; None if it has none.
    """

    session: int
    kind: EventKind
    action: Action
    partition: int
    offset: int
    expected: int | None
    actual: int | None
    kafka_ts: int


class Outcome:
    """The result of judging the messages of a batch, by message index. Values of applied messages have no meaning else.

    Attributes:
        verdict: A `Verdict` for each message.
        reason: Code of the quarantine reason; 0 for messages that are not quarantined.
        epoch: Of applied messages: offset of the last snapshot at that time.
        position: Of applied messages: their place in the session's order of application.
        at: Of applied messages: stream time (ms) at application. If expiry released the message, 1 ms after the expiry.
        by: Of applied messages: offset of the message whose arrival had it applied; `NO_OFFSET` if expiry did.
        life: First offset of the session's life; not set for messages that an operator had skipped.
        events: Integrity events, by session and then in the order of judging.
        late_fills: Sessions in which a message was applied after messages with higher seqs (class `once`).
        decided: Session number and offset of each operator's decision that was followed.
        session: Number of the session that is being judged.
    """

    def __init__(self, count: int) -> None:
        self.verdict: Int8s = np.full(count, Verdict.HELD, np.int8)
        self.reason: Int8s = np.zeros(count, np.int8)
        self.epoch: Int64s = np.full(count, NO_EPOCH, np.int64)
        self.position: Int64s = np.zeros(count, np.int64)
        self.at: Int64s = np.zeros(count, np.int64)
        self.life: Int64s = np.zeros(count, np.int64)
        self.by: Int64s = np.full(count, NO_OFFSET, np.int64)
        self.events: list[Event] = []
        self._cuts: list[Cuts] = []
        self.late_fills: set[int] = set()
        self.decided: set[tuple[int, int]] = set()
        self.session = 0

    @property
    def cuts(self) -> Cuts:
        """The cuts of tables; `session` is the session's number in the batch."""
        return np.concatenate([np.zeros(0, CUT_DTYPE), *self._cuts])

    def before_time(self, of_message: Int64s, of_session: Int64s) -> None:
        """Marks the times of what was applied before its topic-partition had a stream time as unknown.

        Args:
            of_message: For each message, the first offset at which the time was known.
            of_session: The same for each session, by its number in the batch.
        """
        self.at[(self.by != NO_OFFSET) & (self.by < of_message)] = NO_KAFKA_TIME
        for cuts in self._cuts:
            early = (cuts["reason"] == CutReason.END) & (cuts["offset"] != NO_OFFSET)
            early &= cuts["offset"] < of_session[cuts["session"]]
            cuts["at"][early] = NO_KAFKA_TIME
            cuts["changed_at"][early & (cuts["changed_at"] != NEVER)] = NO_KAFKA_TIME

    def cut(self, cuts: Cuts) -> None:
        """Adds cuts; their `session` is the session's number in the batch."""
        self._cuts.append(cuts)
