"""The payloads that the gold fold emits: rows of gold's tables, and a report with counts and time ranges.

A payload is a kind and rows, encoded so that Spark can move them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.late import find_latest_time_by_topic, merge_latest_times
from sessionlake.gold.aggregate.sources import POINT_KEY
from sessionlake.gold.fold.pack import ReadChangesSummary, split_into_partition_and_offset
from sessionlake.gold.fold.points import PointSeqOrder, PointSet
from sessionlake.gold.fold.rolling import AverageResults, AverageRows, FoldedPoints, PaneTiming
from sessionlake.gold.fold.series import EXACT_TYPES, RollingAverage
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.types import Bools, Int64s, TopicPartition

GetKeyColumns = Callable[[Int64s], dict[str, pa.Array]]
"""A function that returns the key columns of series, given their codes."""
_PANES = pa.array([pane.name.lower() for pane in PaneTiming])
_PLACES = {"position": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
_NO_TIMES: Mapping[TopicPartition, int] = {}
_PAYLOAD_ROWS = 32_768  # some megabytes
_CAUSE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("ts", pa.int64())])
MOST_CAUSES = 16
"""The most messages that the row of a restatement names: the first ones in event time."""


class AveragesPayloadKind(StrEnum):
    """What the rows of a payload are, for a table of averages. A payload's full kind is the table's name plus this.

    `NEW` are rows of new points. `CHANGED` are existing rows whose average or timing has changed.
    """

    NEW = "new"
    CHANGED = "changed"
    RESTATED = "restated"
    """Rows of `gold.restatements`: changes of published averages."""
    BEYOND = "beyond"
    """New points that are too old for the points in the state. Their rows are computed from the table."""
    REPORT = "/report"
    """The encoded `GoldFoldReport` of a shard, which is not of one table."""

    def build_payload_kind(self, series: RollingAverage) -> str:
        """Returns the full kind of payload for a table of averages: the table's name plus this kind."""
        return f"{series.name}/{self}"


