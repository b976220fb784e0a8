"""Sends messages to Kafka, such as those of a recorded file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sessionlake.errors import BrokerError
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.kafka.clients import build_librdkafka_client_config, require_reachable_broker
from sessionlake.settings.model import Settings

_TIMEOUT_S = 30
_ONLY_ERRORS = "3"
"""Level of the client's own log, which otherwise has lines about a broker that has just started."""
_FIX = (
    "Check the broker and the topic's settings. Then send the file to a new topic, because this one may have some of "
    "the messages already"
)


def send_messages(settings: Settings, records: Iterable[KafkaRecord]) -> int:
    """Sends messages in order, each to its partition. Returns their number after Kafka has stored them all.

    A message whose timestamp is -1 gets the present time.

    Raises:
        BrokerError: Kafka cannot be reached, or does not accept a message.
    """
    from confluent_kafka import KafkaException, Producer

    require_reachable_broker(settings)
    failed: list[str] = []

    def collect_delivery_error(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        build_librdkafka_client_config(settings) | {"enable.idempotence": "true", "log_level": _ONLY_ERRORS}
    )
    sent = 0
    try:
        for record in records:
            fields = {"key": record.key, "partition": record.partition, "headers": [*record.headers.items()]}
            fields |= {"timestamp": record.timestamp} if record.timestamp >= 0 else {}
            while True:
                try:
                    producer.produce(record.topic, record.value, **fields, on_delivery=collect_delivery_error)
                    break
                except BufferError:  # the queue is full
                    producer.poll(1)
            producer.poll(0)
            sent += 1
        unsent = producer.flush(_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerError(f"feed send: Kafka did not accept message {sent + 1:,}: {error.args[0]}", fix=_FIX) from None
    if failed or unsent:
        why = failed[0] if failed else f"no answer within {_TIMEOUT_S} s"
        raise BrokerError(
            f"feed send: Kafka did not accept {len(failed) + unsent:,} of {sent:,} messages: {why}", fix=_FIX
        )
    return sent
