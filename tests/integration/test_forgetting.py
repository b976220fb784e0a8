"""A session is forgotten while everything runs, and does not come back with its late messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sessionlake.bronze.verify import compare_bronze_with_kafka
from sessionlake.cli.forget import create_erasure_receipt, forget_session
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DISTINCT_VALUES, MESSAGES, METRICS_1M, ROWS, SESSIONS
from sessionlake.errors import SessionlakeError
from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.forgetting.search import search_folder_for_text
from sessionlake.operations.pipeline import Layer, run_until_stopped
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.publish import job as publish
from sessionlake.settings.model import GoldSettings, KafkaSettings, Settings
from sessionlake.streaming.query import LayerQuery
from support.lakes import rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]
SECONDS = 300
FED = (METRICS_1M, DISTINCT_VALUES)  # one has no rows
GONE, OTHER = "chamber-00-0001", "chamber-00-0002"


def until(holds: Callable[[], Any], failed: list[BaseException]) -> None:
    def check() -> None:
        assert not failed

    eventually(holds, SECONDS, meanwhile=check)


def sent(broker: BrokerStatus, topic: str, column: str) -> dict[str, Any]:
    """Of each session, what its one row's last message says in a column; None if it is a tombstone."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})
    parts = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions]
    ends = {part.partition: consumer.get_watermark_offsets(part)[1] for part in parts}
    consumer.assign(parts)
    found = [consumer.poll(10) for _ in range(sum(ends.values()))]
    consumer.close()
    last = {json.loads(message.key())["session_id"]: message.value() for message in found if message is not None}
    return {session: value and json.loads(value)[column] for session, value in last.items()}


def published(spark: Any, settings: Settings, name: str) -> list[LayerQuery]:
    """Publications that have sent what is there, and run."""
    running = [publish.start(spark, settings, publish.Publication(t, f"{t}-{name}")) for t in (ROWS, *FED)]
    for publication in running:
        publication.process_all_available()
    return running


def stopped(running: list[LayerQuery]) -> None:
    for publication in running:
        publication.stop()


def test_layers_that_run_stand_aside_and_go_on_without_the_session(
    spark: Any, broker: BrokerStatus, location: dict[str, Any]
) -> None:
    name = location["home"].parent.name
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=rf"{name}\..+")
    settings = Settings(**location, kafka=kafka, gold=GoldSettings(change_feed=("metrics_1m", "distinct_values")))
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
            run_until_stopped(spark, settings, Layer.ALL, stop, on_wait=said.append)
        except SessionlakeError as error:
            failed.append(error)

    send(0, 1, 2)
    layers = threading.Thread(target=live)
    layers.start()
    try:
        until(lambda: lake.exists(spark, SESSIONS) and stands_at(GONE, 3) and stands_at(OTHER, 3), failed)
        until(lambda: all(lake.exists(spark, table) for table in FED), failed)
        until(lambda: rows_of(spark, lake, METRICS_1M), failed)
        running = published(spark, settings, name)
        found = forget_session(spark, settings, GONE, None, SECONDS)
        receipt = create_erasure_receipt(found)
        assert (receipt["messages"], receipt["search"]["found"]) == (3, [])
        assert receipt["offsets"] == [{"topic": f"{name}.t", "partition": 0, "first": 0, "last": 4, "messages": 3}]
        stopped(running)
        send(3, 4)
        until(lambda: stands_at(OTHER, 5), failed)
        until(lambda: [row["points"] for row in rows_of(spark, lake, METRICS_1M)] == [5], failed)
        stopped(published(spark, settings, name))
    finally:
        stop.set()
        layers.join()
    assert not failed
    assert said == ["pausing: a session is being forgotten", "resuming"]

    erased = [row["offset"] for row in rows_of(spark, lake, MESSAGES) if row["key"] == ERASED_KEY]
    assert sorted(erased) == [0, 2, 4, 6, 8]
    compared = compare_bronze_with_kafka(spark, settings).comparison
    assert (compared.messages, compared.erased, compared.first_difference) == (5, 5, None)
    verified = verify_silver_tables(spark, settings)
    assert verified.is_exact, verified
    for table, column in ((ROWS, "qty"), (METRICS_1M, "last")):
        assert sent(broker, f"{table}-{name}", column) == {GONE: None, OTHER: 4}
    assert [one.place for one in search_folder_for_text(settings.home, GONE, ("kafka",)).found] == []
