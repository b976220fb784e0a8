"""Parts of a split message that concern the same session are one event with the effect of all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import EventKind
from sessionlake.feeds.parts import join_events_of_parts
from sessionlake.feeds.reader import read_record
from sessionlake.feeds.table import SessionTable
from support.feed_cases import feed, record
from support.seeds import seeds

SNAPSHOT, UPDATE, HEARTBEAT, END = EventKind.SNAPSHOT, EventKind.UPDATE, EventKind.HEARTBEAT, EventKind.END


def part(kind: EventKind, seq: int | None, *values: str, **given: Any) -> SessionEvent:
    rows = tuple(RowUpsert((value,), value, {}) for value in values)
    return SessionEvent(
        "s", kind, 10 if seq is None else seq, seq, **{"after": None if seq is None else seq - 1} | given, rows=rows
    )


@pytest.mark.parametrize(
    ("before", "after", "joined"),
    [
        (part(UPDATE, 2, "a"), part(UPDATE, 3, "b"), part(UPDATE, 3, "a", "b", after=1)),
        (part(SNAPSHOT, 2, "a"), part(UPDATE, 3, "b"), part(SNAPSHOT, 3, "a", "b", after=1)),
        (part(UPDATE, 2, "a"), part(SNAPSHOT, 3, "b"), part(SNAPSHOT, 3, "b", after=1)),
        (part(SNAPSHOT, 2, "a"), part(SNAPSHOT, 3, "b"), part(SNAPSHOT, 3, "b", after=1)),
        (part(SNAPSHOT, 2, "a"), part(SNAPSHOT, 2, "b"), part(SNAPSHOT, 2, "a", "b")),  # pages of one snapshot
        (part(UPDATE, None, "a"), part(UPDATE, None, "b"), part(UPDATE, None, "a", "b")),
        (part(HEARTBEAT, 2), part(UPDATE, 3, "b"), part(UPDATE, 3, "b", after=1)),
        (part(UPDATE, 2, "a"), part(HEARTBEAT, 3), part(UPDATE, 3, "a", after=1)),
        (part(UPDATE, 2, "a"), part(HEARTBEAT, None), part(UPDATE, 2, "a")),
        (part(HEARTBEAT, None), part(UPDATE, 2, "a"), part(UPDATE, 2, "a")),
        (part(UPDATE, 2, "a"), part(UPDATE, 9, "b", after=2), part(UPDATE, 9, "a", "b", after=1)),
        (part(UPDATE, 2, "a", is_link=True), part(UPDATE, 9, "b", after=2, is_link=True),
         part(UPDATE, 9, "a", "b", after=1, is_link=True)),
        (part(UPDATE, 2, "a", after=None), part(SNAPSHOT, 9, "b", after=None), part(SNAPSHOT, 9, "b", after=None)),
        (part(UPDATE, 2, "a", chain="c"), part(UPDATE, 2, "b", chain="c"), part(UPDATE, 2, "a", "b", chain="c")),
        (part(UPDATE, 2, "a"), part(SNAPSHOT, 0, "b", after=None, restart=True),
         part(SNAPSHOT, 0, "b", after=None, restart=True)),
        (part(SNAPSHOT, 0, "a", after=None, restart=True), part(UPDATE, 1, "b"),
         part(SNAPSHOT, 1, "a", "b", after=None, restart=True)),
    ],
)  # fmt: skip
def test_parts_have_their_effects_one_after_the_other(
    before: SessionEvent, after: SessionEvent, joined: SessionEvent
) -> None:
    assert join_events_of_parts(before, after, None) == joined


@pytest.mark.parametrize(("first", "second", "joined"), [(6, 7, (5, 7)), (7, 0, (6, 0))])
def test_a_counter_goes_round_within_a_message(first: int, second: int, joined: tuple[int, int]) -> None:
    found = join_events_of_parts(part(UPDATE, first), part(UPDATE, second), 8)
    assert (found.after, found.seq) == joined


NOT_NEXT = "have seq 2 and 4, and do not say that none is between"


@pytest.mark.parametrize(
    ("before", "after", "modulo", "why"),
    [
        (part(UPDATE, 3), part(UPDATE, 2), None, "have seq 3 and then 2, which is not above it"),
        (part(UPDATE, 0), part(UPDATE, 7), 8, "have seq 0 and then 7, which is not above it"),
        (part(UPDATE, 2), part(UPDATE, None), None, "some have a seq and others none"),
        (part(UPDATE, 2), part(SNAPSHOT, 2), None, "are of several kinds"),
        (part(UPDATE, 2), part(END, 3), None, "are of several kinds"),
        (part(SNAPSHOT, 2, scope={"d": 1}), part(SNAPSHOT, 2, scope={"d": 2}), None, "have several scopes"),
        (part(SNAPSHOT, 2, restart=True), part(UPDATE, 4), None, NOT_NEXT),
        (part(UPDATE, 2), part(UPDATE, 4), None, NOT_NEXT),
        (part(SNAPSHOT, 2), part(UPDATE, 4), None, NOT_NEXT),
        (part(UPDATE, 2), part(SNAPSHOT, 4), None, NOT_NEXT),
        (part(HEARTBEAT, 2), part(UPDATE, 4), None, NOT_NEXT),
        (part(UPDATE, 2), part(HEARTBEAT, 4), None, NOT_NEXT),
        (part(UPDATE, 2), part(UPDATE, 4, after=None), None, NOT_NEXT),
        (part(UPDATE, 2, is_link=True), part(UPDATE, 4, after=1, is_link=True), None, NOT_NEXT),
        (part(UPDATE, 7), part(UPDATE, 1), 8, "have seq 7 and 1, and do not say that none is between"),
        (part(UPDATE, 2, chain="c"), part(UPDATE, 3, chain="c"), None, "have several numbers of a chain"),
        (part(UPDATE, 2, chain="c"), part(UPDATE, 2, chain="d"), None, "have several numbers of a chain"),
    ],
)
def test_parts_that_are_no_one_event_are_refused(
    before: SessionEvent, after: SessionEvent, modulo: int | None, why: str
) -> None:
    with pytest.raises(ValueError, match=f"parts of session s,? ?{why}"):
        join_events_of_parts(before, after, modulo)


LISTS = """
name: lists
topics: lists
session: .s
key: [id]
columns: {id: string, v: string}
order: {seq: .n, rising: true}
messages:
  - {when: {.is: nothing}, is: ignore, split: {each: "[*]"}}
  - {is: update, split: {each: "[*]"}, rows: [{row: {id: .id, v: .v}}]}
