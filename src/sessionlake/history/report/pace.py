"""How far the layers were behind bronze, and how much they took in, over time: out of the ledger's entries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from sessionlake.delta.schemas.names import BRONZE, CHANGES, GOLD, SILVER, SILVER_TABLES
from sessionlake.history.report.batches import Batch

Numbers = npt.NDArray[np.float64]

FOLLOWERS = (SILVER, SILVER_TABLES, GOLD)
"""Layers that go after bronze."""
# Points of a line that can be told apart; else its intervals; and moments that its percentiles are of.
_MAX_POINTS, _INTERVALS = 300, 150
_SAMPLES = 2_000
_BARS = 60
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
# A commit is seen from one microsecond to the next.
_JUST_BEFORE = 1e-6


@dataclass(frozen=True)
class Lag:
    """How many seconds a layer was behind bronze: the age of the oldest message in bronze that it did not have.

    Attributes:
        times: UTC, seconds since 1970.
        peaks: whether these are the most in each of many intervals; else both sides of every commit.
        median: over time, as are the others.
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
class Throughput:
    """What a layer took in, by time.

    Attributes:
        starts: of intervals, UTC, seconds since 1970.
        width: of an interval, seconds.
        rates: messages, or what else the layer counts, a second.
    """

    layer: str
    starts: Numbers
    width: float
    rates: Numbers


@dataclass(frozen=True)
class _Steps:
    """How far something has come: it is at `at[i]` from `times[i]` on, and was at `before` until the first.

    Counted backwards from what bronze holds now, which is 0.
    """

    times: Numbers
    at: Numbers
    before: float

    def until(self, moments: Numbers) -> Numbers:
        """Where it is at these moments."""
        return np.concatenate(([self.before], self.at))[np.searchsorted(self.times, moments, side="right")]


def lags(batches: Sequence[Batch], behind: Mapping[str, int]) -> list[Lag]:
    """The lag of each layer behind bronze that has batches.

    What was in bronze before the first of the batches counts as having come with it: a lag is at least this much.

    Args:
        batches: in the order of their commits.
        behind: how much of what its source holds a layer has not taken in by now, in the layer's own unit.
    """
    by_layer = {layer: [batch for batch in batches if batch.layer == layer] for layer in (BRONZE, *FOLLOWERS)}
    if not by_layer[BRONZE] or len(batches) < 2:  # noqa: PLR2004 - there is no time between fewer
        return []
    bronze, silver = _steps(by_layer[BRONZE], 0), _steps(by_layer[SILVER], behind.get(SILVER, 0))
    reached = {SILVER: silver}
    merged = _steps(by_layer[SILVER_TABLES], behind.get(SILVER_TABLES, 0))
    reached[SILVER_TABLES] = _Steps(merged.times, merged.at + _last(silver), merged.before + _last(silver))
    reached[GOLD] = _gold_in_messages(_steps(by_layer[GOLD], behind.get(GOLD, 0)), by_layer[SILVER], silver)
    edges = np.unique(np.concatenate([_times(batches), _times(batches)[1:] - _JUST_BEFORE]))
    return [
        _lag(layer, bronze, reached[layer], _known_moments(edges, by_layer[layer]))
        for layer in FOLLOWERS
        if by_layer[layer]
    ]


def throughput(batches: Sequence[Batch], layers: Sequence[str]) -> list[Throughput]:
    """What each layer that has batches took in, in the same intervals for all; rebuilds take in nothing new."""
    if not batches:
        return []
    times = _times(batches)
    span = times[-1] - times[0]
    width = next((width for width in _WIDTHS if span <= width * _BARS), _WIDTHS[-1])
    first = times[0] // width * width
    edges = first + width * np.arange((times[-1] - first) // width + 2)
    found = []
    for layer in layers:
        own = [batch for batch in batches if batch.layer == layer and not batch.rebuilt]
        if own:
            sums, _ = np.histogram(_times(own), bins=edges, weights=_messages(own))
            found.append(Throughput(layer, edges[:-1], float(width), sums / width))
    return found


def span_of(batches: Sequence[Batch]) -> tuple[datetime, datetime] | None:
    """From the first commit to the last."""
    return (batches[0].committed_at, batches[-1].committed_at) if batches else None


def _times(batches: Sequence[Batch]) -> Numbers:
    return np.array([batch.committed_at.timestamp() for batch in batches], dtype=np.float64)


def _messages(batches: Sequence[Batch]) -> Numbers:
    return np.array([batch.messages for batch in batches], dtype=np.float64)


def _steps(batches: Sequence[Batch], behind: int, counts: Numbers | None = None) -> _Steps:
    counts = _messages(batches) if counts is None else counts
    total = float(counts.sum())
    return _Steps(_times(batches), np.cumsum(counts) - total - behind, -total - behind)


def _last(steps: _Steps) -> float:
    return float(steps.at[-1]) if len(steps.at) else steps.before


def _gold_in_messages(gold: _Steps, batches: Sequence[Batch], silver: _Steps) -> _Steps:
    """Where gold is in messages: it counts the changes that silver made of them."""
    changes = np.array([batch.rows.get(CHANGES, 0) for batch in batches], dtype=np.float64)
    made = _steps(batches, 0, changes)
    messages = np.concatenate(([silver.before], silver.at))

    def to_messages(at: Numbers) -> Numbers:
        return messages[np.searchsorted(made.at, at, side="right")]

    return _Steps(gold.times, to_messages(gold.at), float(to_messages(np.array([gold.before]))[0]))


def _known_moments(edges: Numbers, batches: Sequence[Batch]) -> Numbers:
    """Moments that the layer's batches tell of: what it had before it was rebuilt, they do not."""
    return edges[edges >= batches[0].committed_at.timestamp()] if batches[0].rebuilt else edges


def _lag(layer: str, bronze: _Steps, layer_steps: _Steps, edges: Numbers) -> Lag:
    def at(moments: Numbers) -> Numbers:
        reached = layer_steps.until(moments)
        oldest = np.searchsorted(bronze.at, reached, side="right").clip(max=len(bronze.times) - 1)
        waits = bronze.until(moments) > reached
        return np.where(waits, np.maximum(0.0, moments - bronze.times[oldest]), 0.0)

    over_time = at(np.linspace(edges[0], edges[-1], _SAMPLES))
    exact = at(edges)
    many = len(edges) > _MAX_POINTS
    times, seconds = _peaks(edges, exact) if many else (edges, exact)
    return Lag(
        layer,
        times,
        seconds,
        peaks=many,
        now=float(exact[-1]),
        median=float(np.median(over_time)),
        nearly_most=float(np.quantile(over_time, 0.95)),
        most=float(exact.max()),
    )


def _peaks(times: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Of points that are more than can be told apart: the greatest in each of as many intervals, in its middle."""
    edges = np.linspace(times[0], times[-1], _INTERVALS + 1)
    first = np.searchsorted(times, edges[:-1])
    taken = np.flatnonzero(np.diff(np.append(first, len(times))))
    return (edges[taken] + edges[taken + 1]) / 2, np.maximum.reduceat(values, first[taken])
