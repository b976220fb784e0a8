"""The offsets of bronze's batches: those that Spark planned, and those that `bronze.messages` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sessionlake.bronze.offsets import read_planned_ranges
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.offset_ranges import build_offsets_condition
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.silences import drop_silences
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.generations import CheckpointGeneration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PlannedOffsets = dict[TopicPartition, tuple[int, int]]
"""The offsets that a batch covers: by topic-partition, the first one and the one after the last."""


def read_planned_offsets(
    generation: CheckpointGeneration, batch: int, offset_shifts: Mapping[str, int]
) -> PlannedOffsets:
    """Returns the offsets that Spark planned for a batch, by topic-partition, numbered as in `bronze.messages`.

    Args:
        generation: Generation of the checkpoint that has the batch.
        batch: Bronze's number of the batch.
        offset_shifts: Bronze's offset minus Kafka's, by topic. Topics with a shift of 0 may be absent.
    """
    read = read_planned_ranges(generation.folder, generation.to_spark_batch_id(batch))
    return {
        (topic, partition): (first + offset_shifts.get(topic, 0), end + offset_shifts.get(topic, 0))
        for (topic, partition), (first, end) in read.items()
    }


def read_stored_ranges_of_batch(spark: SparkSession, lake: Lake, planned: PlannedOffsets) -> tuple[OffsetRange, ...]:
    """Returns what `bronze.messages` has of a planned batch: a range of offsets for each topic-partition.

    Each range ends at the last message in the table, not at the last planned offset: other layers read it like that.
    Topic-partitions without messages in the table are missing.

    Args:
        spark: The session to read with.
        lake: The lake of bronze.
        planned: Offsets `(first, end)` of the batch by topic-partition.
    """
    from pyspark.sql import functions as F

    asked = {place: (first, end - 1) for place, (first, end) in planned.items()}
    held = lake.read(spark, MESSAGES).where(build_offsets_condition(asked)).groupBy("topic", "partition")
    rows = held.agg(F.max("offset"), F.count("*")).collect() if asked else []
    return tuple(
        OffsetRange(topic, partition, asked[topic, partition][0], last, messages)
        for topic, partition, last, messages in sorted(rows)
    )


def read_stored_ranges_after_offsets(
    spark: SparkSession, lake: Lake, last_offsets: Mapping[TopicPartition, int]
) -> tuple[OffsetRange, ...]:
    """Returns what `bronze.messages` has after `last_offsets`: a range of offsets for each topic-partition.

    Args:
        spark: The session to read with.
        lake: The lake of bronze.
        last_offsets: By topic-partition, the offset after which a range starts. Other topic-partitions are returned
            from their first offset.
    """
    from pyspark.sql import functions as F

    known = spark.createDataFrame(
        [(*place, end) for place, end in last_offsets.items()], "topic string, partition int, end long"
    )
    rows = drop_silences(lake.read(spark, MESSAGES)).join(F.broadcast(known), ["topic", "partition"], "left")
    later = rows.where("end IS NULL OR offset > end").groupBy("topic", "partition")
    found = later.agg(F.min("offset"), F.max("offset"), F.count("*")).collect()
    return tuple(OffsetRange(*row) for row in sorted(found))


def list_planned_ranges(planned: PlannedOffsets) -> tuple[OffsetRange, ...]:
    """Returns the planned offsets as ranges, each with a message for every offset."""
    return tuple(
        OffsetRange(topic, partition, first, end - 1, end - first)
        for (topic, partition), (first, end) in planned.items()
    )
