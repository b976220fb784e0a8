"""Kafka goes away under a running bronze and comes back: nothing ends, is lost, read twice or taken for deleted."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import eq
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.delta.lake import Lake
from sessionlake.errors import KafkaAccessError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.topics import TopicState, read_topics
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.operations.pipeline import Layer, Pipeline
from sessionlake.settings.model import BronzeSettings, CaptureSettings, KafkaSettings, Settings, TopicChangePolicy
from sessionlake.settings.section import OnViolation
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.readback import compute_truth_from_broker
from support.lakes import rows_of
from support.waiting import eventually

# Looks at topics, and what follows from them, are the unit tests' of topic rules; a deletion is test_topics'.
pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(600)]
SECONDS = 120
TOPICS = ("capture.a", "capture.b")
# A query fails within seconds of Kafka's absence, not minutes.
HURRIED = {"default.api.timeout.ms": "3000", "request.timeout.ms": "2000"}


@pytest.fixture
def own(tmp_path: Path, free_port: int) -> Iterator[Settings]:
    """Settings of a broker of the test's own, which runs, and has the topics."""
    settings = Settings(
        home=tmp_path / "home",
        kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}"),
        capture=CaptureSettings(on_violation=OnViolation.ISOLATE),
        bronze=BronzeSettings(topic_refresh="500ms"),
    )
    try:
        start_broker(settings)
        admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in TOPICS]).values():
            made.result(30)
        yield settings
    finally:
        stop_broker(settings)


@contextmanager
def sending(settings: Settings) -> Iterator[set[tuple[str, int, int]]]:
    """Sends messages all along; gives topic, partition and offset of those that Kafka has acknowledged."""
    acknowledged: set[tuple[str, int, int]] = set()
    failed: list[object] = []
    stop = threading.Event()

    def delivered(error: object, message: Any) -> None:
        if error:
            failed.append(error)
        else:
            acknowledged.add((message.topic(), message.partition(), message.offset()))

    def send() -> None:
        kafka = {"bootstrap.servers": settings.kafka.bootstrap_servers, "enable.idempotence": True}
        producer = Producer(kafka | {"message.timeout.ms": 300_000, "log_level": 0})
        seq = 0
        while not stop.wait(0.02):
            for topic in TOPICS:
                for partition in range(2):
                    kind = "update" if seq else "snapshot"
                    value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
                    key = f"s{partition}".encode()
                    producer.produce(topic, json.dumps(value).encode(), key, partition, on_delivery=delivered)
            seq += 1
            producer.poll(0)
        assert producer.flush(SECONDS) == 0

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()
    assert failed == []


def kill(settings: Settings) -> None:
    process = psutil.Process(start_broker(settings).pid)  # it runs already
    process.kill()
    process.wait(10)


def captured(spark: Any, settings: Settings) -> list[tuple[str, int, int]]:
    rows = rows_of(spark, Lake(settings), "bronze.messages")
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


def reached(pipeline: Pipeline, condition: Callable[[], bool]) -> None:
    """Looks after the pipeline until a condition holds: it would raise what had ended a layer."""
    eventually(condition, SECONDS, meanwhile=pipeline.raise_error_of_failed_layer)


def assert_every_message_once(spark: Any, settings: Settings, acknowledged: set[tuple[str, int, int]]) -> None:
    found = captured(spark, settings)
    assert len(found) == len(set(found))
    assert set(found) == acknowledged
    states = [(row.topic, row.generation, row.state) for row in read_topics(spark, Lake(settings))]
    assert sorted(states) == [(topic, 0, TopicState.ACTIVE) for topic in TOPICS]


