"""Messages into Kafka: explicit partitions and timestamps, in order, at the broker's speed or at the clock's."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.errors import BrokerError, UsageError
from sessionlake.kafka.clients import client_config, require_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from sessionlake.settings.model import Settings
    from sessionlake_lab.simulate.scenario import KafkaRecord

# Messages between two looks at the stop flag and at delivery errors.
CHUNK = 1000
# A paced message is written at most this long after its own time: a hundred wake-ups a second, whatever the rate.
PACE_MS = 10
TIMEOUT_S = 30.0
_SETTLING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own codes are named so
}
# Room in a Kafka record beside its value.
ENVELOPE_BYTES = 64 * 1024


@dataclass
class ProduceResult:
    """What was written.

    Attributes:
        messages: acknowledged by the broker.
        value_bytes: of their values, before compression.
        seconds: wall time, flush included.
        offsets: per topic and partition the first offset written and one past the last.
        stopped: True if the stop flag ended it before the messages did.
    """

    messages: int = 0
    value_bytes: int = 0
    seconds: float = 0.0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    stopped: bool = False

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0


def produce(
    settings: Settings,
    messages: Iterable[KafkaRecord],
    *,
    partitions: int = 2,
    pace: bool = False,
    stop: Event | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ProduceResult:
    """Writes messages in the given order; a topic is created when its first message comes.

    Args:
        settings: where Kafka is, and the largest message.
        messages: what to write; each partition must exist, and a topic should have no other writer meanwhile.
        partitions: of topics that are created here.
        pace: hold each message back until as much wall time has passed as stream time since the first one.
        stop: set from outside to end early; what was handed over by then is still delivered.
        on_progress: called with the number of messages handed over so far, about every thousand.

    Raises:
        BrokerError: Kafka cannot be reached, refuses messages, or lost some.
        UsageError: a topic exists with fewer partitions than the messages use.
    """
    return _Writer(settings, partitions, pace=pace).write(messages, stop, on_progress)


class _Writer:
    def __init__(self, settings: Settings, partitions: int, *, pace: bool) -> None:
        self._settings, self._partitions = settings, partitions
        self._pace = _Pace() if pace else None
        largest = settings.capture.max_message_bytes + ENVELOPE_BYTES
        require_broker(settings)
        # What goes wrong is raised; librdkafka's own lines would only break into a progress display.
        common = {**client_config(settings), "log_level": 2}
        self._producer = Producer({**common, **_producer_config(largest, live=pace)})
        self._admin = AdminClient(common)
        self._consumer = Consumer({**common, "group.id": "sessionlake-simulate", "enable.auto.commit": False})
        self._largest = largest
        self._begin: dict[tuple[str, int], int] = {}
        self._known: set[str] = set()
        self._failures: list[str] = []
        self._result = ProduceResult()

    def write(
        self, messages: Iterable[KafkaRecord], stop: Event | None, on_progress: Callable[[int], None] | None
    ) -> ProduceResult:
        begin = time.perf_counter()
        result, source = self._result, iter(messages)
        try:
            # A live stream looks at its flag for every message; generating ahead of the clock would make it wait.
            while chunk := list(islice(source, 1 if self._pace else CHUNK)):
                if stop is not None and stop.is_set():
                    result.stopped = True
                    break
                self._hand_over(chunk, stop)
                if on_progress is not None and result.messages % CHUNK < len(chunk):
                    on_progress(result.messages)
            self._finish()
        except KeyboardInterrupt:  # Ctrl-C is a stop like any other: what was handed over arrives
            result.stopped = True
            self._finish()
            result.messages = sum(end - first for first, end in result.offsets.values())
        except KafkaException as error:
            raise self._error(str(error.args[0])) from None
        finally:
            self._consumer.close()
        result.seconds = time.perf_counter() - begin
        return result

    def _hand_over(self, chunk: list[KafkaRecord], stop: Event | None) -> None:
        send, poll, known, delivered = self._producer.produce, self._producer.poll, self._known, self._delivered
        size = 0
        for topic, partition, key, value, timestamp in chunk:
            if topic not in known:
                self._open(topic)
            if self._pace:
                self._pace.wait(timestamp, poll, stop)
            while True:
                try:
                    # By keyword: the client's real positional order is not the documented one.
                    send(topic, value, key, partition, on_delivery=delivered, timestamp=timestamp)
                    break
                except BufferError:
                    poll(0.05)  # the queue is full: the broker is the slower one
            size += len(value)
        poll(0)
        self._result.messages += len(chunk)
        self._result.value_bytes += size
        if self._failures:
            raise self._error(self._failures[0])

    def _open(self, topic: str) -> None:
        """Creates the topic unless it exists, and notes where its partitions end."""
        config = {"retention.ms": "-1", "max.message.bytes": str(self._largest), "message.timestamp.type": "CreateTime"}
        future = self._admin.create_topics([NewTopic(topic, self._partitions, 1, config=config)])[topic]
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        found = self._await_partitions(topic)
        if found < self._partitions:
            raise UsageError(
                f"topic {topic} has {found} partitions, the simulation uses {self._partitions}: "
                f"give --partitions {found}, or another --prefix"
            )
        for partition in range(self._partitions):
            self._begin[topic, partition] = self._end_offset(topic, partition)
        self._known.add(topic)

    def _await_partitions(self, topic: str) -> int:
        """A new topic's leader is known a moment after it was created."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            if found.error is None and found.partitions and all(p.leader >= 0 for p in found.partitions.values()):
                return len(found.partitions)
            time.sleep(0.02)
        raise self._error(f"topic {topic} has no leader after {TIMEOUT_S:.0f} s")

    def _end_offset(self, topic: str, partition: int) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
                return int(end)
            except KafkaException as error:  # a named leader may need a moment before it answers as one
                if error.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        """Called for failures only (`delivery.report.only.error`): a call a message would halve the rate."""
        if error is not None:
            self._failures.append(error.str())

    def _finish(self) -> None:
        """Waits until everything is acknowledged, then counts it at the broker."""
        left = self._producer.flush(TIMEOUT_S)
        if left or self._failures:
            raise self._error(
                self._failures[0] if self._failures else f"{left} messages not acknowledged in {TIMEOUT_S:.0f} s"
            )
        for (topic, partition), begin in self._begin.items():
            end = self._end_offset(topic, partition)
            if end > begin:
                self._result.offsets[topic, partition] = (begin, end)
        arrived = sum(end - begin for begin, end in self._result.offsets.values())
        if arrived < self._result.messages:
            raise self._error(f"{self._result.messages} messages were acknowledged and {arrived} are there")

    def _error(self, reason: str) -> BrokerError:
        servers = self._settings.kafka.bootstrap_servers
        return BrokerError(
            f"Kafka at {servers} (kafka.bootstrap_servers) did not take the simulated messages: {reason}. "
            "See `sessionlake broker status`; `sessionlake broker up` starts the local one."
        )


class _Pace:
    """Lets stream time pass no faster than wall time, measured from the first message on."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._horizon = 0.0

    def wait(self, timestamp: int, poll: Callable[[float], object], stop: Event | None) -> None:
        """Returns once the message with this timestamp (milliseconds) is due, or the stop flag is set."""
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


def _producer_config(largest: int, *, live: bool) -> dict[str, Any]:
    return {
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        # Live, a message leaves at once; else batches fill up.
        "linger.ms": 5 if live else 50,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "message.max.bytes": largest,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "delivery.report.only.error": True,
        "message.timeout.ms": int(TIMEOUT_S * 1000),
    }
