"""Messages that are odd, over a real broker: stored as they are, or named with the command that passes them."""

from __future__ import annotations

from operator import eq
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from integration.test_topics import BRONZE, World
from sessionlake.cli.doctor import _check_offsets_are_contiguous, _check_table_row_counts, _check_unreadable_messages
from sessionlake.cli.verify_bronze import verify_bronze
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, QUARANTINE
from sessionlake.errors import LakeError, UnreadableMessageError, UsageError
from sessionlake.history.missing import explain_absent_message, missing_offsets
from sessionlake.operations.pipeline import Layer
from sessionlake.operations.recover.skip import SkipDecision, skip_offsets
from sessionlake.settings.model import Settings
from support.lakes import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
FAR = 2**62
"""Milliseconds; more than Spark's microseconds hold."""
ANY_TIME = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}


class Odd:
    """A topic that takes any timestamp."""

    def __init__(self, world: World, name: str = "t") -> None:
        self.world, self.settings, self.name = world, world.settings, name
        self.topic, self.lake = world.name(name), Lake(world.settings)
        world.admin.create_topics([NewTopic(self.topic, 2, 1, config=ANY_TIME)])[self.topic].result(30)

    def send(self, timestamp: int, key: bytes | None = b"s", value: bytes | None = b"v", **more: Any) -> None:
        servers = self.settings.kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 12_000_000})
        producer.produce(self.topic, value, key, 0, timestamp=timestamp, **more)
        assert producer.flush(30) == 0

    def run(self, layer: Layer = Layer.BRONZE) -> None:
        self.world.run(self.settings, layer)

    @property
    def offsets(self) -> list[int]:
        rows = self.lake.reader(self.world.spark).read_rows(MESSAGES, ("topic", eq, self.topic), columns=["offset"])
        return sorted(row["offset"] for row in rows)

    def skip(self, first: int, last: int | None = None) -> int:
        decided = SkipDecision(self.topic, 0, first, first if last is None else last, "operator", "broken clock")
        return skip_offsets(self.world.spark, self.settings, decided)

    def verify(self) -> tuple[bool, list[str]]:
        said: list[str] = []
        return verify_bronze(self.world.spark, self.settings, said.append), said


@pytest.fixture
def odd(spark: Any, broker_settings: Settings, tmp_path: Path) -> Odd:
    return Odd(World(spark, broker_settings, tmp_path.name))


@pytest.mark.soak
def test_a_timestamp_that_spark_cannot_hold_is_named_and_passed_by_a_recorded_decision(odd: Odd) -> None:
    for timestamp in (1000, 1001, FAR, 1003, FAR, FAR, 1006):
        odd.send(timestamp)
    command = rf"topic {odd.topic}, partition 0: .*offset 2 .*`sessionlake bronze skip {odd.topic} 0 2 --why"
    for _ in range(2):  # at every start
        with pytest.raises(UnreadableMessageError, match=command):
            odd.run()
    with pytest.raises(LakeError, match=command):
        _check_unreadable_messages(odd.settings)
    with pytest.raises(UsageError, match="is before this one, between offsets 0 and 3"):
        odd.skip(4)
    with pytest.raises(
        UsageError, match=r"Kafka has no message at offset 7; its last one is at 6\. Give an offset up to 6"
    ):
        odd.skip(2, 7)
    assert odd.offsets == []

    assert odd.skip(2) == 2
    assert odd.offsets == [0, 1]
    with pytest.raises(UsageError, match="bronze has already passed offset 2, and reads offset 3 next"):
        odd.skip(2)
    with pytest.raises(UnreadableMessageError, match=r"offset 4 "):
        odd.run()
    assert odd.skip(4, 5) == 1
    odd.run()
    assert _check_unreadable_messages(odd.settings).startswith("bronze has not stopped")
    odd.run(Layer.SILVER)
    assert odd.offsets == [0, 1, 3, 6]

    reader = odd.lake.reader(odd.world.spark)
    _check_offsets_are_contiguous(reader, allow_gaps=False)
    _check_table_row_counts(odd.world.spark, odd.lake)
    assert "operator skipped it (broken clock)" in (explain_absent_message(reader, odd.topic, 0, 5) or "")
    assert {*missing_offsets(reader).values()} == {0}
    assert odd.verify() == (True, ["exact: 4 messages of 1 topic-partitions, as Kafka holds them"])
    noted = rows_of(odd.world.spark, odd.lake, "ops.absent_offsets", ("topic", eq, odd.topic))
    assert sorted((row["first"], row["last"], row["reason"], row["who"], row["why"]) for row in noted) == [
        (2, 2, "skipped", "operator", "broken clock"),
        (4, 5, "skipped", "operator", "broken clock"),
    ]
    ledger = rows_of(odd.world.spark, odd.lake, "ops.ledger", BRONZE)
    taken = [item for row in ledger for item in row["decisions"]]
    assert sorted((item["offset"], item["decision"]) for item in taken) == [(2, "skip"), (4, "skip to 5")]


def test_odd_messages_are_in_bronze_as_kafka_has_them(odd: Odd) -> None:
    year_9999, beyond = 253_402_300_799_999, 9_000_000_000_000_000
    for timestamp in (year_9999, beyond, 1):
        odd.send(timestamp)
    odd.send(1000, key=None, value=None)
    odd.send(1000, key=b"", value=b"")
    odd.send(1000, key=b"\xff\xfe", value=b"\x00\xff")
    odd.send(1000, headers=[("h", None), ("h", b""), ("\u00fc", b"\xff")])
    odd.send(1000, key=b"k" * 10_000_000)
    odd.run(Layer.BRONZE)
    assert odd.offsets == [*range(8)]
    assert odd.verify() == (True, ["exact: 8 messages of 1 topic-partitions, as Kafka holds them"])
    odd.run(Layer.SILVER)
    kept = odd.lake.reader(odd.world.spark).read_rows(QUARANTINE, ("topic", eq, odd.topic), columns=["offset"])
    assert sorted(row["offset"] for row in kept) == [*range(8)]


def test_the_embedded_broker_refuses_a_timestamp_that_spark_cannot_hold(odd: Odd) -> None:
    odd.world.create("plain")
    producer = Producer({"bootstrap.servers": odd.settings.kafka.bootstrap_servers})
    errors: list[Any] = []

    def told(error: Any, _: Any) -> None:
        errors.append(error)

    for timestamp in (FAR, 1000):
        producer.produce(odd.world.name("plain"), b"v", b"k", 0, timestamp=timestamp, on_delivery=told)
        producer.flush(30)
    assert [None if error is None else error.name() for error in errors] == ["INVALID_TIMESTAMP", None]
