"""Finds out from rows of silver's tables what happened to one message that silver has judged. No I/O.

A message leaves rows in silver's tables if it changed rows or if something was wrong with it. A message without such
rows was applied without a change (a heartbeat, an end, an empty update), or is held back in the state. Class `window`
and `hold` of a feed hold messages back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sessionlake.integrity.cursor import NO_EPOCH
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.types import Row
from sessionlake.settings.section import Integrity

# Integrity events that occur when a message is no longer held back. All others occur when a message arrives.
_AT_RELEASE = frozenset(
    {IntegrityEventKind.GAP, IntegrityEventKind.ORPHAN, IntegrityEventKind.AFTER_END, IntegrityEventKind.HEALED}
)

# Types of messages that are judged at once, even if their session waits for a snapshot.
_NEVER_WAIT = frozenset({"snapshot", "end"})


class Fate(StrEnum):
    """What happened to a message: for example it was applied, dropped as a duplicate, or put into quarantine."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    LATE = "late"
    HELD = "held"
    QUARANTINED = "quarantined"
    ERASED = "erased"
    IGNORED = "ignored"


@dataclass(frozen=True)
class MessageContent:
    """The content of a message, decoded with the current configuration.

    Attributes:
        type: The message's type; None if the message is malformed.
        seq: The message's seq; None if it has none.
        ts: The message's event time in ms; None if it has none.
        session_id: Id of the message's session.
        changes: Number of rows that the message is meant to change.
        erased: True if the session was forgotten. Only the message's offset and Kafka timestamp are left then.
        ignored: True if the feed ignores the message.
    """

    type: str | None = None
    seq: int | None = None
    ts: int | None = None
    session_id: str | None = None
    changes: int = 0
    erased: bool = False
    ignored: bool = False

    @property
    def fate(self) -> Fate | None:
        """What happened to a message that silver does not judge: erased or ignored; None for all other messages."""
        return Fate.ERASED if self.erased else Fate.IGNORED if self.ignored else None


@dataclass(frozen=True)
class Evidence:
    """The rows of silver's tables from which the fate of a message is concluded.

    Attributes:
        offset: The message's offset.
        batch: The silver batch that read the message.
        quarantine: The message's rows of `quarantine`.
        events: The message's rows of `integrity_events`.
        changes: The message's rows of `session_changes`.
        session: The latest row of the message's session in `session_progress`; None if there is none.
    """

    offset: int
    batch: int
    quarantine: Sequence[Row] = ()
    events: Sequence[Row] = ()
    changes: Sequence[Row] = ()
    session: Row | None = None


class MessageFate(NamedTuple):
    """What happened to a message, why, and in which batch.

    Attributes:
        fate: What happened.
        reason: Why the message is in quarantine; None if it is not.
        batch: The silver batch that decided. If the message was held back, this batch is later than the one that read
            it. None while the message is held back, and if it is not known which batch released it.
    """

    fate: Fate
    reason: str | None = None
    batch: int | None = None


def decide_fate(
    content: MessageContent, evidence: Evidence, integrity: Integrity, *, holds: bool = False
) -> MessageFate | None:
    """Returns what happened to a message, why, and in which batch.

    Returns None if silver's tables lack rows of the message that silver must have written.

    Args:
        content: The message's content.
        evidence: The rows about the message in silver's tables.
        integrity: Integrity class of the topic.
        holds: True if sessions of the topic hold messages back until a snapshot arrives.
    """
    for row in evidence.quarantine:
        return MessageFate(
            Fate.LATE if row["reason"] == Reason.LATE else Fate.QUARANTINED, row["reason"], row["_batch"]
        )
    for row in evidence.changes:
        return MessageFate(Fate.APPLIED, batch=row["_batch"])
    for row in evidence.events:
        if row["event"] == IntegrityEventKind.DUPLICATE:
            return MessageFate(Fate.DUPLICATE, batch=row["_batch"])
    return None if content.type is None else _decide_without_rows(content, evidence, integrity, holds=holds)


def _decide_without_rows(
    content: MessageContent, evidence: Evidence, integrity: Integrity, *, holds: bool
) -> MessageFate | None:
    """Returns what happened to a well-formed message about which no table has a row; None if there must be one."""
    if integrity is Integrity.WINDOW:
        return _decide_if_held_by_window(content, evidence)
    if holds and content.type not in _NEVER_WAIT:
        return _decide_if_waiting_for_snapshot(content, evidence)
    return None if content.changes else MessageFate(Fate.APPLIED, batch=evidence.batch)


def _decide_if_held_by_window(content: MessageContent, evidence: Evidence) -> MessageFate:
    for row in evidence.events:
        if row["event"] in _AT_RELEASE:
            return MessageFate(Fate.APPLIED, batch=row["_batch"])
    held = content.changes > 0 or not _is_certainly_released(content, evidence)
    return MessageFate(Fate.HELD if held else Fate.APPLIED)


def _decide_if_waiting_for_snapshot(content: MessageContent, evidence: Evidence) -> MessageFate:
    """Returns what happened to a message of a feed that holds messages back until a snapshot arrives."""
    if content.changes or _waits_for_snapshot(content, evidence):
        return MessageFate(Fate.HELD)
    return MessageFate(Fate.APPLIED)


def _waits_for_snapshot(content: MessageContent, evidence: Evidence) -> bool:
    """Returns True if the message is held back because its session waits for a snapshot."""
    session = evidence.session
    if session is None or session["status"] in {"ended", "expired"} or session["first_offset"] > evidence.offset:
        return False
    if session["epoch"] == NO_EPOCH:
        return True
    is_new = content.seq is None or session["next_seq"] is None or content.seq >= session["next_seq"]
    return bool(session["status"] == "broken" and is_new)


def _is_certainly_released(content: MessageContent, evidence: Evidence) -> bool:
    """Returns True if the message is certainly no longer held back.

    That is so if its session has applied messages of the same or a later event time, has expired, or has a new life.
    """
    session = evidence.session
    if session is None:
        return False
    if session["status"] == "expired" or session["first_offset"] > evidence.offset:
        return True
    return session["last_ts"] is not None and content.ts is not None and content.ts <= session["last_ts"]
