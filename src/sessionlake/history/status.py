"""The status of each layer: totals, how much it has not read yet, and its last commit.

Everything comes from the ledger, except how much gold has not read. This is counted in `session_changes`, because
retention may have removed changes that the ledger still counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from operator import gt
from typing import Any, NamedTuple

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, CHANGES, EVENTS, GOLD, LEDGER, SILVER, SILVER_TABLES, TOPICS
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import BrokerError, ConfigError, KafkaAccessError
from sessionlake.kafka.clients import build_librdkafka_consumer_config, require_reachable_broker
from sessionlake.ledger.absent import AbsentOffsetFinder, count_offsets_in_intervals
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.progress import LayerReadOffsets, read_change_progress, read_layer_offsets
from sessionlake.ledger.topics import READ_STATES, TopicGeneration, parse_topics_table_rows, select_latest_generations
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings

LAYERS = (BRONZE, SILVER, SILVER_TABLES, GOLD)
KafkaEndOffsets = dict[TopicPartition, int]
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class LayerStatus:
    """One layer's totals and how far it is behind; a row of `sessionlake status`.

    Attributes:
        layer: The layer's name in the ledger.
        batches: Number of batches.
        last_batch: Id of the last batch; None before the first.
        messages: How much the layer has read: Kafka messages for bronze, silver and processors, messages of the merged
            batches for the silver tables, session changes for gold.
        rows: Number of rows that the layer wrote to its tables, including merged rows.
        behind: How much its source has that the layer has not read yet, in the unit of `messages`; None if this is not
            known.
        duplicates: Number of messages that silver dropped as duplicates.
        quarantined: Number of messages that silver put into quarantine.
        held: Number of messages that silver currently holds back.
        events: Number of rows that silver wrote to `silver.integrity_events`.
        unaccounted: Number of messages that were read, but neither applied, dropped, quarantined nor held. Must be 0.
        committed_at: When the last batch was committed, UTC; None before the first.
        age_seconds: Seconds since the last commit; None before the first.
    """

    layer: str
    batches: int = 0
    last_batch: int | None = None
    messages: int = 0
    rows: int = 0
    behind: int | None = None
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    events: int = 0
    unaccounted: int = 0
    committed_at: datetime | None = None
    age_seconds: float | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the values of all fields as a tuple, in the order of `STATUS_COLUMNS`."""
        return astuple(self)


STATUS_COLUMNS = tuple(item.name for item in fields(LayerStatus))


def may_have_ledger(settings: Settings) -> bool:
    """Returns False if the ledger certainly does not exist yet, True if it may exist. Does not start Spark."""
    return not Lake(settings).is_known_missing(LEDGER)


def layer_statuses(reader: TableReader, settings: Settings) -> list[LayerStatus]:
    """Returns the status of every layer and processor, in the order in which data flows through them."""
    batches = _read_ledger_entry_totals(reader)
    if not batches:
        return [LayerStatus(layer) for layer in (*LAYERS, *(own.layer for own in settings.processors))]
    layer_spans = read_layer_offsets(reader)
    bronze, silver = (_find_next_offsets(layer_spans, layer) for layer in ("bronze", "silver"))
    kafka = _convert_kafka_to_bronze_offsets(
        read_kafka_end_offsets(settings), select_latest_generations(parse_topics_table_rows(reader.read_rows(TOPICS)))
    )
    behind: dict[str, int | None] = {
        "bronze": None if kafka is None else _count_unread_messages(reader, kafka, bronze),
        "silver": _count_unread_messages(reader, bronze, silver),
        SILVER_TABLES: max(0, _sum_messages_of_layer(batches, SILVER) - _sum_messages_of_layer(batches, SILVER_TABLES)),
        "gold": _count_unread_changes(reader, _sum_messages_of_layer(batches, GOLD)),
    }
    for own in settings.processors:
        if own.key:  # its ledger knows no offsets
            behind[own.layer] = None
            continue
        wanted = {place: end for place, end in bronze.items() if re.fullmatch(own.topics, place[0])}
        behind[own.layer] = _count_unread_messages(reader, wanted, _find_next_offsets(layer_spans, own.layer))
    now = datetime.now(UTC)
    return [
        _create_layer_status(layer, [b for b in batches if b.layer == layer], lag, now) for layer, lag in behind.items()
    ]


def read_kafka_end_offsets(settings: Settings) -> KafkaEndOffsets | None:
    """Returns, for each partition of the captured topics, the offset after the last message that can be read.

    Messages from the start of an open transaction on cannot be read yet. The result is None if Kafka does not answer,
    or if bronze does not read Kafka.
    """
    if settings.bronze.source is not SourceKind.KAFKA:
        return None
    try:
        require_reachable_broker(settings)
        config = build_librdkafka_consumer_config(settings, "status")
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as KafkaPartition
    except (ImportError, ConfigError, BrokerError, KafkaAccessError):
        return None
    consumer = Consumer(config)
    matches = re.compile(settings.kafka.topic_pattern).fullmatch
    try:
        topics = consumer.list_topics(timeout=_TIMEOUT_SECONDS).topics
        places = [(name, number) for name, topic in topics.items() if matches(name) for number in topic.partitions]
        return {p: consumer.get_watermark_offsets(KafkaPartition(*p), timeout=_TIMEOUT_SECONDS)[1] for p in places}
    except KafkaException:
        return None
    finally:
        consumer.close()


