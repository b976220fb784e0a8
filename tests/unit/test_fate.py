"""What became of a message, by what silver's tables say of it: one rule a row."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.history.fate import (
    MessageContent,
    MessageFate,
    MessageFateWithReason,
    SilverRowsOfMessage,
    decide_message_fate,
)
from sessionlake.settings.section import Integrity

OFFSET, TAKEN_IN, LATER = 100, 7, 9
UPDATE = MessageContent("update", 5, 1_000, "s", changes=2)
HEARTBEAT = MessageContent("heartbeat", 5, 1_000, "s")
MALFORMED = MessageContent()


def found(**rows: Any) -> SilverRowsOfMessage:
    return SilverRowsOfMessage(OFFSET, TAKEN_IN, **rows)


def event(kind: str, batch: int = TAKEN_IN) -> dict[str, Any]:
    return {"event": kind, "_batch": batch}


def session(last_ts: int | None, status: str = "open", first_offset: int = 0) -> dict[str, Any]:
    return {"status": status, "first_offset": first_offset, "last_ts": last_ts}


QUARANTINED = [{"reason": "gap", "_batch": TAKEN_IN}]
CHANGED = [{"change": "upsert", "_batch": TAKEN_IN}]


@pytest.mark.parametrize("integrity", list(Integrity))
@pytest.mark.parametrize(
    ("content", "rows", "verdict"),
    [
        (
            MALFORMED,
            {"quarantine": [{"reason": "not_json", "_batch": 7}]},
            MessageFateWithReason(MessageFate.QUARANTINED, "not_json", 7),
        ),
        (
            UPDATE,
            {"quarantine": QUARANTINED, "events": [event("gap")]},
            MessageFateWithReason(MessageFate.QUARANTINED, "gap", 7),
        ),
        (UPDATE, {"quarantine": [{"reason": "late", "_batch": 7}]}, MessageFateWithReason(MessageFate.LATE, "late", 7)),
        (UPDATE, {"changes": CHANGED}, MessageFateWithReason(MessageFate.APPLIED, None, 7)),
        (
            UPDATE,
            {"changes": CHANGED, "events": [event("gap"), event("gap", LATER)]},
            MessageFateWithReason(MessageFate.APPLIED, None, 7),
        ),
        (UPDATE, {"changes": [{"_batch": LATER}]}, MessageFateWithReason(MessageFate.APPLIED, None, LATER)),
        (UPDATE, {"events": [event("duplicate")]}, MessageFateWithReason(MessageFate.DUPLICATE, None, 7)),
        (HEARTBEAT, {"events": [event("duplicate")]}, MessageFateWithReason(MessageFate.DUPLICATE, None, 7)),
        (HEARTBEAT, {"events": [event("healed")]}, MessageFateWithReason(MessageFate.APPLIED, None, 7)),
    ],
)
def test_what_a_table_of_silver_says_decides_in_every_class(content, rows, verdict, integrity):
    assert decide_message_fate(content, found(**rows), integrity) == verdict


EAGER = [integrity for integrity in Integrity if integrity is not Integrity.WINDOW]


@pytest.mark.parametrize("integrity", EAGER)
def test_a_message_without_rows_that_nothing_is_said_of_was_applied_at_once(integrity):
    assert decide_message_fate(HEARTBEAT, found(), integrity) == MessageFateWithReason(
        MessageFate.APPLIED, None, TAKEN_IN
    )


@pytest.mark.parametrize("integrity", EAGER)
def test_a_message_with_rows_that_nothing_is_said_of_contradicts_the_ledger(integrity):
    assert decide_message_fate(UPDATE, found(), integrity) is None


@pytest.mark.parametrize("integrity", list(Integrity))
def test_a_malformed_message_that_is_not_in_quarantine_contradicts_the_ledger(integrity):
    assert decide_message_fate(MALFORMED, found(), integrity) is None


WAITING = {"status": "open", "first_offset": 0, "last_ts": None, "epoch": -1, "next_seq": None}
BROKEN = {"status": "broken", "first_offset": 0, "last_ts": 1, "epoch": 3, "next_seq": 5}
APPLIED_SOME_TIME = MessageFateWithReason(MessageFate.APPLIED)


@pytest.mark.parametrize(
    ("content", "rows", "verdict"),
    [
        (UPDATE, {"session": WAITING}, MessageFateWithReason(MessageFate.HELD)),
        (UPDATE, {"session": BROKEN, "events": [event("gap")]}, MessageFateWithReason(MessageFate.HELD)),
        (
            UPDATE,
            {"session": BROKEN, "events": [event("duplicate", LATER)]},
            MessageFateWithReason(MessageFate.DUPLICATE, None, LATER),
        ),
        (
            UPDATE,
            {"quarantine": [{"reason": "orphan", "_batch": 9}]},
            MessageFateWithReason(MessageFate.QUARANTINED, "orphan", LATER),
        ),
        (HEARTBEAT, {"session": WAITING}, MessageFateWithReason(MessageFate.HELD)),
        (HEARTBEAT, {"session": BROKEN}, MessageFateWithReason(MessageFate.HELD)),
        (HEARTBEAT, {"session": BROKEN | {"next_seq": 6}}, APPLIED_SOME_TIME),
        (HEARTBEAT, {"session": BROKEN | {"status": "open"}}, APPLIED_SOME_TIME),
        (HEARTBEAT, {"session": BROKEN | {"status": "expired"}}, APPLIED_SOME_TIME),
        (HEARTBEAT, {"session": WAITING | {"first_offset": OFFSET + 1}}, APPLIED_SOME_TIME),
        (
            MessageContent("end", 5, 1_000, "s"),
            {"session": BROKEN},
            MessageFateWithReason(MessageFate.APPLIED, None, TAKEN_IN),
        ),
        (MessageContent("snapshot", 5, 1_000, "s", changes=1), {"session": BROKEN}, None),
    ],
)
def test_a_feed_with_hold_holds_back_what_its_session_cannot_apply_without_a_snapshot(content, rows, verdict):
    assert decide_message_fate(content, found(**rows), Integrity.STRICT, holds_until_snapshot=True) == verdict


def test_window_holds_a_message_with_rows_back_until_its_changes_are_there():
    assert decide_message_fate(
        UPDATE, found(session=session(last_ts=5_000)), Integrity.WINDOW
    ) == MessageFateWithReason(MessageFate.HELD)


@pytest.mark.parametrize(
    ("of_session", "fate"),
    [
        (None, MessageFate.HELD),
        (session(None), MessageFate.HELD),
        (session(999), MessageFate.HELD),
        (session(1_000), MessageFate.APPLIED),
        (session(999, "expired"), MessageFate.APPLIED),
        (session(999, first_offset=OFFSET), MessageFate.HELD),
        (session(999, first_offset=OFFSET + 1), MessageFate.APPLIED),
    ],
)
def test_window_has_released_a_message_without_rows_once_its_session_s_applied_times_reach_it_or_its_life_is_over(
    of_session, fate
):
    assert decide_message_fate(HEARTBEAT, found(session=of_session), Integrity.WINDOW) == MessageFateWithReason(fate)


def test_window_judges_gaps_at_release_so_their_event_names_the_releasing_batch():
    rows = found(events=[event("gap", LATER)], session=session(999))
    assert decide_message_fate(HEARTBEAT, rows, Integrity.WINDOW) == MessageFateWithReason(
        MessageFate.APPLIED, None, LATER
    )


def test_window_s_limit_is_met_on_arrival_and_says_nothing_of_the_release():
    rows = found(events=[event("held_limit")], session=session(999))
    assert decide_message_fate(HEARTBEAT, rows, Integrity.WINDOW) == MessageFateWithReason(MessageFate.HELD)
