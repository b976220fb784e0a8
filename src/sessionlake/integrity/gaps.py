"""Judges the gaps of class `once` that were not filled in time."""

from __future__ import annotations

from sessionlake.integrity.cursor import Cursor, OpenGap, Status
from sessionlake.integrity.outcome import EventKind
from sessionlake.integrity.recorder import EventRecorder
from sessionlake.settings.section import OnViolation


def judge_due_gaps(cursor: Cursor, events: EventRecorder, now: int) -> None:
    """Judges the session's gaps whose time limit is before stream time `now` (ms), and closes them.

    Raises:
        ViolationError: A gap is a violation, and the policy is `fail`.
    """
    due = sorted((gap for gap in cursor.open_gaps if gap.due < now), key=lambda gap: gap.due)
    for gap in due:
        if gap not in cursor.open_gaps:
            return  # an earlier gap broke the session, and this removed all its gaps
        cursor.open_gaps.remove(gap)
        _judge_unfilled_gap(cursor, events, gap)


def _judge_unfilled_gap(cursor: Cursor, events: EventRecorder, gap: OpenGap) -> None:
    """Records a gap as a violation. If the policy is `isolate`, the session becomes broken."""
    expected = next(cursor.taken.iterate_missing_seqs(gap.start, gap.end))
    policy = events.record_violation(gap, EventKind.GAP, (expected, gap.end))
    if policy is OnViolation.ISOLATE and cursor.status == Status.OPEN and cursor.epoch_seq < gap.end:
        cursor.status = Status.BROKEN
        cursor.open_gaps = []
