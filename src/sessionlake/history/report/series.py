"""Selects a few series for the report. A series is one metric of one row: its values, moving averages and minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import AVERAGES, METRICS_1M, PROGRESS, RESTATEMENTS
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import Row
from sessionlake.settings.section import convert_duration_to_ms

# The number of series on the page, and the most sessions that are searched for them.
_SHOWN = 4
_MAX_SEARCHED = 12
_POINTS = 300
_MINUTES = 120
# How far before a session's last message, in event time, to look for its series and to read them.
_LOOKBACKS = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))
# The range of times that can be drawn, in ms UTC: from 1970 until the year 9999.
_FIRST, _END = 0, 253_370_764_800_000
# The most bytes of one session's points in memory.
_BYTES = 64 << 20
# Larger values and NaN are left out, because no axis has room for them.
_DRAWN = 1e100
_VALUES = {"value", "average", "min", "max"}
_NAMES = ("row_id", "metric")
_PLACE = ("ts", "position", "ordinal")
_ORDER = ("ts", "_life", "_seq", "position", "ordinal")


_Session = tuple[str, int, str]


@dataclass(frozen=True)
class MetricSeries:
    """The last values of one metric in one row of a session's table.

    Attributes:
        topic, session_id, row_id, metric: The metric that the values belong to.
        points: One item per value: `ts` (ms UTC), `value` and its moving `average`, in the order of event time.
        restated: One item per corrected average: `ts`, `average_before` (published first), `average`.
        minutes: One item per minute: `window_start`, `points`, `min`, `average` and `max`, in the order of event time.
    """

    topic: str
    session_id: str
    row_id: str
    metric: str
    points: list[Row]
    restated: list[Row]
    minutes: list[Row]


def select_series_to_draw(reader: TableReader, recent_conditions: Sequence[Condition]) -> list[MetricSeries]:
    """Returns one series from each of a few sessions. The sessions come from as many topics as possible.

    Args:
        reader: Reads the tables.
        recent_conditions: Conditions that limit `silver.session_progress` to recent rows.
    """
    found: list[MetricSeries] = []
    for session, last in _read_recent_sessions(reader, recent_conditions):
        if len(found) == _SHOWN:
            break
        found += _read_longest_series(reader, session, last)
    return found


def _read_recent_sessions(
    reader: TableReader, recent_conditions: Sequence[Condition]
) -> Iterator[tuple[_Session, int]]:
    """Yields sessions, each with its last event time (ms UTC).

    First comes the largest session of each topic, then the second largest of each topic, and so on.

    Args:
        reader: Reads the tables.
        recent_conditions: Conditions that limit `silver.session_progress` to recent rows.
    """
    latest: dict[_Session, tuple[int, int]] = {}
    for row in reader.read_rows(PROGRESS, *recent_conditions, columns=(*SESSION, "messages", "last_ts")):
        session = row["topic"], row["partition"], row["session_id"]
        seen = row["messages"], row["last_ts"]
        if None not in seen and _FIRST <= row["last_ts"] < _END:
            latest[session] = max(seen, latest.get(session, seen))
    turns: dict[str, int] = {}
    ranked: list[tuple[int, int, _Session, int]] = []
    for session, (messages, last) in sorted(latest.items(), key=lambda item: (-item[1][0], item[0])):
        turns[session[0]] = turns.get(session[0], -1) + 1
        ranked.append((turns[session[0]], -messages, session, last))
    for _, _, session, last in sorted(ranked)[:_MAX_SEARCHED]:
        yield session, last


def _read_longest_series(reader: TableReader, session: _Session, last_ts: int) -> list[MetricSeries]:
    """Returns the series of a session that has the most points in recent time, as a list of one.

    A series with corrected averages is preferred. The list is empty if gold has no points or too many to read.

    Args:
        reader: Reads the tables.
        session: Topic, partition and id of the session.
        last_ts: The session's last event time, in ms.
    """
    own: tuple[Condition, ...] = tuple((name, eq, value) for name, value in zip(SESSION, session, strict=True))
    try:
        for reach in _LOOKBACKS:
            late = ("ts", ge, last_ts - convert_duration_to_ms(reach))
            names = reader.count_rows_by(AVERAGES, _NAMES, *own, late)
            if names:
                changed = _read_corrected_averages(reader, *own, late)
                row_id, metric = min(names, key=lambda name: (name not in changed, -names[name], name))
                of_it = [*own, ("row_id", eq, row_id), ("metric", eq, metric)]
                points, minutes = (
                    _read_recent_averages(reader, of_it, last_ts),
                    _read_recent_minute_statistics(reader, of_it, last_ts),
                )
                restated = []
                if points and (row_id, metric) in changed:
                    drawn = _read_corrected_averages(reader, *of_it, ("ts", ge, points[0]["ts"]))
                    restated = _list_averages_before_and_after_correction(points, drawn.get((row_id, metric), []))
                return [MetricSeries(session[0], session[2], row_id, metric, points, restated, minutes)]
    except TooLargeError:
        pass
    return []


def _read_corrected_averages(reader: TableReader, *conditions: Condition) -> dict[tuple[str, str], list[Row]]:
    """Returns a session's corrected averages (rows of `restatements`) by row id and metric, the earliest first."""
    found: dict[tuple[str, str], list[Row]] = {}
    if reader.exists(RESTATEMENTS):
        own = (("table", eq, AVERAGES), *conditions)
        columns = (*_NAMES, *_PLACE, "revision", "average_before", "restated_at")
        rows = reader.read_arrow_table(RESTATEMENTS, *own, columns=columns, max_bytes=_BYTES).to_pylist()
        for row in sorted(rows, key=itemgetter("restated_at", "revision")):
            found.setdefault((row["row_id"], row["metric"]), []).append(row)
    return found


