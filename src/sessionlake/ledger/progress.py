"""What each layer has read, according to the ledger: offset ranges by topic-partition, and the batch of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from operator import eq, ge, gt, itemgetter, le
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER, SILVER_TABLES
from sessionlake.delta.storage.reading import Condition, TableReader, starts_with
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.ledger.books import LedgerReader, current_mask, to_dicts
from sessionlake.protocol.types import Row, TopicPartition

_PLACE = ["layer", "topic", "partition"]
# Distances from a moment within which an entry is searched, before the whole ledger is searched.
_REACHES = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))


class Span(NamedTuple):
    """First and last offset that a layer has read of a topic-partition, both included, and the number of messages."""

    layer: str
    topic: str
    partition: int
    first: int
    last: int
    messages: int


def offset_spans(reader: TableReader, layer: str | None = None, before: Txn | None = None) -> list[Span]:
    """Returns what each layer has read of each topic-partition since its last rebuild, sorted.

    Args:
        layer: only this layer; None for all.
        before: a batch that will be repeated; it and later ones are left out.
    """
    found: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    books = LedgerReader(reader, "offsets", before=before)
    for batch in books.current(*_of(layer)):
        sums = [("first", "min"), ("last", "max"), ("messages", "sum")]
        for row in _ranges(batch).group_by(_PLACE).aggregate(sums).to_pylist():
            place = row["layer"], row["topic"], row["partition"]
            first, last, messages = found.get(place, (row["first_min"], row["last_max"], 0))
            reached = min(first, row["first_min"]), max(last, row["last_max"])
            found[place] = *reached, messages + row["messages_sum"]
    return sorted(Span(*place, *span) for place, span in found.items())


def last_offsets(reader: TableReader, layer: str, before: Txn | None = None) -> dict[TopicPartition, int]:
    """Returns the last offset that the layer has read of each topic-partition since its last rebuild.

    Args:
        before: a batch that will be repeated; it and later ones are left out.
    """
    return {(span.topic, span.partition): span.last for span in offset_spans(reader, layer, before)}


def has_read(reader: TableReader, layer: str, topic: str, partition: int, offset: int) -> bool:
    """True if the layer has read this message, which bronze has, since its last rebuild."""
    place = layer, topic, partition
    return any(span[:3] == place and span.first <= offset <= span.last for span in offset_spans(reader, layer))


def last_batch(reader: TableReader, layer: str, app_id: str | None = None) -> int | None:
    """Returns the number of the layer's last batch, optionally of one application id; None before the first batch."""
    own: list[Condition] = [] if app_id is None else [("app_id", eq, app_id)]
    found = [pc.max(batch.column("batch_id")).as_py() for batch in LedgerReader(reader).entries(*_of(layer), *own)]
    return max((number for number in found if number is not None), default=None)


def first_offsets_since(reader: TableReader, layer: str, moment: datetime) -> dict[TopicPartition, int]:
    """Returns the first offset of each topic-partition that the layer has read since a moment."""
    found: dict[TopicPartition, int] = {}
    for batch in reader.batches(LEDGER, *_of(layer), ("committed_at", ge, moment), columns=["layer", "offsets"]):
        for row in _ranges(batch).group_by(_PLACE).aggregate([("first", "min")]).to_pylist():
            place = row["topic"], row["partition"]
            found[place] = min(row["first_min"], found.get(place, row["first_min"]))
    return found


def last_commits_since(reader: TableReader, layer: str, moment: datetime) -> dict[TopicPartition, datetime]:
    """Returns when the layer last committed messages of each topic-partition since a moment."""
    found: dict[TopicPartition, datetime] = {}
    columns = ["layer", "offsets", "committed_at"]
    for batch in reader.batches(LEDGER, *_of(layer), ("committed_at", ge, moment), columns=columns):
        ranges = _ranges(batch)
        ranges = ranges.append_column("at", batch.column("committed_at").take(ranges["row"].combine_chunks()))
        own = ranges.filter(pc.field("messages") > 0).group_by(_PLACE).aggregate([("at", "max")])
        for row in own.to_pylist():
            place = row["topic"], row["partition"]
            found[place] = max(row["at_max"], found.get(place, row["at_max"]))
    return found


