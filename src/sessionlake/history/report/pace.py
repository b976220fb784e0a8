"""Computes each layer's lag behind bronze and its throughput over time. Only the ledger is read for this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sessionlake.delta.schemas.names import BRONZE, CHANGES, GOLD, SILVER, SILVER_TABLES
from sessionlake.history.report.batches import LayerBatch

Numbers = npt.NDArray[np.float64]

FOLLOWERS = (SILVER, SILVER_TABLES, GOLD)
"""The layers that read from bronze, directly or through another layer."""
# A line has at most 300 points; if there are more, they are reduced to 150 intervals. Percentiles are computed from
# 2,000 times of the range.
_MAX_POINTS, _INTERVALS = 300, 150
_SAMPLES = 2_000
_BARS = 60
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
# A lag just before a commit is computed this many seconds earlier.
_JUST_BEFORE = 1e-6


@dataclass(frozen=True)
class LagOverTime:
    """The lag of a layer over time: at each time, the age of the oldest message in bronze that the layer had not read.

    Attributes:
        layer: Name of the layer.
        times: Times in seconds since 1970 UTC, ascending.
        seconds: The lag at these times, in seconds.
        peaks: True if `times` has one time per interval, with the highest lag of the interval. False if it has the
            times just before and at each commit.
        now: The lag at the last commit, in seconds.
        median, most, nearly_most: Median, maximum and 95th percentile of the lag over time, in seconds.
    """

    layer: str
    times: Numbers
    seconds: Numbers
    peaks: bool
    now: float
    median: float
    most: float
    nearly_most: float


@dataclass(frozen=True)
class ThroughputOverTime:
    """How much a layer read per second, in intervals of equal length.

    Attributes:
        layer: Name of the layer.
        starts: Starts of the intervals, in seconds since 1970 UTC.
        width: Length of an interval in seconds.
        rates: For each interval, messages per second; for gold, session changes per second.
    """

    layer: str
    starts: Numbers
    width: float
    rates: Numbers


@dataclass(frozen=True)
class _ReadPositionOverTime:
    """How far a layer had read bronze, over time.

    Positions are counted back from bronze's newest message at the time of the report: 0 is that message, and -n is n
    messages before it.

    Attributes:
        times: Times at which the position changed, in seconds since 1970.
        at: The position from each of these times on.
        before: The position before the first of these times.
    """

    times: Numbers
    at: Numbers
    before: float

    def find_read_positions_at(self, times: Numbers) -> Numbers:
        """Returns the layer's position at each of these times (in seconds since 1970)."""
        return np.concatenate(([self.before], self.at))[np.searchsorted(self.times, times, side="right")]


def compute_lags(batches: Sequence[LayerBatch], unread_by_layer: Mapping[str, int]) -> list[LagOverTime]:
    """Returns the lag behind bronze, over time, of each layer that has batches; empty with fewer than two batches.

    Messages from before the first batch count as if they had arrived with it, so the real lag may be longer.

    Args:
        batches: The batches of all layers, in the order of their commits.
        unread_by_layer: For each layer, how much of its source it has not read now: messages, or session changes for
            gold.
    """
    by_layer = {layer: [batch for batch in batches if batch.layer == layer] for layer in (BRONZE, *FOLLOWERS)}
    if not by_layer[BRONZE] or len(batches) < 2:  # noqa: PLR2004 - there is no time between fewer
        return []
    bronze, silver = (
        _compute_read_positions_over_time(by_layer[BRONZE], 0),
        _compute_read_positions_over_time(by_layer[SILVER], unread_by_layer.get(SILVER, 0)),
    )
    reached = {SILVER: silver}
    merged = _compute_read_positions_over_time(by_layer[SILVER_TABLES], unread_by_layer.get(SILVER_TABLES, 0))
    reached[SILVER_TABLES] = _ReadPositionOverTime(
        merged.times,
        merged.at + _get_last_read_message_count(silver),
        merged.before + _get_last_read_message_count(silver),
    )
    reached[GOLD] = _convert_gold_positions_to_messages(
        _compute_read_positions_over_time(by_layer[GOLD], unread_by_layer.get(GOLD, 0)), by_layer[SILVER], silver
    )
    edges = np.unique(np.concatenate([_list_commit_times(batches), _list_commit_times(batches)[1:] - _JUST_BEFORE]))
    return [
        _compute_lag(layer, bronze, reached[layer], _select_times_with_known_position(edges, by_layer[layer]))
        for layer in FOLLOWERS
        if by_layer[layer]
    ]


