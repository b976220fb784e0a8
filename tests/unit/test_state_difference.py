"""Two states of a shard: whatever is otherwise in one of them is found and named, and nothing else is a difference."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.integrity.chains import ChainCursor
from sessionlake.integrity.clock import PartitionStreamTime, ShardClock
from sessionlake.integrity.cursor import (
    CURSOR_FIELDS,
    CursorVariablePart,
    OpenGap,
    decode_variable_part,
    encode_variable_part,
)
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.state_difference import ShardStateDifference, find_first_state_difference
from sessionlake.protocol.arrow import build_session_key, split_session_key
from sessionlake.protocol.chunk import build_change_fields, build_chunk_schema
from sessionlake.settings.model import CaptureSettings, TopicRule
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder
from support.streams import SESSION_TIMEOUT, START

COLUMNS = {"price": "double", "qty": "bigint", "status": "string"}
RULES = CaptureSettings(
    columns=COLUMNS,
    integrity=Integrity.ONCE,
    on_violation=OnViolation.ISOLATE,
    lateness="1 minute",
    by_topic=(TopicRule(pattern=r"capture\.window", integrity=Integrity.WINDOW),),
)
ROW = {"id": "r", "price": 1.5, "qty": 2, "status": "OPEN", "undeclared": 1}
OF_POSITION = {"position", "cut_position"}


def message(topic: str, session: str, offset: int, kind: str, seq: int, *, at: int = 0) -> KafkaMessage:
    rows = {"rows": [ROW], "deleted": ["gone"]} if kind == "update" else {"rows": [ROW]} if kind == "snapshot" else {}
    body = {"type": kind, "seq": seq, "ts": START + at} | rows
    return KafkaMessage(topic, 1, offset, START + at, session.encode(), json.dumps(body).encode())


STREAM = [
    message("capture.once", "whole", 0, "snapshot", 0),
    message("capture.once", "gaps", 1, "snapshot", 0),
    message("capture.once", "gaps", 2, "update", 3),
    message("capture.once", "gaps", 3, "snapshot", 5),
    message("capture.window", "holds", 0, "snapshot", 0),
    message("capture.window", "holds", 1, "update", 1),
    message("capture.window", "holds", 2, "update", 3),
]


def fold(*batches: list[KafkaMessage], rules: CaptureSettings = RULES) -> ShardState:
    folder = Folder(rules, 1, random.Random(1))
    for batch in batches:
        folder.batch(batch)
    return folder.states()[0]


def other(value: Any, name: str = "") -> Any:
    """Another value of the same type. `rows`, `sent`, `chain` and `expect` are null without a feed."""
    absent = {"rows": b"r", "sent": "1", "chain": "c", "expect": 1}
    value = absent.get(name) if value is None else value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float | str | bytes):
        return value * 2
    if isinstance(value, list | tuple):
        return type(value)([*value[:-1], other(value[-1])])
    if isinstance(value, dict):
        return {name: None if item is None else other(item) for name, item in value.items()}
    assert isinstance(value, OpenGap)
    return OpenGap(value.start, value.end, value.due, value.offset, value.kafka_ts, other(value.partition))


def place(state: ShardState, session: str) -> int:
    return [split_session_key(key)[2] for key in state.keys.to_pylist()].index(session)


def difference_after(change: Callable[[ShardState], None]) -> ShardStateDifference:
    changed, honest = fold(STREAM), fold(STREAM)
    assert find_first_state_difference(changed, honest) is None
    change(changed)
    found, mirrored = find_first_state_difference(changed, honest), find_first_state_difference(honest, changed)
    assert found is not None
    assert mirrored is not None
    assert (found.found, found.rebuilt) == (mirrored.rebuilt, mirrored.found)
    assert found.found != found.rebuilt
    return found


def named(found: ShardStateDifference) -> tuple[str, str | None, str]:
    return found.topic, found.session_id, found.field


@pytest.mark.parametrize("session", ["whole", "gaps", "holds"])
@pytest.mark.parametrize("name", CURSOR_FIELDS)
def test_any_field_of_any_cursor(name: str, session: str) -> None:
    def change(state: ShardState) -> None:
        cursor = state.cursors[place(state, session)]
        # A position before the present life is an earlier life's, so the other one must be in it.
        cursor[name] = (
            max(cursor[name], cursor["first_offset"]) + 1 if name in OF_POSITION else other(int(cursor[name]))
        )

    topic = "capture.window" if session == "holds" else "capture.once"
    assert named(difference_after(change)) == (topic, session, name)


@pytest.mark.parametrize("name", CursorVariablePart.__struct_fields__)
def test_any_field_of_what_is_remembered_of_gaps(name: str) -> None:
    def change(state: ShardState) -> None:
        at = place(state, "gaps")
        memory = decode_variable_part(state.variable_parts[at])
        assert memory is not None
        setattr(memory, name, other(getattr(memory, name), name))
        state.variable_parts[at] = encode_variable_part(memory)

    assert named(difference_after(change)) == ("capture.once", "gaps", name)


@pytest.mark.parametrize("name", OpenGap.__struct_fields__)
def test_any_field_of_a_gap(name: str) -> None:
    def change(state: ShardState) -> None:
        at = place(state, "gaps")
        memory = decode_variable_part(state.variable_parts[at])
        assert memory is not None
        setattr(memory.open_gaps[0], name, other(getattr(memory.open_gaps[0], name)))
        state.variable_parts[at] = encode_variable_part(memory)

    assert named(difference_after(change)) == ("capture.once", "gaps", "open_gaps")


def test_gaps_that_are_not_remembered() -> None:
    def change(state: ShardState) -> None:
        state.variable_parts[place(state, "gaps")] = None

    assert named(difference_after(change)) == ("capture.once", "gaps", "taken")


@pytest.mark.parametrize(
    "name", [name for name in PartitionStreamTime.__struct_fields__ if name not in {"topic", "partition"}]
)
def test_any_field_of_a_clock(name: str) -> None:
    def change(state: ShardState) -> None:
        lane = state.clock.partition_times[state.clock.find_partition_index(("capture.window", 1))]
        setattr(lane, name, other(getattr(lane, name)))

    assert named(difference_after(change)) == ("capture.window", None, f"clock of partition 1, {name}")


@pytest.mark.parametrize("name", ["topic", "partition"])
def test_a_clock_of_another_topic_partition(name: str) -> None:
    def change(state: ShardState) -> None:
        lane = state.clock.partition_times[0]
        setattr(lane, name, other(getattr(lane, name)))
        state.clock = ShardClock(state.clock.partition_times)

    assert difference_after(change).field.startswith("clock of partition")


def held_changed(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[ShardState], None]:
    def changed(state: ShardState) -> None:
        assert state.held_messages is not None
        rows = state.held_messages.to_pylist()
        change(rows)
        state.held_messages = pa.Table.from_pylist(rows, state.held_messages.schema)

    return changed


KEY = build_session_key("capture.once", 1, "gaps")
HELD = [name for name in build_chunk_schema(RULES.declared_columns).names if name not in {"clock", "part"}]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", HELD)
def test_any_field_of_any_held_message(name: str, number: int) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        (row,) = (row for row in rows if row["offset"] == number)
        row[name] = other(row[name], name)

    found = difference_after(held_changed(change))
    assert found.field.startswith("held message at offset")
    if name not in {"topic", "partition", "offset"}:
        assert found.field == f"held message at offset {number}, {name}"
    if name not in {"topic", "session_id"}:
        assert (found.topic, found.session_id) == ("capture.window", "holds")


@pytest.mark.parametrize("name", [field.name for field in build_change_fields(RULES.declared_columns)])
def test_any_field_of_a_change_that_is_held_back(name: str) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        (row,) = (row for row in rows if row["offset"] == 1)
        row["changes"][0][name] = other(row["changes"][0][name], name)

    field = "held message at offset 1, changes"
    assert named(difference_after(held_changed(change))) == ("capture.window", "holds", field)


@pytest.mark.parametrize("looked_at", [1, 2, 1_000])
@pytest.mark.parametrize("number", range(3))
def test_a_held_message_that_is_lost(number: int, looked_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionlake.integrity.state_difference._LOOKED_AT", looked_at)

    def change(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["offset"] != number]

    found = difference_after(held_changed(change))
    assert str(found) == (
        f"topic capture.window, partition 1, session 'holds', held message at offset {number}: "
        "found nothing, rebuilt present"
    )


def test_a_held_value_that_is_no_number_is_the_same_as_itself() -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["changes"][0]["value:0"] = float("nan")

    found, rebuilt = fold(STREAM), fold(STREAM)
    for state in (found, rebuilt):
        held_changed(change)(state)
    assert find_first_state_difference(found, rebuilt) is None


def test_all_held_messages_lost() -> None:
    def change(state: ShardState) -> None:
        state.held_messages = None

    found = difference_after(change)
    assert named(found) == ("capture.window", "holds", "held message at offset 0")


def test_a_session_that_is_forgotten() -> None:
    def change(state: ShardState) -> None:
        state.keep_sessions(state.cursors["first_offset"] != 1)

    found = difference_after(change)
    assert str(found) == "topic capture.once, partition 1, session 'gaps', session: found nothing, rebuilt present"


def test_the_words_name_the_values() -> None:
    def change(state: ShardState) -> None:
        state.cursors["gaps"][place(state, "gaps")] = 7

    assert str(difference_after(change)) == "topic capture.once, partition 1, session 'gaps', gaps: found 7, rebuilt 2"


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        (None, "found nothing, rebuilt present"),
        (ChainCursor(8, 3, 5, {KEY}), "found seq 8 at offset 3 with sessions gaps, rebuilt seq 7"),
        (ChainCursor(7, 3, 5, set()), "found seq 7 at offset 3 with sessions nothing, rebuilt seq 7"),
    ],
)
def test_a_chain_that_differs(chain: ChainCursor | None, found: str) -> None:
    changed, honest = fold(STREAM), fold(STREAM)
    name = build_session_key("capture.once", 1, "c")
    honest.chains[name] = ChainCursor(7, 3, 5, {KEY})
    if chain is not None:
        changed.chains[name] = chain
    assert f"topic capture.once, chain 'c' of partition 1: {found}" in str(find_first_state_difference(changed, honest))


def test_all_of_a_state_is_compared() -> None:
    """A field that is added to `ShardState` is to be compared, and to have its test here."""
    compared = {"keys", "cursors", "variable_parts", "clock", "held_messages", "chains"}
    assert {field.name for field in fields(ShardState)} == {*compared, "_stored"}  # a copy of `cursors`


def test_which_number_a_session_and_a_topic_partition_have_is_no_difference() -> None:
    window_first = [*STREAM[4:], *STREAM[:4]]
    found, rebuilt = (fold(*([message] for message in messages)) for messages in (STREAM, window_first))
    assert found.keys.to_pylist() != rebuilt.keys.to_pylist()
    assert [lane.topic for lane in found.clock.partition_times] != [
        lane.topic for lane in rebuilt.clock.partition_times
    ]
    assert find_first_state_difference(found, rebuilt) is None


@pytest.mark.parametrize("kind", ["snapshot", "update"])
def test_what_an_earlier_life_has_left_is_no_difference(kind: str) -> None:
    """A session comes back after it could be forgotten; whether it was depends on where a batch ended."""
    rules = RULES.model_copy(update={"integrity": Integrity.STRICT})
    late = 3 * SESSION_TIMEOUT
    first = [
        message("capture.once", "back", 0, "snapshot", 0),
        message("capture.once", "other", 1, "snapshot", 0, at=late),
    ]
    then = [message("capture.once", "back", 2, kind, 0, at=late)]  # an update is an orphan: nothing is applied
    forgotten, kept = fold(first, then, rules=rules), fold([*first, *then], rules=rules)
    lives = [state.cursors[place(state, "back")] for state in (forgotten, kept)]
    assert [int(cursor["cut_position"]) for cursor in lives] == [-1, 0]
    assert [int(cursor["position"]) for cursor in lives] == ([2, 2] if kind == "snapshot" else [-1, 0])
    assert find_first_state_difference(forgotten, kept) is None
