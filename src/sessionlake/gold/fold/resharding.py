"""Gold's states of a shard taken apart by what is forgotten as a whole, and put together for other shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sessionlake.gold.fold.pack import SEPARATOR
from sessionlake.gold.fold.shard import TrackedAverages
from sessionlake.gold.fold.state import Forgotten, GoldShardState, decode_states, encode_states
from sessionlake.protocol.types import Int64s


@dataclass(frozen=True)
class MarkedShards:
    """The new shards of owners of which states have only hashes left; see `Forgotten`.

    Attributes:
        mark: hashes of owners' names, rising; one that two have is there twice.
        shard: of each.
    """

    mark: npt.NDArray[np.uint64]
    shard: Int64s

    @staticmethod
    def of(found: pa.Table) -> MarkedShards:
        """As rows `shard int, mark uint64`, in any order."""
        mark = found["mark"].to_numpy().astype(np.uint64)
        order = np.argsort(mark, kind="stable")
        return MarkedShards(mark[order], found["shard"].to_numpy().astype(np.int64)[order])

    def spread(self, forgotten: Forgotten, shards: int) -> dict[int, Forgotten]:
        """What is forgotten, by new shard. Of whom nobody knows where he is, every shard has what was known of him.

        That does no harm: no shard looks for anyone but its own.
        """
        first, behind = (np.searchsorted(self.mark, forgotten.mark, side) for side in ("left", "right"))
        count = behind - first
        index = np.repeat(np.arange(len(count)), count)
        place = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        of_shard, nowhere = self.shard[place], forgotten.take(count == 0)
        targets = range(shards) if len(nowhere.mark) else np.unique(of_shard).tolist()
        return {one: Forgotten.union(forgotten.take(index[of_shard == one]), nowhere) for one in targets}


@dataclass(frozen=True)
class GoldResharder:
    """How gold's states come into other shards; see `streaming.resharded.Resharder`.

    Attributes:
        metrics: those that are declared.
        kept: the tables of averages, with what their states begin with in the shards there were.
        marked: of each of these, by its name, where owners will be.
        shards: how many there will be.
    """

    metrics: tuple[str, ...]
    kept: tuple[TrackedAverages, ...]
    marked: Mapping[str, MarkedShards]
    shards: int

    def names(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """The owners: a topic and a session's id, or a row, or nothing else."""
        found = []
        for kept, (_, one) in zip(self.kept, self._states(shard, state), strict=True):
            for name in one.owners.name.to_pylist():
                topic, *rest = name.split(SEPARATOR, 2 if kept.series.of_session else 1)
                found.append((topic, rest[0].encode() if rest else None))
        return found

    def split(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """The state's parts by new shard, given the new shard of each of `names`."""
        every, done = np.array(targets, np.int64), 0
        found: dict[int, dict[str, bytes]] = {}
        for name, one in self._states(shard, state):
            own = every[done : done + len(one.owners.name)]
            done += len(own)
            forgotten = self.marked[name].spread(one.forgotten, self.shards)
            for target in {*own.tolist(), *forgotten}:
                part = one.only(own == target, forgotten.get(target, Forgotten.union()))
                found.setdefault(target, {})[name] = part.encode()
        return {target: encode_states(states) for target, states in found.items()}

    def join(self, parts: Sequence[bytes]) -> bytes:
        """Merges all parts of a shard into one state.

        Every table of averages has a state in it, so that none starts from `TrackedAverages.begin`.
        """
        decoded = [decode_states(part) for part in parts]
        states = {}
        for kept in self.kept:
            parts_of_table = [
                GoldShardState.decode(part[name]) for part in decoded if (name := kept.series.name) in part
            ]
            states[kept.series.name] = (
                GoldShardState.empty(kept.made, self.metrics).with_others(*parts_of_table).encode()
            )
        return encode_states(states)

    def _states(self, shard: int, state: bytes | None) -> list[tuple[str, GoldShardState]]:
        """By table of averages; where a shard has none of the table's present making, what it would begin with."""
        stored, found = decode_states(state), []
        for kept in self.kept:
            own = stored.get(kept.series.name)
            before = None if own is None else GoldShardState.decode(own)
            if before is None or before.made != kept.made:
                before = kept.begin(shard, self.metrics)
            found.append((kept.series.name, before.for_metrics(self.metrics)))
        return found
