"""The payloads that the gold fold emits: rows of gold's tables, and a report with counts and time ranges.

A payload is a kind and rows, encoded so that Spark can move them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.late import find_latest_time_by_topic, merge_latest_times
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import POINT_KEY, DeclaredColumns
from sessionlake.gold.fold.pack import ReadChanges, split_into_partition_and_offset
from sessionlake.gold.fold.points import PointSet, SeqOrder
from sessionlake.gold.fold.rolling import AverageFigures, AverageRows, FoldedPoints, PaneTiming
from sessionlake.gold.fold.series import EXACT_TYPES, RollingAverage
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.types import Bools, Int64s, TopicPartition

Names = Callable[[Int64s], dict[str, pa.Array]]
"""A function that returns the key columns of series, given their codes."""
_PANES = pa.array([pane.name.lower() for pane in PaneTiming])
_PLACES = {"position": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
_NO_TIMES: Mapping[TopicPartition, int] = {}
_PAYLOAD_ROWS = 32_768  # some megabytes
FEW_CHANGES = 1_000
"""A shard with up to this number of changes emits the changes. The driver then computes the products' rows from them.
"""
LATE_POINTS = "/late_points"  # no product can have a name with a slash
"""Kind of payload with events that are too late for products: rows of `gold.late_points` without `_batch`."""
CHANGES = "/changes"
"""Kind of payload with the changes of a shard that has only few changes."""
_CAUSE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("ts", pa.int64())])
MOST_CAUSES = 16
"""The most messages that the row of a restatement names: the first ones in event time."""


class AveragesOutput(StrEnum):
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
    """The encoded `GoldReport` of a shard, which is not of one table."""

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


class GoldReport(msgspec.Struct):
    """What one shard read and emitted in a batch. The sum of all shards' reports describes the batch.

    Attributes:
        read: The number of changes that were read, and the silver batches that they are from.
        points: Number of numeric values in the changes, counted once for each table of averages.
        spans: Number and time range of the emitted rows, by kind of payload.
        stream_times: By topic-partition, the highest stream time in ms at which a change was applied.
    """

    read: ReadChanges = ReadChanges()
    points: int = 0
    spans: dict[str, RowCountAndTimeRange] = {}
    stream_times: dict[TopicPartition, int] = {}

    def __add__(self, other: GoldReport) -> GoldReport:
        spans = dict(self.spans)
        for kind, span in other.spans.items():
            spans[kind] = spans[kind] + span if kind in spans else span
        places = merge_latest_times(self.stream_times, other.stream_times)
        return GoldReport(self.read + other.read, self.points + other.points, spans, places)

    @property
    def times_by_topic(self) -> dict[str, int]:
        """By topic, the highest stream time in ms at which a change of the batch was applied."""
        return find_latest_time_by_topic(self.stream_times)


@dataclass(frozen=True)
class CauseMessages:
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
    series: RollingAverage, found: FoldedPoints, new: PointSet, causes: CauseMessages, names: Names
) -> list[EmittedPayload]:
    """Returns what a batch writes to a table of averages: new rows, changed rows and restatements.

    For a series whose averages must be computed from the table, the result has the batch's points instead.

    Args:
        series: The table of averages.
        found: The averages that the batch adds or changes.
        new: All points of the batch.
        causes: The Kafka message of each point in `new`.
        names: Function that returns the key columns of series, given their codes.
    """
    tables = _list_output_tables(series, found, new, causes, names)
    return [
        emitted
        for kind, table in tables
        for emitted in _split_into_payloads(kind.build_payload_kind(series), table, "ts")
    ]


def create_product_payloads(
    changes: pa.Table, declared: DeclaredColumns, products: Sequence[Product]
) -> list[EmittedPayload]:
    """Returns what one shard emits for products: their rows, or the changes themselves if they are at most 1,000.

    Computing a product takes milliseconds even for few changes. So the driver computes the rows of all shards with few
    changes together.

    Args:
        changes: The shard's changes.
        declared: The declared columns that the changes have.
        products: The products, each after the product from which it is computed.
    """
    late = (product.select_late_rows(changes, declared) for product in products if product.lateness_ms is not None)
    payloads = [emitted for rows in late for emitted in _split_into_payloads(LATE_POINTS, rows, None)]
    if changes.num_rows <= FEW_CHANGES:
        return [*payloads, EmittedPayload(CHANGES, RowCountAndTimeRange(changes.num_rows, 0, 0), changes)]
    tables = compute_product_rows(changes, declared, products)
    return payloads + [
        emitted
        for product in products
        for rows in [dictionary_encode_keys(product, tables[product.name])]
        for emitted in _split_into_payloads(product.name, rows, START if product.bucket_ms else None)
    ]


def compute_product_rows(
    changes: pa.Table, declared: DeclaredColumns, products: Sequence[Product]
) -> dict[str, pa.Table]:
    """Returns each product's rows, computed from changes, by name of the product.

    Args:
        changes: The changes.
        declared: The declared columns that the changes have.
        products: The products, each after the product from which it is computed.
    """
    sources = {product.source for product in products if product.below is None}
    events = {source: source.extract_events(changes, declared) for source in sources}
    tables: dict[str, pa.Table] = {}
    for product in products:
        if product.below is not None:
            tables[product.name] = product.aggregate_finer_rows(tables[product.below.name])
        elif product.lateness_ms is not None:
            tables[product.name] = product.aggregate_changes(changes, declared)
        else:
            tables[product.name] = product.aggregate_events(events[product.source])
    return tables


def dictionary_encode_keys(product: Product, rows: pa.Table) -> pa.Table:
    """Returns a product's rows with dictionary-encoded key columns, since most rows share the same texts."""
    for name in product.keys:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].dictionary_encode())
    return rows.combine_chunks()


