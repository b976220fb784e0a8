"""The last messages of a topic are read from librdkafka's own broker, which runs in this process without Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from sessionlake.errors import UnknownTopicError
from sessionlake.kafka.last_messages import read_last_messages
from sessionlake.settings.model import Settings


@pytest.fixture
def producer() -> Iterator[Producer]:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    yield producer
    producer.flush(5)


@pytest.fixture
def own(producer: Producer) -> Settings:
    [broker] = producer.list_topics(timeout=5).brokers.values()
    kafka = {"bootstrap_servers": f"{broker.host}:{broker.port}"}
    return Settings.model_validate({"kafka": kafka})


def send(producer: Producer, topic: str, partition: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.produce(
            topic, f"v{number}".encode(), key=b"k", partition=partition, timestamp=1_700_000_000_000 + number,
            headers={"h": b"x"},
        )  # fmt: skip
    assert producer.flush(5) == 0


def test_the_last_messages_of_all_partitions_are_read_oldest_first(producer, own):
    send(producer, "feed.a", 0, 0, 30)
    send(producer, "feed.a", 1, 100, 3)
    found = read_last_messages(own, "feed.a", 5)
    assert [(one.partition, one.offset, one.value) for one in found] == [
        (0, 28, b"v28"), (0, 29, b"v29"), (1, 0, b"v100"), (1, 1, b"v101"), (1, 2, b"v102"),
    ]  # fmt: skip
    assert (found[0].key, found[0].timestamp, found[0].headers) == (b"k", 1_700_000_000_028, {"h": b"x"})
    assert len(read_last_messages(own, "feed.a", 100)) == 33


def test_messages_of_a_partition_stay_in_the_order_of_their_offsets(producer, own):
    send(producer, "feed.b", 0, 50, 2)
    send(producer, "feed.b", 0, 10, 2)
    assert [one.offset for one in read_last_messages(own, "feed.b", 10)] == [0, 1, 2, 3]


def test_a_topic_that_kafka_does_not_have_is_named_with_similar_ones(producer, own):
    send(producer, "feed.book", 0, 0, 1)
    with pytest.raises(UnknownTopicError, match=r"does not have the topic feed.bok; it has feed.book"):
        read_last_messages(own, "feed.bok", 10)
