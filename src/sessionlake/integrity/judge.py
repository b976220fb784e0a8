"""Judging one message of one session: the whole of PROTOCOL's "Stream integrity" and "Session life".

Pure: the cursor goes in and is changed, the judgement comes out. Everything the vectorised path
(`batch.py`) does must be what this does message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from sessionlake.config import Integrity, OnViolation
from sessionlake.integrity.cursor import NO_SEQ, NO_TIME, Cursor, Status, end_time
from sessionlake.integrity.rules import Rules
from sessionlake.protocol.message import INT64_MAX, MessageType
from sessionlake.protocol.reasons import Reason


class Verdict(IntEnum):
    """What becomes of a message."""

    APPLIED = 0
    DUPLICATE = 1
    QUARANTINED = 2
    HELD = 3


class EventKind(StrEnum):
    """What was not fine."""

    DUPLICATE = "duplicate"
    GAP = "gap"
    ORPHAN = "orphan"
    AFTER_END = "after_end"
    LATE = "late"
    HEALED = "healed"


class Action(StrEnum):
    """What was done about it."""

    DROPPED = "dropped"
    APPLIED = "applied"
    ISOLATED = "isolated"
    RECORDED = "recorded"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Header:
    """What judging needs of a message. Times in ms."""

    type: int
    seq: int
    ts: int
    offset: int
    kafka_ts: int
    partition: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one message, and the event to record if not everything was fine.

    Attributes:
        expected: the seq that was due; None where any was welcome.
        violation: under `fail`, that the job must stop here.
    """

    verdict: Verdict
    event: EventKind | None = None
    action: Action | None = None
    expected: int | None = None
    reason: Reason | None = None
    violation: bool = False


FINE = Judgement(Verdict.APPLIED)


def judge(cursor: Cursor, message: Header, rules: Rules) -> Judgement:
    """Judges the session's next message in offset order, and moves the cursor on."""
    if cursor.last_kafka_ts != NO_TIME and message.kafka_ts - cursor.last_kafka_ts > rules.session_timeout:
        _start_anew(cursor)
    _touch(cursor, message)
    return _judges(cursor)(cursor, message, rules)


def _judges(cursor: Cursor) -> Callable[[Cursor, Header, Rules], Judgement]:
    if cursor.status == Status.ENDED:
        return _after_end
    if cursor.status == Status.BROKEN:
        return _while_broken
    return _first if cursor.last_seq == NO_SEQ else _open


def _first(cursor: Cursor, message: Header, rules: Rules) -> Judgement:
    if message.type == MessageType.SNAPSHOT:
        return _apply(cursor, message)
    return _violation(cursor, message, rules, EventKind.ORPHAN, Reason.ORPHAN)


def _open(cursor: Cursor, message: Header, rules: Rules) -> Judgement:
    if message.seq <= cursor.last_seq:
        return _duplicate(cursor)
    if message.seq == cursor.last_seq + 1:
        return _apply(cursor, message)
    cursor.gaps += 1
    if rules.integrity is Integrity.ORDER:
        return _apply(cursor, message, EventKind.GAP, Action.APPLIED)
    if rules.on_violation is OnViolation.ISOLATE and message.type == MessageType.SNAPSHOT:
        # The gap broke the session and this very snapshot makes it whole again.
        return _apply(cursor, message, EventKind.GAP, Action.ISOLATED)
    return _violation(cursor, message, rules, EventKind.GAP, Reason.GAP)


def _while_broken(cursor: Cursor, message: Header, rules: Rules) -> Judgement:
    del rules
    if message.seq <= cursor.last_seq:
        return _duplicate(cursor)
    if message.type == MessageType.SNAPSHOT:
        cursor.status = Status.OPEN
        return _apply(cursor, message, EventKind.HEALED, Action.APPLIED)
    return Judgement(Verdict.QUARANTINED, reason=Reason.SESSION_BROKEN)


def _after_end(cursor: Cursor, message: Header, rules: Rules) -> Judgement:
    if message.seq <= cursor.last_seq:
        return _duplicate(cursor)
    return _violation(cursor, message, rules, EventKind.AFTER_END, Reason.AFTER_END)


def _violation(cursor: Cursor, message: Header, rules: Rules, event: EventKind, reason: Reason) -> Judgement:
    expected = _expected(cursor)
    if rules.on_violation is OnViolation.RECORD:
        return _apply(cursor, message, event, Action.RECORDED)
    if rules.on_violation is OnViolation.FAIL:
        return Judgement(Verdict.QUARANTINED, event, Action.STOPPED, expected, reason, violation=True)
    if cursor.status != Status.ENDED:
        cursor.status = Status.BROKEN
    return Judgement(Verdict.QUARANTINED, event, Action.ISOLATED, expected, reason)


def _duplicate(cursor: Cursor) -> Judgement:
    cursor.duplicates += 1
    return Judgement(Verdict.DUPLICATE, EventKind.DUPLICATE, Action.DROPPED, _expected(cursor))


def _apply(
    cursor: Cursor,
    message: Header,
    event: EventKind | None = None,
    action: Action | None = None,
) -> Judgement:
    expected = _expected(cursor)
    cursor.last_seq = message.seq
    cursor.messages += 1
    cursor.first_ts = message.ts if cursor.messages == 1 else min(cursor.first_ts, message.ts)
    cursor.last_ts = message.ts if cursor.messages == 1 else max(cursor.last_ts, message.ts)
    if message.type == MessageType.SNAPSHOT:
        cursor.epoch = message.offset
    elif message.type == MessageType.END and cursor.status != Status.ENDED:
        cursor.status = Status.ENDED
        cursor.ended_at = end_time(message.ts)
    return FINE if event is None else Judgement(Verdict.APPLIED, event, action, expected)


def _expected(cursor: Cursor) -> int | None:
    """The seq after the last one applied; the last possible seq is its own successor, as tables hold no more."""
    return None if cursor.last_seq == NO_SEQ else min(cursor.last_seq + 1, INT64_MAX)


def _touch(cursor: Cursor, message: Header) -> None:
    cursor.partition = message.partition
    if cursor.first_offset == NO_TIME:
        cursor.first_offset = message.offset
    cursor.last_offset = message.offset
    cursor.last_kafka_ts = message.kafka_ts


def _start_anew(cursor: Cursor) -> None:
    """The session had expired: a new life begins, of which nothing is known."""
    fresh = Cursor()
    for name in Cursor.__slots__:
        setattr(cursor, name, getattr(fresh, name))
