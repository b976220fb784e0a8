"""What each layer has taken in, by the ledger: offset ranges by topic-partition, and the batch that took a message."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.lake.ledger import ENTRY, REBUILD, rebuilt
from sessionlake.lake.names import LEDGER
from sessionlake.lake.reading import Condition, TableReader, begins_with
from sessionlake.lake.txn import Txn
from sessionlake.protocol.types import Row, TopicPartition

_PLACE = ["layer", "topic", "partition"]


class Span(NamedTuple):
    """First and last offset of a topic-partition that a layer has taken in, both included."""

    layer: str
    topic: str
    partition: int
    first: int
    last: int


def covering(reader: TableReader, layer: str, topic: str, partition: int, offset: int) -> list[Row]:
    """The layer's ledger rows, since it was rebuilt, whose offset ranges include the message."""
    found: list[Row] = []
    for batch in _current(reader, ("layer", operator.eq, layer)):
        place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
        inside = place & (pc.field("first") <= offset) & (pc.field("last") >= offset)
        found += batch.take(_ranges(batch).filter(inside)["row"].unique()).to_pylist()
    return found


def spans(reader: TableReader, *conditions: Condition, before: Txn | None = None) -> list[Span]:
    """What each layer, as it is now, has taken in of each topic-partition, in that order.

    Args:
        conditions: on the ledger's rows.
        before: a batch that is left out, with all behind it: it is made again.
    """
    found: dict[tuple[str, str, int], tuple[int, int]] = {}
    for batch in _current(reader, *conditions, columns=[*ENTRY, "offsets"]):
        kept = pa.Table.from_batches([batch])
        if before is not None:
            kept = kept.filter((pc.field("app_id") != before.app_id) | (pc.field("batch_id") < before.version))
        for part in kept.to_batches():
            reached = _ranges(part).group_by(_PLACE).aggregate([("first", "min"), ("last", "max")])
            for row in reached.to_pylist():
                place = row["layer"], row["topic"], row["partition"]
                first, last = found.get(place, (row["first_min"], row["last_max"]))
                found[place] = min(first, row["first_min"]), max(last, row["last_max"])
    return sorted(Span(*place, *span) for place, span in found.items())


def ends(reader: TableReader, layer: str, before: Txn | None = None) -> dict[TopicPartition, int]:
    """The last offset of each topic-partition that the layer, as it is now, has taken in; `before` as for `spans`."""
    of_layer = spans(reader, ("layer", operator.eq, layer), before=before)
    return {(span.topic, span.partition): span.last for span in of_layer}


def _current(
    reader: TableReader, *conditions: Condition, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The ledger's rows since each layer was rebuilt."""
    since = rebuilt(reader.rows(LEDGER, ("app_id", begins_with, REBUILD), columns=ENTRY))
    for batch in reader.batches(LEDGER, *conditions, columns=columns):
        kept = pa.Table.from_batches([batch])
        for layer, (by, least) in since.items():
            kept = kept.filter((pc.field("layer") != layer) | (pc.field(by) >= least))
        yield from kept.to_batches()


def _ranges(batch: pa.RecordBatch) -> pa.Table:
    """The offset ranges of ledger rows: `row` (index of the one it stands in), `layer` and the range's fields."""
    offsets = batch.column("offsets")
    row, ranges = pc.list_parent_indices(offsets), offsets.flatten()
    columns = {name: ranges.field(name) for name in ("topic", "partition", "first", "last")}
    return pa.table({"row": row, "layer": batch.column("layer").take(row)} | columns)
