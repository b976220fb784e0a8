"""Moves gold's states to another number of shards: splits each state by owner, and merges the parts.

An owner is a session, or a row across sessions. All series of an owner are in one shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sessionlake.gold.fold.pack import SEPARATOR
from sessionlake.gold.fold.shard import TrackedAverageTable
from sessionlake.gold.fold.state import ForgottenSeriesOwners, GoldShardState, decode_states, encode_states
from sessionlake.protocol.types import Int64s


@dataclass(frozen=True)
class NewShardsByOwnerHash:
    """The new shard of each owner, by hash of the owner's name.

    An owner is a session, or a row across sessions. Of a forgotten owner a state has only this hash.

    Attributes:
        hashes: Hashes of the owners' names, sorted. A hash that two owners share is there twice.
        shards: The new shard of the owner at the same index.
    """

    hashes: npt.NDArray[np.uint64]
    shards: Int64s

    @staticmethod
    def from_table(table: pa.Table) -> NewShardsByOwnerHash:
        """Reads the hashes and shards from a table with the columns `shard int, mark uint64`; `mark` is the hash."""
        mark = table["mark"].to_numpy().astype(np.uint64)
        order = np.argsort(mark, kind="stable")
        return NewShardsByOwnerHash(mark[order], table["shard"].to_numpy().astype(np.int64)[order])

    def split_by_shard(
        self, forgotten: ForgottenSeriesOwners, new_shard_count: int
    ) -> dict[int, ForgottenSeriesOwners]:
        """Splits forgotten owners by their new shard. An owner whose new shard is unknown is added to every shard.

        The addition is harmless, since a shard looks up only owners that belong to it.

        Args:
            forgotten: The forgotten owners of a former shard.
            new_shard_count: The new number of shards.
        """
        first, behind = (np.searchsorted(self.hashes, forgotten.mark, side) for side in ("left", "right"))
        count = behind - first
        index = np.repeat(np.arange(len(count)), count)
        place = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        of_shard, nowhere = self.shards[place], forgotten.select_owners(count == 0)
        targets = range(new_shard_count) if len(nowhere.mark) else np.unique(of_shard).tolist()
        return {
            one: ForgottenSeriesOwners.merge_owners(forgotten.select_owners(index[of_shard == one]), nowhere)
            for one in targets
        }


@dataclass(frozen=True)
class GoldResharder:
    """Splits and merges gold's states, to move them to another number of shards.

    Attributes:
        metrics: Names of the declared columns of numbers.
        tracked: The tables of averages, with the initial states of the former shards.
        marked: For each table of averages, by name, the new shards of its owners.
        shards: The new number of shards.
    """

    metrics: tuple[str, ...]
    tracked: tuple[TrackedAverageTable, ...]
    marked: Mapping[str, NewShardsByOwnerHash]
    shards: int

    def list_sessions(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """Returns the owners in a shard's state, as pairs of topic and session id, or of topic and row id.

        The second item is None if the owner is a whole topic.

        Args:
            shard: The former shard.
            state: The stored state; None for the initial state.
        """
        found = []
        for tracked, (_, one) in zip(self.tracked, self._decode_table_states(shard, state), strict=True):
            for name in one.owners.name.to_pylist():
                topic, *rest = name.split(SEPARATOR, 2 if tracked.series.is_per_session else 1)
                found.append((topic, rest[0].encode() if rest else None))
        return found

    def split_state(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """Splits a shard's state, and returns one part for each new shard.

        Args:
            shard: The former shard.
            state: The stored state; None for the initial state.
            targets: The new shard of each owner, in the order in which `list_sessions` returns the owners.
        """
        every, done = np.array(targets, np.int64), 0
        found: dict[int, dict[str, bytes]] = {}
        for name, one in self._decode_table_states(shard, state):
            own = every[done : done + len(one.owners.name)]
            done += len(own)
            forgotten = self.marked[name].split_by_shard(one.forgotten, self.shards)
            for target in {*own.tolist(), *forgotten}:
                part = one.select_owners(own == target, forgotten.get(target, ForgottenSeriesOwners.merge_owners()))
                found.setdefault(target, {})[name] = part.encode_state()
        return {target: encode_states(states) for target, states in found.items()}

    def join_states(self, parts: Sequence[bytes]) -> bytes:
        """Merges parts of former states into the state of one new shard.

        The result has a state for every table of averages, so that gold creates no initial state for the shard.

        Args:
            parts: The parts for this shard that `split_state` returned.
        """
        decoded = [decode_states(part) for part in parts]
        states = {}
        for tracked in self.tracked:
            parts_of_table = [
                GoldShardState.decode_state(part[name]) for part in decoded if (name := tracked.series.name) in part
            ]
            states[tracked.series.name] = (
                GoldShardState.create_empty(tracked.rebuild_id, self.metrics)
                .merge_states(*parts_of_table)
                .encode_state()
            )
        return encode_states(states)

    def _decode_table_states(self, shard: int, state: bytes | None) -> list[tuple[str, GoldShardState]]:
        """Returns the state of each table of averages in a shard, as pairs of table name and state.

        A table whose stored state is missing, or is older than the table's last rebuild, gets its initial state.
        """
        stored, found = decode_states(state), []
        for tracked in self.tracked:
            own = stored.get(tracked.series.name)
            before = None if own is None else GoldShardState.decode_state(own)
            if before is None or before.rebuild_id != tracked.rebuild_id:
                before = tracked.create_initial_state(shard, self.metrics)
            found.append((tracked.series.name, before.renumber_series_for_metrics(self.metrics)))
        return found
