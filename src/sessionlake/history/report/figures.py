"""Draws the report's charts. Module `svg` converts them to SVG; colours and fonts are in the page's CSS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from sessionlake.history.report.alerts import AlertsOfRuleAndKey
from sessionlake.history.report.pace import LagOverTime, Numbers, ThroughputOverTime
from sessionlake.history.report.series import MetricSeries
from sessionlake.history.report.svg import convert_to_svg, create_tooltip_id, get_placeholder_of_css_color
from sessionlake.history.report.words import format_duration, format_layer_name, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In points, which are the units of the SVG's coordinates.
_WIDTH, _HEIGHT = 560, 230
_ROW, _ALERT = 88, 26
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 22, 24
_POINT = 1 / 72
_BANDS = 60
# The opacity of areas that only show tooltips. Fully transparent areas would not react to the pointer.
_UNSEEN = 0.002
_DAY = 86_400
# The width of a minute's bar in seconds, and the fewest minutes that the axis has room for.
_MINUTE, _FEWEST_MINUTES = 46, 5
# Spans (s) from which the axis shows no seconds, and no hours.
_SHORT, _LONG = 600, 2 * _DAY


def draw_freshness(lags: Sequence[LagOverTime]) -> Markup:
    """Returns a chart of how many seconds each layer was behind bronze, over time."""
    figure, (axes,) = _create_figure(
        1, f"seconds behind bronze{', the most in each interval' if lags[0].peaks else ''}"
    )
    for lag in lags:
        axes.plot(
            _convert_seconds_to_days(lag.times),
            lag.seconds,
            color=get_placeholder_of_css_color(lag.layer),
            linewidth=1.6,
            solid_joinstyle="round",
        )
    axes.set_ylim(bottom=0)
    begin, end = min(lag.times[0] for lag in lags), max(lag.times[-1] for lag in lags)
    _format_time_axis(axes, begin, end)
    edges = np.linspace(begin, end, _BANDS + 1)
    for first, last in pairwise(edges):
        here = (first + last) / 2
        known = [(lag.layer, float(np.interp(here, lag.times, lag.seconds))) for lag in lags if lag.times[0] <= here]
        lines = (f"{format_layer_name(layer)}: {format_duration(seconds)}" for layer, seconds in known)
        _add_tooltip_area(axes, first, last, f"{format_time(float(here))} UTC", lines)
    return convert_to_svg(figure, "How many seconds each layer was behind bronze, over time", "freshness")


def draw_throughput(layers: Sequence[ThroughputOverTime]) -> Markup:
    """Returns a chart of how much each layer read per second over time, with one row of bars per layer."""
    figure, rows = _create_figure(len(layers), "", _ROW * len(layers) + _BOTTOM)
    starts, width = layers[0].starts, layers[0].width
    for axes, layer in zip(rows, layers, strict=True):
        axes.set_title(
            f"{format_layer_name(layer.layer)}, {_get_unit_of_layer(layer.layer)} a second",
            loc="left",
            pad=5,
            color=get_placeholder_of_css_color("muted"),
        )
        bars = axes.bar(
            _convert_seconds_to_days(starts),
            layer.rates,
            width / _DAY * 0.84,
            align="edge",
            color=get_placeholder_of_css_color(layer.layer),
        )
        for bar, start, rate in zip(bars, starts, layer.rates, strict=True):
            rates = f"{format_layer_name(layer.layer)}: {rate:,.0f} {_get_unit_of_layer(layer.layer)} a second"
            bar.set_gid(create_tooltip_id(f"{format_time(float(start))} UTC, {format_duration(width)}", rates))
        axes.set_ylim(0, max(1.0, float(layer.rates.max()) * 1.05))
        axes.locator_params(axis="y", nbins=2)
        _format_time_axis(axes, starts[0], starts[-1] + width, labels=axes is rows[-1])
    return convert_to_svg(figure, "How much each layer read per second, over time", "throughput")


def draw_moving_average(series: MetricSeries, name: str) -> Markup:
    """Returns a chart of a series' values and moving average over event time, with corrections by late points.

    Args:
        series: The series.
        name: A name that is unique on the page, for ids in the SVG.
    """
    figure, (axes,) = _create_figure(1, "value")
    times = np.array([row["ts"] / 1000 for row in series.points], dtype=np.float64)
    dot = "o" if len(times) == 1 else ""
    axes.plot(
        _convert_seconds_to_days(times),
        [row["value"] for row in series.points],
        color=get_placeholder_of_css_color("value"),
        linewidth=1.1,
        marker=dot,
    )
    axes.plot(
        _convert_seconds_to_days(times),
        [row["average"] for row in series.points],
        color=get_placeholder_of_css_color("average"),
        linewidth=2,
        marker=dot,
    )
    _mark_corrected_averages(axes, series)
    _format_time_axis(axes, times[0], times[-1])
    edges = np.unique(np.linspace(0, len(times) - 1, _BANDS + 1).astype(int))
    for first, last in pairwise(edges):
        row = series.points[(first + last) // 2]
        lines = (f"{key}: {_format_value(row[key])}" for key in ("value", "average"))
        _add_tooltip_area(axes, times[first], times[last], f"{format_time(row['ts'] / 1000)} UTC", lines)
    return convert_to_svg(figure, "Values and their moving average over event time", name)


def _mark_corrected_averages(axes: Axes, series: MetricSeries) -> None:
    """Marks each average that a late point corrected, and shows the value that had been published first."""
    for row in series.restated:
        at = _convert_seconds_to_days(np.array([row["ts"] / 1000]))
        axes.vlines(
            at, row["average_before"], row["average"], color=get_placeholder_of_css_color("other"), linewidth=1.4
        )
        (mark,) = axes.plot(at, [row["average_before"]], "o", color=get_placeholder_of_css_color("other"), markersize=5)
        said = (
            f"published first: {_format_value(row['average_before'])}",
            f"corrected: {_format_value(row['average'])}",
        )
        mark.set_gid(create_tooltip_id(f"{format_time(row['ts'] / 1000)} UTC", *said))


def draw_minute_statistics(series: MetricSeries, name: str) -> Markup:
    """Returns a chart of the lowest, mean and highest value of a series for each minute.

    Args:
        series: The series.
        name: A name that is unique on the page, for ids in the SVG.
    """
    figure, (axes,) = _create_figure(1, "value")
    starts = np.array([row["window_start"].timestamp() for row in series.minutes], dtype=np.float64)
    low, mean, high = (np.array([row[key] for row in series.minutes], float) for key in ("min", "average", "max"))
    middles = starts + 30
    bars = axes.bar(
        _convert_seconds_to_days(middles),
        high - low,
        _MINUTE / _DAY,
        bottom=low,
        color=get_placeholder_of_css_color("band"),
    )
    for bar, row in zip(bars, series.minutes, strict=True):
        lines = [f"{row['window_start']:%Y-%m-%d %H:%M} UTC, {row['points']:,} points"]
        bar.set_gid(
            create_tooltip_id(*lines, *(f"{key}: {_format_value(row[key])}" for key in ("max", "average", "min")))
        )
    axes.hlines(
        mean,
        _convert_seconds_to_days(middles - _MINUTE / 2),
        _convert_seconds_to_days(middles + _MINUTE / 2),
        color=get_placeholder_of_css_color("average"),
        linewidth=2,
    )
    _set_range_with_margins(axes, low, high)
    middle, span = (starts[0] + starts[-1] + 60) / 2, max(starts[-1] + 60 - starts[0], _FEWEST_MINUTES * 60)
    _format_time_axis(axes, middle - span / 2, middle + span / 2, hides_seconds=True)
    return convert_to_svg(figure, "Least, mean and greatest value of each minute of event time", name)


def draw_alerts(alerts: Sequence[AlertsOfRuleAndKey]) -> Markup:
    """Returns a chart of alerts over event time, one line per rule and key. Lines have the numbers of the page's list.

    An alert is a bar from when it was raised until it was cleared; a dot if it is not cleared yet.
    """
    figure, (axes,) = _create_figure(1, "", _ALERT * len(alerts) + _TOP + _BOTTOM)
    ends = [at.timestamp() for line in alerts for span in line.spans for at in span if at is not None]
    for place, line in enumerate(alerts):
        for since, until in line.spans:
            begin = _convert_seconds_to_days(np.array([since.timestamp()]))
            if until is None:
                (mark,) = axes.plot(begin, [place], "o", color=get_placeholder_of_css_color("gold"), markersize=7)
            else:
                width = _convert_seconds_to_days(np.array([until.timestamp()])) - begin
                (mark,) = axes.barh([place], width, 0.6, left=begin, color=get_placeholder_of_css_color("gold"))
            until_ = "stands" if until is None else f"cleared {format_time(until.timestamp())} UTC"
            mark.set_gid(create_tooltip_id(f"{place + 1}. raised {format_time(since.timestamp())} UTC", until_))
    axes.set_yticks(range(len(alerts)), [str(place + 1) for place in range(len(alerts))])
    axes.set_ylim(len(alerts) - 0.5, -0.5)
    room = max((max(ends) - min(ends)) * 0.03, 30)
    _format_time_axis(axes, min(ends) - room, max(ends) + room)
    return convert_to_svg(figure, "When rules were raised and cleared, over event time", "alerts")


def _create_figure(rows: int, unit: str, height: float = _HEIGHT) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure as Drawn

    figure = Drawn(figsize=(_WIDTH * _POINT, height * _POINT))
    grid = figure.subplots(rows, 1, sharex=True, squeeze=False)
    gap = 30
    each = (height - _TOP - _BOTTOM - gap * (rows - 1)) / rows
    figure.subplots_adjust(
        left=_LEFT / _WIDTH,
        right=1 - _RIGHT / _WIDTH,
        top=1 - _TOP / height,
        bottom=_BOTTOM / height,
        hspace=gap / each,
    )
    for axes in grid[:, 0]:
        axes.spines[:].set_visible(False)
        axes.grid(axis="y", color=get_placeholder_of_css_color("grid"), linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=6, labelcolor=get_placeholder_of_css_color("muted"))
        axes.yaxis.set_major_formatter(_format_short_number)
        axes.locator_params(axis="y", nbins=5)
        axes.set_title(unit, loc="left", pad=8, x=0, color=get_placeholder_of_css_color("muted"))
        axes.margins(x=0)
    return figure, list(grid[:, 0])


def _format_time_axis(
    axes: Axes, first: float, last: float, *, labels: bool = True, hides_seconds: bool = False
) -> None:
    from matplotlib.dates import AutoDateLocator, DateFormatter

    if last - first < 1:
        first, last = first - 1, last + 1
    axes.set_xlim(first / _DAY, last / _DAY)
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=6, tz=UTC))
    span = last - first
    form = "%H:%M:%S" if span < _SHORT and not hides_seconds else "%H:%M" if span < _LONG else "%d %b"
    axes.xaxis.set_major_formatter(DateFormatter(form, tz=UTC))
    axes.tick_params(labelbottom=labels)


def _add_tooltip_area(axes: Axes, first: float, last: float, title: str, lines: Iterable[str]) -> None:
    """Adds an invisible area with a tooltip between two times (seconds since 1970) to a chart."""
    band = axes.axvspan(
        first / _DAY, last / _DAY, color=get_placeholder_of_css_color("ink"), alpha=_UNSEEN, linewidth=0, zorder=5
    )
    band.set_gid(create_tooltip_id(title, *lines))


def _set_range_with_margins(axes: Axes, low: Numbers, high: Numbers) -> None:
    """Sets the range of the vertical axis to all values plus a margin. By default, axes with bars would start at 0.

    Args:
        axes: The chart.
        low: The lower ends of the bars.
        high: The upper ends of the bars.
    """
    span = float(high.max() - low.min()) or abs(float(high.max())) or 1.0
    axes.set_ylim(float(low.min()) - span * 0.08, float(high.max()) + span * 0.08)


def _convert_seconds_to_days(seconds: Numbers) -> Numbers:
    """Converts seconds since 1970 to days since 1970, which matplotlib uses for dates."""
    return np.asarray(seconds, dtype=np.float64) / _DAY


def _format_short_number(value: float, _: Any = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size:
            return f"{value / size:g}{letter}"
    return f"{value:,.10g}".replace("-", "\u2212")


def _format_value(value: float | None) -> str:
    return "none" if value is None else f"{value:,.6g}"


def _get_unit_of_layer(layer: str) -> str:
    return "changes" if layer == "gold" else "messages"