def _find_next_offsets(spans: Iterable[LayerReadOffsets], layer: str) -> KafkaEndOffsets:
    """Returns, for each topic-partition, the offset after the last one that a layer has read.

    Args:
        spans: The ranges of offsets that the layers have read, one for each layer and topic-partition.
        layer: Name of the layer.
    """
    return {(span.topic, span.partition): span.last + 1 for span in spans if span.layer == layer}


_SUMMED_COLUMNS = ("batches", "messages", "duplicates", "quarantined", "held", "unaccounted")


class _LedgerEntryTotals(NamedTuple):
    """Totals of one ledger entry, which may stand for several batches of a layer.

    Attributes:
        layer: Name of the layer.
        last_batch: Number of the entry's last batch.
        committed_at: When it was committed.
        batches: Number of batches that the entry stands for.
        messages, duplicates, quarantined, held, unaccounted: Numbers of messages, with the ledger's meaning.
        rows: Number of rows that were written to all tables.
        events: Number of rows that were written to `integrity_events`.
    """

    layer: str
    last_batch: int
    committed_at: datetime
    batches: int
    messages: int
    duplicates: int
    quarantined: int
    held: int
    unaccounted: int
    rows: int
    events: int


def _read_ledger_entry_totals(reader: TableReader) -> list[_LedgerEntryTotals]:
    """Returns the totals of all ledger entries since each layer's last rebuild."""
    return [
        _convert_ledger_entry_to_totals(row)
        for row in iterate_rows_as_dicts(LedgerReader(reader, *_SUMMED_COLUMNS, "outputs").read_entries_since_rebuild())
    ]


def _convert_ledger_entry_to_totals(row: Row) -> _LedgerEntryTotals:
    def count_written_rows(*tables: str) -> int:
        return sum(output["rows"] for output in row["outputs"] if not tables or output["table"] in tables)

    return _LedgerEntryTotals(
        layer=row["layer"],
        last_batch=row["batch_id"],
        committed_at=row["committed_at"],
        rows=count_written_rows(),
        events=count_written_rows(EVENTS),
        **{name: row[name] for name in _SUMMED_COLUMNS},
    )


def _convert_kafka_to_bronze_offsets(
    ends: KafkaEndOffsets | None, topics: Mapping[str, TopicGeneration]
) -> KafkaEndOffsets | None:
    """Converts next offsets in Kafka's partitions to next offsets in `bronze.messages`; None stays None.

    They differ if a topic was deleted and created again. Topics that are no longer read are left out.

    Args:
        ends: For each topic-partition, the offset in Kafka after the last message.
        topics: What bronze has recorded about each topic, by the topic's name.
    """
    if ends is None:
        return None
    read = {name: row.offset_shift for name, row in topics.items() if row.state in READ_STATES}
    gone = topics.keys() - read.keys()
    return {(name, number): end + read.get(name, 0) for (name, number), end in ends.items() if name not in gone}


def _count_unread_messages(reader: TableReader, end_offsets: KafkaEndOffsets, next_offsets: KafkaEndOffsets) -> int:
    """Returns the number of messages that a layer has not read. Offsets without a message do not count.

    Args:
        reader: Reads the tables.
        end_offsets: For each topic-partition, the offset after the last one that the layer could read.
        next_offsets: For each topic-partition, the offset after the last one that the layer has read.
    """
    wanted = {
        place: (next_offsets.get(place, 0), end)
        for place, end in end_offsets.items()
        if end > next_offsets.get(place, 0)
    }
    known = AbsentOffsetFinder(reader).find_absent_offset_intervals(wanted)
    return sum(
        end - first - count_offsets_in_intervals(known[place], first, end) for place, (first, end) in wanted.items()
    )


def _sum_messages_of_layer(batches: Iterable[_LedgerEntryTotals], layer: str) -> int:
    return sum(b.messages for b in batches if b.layer == layer)


def _count_unread_changes(reader: TableReader, read_count: int) -> int:
    """Returns the number of rows of `session_changes` that gold has not read.

    Args:
        reader: Reads the tables.
        read_count: Number of changes that gold has read since its last rebuild; some may have been removed since.
    """
    taken = read_change_progress(reader)
    if taken is None:
        return reader.count_rows(CHANGES)
    later = reader.count_rows_by(CHANGES, ["_batch"], ("_batch", gt, taken.batch)).total()
    # In its first run gold reads the table's files in the order of their writing. Compacted files come late, although
    # their changes are old, so the batch number alone is not enough.
    return max(later, reader.count_rows(CHANGES) - read_count)


def _create_layer_status(
    layer: str, batches: list[_LedgerEntryTotals], behind: int | None, now: datetime
) -> LayerStatus:
    if not batches:
        return LayerStatus(layer, behind=behind)
    committed = max(b.committed_at for b in batches)
    committed = committed.replace(microsecond=committed.microsecond // 1000 * 1000)
    totals = {name: sum(getattr(b, name) for b in batches) for name in (*_SUMMED_COLUMNS, "rows", "events")}
    if layer == SILVER_TABLES:  # silver has accounted for these messages already
        totals["unaccounted"] = 0
    return LayerStatus(
        layer,
        last_batch=max(b.last_batch for b in batches),
        behind=behind,
        committed_at=committed,
        age_seconds=round((now - committed).total_seconds(), 1),
        **totals,
    )
