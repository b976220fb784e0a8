"""Rolling averages over the last N points of a key, folded batch by batch and equal to a recomputation, bit for bit.

Of each key only the *tail* is kept, its newest points, and of the points older than the tail only what `Older` says. A
window is always summed afresh, oldest point first, so the order in which points arrived leaves no trace in the doubles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sessionlake.gold.fold.points import Points
from sessionlake.protocol.types import Bools, Float64s, Int64s


@dataclass(frozen=True)
class Older:
    """What is known of the points older than each key's tail.

    Attributes:
        some: whether there are, or may be, any.
        ts: none of them is later than this.
    """

    some: Bools
    ts: Int64s

    def __len__(self) -> int:
        return len(self.some)

    @staticmethod
    def nothing(keys: int) -> Older:
        """What is known where no point has left the tail yet."""
        return Older(np.zeros(keys, np.bool_), np.zeros(keys, np.int64))

    @staticmethod
    def forgotten(some: Bools, ts: Int64s) -> Older:
        """For keys whose points, all at or before `ts`, were forgotten where `some` says so."""
        return Older(some, np.where(some, ts, 0))

    @staticmethod
    def concat(*parts: Older) -> Older:
        """The entries of several, one behind the other."""
        return Older(np.concatenate([p.some for p in parts]), np.concatenate([p.ts for p in parts]))

    def take(self, index: Int64s | Bools) -> Older:
        """The keys at these places."""
        return Older(self.some[index], self.ts[index])

    def put(self, index: Int64s, changed: Older) -> Older:
        """Replaces the keys at these places."""
        result = Older(self.some.copy(), self.ts.copy())
        result.some[index], result.ts[index] = changed.some, changed.ts
        return result

    def taking_in(self, key: Int64s, ts: Int64s) -> Older:
        """With the points that leave the tails, sorted by key and event time; they are later than all before."""
        last = np.flatnonzero(np.diff(key, append=-1))
        return self.put(key[last], Older(np.ones(len(last), np.bool_), ts[last]))


@dataclass(frozen=True)
class Averages:
    """Rows of `gold.rolling_average` to write.

    Attributes:
        points: the points the averages belong to.
        average: over the point and those before it.
        size: how many points the average covers, 1 to N.
        fresh: whether the point is new; otherwise its row exists and only average and size change.
    """

    points: Points
    average: Float64s
    size: Int64s
    fresh: Bools


@dataclass(frozen=True)
class Evolution:
    """What a batch makes of the keys it touches (codes 0 to T-1).

    Attributes:
        tail: the newest points of each key, at most `keep`.
        older: what is known of the points older than the tail.
        unproven: keys whose new points reach further back than the tail: their rows follow from all their points.
        averages: rows of the other keys.
    """

    tail: Points
    older: Older
    unproven: Bools
    averages: Averages


@dataclass(frozen=True)
class SortedPoints:
    """Points sorted by key and event time.

    Attributes:
        fresh: whether a point is of this batch.
        rank: place of a point among those of its key, from 0.
        left: how many points of its key come after it.
    """

    points: Points
    fresh: Bools
    rank: Int64s
    left: Int64s


def evolve(tail: Points, older: Older, new: Points, *, window: int, keep: int) -> Evolution:
    """Folds a batch's points into the tails of their keys.

    Args:
        tail: kept points of the touched keys, in any order.
        older: one entry a key.
        new: the batch's points, in any order; none of them is in `tail`.
        window: N, the number of points an average covers.
        keep: length of a tail, at least N - 1.
    """
    line, too_old = _weave(tail, older, new)
    unproven = _unproven(line, older, too_old, window)
    dropped = line.left >= keep
    return Evolution(
        tail=line.points.take(~dropped),
        older=older.taking_in(line.points.key[dropped], line.points.ts[dropped]),
        unproven=unproven,
        averages=_averages(line, unproven, window),
    )


def _weave(tail: Points, older: Older, new: Points) -> tuple[SortedPoints, Points]:
    """Tail and new points as one timeline, and apart from it the new points that are older than the tail."""
    both = Points.concat(tail, new)
    order = np.lexsort((both.ordinal, both.position, both.ts, both.key))
    points, fresh = both.take(order), order >= len(tail)
    place = np.arange(len(both))
    oldest = np.full(len(older), len(both))
    kept = np.flatnonzero(~fresh)[::-1]
    oldest[points.key[kept]] = kept  # written from the right: the leftmost stays
    known = ~fresh | ~older.some[points.key] | (points.ts > older.ts[points.key]) | (place > oldest[points.key])
    inside = points.take(known)
    count = np.bincount(inside.key, minlength=len(older))
    start = np.cumsum(count) - count
    rank = np.arange(len(inside)) - start[inside.key]
    line = SortedPoints(inside, fresh[known], rank, count[inside.key] - rank - 1)
    return line, points.take(~known)


def _unproven(line: SortedPoints, older: Older, too_old: Points, window: int) -> Bools:
    """Keys with a new point that is older than the tail, or whose window reaches further back."""
    key = line.points.key
    short = line.rank < window - 1
    found = np.zeros(len(older), np.bool_)
    found[too_old.key] = True
    found[key[line.fresh & older.some[key] & short]] = True
    return found


def _averages(line: SortedPoints, unproven: Bools, window: int) -> Averages:
    """Averages of the new points and of the up to N - 1 points that follow each."""
    place = np.arange(len(line.points))
    last_fresh = np.maximum.accumulate(np.where(line.fresh, place, -1))
    near = (last_fresh >= place - line.rank) & (place - last_fresh < window)
    index = np.flatnonzero(near & ~unproven[line.points.key])
    rank = line.rank[index]
    total = np.zeros(len(index))
    with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
        for back in range(min(window - 1, int(rank.max(initial=0))), -1, -1):
            total += np.where(rank >= back, line.points.value[np.maximum(index - back, 0)], 0.0)
    size = np.minimum(rank + 1, window)
    return Averages(line.points.take(index), total / size, size, line.fresh[index])
