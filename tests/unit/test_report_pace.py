"""How far layers were behind bronze, and how much they took in: over timelines of commits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from sessionlake.delta.schemas.names import CHANGES, QUARANTINE
from sessionlake.history.report import pace
from sessionlake.history.report.batches import LayerBatch, build_conditions_for_recent_rows
from sessionlake.history.report.pace import compute_lags, compute_throughput
from support.ledgers import NOON


def batch(layer: str, second: float, messages: int, number: int = 0, **rows: int) -> LayerBatch:
    at = NOON + timedelta(seconds=second)
    tables = {CHANGES: rows.get("changes", messages), QUARANTINE: rows.get("quarantined", 0)}
    return LayerBatch(layer, number, at, at, messages, tables)


def lag_at(found: list[pace.LagOverTime], layer: str, second: float) -> float:
    (own,) = [lag for lag in found if lag.layer == layer]
    return float(np.interp(NOON.timestamp() + second, own.times, own.seconds))


# second    0     10    20    30    40
# bronze    5     5     5
# silver                      10          has the first two batches from 30 on
TIMELINE = [batch("bronze", 0, 5), batch("bronze", 10, 5), batch("bronze", 20, 5), batch("silver", 30, 10)]


@pytest.mark.parametrize(("second", "lag"), [(0, 0), (5, 5), (20, 20), (29.99, 29.99), (30, 10)])
def test_a_lag_is_the_age_of_the_oldest_message_in_bronze_that_a_layer_lacks(second, lag):
    assert lag_at(compute_lags(TIMELINE, {"silver": 5}), "silver", second) == pytest.approx(lag, abs=1e-3)


def test_who_has_all_that_bronze_has_is_not_behind_whatever_the_time_since():
    found = compute_lags([*TIMELINE, batch("silver", 31, 5), batch("bronze", 90, 0)], {})
    assert (lag_at(found, "silver", 31), lag_at(found, "silver", 80), found[0].now) == (0, 0, 0)
    assert found[0].most == pytest.approx(30, abs=1e-3)


def test_gold_counts_changes_and_its_lag_is_of_the_messages_that_they_came_of():
    made = [batch("silver", 11, 5, changes=50), batch("silver", 21, 5, changes=2), batch("silver", 22, 5, changes=7)]
    timeline = sorted([*TIMELINE[:3], *made, batch("gold", 25, 52)], key=lambda item: item.committed_at)
    found = compute_lags(timeline, {"gold": 7})
    assert lag_at(found, "gold", 24.9) == pytest.approx(24.9, abs=1e-3)
    assert lag_at(found, "gold", 25) == pytest.approx(5, abs=1e-3)


def test_the_merged_tables_are_behind_silver_by_what_they_have_not_merged():
    timeline = [*TIMELINE, batch("silver_tables", 33, 4)]
    assert lag_at(compute_lags(timeline, {"silver": 5, "silver_tables": 6}), "silver_tables", 33) == pytest.approx(
        33, abs=1e-3
    )


def test_what_was_behind_before_the_first_batch_counts_from_it_on():
    found = compute_lags([batch("silver", 0, 1), batch("bronze", 10, 5)], {"silver": 1000})
    assert lag_at(found, "silver", 10) == 0


def test_of_a_layer_that_was_rebuilt_nothing_before_is_reported_and_the_rebuild_took_in_nothing_new():
    timeline = [*TIMELINE[:3], replace(batch("silver", 30, 10), rebuilt=True), batch("silver", 40, 5)]
    (found,) = compute_lags(timeline, {})
    assert found.times[0] == NOON.timestamp() + 30
    assert (found.seconds[0], found.most) == pytest.approx((10, 20), abs=1e-3)
    (_, silver) = compute_throughput(timeline, ["bronze", "silver"])
    assert (silver.rates * silver.width).sum() == 5


def test_there_is_no_lag_without_bronze_or_without_time():
    assert compute_lags([], {}) == []
    assert compute_lags([batch("silver", 0, 1), batch("gold", 1, 1)], {}) == []
    assert compute_lags([batch("bronze", 0, 1)], {}) == []


def test_the_intervals_of_throughput_hold_every_message_once():
    timeline = [batch("bronze", n * 0.7, n) for n in range(500)]
    (found,) = compute_throughput(timeline, ["bronze", "silver"])
    assert (found.rates * found.width).sum() == pytest.approx(sum(range(500)))
    assert len(found.starts) <= 62


@pytest.mark.parametrize("seconds", [0, 1, 60, 3600, 29 * 86_400])
def test_throughput_has_few_intervals_however_long_the_time(seconds):
    (found,) = compute_throughput([batch("bronze", 0, 1), batch("bronze", seconds, 2)], ["bronze"])
    assert len(found.starts) <= 62
    assert (found.rates * found.width).sum() == pytest.approx(3)


def test_a_line_of_many_commits_is_that_of_its_peaks():
    # Silver takes each message within half a second, and stands still twice for eight.
    stands = {second: begun + 8.0 for begun in (3_000, 7_000) for second in range(begun, begun + 8)}
    timeline = [batch("bronze", n, 1) for n in range(10_000)]
    timeline += [batch("silver", stands.get(n, n + 0.5), 1) for n in range(10_000)]
    (found,) = compute_lags(sorted(timeline, key=lambda item: item.committed_at), {})
    assert (found.peaks, len(found.times)) == (True, pace._INTERVALS)
    peaks = found.times[found.seconds > 7.9] - NOON.timestamp()
    assert [round(peak / 1000) for peak in peaks] == [3, 7]
    assert found.median < 0.6


def test_intervals_without_a_commit_have_no_peak():
    times = np.concatenate([np.arange(400.0), [100_000.0]])
    middles, peaks = pace._keep_peak_value_per_interval(times, times * 0 + 1)
    assert len(middles) == len(peaks) == 2


def test_a_table_is_narrowed_down_to_the_latest_batches_that_fit():
    timeline = [batch("silver", n, 1, number=n, quarantined=10) for n in range(10)]
    assert build_conditions_for_recent_rows(timeline, QUARANTINE, 100, 100) == []
    assert [value for _, _, value in build_conditions_for_recent_rows(timeline, QUARANTINE, 100, 35)] == [7]
    assert [value for _, _, value in build_conditions_for_recent_rows(timeline, QUARANTINE, 100, 5)] == [9]
