"""Compares two states of a shard: is there a difference that could change how a later message is judged?

Equal tables do not prove equal states: a wrong state shows only when the next message is judged. Two correct states can
differ in a few values that depend on how the messages were split into batches. These values are not compared; each
is listed in this module with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.chains import ChainCursor
from sessionlake.integrity.clock import PartitionStreamTime
from sessionlake.integrity.cursor import (
    CURSOR_FIELDS,
    INITIAL_VALUES,
    NO_POSITION,
    CursorVariablePart,
    SessionCursors,
    decode_variable_part,
)
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import split_session_key
from sessionlake.protocol.types import Int64s, TopicPartition

# Positions count only if they belong to the session's current life. Positions of an earlier life remain in a session
# that returned within a batch, but not in one that was forgotten between two batches. Positions of the current life are
# never lower than the offset of its first message. A session is forgotten only when the offsets are past its positions.
_OF_PRESENT_LIFE = ("position", "cut_position")
# `clock` is the highest timestamp among the messages packed together, so it depends on the batches. It is used only
# when the message arrives, never for a message that is already held back. So is `part`, which becomes lower if an
# earlier part of the message is erased with its session.
_NOT_COMPARED_OF_HELD = ("clock", "part")
_COORDINATES = ("topic", "partition", "offset")
# Number of held messages compared at once in Arrow; only where they differ are they compared in Python.
_LOOKED_AT = 1_000
_NOTHING = "nothing"
_PRESENT = "present"


@dataclass(frozen=True)
class ShardStateDifference:
    """One difference between a shard's stored state and the state rebuilt from the messages.

    Attributes:
        topic: The topic of the session or topic-partition that differs.
        partition: The session's partition; None if a stream time or a chain differs, which `field` then names.
        session_id: The session's id; None if a stream time or a chain differs.
        field: The name of the differing field, or a text that describes the differing part of the state.
        found: The stored value, as text.
        rebuilt: The rebuilt value, as text.
    """

    topic: str
    partition: int | None
    session_id: str | None
    field: str
    found: str
    rebuilt: str

    def __str__(self) -> str:
        session = "" if self.session_id is None else f", partition {self.partition}, session {self.session_id!r}"
        return f"topic {self.topic}{session}, {self.field}: found {self.found}, rebuilt {self.rebuilt}"


def find_first_state_difference(stored: ShardState, rebuilt: ShardState) -> ShardStateDifference | None:
    """Returns the first difference between two states of one shard; None if they are equal."""
    for compared in (
        _compare_sessions,
        _compare_clocks,
        _compare_cursors,
        _compare_variable_parts_of_cursors,
        _compare_held_messages,
        _compare_chains,
    ):
        for difference in compared(stored, rebuilt):
            return difference
    return None


def _compare_chains(stored: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    for key in sorted({*stored.chains, *rebuilt.chains}):
        topic, partition, name = split_session_key(key)
        one, other = stored.chains.get(key), rebuilt.chains.get(key)
        what = f"chain {name!r} of partition {partition}"
        if one is None or other is None:
            yield _create_difference_for_missing_part(topic, None, None, what, is_stored=one is not None)
        elif one != other:
            yield ShardStateDifference(
                topic, None, None, what, _describe_chain_cursor(one), _describe_chain_cursor(other)
            )


def _describe_chain_cursor(chain: ChainCursor) -> str:
    sessions = ", ".join(split_session_key(key)[2] for key in sorted(chain.sessions))
    return f"seq {chain.last_seq} at offset {chain.offset} with sessions {sessions or _NOTHING}"


def _compare_clocks(stored: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    """Yields the differences in stream times and last offsets of topic-partitions."""
    sides = [
        {(lane.topic, lane.partition): lane for lane in state.clock.partition_times} for state in (stored, rebuilt)
    ]
    needed = _list_partitions_with_sessions(stored) | _list_partitions_with_sessions(rebuilt)
    for topic, partition in sorted({*sides[0], *sides[1]}):
        one, other = (side.get((topic, partition)) for side in sides)
        if one is None or other is None:
            if (topic, partition) in needed:
                yield _create_difference_for_missing_part(
                    topic, None, None, f"clock of partition {partition}", is_stored=one is not None
                )
            continue
        for name in PartitionStreamTime.__struct_fields__:
            if getattr(one, name) != getattr(other, name):
                values = (repr(getattr(one, name)), repr(getattr(other, name)))
                yield ShardStateDifference(topic, None, None, f"clock of partition {partition}, {name}", *values)


def _list_partitions_with_sessions(state: ShardState) -> set[TopicPartition]:
    """Returns the topic-partitions of a state that have sessions.

    Older versions also stored topic-partitions without.
    """
    lanes = state.clock.partition_times
    return {(lanes[n].topic, lanes[n].partition) for n in set(state.cursors["lane"].tolist()) if n < len(lanes)}


def _compare_sessions(stored: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    missing_keys = rebuilt.keys.filter(pc.invert(pc.is_in(rebuilt.keys, value_set=stored.keys)))
    extra = stored.keys.filter(pc.invert(pc.is_in(stored.keys, value_set=rebuilt.keys)))
    apart = [(key, False) for key in missing_keys.to_pylist()] + [(key, True) for key in extra.to_pylist()]
    for key, is_stored in sorted(apart):
        yield _create_difference_for_missing_part(*split_session_key(key), "session", is_stored=is_stored)


def _compare_cursors(stored: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    order, other_order = _sort_cursors_by_key(stored), _sort_cursors_by_key(rebuilt)
    one, other = (
        _reset_positions_of_earlier_lives(stored.cursors[order]),
        _reset_positions_of_earlier_lives(rebuilt.cursors[other_order]),
    )
    other["lane"] = _find_clock_indices_in_other_state(rebuilt, stored)[other["lane"]]
    differs = np.stack([one[name] != other[name] for name in CURSOR_FIELDS], axis=1)
    for row, column in np.argwhere(differs).tolist():
        name = CURSOR_FIELDS[column]
        values = (_format_cursor_value(stored, name, int(side[name][row])) for side in (one, other))
        yield ShardStateDifference(*split_session_key(stored.keys[order[row]].as_py()), name, *values)


def _compare_variable_parts_of_cursors(stored_state: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    order, other_order = _sort_cursors_by_key(stored_state), _sort_cursors_by_key(rebuilt)
    for place, other_place in zip(order.tolist(), other_order.tolist(), strict=True):
        stored, other_stored = stored_state.variable_parts[place], rebuilt.variable_parts[other_place]
        if stored == other_stored:
            continue
        one, other = (decode_variable_part(memory) or CursorVariablePart() for memory in (stored, other_stored))
        for name in CursorVariablePart.__struct_fields__:
            if getattr(one, name) != getattr(other, name):
                values = (repr(getattr(one, name)), repr(getattr(other, name)))
                yield ShardStateDifference(*split_session_key(stored_state.keys[place].as_py()), name, *values)


def _compare_held_messages(stored: ShardState, rebuilt: ShardState) -> Iterator[ShardStateDifference]:
    """Yields the differences in held messages.

    They are sorted first, because their stored order depends on the batches.
    """
    sides = [_sort_held_messages(state.held_messages) for state in (stored, rebuilt)]
    longest = max((side.num_rows for side in sides if side is not None), default=0)
    for start in range(0, longest, _LOOKED_AT):
        one, other = (None if side is None else side.slice(start, _LOOKED_AT) for side in sides)
        if one is not None and other is not None and one.equals(other):
            continue
        yield from _compare_held_rows(_convert_held_messages_to_dicts(one), _convert_held_messages_to_dicts(other))


def _compare_held_rows(stored: list[dict[str, Any]], rebuilt: list[dict[str, Any]]) -> Iterator[ShardStateDifference]:
    """Yields the differences between two sorted lists of messages, up to the first message that only one list has.

    After that message, the rows of the two lists no longer correspond.
    """
    for number in range(max(len(stored), len(rebuilt))):
        sides = [rows[number] if number < len(rows) else None for rows in (stored, rebuilt)]
        ahead = min((row for row in sides if row is not None), key=_get_held_message_sort_key)
        where = f"held message at offset {ahead['offset']}"
        session = (str(ahead["topic"]), int(str(ahead["partition"])), str(ahead["session_id"]))
        if any(row is None or _get_held_message_sort_key(row) != _get_held_message_sort_key(ahead) for row in sides):
            yield _create_difference_for_missing_part(*session, where, is_stored=sides[0] is ahead)
            return
        one, other = (row or {} for row in sides)
        for name in one:
            if repr(one[name]) != repr(other[name]):  # two NaN are the same
                yield ShardStateDifference(*session, f"{where}, {name}", repr(one[name]), repr(other[name]))


def _create_difference_for_missing_part(
    topic: str, partition: int | None, session: str | None, what: str, *, is_stored: bool
) -> ShardStateDifference:
    """Returns the difference that only one of the two states has something.

    Args:
        what: The name of what is missing in the other state.
        is_stored: True if the stored state has it, False if the rebuilt one has it.
    """
    return ShardStateDifference(
        topic, partition, session, what, *((_PRESENT, _NOTHING) if is_stored else (_NOTHING, _PRESENT))
    )


def _sort_cursors_by_key(state: ShardState) -> Int64s:
    """Returns the indices of a state's cursors in the order of their session keys."""
    order: Int64s = pc.array_sort_indices(state.keys).to_numpy().astype(np.int64)
    return order


