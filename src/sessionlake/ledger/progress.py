"""Answers from the ledger about what each layer has read: which offsets, which batches, and which batch a message."""

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
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts, mask_entries_since_rebuild
from sessionlake.protocol.types import Row, TopicPartition

_PLACE = ["layer", "topic", "partition"]
# An entry is searched within these distances from a known time, one after the other, and then in the whole ledger.
_REACHES = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))


class LayerReadOffsets(NamedTuple):
    """The offsets that a layer has read of one topic-partition since the layer's last rebuild.

    Attributes:
        layer: the layer's name.
        topic: the Kafka topic.
        partition: the Kafka partition.
        first: lowest offset read.
        last: highest offset read.
        messages: number of messages read.
    """

    layer: str
    topic: str
    partition: int
    first: int
    last: int
    messages: int


def read_layer_offsets(
    reader: TableReader, layer: str | None = None, before: Txn | None = None
) -> list[LayerReadOffsets]:
    """Returns what each layer has read of each topic-partition since the layer's last rebuild, sorted.

    Args:
        reader: reads the ledger.
        layer: name of the only layer to include; None for all layers.
        before: a batch that its query will run again. This batch and later ones are left out. None to leave out none.
    """
    found: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    books = LedgerReader(reader, "offsets", before=before)
    for batch in books.read_entries_since_rebuild(*_build_layer_conditions(layer)):
        sums = [("first", "min"), ("last", "max"), ("messages", "sum")]
        for row in _unnest_ledger_offsets(batch).group_by(_PLACE).aggregate(sums).to_pylist():
            place = row["layer"], row["topic"], row["partition"]
            first, last, messages = found.get(place, (row["first_min"], row["last_max"], 0))
            reached = min(first, row["first_min"]), max(last, row["last_max"])
            found[place] = *reached, messages + row["messages_sum"]
    return sorted(LayerReadOffsets(*place, *span) for place, span in found.items())


def read_last_offsets(reader: TableReader, layer: str, before: Txn | None = None) -> dict[TopicPartition, int]:
    """Returns the last offset that the layer has read of each topic-partition since the layer's last rebuild.

    Args:
        reader: reads the ledger.
        layer: the layer's name.
        before: a batch that its query will run again. This batch and later ones are left out. None to leave out none.
    """
    return {(span.topic, span.partition): span.last for span in read_layer_offsets(reader, layer, before)}


def has_read_message(reader: TableReader, layer: str, topic: str, partition: int, offset: int) -> bool:
    """True if the layer has read this message since the layer's last rebuild. The message must exist in bronze."""
    place = layer, topic, partition
    return any(span[:3] == place and span.first <= offset <= span.last for span in read_layer_offsets(reader, layer))


def read_last_batch_number(reader: TableReader, layer: str, app_id: str | None = None) -> int | None:
    """Returns the number of the layer's last batch in the ledger; None if it has none.

    Args:
        reader: reads the ledger.
        layer: the layer's name.
        app_id: application id of the batches to consider; None for all.
    """
    own: list[Condition] = [] if app_id is None else [("app_id", eq, app_id)]
    found = [
        pc.max(batch.column("batch_id")).as_py()
        for batch in LedgerReader(reader).read_entries(*_build_layer_conditions(layer), *own)
    ]
    return max((number for number in found if number is not None), default=None)


def read_first_offsets_since(reader: TableReader, layer: str, moment: datetime) -> dict[TopicPartition, int]:
    """Returns the lowest offset of each topic-partition in the layer's batches committed at `moment` or later.

    Topic-partitions that these batches did not read are missing.
    """
    found: dict[TopicPartition, int] = {}
    for batch in reader.read_batches(
        LEDGER, *_build_layer_conditions(layer), ("committed_at", ge, moment), columns=["layer", "offsets"]
    ):
        for row in _unnest_ledger_offsets(batch).group_by(_PLACE).aggregate([("first", "min")]).to_pylist():
            place = row["topic"], row["partition"]
            found[place] = min(row["first_min"], found.get(place, row["first_min"]))
    return found


def read_last_commits_since(reader: TableReader, layer: str, moment: datetime) -> dict[TopicPartition, datetime]:
    """Returns, by topic-partition, when the layer last committed a batch with messages of that topic-partition.

    Only commits at `moment` or later count. Topic-partitions without such a commit are missing.
    """
    found: dict[TopicPartition, datetime] = {}
    columns = ["layer", "offsets", "committed_at"]
    for batch in reader.read_batches(
        LEDGER, *_build_layer_conditions(layer), ("committed_at", ge, moment), columns=columns
    ):
        ranges = _unnest_ledger_offsets(batch)
        ranges = ranges.append_column("at", batch.column("committed_at").take(ranges["row"].combine_chunks()))
        own = ranges.filter(pc.field("messages") > 0).group_by(_PLACE).aggregate([("at", "max")])
        for row in own.to_pylist():
            place = row["topic"], row["partition"]
            found[place] = max(row["at_max"], found.get(place, row["at_max"]))
    return found


def read_first_batch_number_since(reader: TableReader, layer: str, moment: datetime) -> int | None:
    """Returns the lowest number of a batch that the layer committed at `moment` or later; None if there is none."""
    late = reader.read_batches(
        LEDGER, *_build_layer_conditions(layer), ("committed_at", ge, moment), columns=["batch_id"]
    )
    found = [pc.min(batch.column("batch_id")).as_py() for batch in late]
    return min((number for number in found if number is not None), default=None)


