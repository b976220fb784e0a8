"""Rolling averages: batch by batch equals a recomputation written in plain Python."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.gold.fold.points import OlderPoints, PointSet
from sessionlake.gold.fold.rolling import FoldedPoints, PaneTiming, fold_points
from sessionlake.gold.fold.series import RollingAverage
from support.seeds import examples

Point = tuple[int, int, int, int, float]  # key, ts, position, ordinal, value
Row = tuple[int | float | bool, ...]


def points(rows: list[Point]) -> PointSet:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    return PointSet.create_unpublished_points(
        *(np.array(c, np.int64) for c in columns[:4]), np.array(columns[4], np.float64)
    )


def rows_of(found: PointSet) -> list[Point]:
    return list(
        zip(
            *(c.tolist() for c in (found.key, found.ts, found.position, found.ordinal, found.value)),
            strict=True,
        )
    )


def by_hand(everything: list[Point], window: int) -> dict[Row, Row]:
    """The table from all points: rows by key."""
    averages: dict[Row, Row] = {}
    per_key: dict[int, list[Point]] = {}
    for point in sorted(everything):
        line = per_key.setdefault(point[0], [])
        line.append(point)
        last = [p[4] for p in line[-window:]]
        averages[point[:4]] = (point[4], left_sum(last) / len(last), len(last))
    return averages


def left_sum(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


class Tables:
    """The table and the folded state, in memory."""

    def __init__(self, keys: int, window: int, keep: int, **series: int) -> None:
        self.keys, self.keep = keys, keep
        self.series = RollingAverage("own", window_points=window, **series)
        self.tail, self.older = PointSet.create_empty(), OlderPoints.create_without_older_points(keys)
        self.averages: dict[Row, Row] = {}
        self.told: dict[Row, Row] = {}
        self.restated: set[Row] = set()
        self.needs_history = 0

    def fold(self, batch: list[Point]) -> FoldedPoints:
        new = points(batch)
        self.restated = set()
        found = fold_points(self.tail, self.older, new, series=self.series, kept_points=self.keep)
        self.tail, self.older = found.tail, found.older
        slow = found.needs_history[new.key]
        history = dict(self.averages)
        self.write(found, new)
        if slow.any():
            self._recompute(new.select_points(slow), history)
        return found

    def _recompute(self, new: PointSet, history: dict[Row, Row]) -> None:
        self.needs_history += len(new)
        base = points([(*key, row[0]) for key, row in history.items()])
        base = replace(base, revision=np.array([self.told[key][0] for key in history], np.int64)).without_points(new)
        base = base.select_points(np.isin(base.key, new.key))
        found = fold_points(
            base,
            OlderPoints.create_without_older_points(self.keys),
            new,
            series=self.series,
            kept_points=len(base) + len(new),
        )
        assert not found.needs_history.any()
        self.write(found, new)

    def write(self, found: FoldedPoints, new: PointSet) -> None:
        a = found.averages
        rows = zip(
            *(
                rows_of(a.points),
                a.figures.average.tolist(),
                a.figures.point_count.tolist(),
                a.figures.is_published.tolist(),
                a.is_new.tolist(),
            ),
            *(a.points.revision.tolist(), a.pane.tolist(), a.is_restated.tolist(), a.averages_before.average.tolist()),
            *(a.cause_ranges[0].tolist(), a.cause_ranges[1].tolist(), a.late_ms.tolist()),
            strict=True,
        )
        for point, average, size, seen, fresh, revision, pane, restated, figures_before, first, end, late in rows:
            assert (point[:4] in self.averages) != fresh
            if restated:
                assert self.averages[point[:4]][1] == figures_before
                because = rows_of(new.select_points(a.points_in_order[first:end]))
                assert because == sorted(because)
                assert {p[0] for p in because} == {point[0]}
                self.restated.add((*point[:4], revision, late, because[0][1]))
            self.averages[point[:4]] = (point[4], average if seen else None, size)
            self.told[point[:4]] = (revision, pane)


class Told:
    """What was published when, worked out point by point from all that came before and with each batch."""

    def __init__(self, window: int, watermark: int, *, early: bool, least: int) -> None:
        self.window, self.watermark, self.early, self.least = window, watermark, early, least
        self.lines: dict[int, list[Point]] = {}
        self.told: dict[Row, Row] = {}

    def figure(self, line: list[Point], point: Point) -> tuple[float | None, int] | None:
        """Average, if it is to be seen, and size; None of a point that is not there."""
        if point not in line:
            return None
        last = sorted(line)[: sorted(line).index(point) + 1][-self.window :]
        seen = len(last) >= self.least and (self.early or not self.is_early(line, point))
        return (left_sum([p[4] for p in last]) / len(last) if seen else None), len(last)

    def is_early(self, line: list[Point], point: Point) -> bool:
        return not line or point[1] > max(p[1] for p in line) - self.watermark

    def fold(self, batch: list[Point]) -> set[Row]:
        restated = set()
        for key in {p[0] for p in batch}:
            before, new = self.lines.get(key, []), [p for p in batch if p[0] == key]
            after = self.lines[key] = before + new
            for place, point in enumerate(sorted(after)):
                figures_before, now = self.figure(before, point), self.figure(after, point)
                assert now is not None
                if figures_before == now and self.is_early(before, point) == self.is_early(after, point):
                    continue
                late = not self.is_early(before, point)
                if figures_before is None and before:
                    late = point[1] < max(p[1] for p in before) - self.watermark
                pane = (
                    PaneTiming.LATE if late else PaneTiming.EARLY if self.is_early(after, point) else PaneTiming.ON_TIME
                )
                revision = 0 if figures_before is None else self.told[point[:4]][0]
                if figures_before is not None and figures_before[0] is not None and figures_before != now:
                    revision += 1
                    causes = [p for p in sorted(after)[max(0, place - self.window + 1) : place + 1] if p in new]
                    behind = max(0, max(p[1] for p in before) - causes[0][1])
                    restated.add((*point[:4], revision, behind, causes[0][1]))
                self.told[point[:4]] = (revision, pane)
        return restated


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[Point]], int, int]:
    """Batches of points with many ties in ts and much lateness, a window and a length of tail."""
    window = draw(st.integers(1, 5))
    keep = window - 1 + draw(st.integers(0, 4))
    span = draw(st.sampled_from([4, 100_000, 400_000]))
    raw = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(-span, span), st.floats(-1e9, 1e9)), min_size=1, max_size=60)
    )
    drift = draw(st.sampled_from([0, 0, 1_000, 20_000]))  # later arrivals tend to be later in event time
    made = [(key, ts + i * drift, i // 2, i % 2, value + 0.0) for i, (key, ts, value) in enumerate(raw)]
    cuts = sorted(draw(st.sets(st.integers(0, len(made)), max_size=12)) | {0, len(made)})
    return [made[a:b] for a, b in pairwise(cuts)], window, keep


@given(histories())
def test_any_batches_equal_a_recomputation_bit_for_bit(history: tuple[list[list[Point]], int, int]):
    batches, window, keep = history
    tables = Tables(3, window, keep)
    for batch in batches:
        tables.fold(batch)
    assert tables.averages == by_hand([p for batch in batches for p in batch], window)


@examples(usual=240, in_all=2400)
@given(histories(), st.sampled_from([0, 0, 3, 50_000]), st.booleans(), st.integers(1, 3))
def test_what_is_published_when_follows_from_the_batches_alone(
    history: tuple[list[list[Point]], int, int], watermark: int, early: bool, least: int
):
    """Revisions, panes and restatements are the same whether rows follow from the tails or from the table."""
    batches, window, keep = history
    tables = Tables(3, window, keep, watermark_ms=watermark, publishes_early=early, minimum_points=least)
    told = Told(window, watermark, early=early, least=least)
    for batch in batches:
        tables.fold(batch)
        assert tables.restated == told.fold(batch)
        assert tables.told == told.told
    everything = {p[:4]: told.figure(told.lines[p[0]], p) for batch in batches for p in batch}
    assert {key: row[1:] for key, row in tables.averages.items()} == everything


@given(histories())
def test_no_key_keeps_more_points_than_a_tail(history: tuple[list[list[Point]], int, int]):
    batches, window, keep = history
    tables = Tables(3, window, keep)
    for batch in batches:
        found = tables.fold(batch)
        assert np.bincount(found.tail.key, minlength=3).max() <= keep


@examples(usual=120, in_all=1200)
@given(histories(), st.integers(0, 400_000), st.sampled_from([0, 3, 50_000]))
def test_a_forgotten_key_comes_back_exact(history: tuple[list[list[Point]], int, int], slack: int, watermark: int):
    batches, window, keep = history
    tables = Tables(3, window, keep, watermark_ms=watermark, publishes_early=not watermark)
    told = Told(window, watermark, early=not watermark, least=1)
    for batch in batches:
        tables.fold(batch)
        told.fold(batch)
        newest = max((p[1] for b in batches[: batches.index(batch) + 1] for p in b), default=0) + slack
        tables.tail = PointSet.create_empty()
        tables.older = OlderPoints.create_with_forgotten_points(np.ones(3, np.bool_), np.full(3, newest))
    everything = {p[:4]: told.figure(told.lines[p[0]], p) for batch in batches for p in batch}
    assert {key: row[1:] for key, row in tables.averages.items()} == everything


def seconds(*at: float, position: int = 0) -> list[Point]:
    """Points of key 0, one for each second, whose value is the second."""
    return [(0, int(s * 1000), position + i, 0, float(s)) for i, s in enumerate(at)]


# window 3, tail of 4; the first batch holds seconds 0 to 9, so the tail is 6 7 8 9
@pytest.mark.parametrize(
    ("late", "needs_history"),
    [
        (9.5, False),
        (8.5, False),
        (7.5, False),  # two of the tail before it: just enough
        (6.5, True),  # its window would begin before the tail
        (5.5, True),  # itself older than the tail
    ],
)
def test_a_late_point_is_proven_as_long_as_its_window_is_in_the_tail(late: float, needs_history: bool):
    tables = Tables(1, window=3, keep=4)
    tables.fold(seconds(*range(10)))
    found = tables.fold(seconds(late, position=100))
    assert found.needs_history.tolist() == [needs_history]


def test_a_late_point_refines_the_following_n_minus_1_averages_and_no_more():
    tables = Tables(1, window=3, keep=10)
    tables.fold(seconds(0, 1, 2, 4, 5, 6, 7))
    found = tables.fold(seconds(3, position=100))
    assert [p[1] for p in rows_of(found.averages.points)] == [3000, 4000, 5000]
    assert found.averages.is_new.tolist() == [True, False, False]
    assert found.averages.figures.average.tolist() == [2.0, 3.0, 4.0]


def test_ties_in_event_time_follow_position_then_ordinal():
    batch = [(0, 5, 1, 0, 1.0), (0, 5, 0, 1, 2.0), (0, 5, 0, 0, 4.0)]
    tables = Tables(1, window=2, keep=2)
    for point in batch:
        tables.fold([point])
    assert tables.averages[0, 5, 0, 1] == (2.0, 3.0, 2)
    assert tables.averages[0, 5, 1, 0] == (1.0, 1.5, 2)


@pytest.mark.parametrize("ts", [-(2**63), 2**63 - 1])
def test_a_point_at_either_end_of_time_has_an_average(ts: int):
    tables = Tables(1, window=2, keep=2)
    tables.fold([(0, ts, 0, 0, 1.0)])
    assert tables.averages[0, ts, 0, 0] == (1.0, 1.0, 1)


@pytest.mark.parametrize("watermark", [0, 10])
def test_the_first_point_is_on_time_at_the_lowest_time_too_where_the_watermark_ends(watermark: int):
    tables = Tables(1, window=2, keep=2, watermark_ms=watermark, publishes_early=False)
    for position in range(2):
        tables.fold([(0, -(2**63), position, 0, 1.0)])
        assert tables.averages[0, -(2**63), position, 0] == (1.0, 1.0, position + 1)
        assert tables.told[0, -(2**63), position, 0] == (0, PaneTiming.ON_TIME)


def test_a_point_that_is_late_by_more_than_numbers_tell_is_late_by_the_most_they_do():
    tables = Tables(1, window=2, keep=2)
    tables.fold([(0, 2**63 - 1, 0, 0, 1.0)])
    tables.fold([(0, -(2**63), 1, 0, 2.0)])
    assert tables.restated == {(0, 2**63 - 1, 0, 0, 1, 2**63 - 1, -(2**63))}


def test_sums_beyond_the_range_of_doubles_are_infinite_and_silent():
    tables = Tables(1, window=2, keep=2)
    tables.fold([(0, i, i, 0, 1.7e308) for i in range(3)])
    assert tables.averages[0, 2, 2, 0][1] == float("inf")


def test_a_replayed_batch_does_not_count_its_own_points_twice():
    history = points(seconds(1, 2, 3))
    assert rows_of(history.without_points(points(seconds(1, 2, 3)[1:2]))) == [
        (0, 1000, 0, 0, 1.0),
        (0, 3000, 2, 0, 3.0),
    ]


def test_a_row_that_was_restated_through_the_table_is_revised_once_more():
    tables, told = Tables(1, window=3, keep=4), Told(3, 0, early=True, least=1)
    for batch in (seconds(*range(10)), seconds(6.5, position=100), seconds(7.5, position=101)):
        tables.fold(batch)
        assert tables.restated == told.fold(batch)
    assert tables.told[0, 8000, 8, 0] == (2, PaneTiming.LATE)
    assert tables.needs_history == 2


def test_points_that_the_watermark_has_not_passed_are_kept_until_it_does():
    tables = Tables(1, window=2, keep=2, watermark_ms=10_000, publishes_early=False)
    tables.fold(seconds(*range(10)))
    assert {row[1] for row in tables.averages.values()} == {None}
    tables.fold(seconds(15, position=100))
    assert [key[1] for key, row in tables.averages.items() if row[1] is not None] == [s * 1000 for s in range(6)]
    assert {told for key, told in tables.told.items() if key[1] <= 5000} == {(0, PaneTiming.ON_TIME)}
