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


class MessageFate(StrEnum):
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
    def fate_if_not_judged(self) -> MessageFate | None:
        """What happened to a message that silver does not judge: erased or ignored; None for all other messages."""
        return MessageFate.ERASED if self.erased else MessageFate.IGNORED if self.ignored else None


@dataclass(frozen=True)
class SilverRowsOfMessage:
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


class MessageFateWithReason(NamedTuple):
    """What happened to a message, why, and in which batch.

    Attributes:
        fate: What happened.
        reason: Why the message is in quarantine; None if it is not.
        batch: The silver batch that decided. If the message was held back, this batch is later than the one that read
            it. None while the message is held back, and if it is not known which batch released it.
    """

    fate: MessageFate
    reason: str | None = None
    batch: int | None = None


def decide_message_fate(
    content: MessageContent,
    silver_rows: SilverRowsOfMessage,
    integrity: Integrity,
    *,
    holds_until_snapshot: bool = False,
) -> MessageFateWithReason | None:
    """Returns what happened to a message, why, and in which batch.

    Returns None if silver's tables lack rows of the message that silver must have written.

    Args:
        content: The message's content.
        silver_rows: The rows about the message in silver's tables.
        integrity: Integrity class of the topic.
        holds_until_snapshot: True if sessions of the topic hold messages back until a snapshot arrives.
    """
    for row in silver_rows.quarantine:
        return MessageFateWithReason(
            MessageFate.LATE if row["reason"] == Reason.LATE else MessageFate.QUARANTINED, row["reason"], row["_batch"]
        )
    for row in silver_rows.changes:
        return MessageFateWithReason(MessageFate.APPLIED, batch=row["_batch"])
    for row in silver_rows.events:
        if row["event"] == IntegrityEventKind.DUPLICATE:
            return MessageFateWithReason(MessageFate.DUPLICATE, batch=row["_batch"])
    if content.type is None:
        return None
    return _decide_fate_without_silver_rows(content, silver_rows, integrity, holds_until_snapshot=holds_until_snapshot)


def _decide_fate_without_silver_rows(
    content: MessageContent, silver_rows: SilverRowsOfMessage, integrity: Integrity, *, holds_until_snapshot: bool
) -> MessageFateWithReason | None:
    """Returns what happened to a well-formed message about which no table has a row; None if there must be one."""
    if integrity is Integrity.WINDOW:
        return _decide_fate_in_window_class(content, silver_rows)
    if holds_until_snapshot and content.type not in _NEVER_WAIT:
        return _decide_fate_if_held_until_snapshot(content, silver_rows)
    return None if content.changes else MessageFateWithReason(MessageFate.APPLIED, batch=silver_rows.batch)


def _decide_fate_in_window_class(content: MessageContent, silver_rows: SilverRowsOfMessage) -> MessageFateWithReason:
    for row in silver_rows.events:
        if row["event"] in _AT_RELEASE:
            return MessageFateWithReason(MessageFate.APPLIED, batch=row["_batch"])
    held = content.changes > 0 or not _is_certainly_no_longer_held(content, silver_rows)
    return MessageFateWithReason(MessageFate.HELD if held else MessageFate.APPLIED)


def _decide_fate_if_held_until_snapshot(
    content: MessageContent, silver_rows: SilverRowsOfMessage
) -> MessageFateWithReason:
    """Returns what happened to a message of a feed that holds messages back until a snapshot arrives."""
    if content.changes or _is_held_until_snapshot(content, silver_rows):
        return MessageFateWithReason(MessageFate.HELD)
    return MessageFateWithReason(MessageFate.APPLIED)


def _is_held_until_snapshot(content: MessageContent, silver_rows: SilverRowsOfMessage) -> bool:
    """Returns True if the message is held back because its session waits for a snapshot."""
    session = silver_rows.session
    if session is None or session["status"] in {"ended", "expired"} or session["first_offset"] > silver_rows.offset:
        return False
    if session["epoch"] == NO_EPOCH:
        return True
    is_new = content.seq is None or session["next_seq"] is None or content.seq >= session["next_seq"]
    return bool(session["status"] == "broken" and is_new)


def _is_certainly_no_longer_held(content: MessageContent, silver_rows: SilverRowsOfMessage) -> bool:
    """Returns True if the message is certainly no longer held back.

    That is so if its session has applied messages of the same or a later event time, has expired, or has a new life.
    """
    session = silver_rows.session
    if session is None:
        return False
    if session["status"] == "expired" or session["first_offset"] > silver_rows.offset:
        return True
    return session["last_ts"] is not None and content.ts is not None and content.ts <= session["last_ts"]
