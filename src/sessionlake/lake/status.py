"""How far each layer is, by the ledger: totals, what is behind it, when it last committed."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sessionlake.config import Settings
from sessionlake.errors import BrokerError, ConfigError
from sessionlake.lake.ledger import LEDGER
from sessionlake.lake.tables import Lake
from sessionlake.runtime.kafka import client_config, require_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS = ("bronze", "silver", "silver_tables", "gold")
Place = tuple[str, int]
KafkaEnds = dict[Place, int]
_TIMEOUT_SECONDS = 5.0
_EVENTS = "silver.integrity_events"


@dataclass(frozen=True)
class LayerStatus:
    """One layer's totals.

    Attributes:
        last_batch: its id, None before the first.
        messages: taken in: Kafka messages for bronze and silver, those of the merged batches for the silver tables,
            session changes for gold.
        rows: written to its tables, merged ones included.
        behind: what its source holds and it has not taken in yet, in the unit of `messages`; None where Kafka
            cannot be asked.
        violations: gaps, orphans and other judgements that silver recorded beside duplicates.
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
    violations: int = 0
    committed_at: datetime | None = None
    age_seconds: float | None = None

    def row(self) -> tuple[Any, ...]:
        """The fields' values, in the order of `COLUMNS`."""
        return astuple(self)


COLUMNS = tuple(item.name for item in fields(LayerStatus))


def layer_statuses(spark: SparkSession, settings: Settings) -> list[LayerStatus]:
    """Every layer's status, in the order in which data passes them."""
    lake, now = Lake(settings), datetime.now(UTC)
    if not lake.exists(spark, LEDGER):
        return [LayerStatus(layer) for layer in LAYERS]
    totals = _totals(spark, lake)
    behind = _behind(spark, lake, settings)
    events = _violations(spark, lake)
    return [
        _status(layer, totals.get(layer), behind[layer], events if layer == "silver" else 0, now) for layer in LAYERS
    ]


def kafka_ends(settings: Settings) -> KafkaEnds | None:
    """Where each partition of the captured topics ends now; None if Kafka cannot be asked from here."""
    try:
        require_broker(settings)
        config = client_config(settings)
        from confluent_kafka import Consumer, KafkaException, TopicPartition
    except (ImportError, ConfigError, BrokerError):
        return None
    consumer = Consumer({**config, "group.id": "sessionlake-status", "enable.auto.commit": False, "log_level": 2})
    matches = re.compile(settings.kafka.topic_pattern).fullmatch
    try:
        topics = consumer.list_topics(timeout=_TIMEOUT_SECONDS).topics
        places = [(name, number) for name, topic in topics.items() if matches(name) for number in topic.partitions]
        return {p: consumer.get_watermark_offsets(TopicPartition(*p), timeout=_TIMEOUT_SECONDS)[1] for p in places}
    except KafkaException:
        return None
    finally:
        consumer.close()


def offset_ends(spark: SparkSession, lake: Lake, layer: str) -> KafkaEnds:
    """Where the layer stands in each topic-partition: one past the last offset that it has."""
    from pyspark.sql import functions as F

    ranges = lake.read(spark, LEDGER).where(F.col("layer") == layer).select(F.explode("offsets").alias("o"))
    ends = ranges.groupBy("o.topic", "o.partition").agg((F.max("o.last") + 1).alias("end"))
    return {(row["topic"], row["partition"]): row["end"] for row in ends.collect()}


def _totals(spark: SparkSession, lake: Lake) -> dict[str, Any]:
    from pyspark.sql import functions as F

    rows = F.expr("aggregate(outputs, 0L, (total, o) -> total + o.rows)")
    sums = [F.sum(name).alias(name) for name in ("messages", "duplicates", "quarantined", "held")]
    totals = (
        lake.read(spark, LEDGER)
        .groupBy("layer")
        .agg(
            F.count("*").alias("batches"),
            F.max("batch_id").alias("last_batch"),
            F.sum(rows).alias("rows"),
            F.unix_millis(F.max("committed_at")).alias("committed_ms"),
            *sums,
        )
    )
    return {row["layer"]: row for row in totals.collect()}


def _behind(spark: SparkSession, lake: Lake, settings: Settings) -> dict[str, int | None]:
    from pyspark.sql import functions as F

    kafka, bronze = kafka_ends(settings), offset_ends(spark, lake, "bronze")
    silver = offset_ends(spark, lake, "silver")
    ledger = lake.read(spark, LEDGER)
    done = {row["layer"]: row["to"] for row in ledger.groupBy("layer").agg(F.max("source_to").alias("to")).collect()}
    stream = ledger.where("layer = 'silver'")
    changes = F.expr("aggregate(outputs, 0L, (n, o) -> n + if(o.table = 'silver.session_changes', o.rows, 0L))")

    def after(layer: str, what: Any) -> int:
        row = stream.where(F.col("batch_id") > _or(done.get(layer), -1)).agg(F.sum(what).alias("n")).first()
        return _or(row["n"] if row else None, 0)

    return {
        "bronze": None if kafka is None else _lag(kafka, bronze),
        "silver": _lag(bronze, silver),
        "silver_tables": after("silver_tables", F.col("messages")),
        "gold": after("gold", changes),
    }


def _lag(source: KafkaEnds, reader: KafkaEnds) -> int:
    return sum(max(0, end - reader.get(place, 0)) for place, end in source.items())


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _violations(spark: SparkSession, lake: Lake) -> int:
    if not lake.exists(spark, _EVENTS):
        return 0
    return int(lake.read(spark, _EVENTS).where("event NOT IN ('duplicate', 'healed')").count())


def _status(layer: str, total: Any, behind: int | None, violations: int, now: datetime) -> LayerStatus:
    if total is None:
        return LayerStatus(layer, behind=behind)
    committed = datetime.fromtimestamp(total["committed_ms"] / 1000, UTC)
    return LayerStatus(
        layer,
        batches=total["batches"],
        last_batch=total["last_batch"],
        messages=total["messages"],
        rows=total["rows"],
        behind=behind,
        duplicates=total["duplicates"],
        quarantined=total["quarantined"],
        held=total["held"],
        violations=violations,
        committed_at=committed,
        age_seconds=round((now - committed).total_seconds(), 1),
    )
