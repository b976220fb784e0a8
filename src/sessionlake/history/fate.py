"""Decides from silver's tables what happened to one message that silver has judged. Pure.

A message leaves rows in silver's tables if it changed rows or if something was wrong with it. A message without such
rows was applied without a change (a heartbeat, an end, an empty update), or is held back in the state (class `window`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sessionlake.integrity.outcome import EventKind
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Integrity

# Events that occur when a held-back message is released. All others occur when a message arrives.
_AT_RELEASE = frozenset({EventKind.GAP, EventKind.ORPHAN, EventKind.AFTER_END, EventKind.HEALED})


class Fate(StrEnum):
    """What happened to a message."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    LATE = "late"
    HELD = "held"
    QUARANTINED = "quarantined"
    ERASED = "erased"


@dataclass(frozen=True)
class Content:
    """The content of a message, decoded with the current configuration.

    Attributes:
        type: Its type; None if it is malformed.
        seq: Its seq; None if it has none.
        ts: Its event time in ms.
        session_id: Its session.
        changes: Number of row changes that it asks for.
        erased: True if its session was forgotten, so that only a placeholder is left.
    """

    type: str | None = None
    seq: int | None = None
    ts: int | None = None
    session_id: str | None = None
    changes: int = 0
    erased: bool = False


@dataclass(frozen=True)
class Evidence:
    """The rows about a message in silver's tables.

    Attributes:
        offset: The message's offset.
        batch: The silver batch that read it.
        quarantine: Its rows of `quarantine`.
        events: Its rows of `integrity_events`.
        changes: Its rows of `session_changes`.
        session: The latest row of its session in `session_progress`.
    """

    offset: int
    batch: int
    quarantine: Sequence[Row] = ()
    events: Sequence[Row] = ()
    changes: Sequence[Row] = ()
    session: Row | None = None


class DecidedFate(NamedTuple):
    """What happened to a message, why, and in which batch.

    Attributes:
        fate: What happened.
        reason: Why it is in quarantine.
        batch: The silver batch that decided; for a message that was held back it is later than the batch that read it.
            None while it is held, and if it is not known which batch released it.
    """

    fate: Fate
    reason: str | None = None
    batch: int | None = None


def decide_fate(content: Content, found: Evidence, integrity: Integrity) -> DecidedFate | None:
    """Returns what happened to a message; None if silver's tables lack it, which contradicts the ledger."""
    for row in found.quarantine:
        return DecidedFate(
            Fate.LATE if row["reason"] == Reason.LATE else Fate.QUARANTINED, row["reason"], row["_batch"]
        )
    for row in found.changes:
        return DecidedFate(Fate.APPLIED, batch=row["_batch"])
    for row in found.events:
        if row["event"] == EventKind.DUPLICATE:
            return DecidedFate(Fate.DUPLICATE, batch=row["_batch"])
    if content.type is None:
        return None
    if integrity is Integrity.WINDOW:
        return _held_or_released(content, found)
    return None if content.changes else DecidedFate(Fate.APPLIED, batch=found.batch)


def _held_or_released(content: Content, found: Evidence) -> DecidedFate:
    for row in found.events:
        if row["event"] in _AT_RELEASE:
            return DecidedFate(Fate.APPLIED, batch=row["_batch"])
    held = content.changes > 0 or not _is_released(content, found)
    return DecidedFate(Fate.HELD if held else Fate.APPLIED)


def _is_released(content: Content, found: Evidence) -> bool:
    """Returns True if the message must be released: its session released this event time, expired or has a new life."""
    session = found.session
    if session is None:
        return False
    if session["status"] == "expired" or session["first_offset"] > found.offset:
        return True
    return session["last_ts"] is not None and content.ts is not None and content.ts <= session["last_ts"]
