"""How far each layer is: totals, what is behind it, when it last committed.

All of it is by the ledger, but what gold is behind: changes that it has not taken in may have been removed since.
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
from sessionlake.errors import AccessError, BrokerError, ConfigError
from sessionlake.kafka.clients import consumer_config, require_broker
from sessionlake.ledger.absent import AbsentOffsets, count_covered
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.progress import Span, changes_read, offset_spans
from sessionlake.ledger.topics import READ_STATES, Topic, latest_generations, parse_topics
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings

LAYERS = (BRONZE, SILVER, SILVER_TABLES, GOLD)
KafkaEnds = dict[TopicPartition, int]
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class LayerStatus:
    """One layer's totals and how far it is behind; a row of `sessionlake status`.

    Attributes:
        last_batch: its id, None before the first.
        messages: taken in: Kafka messages for bronze, silver and processors, those of the merged batches for the silver
            tables, session changes for gold.
        rows: written to its tables, merged ones included.
        behind: what its source holds and it has not taken in yet, in the unit of `messages`; None where Kafka
            cannot be asked.
        events: judgements that silver recorded in `silver.integrity_events`.
        unaccounted: messages that the ledger shows as taken in but not as applied, dropped, quarantined or held; 0.
        committed_at: of its last batch, UTC.
        age_seconds: since then.
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

    def row(self) -> tuple[Any, ...]:
        """The fields' values, in the order of `STATUS_COLUMNS`."""
        return astuple(self)


STATUS_COLUMNS = tuple(item.name for item in fields(LayerStatus))


def begun(settings: Settings) -> bool:
    """Whether there may be a ledger to read, as far as can be told without Spark."""
    return not Lake(settings).is_known_missing(LEDGER)


def layer_statuses(reader: TableReader, settings: Settings) -> list[LayerStatus]:
    """Every layer's status, in the order in which data passes them."""
    batches = _batches(reader)
    if not batches:
        return [LayerStatus(layer) for layer in (*LAYERS, *(own.layer for own in settings.processors))]
    taken_in = offset_spans(reader)
    bronze, silver = (_ends(taken_in, layer) for layer in ("bronze", "silver"))
    kafka = _as_captured(kafka_ends(settings), latest_generations(parse_topics(reader.rows(TOPICS))))
    behind: dict[str, int | None] = {
        "bronze": None if kafka is None else _unread(reader, kafka, bronze),
        "silver": _unread(reader, bronze, silver),
        SILVER_TABLES: max(0, _messages(batches, SILVER) - _messages(batches, SILVER_TABLES)),
        "gold": _changes_behind(reader, _messages(batches, GOLD)),
    }
    for own in settings.processors:
        if own.key:  # its ledger knows no offsets
            behind[own.layer] = None
            continue
        wanted = {place: end for place, end in bronze.items() if re.fullmatch(own.topics, place[0])}
        behind[own.layer] = _unread(reader, wanted, _ends(taken_in, own.layer))
    now = datetime.now(UTC)
    return [_status(layer, [b for b in batches if b.layer == layer], lag, now) for layer, lag in behind.items()]


def kafka_ends(settings: Settings) -> KafkaEnds | None:
    """Where reading each partition of the captured topics ends now: before the first message of an open transaction.

    None if Kafka cannot be asked from here, or is not what bronze reads.
    """
    if settings.bronze.source is not SourceKind.KAFKA:
        return None
    try:
        require_broker(settings)
        config = consumer_config(settings, "status")
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as KafkaPartition
    except (ImportError, ConfigError, BrokerError, AccessError):
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


def _ends(spans: Iterable[Span], layer: str) -> KafkaEnds:
    """Where the layer stands in each topic-partition: one past the last offset that it has."""
    return {(span.topic, span.partition): span.last + 1 for span in spans if span.layer == layer}


_SUMMED = ("batches", "messages", "duplicates", "quarantined", "held", "unaccounted")


class _Batches(NamedTuple):
    """Batches of a layer, added up: `rows` written in all, and of those to `integrity_events`."""

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


def _batches(reader: TableReader) -> list[_Batches]:
    """All of them, in narrow rows."""
    return [_narrow(row) for row in to_dicts(LedgerReader(reader, *_SUMMED, "outputs").current())]


def _narrow(row: Row) -> _Batches:
    def written(*tables: str) -> int:
        return sum(output["rows"] for output in row["outputs"] if not tables or output["table"] in tables)

    return _Batches(
        layer=row["layer"],
        last_batch=row["batch_id"],
        committed_at=row["committed_at"],
        rows=written(),
        events=written(EVENTS),
        **{name: row[name] for name in _SUMMED},
    )


def _as_captured(ends: KafkaEnds | None, topics: Mapping[str, Topic]) -> KafkaEnds | None:
    """Kafka's ends as offsets of `bronze.messages`, without the topics that are not read any more."""
    if ends is None:
        return None
    read = {name: row.offset_shift for name, row in topics.items() if row.state in READ_STATES}
    gone = topics.keys() - read.keys()
    return {(name, number): end + read.get(name, 0) for (name, number), end in ends.items() if name not in gone}


def _unread(reader: TableReader, source: KafkaEnds, reached: KafkaEnds) -> int:
    """How many messages of its source a layer has not read: offsets known to hold none do not count."""
    wanted = {place: (reached.get(place, 0), end) for place, end in source.items() if end > reached.get(place, 0)}
    known = AbsentOffsets(reader).overlapping(wanted)
    return sum(end - first - count_covered(known[place], first, end) for place, (first, end) in wanted.items())


def _messages(batches: Iterable[_Batches], layer: str) -> int:
    return sum(b.messages for b in batches if b.layer == layer)


def _changes_behind(reader: TableReader, read: int) -> int:
    """How many changes there are that gold has not taken in.

    Args:
        read: how many it has, since it was emptied; of these, some may have been removed.
    """
    taken = changes_read(reader)
    if taken is None:
        return reader.count(CHANGES)
    later = reader.count_by(CHANGES, ["_batch"], ("_batch", gt, taken.batch)).total()
    # A gold that begins reads files of the table in the order in which they were written, merged ones late.
    return max(later, reader.count(CHANGES) - read)


def _status(layer: str, batches: list[_Batches], behind: int | None, now: datetime) -> LayerStatus:
    if not batches:
        return LayerStatus(layer, behind=behind)
    committed = max(b.committed_at for b in batches)
    committed = committed.replace(microsecond=committed.microsecond // 1000 * 1000)
    totals = {name: sum(getattr(b, name) for b in batches) for name in (*_SUMMED, "rows", "events")}
    if layer == SILVER_TABLES:  # they take over what silver has accounted for
        totals["unaccounted"] = 0
    return LayerStatus(
        layer,
        last_batch=max(b.last_batch for b in batches),
        behind=behind,
        committed_at=committed,
        age_seconds=round((now - committed).total_seconds(), 1),
        **totals,
    )
