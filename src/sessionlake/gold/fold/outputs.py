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

from sessionlake.gold.aggregate.late import by_topic, latest
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import POINT_KEY, Declared
from sessionlake.gold.fold.pack import ReadChanges, split_place
from sessionlake.gold.fold.points import Points, SeqOrder
from sessionlake.gold.fold.rolling import Averages, Figures, FoldedPoints, Pane
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.types import Bools, Int64s, TopicPartition

Names = Callable[[Int64s], dict[str, pa.Array]]
"""A function that returns the key columns of series, given their codes."""
_PANES = pa.array([pane.name.lower() for pane in Pane])
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


class SeriesOutput(StrEnum):
    """Kinds of payload for a table of averages.

    Each payload holds rows. Its full kind is the table's name plus one of these.
    """

    NEW = "new"
    CHANGED = "changed"
    RESTATED = "restated"
    """Rows of `gold.restatements`."""
    BEYOND = "beyond"
    """New points that are older than their series' tails. Their rows are computed from the table."""
    REPORT = "/report"
    """A `GoldReport`, of the whole shard and not of one table."""

    def of(self, series: RollingAverage) -> str:
        """Returns the full kind of payload for a table of averages: the table's name plus this kind."""
        return f"{series.name}/{self}"


class RowRange(msgspec.Struct):
    """The number of rows in a payload, and the lowest and highest time in them.

    The time is `ts` in ms for averages, and `window_start` in microseconds for products. `low` and `high` are 0 for
    products without buckets.
    """

    rows: int
    low: int
    high: int

    def __add__(self, other: RowRange) -> RowRange:
        return RowRange(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


class GoldReport(msgspec.Struct):
    """What the fold of one shard read and emitted in a batch. The sum of all shards' reports describes the batch.

    Attributes:
        read: The number of changes that were read, and their silver batches.
        points: Number of numeric values in the changes, counted once for each table of averages.
        spans: Number and time range of the emitted rows, by kind of payload.
        places: By topic-partition, the highest stream time in ms at which a change was applied.
    """

    read: ReadChanges = ReadChanges()
    points: int = 0
    spans: dict[str, RowRange] = {}
    places: dict[TopicPartition, int] = {}

    def __add__(self, other: GoldReport) -> GoldReport:
        spans = dict(self.spans)
        for kind, span in other.spans.items():
            spans[kind] = spans[kind] + span if kind in spans else span
        places = latest(self.places, other.places)
        return GoldReport(self.read + other.read, self.points + other.points, spans, places)

    @property
    def times(self) -> dict[str, int]:
        """By topic, the highest stream time in ms at which a change of the batch was applied."""
        return by_topic(self.places)


@dataclass(frozen=True)
class Causes:
    """For each point of a batch, the partition and offset of the Kafka message that brought it."""

    partition: Int64s
    offset: Int64s


class Emitted(NamedTuple):
    """One payload: its kind, its rows, and their number and time range."""

    kind: str
    span: RowRange
    rows: pa.Table


def average_payloads(
    series: RollingAverage, found: FoldedPoints, new: Points, causes: Causes, names: Names
) -> list[Emitted]:
    """Returns the payloads for a table of averages.

    Args:
        found: The averages and tails after the batch. A tail is the newest points of a series.
        new: All points of the batch.
        causes: The Kafka message of each point in `new`.
        names: Returns the key columns of series, given their codes.

    Returns:
        New rows, changed rows and restatements. For series marked `needs_history` the batch's points instead: their
        averages are computed from the table later.
    """
    tables = _output_tables(series, found, new, causes, names)
    return [emitted for kind, table in tables for emitted in _split_payloads(kind.of(series), table, "ts")]


def product_rows(changes: pa.Table, declared: Declared, products: Sequence[Product]) -> list[Emitted]:
    """Returns the payloads for the products: their rows, or the changes themselves if there are few.

    Computing a product takes milliseconds even for few changes. So the driver computes the rows at once for all shards
    that have few changes.
    """
    late = (product.late_of_changes(changes, declared) for product in products if product.lateness_ms is not None)
    payloads = [emitted for rows in late for emitted in _split_payloads(LATE_POINTS, rows, None)]
    if changes.num_rows <= FEW_CHANGES:
        return [*payloads, Emitted(CHANGES, RowRange(changes.num_rows, 0, 0), changes)]
    tables = product_tables(changes, declared, products)
    return payloads + [
        emitted
        for product in products
        for rows in [encode_keys(product, tables[product.name])]
        for emitted in _split_payloads(product.name, rows, START if product.bucket_ms else None)
    ]


def product_tables(changes: pa.Table, declared: Declared, products: Sequence[Product]) -> dict[str, pa.Table]:
    """Returns each product's rows, computed from changes, by name of the product.

    Args:
        products: The products, each after the product that it is computed from.
    """
    sources = {product.source for product in products if product.below is None}
    events = {source: source.events(changes, declared) for source in sources}
    tables: dict[str, pa.Table] = {}
    for product in products:
        if product.below is not None:
            tables[product.name] = product.of_finer(tables[product.below.name])
        elif product.lateness_ms is not None:
            tables[product.name] = product.of_changes(changes, declared)
        else:
            tables[product.name] = product.of_events(events[product.source])
    return tables


def encode_keys(product: Product, rows: pa.Table) -> pa.Table:
    """Dictionary-encodes the key columns of texts, since most rows share the same texts."""
    for name in product.keys:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].dictionary_encode())
    return rows.combine_chunks()


