"""The life of topics over a real broker: deleted, made anew, quiet and speaking again; never a silent loss."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from sessionlake.config import OnTopicChange, OnViolation, Settings
from sessionlake.doctor import _contiguous, _topics
from sessionlake.errors import SessionlakeError, TopicChangedError
from sessionlake.lake.tables import Lake
from sessionlake.lake.topics import Topic, TopicState, latest, read_topics
from sessionlake.pipeline import Layer, Pipeline, run_once

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SECONDS = 60


class World:
    """One test's topics, and what a run makes of them."""

    def __init__(self, spark: Any, settings: Settings, prefix: str) -> None:
        capture = settings.capture.model_copy(update={"on_violation": OnViolation.ISOLATE})
        kafka = settings.kafka.model_copy(update={"topic_pattern": rf"{prefix}\..+"})
        self.spark, self.prefix = spark, prefix
        self.settings = settings.model_copy(update={"kafka": kafka, "capture": capture})
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def under(self, rule: OnTopicChange, **kafka: Any) -> Settings:
        changed = self.settings.kafka.model_copy(update={"on_topic_change": rule, **kafka})
        return self.settings.model_copy(update={"kafka": changed})

    def send(self, topic: str, first: int, count: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers})
        for seq in range(first, first + count):
            kind = "update" if seq else "snapshot"
            value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
            key = f"s{partition}".encode()
            producer.produce(self.name(topic), json.dumps(value).encode(), key, partition, timestamp=1000 + seq)
        assert producer.flush(30) == 0

    def create(self, topic: str, partitions: int = 1) -> None:
        self.admin.create_topics([NewTopic(self.name(topic), partitions, 1)])[self.name(topic)].result(30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([self.name(topic)])[self.name(topic)].result(30)
        eventually(lambda: self.name(topic) not in self.admin.list_topics(timeout=10).topics)

    def run(self, settings: Settings, layer: Layer = Layer.BRONZE) -> None:
        assert run_once(self.spark, settings, layer, threading.Event())

    def offsets(self, topic: str) -> list[int]:
        rows = Lake(self.settings).read(self.spark, "bronze.messages").where(f"topic = '{self.name(topic)}'")
        return sorted(row["offset"] for row in rows.select("offset").collect())

    def rows(self, topic: str) -> list[Topic]:
        return [row for row in read_topics(self.spark, Lake(self.settings)) if row.topic == self.name(topic)]

    def state(self, topic: str) -> TopicState:
        return latest(self.rows(topic))[self.name(topic)].state


@pytest.fixture
def world(spark: Any, broker_settings: Settings, tmp_path: Path) -> World:
    return World(spark, broker_settings, tmp_path.name)


def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.1)


def test_a_topic_made_anew_with_more_messages_than_the_old_is_refused_forgotten_or_read_on_behind_it(world):
    for topic in ("a", "b"):
        world.create(topic, 2)
        world.send(topic, 0, 3)
        world.send(topic, 0, 2, partition=1)
    world.run(world.settings)
    for topic in ("a", "b"):
        world.delete(topic)
        world.create(topic)
        world.send(topic, 3, 7)
    for _ in range(2):  # it stops again at the same place until someone decides
        with pytest.raises(TopicChangedError, match=rf"{world.name('a')} was deleted and created anew.*up to offset 2"):
            world.run(world.settings)
    assert (world.state("a"), world.offsets("a")) == (TopicState.RECREATED, [0, 0, 1, 1, 2])

    only_a = {"topic_pattern": rf"{world.prefix}\.a"}
    world.run(world.under(OnTopicChange.RESTART, **only_a), Layer.ALL)
    # The new topic's offsets 0 to 6 lie beyond every offset of the old one, in any partition.
    assert world.offsets("a") == [0, 0, 1, 1, 2, *range(3, 10)]
    old, new = world.rows("a")
    assert (old.state, new.state, new.generation, new.offset_shift) == (TopicState.RECREATED, TopicState.ACTIVE, 1, 3)
    sessions = Lake(world.settings).read(world.spark, "silver.sessions").collect()
    assert {(row["topic"], row["session_id"], row["next_seq"]) for row in sessions} >= {(world.name("a"), "s0", 10)}

    world.run(world.under(OnTopicChange.FORGET))
    world.send("b", 10, 1)
    world.send("a", 10, 1)
    world.run(world.settings)  # decided once, for good
    assert world.offsets("b") == [0, 0, 1, 1, 2]
    assert [(row.state, row.lost) for row in world.rows("b")] == [(TopicState.RECREATED, 0), (TopicState.FORGOTTEN, 7)]
    assert world.offsets("a")[-1] == 10
    assert "5 topic" not in _contiguous(world.spark, Lake(world.settings), allow_gaps=False)
    assert f"lost unread of {world.name('b')}" in _topics(world.spark, Lake(world.settings)).detail


def test_live_a_deleted_topic_is_forgotten_a_partition_is_added_and_a_quiet_topic_speaks_again(world, monkeypatch):
    monkeypatch.setattr("sessionlake.bronze.topics._SLOW_SECONDS", 0.5)
    for topic in ("gone", "stays", "quiet"):
        world.create(topic)
    world.send("quiet", 0, 2)
    world.run(world.settings)
    world.run(world.under(OnTopicChange.FAIL, inactive_after=timedelta(0)))
    assert {world.state(topic) for topic in ("gone", "stays", "quiet")} == {TopicState.INACTIVE}
    world.send("gone", 0, 3)
    world.send("stays", 0, 3)
    with Pipeline(world.spark, world.under(OnTopicChange.FORGET, inactive_after=timedelta(0)), Layer.BRONZE) as live:

        def reached(condition: Callable[[], bool]) -> None:
            def looked() -> bool:
                live.check()
                return condition()

            eventually(looked)

        reached(lambda: world.offsets("stays") == world.offsets("gone") == [0, 1, 2])
        query = live.queries[Layer.BRONZE].query.runId
        world.admin.create_partitions([NewPartitions(world.name("stays"), 2)])[world.name("stays")].result(30)
        world.send("stays", 0, 4, partition=1)
        reached(lambda: world.offsets("stays") == [0, 0, 1, 1, 2, 2, 3])
        assert live.queries[Layer.BRONZE].query.runId == query
        world.delete("gone")
        reached(lambda: world.state("gone") is TopicState.FORGOTTEN)
        world.send("quiet", 2, 2)
        reached(lambda: world.offsets("quiet") == [0, 1, 2, 3])
        world.send("stays", 3, 1)
        reached(lambda: world.offsets("stays") == [0, 0, 1, 1, 2, 2, 3, 3])
    assert world.offsets("gone") == [0, 1, 2]
    (gone,) = world.rows("gone")
    assert (gone.lost, gone.partitions[0].next_offset) == (0, 3)
    _contiguous(world.spark, Lake(world.settings), allow_gaps=False)


def test_live_a_topic_deleted_under_fail_stops_bronze_with_the_topic_and_the_way_out(world):
    world.create("t")
    world.send("t", 0, 2)
    with Pipeline(world.spark, world.settings, Layer.BRONZE) as live:
        eventually(lambda: world.offsets("t") == [0, 1])
        world.delete("t")
        with pytest.raises(SessionlakeError) as raised:
            eventually(lambda: live.check() or False)
    assert isinstance(raised.value, TopicChangedError)
    assert f"topic {world.name('t')} was deleted" in str(raised.value)
    assert "kafka.on_topic_change: forget" in str(raised.value)
    assert world.state("t") is TopicState.DELETED
