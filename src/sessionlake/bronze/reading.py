"""Reads given offsets of Kafka as a batch, with the same source and columns as bronze's stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sessionlake.bronze.subscription import encode_starting_offsets
from sessionlake.kafka.clients import build_spark_source_options
from sessionlake.ledger.absent import OffsetInterval
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_kafka_messages(
    spark: SparkSession, settings: Settings, ranges: Mapping[TopicPartition, OffsetInterval], *, fail_on_loss: bool
) -> DataFrame:
    """Returns the messages at these Kafka offsets, as a frame with the columns of Spark's Kafka source.

    Args:
        spark: The session to read with.
        settings: Names the brokers and the client's options.
        ranges: Kafka offsets `(first, end)`, by topic-partition.
        fail_on_loss: If true, the read fails if Kafka has removed some of the messages.
    """
    partitions: dict[str, list[int]] = {}
    for topic, number in ranges:
        partitions.setdefault(topic, []).append(number)
    return (
        spark.read.format("kafka")
        .options(**build_spark_source_options(settings))
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", encode_starting_offsets({place: first for place, (first, _) in ranges.items()}))
        .option("endingOffsets", encode_starting_offsets({place: end for place, (_, end) in ranges.items()}))
        .option("failOnDataLoss", str(fail_on_loss).lower())
        .option("includeHeaders", "true")
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
    )
