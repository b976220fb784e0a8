"""What the state store remembers of a session, shown to people and to programs."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sessionlake.cli import state as command
from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.history.state import convert_times_to_iso, find_session_state
from sessionlake.integrity.clock import PartitionStreamTime, ShardClock
from sessionlake.integrity.cursor import CURSOR, OpenGap, SessionCursor, encode_variable_part
from sessionlake.integrity.seq_set import SeqSet
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import build_session_key
from sessionlake.settings.model import Settings

NOON = 1_767_355_200_000  # 2026-01-02
CURSOR_OF_S = SessionCursor(
    last_seq=7,
    messages=6,
    first_ts=NOON,
    last_ts=NOON + 1,
    last_kafka_ts=NOON + 1001,
    ended_at=-(10**17),
    taken=SeqSet([0, 4, 6, 7]),
    open_gaps=[OpenGap(5, 6, NOON + 2500, 3, NOON, 0)],
)


@pytest.fixture
def stored() -> bytes:
    cursor = replace(CURSOR_OF_S, taken=SeqSet([0, 4, 6, 7]))
    cursors = np.array([cursor.list_array_record_values()], CURSOR)
    memories = np.array([encode_variable_part(cursor.create_variable_part()), None], object)[:-1]
    return ShardState(
        pa.array([build_session_key("t", 0, "s")]),
        cursors,
        memories,
        ShardClock([PartitionStreamTime("t", 0, NOON + 60_000, 9)]),
    ).encode_shard_state(())


def test_programs_get_times_as_ms(stored):
    session_state = find_session_state(stored, "t", 0, "s")
    assert (session_state["first_ts"], session_state["stream_time"], session_state["highest_ts"]) == (
        NOON,
        NOON + 60_000,
        None,
    )
    assert session_state["unfilled"] == [{"from": 5, "to": 5, "due": NOON + 2500}]


def test_people_get_times_to_read(stored):
    session_state = convert_times_to_iso(find_session_state(stored, "t", 0, "s"))
    assert session_state["first_ts"] == "2026-01-02T12:00:00.000Z"
    assert session_state["last_kafka_ts"] == "2026-01-02T12:00:01.001Z"
    assert session_state["stream_time"] == "2026-01-02T12:01:00.000Z"
    assert session_state["unfilled"] == [{"from": 5, "to": 5, "due": "2026-01-02T12:00:02.500Z"}]
    assert (session_state["highest_ts"], session_state["last_seq"]) == (None, 7)
    assert session_state["ended_at"] == -(10**17)  # no calendar has it


@pytest.mark.parametrize(("form", "at"), [(OutputFormat.TABLE, "2026-01-02T12:00:00.000Z"), (OutputFormat.JSON, NOON)])
def test_only_tables_have_times_to_read(stored, tmp_path, monkeypatch, form, at):
    out = io.StringIO()
    monkeypatch.setattr(command, "compute_shard_of_session", lambda *_: 3)
    monkeypatch.setattr(command, "read_shard_states", lambda *_: iter([(3, stored)]))
    monkeypatch.setattr(command, "show_rows", lambda names, rows, form: show_rows(names, rows, form, out))
    monkeypatch.setattr(command, "_find_topic_partition_of_session", lambda *_: ("t", 0))
    command.show_session_state(None, Settings(home=tmp_path), "s", "t", form)
    session_state = out.getvalue()
    rows = dict(line.split(maxsplit=1) for line in session_state.splitlines() if line.strip(" ─"))
    assert (json.loads(session_state) if form is OutputFormat.JSON else rows)["first_ts"] == at
