"""Rolling averages over the last N points of a series, folded batch by batch and equal to a recomputation bit for bit.

For each series the fold keeps only the *tail*, its newest points, and `OlderPoints` about the points before the tail. A
window is the up to N points that an average is over. It is always summed from scratch, the oldest point first. So the
order in which points arrived does not affect the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from sessionlake.gold.fold.points import UNKNOWN, PointSet
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.types import Bools, Float64s, Int64s

_NEVER = np.iinfo(np.int64).min


class PaneTiming(IntEnum):
    """When a row was last written: before its series' watermark passed its point, in the batch that did, or later."""

    EARLY = 0
    ON_TIME = 1
    LATE = 2


@dataclass(frozen=True)
class OlderPoints:
    """For each series, what is known about the points that are older than its tail.

    Attributes:
        some: True if there are, or may be, such points.
        ts: An upper bound of their event times, in ms.
    """

    some: Bools
    ts: Int64s

    def __len__(self) -> int:
        return len(self.some)

    @staticmethod
    def create_none_for(series_count: int) -> OlderPoints:
        """Returns what is known about `series_count` series whose tails hold all of their points."""
        return OlderPoints(np.zeros(series_count, np.bool_), np.zeros(series_count, np.int64))

    @staticmethod
    def of_forgotten(some: Bools, ts: Int64s) -> OlderPoints:
        """Returns what is known about series whose points up to time `ts` were forgotten, where `some` is true."""
        return OlderPoints(some, np.where(some, ts, 0))

    @staticmethod
    def concat_series(*parts: OlderPoints) -> OlderPoints:
        """Concatenates what is known about several sets of series."""
        return OlderPoints(np.concatenate([p.some for p in parts]), np.concatenate([p.ts for p in parts]))

    def select_series(self, index: Int64s | Bools) -> OlderPoints:
        """Returns what is known about the series at these indices."""
        return OlderPoints(self.some[index], self.ts[index])

    def with_replaced(self, index: Int64s, changed: OlderPoints) -> OlderPoints:
        """Returns a copy with new values for the series at these indices."""
        result = OlderPoints(self.some.copy(), self.ts.copy())
        result.some[index], result.ts[index] = changed.some, changed.ts
        return result

    def with_dropped(self, key: Int64s, ts: Int64s) -> OlderPoints:
        """Returns a copy that includes points that leave the tails. They must be later than all that left before.

        Args:
            key: Series of each point, sorted by series and event time.
            ts: Event time of each point, in ms.
        """
        last = np.flatnonzero(np.diff(key, append=-1))
        return self.with_replaced(key[last], OlderPoints(np.ones(len(last), np.bool_), ts[last]))


@dataclass(frozen=True)
class AverageFigures:
    """Averages of rows, and which of them are published.

    Attributes:
        average: The average, also where it is not published yet.
        point_count: Number of points that the average is over, 1 to N.
        is_published: True if the average is published.
    """

    average: Float64s
    point_count: Int64s
    is_published: Bools

    def select_rows(self, index: Int64s | Bools) -> AverageFigures:
        """Returns the figures of the rows at these indices."""
        return AverageFigures(self.average[index], self.point_count[index], self.is_published[index])

    def find_differences(self, other_figures: AverageFigures) -> Bools:
        """Returns, for each row, whether its published figures differ from those in `other_figures`."""
        same = (self.average == other_figures.average) | (np.isnan(self.average) & np.isnan(other_figures.average))
        return (
            (self.is_published != other_figures.is_published)
            | (self.point_count != other_figures.point_count)
            | (self.is_published & ~same)
        )


@dataclass(frozen=True)
class AverageRows:
    """Rows to write to a table of averages.

    Attributes:
        points: The point of each row.
        figures: The figures of each row after the batch.
        pane: The `PaneTiming` of each row.
        is_new: True for a new point. False for an existing row whose figures or pane change.
        is_restated: True if a published figure has changed.
        figures_before: The figures before the batch. No figure of a new point is visible.
        cause_ranges: For each row, the positions in `points_in_order` of the batch's points that are in its window: the
            first position, and the position after the last.
        points_in_order: Indices of the batch's points, sorted by series and event time.
        late_ms: How many ms the first cause of a row is older than the newest point of its series before the batch.
    """

    points: PointSet
    figures: AverageFigures
    pane: Int64s
    is_new: Bools
    is_restated: Bools
    figures_before: AverageFigures
    cause_ranges: tuple[Int64s, Int64s]
    points_in_order: Int64s
    late_ms: Int64s


