"""What became of one message that silver has passed, by what silver's tables say of it. Pure.

Only what was not fine, and what changes rows, leaves a trace of its own. What leaves none was applied without changing
rows (a heartbeat, an end, an empty update), or is held back in the state (class `window`).
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

# Events of a message in its turn; all others come up when it arrives, before a held-back message's turn.
_IN_TURN = frozenset({EventKind.GAP, EventKind.ORPHAN, EventKind.AFTER_END, EventKind.HEALED})


class Fate(StrEnum):
    """What became of a message."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    LATE = "late"
    HELD = "held"
    QUARANTINED = "quarantined"
    ERASED = "erased"


@dataclass(frozen=True)
class Content:
    """What a message says, decoded by today's configuration.

    Attributes:
        type: None where it is malformed.
        ts: event time, ms.
        changes: how many row changes it asks for.
        erased: whether it stood in a session that was forgotten, and is gone.
    """

    type: str | None = None
    seq: int | None = None
    ts: int | None = None
    session_id: str | None = None
    changes: int = 0
    erased: bool = False


@dataclass(frozen=True)
class Evidence:
    """What silver's tables say of a message.

    Attributes:
        offset: the message's.
        batch: the silver batch that took it in.
        session: its session's latest row of `session_progress`.
    """

    offset: int
    batch: int
    quarantine: Sequence[Row] = ()
    events: Sequence[Row] = ()
    changes: Sequence[Row] = ()
    session: Row | None = None


class DecidedFate(NamedTuple):
    """Fate, reason and deciding batch of one message.

    Attributes:
        reason: why it is in quarantine.
        batch: the silver batch that decided, which is a later one than took it in if it was held back; None while it
            is held, and where nothing tells which of the later ones released it.
    """

    fate: Fate
    reason: str | None = None
    batch: int | None = None


def fate_of(content: Content, found: Evidence, integrity: Integrity) -> DecidedFate | None:
    """What became of a message; None if the tables contradict the ledger, which counts it."""
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
        if row["event"] in _IN_TURN:
            return DecidedFate(Fate.APPLIED, batch=row["_batch"])
    held = content.changes > 0 or not _passed_by(content, found)
    return DecidedFate(Fate.HELD if held else Fate.APPLIED)


def _passed_by(content: Content, found: Evidence) -> bool:
    """Whether its session has released messages of this event time, in whose order it does, or has begun a new life."""
    session = found.session
    if session is None:
        return False
    if session["status"] == "expired" or session["first_offset"] > found.offset:
        return True
    return session["last_ts"] is not None and content.ts is not None and content.ts <= session["last_ts"]
