"""Reads silver's streaming state: the state of one session, and the size of each shard's state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc

from sessionlake.delta.storage.far_times import OutOfRangeTime, convert_ms_to_time, format_time
from sessionlake.errors import UsageError
from sessionlake.integrity.cursor import INITIAL_VALUES, NO_TIME, SessionCursor, SessionStatus, decode_variable_part
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import build_session_key, build_session_key_of_each_row

_HELD = ("offset", "seq", "ts", "size")


@dataclass(frozen=True)
class ShardStateStats:
    """The size of the state that silver keeps of one shard.

    Attributes:
        shard: Number of the shard.
        sessions: Number of sessions in the state.
        expired: Number of sessions past their session timeout.
        with_gaps: Number of sessions with gaps in their seqs.
        holding: Number of sessions with messages that are held back.
        held: Number of messages that are held back.
        bytes: Size of the stored state in bytes.
    """

    shard: int
    sessions: int
    expired: int
    with_gaps: int
    holding: int
    held: int
    bytes: int


STATS = tuple(ShardStateStats.__dataclass_fields__)


def compute_shard_state_stats(shard: int, stored_state: bytes) -> ShardStateStats:
    """Returns counts and the size of one shard's state.

    Args:
        shard: Number of the shard.
        stored_state: The stored bytes of the state.
    """
    state = ShardState.decode_shard_state(stored_state, None)
    return ShardStateStats(
        shard=shard,
        sessions=len(state.cursors),
        expired=int((state.cursors["marked"] == 1).sum()),
        with_gaps=sum(memory is not None for memory in state.variable_parts.tolist()),
        holding=int((state.cursors["held"] > 0).sum()),
        held=int(state.cursors["held"].sum()),
        bytes=len(stored_state),
    )


def find_session_state(stored_shard_state: bytes, topic: str, partition: int, session: str) -> dict[str, Any]:
    """Returns what silver keeps of one session in its state, by the value's name. Times are in ms; None is unknown.

    Args:
        stored_shard_state: The stored state of the session's shard.
        topic: The session's topic.
        partition: The session's partition.
        session: The session's id.

    Raises:
        UsageError: The shard has no state of this session.
    """
    state = ShardState.decode_shard_state(stored_shard_state, None)
    place = pc.index(state.keys, build_session_key(topic, partition, session)).as_py()
    if place < 0:
        raise UsageError(
            f"silver keeps no state of session {session!r} of topic {topic}, partition {partition}",
            why="The session never had a message, or its state was dropped, which happens at twice the "
            "session timeout after the last message",
            fix='Look for the session with `sessionlake query "SELECT * FROM silver.sessions"`',
        )
    cursor = SessionCursor.from_array_record(state.cursors[place], decode_variable_part(state.variable_parts[place]))
    lane = state.clock.partition_times[cursor.lane]
    fields = {name: value for name, value in asdict(cursor).items() if name not in _INTERNAL}
    bounds = cursor.taken.interval_bounds
    by_event_time = cursor.highest_ts != NO_TIME  # only class `window` sets it
    held = _list_held_messages_of_session(
        state, build_session_key(topic, partition, session), by_event_time=by_event_time
    )
    return {
        "topic": topic,
        "session_id": session,
        **{name: None if value == INITIAL_VALUES.get(name) else value for name, value in fields.items()},
        "status": SessionStatus(cursor.status).name.lower(),
        "expired": bool(cursor.marked),
        "stream_time": None if lane.time == NO_TIME else lane.time,
        "taken": [list(pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)],
        "unfilled": [{"from": hole.start, "to": hole.end - 1, "due": hole.due} for hole in cursor.open_gaps],
        "held_until": None if not held else "watermark" if by_event_time else "snapshot",
        "held": held,
    }


def convert_times_to_iso(session_state: Any) -> Any:
    """Returns a session's state with times as ISO 8601 texts in UTC. Times after the year 9999 stay numbers.

    Args:
        session_state: What `find_session_state` returned, or a part of it.
    """
    if isinstance(session_state, list):
        return [convert_times_to_iso(item) for item in session_state]
    if not isinstance(session_state, dict):
        return session_state
    return {
        name: _to_iso_time(value) if name in _TIMES else convert_times_to_iso(value)
        for name, value in session_state.items()
    }


def _to_iso_time(ms: int | None) -> str | int | None:
    found = None if ms is None else convert_ms_to_time(ms)
    return found if found is None or isinstance(found, OutOfRangeTime) else format_time(found).replace(" ", "T")


_TIMES = {
    *("first_ts", "last_ts", "last_kafka_ts", "ended_at", "highest_ts", "changed_at", "stream_time"),
    *("due", "ts"),  # in the entries of `unfilled` and `held`
}
_INTERNAL = {"lane", "marked", "taken_from", "taken_to", "taken", "snapshots", "open_gaps", "due", "held", "status"}


def _list_held_messages_of_session(state: ShardState, session_key: str, *, by_event_time: bool) -> list[dict[str, int]]:
    """Returns offset, seq, event time (ms) and size (bytes) of each message that a session holds back.

    They are sorted as they will be judged: by event time if `by_event_time`, otherwise by seq.
    """
    if state.held_messages is None:
        return []
    mine = pc.equal(build_session_key_of_each_row(state.held_messages), session_key)
    order = [("ts", "ascending"), ("seq", "ascending")] if by_event_time else [("offset", "ascending")]
    found: list[dict[str, int]] = state.held_messages.filter(mine).select(_HELD).sort_by(order).to_pylist()
    return found
