"""Many large messages in few compressed bytes, over a real broker: they pass in the default heap, time and again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from operator import eq
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from integration.test_topics import World
from sessionlake.delta.lake import Lake
from sessionlake.operations.pipeline import Layer
from sessionlake.settings.model import Settings
from support.lakes import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(580)]
MESSAGES = 300
BYTES = 10_000_000


def send(settings: Settings, topic: str, values: list[bytes]) -> None:
    """Compressed so that a hundred of them fit into one record batch."""
    config = {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "compression.type": "zstd",
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "linger.ms": 50,
    }
    producer = Producer(config)
    errors: list[Any] = []
    for value in values:
        producer.produce(topic, value, b"s", 0, timestamp=1000, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(120) == 0
    assert {*errors} == {None}


def message(seq: int) -> bytes:
    head = {"type": "update" if seq else "snapshot", "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
    return json.dumps(head | {"padding": "x" * BYTES}).encode()


@pytest.fixture
def world(spark: Any, broker_settings: Settings, tmp_path: Path) -> World:
    made = World(spark, broker_settings, tmp_path.name)
    made.create("t")
    return made


def test_three_hundred_messages_of_ten_megabytes_pass_also_when_their_batch_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(world.settings, world.name("t"), [message(seq) for seq in range(MESSAGES)])
    world.dies("Ledger.write_entry", world.settings, monkeypatch)
    world.run(world.settings, Layer.ALL)
    assert world.offsets("t") == [*range(MESSAGES)]
    rows = rows_of(world.spark, Lake(world.settings), "silver.session_rows", ("topic", eq, world.name("t")))
    assert [row["qty"] for row in rows] == [MESSAGES - 1]


def test_three_hundred_malformed_messages_of_ten_megabytes_are_in_quarantine(world: World) -> None:
    send(world.settings, world.name("t"), [b"x" * BYTES] * MESSAGES)
    world.run(world.settings, Layer.ALL)
    lake = Lake(world.settings)
    kept = lake.read(world.spark, "silver.quarantine").selectExpr("count(*)", "sum(length(value))").first()
    assert tuple(kept) == (MESSAGES, MESSAGES * BYTES)


def test_a_heap_that_is_full_is_reported_as_such_and_with_the_setting_to_change(broker_settings: Settings) -> None:
    """A consumer that may decompress hundreds of large messages at once, in a small heap."""
    topic = f"capture.{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": broker_settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    send(broker_settings, topic, [b"x" * BYTES] * 100)
    environment = {
        "SESSIONLAKE_HOME": str(broker_settings.home),
        "SESSIONLAKE_DRIVER_MEMORY": "512m",
        "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": broker_settings.kafka.bootstrap_servers,
        "SESSIONLAKE_KAFKA__TOPIC_PATTERN": re.escape(topic),
        "SESSIONLAKE_KAFKA__OPTIONS": json.dumps({"max.poll.records": 500}),
    }
    words = [sys.executable, "-m", "sessionlake", "run", "bronze", "--once"]
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "Spark has used up the memory" in done.stderr
    assert "SESSIONLAKE_DRIVER_MEMORY" in done.stderr
