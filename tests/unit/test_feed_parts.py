"""Parts of a split message that concern the same session are one event with the effect of all."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.feeds.events import Event, Put
from sessionlake.feeds.feed import Kind
from sessionlake.feeds.parts import join_parts

SNAPSHOT, UPDATE, HEARTBEAT, END = Kind.SNAPSHOT, Kind.UPDATE, Kind.HEARTBEAT, Kind.END


def part(kind: Kind, seq: int | None, *values: str, **given: Any) -> Event:
    rows = tuple(Put((value,), value, {}) for value in values)
    return Event(
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
        (part(UPDATE, 2, "a"), part(UPDATE, 4, "b"), part(UPDATE, 4, "a", "b", after=3)),  # a gap stays one
        (part(UPDATE, 2, "a"), part(UPDATE, 9, "b", after=2), part(UPDATE, 9, "a", "b", after=1)),
        (part(UPDATE, 2, "a", is_link=True), part(UPDATE, 9, "b", after=2, is_link=True),
         part(UPDATE, 9, "a", "b", after=1, is_link=True)),
        (part(UPDATE, 2, "a", is_link=True), part(UPDATE, 9, "b", after=1, is_link=True),
         part(UPDATE, 9, "a", "b", after=1, is_link=True)),
        (part(UPDATE, 2, "a", after=None), part(UPDATE, 9, "b", after=None), part(UPDATE, 9, "a", "b", after=None)),
        (part(UPDATE, 2, "a"), part(SNAPSHOT, 0, "b", after=None, restart=True),
         part(SNAPSHOT, 0, "b", after=None, restart=True)),
        (part(SNAPSHOT, 0, "a", after=None, restart=True), part(UPDATE, 1, "b"),
         part(SNAPSHOT, 1, "a", "b", after=None, restart=True)),
    ],
)  # fmt: skip
def test_parts_have_their_effects_one_after_the_other(before: Event, after: Event, joined: Event) -> None:
    assert join_parts(before, after, None) == joined


@pytest.mark.parametrize(
    ("first", "second", "joined"), [(6, 7, (5, 7)), (7, 0, (6, 0)), (7, 1, (0, 1)), (7, 2, (1, 2))]
)
def test_a_counter_goes_round_within_a_message(first: int, second: int, joined: tuple[int, int]) -> None:
    found = join_parts(part(UPDATE, first), part(UPDATE, second), 8)
    assert (found.after, found.seq) == joined


@pytest.mark.parametrize(
    ("before", "after", "modulo", "why"),
    [
        (part(UPDATE, 3), part(UPDATE, 2), None, "have seq 3 and then 2, which is not above it"),
        (part(UPDATE, 0), part(UPDATE, 7), 8, "have seq 0 and then 7, which is not above it"),
        (part(UPDATE, 2), part(UPDATE, None), None, "some have a seq and others none"),
        (part(UPDATE, 2), part(SNAPSHOT, 2), None, "are of several kinds"),
        (part(UPDATE, 2), part(END, 3), None, "are of several kinds"),
        (part(SNAPSHOT, 2, scope={"d": 1}), part(SNAPSHOT, 2, scope={"d": 2}), None, "have several scopes"),
        (part(SNAPSHOT, 2, restart=True), part(UPDATE, 4), None, "have seq 2 and 4, but none between"),
    ],
)
def test_parts_that_are_no_one_event_are_refused(before: Event, after: Event, modulo: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=f"parts of session s,? ?{why}"):
        join_parts(before, after, modulo)
