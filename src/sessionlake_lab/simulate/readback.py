"""Reads all messages back from Kafka and computes the ground truth, with the broker's offsets and timestamps."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from sessionlake.errors import BrokerError
from sessionlake.kafka.clients import build_librdkafka_consumer_config, require_reachable_broker
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import Settings, TopicOverrideSettings
from sessionlake.settings.section import convert_duration_to_ms
from sessionlake_lab.truth import CaptureRules, ExpectedTables, GroundTruth, KafkaMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TIMEOUT_S = 30.0
FETCH = 10_000


def compute_truth_from_broker(
    settings: Settings, rules: CaptureRules | None = None, silences: Iterable[Silence] = ()
) -> ExpectedTables:
    """Returns the expected silver tables for all messages in the topics of `kafka.topic_pattern`.

    Args:
        settings: Settings with the broker's address and the topic pattern.
        rules: Rules by which messages are judged; None for those of the settings.
        silences: Silences that bronze has recorded.

    Raises:
        BrokerError: Kafka cannot be read.
        TruthViolationError: Under `on_violation: fail`, at the message at which silver must stop.
    """
    truth = GroundTruth(rules or make_truth_rules(settings))
    silent_until = defaultdict[tuple[str, int, int], list[int]](list)
    for silence in silences:
        silent_until[silence.topic, silence.partition, silence.behind].append(silence.until)
    for message in read_all_messages(settings):
        truth.judge_message(message)
        for until in silent_until[message[:3]]:
            truth.apply_silence(message.topic, message.partition, until)
    return truth.finish_and_return_tables()


def make_truth_rules(settings: Settings) -> CaptureRules:
    """Returns the ground truth's rules for a configuration."""
    capture = settings.capture
    return CaptureRules(
        columns={column.name: column.sql for column in capture.declared_columns},
        integrity=capture.integrity.value,
        on_violation=capture.on_violation.value,
        lateness_ms=convert_duration_to_ms(capture.lateness),
        gap_timeout_ms=convert_duration_to_ms(capture.gap_timeout),
        session_timeout_ms=convert_duration_to_ms(capture.session_timeout),
        max_future_skew_ms=convert_duration_to_ms(capture.max_future_skew),
        max_message_bytes=capture.max_message_bytes,
        snapshot_interval_ms=convert_duration_to_ms(settings.silver.snapshot_interval),
        by_topic=tuple((rule.pattern, _convert_topic_rule_to_overrides(rule)) for rule in capture.by_topic),
    )


def _convert_topic_rule_to_overrides(rule: TopicOverrideSettings) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if rule.integrity is not None:
        found["integrity"] = rule.integrity.value
    if rule.on_violation is not None:
        found["on_violation"] = rule.on_violation.value
    if rule.lateness is not None:
        found["lateness_ms"] = convert_duration_to_ms(rule.lateness)
    return found


def read_all_messages(settings: Settings) -> Iterator[KafkaMessage]:
    """Yields all committed messages of all matching topics up to their current ends, by partition in offset order.

    A partition ends before the first message of an open transaction.

    Raises:
        BrokerError: Kafka cannot be read.
    """
    require_reachable_broker(settings)
    config = {
        "queued.max.messages.kbytes": 65_536,
        # A fetch that waits at one partition's end would delay the next partition's fetch.
        "fetch.wait.max.ms": 5,
    }
    consumer = Consumer(build_librdkafka_consumer_config(settings, "truth") | config)
    try:
        for topic, partition in _list_matching_partitions(consumer, settings):
            yield from _read_partition_messages(consumer, topic, partition)
    except KafkaException as error:
        raise _make_kafka_read_error(settings.kafka.bootstrap_servers, str(error.args[0])) from None
    finally:
        consumer.close()


def _list_matching_partitions(consumer: Consumer, settings: Settings) -> list[tuple[str, int]]:
    matches = re.compile(settings.kafka.topic_pattern).fullmatch
    topics = consumer.list_topics(timeout=TIMEOUT_S).topics
    return sorted((name, number) for name, topic in topics.items() if matches(name) for number in topic.partitions)


def _read_partition_messages(consumer: Consumer, topic: str, partition: int) -> Iterator[KafkaMessage]:
    where = TopicPartition(topic, partition)
    _, end = consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)
    if end == 0:
        return
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    reached, deadline = 0, time.monotonic() + TIMEOUT_S
    while reached < end:
        # `consume` waits until it has the requested number of messages, so never request more than exist.
        batch = consumer.consume(min(FETCH, end - reached), timeout=1.0)
        if batch:
            deadline = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > deadline:
            raise _make_kafka_read_error(
                topic, f"partition {partition} sent nothing for {TIMEOUT_S:.0f} s at offset {reached} of {end}"
            )
        for message in batch:
            if message.error():
                raise KafkaException(message.error())
            if message.offset() < end:
                timestamp = message.timestamp()[1]
                yield KafkaMessage(topic, partition, message.offset(), timestamp, message.key(), message.value())
        # The position also advances past offsets without a message, such as transaction markers. Before the first fetch
        # there is no position.
        reached = max(reached, consumer.position([where])[0].offset)


def _make_kafka_read_error(source: str, reason: str) -> BrokerError:
    return BrokerError(
        f"Kafka could not be read back from {source}: {reason}",
        fix="Run `sessionlake broker status` to check the broker. `sessionlake broker up` starts the local one",
    )