def span_of(rows: pa.Table, time: str | None) -> RowRange:
    """Returns the number of rows, and the lowest and highest value of a time column.

    Args:
        time: Name of the time column. None if there is none; then both times are 0.
    """
    ends = {"min": 0, "max": 0} if time is None else pc.min_max(rows[time].cast(pa.int64())).as_py()
    return RowRange(rows.num_rows, ends["min"], ends["max"])


def _split_payloads(kind: str, table: pa.Table, time: str | None) -> Iterator[Emitted]:
    """Splits rows into payloads that are small enough for Spark.

    Args:
        time: The column whose lowest and highest value is reported. None for no column.
    """
    for first in range(0, table.num_rows, _PAYLOAD_ROWS):
        part = table.slice(first, _PAYLOAD_ROWS)
        yield Emitted(kind, span_of(part, time), part)


def with_report(
    read: ReadChanges, points: int, emitted: Iterable[Emitted], times: Mapping[TopicPartition, int] = _NO_TIMES
) -> list[tuple[str, bytes | pa.Table]]:
    """Returns the payloads as pairs of kind and content. The last one is the report on them.

    Args:
        read: The changes that were read.
        points: Number of points in the changes.
        times: By topic-partition, the highest stream time in ms at which a change was applied.
    """
    found, spans = list[tuple[str, bytes | pa.Table]](), dict[str, RowRange]()
    for kind, span, rows in emitted:
        found.append((kind, rows))
        spans[kind] = spans[kind] + span if kind in spans else span
    report = GoldReport(read, points, spans, dict(times))
    return [*found, (str(SeriesOutput.REPORT), msgspec.msgpack.encode(report))]


def total(reports: Iterable[bytes]) -> GoldReport:
    """Decodes the reports of all shards (MessagePack) and adds them up."""
    found = (msgspec.msgpack.decode(content, type=GoldReport) for content in reports)
    return sum(found, GoldReport(spans={}, places={}))


def _output_tables(
    series: RollingAverage, found: FoldedPoints, new: Points, causes: Causes, names: Names
) -> Iterator[tuple[SeriesOutput, pa.Table]]:
    averages = found.averages
    yield SeriesOutput.NEW, _average_rows(series, averages, averages.fresh, names)
    yield SeriesOutput.CHANGED, _average_rows(series, averages, ~averages.fresh, names)
    yield SeriesOutput.RESTATED, _restatements(series, averages, new, causes, names)
    beyond = found.needs_history[new.key]
    points = new.take(beyond)
    brought = {"place": points.position} | {name: getattr(causes, name)[beyond] for name in ("partition", "offset")}
    columns = {name: pa.array(column) for name, column in brought.items()}
    columns |= {name: part for name, part in _seq_order(points).items() if name in series.seq_order}
    keys = names(points.key)
    texts = {name: keys[name] for name in series.texts}  # the partition comes from the message
    yield SeriesOutput.BEYOND, pa.table(texts | _value_columns(points) | columns)


