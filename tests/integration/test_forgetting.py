"""A session is forgotten while everything runs, and does not come back with its late messages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sessionlake.bronze.verify import verify as verify_bronze
from sessionlake.commands.forget import forgotten, receipt
from sessionlake.config import KafkaSettings, Settings
from sessionlake.errors import SessionlakeError
from sessionlake.forgetting.search import search
from sessionlake.lake.names import MESSAGES, ROWS, SESSIONS
from sessionlake.lake.tables import Lake
from sessionlake.laptop.broker import BrokerStatus
from sessionlake.pipeline import Layer, run_live
from sessionlake.protocol.erased import KEY
from sessionlake.publish import job as publish
from sessionlake.silver.rebuild.verify import verify
from support.lakes import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]
SECONDS = 300
GONE, OTHER = "chamber-00-0001", "chamber-00-0002"


def until(holds: Callable[[], Any], failed: list[BaseException]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert not failed
        assert time.monotonic() < deadline
        time.sleep(0.5)


def last_values(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    parts = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions]
    ends = {part.partition: consumer.get_watermark_offsets(part)[1] for part in parts}
    consumer.assign(parts)
    found = [consumer.poll(10) for _ in range(sum(ends.values()))]
    consumer.close()
    return {message.key(): message.value() for message in found if message is not None}


def test_layers_that_run_stand_aside_and_go_on_without_the_session(
    spark: Any, broker: BrokerStatus, location: dict[str, Any]
) -> None:
    name = location["home"].parent.name
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=rf"{name}\..+")
    settings = Settings(**location, kafka=kafka)
    lake, producer = Lake(settings), Producer({"bootstrap.servers": broker.bootstrap_servers})

    def send(*seqs: int) -> None:
        for seq in seqs:
            for session in (GONE, OTHER):
                kind = "update" if seq else "snapshot"
                value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
                producer.produce(f"{name}.t", json.dumps(value).encode(), session.encode(), 0, timestamp=1000 + seq)
        assert producer.flush(30) == 0

    def stands_at(session: str, seq: int) -> bool:
        found = {row["session_id"]: row["next_seq"] for row in rows_of(spark, lake, SESSIONS)}
        return found.get(session) == seq

    stop, said, failed = threading.Event(), [], []

    def live() -> None:
        try:
            run_live(spark, settings, Layer.ALL, stop, on_wait=said.append)
        except SessionlakeError as error:
            failed.append(error)

    send(0, 1, 2)
    layers = threading.Thread(target=live)
    layers.start()
    try:
        until(lambda: lake.exists(spark, SESSIONS) and stands_at(GONE, 3) and stands_at(OTHER, 3), failed)
        publication = publish.start(spark, settings, publish.Publication(ROWS, f"rows-{name}"))
        publication.drain()
        found = forgotten(spark, settings, GONE, None, SECONDS)
        told = receipt(found)
        assert (told["messages"], told["search"]["found"]) == (3, [])
        assert told["offsets"] == [{"topic": f"{name}.t", "partition": 0, "first": 0, "last": 4, "messages": 3}]
        publication.stop()
        publication = publish.start(spark, settings, publish.Publication(ROWS, f"rows-{name}"))
        send(3, 4)
        until(lambda: stands_at(OTHER, 5), failed)
        publication.drain()
        publication.stop()
    finally:
        stop.set()
        layers.join()
    assert not failed
    assert said == ["standing aside: a session is being forgotten", "going on"]

    erased = [row["offset"] for row in rows_of(spark, lake, MESSAGES) if row["key"] == KEY]
    assert sorted(erased) == [0, 2, 4, 6, 8]
    compared = verify_bronze(spark, settings).compared
    assert (compared.messages, compared.erased, compared.first) == (5, 5, None)
    verified = verify(spark, settings)
    assert verified.exact, verified
    sent = {
        json.loads(key)["session_id"]: value
        for key, value in last_values(broker.bootstrap_servers, f"rows-{name}").items()
    }
    assert sent[GONE] is None
    assert json.loads(sent[OTHER] or b"{}")["qty"] == 4
    assert [one.place for one in search(settings.home, GONE, ("kafka",)).found] == []
