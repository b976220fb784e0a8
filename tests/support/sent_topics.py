"""Creates and deletes topics on a broker, and records the messages sent to them, which the lake must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.delta.lake import Lake
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.ledger.topics import read_topics
from sessionlake.settings.model import Settings
from sessionlake_lab.truth import KafkaMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3


@dataclass
class SentTopic:
    """A topic that may have been created several times.

    Attributes:
        lives: Messages sent to it, with Kafka's offsets, for each time that it was created.
    """

    topic: str
    lives: list[list[KafkaMessage]] = field(default_factory=list)


class SentTopics:
    """Creates and deletes topics, sends messages, and records them."""

    def __init__(self, settings: Settings) -> None:
        self._client = build_librdkafka_client_config(settings)
        self._producer = self._new_producer()
        self._topics: dict[str, SentTopic] = {}

    def make(self, topic: str) -> None:
        """Creates a topic, for the first time or again."""
        if topic in self.there():  # a client's request has created it again
            self.delete(topic)
        admin = self._admin()  # it must exist until its answer has arrived
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        self._topics.setdefault(topic, SentTopic(topic)).lives.append([])

    def _admin(self) -> AdminClient:
        """Returns a new client each time. A client that knows a deleted topic would make the broker create it again."""
        return AdminClient(self._client)

    def _new_producer(self) -> Producer:
        return Producer(self._client | {"enable.idempotence": True})

    def delete(self, topic: str) -> None:
        """Deletes a topic and waits until Kafka no longer lists it."""
        self._producer = self._new_producer()  # one that knows the topic could make the broker create it again
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(30)
        while topic in admin.list_topics(timeout=10).topics:
            pass

    def send(self, messages: Sequence[KafkaMessage]) -> None:
        """Sends messages to their partitions, and records them with the offsets that Kafka assigns."""
        for said in messages:
            sent = self._topics[said.topic].lives[-1]
            offset = sum(earlier.partition == said.partition for earlier in sent)
            sent.append(said._replace(offset=offset))
            where = {"partition": said.partition, "timestamp": said.timestamp}
            self._producer.produce(said.topic, key=said.key, value=said.value, **where)
        assert self._producer.flush(60) == 0

    def there(self) -> set[str]:
        """Returns the topics that Kafka lists, of those that were created."""
        admin = self._admin()
        return self._topics.keys() & admin.list_topics(timeout=10).topics.keys()

    def in_lake(self, spark: SparkSession, settings: Settings) -> list[KafkaMessage]:
        """Returns all messages, with the offsets that the lake has for them.

        A broker creates a topic that a client asks for, so a deleted topic may have existed again without messages.
        """
        shifts: dict[str, list[int]] = {}
        for row in read_topics(spark, Lake(settings)):
            if any(part.next_offset > part.first_offset for part in row.partitions):
                shifts.setdefault(row.topic, []).append(row.offset_shift)
        return [
            message._replace(offset=message.offset + shift)
            for topic in self._topics.values()
            for shift, messages in zip(shifts.get(topic.topic, []), filter(None, topic.lives), strict=True)
            for message in messages
        ]
