"""The result of judging a batch: the verdict on each message, the integrity events, and the cuts of tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

import numpy as np

from sessionlake.integrity.cursor import NEVER, NO_EPOCH
from sessionlake.integrity.cuts import CUT_DTYPE, NO_OFFSET, CutReason, Cuts
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, choose_kafka_or_stream_time
from sessionlake.protocol.message import ANY_SEQ, NO_SEQ, SeqLink
from sessionlake.protocol.types import Int8s, Int64s


class MessageVerdict(IntEnum):
    """The verdict on a message. The integer values are the order of the verdicts' counts in the batch report."""

    APPLIED = 0
    DUPLICATE = 1
    QUARANTINED = 2
    HELD = 3


class IntegrityEventKind(StrEnum):
    """What happened in an integrity event: column `event` of `silver.integrity_events`."""

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
    CHECKSUM = "checksum"
    PRESENCE = "presence"
    ROW_LIMIT = "row_limit"


class IntegrityEventAction(StrEnum):
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
    """The part of a message that judging needs. Times are in ms.

    Attributes:
        type: A `protocol.message.MessageType`.
        seq: `NO_SEQ` where the message has none (class `none`).
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
        index: Index of the message in the batch's outcome. There, messages held back by earlier batches come first.
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
    after: int
    link: int
    index: int

    @property
    def message_time(self) -> int:
        """The time of the message in ms: its Kafka timestamp, or stream time if it has none."""
        return choose_kafka_or_stream_time(self.kafka_ts, self.now)

    def unwrap_restarting_seq(self, last_seq: int, modulo: int) -> MessageHeader:
        """Returns the message with a seq that rises for ever, if the producer's counter restarts after `modulo - 1`.

        A seq at most half of `modulo` ahead of `last_seq` is new; all others are duplicates.
        """
        if NO_SEQ in {self.seq, last_seq} or self.link == SeqLink.RESTART:
            return self
        seq = unwrap_restarting_counter(self.seq, last_seq, modulo)
        after = self.after if self.after == ANY_SEQ else seq - (self.seq - self.after) % modulo
        return replace(self, seq=seq, after=after)


def unwrap_restarting_counter(value: int, last_seq: int, modulo: int) -> int:
    """Converts a counter that starts again at 0 after `modulo - 1` into a seq that rises for ever.

    The seq is at most half of `modulo` ahead of `last_seq`, or less than half of it behind.
    """
    steps = (value - last_seq) % modulo
    return last_seq + (steps if steps <= modulo // 2 else steps - modulo)


@dataclass(frozen=True, slots=True)
class IntegrityEvent:
    """One integrity event: a row of `silver.integrity_events`, such as a duplicate or a gap.

    Attributes:
        session: Number of the session in the batch.
        kind: What happened.
        action: What was done about it.
        partition: Kafka partition of the message that caused the event.
        offset: Kafka offset of that message.
        expected: The expected seq; None if any seq was acceptable.
        actual: The seq of the message; None if it has none.
        kafka_ts: Kafka timestamp of the message, ms.
    """

    session: int
    kind: IntegrityEventKind
    action: IntegrityEventAction
    partition: int
    offset: int
    expected: int | None
    actual: int | None
    kafka_ts: int


class JudgingOutcome:
    """The result of judging a batch.

    The arrays have a value for each message: those held back before the batch, then the new ones.

    The arrays `epoch`, `position`, `applied_at` and `applied_by` are set only for applied messages.

    Attributes:
        verdict: A `MessageVerdict` for each message.
        reason: Code of the quarantine reason; 0 for messages that are not quarantined.
        epoch: Offset of the last snapshot when the message was applied.
        position: Place of the message in the session's order of application.
        applied_at: Stream time (ms) at application. If expiry released the message, 1 ms after the expiry.
        applied_by: Offset of the message whose arrival had this one applied; `NO_OFFSET` if expiry did.
        life: First offset of the session's life; not set for messages that an operator had skipped.
        events: Integrity events, by session and then in the order of judging.
        late_fills: Numbers of the sessions in which a message was applied after messages with higher seqs (class
            `once`).
        followed_decisions: Session number and message offset of each operator's decision that was followed.
        unwrapped_seqs: If a counter starts again at 0: the seq that rises for ever, by the message's index.
        session_number: Number of the session that is being judged.
    """

    def __init__(self, message_count: int) -> None:
        self.verdict: Int8s = np.full(message_count, MessageVerdict.HELD, np.int8)
        self.reason: Int8s = np.zeros(message_count, np.int8)
        self.epoch: Int64s = np.full(message_count, NO_EPOCH, np.int64)
        self.position: Int64s = np.zeros(message_count, np.int64)
        self.applied_at: Int64s = np.zeros(message_count, np.int64)
        self.life: Int64s = np.zeros(message_count, np.int64)
        self.applied_by: Int64s = np.full(message_count, NO_OFFSET, np.int64)
        self.events: list[IntegrityEvent] = []
        self._cuts: list[Cuts] = []
        self.unwrapped_seqs: dict[int, int] = {}
        self.late_fills: set[int] = set()
        self.followed_decisions: set[tuple[int, int]] = set()
        self.session_number = 0

    @property
    def recorded_cuts(self) -> Cuts:
        """The recorded cuts of tables; their `session` is the session's number in the batch."""
        return np.concatenate([np.zeros(0, CUT_DTYPE), *self._cuts])

    def clear_unknown_stream_times(self, message_timed_offsets: Int64s, session_timed_offsets: Int64s) -> None:
        """Replaces times of application and cuts by `NO_KAFKA_TIME` where the topic-partition had no stream time yet.

        Args:
            message_timed_offsets: For each message, the first offset at which its topic-partition had a stream time.
            session_timed_offsets: The same offset for each session, by the session's number in the batch.
        """
        self.applied_at[(self.applied_by != NO_OFFSET) & (self.applied_by < message_timed_offsets)] = NO_KAFKA_TIME
        for cuts in self._cuts:
            early = (cuts["reason"] == CutReason.END) & (cuts["offset"] != NO_OFFSET)
            early &= cuts["offset"] < session_timed_offsets[cuts["session"]]
            cuts["at"][early] = NO_KAFKA_TIME
            cuts["changed_at"][early & (cuts["changed_at"] != NEVER)] = NO_KAFKA_TIME

    def add_cuts(self, cuts: Cuts) -> None:
        """Adds cuts of tables. Their field `session` is the session's number in the batch."""
        self._cuts.append(cuts)
