"""Shows which Kafka offsets hold no message because of transactions: markers, and records of aborted ones.

Kafka tells no client directly. Two Java consumers show it, by a rule that lost messages cannot meet:

- With a fetch size of one byte the broker sends one record batch at a time. A `read_uncommitted` consumer that stands
  at an offset then either gets a record of just this offset, or passes exactly one offset without a record: that is a
  transaction marker. Where messages are lost, it gets a record of a later offset, or passes several.
- Where it gets records, a `read_committed` consumer that starts at the same offset passes them without a record: they
  were aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sessionlake.errors import BrokerError
from sessionlake.kafka.admin import kafka_package
from sessionlake.kafka.clients import READ_COMMITTED, java_client_options
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = tuple[int, int]
"""Kafka offsets `[first, end)`."""
_SECONDS = 20.0
_POLL_MS = 200
_OPTIONS = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "fetch.max.wait.ms": "5",  # a fetch at the end of a partition must not hold up the next one
    "max.poll.records": "16",
}
_ONE_BATCH = {"max.partition.fetch.bytes": "1", "fetch.max.bytes": "1", "isolation.level": "read_uncommitted"}


def without_message(
    spark: SparkSession, settings: Settings, runs: Mapping[TopicPartition, Iterable[Run]]
) -> dict[TopicPartition, list[Run]]:
    """The runs of offsets, of those given, that hold no message because of transactions.

    Args:
        runs: offsets below the last stable offset.

    Raises:
        BrokerError: Kafka does not answer.
    """
    with _consumer(spark, settings, _ONE_BATCH) as each, _consumer(spark, settings, READ_COMMITTED) as committed:
        found: dict[TopicPartition, list[Run]] = {}
        for place, asked in runs.items():
            beginning = each.assign(place)
            committed.assign(place)
            found[place] = [run for run in asked if run[0] >= beginning and _is_without(each, committed, run)]
        return found


def _is_without(each: _Consumer, committed: _Consumer, run: Run) -> bool:
    first, end = run
    aborted = False
    at = first
    each.seek(at)
    while at < end:
        offsets, position = each.poll()
        if offsets and offsets != list(range(at, position)):
            return False
        if not offsets and position != at + 1:
            return False
        aborted, at = aborted or bool(offsets), position
    return not aborted or _passes(committed, first, end)


def _passes(committed: _Consumer, at: int, end: int) -> bool:
    committed.seek(at)
    while at < end:
        offsets, at = committed.poll()
        if offsets and offsets[0] < end:
            return False
    return True


class _Consumer:
    """A Java consumer of one topic-partition at a time."""

    def __init__(self, jvm: Any, consumer: Any, kafka: Any) -> None:
        self._jvm, self._consumer, self._kafka = jvm, consumer, kafka
        self._wait = jvm.java.time.Duration.ofMillis(_POLL_MS)
        self._place: Any = None
        self._at = 0

    def assign(self, place: TopicPartition) -> int:
        """Reads this topic-partition from now on; returns the first offset that Kafka holds of it."""
        self._place = self._kafka.common.TopicPartition(*place)
        places = self._jvm.java.util.Collections.singletonList(self._place)
        self._consumer.assign(places)
        return int(self._consumer.beginningOffsets(places)[self._place])

    def seek(self, offset: int) -> None:
        """Reads from this offset on."""
        self._consumer.seek(self._place, offset)
        self._at = offset

    def poll(self) -> tuple[list[int], int]:
        """The offsets of the next records, which may be none, and the position behind them, which has moved on.

        Raises:
            BrokerError: it has not moved for some seconds.
        """
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            records = self._consumer.poll(self._wait)
            offsets = [] if records.isEmpty() else [record.offset() for record in records.records(self._place)]
            position = int(self._consumer.position(self._place))
            if position != self._at:
                self._at = position
                return offsets, position
        raise BrokerError(f"Kafka gave nothing of {self._place.toString()} at offset {self._at} for {_SECONDS:.0f} s")


@contextmanager
def _consumer(spark: SparkSession, settings: Settings, options: Mapping[str, str]) -> Iterator[_Consumer]:
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm  # noqa: SLF001  (the way to the JVM that Spark and Delta take themselves)
    kafka = kafka_package(jvm)
    properties = jvm.java.util.Properties()
    for key, value in {**java_client_options(settings), **_OPTIONS, **options}.items():
        properties.setProperty(key, value)
    bytes_of = kafka.common.serialization.ByteArrayDeserializer
    try:
        consumer = kafka.clients.consumer.KafkaConsumer(properties, bytes_of(), bytes_of())
        try:
            yield _Consumer(jvm, consumer, kafka)
        finally:
            consumer.close(jvm.java.time.Duration.ZERO)
    except Py4JError as error:
        raise BrokerError(f"Kafka does not say what its offsets without a message are: {failure_of(error)}") from error
