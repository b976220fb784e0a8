"""The gold fold: a shard's tails and a batch's points in, rows of the gold tables out. Pure.

Its cost is per batch, not per point: everything is columns, and the state of a touched shard is read and
written whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LAST_RESORT, LakeError
from sessionlake.gold.aggregate.sources import value_field
from sessionlake.gold.fold.outputs import METRIC_KEY, Names, payloads
from sessionlake.gold.fold.pack import SEPARATOR, ReadChanges, read_chunks, split
from sessionlake.gold.fold.points import Points
from sessionlake.gold.fold.rolling import Older, evolve
from sessionlake.gold.fold.state import GoldShardState, Sessions
from sessionlake.protocol.types import Int64s, Payloads


def tail_length(window: int) -> int:
    """How many points of a key are kept: enough for a window, and for points late by half a window or so."""
    return window + max(4, window // 2)


@dataclass(frozen=True)
class GoldFold:
    """The fold of one shard; see `streaming.sharded.ShardFold`.

    Attributes:
        metrics: names of the numeric columns, in the chunks' order.
        window: N of the rolling averages.
        idle_ms: how long a session may be silent, in its topic-partition's Kafka time, before its tails are dropped.
    """

    metrics: tuple[str, ...]
    window: int
    idle_ms: int

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Payloads]:
        """Folds the batch's chunks.

        Raises:
            LakeError: the state was built for another window or other metrics.
        """
        del shard
        points, made = split(chunks)
        if not points:
            return None, made
        changes, read = read_chunks(points)
        before = GoldShardState.decode(state) if state else GoldShardState.empty(self.window, self.metrics)
        if before.window != self.window:
            raise LakeError(
                f"gold.rolling_points is {self.window}, but gold's tables were built with {before.window}: "
                f"set it back. {LAST_RESORT}"
            )
        known, row = admit(before.for_metrics(self.metrics), changes)
        new = self._points(changes, row)
        touched, code = np.unique(new.key, return_inverse=True)
        place = np.full(len(known.older), -1)
        place[touched] = np.arange(len(touched))
        apart = place[known.tail.key] < 0
        base = known.tail.take(~apart)
        found = evolve(
            base.under(place[base.key]),
            known.older.take(touched),
            new.under(code.reshape(-1)),
            window=self.window,
            keep=tail_length(self.window),
        )
        tail = Points.concat(known.tail.take(apart), found.tail.under(touched[found.tail.key]))
        after = replace(known, tail=tail, older=known.older.put(touched, found.older))
        names = _names(after.rows, self.metrics, touched)
        out = payloads(found, new.under(code.reshape(-1)), names, read)
        return after.without_idle(self.idle_ms, _topic_of).encode(), out + made

    def _points(self, changes: pa.Table, row: Int64s) -> Points:
        ts, position, ordinal = (_ints(changes[name]) for name in ("ts", "position", "ordinal"))
        parts = [Points.empty()]
        for metric in range(len(self.metrics)):
            value = changes[value_field(metric)].to_numpy()
            there = ~np.isnan(value)  # null
            key = row[there] * len(self.metrics) + metric
            # Adding zero turns -0.0 into 0.0: the sign of zero would depend on the order of a minimum.
            parts.append(Points(key, ts[there], position[there], ordinal[there], value[there] + 0.0))
        return Points.concat(*parts)


def recompute(points: pa.Table, window: int) -> Payloads:
    """Rows that follow from new points, from all points of their keys.

    Args:
        points: `topic, session_id, row_id, metric, ts, position, ordinal, value, fresh`: the new points (`fresh`) and
            the whole history of their keys, which may hold them already.
    """
    key_columns = (points[name] for name in ("topic", "session_id", "metric", "row_id"))
    encoded = _one(pc.binary_join_element_wise(*key_columns, SEPARATOR)).dictionary_encode()
    key, ts, position = _ints(encoded.indices), _ints(points["ts"]), _ints(points["position"])
    every = Points(key, ts, position, _ints(points["ordinal"]), points["value"].to_numpy())
    fresh = points["fresh"].to_numpy()
    new = every.take(fresh)
    base = every.take(~fresh).without(new)
    found = evolve(base, Older.nothing(len(encoded.dictionary)), new, window=window, keep=len(every))
    first = np.full(len(encoded.dictionary), 0)
    first[key[::-1]] = np.arange(len(key))[::-1]
    columns = {name: _one(points[name]) for name in METRIC_KEY}

    def named(codes: Int64s) -> dict[str, pa.Array]:
        return {name: column.take(pa.array(first[codes])) for name, column in columns.items()}

    return payloads(found, new, named, ReadChanges())


def admit(state: GoldShardState, changes: pa.Table) -> tuple[GoldShardState, Int64s]:
    """Gives the batch's sessions and rows their places in the state.

    Returns:
        The state with them, and each change's row.
    """
    sessions, session = _admit_sessions(state, changes)
    rows, row = _codes(state.rows, changes["row"])
    of_row = np.concatenate([state.session, np.zeros(len(rows) - len(state.rows), np.int64)])
    of_row[row] = session
    added = of_row[len(state.rows) :]
    width = len(state.metrics)
    older = Older.forgotten(np.repeat(sessions.back[added], width), np.repeat(sessions.floor[added], width))
    return replace(state, sessions=sessions, rows=rows, session=of_row, older=Older.concat(state.older, older)), row


def _admit_sessions(state: GoldShardState, changes: pa.Table) -> tuple[Sessions, Int64s]:
    known = state.sessions
    names, session = _codes(known.name, changes["session"])
    added = len(names) - len(known.name)
    back, floor = state.forgotten.find(names.slice(len(known.name)).to_pylist())
    never = np.full(added, np.iinfo(np.int64).min)
    partition = np.concatenate([known.partition, np.zeros(added, np.int64)])
    seen, newest = np.concatenate([known.seen, never]), np.concatenate([known.newest, never])
    partition[session] = _ints(changes["partition"])
    np.maximum.at(seen, session, _ints(changes["kafka_ms"]))
    np.maximum.at(newest, session, _ints(changes["ts"]))
    back, floor = np.concatenate([known.back, back]), np.concatenate([known.floor, floor])
    return Sessions(names, partition, seen, newest, back, floor), session


def _codes(known: pa.Array, column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """All names, the known ones first, and the code of each value."""
    encoded = pa.concat_arrays([known, *column.chunks]).dictionary_encode()
    return encoded.dictionary, _ints(encoded.indices)[len(known) :]


def _names(rows: pa.Array, metrics: tuple[str, ...], touched: Int64s) -> Names:
    """Names of key codes that count through `touched`."""

    def named(codes: Int64s) -> dict[str, pa.Array]:
        row, metric = np.divmod(touched[codes], len(metrics))
        used, place = np.unique(row, return_inverse=True)
        parts = pc.split_pattern(rows.take(pa.array(used)), SEPARATOR, max_splits=2).flatten()
        index = pa.array(place.reshape(-1).astype(np.int32))
        columns = {
            name: pa.DictionaryArray.from_arrays(index, parts.take(pa.array(np.arange(i, len(parts), 3))))
            for i, name in enumerate(METRIC_KEY[:3])
        }
        dictionary = pa.array(metrics, pa.string())
        return columns | {"metric": pa.DictionaryArray.from_arrays(pa.array(metric.astype(np.int32)), dictionary)}

    return named


def _topic_of(session: str) -> str:
    return session.partition(SEPARATOR)[0]


def _one(column: Any) -> Any:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _ints(column: Any) -> Int64s:
    return np.asarray(column).astype(np.int64)