@dataclass(frozen=True)
class FoldedPoints:
    """The result of a batch for the series that have new points. Their codes are 0 to the number of series - 1.

    Attributes:
        tail: The newest points of each series.
        older: What is known about the points that are older than the tail.
        needs_history: True for a series whose averages cannot be computed from its tail. They must be computed from all
            points of the series in the table.
        averages: The rows of all other series.
    """

    tail: PointSet
    older: OlderPoints
    needs_history: Bools
    averages: AverageRows


@dataclass(frozen=True)
class PointTimeline:
    """Points sorted by series and event time.

    Attributes:
        batch_index: The point's index in the batch; -1 for a point from an earlier batch.
        points_before: The number of points of the same series before this one.
        points_after: The number of points of the same series after this one.
    """

    points: PointSet
    batch_index: Int64s
    points_before: Int64s
    points_after: Int64s

    @staticmethod
    def from_sorted(points: PointSet, batch_index: Int64s, series_count: int) -> PointTimeline:
        """Returns a timeline.

        Args:
            points: Points that are already sorted by series and event time.
            batch_index: The index of each point in the batch; -1 for a point from an earlier batch.
            series_count: Number of series.
        """
        count = np.bincount(points.key, minlength=series_count)
        rank = np.arange(len(points)) - (np.cumsum(count) - count)[points.key]
        return PointTimeline(points, batch_index, rank, count[points.key] - rank - 1)

    @property
    def is_new(self) -> Bools:
        """For each point, True if it is from this batch."""
        return self.batch_index >= 0

    def compute_averages(self, index: Int64s, window: int) -> tuple[Float64s, Int64s]:
        """Returns averages over up to `window` points that end at these indices, and the number of points in each."""
        rank = self.points_before[index]
        total = np.zeros(len(index))
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for back in range(min(window - 1, int(rank.max(initial=0))), -1, -1):
                total += np.where(rank >= back, self.points.value[np.maximum(index - back, 0)], 0.0)
        size = np.minimum(rank + 1, window)
        return self.points.replace_averages(total / size, index, size), size


@dataclass(frozen=True)
class NewestTimes:
    """The newest event time of each series, in ms, before and after a batch. The watermark is `watermark_ms` behind it.

    Attributes:
        had_points: True if the series had a point before the batch. If not, `before_batch` is `_NEVER`.
    """

    before_batch: Int64s
    after_batch: Int64s
    had_points: Bools
    watermark_ms: int

    @staticmethod
    def from_points(tail: PointSet, older: OlderPoints, new: PointSet, watermark_ms: int) -> NewestTimes:
        """Returns the newest event times of series, given their tails, their older points and the batch's points."""
        before, known = np.where(older.some, older.ts, _NEVER), older.some.copy()
        known[tail.key] = True
        np.maximum.at(before, tail.key, tail.ts)
        after = before.copy()
        np.maximum.at(after, new.key, new.ts)
        return NewestTimes(before, after, known, watermark_ms)

    def find_panes(self, points: PointSet, is_new: Bools) -> Int64s:
        """Returns the `PaneTiming` of rows that are written in this batch.

        A new point exactly at the watermark is not late.
        """
        passed, passing = ~self.were_pending_before(points), self._are_before_watermark(self.after_batch, points)
        late = passed & ~(is_new & (points.ts == self._compute_watermarks(self.before_batch)[points.key]))
        return np.where(late, PaneTiming.LATE, np.where(passing, PaneTiming.ON_TIME, PaneTiming.EARLY))

    def were_pending_before(self, points: PointSet) -> Bools:
        """Returns, for each point, whether the watermark of its series had not passed it before the batch."""
        return ~(self.had_points[points.key] & self._are_before_watermark(self.before_batch, points))

    def are_pending_after(self, points: PointSet) -> Bools:
        """Returns, for each point, whether the watermark of its series has not passed it after the batch."""
        return ~self._are_before_watermark(self.after_batch, points)

    def find_pending_series(self, older: OlderPoints) -> Bools:
        """Returns, for each series, whether a point older than the tail may have been pending before the batch."""
        return older.some & (self._compute_watermarks(self.before_batch) < older.ts)

    def _are_before_watermark(self, newest: Int64s, points: PointSet) -> Bools:
        passed: Bools = points.ts <= self._compute_watermarks(newest)[points.key]
        return passed

    def _compute_watermarks(self, newest: Int64s) -> Int64s:
        # Below this bound the difference would underflow.
        return np.where(newest < _NEVER + self.watermark_ms, _NEVER, newest - self.watermark_ms)


