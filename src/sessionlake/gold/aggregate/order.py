"""Orders the changes of a session that have equal event time: under `once` by life and seq, else by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes
from sessionlake.protocol.types import Int64s
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.section import Integrity

LIFE = "order:life"
"""Column of a change: under `once` the first offset of its session's life, `NO_LIFE` in other classes."""
TURN = "order:turn"
"""Column of a change: a number that orders changes of equal event time. Under `once` it is the seq, else the position.
"""
SEQ = "order:seq"
"""Column of a change: its seq as silver stores it, null if the message had none."""
SESSION_MARK = "order:session"
"""Column of a change: under `once` a hash of its session id, from `hash_session_ids`. Null in other classes."""
NO_LIFE = -1
_HEX_DIGITS = 15
"""Number of hexadecimal digits of a hash that fit into a positive bigint."""


@dataclass(frozen=True)
class OnceTopics:
    """Decides which topics have the integrity class `once`. An instance is called with the name of a topic."""

    capture: CaptureSettings

    def __call__(self, topic: str) -> bool:
        """Returns True if the topic has the class `once`."""
        return JudgingRuleLookup(self.capture).find_judging_rules(topic).integrity is Integrity.ONCE

    def select_once_topics(self, topics: Sequence[str]) -> list[str]:
        """Returns those of the topics that have the class `once`."""
        return [topic for topic in topics if self(topic)]

    @property
    def is_once_configured(self) -> bool:
        """True if the configuration uses the class `once` for any topic."""
        capture = self.capture
        return Integrity.ONCE in (capture.integrity, *(rule.integrity for rule in capture.by_topic))


def add_change_order_columns(changes: pa.Table, once_topics: OnceTopics | None = None) -> pa.Table:
    """Adds the columns `order:life` and `order:turn`, which order changes of equal event time in a session.

    For topics with the class `once` they are silver's life and seq. For other topics they are -1 and the position.
    The column `order:seq` is dropped.

    Args:
        changes: Changes with `topic` and `position`. If a topic may have the class `once`, also with `order:life` and
            `order:seq`, as silver stores them.
        once_topics: Decides which topics have the class `once`. None if no topic has it.
    """
    position = convert_to_contiguous_array(changes["position"])
    if once_topics is None or SEQ not in changes.column_names:
        life = pa.array(np.full(changes.num_rows, NO_LIFE))
        return _add_or_replace_table_column(_add_or_replace_table_column(changes, LIFE, life), TURN, position)
    code, topics = encode_values_as_codes(changes["topic"])
    is_once = pa.array(np.array([once_topics(topic) for topic in topics.to_pylist()], np.bool_)[code])
    life = pc.if_else(is_once, pc.fill_null(convert_to_contiguous_array(changes[LIFE]), 0), NO_LIFE)
    turn = pc.if_else(is_once, pc.coalesce(convert_to_contiguous_array(changes[SEQ]), position), position)
    return _add_or_replace_table_column(
        _add_or_replace_table_column(changes.drop_columns([SEQ]), LIFE, life), TURN, turn
    )


def add_missing_change_order_columns(changes: pa.Table) -> pa.Table:
    """Adds `order:life` (-1) and `order:turn` (the position) to changes that lack these columns."""
    return changes if TURN in changes.column_names else add_change_order_columns(changes)


def add_session_hashes(changes: pa.Table) -> pa.Table:
    """Adds the column `order:session`: a hash of the session id, null for topics without the class `once`."""
    life = convert_to_contiguous_array(changes[LIFE])
    is_once = pc.not_equal(life, NO_LIFE)
    marks = hash_session_ids(changes["session_id"]) if pc.any(is_once).as_py() else np.zeros(changes.num_rows, np.int64)
    return _add_or_replace_table_column(changes, SESSION_MARK, pc.if_else(is_once, pa.array(marks), None))


def hash_session_ids(session_ids: pa.Array | pa.ChunkedArray) -> Int64s:
    """Returns a hash of each session id, as an integer from 0 to 2^60 - 1.

    The hash orders points of different sessions in the same way, whatever order they arrived in.
    """
    code, distinct = encode_values_as_codes(session_ids)
    digests = (sha256(name.encode()).hexdigest()[:_HEX_DIGITS] for name in distinct.to_pylist())
    return np.array([int(digest, 16) for digest in digests], np.int64)[code]


def build_session_hash_sql(column: str) -> str:
    """Returns the Spark SQL expression of a session id's hash, equal to the result of `hash_session_ids`.

    Args:
        column: Name of the column with the session id.
    """
    return f"CAST(conv(substr(sha2({column}, 256), 1, {_HEX_DIGITS}), 16, 10) AS BIGINT)"


def _add_or_replace_table_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
