"""Rolling averages over the last N points of a series, folded batch by batch and equal to a recomputation bit for bit.

For each series the fold keeps only the *tail*, its newest points, and `OlderPoints` about the points before the
tail. A window is the up to N points that an average is over. It is always summed from scratch, the oldest point first.
So the order in which points arrived does not affect the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from sessionlake.gold.fold.points import UNKNOWN, OlderPoints, PointSet
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.types import Bools, Float64s, Int64s

_NEVER = np.iinfo(np.int64).min


class PaneTiming(IntEnum):
    """When the row of a point was last written, compared with the watermark of the point's series.

    `EARLY`: before the watermark passed the point. `ON_TIME`: in the batch in which it did. `LATE`: in a later batch.
    """

    EARLY = 0
    ON_TIME = 1
    LATE = 2


@dataclass(frozen=True)
class AverageResults:
    """The averages of some rows, as columns.

    Attributes:
        average: The average, even if it is not published yet.
        point_count: Number of points in the average.
        is_published: True if the average is published.
    """

    average: Float64s
    point_count: Int64s
    is_published: Bools

    def select_rows(self, index: Int64s | Bools) -> AverageResults:
        """Returns the averages of the rows at these indices, or where `index` is True."""
        return AverageResults(self.average[index], self.point_count[index], self.is_published[index])

    def are_different_from(self, other_figures: AverageResults) -> Bools:
        """Returns True for each row whose published figures differ from those of the same row in `other_figures`."""
        same = (self.average == other_figures.average) | (np.isnan(self.average) & np.isnan(other_figures.average))
        return (
            (self.is_published != other_figures.is_published)
            | (self.point_count != other_figures.point_count)
            | (self.is_published & ~same)
        )


@dataclass(frozen=True)
class AverageRows:
    """Rows that a batch writes to a table of averages, as columns.

    Attributes:
        points: The point of each row.
        figures: The average of each row after the batch.
        pane: The `PaneTiming` of each row.
        is_new: True for a new point. False for an existing row whose figures or pane change.
        is_restated: True if a published figure has changed.
        averages_before: The average of each row before the batch. Of a new point it is not published.
        cause_ranges: The batch's points that are among the points of each average, as positions in `points_in_order`:
            the first position of each row, and the position after its last.
        points_in_order: Indices of the batch's points, sorted by series and event time.
        late_ms: How many ms the first of the batch's points in a row's average is older than the newest point that its
            series had before the batch.
    """

    points: PointSet
    figures: AverageResults
    pane: Int64s
    is_new: Bools
    is_restated: Bools
    averages_before: AverageResults
    cause_ranges: tuple[Int64s, Int64s]
    points_in_order: Int64s
    late_ms: Int64s


@dataclass(frozen=True)
class FoldedPoints:
    """The result of a batch for the series that have new points. Their codes are 0 to the number of series - 1.

    Attributes:
        tail: The newest points of each series, to keep for the next batch.
        older: What is known about the points of each series that are older than the tail.
        needs_history: True for a series whose averages must be computed from all its points in the table, because the
            tail does not suffice.
        averages: The rows to write for all other series.
    """

    tail: PointSet
    older: OlderPoints
    needs_history: Bools
    averages: AverageRows


@dataclass(frozen=True)
class PointTimeline:
    """The points of earlier batches and of this batch, sorted by series and event time.

    Attributes:
        points: The sorted points.
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
        """Returns the timeline of points that are already sorted by series and event time.

        Args:
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

    def compute_averages(self, index: Int64s, max_points: int) -> tuple[Float64s, Int64s]:
        """Returns the average of each of some points and the points before it, and the number of points in it.

        Args:
            index: Indices of the points.
            max_points: The highest number of points in an average.
        """
        rank = self.points_before[index]
        total = np.zeros(len(index))
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for back in range(min(max_points - 1, int(rank.max(initial=0))), -1, -1):
                total += np.where(rank >= back, self.points.value[np.maximum(index - back, 0)], 0.0)
        size = np.minimum(rank + 1, max_points)
        return self.points.replace_by_exact_averages(total / size, index, size), size


@dataclass(frozen=True)
class NewestEventTimes:
    """The newest event time of each series before and after a batch. The watermark is `watermark_ms` behind it.

    Attributes:
        before_batch: Newest event time before the batch, in ms; the lowest integer if the series had no point.
        after_batch: Newest event time after the batch, in ms.
        had_points: True if the series had a point before the batch.
        watermark_ms: By how many ms the watermark of a series is behind its newest event time.
    """

    before_batch: Int64s
    after_batch: Int64s
    had_points: Bools
    watermark_ms: int

    @staticmethod
    def from_points(tail: PointSet, older: OlderPoints, new_points: PointSet, watermark_ms: int) -> NewestEventTimes:
        """Computes the newest event time of each series, before a batch and after it.

        Args:
            tail: The newest points of the series before the batch.
            older: What is known about points older than the tail, for each series.
            new_points: The batch's points.
            watermark_ms: By how many ms the watermark of a series is behind its newest event time.
        """
        before, known = np.where(older.some, older.ts, _NEVER), older.some.copy()
        known[tail.key] = True
        np.maximum.at(before, tail.key, tail.ts)
        after = before.copy()
        np.maximum.at(after, new_points.key, new_points.ts)
        return NewestEventTimes(before, after, known, watermark_ms)

    def compute_pane_timings(self, points: PointSet, is_new: Bools) -> Int64s:
        """Returns the `PaneTiming` of the rows that this batch writes.

        A new point exactly at the watermark is not late.

        Args:
            points: The point of each row.
            is_new: True for each point that is new in this batch.
        """
        passed, passing = ~self.were_pending_before_batch(points), self._are_before_watermark(self.after_batch, points)
        late = passed & ~(is_new & (points.ts == self._compute_watermarks(self.before_batch)[points.key]))
        return np.where(late, PaneTiming.LATE, np.where(passing, PaneTiming.ON_TIME, PaneTiming.EARLY))

    def were_pending_before_batch(self, points: PointSet) -> Bools:
        """Returns True for each point that the watermark of its series had not passed before the batch."""
        return ~(self.had_points[points.key] & self._are_before_watermark(self.before_batch, points))

    def are_pending_after_batch(self, points: PointSet) -> Bools:
        """Returns True for each point that the watermark of its series has not passed after the batch."""
        return ~self._are_before_watermark(self.after_batch, points)

    def have_pending_older_points(self, older: OlderPoints) -> Bools:
        """Returns True for each series with older points that the watermark may not have passed before the batch."""
        return older.some & (self._compute_watermarks(self.before_batch) < older.ts)

    def _are_before_watermark(self, newest: Int64s, points: PointSet) -> Bools:
        passed: Bools = points.ts <= self._compute_watermarks(newest)[points.key]
        return passed

    def _compute_watermarks(self, newest: Int64s) -> Int64s:
        # Below this bound the difference would underflow.
        return np.where(newest < _NEVER + self.watermark_ms, _NEVER, newest - self.watermark_ms)


def fold_points(
    tail: PointSet, older: OlderPoints, new_points: PointSet, *, series: RollingAverage, kept_points: int
) -> FoldedPoints:
    """Computes the averages that a batch's points add or change, and the points to keep for the next batch.

    Args:
        tail: The newest points that the state has of each series with new points, in any order.
        older: What is known about the points that are older than the tail, for each series.
        new_points: The batch's points, in any order. None of them is in `tail`.
        series: The table of averages.
        kept_points: Number of points to keep per series, at least `series.window_points` - 1. Points that the watermark
            has not passed are kept in addition.
    """
    times = NewestEventTimes.from_points(tail, older, new_points, series.watermark_ms)
    timeline, too_old = _merge_into_timeline(tail, older, new_points)
    affected = _may_rows_of_points_change(timeline, times, series.window_points)
    needs_history = _do_series_need_history(timeline, older, too_old, affected, series.window_points)
    needs_history = needs_history | times.have_pending_older_points(older)
    averages, revision = _compute_averages(timeline, affected & ~needs_history[timeline.points.key], times, series)
    # Rows of series that need their history are computed from the table. So their revisions are not known here.
    is_unknown = needs_history[timeline.points.key] & ~timeline.is_new
    timeline = replace(timeline, points=replace(timeline.points, revision=np.where(is_unknown, UNKNOWN, revision)))
    pending = np.bincount(timeline.points.key[times.are_pending_after_batch(timeline.points)], minlength=len(older))
    dropped = timeline.points_after >= kept_points + pending[timeline.points.key]
    return FoldedPoints(
        tail=timeline.points.select_points(~dropped),
        older=older.add_dropped_points(timeline.points.key[dropped], timeline.points.ts[dropped]),
        needs_history=needs_history,
        averages=averages,
    )


def _merge_into_timeline(tail: PointSet, older: OlderPoints, new_points: PointSet) -> tuple[PointTimeline, PointSet]:
    """Merges the tails of series and new points into one timeline.

    Returns:
        The timeline, and the new points that are older than their tail and therefore not in the timeline.
    """
    both = PointSet.concat_points(tail, new_points)
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


def _may_rows_of_points_change(timeline: PointTimeline, times: NewestEventTimes, window: int) -> Bools:
    """Returns True for each point whose row may change in this batch.

    These are new points, up to `window` - 1 points after each of them, and points that the watermark passes with this
    batch.
    """
    points, fresh = timeline.points, timeline.is_new
    place = np.arange(len(points))
    last_fresh = np.maximum.accumulate(np.where(fresh, place, -1))
    follows = (last_fresh >= place - timeline.points_before) & (place - last_fresh < window)
    return follows | (times.were_pending_before_batch(points) & ~times.are_pending_after_batch(points))


def _do_series_need_history(
    timeline: PointTimeline, older: OlderPoints, too_old: PointSet, affected: Bools, window: int
) -> Bools:
    """Returns True for each series whose rows must be computed from the table, because its tail does not suffice.

    A window may reach back beyond the tail, or the revision of a row may be unknown.

    Args:
        timeline: The points in the tails and the batch's points.
        older: What is known about points older than the tails.
        too_old: The batch's points that are older than their tail.
        affected: True for each point of the timeline whose row may change.
        window: The highest number of points in an average.
    """
    key = timeline.points.key
    short = timeline.points_before < max(window - 1, 1)
    found = np.zeros(len(older), np.bool_)
    found[too_old.key] = True
    found[key[affected & older.some[key] & short]] = True
    found[key[affected & (timeline.points.revision == UNKNOWN)]] = True
    return found


def _compute_averages(
    timeline: PointTimeline, may_change: Bools, times: NewestEventTimes, series: RollingAverage
) -> tuple[AverageRows, Int64s]:
    """Returns the rows to write, and the new revisions of all points.

    Args:
        timeline: All points.
        may_change: True for each point whose row may change.
        times: The newest event time of each series.
        series: The table of averages.
    """
    index = np.flatnonzero(may_change)
    points, fresh = timeline.points.select_points(index), timeline.is_new[index]
    pane = times.compute_pane_timings(points, fresh)
    now = _create_average_results(
        *timeline.compute_averages(index, series.window_points), series, pane != PaneTiming.EARLY
    )
    averages_before = _compute_averages_before_batch(timeline, index, times, series)
    restated = averages_before.is_published & now.are_different_from(averages_before)
    passed = times.were_pending_before_batch(points) & (pane != PaneTiming.EARLY)
    revision = timeline.points.revision.copy()
    revision[index] += restated
    written = fresh | now.are_different_from(averages_before) | passed
    rows = index[written]
    order, causes = _find_new_points_of_rows(timeline, rows, series.window_points)
    # Without a cause the value is meaningless. It is not used, since such a row is not restated.
    oldest = np.append(timeline.points.ts[timeline.is_new], 0)[causes[0]]
    averages = AverageRows(
        points=timeline.points.select_points(rows),
        figures=now.select_rows(written),
        pane=pane[written],
        is_new=fresh[written],
        is_restated=restated[written],
        averages_before=averages_before.select_rows(written),
        cause_ranges=causes,
        points_in_order=order,
        late_ms=_compute_lag_ms(times.before_batch[timeline.points.key[rows]], oldest),
    )
    return replace(averages, points=replace(averages.points, revision=revision[rows])), revision


def _compute_lag_ms(newest: Int64s, oldest: Int64s) -> Int64s:
    """Returns by how many ms each time in `oldest` is before the one in `newest`; 0 if it is not before it.

    The result is at most the highest int64.
    """
    apart = newest - oldest
    return np.where(newest > oldest, np.where(apart < 0, np.iinfo(np.int64).max, apart), 0)


def _create_average_results(average: Float64s, size: Int64s, series: RollingAverage, passed: Bools) -> AverageResults:
    return AverageResults(average, size, (size >= series.minimum_points) & (passed | series.publishes_early))


def _compute_averages_before_batch(
    timeline: PointTimeline, index: Int64s, times: NewestEventTimes, series: RollingAverage
) -> AverageResults:
    """Returns the averages that some points, at the indices `index`, had before the batch. New points have none."""
    held = ~timeline.is_new
    held_points = timeline.points.select_points(held)
    base = PointTimeline.from_sorted(held_points, timeline.batch_index[held], len(times.before_batch))
    had_row = held[index]
    place = (np.cumsum(held) - 1)[index[had_row]]
    average, size = np.zeros(len(index)), np.zeros(len(index), np.int64)
    average[had_row], size[had_row] = base.compute_averages(place, series.window_points)
    found = _create_average_results(
        average, size, series, ~times.were_pending_before_batch(timeline.points.select_points(index))
    )
    return replace(found, is_published=found.is_published & had_row)


def _find_new_points_of_rows(
    timeline: PointTimeline, rows: Int64s, window: int
) -> tuple[Int64s, tuple[Int64s, Int64s]]:
    """Returns which of the batch's points are among the points of each row's average.

    Args:
        timeline: All points.
        rows: Index in the timeline of each row's point.
        window: The highest number of points in an average.

    Returns:
        The indices of the batch's points, sorted by series and event time. Then, for each row, the position of its
        first point in this array, and the position after its last.
    """
    fresh = np.flatnonzero(timeline.is_new)
    first = np.searchsorted(fresh, np.maximum(rows - window + 1, rows - timeline.points_before[rows]))
    return timeline.batch_index[fresh], (first, np.searchsorted(fresh, rows, side="right"))
