"""Judges the gaps of class `once` that were not filled in time."""

from __future__ import annotations

from sessionlake.integrity.cursor import OpenGap, SessionCursor, SessionStatus
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.integrity.recorder import EventRecorder
from sessionlake.settings.section import OnViolation


def judge_overdue_gaps(cursor: SessionCursor, events: EventRecorder, now: int) -> None:
    """Judges the session's gaps whose time limit is before stream time `now` (ms), and closes them.

    Raises:
        ViolationError: A gap is a violation, and the policy is `fail`.
    """
    due = sorted((gap for gap in cursor.open_gaps if gap.due < now), key=lambda gap: gap.due)
    for gap in due:
        if gap not in cursor.open_gaps:
            return  # an earlier gap broke the session, and this removed all its gaps
        cursor.open_gaps.remove(gap)
        _record_unfilled_gap_as_violation(cursor, events, gap)


def _record_unfilled_gap_as_violation(cursor: SessionCursor, events: EventRecorder, gap: OpenGap) -> None:
    """Records a gap as a violation. If the policy is `isolate`, the session becomes broken."""
    expected = next(cursor.taken.iterate_missing_seqs(gap.start, gap.end))
    policy = events.record_violation(gap, IntegrityEventKind.GAP, (expected, gap.end))
    if policy is OnViolation.ISOLATE and cursor.status == SessionStatus.OPEN and cursor.epoch_seq < gap.end:
        cursor.status = SessionStatus.BROKEN
        cursor.open_gaps = []
