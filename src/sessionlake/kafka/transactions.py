"""Finds Kafka offsets that have no message because of transactions: markers, and records of aborted transactions.

An *interval* is a range of consecutive offsets. Kafka cannot be asked why offsets have no message. So two Java
consumers test them, in a way that never takes lost messages for transactions:

- With a fetch size of one byte, the broker sends one record batch at a time. A `read_uncommitted` consumer at an offset
  then either gets a record with this offset, or advances by exactly one offset without a record. In the second case the
  offset has a transaction marker. If messages are lost, the consumer gets a record with a later offset, or advances by
  several offsets.
- If it gets records, and a `read_committed` consumer at the same offset skips them, their transaction was aborted.

Producers that commit many small transactions leave a marker every few offsets. Only the first of them are checked one
by one. For the others, a `read_committed` consumer counts the messages of the whole range, unless the topic is
compacted.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from sessionlake.errors import BrokerError, KafkaAccessError
from sessionlake.kafka.admin import KafkaAdmin, find_kafka_jvm_package
from sessionlake.kafka.clients import READ_COMMITTED, build_java_client_options
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import parse_spark_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OffsetInterval = tuple[int, int]
"""Kafka offsets `[first, end)`."""
_SECONDS = 20.0
_POLL_MS = 200
_OPTIONS = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "fetch.max.wait.ms": "5",  # a fetch at the end of a partition must not hold up the next one
    "max.poll.records": "16",
}
_MANY = {"max.poll.records": "10000"}
FEW_INTERVALS = 64
"""Up to this many intervals of a topic-partition are checked one by one. A check takes some milliseconds."""
_ONE_BATCH = {"max.partition.fetch.bytes": "1", "fetch.max.bytes": "1", "isolation.level": "read_uncommitted"}


def find_intervals_used_by_transactions(
    spark: SparkSession, settings: Settings, intervals: Mapping[TopicPartition, Iterable[OffsetInterval]]
) -> dict[TopicPartition, list[OffsetInterval]]:
    """Returns, by topic-partition, those intervals of offsets that have no message because of transactions.

    Args:
        spark: The session whose JVM has Kafka's client.
        settings: The pipeline's settings.
        intervals: The intervals to check, each `[first, end)`, by topic-partition. They are below the last stable
            offset, where open transactions start. If there are more than `FEW_INTERVALS`, they must ascend, and every
            offset between two intervals must have a message.

    Raises:
        BrokerError: Kafka does not answer.
    """
    with (
        _open_consumer(spark, settings, _ONE_BATCH) as each,
        _open_consumer(spark, settings, READ_COMMITTED) as committed,
    ):
        found: dict[TopicPartition, list[OffsetInterval]] = {}
        for topic_partition, given in intervals.items():
            asked = [*given]
            some, rest = asked[:FEW_INTERVALS], asked[FEW_INTERVALS:]
            beginning = each.assign_partition(topic_partition)
            committed.assign_partition(topic_partition)
            found[topic_partition] = [
                interval
                for interval in some
                if interval[0] >= beginning and _is_interval_used_by_transactions(each, committed, interval)
            ]
            if rest and len(found[topic_partition]) == len(some):
                together = _do_record_counts_explain_intervals(spark, settings, topic_partition, rest)
                found[topic_partition] += (
                    rest
                    if together
                    else [interval for interval in rest if _is_interval_used_by_transactions(each, committed, interval)]
                )
        return found


def _do_record_counts_explain_intervals(
    spark: SparkSession, settings: Settings, topic_partition: TopicPartition, intervals: Sequence[OffsetInterval]
) -> bool:
    """Returns True if Kafka's count of messages shows that these intervals lack messages because of transactions.

    That is so if Kafka has exactly one message per offset from the first interval to the last one, except in them.

    Only compaction removes messages from the middle of a partition. In a topic that is not compacted, all other offsets
    without a message belong to transactions. Returns False if the topic is compacted or its settings are not readable.
    """
    try:
        with closing(KafkaAdmin(spark, settings)) as admin:
            if admin.is_compacted(topic_partition[0]):
                return False
    except KafkaAccessError:  # a client that may read messages need not have the right to read the topic's settings
        return False
    first, end = intervals[0][0], intervals[-1][1]
    with _open_consumer(spark, settings, READ_COMMITTED | _MANY) as committed:
        committed.assign_partition(topic_partition)
        return committed.count_records(first, end) == end - first - sum(after - before for before, after in intervals)


def _is_interval_used_by_transactions(
    uncommitted_reader: _OffsetConsumer, committed_reader: _OffsetConsumer, interval: OffsetInterval
) -> bool:
    """Returns True if transactions are the reason why the offsets of an interval have no message.

    Args:
        uncommitted_reader: A consumer that also reads records of aborted transactions, one batch at a time.
        committed_reader: A consumer that reads only committed records.
        interval: The offsets `[first, end)`.
    """
    first, end = interval
    aborted = False
    at = first
    uncommitted_reader.seek_to_offset(at)
    while at < end:
        offsets, position = uncommitted_reader.poll_offsets()
        if offsets and offsets != list(range(at, position)):
            return False
        if not offsets and position != at + 1:
            return False
        aborted, at = aborted or bool(offsets), position
    return not aborted or _lacks_committed_messages(committed_reader, first, end)


def _lacks_committed_messages(committed_reader: _OffsetConsumer, start: int, end: int) -> bool:
    """Returns True if the consumer finds no committed record with an offset in `[start, end)`."""
    committed_reader.seek_to_offset(start)
    while start < end:
        offsets, start = committed_reader.poll_offsets()
        if offsets and offsets[0] < end:
            return False
    return True


class _OffsetConsumer:
    """A Java consumer that reads one topic-partition at a time and keeps only offsets."""

    def __init__(self, jvm: Any, consumer: Any, kafka: Any) -> None:
        self._jvm, self._consumer, self._kafka = jvm, consumer, kafka
        self._wait = jvm.java.time.Duration.ofMillis(_POLL_MS)
        self._place: Any = None
        self._at = 0

    def assign_partition(self, topic_partition: TopicPartition) -> int:
        """Switches to a topic-partition and returns the first offset that Kafka has of it."""
        self._place = self._kafka.common.TopicPartition(*topic_partition)
        places = self._jvm.java.util.Collections.singletonList(self._place)
        self._consumer.assign(places)
        return int(self._consumer.beginningOffsets(places)[self._place])

    def seek_to_offset(self, offset: int) -> None:
        """Makes the consumer read from this offset next."""
        self._consumer.seek(self._place, offset)
        self._at = offset

    def count_records(self, first: int, end: int) -> int:
        """Returns the number of records with offsets in `[first, end)`.

        Raises:
            BrokerError: The position has not advanced for some seconds.
        """
        self.seek_to_offset(first)
        found, records = 0, None
        while self._at < end:
            records = self._poll_records()
            found += records.count()
        if records is None or records.isEmpty():
            return found
        last = records.records(self._place)  # in ascending order; some may be at or after the end
        inside = bisect_left(range(last.size()), end, key=lambda number: last[number].offset())
        return found - last.size() + inside

    def poll_offsets(self) -> tuple[list[int], int]:
        """Reads the next records. Waits until the position, the next offset to read, has advanced.

        Returns:
            The offsets of the records, which can be none, and the new position.

        Raises:
            BrokerError: The position has not advanced for some seconds.
        """
        records = self._poll_records()
        offsets = [] if records.isEmpty() else [record.offset() for record in records.records(self._place)]
        return offsets, self._at

    def _poll_records(self) -> Any:
        """Returns the Java client's next records, as soon as the position has advanced.

        Raises a `BrokerError` after 20 seconds.
        """
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            records = self._consumer.poll(self._wait)
            position = int(self._consumer.position(self._place))
            if position != self._at:
                self._at = position
                return records
        raise BrokerError(
            f"Kafka sent no message of {self._place.toString()} from offset {self._at} on for {_SECONDS:.0f} s",
            fix="Check that the broker runs (`sessionlake doctor`), and run the command again",
        )


@contextmanager
def _open_consumer(spark: SparkSession, settings: Settings, options: Mapping[str, str]) -> Iterator[_OffsetConsumer]:
    """Opens a Java consumer for the block.

    Args:
        spark: The session whose JVM has Kafka's client.
        settings: The pipeline's settings.
        options: Options of the consumer, in addition to those for the connection.

    Raises:
        BrokerError: Kafka does not answer.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm  # noqa: SLF001  (Spark and Delta access the JVM in the same way)
    kafka = find_kafka_jvm_package(jvm)
    properties = jvm.java.util.Properties()
    for key, value in {**build_java_client_options(settings), **_OPTIONS, **options}.items():
        properties.setProperty(key, value)
    bytes_of = kafka.common.serialization.ByteArrayDeserializer
    try:
        consumer = kafka.clients.consumer.KafkaConsumer(properties, bytes_of(), bytes_of())
        try:
            yield _OffsetConsumer(jvm, consumer, kafka)
        finally:
            consumer.close(jvm.java.time.Duration.ZERO)
    except Py4JError as error:
        raise BrokerError(
            "Kafka does not say whether messages at missing offsets are lost or belong to "
            f"transactions: {parse_spark_failure(error)}",
            fix="Check that the broker runs (`sessionlake doctor`), and run the command again",
        ) from error