def count_rows_and_time_range(rows: pa.Table, time_column: str | None) -> RowCountAndTimeRange:
    """Returns the number of rows, and the lowest and highest value of a time column.

    Args:
        time_column: Name of the time column. None if there is none; then both times are 0.
    """
    ends = {"min": 0, "max": 0} if time_column is None else pc.min_max(rows[time_column].cast(pa.int64())).as_py()
    return RowCountAndTimeRange(rows.num_rows, ends["min"], ends["max"])


def _split_into_payloads(kind: str, table: pa.Table, time_column: str | None) -> Iterator[EmittedPayload]:
    """Splits rows into payloads of at most 32,768 rows, so that Spark can move each of them.

    Args:
        kind: Kind of the payloads.
        table: The rows.
        time_column: The column whose lowest and highest value is reported; None for no column.
    """
    for first in range(0, table.num_rows, _PAYLOAD_ROWS):
        part = table.slice(first, _PAYLOAD_ROWS)
        yield EmittedPayload(kind, count_rows_and_time_range(part, time_column), part)


def append_report(
    read: ReadChanges,
    points: int,
    emitted: Iterable[EmittedPayload],
    stream_times: Mapping[TopicPartition, int] = _NO_TIMES,
) -> list[tuple[str, bytes | pa.Table]]:
    """Returns the payloads of a shard as pairs of kind and content. Adds a last one, the report on all others.

    Args:
        read: Number and silver batches of the changes that were read.
        points: Number of points in the changes.
        emitted: The payloads.
        stream_times: By topic-partition, the highest stream time in ms at which a change was applied.
    """
    found, spans = list[tuple[str, bytes | pa.Table]](), dict[str, RowCountAndTimeRange]()
    for kind, span, rows in emitted:
        found.append((kind, rows))
        spans[kind] = spans[kind] + span if kind in spans else span
    report = GoldReport(read, points, spans, dict(stream_times))
    return [*found, (str(AveragesOutput.REPORT), msgspec.msgpack.encode(report))]


def sum_reports(reports: Iterable[bytes]) -> GoldReport:
    """Decodes the reports of all shards (MessagePack) and adds them up."""
    found = (msgspec.msgpack.decode(content, type=GoldReport) for content in reports)
    return sum(found, GoldReport(spans={}, stream_times={}))


def _list_output_tables(
    series: RollingAverage, found: FoldedPoints, new: PointSet, causes: CauseMessages, names: Names
) -> Iterator[tuple[AveragesOutput, pa.Table]]:
    averages = found.averages
    yield AveragesOutput.NEW, _create_average_rows(series, averages, averages.is_new, names)
    yield AveragesOutput.CHANGED, _create_average_rows(series, averages, ~averages.is_new, names)
    yield AveragesOutput.RESTATED, _create_restatement_rows(series, averages, new, causes, names)
    beyond = found.needs_history[new.key]
    points = new.select_points(beyond)
    brought = {"place": points.position} | {name: getattr(causes, name)[beyond] for name in ("partition", "offset")}
    columns = {name: pa.array(column) for name, column in brought.items()}
    columns |= {
        name: part for name, part in _build_seq_order_columns(points).items() if name in series.seq_order_columns
    } | _build_exact_columns(points)
    keys = names(points.key)
    texts = {name: keys[name] for name in series.text_keys}  # the partition comes from the message
    yield AveragesOutput.BEYOND, pa.table(texts | _build_value_columns(points) | columns)


