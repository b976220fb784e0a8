"""What judging comes to: what became of each message, and what was not fine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from sessionlake.integrity.cursor import NEVER, NO_EPOCH
from sessionlake.integrity.cuts import CUT_DTYPE, NO_OFFSET, CutReason, Cuts
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, own_time
from sessionlake.protocol.types import Int8s, Int64s


class Verdict(IntEnum):
    """What the judge decides about a message. Numbers are places in the report's counts."""

    APPLIED = 0
    DUPLICATE = 1
    QUARANTINED = 2
    HELD = 3


class EventKind(StrEnum):
    """What was not fine about a message or a gap: `event` in `silver.integrity_events`."""

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
    """What was done about an event: `action` in `silver.integrity_events`."""

    DROPPED = "dropped"
    APPLIED = "applied"
    ISOLATED = "isolated"
    RECORDED = "recorded"
    QUARANTINED = "quarantined"
    ACCEPTED = "accepted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """What judging needs of a message. Times in ms, size in bytes.

    Attributes:
        seq: `NO_SEQ` where class `none` lets it be absent.
        kafka_ts: as Kafka says it, see `protocol.kafka_time`.
        now: stream time of the message's topic-partition when it came.
        changes: how many changes it makes.
        index: its place among the messages of the batch and those held back before.
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
        """The message's own time."""
        return own_time(self.kafka_ts, self.now)


@dataclass(frozen=True, slots=True)
class Event:
    """A judgement that was not "fine". Times in ms.

    Attributes:
        expected: the seq that was due; None where any was welcome.
        actual: the message's own; None if it has none.
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
    """What becomes of messages, by their index; `session` numbers the events' sessions.

    Attributes:
        verdict: a `Verdict` a message.
        reason: the quarantine reason's code, else 0.
        epoch: of applied messages: offset of the last snapshot then.
        position: of applied messages: their order of application.
        at: of applied messages: stream time then. What expiry released was applied in the first moment past it.
        by: of applied messages: offset of the one whose arrival led to it, `NO_OFFSET` if that was expiry.
        life: the offset that names the session's life; of a message an operator had skipped, nothing.
        events: in the order of judging, session after session.
        late_fills: sessions of which a message was applied after some with higher seqs (class `once`).
        decided: sessions and offsets at which an operator's decision was taken.
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
        """Where tables are cut; `session` as in events."""
        return np.concatenate([np.zeros(0, CUT_DTYPE), *self._cuts])

    def before_time(self, of_message: Int64s, of_session: Int64s) -> None:
        """Sets the times of what was applied before its topic-partition had any: which that will be is not known then.

        Args:
            of_message: the first offset at which time was known, by message.
            of_session: the same by session, numbered as in events.
        """
        self.at[(self.by != NO_OFFSET) & (self.by < of_message)] = NO_KAFKA_TIME
        for cuts in self._cuts:
            early = (cuts["reason"] == CutReason.END) & (cuts["offset"] != NO_OFFSET)
            early &= cuts["offset"] < of_session[cuts["session"]]
            cuts["at"][early] = NO_KAFKA_TIME
            cuts["changed_at"][early & (cuts["changed_at"] != NEVER)] = NO_KAFKA_TIME

    def cut(self, cuts: Cuts) -> None:
        """Adds cuts; their `session` is numbered as in events."""
        self._cuts.append(cuts)