def compute_throughput(batches: Sequence[LayerBatch], layers: Sequence[str]) -> list[ThroughputOverTime]:
    """Returns how much each layer that has batches read per second. All layers have the same intervals.

    Messages that a rebuild read do not count.

    Args:
        batches: The batches of all layers, in the order of their commits.
        layers: Names of the layers.
    """
    if not batches:
        return []
    times = _list_commit_times(batches)
    span = times[-1] - times[0]
    width = next((width for width in _WIDTHS if span <= width * _BARS), _WIDTHS[-1])
    first = times[0] // width * width
    edges = first + width * np.arange((times[-1] - first) // width + 2)
    found = []
    for layer in layers:
        own = [batch for batch in batches if batch.layer == layer and not batch.rebuilt]
        if own:
            sums, _ = np.histogram(_list_commit_times(own), bins=edges, weights=_list_message_counts(own))
            found.append(ThroughputOverTime(layer, edges[:-1], float(width), sums / width))
    return found


def _list_commit_times(batches: Sequence[LayerBatch]) -> Numbers:
    return np.array([batch.committed_at.timestamp() for batch in batches], dtype=np.float64)


def _list_message_counts(batches: Sequence[LayerBatch]) -> Numbers:
    return np.array([batch.messages for batch in batches], dtype=np.float64)


def _compute_read_positions_over_time(
    batches: Sequence[LayerBatch], unread: int, counts: Numbers | None = None
) -> _ReadPositionOverTime:
    counts = _list_message_counts(batches) if counts is None else counts
    total = float(counts.sum())
    return _ReadPositionOverTime(_list_commit_times(batches), np.cumsum(counts) - total - unread, -total - unread)


def _get_last_read_message_count(read_positions: _ReadPositionOverTime) -> float:
    return float(read_positions.at[-1]) if len(read_positions.at) else read_positions.before


def _convert_gold_positions_to_messages(
    gold: _ReadPositionOverTime, batches: Sequence[LayerBatch], silver: _ReadPositionOverTime
) -> _ReadPositionOverTime:
    """Converts how far gold had read over time from numbers of session changes to numbers of messages.

    Args:
        gold: Gold's positions, counted in session changes.
        batches: Silver's batches, which say how many changes each batch of messages led to.
        silver: Silver's positions, counted in messages.
    """
    changes = np.array([batch.rows.get(CHANGES, 0) for batch in batches], dtype=np.float64)
    made = _compute_read_positions_over_time(batches, 0, changes)
    messages = np.concatenate(([silver.before], silver.at))

    def convert_change_positions_to_messages(change_positions: Numbers) -> Numbers:
        return messages[np.searchsorted(made.at, change_positions, side="right")]

    return _ReadPositionOverTime(
        gold.times,
        convert_change_positions_to_messages(gold.at),
        float(convert_change_positions_to_messages(np.array([gold.before]))[0]),
    )


def _select_times_with_known_position(times: Numbers, batches: Sequence[LayerBatch]) -> Numbers:
    """Returns the times at which a layer's position is known. Before a rebuild of the layer it is not known.

    Args:
        times: Times in seconds since 1970.
        batches: The layer's batches, in the order of their commits.
    """
    return times[times >= batches[0].committed_at.timestamp()] if batches[0].rebuilt else times


def _compute_lag(
    layer: str, bronze: _ReadPositionOverTime, layer_steps: _ReadPositionOverTime, edges: Numbers
) -> LagOverTime:
    def compute_lag_at(moments: Numbers) -> Numbers:
        reached = layer_steps.find_read_positions_at(moments)
        oldest = np.searchsorted(bronze.at, reached, side="right").clip(max=len(bronze.times) - 1)
        waits = bronze.find_read_positions_at(moments) > reached
        return np.where(waits, np.maximum(0.0, moments - bronze.times[oldest]), 0.0)

    over_time = compute_lag_at(np.linspace(edges[0], edges[-1], _SAMPLES))
    exact = compute_lag_at(edges)
    many = len(edges) > _MAX_POINTS
    times, seconds = _keep_peak_value_per_interval(edges, exact) if many else (edges, exact)
    return LagOverTime(
        layer,
        times,
        seconds,
        peaks=many,
        now=float(exact[-1]),
        median=float(np.median(over_time)),
        nearly_most=float(np.quantile(over_time, 0.95)),
        most=float(exact.max()),
    )


def _keep_peak_value_per_interval(times: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Returns fewer points: for each interval of equal length, its middle and its highest value."""
    edges = np.linspace(times[0], times[-1], _INTERVALS + 1)
    first = np.searchsorted(times, edges[:-1])
    taken = np.flatnonzero(np.diff(np.append(first, len(times))))
    return (edges[taken] + edges[taken + 1]) / 2, np.maximum.reduceat(values, first[taken])
