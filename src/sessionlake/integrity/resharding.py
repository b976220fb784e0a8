"""A shard's state taken apart by sessions, and put together of such parts: what another number of shards needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa

from sessionlake.integrity.clock import Clock
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import session_keys
from sessionlake.protocol.types import Bools, TopicPartition


def keys_of(state: ShardState) -> list[str]:
    """The keys of the sessions that it remembers anything of, each once."""
    held = [] if state.held is None else session_keys(state.held).to_pylist()
    return list(dict.fromkeys([*state.keys.to_pylist(), *held]))


def part_of(state: ShardState, keys: Collection[str], also: Collection[TopicPartition] = ()) -> ShardState:
    """The state of these sessions alone.

    Args:
        also: topic-partitions whose stream times go with it though none of the sessions is in them.
    """
    mine = _among(state.keys, keys)
    held = None if state.held is None else state.held.filter(pa.array(_among(session_keys(state.held), keys)))
    part = ShardState(
        keys=state.keys.filter(pa.array(mine)),
        cursors=state.cursors[mine],
        memories=state.memories[mine],
        clock=Clock(list(state.clock.lanes)),
        held=held if held is not None and held.num_rows else None,
    )
    part.keep_lanes(also)
    return part


def joined(parts: Iterable[ShardState]) -> ShardState:
    """The state of all of their sessions, of which each is in one part alone.

    After the same batch a topic-partition's stream time is the same in every part.
    """
    whole = ShardState()
    for part in parts:
        cursors = part.cursors.copy()
        places = np.array([*(whole.clock.add(lane) for lane in part.clock.lanes), 0], np.int32)
        cursors["lane"] = places[cursors["lane"]]
        whole.update(np.full(len(cursors), -1, np.int64), part.keys, cursors, part.memories)
        if part.held is not None:
            held = part.held if whole.held is None else pa.concat_tables([whole.held, part.held])
            whole.held = held.combine_chunks()
    return whole


def grouped(keys: Iterable[str], targets: Mapping[str, int]) -> dict[int, list[str]]:
    """The keys of each shard, given the shard of each key."""
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(targets[key], []).append(key)
    return found


def _among(found: pa.Array, keys: Collection[str]) -> Bools:
    wanted = set(keys)
    return np.array([key in wanted for key in found.to_pylist()], np.bool_)
