"""Finds a message that Spark's Kafka source cannot deliver, and names it with the command that skips it.

Spark's error names neither topic nor offset, so the message is found by a binary search in the batch. The known case is
a timestamp beyond the year 294,000, which does not fit Spark's microseconds. Such a message stops bronze at every
start, so its place is saved beside the checkpoint, where `doctor` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sessionlake.bronze.offsets import read_planned_ranges
from sessionlake.bronze.reading import read_kafka_messages
from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import LakeError, UnreadableMessageError
from sessionlake.ledger.absent import OffsetInterval
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import KnownSparkFailure, parse_spark_failure
from sessionlake.streaming import manifest
from sessionlake.streaming.generations import CheckpointGeneration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OffsetIntervals = Mapping[TopicPartition, OffsetInterval]
_UNREADABLE = KnownSparkFailure(
    LakeError,
    "a message cannot be read",
    types=(
        "java.lang.ArithmeticException",
        "org.apache.kafka.common.KafkaException",
        "org.apache.kafka.common.InvalidRecordException",
        "org.apache.kafka.common.errors.CorruptRecordException",
        "org.apache.kafka.common.errors.RecordDeserializationException",
    ),
)

_NO_CONSUMER = KnownSparkFailure(
    LakeError,
    "no consumer can be made",
    message_starts=("Failed to construct kafka consumer", "Failed to create new Kafka"),
)
"""Errors that are also a `KafkaException`, but mean a wrong address or keystore, not an unreadable message."""


class UnreadableMessage(msgspec.Struct, frozen=True):
    """A message that Spark cannot read from Kafka, so that bronze stopped before it. Saved beside the checkpoint.

    Attributes:
        topic: Topic of the message.
        partition: Partition of the message.
        offset: Offset that the message would have in `bronze.messages`.
        why: Spark's error text.
    """

    topic: str
    partition: int
    offset: int
    why: str

    def __str__(self) -> str:
        return (
            f"{BRONZE}: topic {self.topic}, partition {self.partition}: Spark's Kafka source cannot deliver the "
            f"message at offset {self.offset} ({self.why}). Bronze stops there at every start. Nothing of the batch "
            f"was committed. Run `sessionlake bronze skip {self.topic} {self.partition} {self.offset} --why REASON` to "
            "leave this message out for good and continue after it"
        )


def build_unreadable_message_error(
    spark: SparkSession,
    settings: Settings,
    error: BaseException,
    generation: CheckpointGeneration,
    offset_shifts: Mapping[str, int],
) -> UnreadableMessageError | None:
    """Returns an error that names the message which Spark could not read; None if the query failed for another reason.

    Args:
        spark: The session to read Kafka with.
        settings: The configuration.
        error: The error that ended the query.
        generation: The checkpoint's generation that the query used.
        offset_shifts: Bronze's offset minus Kafka's, by topic. Topics with a shift of 0 may be absent.
    """
    batch = generation.last_planned_batch
    if batch is None or not is_about_unreadable_message(error):
        return None

    def fails(ranges: OffsetIntervals) -> bool:
        try:
            read_kafka_messages(spark, settings, ranges, fail_on_loss=False).selectExpr("max(timestamp)").collect()
        except Exception as again:
            if is_about_unreadable_message(again):
                return True
            raise
        return False

    found = find_first_unreadable_offset(
        fails, read_planned_ranges(generation.folder, generation.to_spark_batch_id(batch))
    )
    if found is None:
        return None
    (topic, partition), offset = found
    unreadable = UnreadableMessage(
        topic, partition, offset + offset_shifts.get(topic, 0), str(parse_spark_failure(error))
    )
    manifest.record_message_that_stopped_layer(settings, unreadable, BRONZE)
    return UnreadableMessageError(str(unreadable))


def is_about_unreadable_message(error: BaseException) -> bool:
    """Returns True if Spark failed because it cannot read a message, not because it cannot reach Kafka."""
    failure = parse_spark_failure(error)
    return _UNREADABLE.matches_failure(failure) and not _NO_CONSUMER.matches_failure(failure)


def find_first_unreadable_offset(
    fails: Callable[[OffsetIntervals], bool], ranges: OffsetIntervals
) -> tuple[TopicPartition, int] | None:
    """Finds the first offset that Spark cannot read, by reading smaller and smaller ranges.

    Args:
        fails: Reads the ranges of offsets passed to it; returns True if that fails.
        ranges: Offsets `(first, end)`, by topic-partition.

    Returns:
        The topic-partition and the offset; None if all offsets can be read.
    """
    if not ranges or not fails(ranges):
        return None
    places = sorted(ranges)
    while len(places) > 1:
        half = places[: len(places) // 2]
        places = half if fails({place: ranges[place] for place in half}) else places[len(half) :]
    place = places[0]
    first, end = ranges[place]
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (first, middle) if fails({place: (first, middle)}) else (middle, end)
    return place, first


def read_message_that_stopped_layer(settings: Settings) -> UnreadableMessage | None:
    """Returns the message before which bronze stopped because Spark cannot read it.

    Returns None if there is none, or if bronze has continued since.
    """
    return manifest.read_message_that_stopped_layer(settings, BRONZE, UnreadableMessage)
