"""Rolling averages over the last N points of a key, folded batch by batch and equal to a recomputation, bit for bit.

Of each key only the *tail* is kept, its newest points, and of the points older than the tail only what `Older` says. A
window is always summed afresh, oldest point first, so the order in which points arrived leaves no trace in the doubles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from sessionlake.gold.fold.points import UNKNOWN, Points
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.types import Bools, Float64s, Int64s

_NEVER = np.iinfo(np.int64).min


class Pane(IntEnum):
    """When a row was written last: before its series' watermark passed its point, as it did, or after."""

    EARLY = 0
    ON_TIME = 1
    LATE = 2


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

    def with_dropped(self, key: Int64s, ts: Int64s) -> Older:
        """With the points that leave the tails, sorted by key and event time; they are later than all before."""
        last = np.flatnonzero(np.diff(key, append=-1))
        return self.put(key[last], Older(np.ones(len(last), np.bool_), ts[last]))


@dataclass(frozen=True)
class Figures:
    """Averages as they are published.

    Attributes:
        average: also where it is not to be seen yet.
        size: how many points it covers, 1 to N.
        seen: whether it is to be seen.
    """

    average: Float64s
    size: Int64s
    seen: Bools

    def take(self, index: Int64s | Bools) -> Figures:
        """Those at these places."""
        return Figures(self.average[index], self.size[index], self.seen[index])

    def differs(self, other: Figures) -> Bools:
        """Where one shows something else than the other."""
        same = (self.average == other.average) | (np.isnan(self.average) & np.isnan(other.average))
        return (self.seen != other.seen) | (self.size != other.size) | (self.seen & ~same)


@dataclass(frozen=True)
class Averages:
    """Rows of a table of averages to write.

    Attributes:
        points: the points the averages belong to.
        now: their figures.
        pane: `Pane`.
        fresh: whether the point is new; otherwise its row exists, and only what follows from others changes.
        restated: whether a figure that was to be seen is another now.
        was: the figures before, of all rows; of new ones nothing was to be seen.
        causes: of each row, the first and behind the last of `order` that are the batch's points in its window.
        order: places of the batch's points, in the order of the series.
        late_ms: by how much the first of a row's causes is older than what was its series' newest point.
    """

    points: Points
    now: Figures
    pane: Int64s
    fresh: Bools
    restated: Bools
    was: Figures
    causes: tuple[Int64s, Int64s]
    order: Int64s
    late_ms: Int64s


@dataclass(frozen=True)
class Evolution:
    """What a batch makes of the keys it touches (codes 0 to T-1).

    Attributes:
        tail: the newest points of each key.
        older: what is known of the points older than the tail.
        unproven: keys whose new points reach further back than the tail: their rows follow from all their points.
        averages: rows of the other keys.
    """

    tail: Points
    older: Older
    unproven: Bools
    averages: Averages


@dataclass(frozen=True)
class Timeline:
    """Points sorted by key and event time.

    Attributes:
        source: the place of a point among the batch's; -1 of one that was there before.
        rank: place of a point among those of its key, from 0.
        left: how many points of its key come after it.
    """

    points: Points
    source: Int64s
    rank: Int64s
    left: Int64s

    @staticmethod
    def of(points: Points, source: Int64s, keys: int) -> Timeline:
        """Points that are sorted already."""
        count = np.bincount(points.key, minlength=keys)
        rank = np.arange(len(points)) - (np.cumsum(count) - count)[points.key]
        return Timeline(points, source, rank, count[points.key] - rank - 1)

    @property
    def fresh(self) -> Bools:
        """Whether a point is of this batch."""
        return self.source >= 0

    def sums(self, index: Int64s, window: int) -> tuple[Float64s, Int64s]:
        """Averages over the windows that end at these places, and how many points each covers."""
        rank = self.rank[index]
        total = np.zeros(len(index))
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for back in range(min(window - 1, int(rank.max(initial=0))), -1, -1):
                total += np.where(rank >= back, self.points.value[np.maximum(index - back, 0)], 0.0)
        size = np.minimum(rank + 1, window)
        return total / size, size


