"""Kafka's messages of given offsets, read in batch by Spark's source: as the stream of bronze reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sessionlake.bronze.subscription import starting_offsets
from sessionlake.kafka.clients import spark_source_options
from sessionlake.ledger.absent import Run
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def messages_within(
    spark: SparkSession, settings: Settings, ranges: Mapping[TopicPartition, Run], *, fail_on_loss: bool
) -> DataFrame:
    """The messages at Kafka offsets `[first, end)` of each topic-partition, in the columns of Spark's source.

    Args:
        fail_on_loss: whether reading fails if Kafka has removed some.
    """
    partitions: dict[str, list[int]] = {}
    for topic, number in ranges:
        partitions.setdefault(topic, []).append(number)
    return (
        spark.read.format("kafka")
        .options(**spark_source_options(settings))
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", starting_offsets({place: first for place, (first, _) in ranges.items()}))
        .option("endingOffsets", starting_offsets({place: end for place, (_, end) in ranges.items()}))
        .option("failOnDataLoss", str(fail_on_loss).lower())
        .option("includeHeaders", "true")
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
    )
