"""Rolling averages over the last N points of a series, folded batch by batch and equal to a recomputation bit for bit.

Of each series only the *tail* is kept, its newest points, and `OlderPoints` about the points before it. A window is
always summed from scratch, the oldest point first. So the order in which points arrived has no effect on the doubles.
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
    """When a row was last written: before the watermark of its series passed its point, when it did, or after."""

    EARLY = 0
    ON_TIME = 1
    LATE = 2


@dataclass(frozen=True)
class OlderPoints:
    """What is known about the points that are older than each series' tail.

    Attributes:
        some: Whether there are, or may be, any.
        ts: An upper bound of their event times.
    """

    some: Bools
    ts: Int64s

    def __len__(self) -> int:
        return len(self.some)

    @staticmethod
    def nothing(keys: int) -> OlderPoints:
        """Returns the entries of series that no point has left."""
        return OlderPoints(np.zeros(keys, np.bool_), np.zeros(keys, np.int64))

    @staticmethod
    def forgotten(some: Bools, ts: Int64s) -> OlderPoints:
        """Returns the entries of series whose points up to `ts` were forgotten, where `some` is true."""
        return OlderPoints(some, np.where(some, ts, 0))

    @staticmethod
    def concat(*parts: OlderPoints) -> OlderPoints:
        """Concatenates several."""
        return OlderPoints(np.concatenate([p.some for p in parts]), np.concatenate([p.ts for p in parts]))

    def take(self, index: Int64s | Bools) -> OlderPoints:
        """Returns the entries at these places."""
        return OlderPoints(self.some[index], self.ts[index])

    def with_replaced(self, index: Int64s, changed: OlderPoints) -> OlderPoints:
        """Returns the entries with those at these places replaced."""
        result = OlderPoints(self.some.copy(), self.ts.copy())
        result.some[index], result.ts[index] = changed.some, changed.ts
        return result

    def with_dropped(self, key: Int64s, ts: Int64s) -> OlderPoints:
        """Adds points that leave the tails, sorted by series and event time.

        They are later than all that left before.
        """
        last = np.flatnonzero(np.diff(key, append=-1))
        return self.with_replaced(key[last], OlderPoints(np.ones(len(last), np.bool_), ts[last]))


@dataclass(frozen=True)
class Figures:
    """Averages as they are published.

    Attributes:
        average: Also set where it is not visible yet.
        size: Number of points that it covers, 1 to N.
        visible: Whether the average is visible.
    """

    average: Float64s
    size: Int64s
    visible: Bools

    def take(self, index: Int64s | Bools) -> Figures:
        """Returns the entries at these places."""
        return Figures(self.average[index], self.size[index], self.visible[index])

    def differs(self, other: Figures) -> Bools:
        """Returns where the visible figures differ."""
        same = (self.average == other.average) | (np.isnan(self.average) & np.isnan(other.average))
        return (self.visible != other.visible) | (self.size != other.size) | (self.visible & ~same)


@dataclass(frozen=True)
class Averages:
    """Rows of a table of averages to write.

    Attributes:
        points: The points of the rows.
        now: Their figures.
        pane: The `Pane` of each row.
        fresh: True for a new point. False for an existing row whose figures or pane change.
        restated: Whether a visible figure has changed.
        figures_before: The figures before the batch; nothing is visible for new points.
        causes: For each row, the range in `order` of the batch's points in its window: first, and one past the last.
        order: Indices of the batch's points in the order of the series.
        late_ms: How much older the first of a row's causes is than the newest point of its series before the batch.
    """

    points: Points
    now: Figures
    pane: Int64s
    fresh: Bools
    restated: Bools
    figures_before: Figures
    causes: tuple[Int64s, Int64s]
    order: Int64s
    late_ms: Int64s


@dataclass(frozen=True)
class FoldedPoints:
    """The result of a batch for the series that it touches, with codes 0 to T-1.

    Attributes:
        tail: The newest points of each series.
        older: What is known about the points that are older than the tail.
        needs_history: Series with new points that reach further back than the tail. Their rows must be computed from
            all of their points.
        averages: The rows of all other series.
    """

    tail: Points
    older: OlderPoints
    needs_history: Bools
    averages: Averages


@dataclass(frozen=True)
class Timeline:
    """Points sorted by series and event time.

    Attributes:
        source: The point's index among the batch's points; -1 for points that existed before.
        rank: The point's index among those of its series.
        left: Number of points of its series after it.
    """

    points: Points
    source: Int64s
    rank: Int64s
    left: Int64s

    @staticmethod
    def of(points: Points, source: Int64s, keys: int) -> Timeline:
        """Returns the timeline of points that are already sorted."""
        count = np.bincount(points.key, minlength=keys)
        rank = np.arange(len(points)) - (np.cumsum(count) - count)[points.key]
        return Timeline(points, source, rank, count[points.key] - rank - 1)

    @property
    def fresh(self) -> Bools:
        """Whether a point is from this batch."""
        return self.source >= 0

    def sums(self, index: Int64s, window: int) -> tuple[Float64s, Int64s]:
        """Returns the averages over the windows that end at these places, and the number of points in each."""
        rank = self.rank[index]
        total = np.zeros(len(index))
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for back in range(min(window - 1, int(rank.max(initial=0))), -1, -1):
                total += np.where(rank >= back, self.points.value[np.maximum(index - back, 0)], 0.0)
        size = np.minimum(rank + 1, window)
        return total / size, size


@dataclass(frozen=True)
class Times:
    """The newest event time of each series before and after a batch, from which its watermark follows.

    Attributes:
        known: Whether the series had a point before. If not, `before` is `_NEVER`.
    """

    before: Int64s
    after: Int64s
    known: Bools
    watermark_ms: int

    @staticmethod
    def of(tail: Points, older: OlderPoints, new: Points, watermark_ms: int) -> Times:
        """Returns the times of series with these points."""
        before, known = np.where(older.some, older.ts, _NEVER), older.some.copy()
        known[tail.key] = True
        np.maximum.at(before, tail.key, tail.ts)
        after = before.copy()
        np.maximum.at(after, new.key, new.ts)
        return Times(before, after, known, watermark_ms)

    def pane(self, points: Points, fresh: Bools) -> Int64s:
        """Returns the pane of rows that are written now.

        A new point is late if it is before the watermark, not if it is at it.
        """
        passed, passing = ~self.early(points), self._passed(self.after, points)
        late = passed & ~(fresh & (points.ts == self._watermark(self.before)[points.key]))
        return np.where(late, Pane.LATE, np.where(passing, Pane.ON_TIME, Pane.EARLY))

    def early(self, points: Points) -> Bools:
        """Returns which points the watermark had not passed before the batch."""
        return ~(self.known[points.key] & self._passed(self.before, points))

    def pending(self, points: Points) -> Bools:
        """Returns which points the watermark has not passed after the batch."""
        return ~self._passed(self.after, points)

    def pending_before(self, older: OlderPoints) -> Bools:
        """Returns the series with points beyond their tails that may have been pending before the batch."""
        return older.some & (self._watermark(self.before) < older.ts)

    def _passed(self, newest: Int64s, points: Points) -> Bools:
        passed: Bools = points.ts <= self._watermark(newest)[points.key]
        return passed

    def _watermark(self, newest: Int64s) -> Int64s:
        # Keeps the difference from underflowing.
        return np.where(newest < _NEVER + self.watermark_ms, _NEVER, newest - self.watermark_ms)


def fold_points(tail: Points, older: OlderPoints, new: Points, *, series: RollingAverage, keep: int) -> FoldedPoints:
    """Folds a batch's points into the tails of their series.

    Args:
        tail: The tails of the touched series, in any order.
        older: One entry per series.
        new: The batch's points, in any order; none of them is in `tail`.
        keep: Length of a tail, at least N - 1. Points that the watermark has not passed are kept in addition.
    """
    times = Times.of(tail, older, new, series.watermark_ms)
    timeline, too_old = _merge_timeline(tail, older, new)
    affected = _affected_points(timeline, times, series.last)
    needs_history = _find_needing_history(timeline, older, too_old, affected, series.last) | times.pending_before(older)
    averages, revision = _averages(timeline, affected & ~needs_history[timeline.points.key], times, series)
    # Rows of series that need their history are computed from the table, so their revisions are not known here.
    timeline = replace(
        timeline,
        points=replace(
            timeline.points, revision=np.where(needs_history[timeline.points.key] & ~timeline.fresh, UNKNOWN, revision)
        ),
    )
    pending = np.bincount(timeline.points.key[times.pending(timeline.points)], minlength=len(older))
    dropped = timeline.left >= keep + pending[timeline.points.key]
    return FoldedPoints(
        tail=timeline.points.take(~dropped),
        older=older.with_dropped(timeline.points.key[dropped], timeline.points.ts[dropped]),
        needs_history=needs_history,
        averages=averages,
    )


def _merge_timeline(tail: Points, older: OlderPoints, new: Points) -> tuple[Timeline, Points]:
    """Merges tail and new points into one timeline. New points that are older than the tail are returned separately."""
    both = Points.concat(tail, new)
    order = both.order()
    points, source = both.take(order), np.maximum(order - len(tail), -1)
    fresh = source >= 0
    place = np.arange(len(both))
    oldest = np.full(len(older), len(both))
    kept = np.flatnonzero(~fresh)[::-1]
    oldest[points.key[kept]] = kept  # written from right to left, so that the leftmost one remains
    known = ~fresh | ~older.some[points.key] | (points.ts > older.ts[points.key]) | (place > oldest[points.key])
    if known.all():
        return Timeline.of(points, source, len(older)), Points.empty()
    return Timeline.of(points.take(known), source[known], len(older)), points.take(~known)


def _affected_points(timeline: Timeline, times: Times, window: int) -> Bools:
    """Returns which points may get a new average.

    These are the new points, the up to N - 1 points after each, and the points that the watermark passes with this
    batch.
    """
    place, fresh = np.arange(len(timeline.points)), timeline.fresh
    last_fresh = np.maximum.accumulate(np.where(fresh, place, -1))
    follows = (last_fresh >= place - timeline.rank) & (place - last_fresh < window)
    return follows | (times.early(timeline.points) & ~times.pending(timeline.points))


def _find_needing_history(
    timeline: Timeline, older: OlderPoints, too_old: Points, affected: Bools, window: int
) -> Bools:
    """Returns series with a row to write whose window reaches beyond the tail, or whose revision is unknown."""
    key = timeline.points.key
    short = timeline.rank < max(window - 1, 1)
    found = np.zeros(len(older), np.bool_)
    found[too_old.key] = True
    found[key[affected & older.some[key] & short]] = True
    found[key[affected & (timeline.points.revision == UNKNOWN)]] = True
    return found


def _averages(timeline: Timeline, chosen: Bools, times: Times, series: RollingAverage) -> tuple[Averages, Int64s]:
    """Returns the chosen rows without those that stay the same, and the revisions of all points."""
    index = np.flatnonzero(chosen)
    points, fresh = timeline.points.take(index), timeline.fresh[index]
    pane = times.pane(points, fresh)
    now = _figures(*timeline.sums(index, series.last), series, pane != Pane.EARLY)
    figures_before = _figures_before(timeline, index, times, series)
    restated = figures_before.visible & now.differs(figures_before)
    passed = times.early(points) & (pane != Pane.EARLY)
    revision = timeline.points.revision.copy()
    revision[index] += restated
    written = fresh | now.differs(figures_before) | passed
    rows = index[written]
    order, causes = _causes(timeline, rows, series.last)
    # For rows that no point changed this is meaningless; they are not restated.
    oldest = np.append(timeline.points.ts[timeline.fresh], 0)[causes[0]]
    averages = Averages(
        points=timeline.points.take(rows),
        now=now.take(written),
        pane=pane[written],
        fresh=fresh[written],
        restated=restated[written],
        figures_before=figures_before.take(written),
        causes=causes,
        order=order,
        late_ms=_lag(times.before[timeline.points.key[rows]], oldest),
    )
    return replace(averages, points=replace(averages.points, revision=revision[rows])), revision


def _lag(newest: Int64s, oldest: Int64s) -> Int64s:
    """Returns how much older one time is than another: 0 if it is not, capped at the largest int64."""
    apart = newest - oldest
    return np.where(newest > oldest, np.where(apart < 0, np.iinfo(np.int64).max, apart), 0)


def _figures(average: Float64s, size: Int64s, series: RollingAverage, passed: Bools) -> Figures:
    return Figures(average, size, (size >= series.least) & (passed | series.early))


def _figures_before(timeline: Timeline, index: Int64s, times: Times, series: RollingAverage) -> Figures:
    """Returns the rows' figures without the batch; nothing is visible for new points."""
    held = ~timeline.fresh
    base = Timeline.of(timeline.points.take(held), timeline.source[held], len(times.before))
    had_row = held[index]
    place = (np.cumsum(held) - 1)[index[had_row]]
    average, size = np.zeros(len(index)), np.zeros(len(index), np.int64)
    average[had_row], size[had_row] = base.sums(place, series.last)
    found = _figures(average, size, series, ~times.early(timeline.points.take(index)))
    return replace(found, visible=found.visible & had_row)


def _causes(timeline: Timeline, rows: Int64s, window: int) -> tuple[Int64s, tuple[Int64s, Int64s]]:
    """Returns the batch's points in order, and for each row the range of those in its window."""
    fresh = np.flatnonzero(timeline.fresh)
    first = np.searchsorted(fresh, np.maximum(rows - window + 1, rows - timeline.rank[rows]))
    return timeline.source[fresh], (first, np.searchsorted(fresh, rows, side="right"))