@dataclass(frozen=True)
class Times:
    """Each key's newest point, and with it its watermark, before a batch and after it.

    Attributes:
        known: whether there was a point before; the time is `_NEVER` where there was none.
    """

    before: Int64s
    after: Int64s
    known: Bools
    watermark_ms: int

    @staticmethod
    def of(tail: Points, older: Older, new: Points, watermark_ms: int) -> Times:
        """The times of keys with these points."""
        before, known = np.where(older.some, older.ts, _NEVER), older.some.copy()
        known[tail.key] = True
        np.maximum.at(before, tail.key, tail.ts)
        after = before.copy()
        np.maximum.at(after, new.key, new.ts)
        return Times(before, after, known, watermark_ms)

    def pane(self, points: Points, fresh: Bools) -> Int64s:
        """The pane of rows that are written now. Of a new point, one behind the watermark is late, not one at it."""
        passed, passing = ~self.early(points), self._passed(self.after, points)
        late = passed & ~(fresh & (points.ts == self._mark(self.before)[points.key]))
        return np.where(late, Pane.LATE, np.where(passing, Pane.ON_TIME, Pane.EARLY))

    def early(self, points: Points) -> Bools:
        """Which points the watermark had not passed before the batch."""
        return ~(self.known[points.key] & self._passed(self.before, points))

    def pending(self, points: Points) -> Bools:
        """Which points it has not passed after it."""
        return ~self._passed(self.after, points)

    def pending_before(self, older: Older) -> Bools:
        """Keys of which points that are in no tail may have been pending before the batch."""
        return older.some & (self._mark(self.before) < older.ts)

    def _passed(self, newest: Int64s, points: Points) -> Bools:
        passed: Bools = points.ts <= self._mark(newest)[points.key]
        return passed

    def _mark(self, newest: Int64s) -> Int64s:
        # No earlier than time begins.
        return np.where(newest < _NEVER + self.watermark_ms, _NEVER, newest - self.watermark_ms)


def evolve(tail: Points, older: Older, new: Points, *, series: RollingAverage, keep: int) -> Evolution:
    """Folds a batch's points into the tails of their keys.

    Args:
        tail: kept points of the touched keys, in any order.
        older: one entry a key.
        new: the batch's points, in any order; none of them is in `tail`.
        keep: length of a tail, at least N - 1; points that the watermark has not passed are kept besides.
    """
    times = Times.of(tail, older, new, series.watermark_ms)
    line, too_old = _merge_timeline(tail, older, new)
    near = _affected_points(line, times, series.last)
    unproven = _find_unproven(line, older, too_old, near, series.last) | times.pending_before(older)
    averages, revision = _averages(line, near & ~unproven[line.points.key], times, series)
    # The rows of unproven keys are revised elsewhere.
    line = replace(
        line,
        points=replace(line.points, revision=np.where(unproven[line.points.key] & ~line.fresh, UNKNOWN, revision)),
    )
    pending = np.bincount(line.points.key[times.pending(line.points)], minlength=len(older))
    dropped = line.left >= keep + pending[line.points.key]
    return Evolution(
        tail=line.points.take(~dropped),
        older=older.with_dropped(line.points.key[dropped], line.points.ts[dropped]),
        unproven=unproven,
        averages=averages,
    )


def _merge_timeline(tail: Points, older: Older, new: Points) -> tuple[Timeline, Points]:
    """Tail and new points as one timeline, and apart from it the new points that are older than the tail."""
    both = Points.concat(tail, new)
    order = both.order()
    points, source = both.take(order), np.maximum(order - len(tail), -1)
    fresh = source >= 0
    place = np.arange(len(both))
    oldest = np.full(len(older), len(both))
    kept = np.flatnonzero(~fresh)[::-1]
    oldest[points.key[kept]] = kept  # written from the right: the leftmost stays
    known = ~fresh | ~older.some[points.key] | (points.ts > older.ts[points.key]) | (place > oldest[points.key])
    if known.all():
        return Timeline.of(points, source, len(older)), Points.empty()
    return Timeline.of(points.take(known), source[known], len(older)), points.take(~known)


