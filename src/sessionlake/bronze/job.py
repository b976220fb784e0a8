"""Kafka to `bronze.messages`: raw, every message exactly once, offsets accounted for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.bronze.offsets import planned_ranges
from sessionlake.config import Settings
from sessionlake.lake.commit import Txn, append
from sessionlake.lake.ledger import LEDGER, LedgerEntry, OffsetLog, OffsetRange, Output, config_hash, write
from sessionlake.lake.progress import refuse_fresh_checkpoint
from sessionlake.lake.tables import Lake
from sessionlake.runtime.interpreted import interpreted
from sessionlake.runtime.kafka import require_broker, spark_kafka_options
from sessionlake.runtime.streams import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYER = "bronze"
MESSAGES = "bronze.messages"
_FEW_MESSAGES = 20_000
# Few messages can be large: Spark refuses to bring more than `spark.driver.maxResultSize` to the driver.
_TOO_BIG = "maxResultSize"


def start(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts the bronze job.

    Args:
        once: read what Kafka holds now, then end.
        on_batch: told of every batch that is committed.

    Raises:
        BrokerError: Kafka does not answer.
        LakeError: the checkpoint is new and the tables are not.
    """
    require_broker(settings)
    lake = Lake(settings)
    lake.ensure(spark, [MESSAGES, LEDGER])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    query = LayerQuery(LAYER, settings.checkpoint(LAYER))
    job = _BronzeBatch(lake, settings, on_batch)
    return query.start(_source(spark, settings), job, trigger=settings.bronze.trigger, once=once)


def _source(spark: SparkSession, settings: Settings) -> DataFrame:
    from pyspark.sql import functions as F

    stream = (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options(settings))
        .option("subscribePattern", f"^(?:{settings.kafka.topic_pattern})$")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", settings.bronze.max_offsets_per_trigger)
        .load()
    )
    return stream.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        F.current_timestamp().alias("ingested_at"),
    )


class _BronzeBatch:
    """Commits one micro-batch: the messages, then the ledger row."""

    def __init__(self, lake: Lake, settings: Settings, on_batch: Callable[[LedgerEntry], None] | None) -> None:
        self._lake = lake
        self._settings = settings
        self._on_batch = on_batch
        self._log: OffsetLog | None = None

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        planned = planned_ranges(self._settings.checkpoint(LAYER), txn.version)
        self._log = self._log or OffsetLog.load(spark, lake, LAYER, txn)
        before = lake.last_commit(spark, MESSAGES).version
        expected = sum(end - first for first, end in planned.values())
        with interpreted(spark, when=lake.local and expected <= _FEW_MESSAGES):
            append(spark, lake, MESSAGES, self._at_hand(rows, expected), txn)
        commit = lake.last_commit(spark, MESSAGES)
        whole = commit.version == before + 1 and commit.rows == expected
        ranges = _ranges(planned) if whole else self._counted(spark, planned)
        gaps = self._settings.kafka.allow_offset_gaps
        self._log.check(ranges, allow_gaps=gaps, layer=LAYER)
        messages = sum(item.messages for item in ranges)
        entry = LedgerEntry(
            layer=LAYER,
            txn=txn,
            source="kafka",
            started_at=started,
            offsets=ranges,
            outputs=(Output(MESSAGES, commit.version, messages),),
            messages=messages,
            applied=messages,
            config_hash=config_hash(self._settings),
        )
        write(spark, lake, entry)
        self._log.advance(ranges)
        if self._on_batch:
            self._on_batch(entry)

    def _at_hand(self, rows: DataFrame, expected: int) -> DataFrame | pa.Table:
        """The rows themselves if they are few and small, else as a frame."""
        if self._lake.local and expected <= _FEW_MESSAGES:
            try:
                return rows.toArrow()
            except Exception as error:
                if _TOO_BIG not in str(error):
                    raise
        # As few files as cores: one task a topic-partition would write one tiny file each.
        return rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)

    def _counted(self, spark: SparkSession, planned: dict[tuple[str, int], tuple[int, int]]) -> tuple[OffsetRange, ...]:
        """Ranges by what the table holds: after a replay, or where offsets have holes."""
        from pyspark.sql import functions as F

        plan = [(topic, partition, first, end) for (topic, partition), (first, end) in planned.items()]
        if not plan:
            return ()
        bounds = spark.createDataFrame(plan, "topic string, partition int, first bigint, end bigint")
        held = self._lake.read(spark, MESSAGES).join(F.broadcast(bounds), ["topic", "partition"])
        inside = held.where("offset >= first AND offset < end").groupBy("topic", "partition", "first", "end").count()
        counts = {(row["topic"], row["partition"]): row["count"] for row in inside.collect()}
        return tuple(
            OffsetRange(topic, partition, first, end - 1, counts.get((topic, partition), 0))
            for (topic, partition), (first, end) in planned.items()
        )


def _ranges(planned: dict[tuple[str, int], tuple[int, int]]) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic, partition, first, end - 1, end - first)
        for (topic, partition), (first, end) in planned.items()
    )
