"""What the gold fold emits: rows of its tables, and a report of how many and of what."""

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
from sessionlake.gold.fold.rolling import Averages, Evolution, Figures, Pane
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.types import Bools, Int64s, TopicPartition

Names = Callable[[Int64s], dict[str, pa.Array]]
"""Columns of the series' keys, of key codes."""
_PANES = pa.array([pane.name.lower() for pane in Pane])
_PLACES = {"position": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
_NO_TIMES: Mapping[TopicPartition, int] = {}
_PAYLOAD_ROWS = 32_768  # some megabytes
FEW_CHANGES = 1_000
"""Of a shard, so many are made rows of products in the driver."""
LATE_POINTS = "/late_points"  # as no product can be named
"""Kind of the payloads with what comes too late for products: rows of `gold.late_points`, less `_batch`."""
CHANGES = "/changes"
"""Kind of the payloads with the changes of shards that have few."""
_CAUSE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("ts", pa.int64())])
MOST_CAUSES = 16
"""So many messages are named in a restatement, the first of them in event time."""


class SeriesOutput(StrEnum):
    """Kinds of payload that the fold emits of a table of averages, behind its name; each holds rows."""

    NEW = "new"
    CHANGED = "changed"
    RESTATED = "restated"
    """Rows of `gold.restatements`."""
    BEYOND = "beyond"
    """New points that reach further back than the tails; their rows follow from the table."""
    REPORT = "/report"
    """Of the shard, not of a table: a `GoldReport`."""

    def of(self, series: RollingAverage) -> str:
        """The kind of this table's payloads."""
        return f"{series.name}/{self}"