def read_last_merged_batch_number(reader: TableReader) -> int:
    """Returns the number of the last silver batch that was merged into silver's MERGE tables; -1 before the first."""
    merges = LedgerReader(reader, "source_to").read_entries(*_build_layer_conditions(SILVER_TABLES))
    return max((row["source_to"] for row in iterate_rows_as_dicts(merges)), default=-1)


class GoldChangeProgress(NamedTuple):
    """How far gold has read `silver.session_changes` since gold's tables were last emptied.

    Attributes:
        batch: number of the last silver batch whose changes gold has read.
        renumbered: batch number of silver's last rebuild that left gold's tables as they were. All changes before that
            rebuild now have this number. None if there was no such rebuild.
    """

    batch: int
    renumbered: int | None


def read_change_progress(reader: TableReader) -> GoldChangeProgress | None:
    """Returns how far gold has read `silver.session_changes`.

    Returns None if gold has read nothing since its tables were last emptied.
    """
    books = LedgerReader(reader, "source_to")
    rebuilds = list(iterate_rows_as_dicts(books.read_entries(("app_id", starts_with, REBUILD))))
    emptied = {row["app_id"]: row["committed_at"] for row in rebuilds if row["layer"] == GOLD}
    since: list[Condition] = [("committed_at", gt, max(emptied.values()))] if emptied else []
    ends = [
        pc.max(batch.column("source_to")).as_py()
        for batch in books.read_entries(*_build_layer_conditions(GOLD), *since)
    ]
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
    return GoldChangeProgress(last if renumbered is None else max(last, renumbered), renumbered)


def read_ledger_entries_after_batch(reader: TableReader, layer: str, batch: int, *columns: str) -> list[Row]:
    """Returns the ledger entries of the layer's batches with higher numbers than `batch`, sorted by batch number.

    Each entry is a dictionary with `layer`, `app_id`, `batch_id`, `committed_at` and the further columns.

    Args:
        reader: reads the ledger.
        layer: the layer's name.
        batch: a batch number.
        columns: names of further ledger columns.
    """
    behind: list[Condition] = [*_build_layer_conditions(layer), ("batch_id", gt, batch)]
    found = list(iterate_rows_as_dicts(LedgerReader(reader, *columns, "batches").read_entries(*behind)))
    if any(row["batches"] > 1 for row in found):  # some rows are sums that include these batches
        found = list(iterate_rows_as_dicts(LedgerReader(reader, *columns, every_entry=True).read_entries(*behind)))
    return sorted(found, key=itemgetter("batch_id"))


def find_ledger_entry_of_message(
    reader: TableReader, layer: str, topic: str, partition: int, offset: int, approximate_time: datetime | None = None
) -> Row | None:
    """Returns the ledger entry of the batch in which the layer read a message, as a dictionary by column name.

    Only entries since the layer's last rebuild count. None if none of them includes the message's offset.

    Args:
        reader: reads the ledger.
        layer: the layer's name.
        topic: topic of the message.
        partition: partition of the message.
        offset: offset of the message in `bronze.messages`.
        approximate_time: approximate commit time of the batch, at which the search starts; None if unknown.
    """
    if not has_read_message(reader, layer, topic, partition, offset):
        return None
    since = LedgerReader(reader).read_last_rebuilds()
    place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
    inside = place & (pc.field("first") <= offset) & (pc.field("last") >= offset)
    for window in iterate_commit_time_windows(approximate_time):
        for batch in reader.read_batches(LEDGER, *_build_layer_conditions(layer), *window):
            kept = batch.filter(mask_entries_since_rebuild(batch, since))
            for row in kept.take(_unnest_ledger_offsets(kept).filter(inside)["row"].unique()).to_pylist():
                return dict(row)
    return None


def iterate_commit_time_windows(approximate_time: datetime | None) -> Iterator[Sequence[Condition]]:
    """Yields conditions on the commit time for one ledger search after another, each over a longer time.

    They cover an hour before and after `approximate_time`, then a day, then 30 days, then the whole ledger.

    Args:
        approximate_time: the time around which to search; None to search the whole ledger at once.
    """
    if approximate_time is not None:
        for reach in _REACHES:
            yield ("committed_at", ge, approximate_time - reach), ("committed_at", le, approximate_time + reach)
    yield ()


def _build_layer_conditions(layer: str | None) -> list[Condition]:
    return [] if layer is None else [("layer", eq, layer)]


def _unnest_ledger_offsets(ledger_rows: pa.RecordBatch) -> pa.Table:
    """Returns one row for each topic-partition in the column `offsets` of these ledger rows.

    Its columns are `row` (index of the ledger row), `layer`, `topic`, `partition`, `first`, `last` and `messages`.
    """
    offsets = ledger_rows.column("offsets")
    row, ranges = pc.list_parent_indices(offsets), offsets.flatten()
    columns = {name: ranges.field(name) for name in ("topic", "partition", "first", "last", "messages")}
    return pa.table({"row": row, "layer": ledger_rows.column("layer").take(row)} | columns)
