"""Writes messages to Kafka in order, with explicit partitions and timestamps, at full speed or in real time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.errors import BrokerError, UsageError
from sessionlake.kafka.clients import build_librdkafka_client_config, require_reachable_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from sessionlake.settings.model import Settings
    from sessionlake_lab.simulate.scenario import KafkaRecord

# Number of messages between two checks of the stop flag and of delivery errors.
CHUNK = 1000
# In real time, a message is written at most this long after it is due. This limits wake-ups to a hundred per second.
PACE_MS = 10
TIMEOUT_S = 30.0
_SETTLING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own codes are named so
}
# Maximum size of a Kafka record without its value.
ENVELOPE_BYTES = 64 * 1024


@dataclass
class ProduceResult:
    """Result of writing messages to Kafka.

    Attributes:
        messages: Number of messages acknowledged by the broker.
        value_bytes: Size of their values before compression.
        seconds: Elapsed time including the final flush.
        offsets: First offset written and one past the last, by topic and partition.
        stopped: True if the stop flag or Ctrl-C ended it early.
    """

    messages: int = 0
    value_bytes: int = 0
    seconds: float = 0.0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    stopped: bool = False

    @property
    def messages_per_second(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


def produce_messages(
    settings: Settings,
    messages: Iterable[KafkaRecord],
    *,
    partitions: int = 2,
    pace: bool = False,
    stop: Event | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ProduceResult:
    """Writes messages in the given order. A topic is created before its first message.

    Args:
        settings: Settings with the broker's address and the size of the largest message.
        messages: The messages. No other process should write to their topics meanwhile.
        partitions: Number of partitions of created topics.
        pace: True to write in real time: each message waits for its stream time, relative to the first message.
        stop: An event that ends the writing early. Messages sent before are still delivered.
        on_progress: Called with the number of messages sent so far, about every thousand messages.

    Raises:
        BrokerError: Kafka cannot be reached, rejects messages, or has lost some.
        UsageError: A topic exists with fewer partitions than the messages use.
    """
    return _KafkaWriter(settings, partitions, pace=pace).write_messages(messages, stop, on_progress)


class _KafkaWriter:
    """Writes messages to Kafka, creates their topics, and checks at the end that all have arrived."""

    def __init__(self, settings: Settings, partitions: int, *, pace: bool) -> None:
        self._settings, self._partitions = settings, partitions
        self._pace = _RealTimePacer() if pace else None
        largest = settings.capture.max_message_bytes + ENVELOPE_BYTES
        require_reachable_broker(settings)
        # Errors are raised as exceptions. librdkafka's log lines would interrupt the progress display.
        common = {**build_librdkafka_client_config(settings), "log_level": 2}
        self._producer = Producer({**common, **_build_producer_config(largest, live=pace)})
        self._admin = AdminClient(common)
        self._consumer = Consumer({**common, "group.id": "sessionlake-simulate", "enable.auto.commit": False})
        self._largest = largest
        self._begin: dict[tuple[str, int], int] = {}
        self._known: set[str] = set()
        self._failures: list[str] = []
        self._result = ProduceResult()

    def write_messages(
        self, messages: Iterable[KafkaRecord], stop: Event | None, on_progress: Callable[[int], None] | None
    ) -> ProduceResult:
        """Writes messages until they end or `stop` is set, and closes the connection. Can be called once."""
        begin = time.perf_counter()
        result, source = self._result, iter(messages)
        try:
            # In real time, one message at a time: the stop flag is checked for each, and none waits for a full chunk.
            while chunk := list(islice(source, 1 if self._pace else CHUNK)):
                if stop is not None and stop.is_set():
                    result.stopped = True
                    break
                self._send_message_chunk(chunk, stop)
                if on_progress is not None and result.messages % CHUNK < len(chunk):
                    on_progress(result.messages)
            self._wait_and_compare_offsets()
        except KeyboardInterrupt:  # like the stop flag: messages that were sent are still delivered
            result.stopped = True
            self._wait_and_compare_offsets()
            result.messages = sum(end - first for first, end in result.offsets.values())
        except KafkaException as error:
            raise self._create_broker_error(str(error.args[0])) from None
        finally:
            self._consumer.close()
        result.seconds = time.perf_counter() - begin
        return result

    def _send_message_chunk(self, chunk: list[KafkaRecord], stop: Event | None) -> None:
        """Queues messages for sending, in order. In real time, waits until each is due."""
        send, poll, known, delivered = (
            self._producer.produce,
            self._producer.poll,
            self._known,
            self._record_delivery_error,
        )
        size = 0
        for topic, partition, key, value, timestamp in chunk:
            if topic not in known:
                self._create_topic(topic)
            if self._pace:
                self._pace.wait_until_due(timestamp, poll, stop)
            while True:
                try:
                    # By keyword, since the client's positional order differs from its documentation.
                    send(topic, value, key, partition, on_delivery=delivered, timestamp=timestamp)
                    break
                except BufferError:
                    poll(0.05)  # the queue is full because the broker is slower
            size += len(value)
        poll(0)
        self._result.messages += len(chunk)
        self._result.value_bytes += size
        if self._failures:
            raise self._create_broker_error(self._failures[0])

    def _create_topic(self, topic: str) -> None:
        """Creates the topic unless it exists, and records the end offsets of its partitions."""
        config = {"retention.ms": "-1", "max.message.bytes": str(self._largest), "message.timestamp.type": "CreateTime"}
        future = self._admin.create_topics([NewTopic(topic, self._partitions, 1, config=config)])[topic]
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        found = self._wait_for_partition_leaders(topic)
        if found < self._partitions:
            raise UsageError(
                f"topic {topic} has {found} partitions, but the simulation uses {self._partitions}",
                fix=f"Give --partitions {found}, or another --prefix",
            )
        for partition in range(self._partitions):
            self._begin[topic, partition] = self._read_end_offset(topic, partition)
        self._known.add(topic)

    def _wait_for_partition_leaders(self, topic: str) -> int:
        """Waits until each partition of a new topic has a leader, and returns the number of partitions."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            if found.error is None and found.partitions and all(p.leader >= 0 for p in found.partitions.values()):
                return len(found.partitions)
            time.sleep(0.02)
        raise self._create_broker_error(f"topic {topic} has no leader after {TIMEOUT_S:.0f} s")

    def _read_end_offset(self, topic: str, partition: int) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
                return int(end)
            except KafkaException as error:  # a new leader may not answer at once
                if error.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _record_delivery_error(self, error: KafkaError | None, _message: Any) -> None:
        """Records a failed delivery. It is called for failures only (`delivery.report.only.error`), for speed."""
        if error is not None:
            self._failures.append(error.str())

    def _wait_and_compare_offsets(self) -> None:
        """Waits until all messages are acknowledged, then compares their number with the broker's offsets."""
        left = self._producer.flush(TIMEOUT_S)
        if left or self._failures:
            raise self._create_broker_error(
                self._failures[0] if self._failures else f"{left} messages were not acknowledged in {TIMEOUT_S:.0f} s"
            )
        for (topic, partition), begin in self._begin.items():
            end = self._read_end_offset(topic, partition)
            if end > begin:
                self._result.offsets[topic, partition] = (begin, end)
        arrived = sum(end - begin for begin, end in self._result.offsets.values())
        if arrived < self._result.messages:
            raise self._create_broker_error(
                f"{self._result.messages} messages were acknowledged, but Kafka has only {arrived}"
            )

    def _create_broker_error(self, reason: str) -> BrokerError:
        servers = self._settings.kafka.bootstrap_servers
        return BrokerError(
            f"Kafka at {servers} (kafka.bootstrap_servers) did not accept the simulated messages: {reason}",
            fix="Run `sessionlake broker status` to check the broker. `sessionlake broker up` starts the local one",
        )


class _RealTimePacer:
    """Delays messages so that stream time is not faster than the clock, relative to the first message."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._horizon = 0.0

    def wait_until_due(self, timestamp: int, poll: Callable[[float], object], stop: Event | None) -> None:
        """Waits until the message with this timestamp (milliseconds) is due, or the stop flag is set."""
        if timestamp <= self._horizon:
            return
        now = time.monotonic() * 1000
        if self._ahead is None:
            self._ahead = timestamp - now
        self._horizon = timestamp + PACE_MS
        while (left := self._horizon - now - self._ahead) > 0 and not (stop is not None and stop.is_set()):
            poll(0)
            time.sleep(min(left, 200) / 1000)
            now = time.monotonic() * 1000


def _build_producer_config(max_message_bytes: int, *, live: bool) -> dict[str, Any]:
    return {
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        # In real time, messages are sent almost at once. Otherwise batches fill up.
        "linger.ms": 5 if live else 50,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "message.max.bytes": max_message_bytes,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "delivery.report.only.error": True,
        "message.timeout.ms": int(TIMEOUT_S * 1000),
    }
