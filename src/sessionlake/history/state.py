"""A look into silver's state store: what judging remembers of a session, and how much there is of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc

from sessionlake.delta.storage.far_times import FarTime, time_of, time_text
from sessionlake.errors import UsageError
from sessionlake.integrity.cursor import INITIAL, NO_TIME, Cursor, Status, decode_memory
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import session_key, session_keys

_HELD = ("offset", "seq", "ts", "size")


@dataclass(frozen=True)
class ShardStats:
    """How much one shard's state holds.

    Attributes:
        sessions: how many are remembered; of these, how many are past their session timeout, have gaps, and hold
            messages back.
        held: messages held back in all.
        bytes: size of the state as stored.
    """

    shard: int
    sessions: int
    expired: int
    with_gaps: int
    holding: int
    held: int
    bytes: int


STATS = tuple(ShardStats.__dataclass_fields__)


def stats_of(shard: int, stored: bytes) -> ShardStats:
    """How much a shard remembers."""
    state = ShardState.decode(stored, None)
    return ShardStats(
        shard=shard,
        sessions=len(state.cursors),
        expired=int((state.cursors["marked"] == 1).sum()),
        with_gaps=sum(memory is not None for memory in state.memories.tolist()),
        holding=int((state.cursors["held"] > 0).sum()),
        held=int(state.cursors["held"].sum()),
        bytes=len(stored),
    )


def session_state(stored: bytes, topic: str, partition: int, session: str) -> dict[str, Any]:
    """What a shard remembers of one session; times in ms, absent ones None.

    Raises:
        UsageError: the state remembers nothing of the session.
    """
    state = ShardState.decode(stored, None)
    place = pc.index(state.keys, session_key(topic, partition, session)).as_py()
    if place < 0:
        raise UsageError(
            f"the state holds nothing of session {session!r} of topic {topic}, partition {partition}: it "
            "never came, or it is forgotten, "
            "as a session is twice its session timeout after its last message"
        )
    cursor = Cursor.of(state.cursors[place], decode_memory(state.memories[place]))
    lane = state.clock.lanes[cursor.lane]
    told = {name: value for name, value in asdict(cursor).items() if name not in _INTERNAL}
    bounds = cursor.taken.bounds
    return {
        "topic": topic,
        "session_id": session,
        **{name: None if value == INITIAL.get(name) else value for name, value in told.items()},
        "status": Status(cursor.status).name.lower(),
        "expired": bool(cursor.marked),
        "stream_time": None if lane.time == NO_TIME else lane.time,
        "taken": [list(pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)],
        "unfilled": [{"from": hole.start, "to": hole.end - 1, "due": hole.due} for hole in cursor.holes],
        "held": _held(state, session_key(topic, partition, session)),
    }


def readable(found: Any) -> Any:
    """What `session_state` tells, with its times as ISO 8601 texts in UTC; those beyond the year 9999 stay numbers."""
    if isinstance(found, list):
        return [readable(item) for item in found]
    if not isinstance(found, dict):
        return found
    return {name: _iso(value) if name in _TIMES else readable(value) for name, value in found.items()}


def _iso(ms: int | None) -> str | int | None:
    found = None if ms is None else time_of(ms)
    return found if found is None or isinstance(found, FarTime) else time_text(found).replace(" ", "T")


_TIMES = {
    *("first_ts", "last_ts", "last_kafka_ts", "ended_at", "highest_ts", "changed_at", "stream_time"),
    *("due", "ts"),  # of unfilled seqs, of messages held back
}
_INTERNAL = {"lane", "marked", "taken_from", "taken_to", "taken", "snapshots", "holes", "due", "held", "status"}


def _held(state: ShardState, key: str) -> list[dict[str, int]]:
    if state.held is None:
        return []
    mine = pc.equal(session_keys(state.held), key)
    found: list[dict[str, int]] = state.held.filter(mine).select(_HELD).sort_by([("ts", "ascending")]).to_pylist()
    return found