def _affected_points(line: Timeline, times: Times, window: int) -> Bools:
    """The new points, the up to N - 1 that follow each, and those that the watermark passes."""
    place, fresh = np.arange(len(line.points)), line.fresh
    last_fresh = np.maximum.accumulate(np.where(fresh, place, -1))
    follows = (last_fresh >= place - line.rank) & (place - last_fresh < window)
    return follows | (times.early(line.points) & ~times.pending(line.points))


def _find_unproven(line: Timeline, older: Older, too_old: Points, near: Bools, window: int) -> Bools:
    """Keys with a row to be written whose window reaches further back than the tail, or whose revision is unknown."""
    key = line.points.key
    short = line.rank < max(window - 1, 1)
    found = np.zeros(len(older), np.bool_)
    found[too_old.key] = True
    found[key[near & older.some[key] & short]] = True
    found[key[near & (line.points.revision == UNKNOWN)]] = True
    return found


def _averages(line: Timeline, chosen: Bools, times: Times, series: RollingAverage) -> tuple[Averages, Int64s]:
    """The chosen rows, less those that stay as they are, and the revisions of all points."""
    index = np.flatnonzero(chosen)
    points, fresh = line.points.take(index), line.fresh[index]
    pane = times.pane(points, fresh)
    now = _figures(*line.sums(index, series.last), series, pane != Pane.EARLY)
    was = _before(line, index, times, series)
    restated = was.seen & now.differs(was)
    passed = times.early(points) & (pane != Pane.EARLY)
    revision = line.points.revision.copy()
    revision[index] += restated
    written = fresh | now.differs(was) | passed
    rows = index[written]
    order, causes = _causes(line, rows, series.last)
    # Of rows that no point changed, which are not restated, it says nothing.
    oldest = np.append(line.points.ts[line.fresh], 0)[causes[0]]
    averages = Averages(
        points=line.points.take(rows),
        now=now.take(written),
        pane=pane[written],
        fresh=fresh[written],
        restated=restated[written],
        was=was.take(written),
        causes=causes,
        order=order,
        late_ms=_behind(times.before[line.points.key[rows]], oldest),
    )
    return replace(averages, points=replace(averages.points, revision=revision[rows])), revision


def _behind(newest: Int64s, oldest: Int64s) -> Int64s:
    """By how much one time is after another; 0 if it is not, and the most there is if that is beyond it."""
    apart = newest - oldest
    return np.where(newest > oldest, np.where(apart < 0, np.iinfo(np.int64).max, apart), 0)


def _figures(average: Float64s, size: Int64s, series: RollingAverage, passed: Bools) -> Figures:
    return Figures(average, size, (size >= series.least) & (passed | series.early))


def _before(line: Timeline, index: Int64s, times: Times, series: RollingAverage) -> Figures:
    """The rows' figures without the batch; of new points none was to be seen."""
    held = ~line.fresh
    base = Timeline.of(line.points.take(held), line.source[held], len(times.before))
    had_row = held[index]
    place = (np.cumsum(held) - 1)[index[had_row]]
    average, size = np.zeros(len(index)), np.zeros(len(index), np.int64)
    average[had_row], size[had_row] = base.sums(place, series.last)
    found = _figures(average, size, series, ~times.early(line.points.take(index)))
    return replace(found, seen=found.seen & had_row)


def _causes(line: Timeline, rows: Int64s, window: int) -> tuple[Int64s, tuple[Int64s, Int64s]]:
    """The batch's points in order, and of each row the range of those in its window."""
    fresh = np.flatnonzero(line.fresh)
    first = np.searchsorted(fresh, np.maximum(rows - window + 1, rows - line.rank[rows]))
    return line.source[fresh], (first, np.searchsorted(fresh, rows, side="right"))