class RowCountAndTimeRange(msgspec.Struct):
    """The number of rows in a payload, and the lowest and highest time in these rows.

    The time is `ts` in ms for averages, and `window_start` in microseconds for products. `low` and `high` are 0 for
    rows without such a time.
    """

    rows: int
    low: int
    high: int

    def __add__(self, other: RowCountAndTimeRange) -> RowCountAndTimeRange:
        return RowCountAndTimeRange(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


class GoldFoldReport(msgspec.Struct):
    """What one shard read and emitted in a batch. The sum of all shards' reports describes the batch.

    Attributes:
        read: The number of changes that were read, and the silver batches that they are from.
        points: Number of numeric values in the changes, counted once for each table of averages.
        spans: Number and time range of the emitted rows, by kind of payload.
        stream_times: By topic-partition, the highest stream time in ms at which a change was applied.
    """

    read: ReadChangesSummary = ReadChangesSummary()
    points: int = 0
    spans: dict[str, RowCountAndTimeRange] = {}
    stream_times: dict[TopicPartition, int] = {}

    def __add__(self, other: GoldFoldReport) -> GoldFoldReport:
        spans = dict(self.spans)
        for kind, span in other.spans.items():
            spans[kind] = spans[kind] + span if kind in spans else span
        places = merge_latest_times(self.stream_times, other.stream_times)
        return GoldFoldReport(self.read + other.read, self.points + other.points, spans, places)

    @property
    def times_by_topic(self) -> dict[str, int]:
        """By topic, the highest stream time in ms at which a change of the batch was applied."""
        return find_latest_time_by_topic(self.stream_times)


@dataclass(frozen=True)
class PointSourceMessages:
    """For each point of a batch, the partition and offset of the Kafka message with the point."""

    partition: Int64s
    offset: Int64s


class EmittedPayload(NamedTuple):
    """Rows of one kind that a shard emits, with their number and time range.

    Attributes:
        kind: Says which table the rows are for.
        row_range: Number and time range of the rows.
        rows: The rows.
    """

    kind: str
    row_range: RowCountAndTimeRange
    rows: pa.Table


def create_average_payloads(
    series: RollingAverage,
    folded: FoldedPoints,
    new_points: PointSet,
    source_messages: PointSourceMessages,
    get_key_columns: GetKeyColumns,
) -> list[EmittedPayload]:
    """Returns what a batch writes to a table of averages: new rows, changed rows and restatements.

    For a series whose averages must be computed from the table, the result has the batch's points instead.

    Args:
        series: The table of averages.
        folded: The averages that the batch adds or changes.
        new_points: All points of the batch.
        source_messages: The Kafka message of each point in `new_points`.
        get_key_columns: Function that returns the key columns of series, given their codes.
    """
    tables = _list_tables_by_payload_kind(series, folded, new_points, source_messages, get_key_columns)
    return [
        emitted
        for kind, table in tables
        for emitted in split_into_payloads(kind.build_payload_kind(series), table, "ts")
    ]


def count_rows_and_find_time_range(rows: pa.Table, time_column: str | None) -> RowCountAndTimeRange:
    """Returns the number of rows, and the lowest and highest value of a time column.

    Args:
        time_column: Name of the time column. None if there is none; then both times are 0.
    """
    ends = {"min": 0, "max": 0} if time_column is None else pc.min_max(rows[time_column].cast(pa.int64())).as_py()
    return RowCountAndTimeRange(rows.num_rows, ends["min"], ends["max"])


def split_into_payloads(kind: str, table: pa.Table, time_column: str | None) -> Iterator[EmittedPayload]:
    """Splits rows into payloads of at most 32,768 rows, so that Spark can move each of them.

    Args:
        kind: Kind of the payloads.
        table: The rows.
        time_column: The column whose lowest and highest value is reported; None for no column.
    """
    for first in range(0, table.num_rows, _PAYLOAD_ROWS):
        part = table.slice(first, _PAYLOAD_ROWS)
        yield EmittedPayload(kind, count_rows_and_find_time_range(part, time_column), part)


def append_report_payload(
    read_changes: ReadChangesSummary,
    point_count: int,
    emitted_payloads: Iterable[EmittedPayload],
    stream_times: Mapping[TopicPartition, int] = _NO_TIMES,
) -> list[tuple[str, bytes | pa.Table]]:
    """Returns the payloads of a shard as pairs of kind and content. Adds a last one, the report on all others.

    Args:
        read_changes: Number and silver batches of the changes that were read.
        point_count: Number of points in the changes.
        emitted_payloads: The payloads.
        stream_times: By topic-partition, the highest stream time in ms at which a change was applied.
    """
    found, spans = list[tuple[str, bytes | pa.Table]](), dict[str, RowCountAndTimeRange]()
    for kind, span, rows in emitted_payloads:
        found.append((kind, rows))
        spans[kind] = spans[kind] + span if kind in spans else span
    report = GoldFoldReport(read_changes, point_count, spans, dict(stream_times))
    return [*found, (str(AveragesPayloadKind.REPORT), msgspec.msgpack.encode(report))]


def sum_encoded_reports(reports: Iterable[bytes]) -> GoldFoldReport:
    """Decodes the reports of all shards (MessagePack) and adds them up."""
    found = (msgspec.msgpack.decode(content, type=GoldFoldReport) for content in reports)
    return sum(found, GoldFoldReport(spans={}, stream_times={}))


def _list_tables_by_payload_kind(
    series: RollingAverage,
    folded: FoldedPoints,
    new_points: PointSet,
    source_messages: PointSourceMessages,
    get_key_columns: GetKeyColumns,
) -> Iterator[tuple[AveragesPayloadKind, pa.Table]]:
    averages = folded.averages
    yield AveragesPayloadKind.NEW, _create_average_rows(series, averages, averages.is_new, get_key_columns)
    yield AveragesPayloadKind.CHANGED, _create_average_rows(series, averages, ~averages.is_new, get_key_columns)
    yield (
        AveragesPayloadKind.RESTATED,
        _create_restatement_rows(series, averages, new_points, source_messages, get_key_columns),
    )
    beyond = folded.needs_history[new_points.key]
    points = new_points.select_points(beyond)
    message_columns = {"place": points.position} | {
        name: getattr(source_messages, name)[beyond] for name in ("partition", "offset")
    }
    columns = {name: pa.array(column) for name, column in message_columns.items()}
    columns |= {
        name: part for name, part in _build_seq_order_columns(points).items() if name in series.seq_order_columns
    } | _build_unscaled_value_columns(points)
    keys = get_key_columns(points.key)
    texts = {name: keys[name] for name in series.text_keys}  # the partition comes from the message
    yield AveragesPayloadKind.BEYOND, pa.table(texts | _build_value_columns(points) | columns)


def _build_value_columns(points: PointSet) -> dict[str, pa.Array]:
    ordinal = pa.array(points.ordinal.astype(np.int32))
    return {"ts": pa.array(points.ts), "ordinal": ordinal, "value": pa.array(points.value)}


def _build_seq_order_columns(points: PointSet) -> dict[str, pa.Array]:
    return (points.by_seq or PointSeqOrder.create_nulls(len(points))).to_columns()


def _build_unscaled_value_columns(points: PointSet) -> dict[str, pa.Array]:
    if points.units is None:
        return {name: pa.nulls(len(points), parse_arrow_type(sql)) for name, sql in EXACT_TYPES}
    return points.units.to_columns()


def _build_position_columns(series: RollingAverage, points: PointSet) -> dict[str, pa.Array]:
    """Returns the position columns of points: `position`, or `partition` and `offset` for series across sessions."""
    if series.is_per_session:
        return {"position": pa.array(points.position)}
    apart = split_into_partition_and_offset(points.position)
    return {"partition": pa.array(apart["partition"].astype(np.int32)), "offset": pa.array(apart["offset"])}


def _create_average_rows(
    series: RollingAverage, averages: AverageRows, chosen: Bools, get_key_columns: GetKeyColumns
) -> pa.Table:
    points = averages.points.select_points(chosen)
    columns = (
        get_key_columns(points.key)
        | _build_value_columns(points)
        | _build_position_columns(series, points)
        | _build_average_and_count_columns(averages.figures.select_rows(chosen))
    )
    columns |= (
        {
            "revision": _create_int32_column(points.revision),
            "pane": _create_pane_timing_column(averages.pane[chosen]),
        }
        | _build_seq_order_columns(points)
        | _build_unscaled_value_columns(points)
    )
    return pa.table({name: columns[name] for name, _ in series.column_types})


def _create_restatement_rows(
    series: RollingAverage,
    averages: AverageRows,
    new_points: PointSet,
    source_messages: PointSourceMessages,
    get_key_columns: GetKeyColumns,
) -> pa.Table:
    chosen = averages.is_restated
    points = averages.points.select_points(chosen)
    count, keys, places = len(points), get_key_columns(points.key), _build_position_columns(series, points)
    averages_before, now = (
        _build_average_and_count_columns(averages.averages_before.select_rows(chosen)),
        _build_average_and_count_columns(averages.figures.select_rows(chosen)),
    )
    first, end = (bound[chosen] for bound in averages.cause_ranges)
    columns = {"table": pa.array([series.table_name]).take(pa.array(np.zeros(count, np.int64)))}
    columns |= {name: keys.get(name, pa.nulls(count, pa.string())) for name in POINT_KEY}
    columns["ts"] = pa.array(points.ts)
    columns |= {name: (places | keys).get(name, pa.nulls(count, kind)) for name, kind in _PLACES.items()}
    columns |= {"ordinal": _create_int32_column(points.ordinal), "revision": _create_int32_column(points.revision)}
    columns |= {"average_before": averages_before["average"], "average": now["average"]}
    columns |= {
        "points_before": averages_before["points"],
        "points": now["points"],
        "pane": _create_pane_timing_column(averages.pane[chosen]),
    }
    columns |= {
        "late_points": _create_int32_column(end - first),
        "late_ms": pa.array(averages.late_ms[chosen]),
        "because": _build_lists_of_cause_messages(averages.points_in_order, first, end, new_points, source_messages),
        "logic": pa.array([series.logic_hash]).take(pa.array(np.zeros(count, np.int64))),
    }
    return pa.table(columns)


def _build_lists_of_cause_messages(
    points_in_order: Int64s,
    first_cause: Int64s,
    causes_end: Int64s,
    new_points: PointSet,
    source_messages: PointSourceMessages,
) -> pa.Array:
    """Returns, for each restatement, the list of messages that caused it, in order of event time.

    Args:
        points_in_order: Indices of the batch's points, sorted by series and event time.
        first_cause: For each restatement, the position in `points_in_order` of its first point.
        causes_end: For each restatement, the position in `points_in_order` after its last point.
        new_points: The batch's points.
        source_messages: The Kafka message of each point in `new_points`.
    """
    length = np.minimum(causes_end - first_cause, MOST_CAUSES)
    starts = np.concatenate([[0], np.cumsum(length)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], length)
    place = points_in_order[np.repeat(first_cause, length) + within]
    values = [
        _create_int32_column(source_messages.partition[place]),
        pa.array(source_messages.offset[place]),
        pa.array(new_points.ts[place]),
    ]
    struct = pa.StructArray.from_arrays(values, fields=list(_CAUSE))
    return pa.ListArray.from_arrays(_create_int32_column(starts), struct)


def _build_average_and_count_columns(averages: AverageResults) -> dict[str, pa.Array]:
    return {
        "average": pa.array(averages.average, mask=~averages.is_published),
        "points": _create_int32_column(averages.point_count),
    }


def _create_pane_timing_column(panes: Int64s) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_create_int32_column(panes), _PANES)


def _create_int32_column(values: Int64s) -> pa.Array:
    return pa.array(values.astype(np.int32))