class RowRange(msgspec.Struct):
    """Rows of one kind, and the range of their `ts`; of products' the range of `window_start` in microseconds, or 0."""

    rows: int
    low: int
    high: int

    def __add__(self, other: RowRange) -> RowRange:
        return RowRange(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


class GoldReport(msgspec.Struct):
    """What one shard's fold of a batch took in and emits; added up, what the batch did.

    Attributes:
        read: the changes that were read.
        points: numeric values among them, once for each table of averages.
        spans: number and time range of the rows, by the kind of payload.
        places: of the topic-partitions whose changes were read, the highest stream time at which one was applied, ms.
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
        """The highest of the stream times of its partitions, in ms, by topic."""
        return by_topic(self.places)


@dataclass(frozen=True)
class Causes:
    """The Kafka messages that brought a batch's points, one each."""

    partition: Int64s
    offset: Int64s


class Emitted(NamedTuple):
    """Rows as a payload."""

    kind: str
    span: RowRange
    rows: pa.Table


def average_payloads(
    series: RollingAverage, found: Evolution, new: Points, causes: Causes, names: Names
) -> list[Emitted]:
    """Rows of one shard and batch.

    Args:
        new: all points of the batch; those of unproven keys go on as they are.
    """
    tables = _tables(series, found, new, causes, names)
    return [emitted for kind, table in tables for emitted in _emitted(kind.of(series), table, "ts")]


def product_rows(changes: pa.Table, declared: Declared, products: Sequence[Product]) -> list[Emitted]:
    """What a shard's changes come to in each product; of few, the changes themselves.

    A product costs milliseconds however few the changes: those of all shards are made rows of together.
    """
    late = (product.late_of_changes(changes, declared) for product in products if product.lateness_ms is not None)
    payloads = [emitted for rows in late for emitted in _emitted(LATE_POINTS, rows, None)]
    if changes.num_rows <= FEW_CHANGES:
        return [*payloads, Emitted(CHANGES, RowRange(changes.num_rows, 0, 0), changes)]
    tables = product_tables(changes, declared, products)
    return payloads + [
        emitted
        for product in products
        for rows in [encoded(product, tables[product.name])]
        for emitted in _emitted(product.name, rows, START if product.bucket_ms else None)
    ]


def product_tables(changes: pa.Table, declared: Declared, products: Sequence[Product]) -> dict[str, pa.Table]:
    """What changes come to in each product.

    Args:
        products: each behind the one that it is made from.
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


def encoded(product: Product, rows: pa.Table) -> pa.Table:
    """With dictionaries of its texts, which most rows share with others."""
    for name in product.keys:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].dictionary_encode())
    return rows.combine_chunks()


def span_of(rows: pa.Table, time: str | None) -> RowRange:
    """How many rows, and the range of a column of times."""
    ends = {"min": 0, "max": 0} if time is None else pc.min_max(rows[time].cast(pa.int64())).as_py()
    return RowRange(rows.num_rows, ends["min"], ends["max"])


def _emitted(kind: str, table: pa.Table, time: str | None) -> Iterator[Emitted]:
    """Rows in payloads that Spark can hold whole.

    Args:
        time: what the range of the report is of.
    """
    for first in range(0, table.num_rows, _PAYLOAD_ROWS):
        part = table.slice(first, _PAYLOAD_ROWS)
        yield Emitted(kind, span_of(part, time), part)


def with_report(
    read: ReadChanges, points: int, emitted: Iterable[Emitted], times: Mapping[TopicPartition, int] = _NO_TIMES
) -> list[tuple[str, bytes | pa.Table]]:
    """The rows, and a report of them."""
    found, spans = list[tuple[str, bytes | pa.Table]](), dict[str, RowRange]()
    for kind, span, rows in emitted:
        found.append((kind, rows))
        spans[kind] = spans[kind] + span if kind in spans else span
    report = GoldReport(read, points, spans, dict(times))
    return [*found, (str(SeriesOutput.REPORT), msgspec.msgpack.encode(report))]


def total(reports: Iterable[bytes]) -> GoldReport:
    """The shards' reports (msgpack) of one batch, added up."""
    found = (msgspec.msgpack.decode(content, type=GoldReport) for content in reports)
    return sum(found, GoldReport(spans={}, places={}))


def _tables(
    series: RollingAverage, found: Evolution, new: Points, causes: Causes, names: Names
) -> Iterator[tuple[SeriesOutput, pa.Table]]:
    averages = found.averages
    yield SeriesOutput.NEW, _average_rows(series, averages, averages.fresh, names)
    yield SeriesOutput.CHANGED, _average_rows(series, averages, ~averages.fresh, names)
    yield SeriesOutput.RESTATED, _restatements(series, averages, new, causes, names)
    beyond = found.unproven[new.key]
    points = new.take(beyond)
    brought = {"place": points.position} | {name: getattr(causes, name)[beyond] for name in ("partition", "offset")}
    columns = {name: pa.array(column) for name, column in brought.items()}
    columns |= {name: part for name, part in _seq_order(points).items() if name in series.seq_order}
    keys = names(points.key)
    texts = {name: keys[name] for name in series.texts}  # the partition is the message's own
    yield SeriesOutput.BEYOND, pa.table(texts | _values(points) | columns)


def _values(points: Points) -> dict[str, pa.Array]:
    ordinal = pa.array(points.ordinal.astype(np.int32))
    return {"ts": pa.array(points.ts), "ordinal": ordinal, "value": pa.array(points.value)}


def _seq_order(points: Points) -> dict[str, pa.Array]:
    return (points.by_seq or SeqOrder.none(len(points))).columns()


def _places(series: RollingAverage, points: Points) -> dict[str, pa.Array]:
    """What orders points of one event time, as the table has it."""
    if series.of_session:
        return {"position": pa.array(points.position)}
    apart = split_place(points.position)
    return {"partition": pa.array(apart["partition"].astype(np.int32)), "offset": pa.array(apart["offset"])}


def _average_rows(series: RollingAverage, averages: Averages, chosen: Bools, names: Names) -> pa.Table:
    points = averages.points.take(chosen)
    columns = names(points.key) | _values(points) | _places(series, points) | _shown(averages.now.take(chosen))
    columns |= {"revision": _int32(points.revision), "pane": _panes(averages.pane[chosen])} | _seq_order(points)
    return pa.table({name: columns[name] for name, _ in series.columns})


def _restatements(series: RollingAverage, averages: Averages, new: Points, causes: Causes, names: Names) -> pa.Table:
    chosen = averages.restated
    points = averages.points.take(chosen)
    count, keys, places = len(points), names(points.key), _places(series, points)
    was, now = _shown(averages.was.take(chosen)), _shown(averages.now.take(chosen))
    first, end = (bound[chosen] for bound in averages.causes)
    columns = {"table": pa.array([series.table]).take(pa.array(np.zeros(count, np.int64)))}
    columns |= {name: keys.get(name, pa.nulls(count, pa.string())) for name in POINT_KEY}
    columns["ts"] = pa.array(points.ts)
    columns |= {name: (places | keys).get(name, pa.nulls(count, kind)) for name, kind in _PLACES.items()}
    columns |= {"ordinal": _int32(points.ordinal), "revision": _int32(points.revision)}
    columns |= {"average_before": was["average"], "average": now["average"]}
    columns |= {"points_before": was["points"], "points": now["points"], "pane": _panes(averages.pane[chosen])}
    columns |= {
        "late_points": _int32(end - first),
        "late_ms": pa.array(averages.late_ms[chosen]),
        "because": _because(averages.order, first, end, new, causes),
        "logic": pa.array([series.logic]).take(pa.array(np.zeros(count, np.int64))),
    }
    return pa.table(columns)


def _because(order: Int64s, first: Int64s, end: Int64s, new: Points, causes: Causes) -> pa.Array:
    """The messages that changed each row, the first in event time before the others."""
    length = np.minimum(end - first, MOST_CAUSES)
    starts = np.concatenate([[0], np.cumsum(length)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], length)
    place = order[np.repeat(first, length) + within]
    values = [_int32(causes.partition[place]), pa.array(causes.offset[place]), pa.array(new.ts[place])]
    struct = pa.StructArray.from_arrays(values, fields=list(_CAUSE))
    return pa.ListArray.from_arrays(_int32(starts), struct)


def _shown(figures: Figures) -> dict[str, pa.Array]:
    return {"average": pa.array(figures.average, mask=~figures.seen), "points": _int32(figures.size)}


def _panes(panes: Int64s) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_int32(panes), _PANES)


def _int32(values: Int64s) -> pa.Array:
    return pa.array(values.astype(np.int32))
