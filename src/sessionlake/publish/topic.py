"""Checks the Kafka topic that a table is published to, and creates it if it is missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sessionlake.errors import BrokerError, ConfigError, UsageError
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
# Kafka allows 249 characters, but the name is part of a folder's name, which can have 255.
_MAX_NAME_LENGTH = 200
_TIMEOUT_SECONDS = 10.0
# The producer batches messages up to this size, and a topic must accept twice that. If a topic refuses a batch, Kafka's
# producer splits it and reports success to Spark before it has sent the parts. A message that is refused then would be
# lost silently. A larger message is sent alone, and its refusal is reported.
BATCH_BYTES = 16_384
_MIN_MESSAGE_LIMIT = 2 * BATCH_BYTES
_COMPACTED = {"cleanup.policy": "compact"}
_UNLIMITED = "-1"


def require_allowed_topic_name(settings: Settings, topic: str) -> None:
    """Checks that a table may be published to a topic of this name.

    Raises:
        UsageError: the name is not valid, or bronze captures the topic.
    """
    if not _NAME.fullmatch(topic) or len(topic) > _MAX_NAME_LENGTH:
        raise UsageError(
            f"publish: {topic!r} is not a valid name of a topic",
            fix=f"Use up to {_MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores",
        )
    if re.fullmatch(settings.kafka.topic_pattern, topic):
        raise UsageError(
            f"publish: the topic {topic} matches kafka.topic_pattern "
            f"({settings.kafka.topic_pattern}), so bronze would read it",
            why="Bronze would capture the published messages, and they would be published again, without end",
            fix="Choose a topic that does not match, or narrow kafka.topic_pattern",
        )


def prepare_topic(settings: Settings, topic: str, *, is_first_run: bool, restart_hint: str) -> int | None:
    """Checks that the topic exists and keeps the last message of every key. Creates a missing topic in the first run.

    Nothing is checked if the package `confluent_kafka` is missing, as on a cluster that has only Spark's Kafka client.
    The same applies if only Java can read the configured key store or trust store.

    Args:
        is_first_run: True if nothing was published to the topic yet. A missing topic is then created as compacted, with
            the broker's default numbers of partitions and replicas. If False, the topic must exist.
        restart_hint: a text for errors that says how to publish the table from the start.

    Returns:
        The number of messages ever written to the topic; None if it could not be checked.

    Raises:
        BrokerError: the topic is missing or cannot be created, drops messages by age or size, or had messages before
            the first run.
    """
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({**build_librdkafka_client_config(settings), "log_level": 0})
    except (ImportError, ConfigError):
        return None
    try:
        known = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
        if topic in known:
            _require_suitable_topic_config(admin, topic)
            written = _count_written_messages(settings, topic, list(known[topic].partitions))
        elif is_first_run:
            _create_topic(admin, topic)
            written = 0
        else:
            raise BrokerError(
                f"publish: the topic {topic}, to which the table was published before, does not exist any more",
                fix=f"Publish the table from the start: {restart_hint}",
            )
    except KafkaException as error:
        raise BrokerError(
            f"publish: the topic {topic} cannot be checked or created: {error.args[0].str()}",
            fix="Check the broker and this client's rights on the topic, and run the command again",
        ) from error
    if is_first_run and written:
        raise BrokerError(
            f"publish: the topic {topic} has {written} messages already, but this table was never published from here",
            why="The topic could have rows of another publication that the table does not have",
            fix="Name a new topic, or delete this one, and run the command again",
        )
    return written


def _create_topic(admin: AdminClient, topic: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    try:
        admin.create_topics([NewTopic(topic, config=_COMPACTED)], request_timeout=_TIMEOUT_SECONDS)[topic].result()
    except KafkaException as error:
        raise BrokerError(
            f"publish: the topic {topic} does not exist and cannot be created ({error.args[0].str()})",
            fix=f"Create it with `kafka-topics.sh --create --topic {topic} --config cleanup.policy=compact`",
        ) from error


def _require_suitable_topic_config(admin: AdminClient, topic: str) -> None:
    """Checks that a topic keeps the last message of every key, and accepts messages that are large enough.

    Raises:
        BrokerError: the topic drops messages by age or size, or its `max.message.bytes` is too low.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT_SECONDS)[resource].result()
    except KafkaException:
        return  # a client that may write is not always allowed to read the topic's configuration
    config = {name: entry.value for name, entry in found.items()}
    limits = {name: config[name] for name in ("retention.ms", "retention.bytes")}
    if "delete" in config["cleanup.policy"].split(",") and set(limits.values()) != {_UNLIMITED}:
        spelled = ", ".join(f"{name}={value}" for name, value in limits.items())
        raise BrokerError(
            f"publish: the topic {topic} drops messages by age or size "
            f"(cleanup.policy={config['cleanup.policy']}, {spelled})",
            why="Readers that start later would miss rows that have not changed for long",
            fix=_suggest_topic_config(topic, "cleanup.policy=compact"),
        )
    if int(config["max.message.bytes"]) < _MIN_MESSAGE_LIMIT:
        raise BrokerError(
            f"publish: the topic {topic} has max.message.bytes={config['max.message.bytes']}, but "
            f"needs at least {_MIN_MESSAGE_LIMIT}",
            why="Kafka would refuse large rows",
            fix=_suggest_topic_config(topic, "max.message.bytes=1048588"),
        )


def _suggest_topic_config(topic: str, setting: str) -> str:
    return f"Run `kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {setting}`"


def _count_written_messages(settings: Settings, topic: str, partitions: list[int]) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**build_librdkafka_client_config(settings), "group.id": "sessionlake-publish", "log_level": 0})
    try:
        places = [TopicPartition(topic, number) for number in partitions]
        return sum(consumer.get_watermark_offsets(place, timeout=_TIMEOUT_SECONDS)[1] for place in places)
    finally:
        consumer.close()
