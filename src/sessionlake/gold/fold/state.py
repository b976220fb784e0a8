"""The state that the gold fold keeps of a shard between batches, and its encoding.

A shard has one state per table of averages, in the format `sessionlake.gold.state/4`. That is a MessagePack map with
the metrics and the rebuild's id, and one Arrow IPC stream for each group of columns. The states of all tables together
are stored as `sessionlake.gold.states/1`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sessionlake.errors import LakeError
from sessionlake.gold.fold.points import COLUMNS, OlderPoints, PointSeqOrder, PointSet
from sessionlake.gold.fold.state_columns import (
    create_table_of_narrow_integers,
    decode_state_columns,
    decode_state_fields,
    require_state_format,
)
from sessionlake.gold.fold.unscaled_decimals import UnscaledDecimals
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.types import Bools, Int64s

FORMAT = "sessionlake.gold.state/4"
STATES_FORMAT = "sessionlake.gold.states/1"
_NEVER = np.iinfo(np.int64).min
MOST_ROWS = 1_000_000
"""The most rows that a shard keeps tails of, for one table of averages: about half a gigabyte during the fold.

Beyond that, the owners that have been idle longest are forgotten. The averages of their next points are computed from
the table.
"""
MOST_POINTS = 8_000_000
"""The most points that a shard keeps in tails, of 48 bytes each. Beyond that, the longest idle owners are forgotten."""


@dataclass(frozen=True)
class SeriesOwners:
    """The owners whose points a shard's state has, as columns. An owner is a session, or a row across sessions.

    When an owner is forgotten, the state drops all of its series at once.

    Attributes:
        name: The values of the owner's key columns, joined by a zero byte.
        partition: Partition whose Kafka time decides how long the owner has been idle. -1 for a row across sessions,
            where the topic's Kafka time decides.
        seen: Kafka timestamp of the owner's latest change, in ms.
        newest: Latest event time of the owner's points, in ms.
        back: True if the owner was forgotten and has returned.
        floor: For a returned owner, the latest event time of the points that were forgotten, in ms.
    """

    name: pa.Array
    partition: Int64s
    seen: Int64s
    newest: Int64s
    back: Bools
    floor: Int64s

    def select_owners(self, index: Bools) -> SeriesOwners:
        """Returns the owners for which `index` is True."""
        columns = (getattr(self, f.name)[index] for f in fields(self) if f.name != "name")
        return SeriesOwners(self.name.filter(pa.array(index)), *columns)

    @staticmethod
    def concat_owners(*parts: SeriesOwners) -> SeriesOwners:
        """Concatenates several sets of owners, in this order."""
        columns = (
            np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(SeriesOwners) if f.name != "name"
        )
        return SeriesOwners(pa.concat_arrays([p.name for p in parts]), *columns)


@dataclass(frozen=True)
class ForgottenSeriesOwners:
    """Idle owners whose points were dropped from a state. The state keeps a hash and a time for each, 8 bytes each.

    If two owners have the same hash, a new owner may be mistaken for a forgotten one. That is harmless: its averages
    are computed from the table until the state has enough of its points.

    Attributes:
        mark: Hashes of the owners' names, sorted.
        newest: Latest event time of each owner's points, in ms.
    """

    mark: npt.NDArray[np.uint64]
    newest: Int64s

    def find_forgotten_owners(self, owner_names: list[str]) -> tuple[Bools, Int64s]:
        """Looks up owners by name.

        Returns:
            For each owner, True if it was forgotten, and the latest event time of its points in ms; 0 if it was not.
        """
        if not len(self.mark) or not owner_names:
            return np.zeros(len(owner_names), np.bool_), np.zeros(len(owner_names), np.int64)
        marks = hash_owner_names(owner_names)
        place = np.minimum(np.searchsorted(self.mark, marks), len(self.mark) - 1)
        found = self.mark[place] == marks
        return found, np.where(found, self.newest[place], 0)

    def add_owners(self, names: list[str], newest: Int64s) -> ForgottenSeriesOwners:
        """Returns a copy with further owners. An owner that was already forgotten keeps the later time.

        Args:
            names: Names of the owners.
            newest: Latest event time of each owner's points, in ms.
        """
        return ForgottenSeriesOwners.merge_owners(self, ForgottenSeriesOwners(hash_owner_names(names), newest))

    def select_owners(self, index: Int64s | Bools) -> ForgottenSeriesOwners:
        """Returns the forgotten owners at these indices, or where `index` is True."""
        return ForgottenSeriesOwners(self.mark[index], self.newest[index])

    @staticmethod
    def merge_owners(*parts: ForgottenSeriesOwners) -> ForgottenSeriesOwners:
        """Merges several sets of forgotten owners. An owner in more than one set gets its latest time."""
        none = ForgottenSeriesOwners(np.empty(0, np.uint64), np.empty(0, np.int64))
        mark, time = (
            np.concatenate([getattr(p, f.name) for p in (none, *parts)]) for f in fields(ForgottenSeriesOwners)
        )
        order = np.lexsort((time, mark))
        mark, time = mark[order], time[order]
        last = np.ones(len(mark), np.bool_)
        last[:-1] = mark[1:] != mark[:-1]
        return ForgottenSeriesOwners(mark[last], time[last])


@dataclass(frozen=True)
class GoldShardState:
    """A shard's state for one table of averages.

    A row stands for all series that differ only in the metric. The code of a series is: index of its row * number of
    metrics + index of its metric.

    Attributes:
        rebuild_id: Id of the table's last rebuild when the state was written; empty if it was never rebuilt.
        metrics: The declared columns of numbers when the state was written.
        owners: The owners that have points in the state.
        rows: For each row, the values of its series' keys without the metric, joined by a zero byte.
        owner: For each row, the index of its owner.
        older: For each series, what is known about the points that are older than its tail.
        tail: The newest points of each series. All series are in one set, in any order.
        forgotten: The owners whose points were dropped.
    """

    rebuild_id: str
    metrics: tuple[str, ...]
    owners: SeriesOwners
    rows: pa.Array
    owner: Int64s
    older: OlderPoints
    tail: PointSet
    forgotten: ForgottenSeriesOwners

    @staticmethod
    def create_empty(rebuild_id: str, metrics: tuple[str, ...]) -> GoldShardState:
        """Returns a state without owners and points."""
        none, names = np.empty(0, np.int64), pa.array([], pa.string())
        owners = SeriesOwners(names, none, none, none, np.empty(0, np.bool_), none)
        forgotten = ForgottenSeriesOwners(np.empty(0, np.uint64), none)
        return GoldShardState(
            rebuild_id,
            metrics,
            owners,
            names,
            none,
            OlderPoints.create_without_older_points(0),
            PointSet.create_empty(),
            forgotten,
        )

    def renumber_series_for_metrics(self, metrics: tuple[str, ...]) -> GoldShardState:
        """Returns the state for other declared columns: each series gets the index of its column in `metrics`.

        Raises:
            LakeError: A metric that has points is no longer declared.
        """
        if metrics == self.metrics:
            return self
        held = np.zeros(len(self.older), np.bool_)
        held[self.tail.key] = True
        used = (held | self.older.some).reshape(-1, max(len(self.metrics), 1)).any(axis=0)
        missing = [name for name, has in zip(self.metrics, used, strict=False) if has and name not in metrics]
        if missing:
            raise LakeError(
                f"gold's state has points of {', '.join(missing)}, which capture.columns no longer declares as numbers",
                fix="Declare the columns as before. Or run `sessionlake rebuild silver`, which also rebuilds gold",
            )
        place = np.array([metrics.index(name) if name in metrics else -1 for name in self.metrics], np.int64)
        row, metric = np.divmod(np.arange(len(self.older)), max(len(self.metrics), 1))
        rekeyed = row * len(metrics) + place[metric] if len(self.older) else row
        back, floor = self.owners.back[self.owner], self.owners.floor[self.owner]
        older = OlderPoints.create_with_forgotten_points(np.repeat(back, len(metrics)), np.repeat(floor, len(metrics)))
        tail = self.tail.with_series_codes(rekeyed[self.tail.key])
        return replace(self, metrics=metrics, older=older.replace_series(rekeyed, self.older), tail=tail)

    def forget_idle_owners(self, idle_ms: int, get_topic: Any) -> GoldShardState:
        """Returns the state without owners that have had no change for more than `idle_ms`. They become forgotten.

        The time is the Kafka time of the owner's topic-partition, in ms.

        Args:
            idle_ms: The longest time without a change.
            get_topic: Function that returns the topic of an owner, given its name.
        """
        seen = self.owners.seen
        if not len(seen) or int(seen.max()) - int(seen.min()) <= idle_ms:
            return self
        names = self.owners.name.to_pylist()
        streams = [(get_topic(name), p) for name, p in zip(names, self.owners.partition.tolist(), strict=True)]
        now: dict[tuple[str, int], int] = {}
        for stream, at in zip(streams, seen.tolist(), strict=True):
            now[stream] = max(now.get(stream, at), at)
        kept = np.array([now[s] - at <= idle_ms for s, at in zip(streams, seen.tolist(), strict=True)])
        return self._forget_other_owners(kept)

    def forget_owners_beyond_limits(self) -> GoldShardState:
        """Returns the state without its longest idle owners, if it has more than 1 million rows or 8 million points."""
        owners = len(self.owners.name)
        if len(self.rows) <= MOST_ROWS and len(self.tail) <= MOST_POINTS:
            return self
        rows = np.bincount(self.owner, minlength=owners)
        points = np.bincount(self.owner[self.tail.key // max(len(self.metrics), 1)], minlength=owners)
        order = np.argsort(-self.owners.seen, kind="stable")
        kept = np.zeros(owners, np.bool_)
        kept[order] = (np.cumsum(rows[order]) <= MOST_ROWS) & (np.cumsum(points[order]) <= MOST_POINTS)
        return self._forget_other_owners(kept)

    def _forget_other_owners(self, is_kept: Bools) -> GoldShardState:
        """Returns the state with the owners for which `is_kept` is True. All others become forgotten owners."""
        if is_kept.all():
            return self
        gone = self.owners.name.filter(pa.array(~is_kept)).to_pylist()
        return self.select_owners(is_kept, self.forgotten.add_owners(gone, self.owners.newest[~is_kept]))

    def select_owners(self, is_kept: Bools, forgotten: ForgottenSeriesOwners) -> GoldShardState:
        """Returns the state with only some of its owners.

        Args:
            is_kept: True for each owner to keep.
            forgotten: The forgotten owners of the new state.
        """
        rows = is_kept[self.owner]
        keys = np.repeat(rows, len(self.metrics))
        points = keys[self.tail.key]
        tail = self.tail.select_points(points)
        return replace(
            self,
            owners=self.owners.select_owners(is_kept),
            rows=self.rows.filter(pa.array(rows)),
            owner=(np.cumsum(is_kept) - 1)[self.owner[rows]],
            older=self.older.select_series(keys),
            tail=tail.with_series_codes((np.cumsum(keys) - 1)[tail.key]),
            forgotten=forgotten,
        )

    def merge_states(self, *others: GoldShardState) -> GoldShardState:
        """Merges this state with others that have the same metrics. Each owner must be in only one of the states."""
        every = (self, *others)
        rows = np.cumsum([0, *(len(one.rows) for one in every)])
        owners = np.cumsum([0, *(len(one.owners.name) for one in every)])
        keys = (one.tail.key + first * len(self.metrics) for one, first in zip(every, rows.tolist(), strict=False))
        return replace(
            self,
            owners=SeriesOwners.concat_owners(*(one.owners for one in every)),
            rows=pa.concat_arrays([one.rows for one in every]),
            owner=np.concatenate([one.owner + first for one, first in zip(every, owners.tolist(), strict=False)]),
            older=OlderPoints.concat_series(*(one.older for one in every)),
            tail=PointSet.concat_points(
                *(one.tail.with_series_codes(key) for one, key in zip(every, keys, strict=True))
            ),
            forgotten=ForgottenSeriesOwners.merge_owners(*(one.forgotten for one in every)),
        )

    def encode_state(self) -> bytes:
        """Encodes the state as MessagePack, with the format's version and the groups of columns as Arrow IPC."""
        tables = {
            "sessions": create_table_of_narrow_integers(_read_dataclass_fields(self.owners)),
            "rows": pa.table({"name": self.rows, "session": self.owner}),
            "older": create_table_of_narrow_integers(_read_dataclass_fields(self.older)),
            "tail": create_table_of_narrow_integers(_list_point_columns(self.tail)),
            "forgotten": create_table_of_narrow_integers(_read_dataclass_fields(self.forgotten)),
        }
        content = {"format": FORMAT, "made": self.rebuild_id, "metrics": list(self.metrics)}
        # Compressing a byte costs less than moving it through Spark to the state store and back.
        stored = {name: encode_ipc(table, compress_columns=True) for name, table in tables.items()}
        return msgspec.msgpack.encode(content | stored)

    @staticmethod
    def decode_state(content: bytes) -> GoldShardState:
        """Decodes a state that `encode_state` wrote.

        Raises:
            LakeError: The format is unknown, or the bytes are damaged.
        """
        found = decode_state_fields(content)
        require_state_format(found, FORMAT)
        older, rows, tail = (decode_state_columns(found[name]) for name in ("older", "rows", "tail"))
        return GoldShardState(
            found["made"],
            tuple(found["metrics"]),
            SeriesOwners(**decode_state_columns(found["sessions"])),
            rows["name"],
            rows["session"],
            OlderPoints(**older),
            _create_points_from_columns(tail),
            ForgottenSeriesOwners(**decode_state_columns(found["forgotten"])),
        )


