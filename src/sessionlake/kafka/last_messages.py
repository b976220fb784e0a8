"""Reads the last messages of a topic with librdkafka, without Spark. Nothing is written and no offset is committed."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sessionlake.errors import BrokerError, MachineSetupError, UnknownTopicError
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.kafka.clients import build_librdkafka_consumer_config, require_reachable_broker
from sessionlake.kafka.security import hide_secrets
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_SECONDS = 10.0
_POLL_SECONDS = 0.1
_POLLED = 500
_SHOWN = 5


def read_last_messages(settings: Settings, topic: str, count: int) -> list[KafkaRecord]:
    """Returns the last messages of a topic, oldest first. Those of one partition are in the order of their offsets.

    Args:
        settings: The pipeline's settings.
        topic: The topic.
        count: The largest number of messages from all partitions together.

    Raises:
        MachineSetupError: The package `confluent_kafka` is missing.
        UnknownTopicError: Kafka does not have the topic.
        BrokerError: Kafka does not answer.
        KafkaAccessError: Kafka rejects this client.
    """
    require_reachable_broker(settings)
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise MachineSetupError(
            f"the package confluent_kafka, which reads the topic {topic}, is not installed",
            fix="Run `pip install 'sessionlake[local]'`. Or save messages to a file, and name the file "
            "instead of the topic",
        ) from error
    consumer = Consumer({**build_librdkafka_consumer_config(settings, "feed"), "enable.partition.eof": True})
    try:
        partitions = _list_partitions(consumer, settings, topic)
        latest = heapq.nlargest(
            count,
            _read_last_messages_of_partitions(consumer, settings, topic, partitions, count),
            key=lambda one: (one.timestamp, one.offset),
        )
    except KafkaException as error:
        raise _create_no_answer_error(settings, topic, hide_secrets(settings, str(error))[:300]) from error
    finally:
        consumer.close()
    by_partition: dict[int, list[KafkaRecord]] = {}
    for one in sorted(latest, key=lambda one: one.offset):
        by_partition.setdefault(one.partition, []).append(one)
    return list(heapq.merge(*by_partition.values(), key=lambda one: one.timestamp))


def _list_partitions(consumer: Consumer, settings: Settings, topic: str) -> list[int]:
    """Returns the partition numbers of a topic. Raises an `UnknownTopicError` if Kafka does not have the topic."""
    topics = consumer.list_topics(timeout=_SECONDS).topics
    if topic not in topics or not topics[topic].partitions:
        known = sorted(name for name in topics if not name.startswith("_"))
        near = get_close_matches(topic, known, _SHOWN, 0.4) or known[:_SHOWN]
        named = f"; it has {', '.join(near)}" if near else "; it has no topics"
        raise UnknownTopicError(
            f"Kafka at {settings.kafka.bootstrap_servers} does not have the topic {topic}{named}",
            fix="Correct the topic's name. If you mean a file, name one that exists",
        )
    return sorted(topics[topic].partitions)


def _read_last_messages_of_partitions(
    consumer: Consumer, settings: Settings, topic: str, partitions: list[int], count: int
) -> Iterator[KafkaRecord]:
    """Yields the last `count` messages of each of these partitions, or all if it has fewer."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    starts, ends = [], {}
    for number in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
        if high > low:
            starts.append(TopicPartition(topic, number, max(low, high - count)))
            ends[number] = high
    consumer.assign(starts)
    deadline = time.monotonic() + _SECONDS
    while ends:
        messages = consumer.consume(_POLLED, timeout=_POLL_SECONDS)  # waits for so many messages, or for the time
        if messages:
            deadline = time.monotonic() + _SECONDS
        elif time.monotonic() > deadline:
            raise _create_no_answer_error(settings, topic, f"no message within {_SECONDS:.0f} s")
        for message in messages:
            error, number, offset = message.error(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own name
                raise KafkaException(error)
            if error is None and offset is not None and offset < ends.get(number or 0, 0):
                yield _create_record(message)
            if error is not None or (offset is not None and offset + 1 >= ends.get(number or 0, 0)):
                ends.pop(number or 0, None)


def _create_record(message: Any) -> KafkaRecord:
    kind, milliseconds = message.timestamp()
    headers = dict(message.headers() or ())
    return KafkaRecord(
        message.topic(), message.partition(), message.offset(), milliseconds if kind else -1, message.key(),
        message.value(), headers,
    )  # fmt: skip


def _create_no_answer_error(settings: Settings, topic: str, reason: str) -> BrokerError:
    return BrokerError(
        f"Kafka at {settings.kafka.bootstrap_servers} does not send the messages of topic {topic} ({reason})",
        fix="Check that the broker runs and that this client has the right to read the topic",
    )
