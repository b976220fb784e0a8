"""Pictures of the notebooks: each function draws one kind of picture from rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

import numpy as np

from sessionlake.history.report.pace import LagOverTime, ThroughputOverTime
from sessionlake.history.state import ShardStateStats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with colour blindness can distinguish too. Strongest contrasts first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_INK, _MUTED, _GRID = "#222222", "#666666", "#E3E3E3"
_LAYERS = {"bronze": "#9C5A1E", "silver": "#6B7A8F", "silver_tables": "#56B4E9", "gold": "#D9A400"}
_WIDTH = 10.0
_ROWS = 24
_BARS = 40
_BUCKETS = 30
_OTHERS = "others"
_DAY = 86_400


def draw_session_timeline(changes: pd.DataFrame, events: pd.DataFrame, title: str) -> Figure:
    """Draws a session over event time: changes of its rows, its snapshots, and its integrity events.

    Args:
        changes: Columns `time`, `change` (`clear`, `upsert` or `delete`), `row_id`. Only the rows with the most changes
            are drawn.
        events: The session's integrity events, one per row, with their event time in the column `time`.
        title: Title of the figure.
    """
    rows = list(changes["row_id"].dropna().value_counts().index[:_ROWS])[::-1]
    figure, axes = _create_figure_with_one_plot(title, 1.6 + 0.19 * len(rows))
    for at in changes.loc[changes["change"] == "clear", "time"]:
        axes.axvline(at, color=PALETTE[2], linewidth=1.2, alpha=0.6, zorder=1)
    places = {row: place for place, row in enumerate(rows)}
    drawn = changes[changes["row_id"].isin(rows)]
    for change, color, marker, size in (("upsert", PALETTE[0], "|", 60), ("delete", PALETTE[1], "x", 34)):
        one = drawn[drawn["change"] == change]
        axes.scatter(one["time"], one["row_id"].map(places), s=size, c=color, marker=marker, linewidths=1.3, zorder=3)
    if len(events):
        axes.scatter(events["time"], [len(rows)] * len(events), s=46, c=PALETTE[4], marker="v", zorder=3, clip_on=False)
    axes.set_yticks([*range(len(rows)), len(rows)], [*map(_escape_dollar_signs, rows), "judgements"])
    axes.set_ylim(-0.7, len(rows) + 0.7)
    axes.grid(axis="x", visible=False)
    _add_legend(
        axes,
        ("upsert", PALETTE[0], "|"), ("delete", PALETTE[1], "x"), ("snapshot", PALETTE[2], "|"),
        ("not fine", PALETTE[4], "v"),
    )  # fmt: skip
    _format_time_axis(axes, "event time (UTC)")
    return figure


def draw_rolling_averages(points: pd.DataFrame, title: str) -> Figure:
    """Draws captured points and their rolling average over event time.

    Args:
        points: Columns `time`, `value`, `average`, `points` (number of points in the average), in event order.
        title: Title of the figure.
    """
    figure, axes = _create_figure_with_one_plot(title, 4)
    axes.plot(points["time"], points["value"], ".", color=PALETTE[5], markersize=5, alpha=0.7, label="captured")
    many = f"average of {points['points'].max()} points"
    axes.plot(points["time"], points["average"], color=PALETTE[0], linewidth=1.8, label=many)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 1.14), ncols=2)
    _format_time_axis(axes, "event time (UTC)")
    return figure


def draw_counts_by_kind_and_topic(found: pd.DataFrame, what: str) -> Figure:
    """Draws counts of integrity events or quarantined messages, by topic and over stream time.

    If there are more kinds than colours, the rarest ones are counted together as `others`.

    Args:
        found: One row per event or message, at least one: `topic`, `kind` (the colour) and `time` (stream time).
        what: Title of the figure, which says what is counted.
    """
    kinds = list(found["kind"].value_counts().index)
    shown = kinds if len(kinds) <= len(PALETTE) else [*kinds[: len(PALETTE) - 1], _OTHERS]
    found = found.assign(kind=found["kind"].where(found["kind"].isin(shown), _OTHERS))
    by_topic = found.pivot_table(index="topic", columns="kind", values="time", aggfunc="size", fill_value=0)[shown]
    by_topic = by_topic.loc[by_topic.sum(axis=1).sort_values().index].tail(_ROWS)
    figure, (left, right) = _create_figure_with_plots_side_by_side(what, 2, 1.6 + max(2.4, 0.34 * len(by_topic)))
    begun, topics = np.zeros(len(by_topic)), [*map(_escape_dollar_signs, by_topic.index)]
    for kind, color in zip(shown, PALETTE, strict=False):
        left.barh(topics, by_topic[kind], left=begun, color=color, label=kind, height=0.7)
        begun += by_topic[kind].to_numpy()
    left.set_title("by topic", loc="left", color=_MUTED, fontsize=10)
    left.grid(axis="y", visible=False)
    left.grid(axis="x", color=_GRID)
    moments = [_convert_times_to_matplotlib_days(found.loc[found["kind"] == kind, "time"]) for kind in shown]
    right.hist(moments, bins=_BARS, stacked=True, color=PALETTE[: len(shown)])
    right.set_title("over stream time (UTC)", loc="left", color=_MUTED, fontsize=10)
    left.locator_params(axis="x", integer=True)
    right.locator_params(axis="y", integer=True)
    _format_time_axis(right, "")
    named = left.get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=9)
    return figure


def draw_series_by_bucket_length(found: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draws one series in time buckets of several lengths, side by side, with minimum, maximum and average.

    Args:
        found: One table per panel, by the name of its bucket length, such as `days`. The columns are `window_start`,
            `points`, `min`, `max` and `average`. Only the last rows of a table are drawn.
        title: Title of the figure.
    """
    figure, panels = _create_figure_with_plots_side_by_side(title, len(found), 3.8, sharey=True)
    for axes, (name, rows), color in zip(panels, found.items(), PALETTE, strict=False):
        last = rows.tail(_BUCKETS)
        places = range(len(last))
        axes.vlines(places, last["min"], last["max"], color=color, linewidth=max(2, 14 - len(last) / 2), alpha=0.35)
        axes.plot(places, last["average"], "o-", color=color, markersize=5, linewidth=1)
        axes.set_title(f"{name}, {int(last['points'].sum()):,} points", loc="left", color=_MUTED, fontsize=10)
        step = max(1, len(last) // 5)
        form = "%d %b" if name == "days" else "%d %b\n%H:%M"
        axes.set_xticks(places[::step], [f"{at:{form}}" for at in last["window_start"].iloc[::step]])
        middle, half = (len(last) - 1) / 2, max(2.0, len(last) / 2 + 0.1)
        axes.set_xlim(middle - half, middle + half)
    return figure


def draw_stream_time_intervals(rows: pd.DataFrame, title: str) -> Figure:
    """Draws intervals of stream time as bars.

    Args:
        rows: Columns `lane`, `begin`, `end`. Intervals with the same lane (a label) are drawn in the same line.
        title: Title of the figure.
    """
    lanes = sorted(rows["lane"].unique())[:_ROWS][::-1]
    figure, axes = _create_figure_with_one_plot(title, 1.5 + 0.3 * len(lanes))
    for place, lane in enumerate(lanes):
        bars = rows[rows["lane"] == lane]
        begins, ends = _convert_times_to_matplotlib_days(bars["begin"]), _convert_times_to_matplotlib_days(bars["end"])
        axes.broken_barh(list(zip(begins, ends - begins, strict=True)), (place - 0.32, 0.64), color=PALETTE[0])
    axes.set_yticks(range(len(lanes)), [*map(_escape_dollar_signs, lanes)])
    axes.grid(axis="x", color=_GRID)
    _format_time_axis(axes, "stream time (UTC)")
    return figure


def draw_lag_throughput_and_state_size(
    behind: Sequence[LagOverTime], throughput: Sequence[ThroughputOverTime], states: Sequence[ShardStateStats]
) -> Figure:
    """Draws three panels: seconds behind bronze, messages per second, and the size of silver's state.

    Args:
        behind: For each layer, its seconds behind bronze over time.
        throughput: For each layer, its messages per second over time.
        states: For each shard, the bytes of silver's state.
    """
    figure, (left, middle, right) = _create_figure_with_plots_side_by_side("", 3, 3.6)
    left.set_title("seconds behind bronze", loc="left", color=_MUTED, fontsize=10)
    for lag in behind:
        left.plot(lag.times / _DAY, lag.seconds, color=_LAYERS.get(lag.layer, _MUTED), linewidth=1.6)
    left.set_ylim(bottom=0)
    middle.set_title("messages per second", loc="left", color=_MUTED, fontsize=10)
    for layer in throughput:
        color = _LAYERS.get(layer.layer, _MUTED)
        middle.step(layer.starts / _DAY, layer.rates, where="post", color=color, linewidth=1.6, label=layer.layer)
    for axes in (left, middle):
        _format_time_axis(axes, "")
    right.set_title("silver's state, bytes per shard", loc="left", color=_MUTED, fontsize=10)
    right.bar([one.shard for one in states], [one.bytes for one in states], color=_LAYERS["silver"], width=0.9)
    figure.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def _create_figure_with_one_plot(title: str, height: float) -> tuple[Figure, Axes]:
    figure, (axes,) = _create_figure_with_plots_side_by_side(title, 1, height)
    return figure, axes


def _create_figure_with_plots_side_by_side(
    title: str, columns: int, height: float, *, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    shape = {"figsize": (_WIDTH, height), "layout": "constrained", "squeeze": False, "sharey": sharey}
    figure, grid = plt.subplots(1, columns, **shape)
    plt.close(figure)  # the caller shows the figure; pyplot would keep it in memory forever
    if title:
        figure.suptitle(_escape_dollar_signs(title), x=0.01, ha="left", color=_INK, fontsize=12, fontweight="bold")
    for axes in grid[0]:
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(_GRID)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelcolor=_MUTED, labelsize=9)
        axes.xaxis.label.set_color(_MUTED)
    return figure, list(grid[0])


def _escape_dollar_signs(text: object) -> str:
    """Escapes dollar signs, because matplotlib reads a text between two of them as a formula."""
    return str(text).replace("$", r"\$")


def _format_time_axis(axes: Axes, label: str) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7, tz=UTC)
    axes.xaxis_date(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel(label)


def _add_legend(axes: Axes, *entries: tuple[str, str, str]) -> None:
    from matplotlib.lines import Line2D

    shown = [Line2D([], [], color=color, marker=marker, linestyle="", label=name) for name, color, marker in entries]
    axes.legend(handles=shown, frameon=False, ncols=len(shown), loc="lower right", bbox_to_anchor=(1, 1))


def _convert_times_to_matplotlib_days(moments: pd.Series[Any]) -> Any:
    """Converts moments to matplotlib's unit, days since 1970. Moments without a time zone count as UTC."""
    import pandas as pd

    return (pd.to_datetime(moments, utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy() / _DAY