"""


def test_rows_of_a_repeated_part_are_not_applied_again_with_those_of_a_new_one() -> None:
    def one(n: int, row_id: str, value: str) -> dict[str, Any]:
        return {"s": "s", "n": n, "id": row_id, "v": value}

    table = SessionTable(feed(LISTS))
    for message in ([one(5, "X", "a")], [one(7, "X", "b")], [one(5, "X", "a"), one(9, "Y", "c")]):
        found = read_record(feed(LISTS), record(message))
        for event in found.events if isinstance(found, DecodedMessage) else ():
            table.apply_event(event)
    assert isinstance(found, MessageRefusal)
    assert found.reason == "bad_value"
    assert {name: row["v"] for name, row in table.rows.items()} == {"X": "b"}


def random_history(rnd: random.Random, how: str) -> list[SessionEvent]:
    """The events of a session, each of which has a place in its order."""
    events: list[SessionEvent] = []
    seq = rnd.randint(0, 3)
    for _ in range(8):
        after, seq = seq, seq + (1 if how == "step" else rnd.randint(1, 3))
        kind = rnd.choice([SNAPSHOT, HEARTBEAT, *[UPDATE] * 5])
        rows: list[RowUpsert | RowDelete] = []
        for _ in range(0 if kind is HEARTBEAT else rnd.randint(0, 3)):
            name = rnd.choice("xyz")
            if rnd.random() < 0.3:
                rows.append(RowDelete((name,), name))
            else:
                rows.append(
                    RowUpsert((name,), name, {"id": name, "v": str(seq)} if rnd.random() < 0.8 else {"id": name})
                )
        events.append(SessionEvent("s", kind, seq, seq, None if how == "rising" else after, rows=tuple(rows)))
    return events


def join_or_none(parts: list[SessionEvent]) -> SessionEvent | None:
    joined = parts[0]
    try:
        for one in parts[1:]:
            joined = join_events_of_parts(joined, one, None)
    except ValueError:
        return None
    return joined


@pytest.mark.parametrize("how", ["step", "first", "rising"])
@pytest.mark.parametrize("seed", seeds(15, 2_000))
def test_joined_parts_have_the_effect_of_separate_messages_wherever_the_session_is(seed: int, how: str) -> None:
    rnd, given = random.Random(seed), feed(LISTS)
    history = random_history(rnd, how)
    first, repeated = rnd.randrange(7), 0
    for count in (2, 3):
        parts = history[first : first + count] if rnd.random() < 0.5 else sorted(rnd.sample(history, count), key=by_seq)
        joined = join_or_none(parts)
        for applied in range(len(history) + 1 if joined else 0):
            apart, together = SessionTable(given), SessionTable(given)
            for event in history[:applied]:
                apart.apply_event(event)
                together.apply_event(event)
            for event in parts:
                apart.apply_event(event)
            assert joined is not None
            together.apply_event(joined)
            assert (together.rows, together.last_seq) == (apart.rows, apart.last_seq)
            assert bool(together.gaps) == bool(apart.gaps)
            repeated += apart.duplicates > 0
    if how == "step" and seed == 0:
        assert repeated


def by_seq(event: SessionEvent) -> int:
    return event.seq or 0


CHAINED = LISTS.replace("{seq: .n, rising: true}", "{seq: .n, chain: .c}")


def test_parts_of_a_session_with_several_numbers_of_a_chain_are_refused() -> None:
    found = read_record(
        feed(CHAINED), record([{"s": "a", "n": 5, "c": "c", "id": "x"}, {"s": "a", "n": 6, "c": "c", "id": "x"}])
    )
    assert isinstance(found, MessageRefusal)
    assert found.why == "parts of session a have several numbers of a chain, or several chains"


def test_ignored_parts_advance_each_of_their_chains() -> None:
    ignored = [{"is": "nothing", "n": 5, "c": "c"}, {"is": "nothing", "n": 7, "c": "d"}]
    found = read_record(feed(CHAINED), record(ignored))
    assert isinstance(found, DecodedMessage)
    assert [(event.session, event.chain, event.seq) for event in found.events] == [("", "c", 5), ("", "d", 7)]
    found = read_record(feed(CHAINED), record([*ignored, {"is": "nothing", "n": 6, "c": "c"}]))
    assert isinstance(found, MessageRefusal)
    assert found.why.startswith("parts of an ignored message have several numbers of a chain")


def test_a_message_has_one_place_in_a_chain() -> None:
    parts = [{"s": "a", "n": 5, "c": "c", "id": "x"}, {"s": "b", "n": 6, "c": "c", "id": "x"}]
    found = read_record(feed(CHAINED), record(parts))
    assert isinstance(found, MessageRefusal)
    assert (found.reason, found.why) == ("bad_value", "the parts have several numbers of the chain c")
    found = read_record(feed(CHAINED), record([parts[0], parts[1] | {"n": 5}, parts[1] | {"n": 6, "c": "d", "s": "e"}]))
    assert isinstance(found, DecodedMessage)
    assert [(event.session, event.chain, event.seq) for event in found.events] == [
        ("a", "c", 5), ("b", "c", 5), ("e", "d", 6),
    ]  # fmt: skip
