"""The topic that a table is published to: made where there is none, refused where a table would not last in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sessionlake.errors import BrokerError, ConfigError, UsageError
from sessionlake.kafka.clients import client_config
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
# Kafka takes 249 characters, but the name is part of a folder's, which takes 255.
_LONGEST = 200
_SECONDS = 10.0
# The producer sends several messages at once up to so many bytes, and a topic must take twice that. When one refuses a
# batch of several, Kafka's producer splits it and tells Spark that all is sent before it is: a message that is refused
# after that would be lost in silence. A larger message travels alone, and its refusal is told.
BATCH_BYTES = 16_384
_SMALLEST_LIMIT = 2 * BATCH_BYTES
_COMPACTED = {"cleanup.policy": "compact"}
_UNLIMITED = "-1"


def require_topic(settings: Settings, topic: str) -> None:
    """Returns if a table may be published under this name at all.

    Raises:
        UsageError: it is no topic name, or bronze captures the topic.
    """
    if not _NAME.fullmatch(topic) or len(topic) > _LONGEST:
        raise UsageError(
            f"publish: {topic!r} cannot be a topic: up to {_LONGEST} letters, digits, dots, dashes and underscores"
        )
    if re.fullmatch(settings.kafka.topic_pattern, topic):
        raise UsageError(
            f"publish: topic {topic} matches kafka.topic_pattern ({settings.kafka.topic_pattern}): bronze would "
            "capture what is published, in a circle. Choose a topic that does not match, or narrow the pattern"
        )


def prepare(settings: Settings, topic: str, *, first: bool, anew: str) -> int | None:
    """Makes sure that the topic is there and keeps the last message of every key.

    Nothing is looked at without the package `confluent_kafka`, as on a cluster that has only Spark's client, or where a
    key or trust store is one that only Java reads.

    Args:
        first: whether nothing has been published to it yet: then it is created if missing, compacted and with the
            broker's own number of partitions and replicas; else it must be there.
        anew: how to publish from the beginning.

    Returns:
        How many messages were ever written to it; None if it could not be looked at.

    Raises:
        BrokerError: it is missing, drops messages by age or size, holds other messages, or cannot be made.
    """
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({**client_config(settings), "log_level": 0})
    except (ImportError, ConfigError):
        return None
    try:
        known = admin.list_topics(timeout=_SECONDS).topics
        if topic in known:
            _require_fit(admin, topic)
            written = _written(settings, topic, list(known[topic].partitions))
        elif first:
            _create(admin, topic)
            written = 0
        else:
            raise BrokerError(f"publish: topic {topic} is gone, and what was published with it: {anew}")
    except KafkaException as error:
        raise BrokerError(f"publish: topic {topic} cannot be looked at: {error.args[0].str()}") from error
    if first and written:
        raise BrokerError(
            f"publish: topic {topic} has been written to ({written} messages), but nothing of this table was published "
            "there from here: rows that the table no longer has would live on in it. Name a new topic, or delete this "
            "one and run again"
        )
    return written


def _create(admin: AdminClient, topic: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    try:
        admin.create_topics([NewTopic(topic, config=_COMPACTED)], request_timeout=_SECONDS)[topic].result()
    except KafkaException as error:
        raise BrokerError(
            f"publish: there is no topic {topic} and it cannot be created ({error.args[0].str()}): create it with "
            f"`kafka-topics.sh --create --topic {topic} --config cleanup.policy=compact`"
        ) from error


def _require_fit(admin: AdminClient, topic: str) -> None:
    """Refuses a topic that forgets a row because nobody has changed it for long, or takes only tiny ones."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result()
    except KafkaException:
        return  # who may write need not be allowed to look
    config = {name: entry.value for name, entry in found.items()}
    limits = {name: config[name] for name in ("retention.ms", "retention.bytes")}
    if "delete" in config["cleanup.policy"].split(",") and set(limits.values()) != {_UNLIMITED}:
        spelled = ", ".join(f"{name}={value}" for name, value in limits.items())
        raise BrokerError(
            f"publish: topic {topic} drops messages by age or size (cleanup.policy={config['cleanup.policy']}, "
            f"{spelled}): rows would be lost to whoever reads it later. {_alter(topic, 'cleanup.policy=compact')}"
        )
    if int(config["max.message.bytes"]) < _SMALLEST_LIMIT:
        raise BrokerError(
            f"publish: topic {topic} takes {config['max.message.bytes']} bytes at once, at least {_SMALLEST_LIMIT} are "
            f"needed. {_alter(topic, 'max.message.bytes=1048588')}"
        )


def _alter(topic: str, config: str) -> str:
    return f"Change it: `kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {config}`"


def _written(settings: Settings, topic: str, partitions: list[int]) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**client_config(settings), "group.id": "sessionlake-publish", "log_level": 0})
    try:
        places = [TopicPartition(topic, number) for number in partitions]
        return sum(consumer.get_watermark_offsets(place, timeout=_SECONDS)[1] for place in places)
    finally:
        consumer.close()