def fold_points(
    tail: PointSet, older: OlderPoints, new: PointSet, *, series: RollingAverage, kept_points: int
) -> FoldedPoints:
    """Folds a batch's points into the tails of their series.

    Args:
        tail: The tails of the series that have new points, in any order.
        older: What is known about the points before the tails, one value per series.
        new: The batch's points, in any order. None of them is in `tail`.
        series: The table of averages.
        kept_points: Number of points to keep in a tail, at least N - 1. Points that the watermark has not passed are
            kept in addition.
    """
    times = NewestTimes.from_points(tail, older, new, series.watermark_ms)
    timeline, too_old = _merge_into_timeline(tail, older, new)
    affected = _find_affected_points(timeline, times, series.window_points)
    needs_history = _find_needing_history(timeline, older, too_old, affected, series.window_points)
    needs_history = needs_history | times.find_pending_series(older)
    averages, revision = _compute_averages(timeline, affected & ~needs_history[timeline.points.key], times, series)
    # Rows of series that need their history are computed from the table. So their revisions are not known here.
    is_unknown = needs_history[timeline.points.key] & ~timeline.is_new
    timeline = replace(timeline, points=replace(timeline.points, revision=np.where(is_unknown, UNKNOWN, revision)))
    pending = np.bincount(timeline.points.key[times.are_pending_after(timeline.points)], minlength=len(older))
    dropped = timeline.points_after >= kept_points + pending[timeline.points.key]
    return FoldedPoints(
        tail=timeline.points.select_points(~dropped),
        older=older.with_dropped(timeline.points.key[dropped], timeline.points.ts[dropped]),
        needs_history=needs_history,
        averages=averages,
    )


def _merge_into_timeline(tail: PointSet, older: OlderPoints, new: PointSet) -> tuple[PointTimeline, PointSet]:
    """Merges the tails and the new points into one timeline.

    Returns the timeline, and the new points that are older than their tail.
    """
    both = PointSet.concat_points(tail, new)
    order = both.compute_sorted_indices()
    points, source = both.select_points(order), np.maximum(order - len(tail), -1)
    fresh = source >= 0
    place = np.arange(len(both))
    oldest = np.full(len(older), len(both))
    kept = np.flatnonzero(~fresh)[::-1]
    oldest[points.key[kept]] = kept  # written from right to left, so that the leftmost one remains
    known = ~fresh | ~older.some[points.key] | (points.ts > older.ts[points.key]) | (place > oldest[points.key])
    if known.all():
        return PointTimeline.from_sorted(points, source, len(older)), PointSet.create_empty()
    known_points = points.select_points(known)
    return PointTimeline.from_sorted(known_points, source[known], len(older)), points.select_points(~known)


def _find_affected_points(timeline: PointTimeline, times: NewestTimes, window: int) -> Bools:
    """Returns, for each point, whether its average may change.

    That is so for new points, for up to N - 1 points after each of them, and for points that the watermark passes with
    this batch.
    """
    place, fresh = np.arange(len(timeline.points)), timeline.is_new
    last_fresh = np.maximum.accumulate(np.where(fresh, place, -1))
    follows = (last_fresh >= place - timeline.points_before) & (place - last_fresh < window)
    return follows | (times.were_pending_before(timeline.points) & ~times.are_pending_after(timeline.points))


