"""Splits a shard's state by sessions and joins the parts: needed when the number of shards changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa

from sessionlake.integrity.clock import ShardClock
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import build_session_key_of_each_row
from sessionlake.protocol.types import Bools, TopicPartition


def list_session_and_chain_keys(state: ShardState) -> list[str]:
    """Returns the keys of all sessions and chains in a shard's state. Some sessions have only held messages."""
    held = [] if state.held_messages is None else build_session_key_of_each_row(state.held_messages).to_pylist()
    return list(dict.fromkeys([*state.keys.to_pylist(), *held, *state.chains]))


def copy_state_of_sessions(
    state: ShardState, keys: Collection[str], extra_partitions: Collection[TopicPartition] = ()
) -> ShardState:
    """Returns a shard's state with only some of the sessions of another state.

    Args:
        state: The state with all sessions; it is not changed.
        keys: The keys of the sessions and chains to copy.
        extra_partitions: Topic-partitions whose stream times are copied although none of these sessions is in them.
    """
    mine = _mark_selected_session_keys(state.keys, keys)
    held = (
        None
        if state.held_messages is None
        else state.held_messages.filter(
            pa.array(_mark_selected_session_keys(build_session_key_of_each_row(state.held_messages), keys))
        )
    )
    part = ShardState(
        keys=state.keys.filter(pa.array(mine)),
        cursors=state.cursors[mine],
        variable_parts=state.variable_parts[mine],
        clock=ShardClock(list(state.clock.partition_times)),
        held_messages=held if held is not None and held.num_rows else None,
        chains={key: chain for key, chain in state.chains.items() if key in keys},
    )
    part.drop_clock_partitions_without_sessions(extra_partitions)
    return part


def join_shard_states(parts: Iterable[ShardState]) -> ShardState:
    """Returns one state with the sessions of all these states. Each session must be in only one of them.

    All states must be from the end of the same batch: then they have the same stream time of a topic-partition.
    """
    joined = ShardState()
    for part in parts:
        cursors = part.cursors.copy()
        places = np.array(
            [*(joined.clock.add_partition_if_new(lane) for lane in part.clock.partition_times), 0], np.int32
        )
        cursors["lane"] = places[cursors["lane"]]
        joined.chains |= part.chains
        joined.store_cursors(np.full(len(cursors), -1, np.int64), part.keys, cursors, part.variable_parts)
        if part.held_messages is not None:
            held = (
                part.held_messages
                if joined.held_messages is None
                else pa.concat_tables([joined.held_messages, part.held_messages])
            )
            joined.held_messages = held.combine_chunks()
    return joined


def group_session_keys_by_shard(keys: Iterable[str], shard_by_key: Mapping[str, int]) -> dict[int, list[str]]:
    """Returns the session keys of each shard, given the shard of each key."""
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(shard_by_key[key], []).append(key)
    return found


def _mark_selected_session_keys(session_keys: pa.Array, selected_keys: Collection[str]) -> Bools:
    wanted = set(selected_keys)
    return np.array([key in wanted for key in session_keys.to_pylist()], np.bool_)
