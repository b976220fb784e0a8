"""Joins the parts of a split message that concern the same session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind

_WITHOUT_END = frozenset({EventKind.SNAPSHOT, EventKind.UPDATE, EventKind.HEARTBEAT})


class JoinedRowList(list[Any]):
    """Rows of an event that is joined. Adding rows changes the list, so that many parts do not copy it many times."""

    def __add__(self, other: Iterable[Any]) -> JoinedRowList:
        self.extend(other)
        return self


def join_events_of_parts(earlier: SessionEvent, later: SessionEvent, modulo: int | None) -> SessionEvent:
    """Returns one event with the effect of two parts of a message, one after the other.

    Parts with the same seq are pages of one event. Parts with different seqs have the effect of separate messages if
    the second follows the first: the event covers both intervals. A checksum of the first is not compared then,
    because the second changes the rows. If a seq is missing between them, or may be, such parts are refused: if only
    the first is a duplicate, its rows must not be applied once more with those of the second.

    Args:
        earlier: The event of the earlier parts. If its rows are a `JoinedRowList`, this list gets the rows of the part.
        later: The event of the next part, of the same session.
        modulo: The number at which the seqs start again at 0; None if they rise for ever.

    Raises:
        ValueError: The parts cannot be one event.
    """
    if later.kind is EventKind.HEARTBEAT and later.seq is None:
        return earlier
    if earlier.kind is EventKind.HEARTBEAT and earlier.seq is None:
        return later
    if earlier.scope != later.scope:
        raise ValueError(f"parts of session {later.session} have several scopes")
    if earlier.chain != later.chain or (earlier.seq != later.seq and later.chain is not None):
        raise ValueError(
            f"parts of {_describe_session_of_event(later)} have several numbers of a chain, or several chains"
        )
    if earlier.seq == later.seq:
        if earlier.kind is not later.kind:
            raise ValueError(f"parts of session {later.session} are of several kinds")
        return replace(earlier, rows=earlier.rows + later.rows, sent=earlier.sent if later.sent is None else later.sent)
    if not {earlier.kind, later.kind} <= _WITHOUT_END or later.scope:
        raise ValueError(f"parts of session {later.session} are of several kinds")
    return _join_parts_with_different_seqs(earlier, later, modulo)


def _join_parts_with_different_seqs(earlier: SessionEvent, later: SessionEvent, modulo: int | None) -> SessionEvent:
    """Joins parts with different seqs."""
    has_gap = not later.restart and _has_seq_gap_between(earlier, later, modulo)
    may_have_gap = later.after is None and not earlier.restart and not _makes_earlier_rows_irrelevant(earlier, later)
    if has_gap or may_have_gap:
        raise ValueError(
            f"parts of session {later.session} have seq {earlier.seq} and {later.seq}, "
            "and do not say that none is between"
        )
    joined = replace(later, after=None if later.restart else earlier.after)
    if later.kind is EventKind.SNAPSHOT:
        return replace(joined, restart=earlier.restart or later.restart)
    if earlier.kind is not EventKind.HEARTBEAT:
        joined = replace(joined, kind=earlier.kind, rows=earlier.rows + later.rows)
    return replace(joined, restart=earlier.restart, is_link=later.is_link and not earlier.restart)


def _makes_earlier_rows_irrelevant(earlier: SessionEvent, later: SessionEvent) -> bool:
    """Returns True if the rows after the second part do not depend on whether the first is a duplicate."""
    return earlier.kind is EventKind.HEARTBEAT or later.kind is EventKind.SNAPSHOT


def _describe_session_of_event(event: SessionEvent) -> str:
    return f"session {event.session}" if event.session else "an ignored message"


def _has_seq_gap_between(earlier: SessionEvent, later: SessionEvent, modulo: int | None) -> bool:
    """Returns True if a seq is missing between two parts. Raises ValueError if the second does not follow the first."""
    last, seq, after = earlier.seq, later.seq, later.after
    if last is None or seq is None:
        raise ValueError(f"of the parts of session {later.session}, some have a seq and others none")
    steps = seq - last if modulo is None else (seq - last) % modulo
    if steps <= 0 or (modulo is not None and steps > modulo // 2):
        raise ValueError(f"parts of session {later.session} have seq {last} and then {seq}, which is not above it")
    if after is None:
        return False
    if later.is_link:
        return after != last
    return steps > (seq - after if modulo is None else (seq - after) % modulo)
