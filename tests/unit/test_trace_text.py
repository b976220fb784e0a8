"""A trace in a few lines: what class `window` holds back, what it released, and messages of many changes."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sessionlake.cli.show import OutputFormat
from sessionlake.cli.trace import show_trace
from sessionlake.history.fate import MessageFate
from sessionlake.history.traced import BatchCommit, MessageJudgement, MessageTrace, TracedMessage

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 12, 0, 1, tzinfo=UTC)
HELD = MessageJudgement(MessageFate.HELD, None, None, None, "window")
RELEASED = MessageJudgement(MessageFate.APPLIED, None, 9, LATER, "window")
LATE_EVENT = {"event": "late", "action": "quarantined", "expected_seq": 9, "actual_seq": 5}
LATE = MessageJudgement(MessageFate.LATE, "late", 7, NOON, "window", [LATE_EVENT])


def change(number: int) -> dict[str, Any]:
    marks = {"_rescued": None, "_epoch": 1, "_seq": 5, "_position": 9, "ordinal": number, "_batch": 9}
    return {"change": "upsert", "row_id": f"r{number}", "set": {"price": float(number)}, **marks}


def trace(judgement: MessageJudgement, changes: int = 0) -> MessageTrace:
    message = TracedMessage(b"s", "s", "update", 5, 10, NOON, 33, NOON)
    bronze, silver = (BatchCommit(batch, "q", NOON, {}, recovered=False) for batch in (1, 7))
    rows = [change(number) for number in range(changes)]
    return MessageTrace("capture.a", 0, 4, bronze, message, silver, judgement, None, rows, None)


def text(found: MessageTrace) -> str:
    out = io.StringIO()
    show_trace(found, OutputFormat.TABLE, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (trace(HELD), "judgement  held back until its session's watermark passes its event time"),
        (trace(RELEASED, 1), "applied (class window); held back until batch 9, committed 2026-01-02 12:00:01.000Z"),
        (trace(replace(RELEASED, batch=None, committed_at=None)), "applied (class window); it changes no rows"),
        (trace(LATE), "judgement  late (class window)"),
    ],
)
def test_what_class_window_does_is_reported(found, said):
    assert said in text(found)


def test_an_entry_that_was_recovered_is_not_taken_for_the_message_s_own_batch():
    found = trace(RELEASED)
    told = text(replace(found, bronze=replace(found.bronze, recovered=True)))
    assert "batch 1 or an earlier one, committed before 2026-01-02 12:00:00.000Z, when the ledger was recovered" in told


@pytest.mark.parametrize(("changes", "more"), [(20, None), (21, "and 1 more: --format json lists all")])
def test_twenty_changes_are_shown_and_the_rest_counted(changes, more):
    said = text(trace(RELEASED, changes))
    assert "r19" in said
    assert "r20" not in said
    assert ("more:" in said) == (more is not None)
    assert more is None or more in said


def test_a_column_that_was_not_set_is_blank_and_one_set_to_null_is_not():
    found = trace(RELEASED, 2)
    found.changes[1]["set"] = {"status": None}
    first, second = (line.split() for line in text(found).splitlines() if "upsert" in line)
    assert (first, second) == (["upsert", "r0", "0.0", "1", "5", "9"], ["upsert", "r1", "null", "1", "5", "9"])
