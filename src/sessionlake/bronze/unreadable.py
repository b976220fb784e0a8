"""A message that Spark's Kafka source cannot deliver: found by halving the batch, and named with what passes it.

Spark says neither topic nor offset. The known case is a timestamp that does not fit Spark's microseconds (beyond the
year 294,000). It stops bronze at every start, so where bronze stopped is noted beside its checkpoint, for `doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sessionlake.bronze.offsets import planned_ranges
from sessionlake.bronze.reading import messages_within
from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import LakeError, UnreadableMessageError
from sessionlake.ledger.absent import Run
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import KnownFailure, failure_of
from sessionlake.streaming import manifest
from sessionlake.streaming.generations import Generation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ranges = Mapping[TopicPartition, Run]
_UNREADABLE = KnownFailure(
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

_NO_CONSUMER = KnownFailure(
    LakeError,
    "no consumer can be made",
    beginnings=("Failed to construct kafka consumer", "Failed to create new Kafka"),
)
"""Of a `KafkaException`, too: a wrong address or keystore, whichever message is read."""


class Unreadable(msgspec.Struct, frozen=True):
    """A message that bronze stopped at.

    Attributes:
        offset: as in `bronze.messages`.
        why: what Spark says.
    """

    topic: str
    partition: int
    offset: int
    why: str

    def __str__(self) -> str:
        return (
            f"{BRONZE}: topic {self.topic}, partition {self.partition}: Spark's Kafka source cannot deliver the "
            f"message at offset {self.offset} ({self.why}), so bronze stops there at every start. Nothing of the batch "
            "was committed. To leave this message out for good and read on behind it: "
            f"`sessionlake bronze skip {self.topic} {self.partition} {self.offset} --why REASON`"
        )


def explain_unreadable(
    spark: SparkSession, settings: Settings, error: BaseException, generation: Generation, shifts: Mapping[str, int]
) -> UnreadableMessageError | None:
    """The error that names the message, if it was a message that stopped the last planned batch.

    Args:
        shifts: offset in bronze less that in Kafka, of topics where it is not 0.
    """
    batch = generation.last_planned_batch
    if batch is None or not is_unreadable(error):
        return None

    def fails(ranges: Ranges) -> bool:
        try:
            messages_within(spark, settings, ranges, fail_on_loss=False).selectExpr("max(timestamp)").collect()
        except Exception as again:
            if is_unreadable(again):
                return True
            raise
        return False

    found = first_unreadable(fails, planned_ranges(generation.folder, generation.batch_id(batch)))
    if found is None:
        return None
    (topic, partition), offset = found
    unreadable = Unreadable(topic, partition, offset + shifts.get(topic, 0), str(failure_of(error)))
    manifest.note_stop(settings, unreadable, BRONZE)
    return UnreadableMessageError(str(unreadable))


def is_unreadable(error: BaseException) -> bool:
    """True if this error of Spark's says that a message cannot be delivered, rather than that Kafka is not reached."""
    failure = failure_of(error)
    return _UNREADABLE.fits(failure) and not _NO_CONSUMER.fits(failure)


def first_unreadable(fails: Callable[[Ranges], bool], ranges: Ranges) -> tuple[TopicPartition, int] | None:
    """The first offset that cannot be read, of one of the topic-partitions; None if all can be.

    Args:
        fails: whether reading these offsets fails.
        ranges: offsets `[first, end)`.
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


def stopped_at(settings: Settings) -> Unreadable | None:
    """The message that bronze stopped at, if it has not gone on since."""
    return manifest.stopped_at(settings, BRONZE, Unreadable)