def _find_needing_history(
    timeline: PointTimeline, older: OlderPoints, too_old: PointSet, affected: Bools, window: int
) -> Bools:
    """Returns, for each series, whether its tail does not suffice to compute the rows to write.

    A window may reach beyond the tail, or the revision of a row may be unknown.
    """
    key = timeline.points.key
    short = timeline.points_before < max(window - 1, 1)
    found = np.zeros(len(older), np.bool_)
    found[too_old.key] = True
    found[key[affected & older.some[key] & short]] = True
    found[key[affected & (timeline.points.revision == UNKNOWN)]] = True
    return found


def _compute_averages(
    timeline: PointTimeline, chosen: Bools, times: NewestTimes, series: RollingAverage
) -> tuple[AverageRows, Int64s]:
    """Returns the rows of the chosen points that must be written, and the revisions of all points."""
    index = np.flatnonzero(chosen)
    points, fresh = timeline.points.select_points(index), timeline.is_new[index]
    pane = times.find_panes(points, fresh)
    now = _create_figures(*timeline.compute_averages(index, series.window_points), series, pane != PaneTiming.EARLY)
    figures_before = _compute_figures_before(timeline, index, times, series)
    restated = figures_before.is_published & now.find_differences(figures_before)
    passed = times.were_pending_before(points) & (pane != PaneTiming.EARLY)
    revision = timeline.points.revision.copy()
    revision[index] += restated
    written = fresh | now.find_differences(figures_before) | passed
    rows = index[written]
    order, causes = _find_causes(timeline, rows, series.window_points)
    # Without a cause the value is meaningless. It is not used, since such a row is not restated.
    oldest = np.append(timeline.points.ts[timeline.is_new], 0)[causes[0]]
    averages = AverageRows(
        points=timeline.points.select_points(rows),
        figures=now.select_rows(written),
        pane=pane[written],
        is_new=fresh[written],
        is_restated=restated[written],
        figures_before=figures_before.select_rows(written),
        cause_ranges=causes,
        points_in_order=order,
        late_ms=_compute_lag_ms(times.before_batch[timeline.points.key[rows]], oldest),
    )
    return replace(averages, points=replace(averages.points, revision=revision[rows])), revision


def _compute_lag_ms(newest: Int64s, oldest: Int64s) -> Int64s:
    """Returns by how many ms `oldest` is before `newest`: 0 if it is not, at most the highest int64."""
    apart = newest - oldest
    return np.where(newest > oldest, np.where(apart < 0, np.iinfo(np.int64).max, apart), 0)


def _create_figures(average: Float64s, size: Int64s, series: RollingAverage, passed: Bools) -> AverageFigures:
    return AverageFigures(average, size, (size >= series.minimum_points) & (passed | series.publishes_early))


def _compute_figures_before(
    timeline: PointTimeline, index: Int64s, times: NewestTimes, series: RollingAverage
) -> AverageFigures:
    """Returns the figures that the rows had before the batch. No figure of a new point is visible."""
    held = ~timeline.is_new
    held_points = timeline.points.select_points(held)
    base = PointTimeline.from_sorted(held_points, timeline.batch_index[held], len(times.before_batch))
    had_row = held[index]
    place = (np.cumsum(held) - 1)[index[had_row]]
    average, size = np.zeros(len(index)), np.zeros(len(index), np.int64)
    average[had_row], size[had_row] = base.compute_averages(place, series.window_points)
    found = _create_figures(average, size, series, ~times.were_pending_before(timeline.points.select_points(index)))
    return replace(found, is_published=found.is_published & had_row)


def _find_causes(timeline: PointTimeline, rows: Int64s, window: int) -> tuple[Int64s, tuple[Int64s, Int64s]]:
    """Returns which of the batch's points are in the window of each row.

    The result is the indices of the batch's points, sorted by series and event time. Then, for each row, the first
    position in these indices and the position after the last.
    """
    fresh = np.flatnonzero(timeline.is_new)
    first = np.searchsorted(fresh, np.maximum(rows - window + 1, rows - timeline.points_before[rows]))
    return timeline.batch_index[fresh], (first, np.searchsorted(fresh, rows, side="right"))