def _build_value_columns(points: PointSet) -> dict[str, pa.Array]:
    ordinal = pa.array(points.ordinal.astype(np.int32))
    return {"ts": pa.array(points.ts), "ordinal": ordinal, "value": pa.array(points.value)}


def _build_seq_order_columns(points: PointSet) -> dict[str, pa.Array]:
    return (points.by_seq or SeqOrder.create_nulls(len(points))).to_columns()


def _build_exact_columns(points: PointSet) -> dict[str, pa.Array]:
    if points.units is None:
        return {name: pa.nulls(len(points), parse_arrow_type(sql)) for name, sql in EXACT_TYPES}
    return points.units.to_columns()


def _build_position_columns(series: RollingAverage, points: PointSet) -> dict[str, pa.Array]:
    """Returns the position columns of points: `position`, or `partition` and `offset` for series across sessions."""
    if series.is_per_session:
        return {"position": pa.array(points.position)}
    apart = split_into_partition_and_offset(points.position)
    return {"partition": pa.array(apart["partition"].astype(np.int32)), "offset": pa.array(apart["offset"])}


def _create_average_rows(series: RollingAverage, averages: AverageRows, chosen: Bools, names: Names) -> pa.Table:
    points = averages.points.select_points(chosen)
    columns = (
        names(points.key)
        | _build_value_columns(points)
        | _build_position_columns(series, points)
        | _build_figure_columns(averages.figures.select_rows(chosen))
    )
    columns |= (
        {
            "revision": _to_int32_column(points.revision),
            "pane": _create_pane_column(averages.pane[chosen]),
        }
        | _build_seq_order_columns(points)
        | _build_exact_columns(points)
    )
    return pa.table({name: columns[name] for name, _ in series.column_types})


def _create_restatement_rows(
    series: RollingAverage, averages: AverageRows, new: PointSet, causes: CauseMessages, names: Names
) -> pa.Table:
    chosen = averages.is_restated
    points = averages.points.select_points(chosen)
    count, keys, places = len(points), names(points.key), _build_position_columns(series, points)
    figures_before, now = (
        _build_figure_columns(averages.figures_before.select_rows(chosen)),
        _build_figure_columns(averages.figures.select_rows(chosen)),
    )
    first, end = (bound[chosen] for bound in averages.cause_ranges)
    columns = {"table": pa.array([series.table_name]).take(pa.array(np.zeros(count, np.int64)))}
    columns |= {name: keys.get(name, pa.nulls(count, pa.string())) for name in POINT_KEY}
    columns["ts"] = pa.array(points.ts)
    columns |= {name: (places | keys).get(name, pa.nulls(count, kind)) for name, kind in _PLACES.items()}
    columns |= {"ordinal": _to_int32_column(points.ordinal), "revision": _to_int32_column(points.revision)}
    columns |= {"average_before": figures_before["average"], "average": now["average"]}
    columns |= {
        "points_before": figures_before["points"],
        "points": now["points"],
        "pane": _create_pane_column(averages.pane[chosen]),
    }
    columns |= {
        "late_points": _to_int32_column(end - first),
        "late_ms": pa.array(averages.late_ms[chosen]),
        "because": _build_cause_lists(averages.points_in_order, first, end, new, causes),
        "logic": pa.array([series.logic_hash]).take(pa.array(np.zeros(count, np.int64))),
    }
    return pa.table(columns)


def _build_cause_lists(
    points_in_order: Int64s, first: Int64s, end: Int64s, new: PointSet, causes: CauseMessages
) -> pa.Array:
    """Returns, for each restatement, the list of messages that caused it, in order of event time.

    Args:
        points_in_order: Indices of the batch's points, sorted by series and event time.
        first: For each restatement, the position in `points_in_order` of its first point.
        end: For each restatement, the position in `points_in_order` after its last point.
        new: The batch's points.
        causes: The Kafka message of each point in `new`.
    """
    length = np.minimum(end - first, MOST_CAUSES)
    starts = np.concatenate([[0], np.cumsum(length)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], length)
    place = points_in_order[np.repeat(first, length) + within]
    values = [_to_int32_column(causes.partition[place]), pa.array(causes.offset[place]), pa.array(new.ts[place])]
    struct = pa.StructArray.from_arrays(values, fields=list(_CAUSE))
    return pa.ListArray.from_arrays(_to_int32_column(starts), struct)


def _build_figure_columns(figures: AverageFigures) -> dict[str, pa.Array]:
    return {
        "average": pa.array(figures.average, mask=~figures.is_published),
        "points": _to_int32_column(figures.point_count),
    }


def _create_pane_column(panes: Int64s) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_to_int32_column(panes), _PANES)


def _to_int32_column(values: Int64s) -> pa.Array:
    return pa.array(values.astype(np.int32))