def first_batch_since(reader: TableReader, layer: str, moment: datetime) -> int | None:
    """Returns the number of the layer's first batch since a moment; None if there is none."""
    late = reader.batches(LEDGER, *_of(layer), ("committed_at", ge, moment), columns=["batch_id"])
    found = [pc.min(batch.column("batch_id")).as_py() for batch in late]
    return min((number for number in found if number is not None), default=None)


def last_merged_batch(reader: TableReader) -> int:
    """Returns the number of the last silver batch in the merged tables; -1 before the first."""
    merges = LedgerReader(reader, "source_to").entries(*_of(SILVER_TABLES))
    return max((row["source_to"] for row in to_dicts(merges)), default=-1)


class ChangesRead(NamedTuple):
    """Which of silver's changes gold has read since it was last emptied.

    Attributes:
        batch: number of the last silver batch whose changes gold has read.
        renumbered: number of silver's last rebuild that kept gold; all earlier changes have this batch number. None if
            there was none.
    """

    batch: int
    renumbered: int | None


def changes_read(reader: TableReader) -> ChangesRead | None:
    """Returns which of silver's changes gold has read; None before gold's first batch since it was emptied."""
    books = LedgerReader(reader, "source_to")
    rebuilds = list(to_dicts(books.entries(("app_id", starts_with, REBUILD))))
    emptied = {row["app_id"]: row["committed_at"] for row in rebuilds if row["layer"] == GOLD}
    since: list[Condition] = [("committed_at", gt, max(emptied.values()))] if emptied else []
    ends = [pc.max(batch.column("source_to")).as_py() for batch in books.entries(*_of(GOLD), *since)]
    last = max((end for end in ends if end is not None), default=None)
    if last is None:
        return None
    kept = (
        row["batch_id"]
        for row in rebuilds
        if row["layer"] == SILVER and f"{row['app_id']}:{GOLD}" not in emptied
        if all(row["committed_at"] > moment for moment in emptied.values())
    )
    renumbered = max(kept, default=None)
    return ChangesRead(last if renumbered is None else max(last, renumbered), renumbered)


def batches_after(reader: TableReader, layer: str, batch: int, *columns: str) -> list[Row]:
    """Returns the ledger's rows of the layer's batches after one of them, in order."""
    behind: list[Condition] = [*_of(layer), ("batch_id", gt, batch)]
    found = list(to_dicts(LedgerReader(reader, *columns, "batches").entries(*behind)))
    if any(row["batches"] > 1 for row in found):  # some rows are sums that include these batches
        found = list(to_dicts(LedgerReader(reader, *columns, every_entry=True).entries(*behind)))
    return sorted(found, key=itemgetter("batch_id"))


def find_entry(
    reader: TableReader, layer: str, topic: str, partition: int, offset: int, near: datetime | None = None
) -> Row | None:
    """Returns the layer's ledger row, since its last rebuild, whose offsets include the message; None if none does.

    Args:
        near: about when it was committed; the search starts there.
    """
    if not has_read(reader, layer, topic, partition, offset):
        return None
    since = LedgerReader(reader).rebuilds()
    place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
    inside = place & (pc.field("first") <= offset) & (pc.field("last") >= offset)
    for window in search_windows(near):
        for batch in reader.batches(LEDGER, *_of(layer), *window):
            kept = batch.filter(current_mask(batch, since))
            for row in kept.take(_ranges(kept).filter(inside)["row"].unique()).to_pylist():
                return dict(row)
    return None


def search_windows(near: datetime | None) -> Iterator[Sequence[Condition]]:
    """Yields the conditions of ever wider searches around a moment, and at last of the whole ledger."""
    if near is not None:
        for reach in _REACHES:
            yield ("committed_at", ge, near - reach), ("committed_at", le, near + reach)
    yield ()


def _of(layer: str | None) -> list[Condition]:
    return [] if layer is None else [("layer", eq, layer)]


def _ranges(batch: pa.RecordBatch) -> pa.Table:
    """Returns the offset ranges of ledger rows: `row` (index of the ledger row), `layer`, and the range's fields."""
    offsets = batch.column("offsets")
    row, ranges = pc.list_parent_indices(offsets), offsets.flatten()
    columns = {name: ranges.field(name) for name in ("topic", "partition", "first", "last", "messages")}
    return pa.table({"row": row, "layer": batch.column("layer").take(row)} | columns)