def _value_columns(points: Points) -> dict[str, pa.Array]:
    ordinal = pa.array(points.ordinal.astype(np.int32))
    return {"ts": pa.array(points.ts), "ordinal": ordinal, "value": pa.array(points.value)}


def _seq_order(points: Points) -> dict[str, pa.Array]:
    return (points.by_seq or SeqOrder.none(len(points))).columns()


def _order_columns(series: RollingAverage, points: Points) -> dict[str, pa.Array]:
    """Returns the columns that order points of equal event time, with the names and types that the table has."""
    if series.of_session:
        return {"position": pa.array(points.position)}
    apart = split_place(points.position)
    return {"partition": pa.array(apart["partition"].astype(np.int32)), "offset": pa.array(apart["offset"])}


def _average_rows(series: RollingAverage, averages: Averages, chosen: Bools, names: Names) -> pa.Table:
    points = averages.points.take(chosen)
    columns = (
        names(points.key)
        | _value_columns(points)
        | _order_columns(series, points)
        | _figure_columns(averages.now.take(chosen))
    )
    columns |= {"revision": _int32(points.revision), "pane": _panes(averages.pane[chosen])} | _seq_order(points)
    return pa.table({name: columns[name] for name, _ in series.columns})


def _restatements(series: RollingAverage, averages: Averages, new: Points, causes: Causes, names: Names) -> pa.Table:
    chosen = averages.restated
    points = averages.points.take(chosen)
    count, keys, places = len(points), names(points.key), _order_columns(series, points)
    figures_before, now = (
        _figure_columns(averages.figures_before.take(chosen)),
        _figure_columns(averages.now.take(chosen)),
    )
    first, end = (bound[chosen] for bound in averages.causes)
    columns = {"table": pa.array([series.table]).take(pa.array(np.zeros(count, np.int64)))}
    columns |= {name: keys.get(name, pa.nulls(count, pa.string())) for name in POINT_KEY}
    columns["ts"] = pa.array(points.ts)
    columns |= {name: (places | keys).get(name, pa.nulls(count, kind)) for name, kind in _PLACES.items()}
    columns |= {"ordinal": _int32(points.ordinal), "revision": _int32(points.revision)}
    columns |= {"average_before": figures_before["average"], "average": now["average"]}
    columns |= {
        "points_before": figures_before["points"],
        "points": now["points"],
        "pane": _panes(averages.pane[chosen]),
    }
    columns |= {
        "late_points": _int32(end - first),
        "late_ms": pa.array(averages.late_ms[chosen]),
        "because": _cause_lists(averages.order, first, end, new, causes),
        "logic": pa.array([series.logic]).take(pa.array(np.zeros(count, np.int64))),
    }
    return pa.table(columns)


def _cause_lists(order: Int64s, first: Int64s, end: Int64s, new: Points, causes: Causes) -> pa.Array:
    """Returns, for each restatement, the list of messages that caused it, in order of event time.

    Args:
        order: Indices of the batch's points, sorted by series and event time.
        first: For each restatement, the position in `order` of its first point.
        end: For each restatement, the position in `order` after its last point.
    """
    length = np.minimum(end - first, MOST_CAUSES)
    starts = np.concatenate([[0], np.cumsum(length)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], length)
    place = order[np.repeat(first, length) + within]
    values = [_int32(causes.partition[place]), pa.array(causes.offset[place]), pa.array(new.ts[place])]
    struct = pa.StructArray.from_arrays(values, fields=list(_CAUSE))
    return pa.ListArray.from_arrays(_int32(starts), struct)


def _figure_columns(figures: Figures) -> dict[str, pa.Array]:
    return {"average": pa.array(figures.average, mask=~figures.visible), "points": _int32(figures.size)}


def _panes(panes: Int64s) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_int32(panes), _PANES)


def _int32(values: Int64s) -> pa.Array:
    return pa.array(values.astype(np.int32))
