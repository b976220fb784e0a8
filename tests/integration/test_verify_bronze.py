"""`verify bronze` over a real broker: exact; then whatever is done to a row of bronze by hand is found and named."""

from __future__ import annotations

import random
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.test_topics import World
from sessionlake.bronze import verify as verifying
from sessionlake.cli.verify_bronze import verify_bronze
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.txn import Txn
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.settings.model import Settings, TopicChangePolicy
from support.split_streams import capture_of_split, split_messages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
HEADERS: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("none", None), ("a", b"")]
EVERY_FIELD = {
    "timestamp": "timestamp + INTERVAL 1 MILLISECOND",
    "timestamp_type": "1",
    "key": "X''",
    "value": "X''",
    "headers": "array()",
}


class Bronze:
    """One topic in bronze, and what `verify` says of it."""

    def __init__(self, spark: Any, settings: Settings, name: str) -> None:
        self.world = World(spark, settings, name)
        self.settings = self.world.under(TopicChangePolicy.RESTART)
        self.spark, self.lake, self.topic = spark, Lake(self.settings), self.world.name("t")

    def send(self, count: int, partition: int = 0) -> None:
        """Every second message has headers, every third no key, and every fourth no value."""
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers})
        for n in range(count):
            key, value = b"k%d" % n if n % 3 else None, b"v%d" % n if n % 4 else None
            headers = HEADERS if n % 2 else None
            producer.produce(self.topic, value, key, partition, timestamp=1000 + n, headers=headers)
        assert producer.flush(30) == 0

    def run(self) -> None:
        self.world.run(self.settings)

    def verify(self) -> tuple[bool, list[str]]:
        said: list[str] = []
        return verify_bronze(self.spark, self.settings, said.append), said

    def differs(self, different: int, offset: int, how: str) -> None:
        first = f"topic {self.topic}, partition 0, offset {offset}: {how}"
        told = f"{different} of 30 messages differ from Kafka's; the first difference:\n  {first}"
        assert self.verify() == (False, [told])


@pytest.fixture
def bronze(spark: Any, broker_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bronze:
    """With 20 and 10 messages in two partitions, compared in slices of which one ends inside of the first."""
    monkeypatch.setattr(verifying, "SLICE_OFFSETS", 16)
    made = Bronze(spark, broker_settings, tmp_path.name)
    made.world.create("t", 2)
    made.send(20)
    made.send(10, partition=1)
    made.run()
    return made


@pytest.mark.soak
def test_a_row_that_is_doubled_deleted_or_changed_by_hand_is_found_and_named(bronze: Bronze) -> None:
    assert bronze.verify() == (True, ["exact: 30 messages of 2 topic-partitions, as Kafka holds them"])
    spark, lake = bronze.spark, bronze.lake
    lake.set_property(spark, MESSAGES, "delta.appendOnly", "false")
    row = lake.reader(spark).read_arrow_table(MESSAGES, ("partition", eq, 0), ("offset", eq, 15))
    lake.storage.append_rows(spark, MESSAGES, row, Txn("by-hand", 0))
    bronze.differs(1, 15, "is in bronze 2 times")
    lake.open_delta_table(spark, MESSAGES).delete("partition = 0 AND offset = 13")
    bronze.differs(2, 13, "is in Kafka and not in bronze")
    emptied = "transform(headers, h -> struct(h.key AS key, coalesce(h.value, X'') AS value))"
    lake.open_delta_table(spark, MESSAGES).update("partition = 0 AND offset = 11", {"headers": emptied})
    bronze.differs(3, 11, "differs from Kafka's in headers")
    lake.open_delta_table(spark, MESSAGES).update("partition = 0 AND offset = 0", EVERY_FIELD)
    bronze.differs(4, 0, f"differs from Kafka's in {', '.join(EVERY_FIELD)}")


def test_what_kafka_holds_no_longer_and_what_bronze_has_not_read_is_reported(bronze: Bronze) -> None:
    bronze.world.retain("t", 18)
    bronze.send(3, partition=1)
    exact = "exact: {} messages of {} topic-partitions, as Kafka holds them"
    removed = "not compared: {} messages in bronze that Kafka no longer holds"
    unread = "not compared: 3 offsets in Kafka that bronze has not read"
    assert bronze.verify() == (True, [exact.format(12, 2), removed.format(18), unread])

    bronze.world.delete("t")
    bronze.world.create("t", 1)
    bronze.send(4)
    nothing = "nothing to compare: Kafka no longer holds any message that bronze has"
    anew = f"  of topics that were recreated, and not read since: {bronze.topic}"
    assert bronze.verify() == (True, [nothing, removed.format(30), anew])
    bronze.run()  # its offsets in bronze lie behind the former topic's
    assert bronze.verify() == (True, [exact.format(4, 1), removed.format(30)])


def test_messages_that_a_forgotten_session_shared_with_others_are_not_compared(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    bronze = Bronze(spark, broker_settings, tmp_path.name)
    bronze.world.create("t", 2)
    (feed,) = capture_of_split("objects").feeds
    feeds = (feed.model_copy(update={"topics": rf"{tmp_path.name}\..+"}),)
    settings = bronze.settings.model_copy(update={"capture": capture_of_split("objects", feeds=feeds)})
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    messages = split_messages("objects", random.Random(3), 40)
    for one in messages:
        producer.produce(bronze.topic, one.value, one.key, one.partition, timestamp=one.timestamp)
    assert producer.flush(30) == 0
    for layer in (Layer.BRONZE, Layer.SILVER):
        bronze.world.run(settings, layer)
    with claim_layers(spark, settings, Layer.ALL, "forgets", "retention", "forget"):
        receipt = SessionForgetter(spark, settings).forget_session("secret")
    exact = f"exact: {len(messages) - receipt.messages} messages of 2 topic-partitions, as Kafka holds them"
    erased = f"not compared: {receipt.messages} messages with sessions that were forgotten"
    assert 10 < receipt.messages < 35
    assert bronze.verify() == (True, [exact, erased])