def _reset_positions_of_earlier_lives(cursors: SessionCursors) -> SessionCursors:
    """Replaces positions from an earlier life of a session by `NO_POSITION`, in place. Returns the same cursors."""
    for name in _OF_PRESENT_LIFE:
        cursors[name][cursors[name] < cursors["first_offset"]] = NO_POSITION
    return cursors


def _find_clock_indices_in_other_state(state: ShardState, other_state: ShardState) -> Int64s:
    """Returns, for each topic-partition in a state's clock, its index in another state's clock; -1 if absent."""
    number = {(lane.topic, lane.partition): number for number, lane in enumerate(other_state.clock.partition_times)}
    return np.array([number.get((lane.topic, lane.partition), -1) for lane in state.clock.partition_times], np.int64)


def _format_cursor_value(state: ShardState, field_name: str, value: int) -> str:
    if field_name == "lane" and 0 <= value < len(state.clock.partition_times):
        return f"{state.clock.partition_times[value].topic}/{state.clock.partition_times[value].partition}"
    return _NOTHING if value == INITIAL_VALUES.get(field_name) else str(value)


def _sort_held_messages(held_messages: pa.Table | None) -> pa.Table | None:
    if held_messages is None:
        return None
    rows = held_messages.drop_columns(list(_NOT_COMPARED_OF_HELD))
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in (*_COORDINATES, "session_id")]))


def _convert_held_messages_to_dicts(held_messages: pa.Table | None) -> list[dict[str, Any]]:
    return [] if held_messages is None else held_messages.to_pylist()


def _get_held_message_sort_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _COORDINATES)
