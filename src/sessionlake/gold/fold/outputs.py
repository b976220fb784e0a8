"""What the gold fold emits: rows of its tables as Arrow IPC, and a report of how many and of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.gold.fold.pack import ReadChanges
from sessionlake.gold.fold.points import Points
from sessionlake.gold.fold.rolling import Averages, Evolution
from sessionlake.protocol.chunk import write_ipc
from sessionlake.protocol.types import Bools, Int64s, Payloads

METRIC_KEY = ("topic", "session_id", "row_id", "metric")
Names = Callable[[Int64s], dict[str, pa.Array]]
"""Columns `topic, session_id, row_id, metric` of key codes."""


class GoldOutput(StrEnum):
    """Kinds of payload that gold's fold emits; all but the report hold rows as Arrow IPC."""

    NEW_AVERAGES = "new_averages"
    CHANGED_AVERAGES = "changed_averages"
    BEYOND = "beyond"
    """New points that reach further back than the tails; their rows follow from the table."""
    REPORT = "report"


class RowRange(msgspec.Struct):
    """Rows of one kind, and the range of their `ts`."""

    rows: int
    low: int
    high: int

    def __add__(self, other: RowRange) -> RowRange:
        return RowRange(self.rows + other.rows, min(self.low, other.low), max(self.high, other.high))


class GoldReport(msgspec.Struct):
    """What one shard's fold of a batch took in and emits; added up, what the batch did.

    Attributes:
        read: the changes that were read.
        points: numeric values among them.
        spans: number and time range of the rows, by `GoldOutput`.
    """

    read: ReadChanges = ReadChanges()
    points: int = 0
    spans: dict[str, RowRange] = {}


def payloads(found: Evolution, new: Points, names: Names, read: ReadChanges) -> Payloads:
    """The payloads of one shard and batch.

    Args:
        new: all points of the batch; those of unproven keys go on as they are.
    """
    tables = dict(_tables(found, new.take(found.unproven[new.key]), names))
    spans = {kind: _span(table) for kind, table in tables.items()}
    report = GoldReport(read, len(new), {str(kind): span for kind, span in spans.items()})
    out = [(str(kind), write_ipc(table)) for kind, table in tables.items()]
    return [*out, (str(GoldOutput.REPORT), msgspec.msgpack.encode(report))]


def total(reports: Iterable[bytes]) -> GoldReport:
    """The shards' reports (msgpack) of one batch, added up."""
    whole = GoldReport(spans={})
    for content in reports:
        part = msgspec.msgpack.decode(content, type=GoldReport)
        whole.read, whole.points = whole.read + part.read, whole.points + part.points
        for kind, span in part.spans.items():
            whole.spans[kind] = whole.spans[kind] + span if kind in whole.spans else span
    return whole


def read_rows(contents: Iterable[bytes]) -> pa.Table:
    """Payloads of one kind as one table, without dictionaries."""
    return pa.concat_tables([_plain(pa.ipc.open_stream(content).read_all()) for content in contents])


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`payload binary` to the rows in the payloads; a `mapInArrow` function."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from _plain(pa.ipc.open_stream(payload.as_buffer()).read_all()).to_batches()


def _tables(found: Evolution, beyond: Points, names: Names) -> Iterator[tuple[GoldOutput, pa.Table]]:
    for chosen, kind in ((True, GoldOutput.NEW_AVERAGES), (False, GoldOutput.CHANGED_AVERAGES)):
        averages = found.averages.fresh == chosen
        if averages.any():
            yield kind, _average_rows(found.averages, averages, names)
    if len(beyond):
        yield GoldOutput.BEYOND, pa.table(names(beyond.key) | _point_columns(beyond))


def _point_columns(points: Points) -> dict[str, pa.Array]:
    return {
        "ts": pa.array(points.ts),
        "position": pa.array(points.position),
        "ordinal": pa.array(points.ordinal.astype(np.int32)),
        "value": pa.array(points.value),
    }


def _average_rows(averages: Averages, chosen: Bools, names: Names) -> pa.Table:
    points = averages.points.take(chosen)
    computed = {
        "average": pa.array(averages.average[chosen]),
        "points": pa.array(averages.size[chosen].astype(np.int32)),
    }
    return pa.table(names(points.key) | _point_columns(points) | computed)


def _span(table: pa.Table) -> RowRange:
    time = table["ts"].to_numpy()
    return RowRange(table.num_rows, int(time.min()), int(time.max()))


def _plain(table: pa.Table) -> pa.Table:
    dense = [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(dense))
