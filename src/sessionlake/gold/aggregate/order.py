"""What orders a session's changes of one event time: under `once` their seq, life by life; else their position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.rules import RuleBook
from sessionlake.protocol.arrow import codes, one
from sessionlake.protocol.types import Int64s
from sessionlake.settings.capture import CaptureSettings, Integrity

LIFE = "order:life"
"""Of a change: the first offset of its session's life, under `once`; `NO_LIFE` in other classes."""
TURN = "order:turn"
"""Of a change: its seq under `once`, its position in other classes."""
SEQ = "order:seq"
"""Of a change as silver has it: its seq, null where it had none."""
SESSION_MARK = "order:session"
"""Of a change under `once`: a hash of its session, see `session_marks`."""
NO_LIFE = -1
_HEX_DIGITS = 15
"""Of a session's hash, so many fit into a positive bigint."""


@dataclass(frozen=True)
class OnceTopics:
    """Which topics are judged under `once`."""

    capture: CaptureSettings

    def __call__(self, topic: str) -> bool:
        """Whether this one is."""
        return RuleBook(self.capture).of(topic).integrity is Integrity.ONCE

    def of(self, topics: Sequence[str]) -> list[str]:
        """Those of them that are."""
        return [topic for topic in topics if self(topic)]

    @property
    def may_be_any(self) -> bool:
        """Whether the configuration names the class at all."""
        capture = self.capture
        return Integrity.ONCE in (capture.integrity, *(rule.integrity for rule in capture.by_topic))


def with_turn(changes: pa.Table, once: OnceTopics | None = None) -> pa.Table:
    """Changes with `LIFE` and `TURN`.

    Args:
        changes: `topic`, `position`; and where a topic may be judged under `once`, `LIFE` and `SEQ` as silver has them.
        once: None: no topic is.
    """
    position = one(changes["position"])
    if once is None or SEQ not in changes.column_names:
        life = pa.array(np.full(changes.num_rows, NO_LIFE))
        return _set_column(_set_column(changes, LIFE, life), TURN, position)
    code, topics = codes(changes["topic"])
    is_once = pa.array(np.array([once(topic) for topic in topics.to_pylist()], np.bool_)[code])
    life = pc.if_else(is_once, pc.fill_null(one(changes[LIFE]), 0), NO_LIFE)
    turn = pc.if_else(is_once, pc.coalesce(one(changes[SEQ]), position), position)
    return _set_column(_set_column(changes.drop_columns([SEQ]), LIFE, life), TURN, turn)


def with_order(changes: pa.Table) -> pa.Table:
    """Changes with `LIFE` and `TURN`: where they lack these, no topic is judged under `once`."""
    return changes if TURN in changes.column_names else with_turn(changes)


def with_sessions(changes: pa.Table) -> pa.Table:
    """Changes with `SESSION_MARK`, which is not null under `once` alone."""
    life = one(changes[LIFE])
    is_once = pc.not_equal(life, NO_LIFE)
    marks = session_marks(changes["session_id"]) if pc.any(is_once).as_py() else np.zeros(changes.num_rows, np.int64)
    return _set_column(changes, SESSION_MARK, pc.if_else(is_once, pa.array(marks), None))


def session_marks(sessions: pa.Array | pa.ChunkedArray) -> Int64s:
    """A hash of each session id: it orders points of several sessions alike, in whatever order these came."""
    code, distinct = codes(sessions)
    digests = (sha256(name.encode()).hexdigest()[:_HEX_DIGITS] for name in distinct.to_pylist())
    return np.array([int(digest, 16) for digest in digests], np.int64)[code]


def session_mark_sql(column: str) -> str:
    """SQL of `session_marks` of a column."""
    return f"CAST(conv(substr(sha2({column}, 256), 1, {_HEX_DIGITS}), 16, 10) AS BIGINT)"


def _set_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