def _list_averages_before_and_after_correction(points: Sequence[Row], restatements: Sequence[Row]) -> list[Row]:
    first: dict[tuple[int, ...], float] = {}
    for row in restatements:
        first.setdefault(tuple(row[name] for name in _PLACE), row["average_before"])
    places = [(point, tuple(point[name] for name in _PLACE)) for point in points]
    corrected = [
        {"ts": point["ts"], "average_before": first[place], "average": point["average"]}
        for point, place in places
        if place in first
    ]
    return [row for row in corrected if _can_be_drawn(row["average_before"])]


def _read_recent_averages(reader: TableReader, series_conditions: Sequence[Condition], last_ts: int) -> list[Row]:
    since = ("ts", ge, last_ts - convert_duration_to_ms(_LOOKBACKS[-1]))
    order = [name for name in _ORDER if name in reader.read_table_schema(AVERAGES).names]  # earlier tables lack some
    found = reader.read_arrow_table(
        AVERAGES, *series_conditions, since, columns=(*order, "value", "average"), max_bytes=_BYTES
    )
    return _select_last_drawable_rows(found, order, _POINTS)


def _read_recent_minute_statistics(
    reader: TableReader, series_conditions: Sequence[Condition], last_ts: int
) -> list[Row]:
    if not reader.exists(METRICS_1M):
        return []
    since = datetime.fromtimestamp(last_ts / 1000, UTC) - timedelta(minutes=_MINUTES)
    columns = ("window_start", "points", "min", "average", "max")
    found = reader.read_arrow_table(
        METRICS_1M, *series_conditions, ("window_start", ge, since), columns=columns, max_bytes=_BYTES
    )
    return _select_last_drawable_rows(found, ("window_start",), _MINUTES)


def _select_last_drawable_rows(rows: pa.Table, order_columns: Sequence[str], count: int) -> list[Row]:
    """Returns the last `count` rows in the order of the columns, except rows with a null, NaN or too large value."""
    places = pc.select_k_unstable(
        rows, k=min(count, rows.num_rows), sort_keys=[(name, "descending") for name in order_columns]
    )
    found = sorted(rows.take(places).to_pylist(), key=itemgetter(*order_columns))
    return [row for row in found if all(_can_be_drawn(row[name]) for name in _VALUES & row.keys())]


def _can_be_drawn(value: float | None) -> bool:
    return value is not None and abs(value) < _DRAWN