def encode_states(states: Mapping[str, bytes]) -> bytes:
    """Encodes the states of all tables of averages of a shard, as MessagePack.

    Args:
        states: The encoded state of each table, by the table's name.
    """
    return msgspec.msgpack.encode({"format": STATES_FORMAT, "states": dict(states)})


def decode_states(content: bytes | None) -> dict[str, bytes]:
    """Decodes what `encode_states` wrote. Returns the encoded state of each table of averages, by the table's name.

    Args:
        content: The stored bytes; None if nothing is stored yet, which gives an empty result.

    Raises:
        LakeError: The format is unknown, or the bytes are damaged.
    """
    if content is None:
        return {}
    found = decode_state_fields(content)
    require_state_format(found, STATES_FORMAT)
    return dict(found["states"])


def hash_owner_names(names: list[str]) -> npt.NDArray[np.uint64]:
    """Returns a hash of 64 bits of each name."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, np.uint64)


def _read_dataclass_fields(dataclass_object: Any) -> dict[str, Any]:
    return {f.name: getattr(dataclass_object, f.name) for f in fields(dataclass_object)}


def _list_point_columns(points: PointSet) -> dict[str, Any]:
    columns = {name: getattr(points, name) for name in COLUMNS}
    further = (_read_dataclass_fields(part) for part in (points.by_seq, points.units) if part is not None)
    return reduce(operator.or_, further, columns)


def _create_points_from_columns(columns: dict[str, Any]) -> PointSet:
    order, units = (
        {f.name: columns.pop(f.name) for f in fields(kind) if f.name in columns}
        for kind in (PointSeqOrder, UnscaledDecimals)
    )
    return PointSet(
        **columns, by_seq=PointSeqOrder(**order) if order else None, units=UnscaledDecimals(**units) if units else None
    )