def test_a_broker_that_is_killed_is_waited_for_until_it_is_back(own, spark):
    hurried = own.model_copy(update={"kafka": own.kafka.model_copy(update={"options": HURRIED})})
    told: list[str] = []
    with Pipeline(spark, hurried, Layer.BRONZE, on_wait=told.append) as live:
        with sending(own) as acknowledged:
            reached(live, lambda: len(captured(spark, own)) > 0)
            kill(own)
            reached(live, lambda: not live.queries[Layer.BRONZE].is_active)
            reached(live, lambda: bool(told) and told[-1].startswith("bronze waits for Kafka: "))
            start_broker(own)
            before = len(captured(spark, own))
            reached(live, lambda: len(captured(spark, own)) > before)
        reached(live, lambda: len(captured(spark, own)) >= len(acknowledged))
        reached(live, lambda: told[-1] == "Kafka answers; bronze resumes")
    assert_every_message_once(spark, own, acknowledged)


def test_a_broker_that_is_killed_five_times_under_all_layers_hurts_none(own, spark):
    with Pipeline(spark, own, Layer.ALL) as live:
        with sending(own) as acknowledged:
            for away in (0, 1, 2, 5, 30):
                before = len(captured(spark, own))
                reached(live, lambda n=before: len(captured(spark, own)) > n)
                kill(own)
                back = time.monotonic() + away
                reached(live, lambda at=back: time.monotonic() >= at)
                start_broker(own)
        reached(live, lambda: len(captured(spark, own)) >= len(acknowledged))
        live.wait_until_all_available_processed()
    assert live.failed == {}
    assert_every_message_once(spark, own, acknowledged)
    assert verify_session_rows(spark, Lake(own), compute_truth_from_broker(own)).differences == {}


def test_a_topic_that_is_not_listed_for_a_moment_is_not_a_deleted_one_and_a_deleted_one_is_forgotten(
    own, spark, monkeypatch
):
    """As by a broker that has just started, and does not know of all topics yet."""
    real, hidden_until = KafkaAdmin.read_topic_ids, time.monotonic()

    def topic_ids(admin: KafkaAdmin) -> dict[str, str | None]:
        hidden = {TOPICS[0]} if time.monotonic() < hidden_until else set()
        return {name: topic_id for name, topic_id in real(admin).items() if name not in hidden}

    monkeypatch.setattr(KafkaAdmin, "read_topic_ids", topic_ids)
    forgets = own.model_copy(
        update={"kafka": own.kafka.model_copy(update={"on_topic_change": TopicChangePolicy.FORGET})}
    )
    with Pipeline(spark, forgets, Layer.BRONZE) as live, sending(own):
        reached(live, lambda: len(captured(spark, own)) > 0)
        hidden_until = time.monotonic() + 5
        reached(live, lambda: time.monotonic() > hidden_until)
        offset = max(offset for *_, offset in captured(spark, own))
        reached(live, lambda: (TOPICS[0], 0, offset + 1) in captured(spark, own))
        assert [row.state for row in read_topics(spark, Lake(own))] == [TopicState.ACTIVE] * 2
        hidden_until = float("inf")
        reached(
            live,
            lambda: any(row.state is TopicState.FORGOTTEN for row in read_topics(spark, Lake(own))),
        )
    rows = rows_of(spark, Lake(own), "ops.topics", ("topic", eq, TOPICS[1]))
    assert [row["state"] for row in rows] == ["active"]


def test_a_kafka_that_refuses_this_client_is_reported_apart_from_one_that_is_away(spark, free_port, tmp_path):
    """What is no TLS answers a TLS client: to Kafka's clients that is a failed authentication."""
    with socket.create_server(("127.0.0.1", free_port)) as server:

        def answers() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"this is no TLS\r\n" * 10)
                    connection.recv(1024)

        threading.Thread(target=answers, daemon=True).start()
        kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}", options={"security.protocol": "SSL"})
        admin = KafkaAdmin(spark, Settings(home=tmp_path / "home", kafka=kafka))
        with pytest.raises(KafkaAccessError, match="refuses this client"):
            admin.read_topic_ids()
        admin.close()
        server.shutdown(socket.SHUT_RDWR)
