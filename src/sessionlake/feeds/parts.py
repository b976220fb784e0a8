"""Joins the parts of a split message that concern the same session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind

_WITHOUT_END = frozenset({EventKind.SNAPSHOT, EventKind.UPDATE, EventKind.HEARTBEAT})


class RowList(list[Any]):
    """Rows of an event that is joined. Adding rows changes the list, so that many parts do not copy it many times."""

    def __add__(self, other: Iterable[Any]) -> RowList:
        self.extend(other)
        return self


def join_parts(before: SessionEvent, part: SessionEvent, modulo: int | None) -> SessionEvent:
    """Returns one event with the effect of two parts of a message, one after the other.

    Parts with the same seq are pages of one event. Parts with different seqs have the effect of separate messages if
    the second follows the first: the event covers both intervals. A checksum of the first is not compared then,
    because the second changes the rows. If a seq is missing between them, or may be, such parts are refused: if only
    the first is a duplicate, its rows must not be applied once more with those of the second.

    Args:
        before: The event of the earlier parts. If its rows are a `RowList`, this list gets the rows of the part.
        part: The event of the next part, of the same session.
        modulo: The number at which the seqs start again at 0; None if they rise for ever.

    Raises:
        ValueError: The parts cannot be one event.
    """
    if part.kind is EventKind.HEARTBEAT and part.seq is None:
        return before
    if before.kind is EventKind.HEARTBEAT and before.seq is None:
        return part
    if before.scope != part.scope:
        raise ValueError(f"parts of session {part.session} have several scopes")
    if before.chain != part.chain or (before.seq != part.seq and part.chain is not None):
        raise ValueError(f"parts of {_describe_session(part)} have several numbers of a chain, or several chains")
    if before.seq == part.seq:
        if before.kind is not part.kind:
            raise ValueError(f"parts of session {part.session} are of several kinds")
        return replace(before, rows=before.rows + part.rows, sent=before.sent if part.sent is None else part.sent)
    if not {before.kind, part.kind} <= _WITHOUT_END or part.scope:
        raise ValueError(f"parts of session {part.session} are of several kinds")
    return _join_numbered_parts(before, part, modulo)


def _join_numbered_parts(before: SessionEvent, part: SessionEvent, modulo: int | None) -> SessionEvent:
    """Joins parts with different seqs."""
    has_gap = not part.restart and _has_gap_between(before, part, modulo)
    may_have_gap = part.after is None and not before.restart and not _ignores_rows_before(before, part)
    if has_gap or may_have_gap:
        raise ValueError(
            f"parts of session {part.session} have seq {before.seq} and {part.seq}, and do not say that none is between"
        )
    joined = replace(part, after=None if part.restart else before.after)
    if part.kind is EventKind.SNAPSHOT:
        return replace(joined, restart=before.restart or part.restart)
    if before.kind is not EventKind.HEARTBEAT:
        joined = replace(joined, kind=before.kind, rows=before.rows + part.rows)
    return replace(joined, restart=before.restart, is_link=part.is_link and not before.restart)


def _ignores_rows_before(before: SessionEvent, part: SessionEvent) -> bool:
    """Returns True if the rows after the second part do not depend on whether the first is a duplicate."""
    return before.kind is EventKind.HEARTBEAT or part.kind is EventKind.SNAPSHOT


def _describe_session(event: SessionEvent) -> str:
    return f"session {event.session}" if event.session else "an ignored message"


def _has_gap_between(before: SessionEvent, part: SessionEvent, modulo: int | None) -> bool:
    """Returns True if a seq is missing between two parts. Raises ValueError if the second does not follow the first."""
    last, seq, after = before.seq, part.seq, part.after
    if last is None or seq is None:
        raise ValueError(f"of the parts of session {part.session}, some have a seq and others none")
    steps = seq - last if modulo is None else (seq - last) % modulo
    if steps <= 0 or (modulo is not None and steps > modulo // 2):
        raise ValueError(f"parts of session {part.session} have seq {last} and then {seq}, which is not above it")
    if after is None:
        return False
    if part.is_link:
        return after != last
    return steps > (seq - after if modulo is None else (seq - after) % modulo)
