"""Messages whose producer sets no timestamp, over a real broker: they are used, and their sessions expire at last."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.test_silences import HOUR, assert_exact, later, list_silences, statuses, take_in
from integration.test_topics import World
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, MESSAGES
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.settings.model import Settings
from support.lakes import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.soak
def test_messages_without_a_timestamp_are_used_and_their_sessions_expire_when_nothing_more_comes(
    spark: Any, broker_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, broker_settings, tmp_path.name)
    world.create("t", 1)
    producer = Producer({"bootstrap.servers": world.settings.kafka.bootstrap_servers})
    now = datetime.now(UTC)
    for seq in range(3):
        body = {"type": "update" if seq else "snapshot", "seq": seq, "ts": int(now.timestamp() * 1000), "rows": []}
        producer.produce(world.name("t"), json.dumps(body).encode(), b"s", 0, timestamp=NO_KAFKA_TIME)
    assert producer.flush(30) == 0
    take_in(world)
    lake, unsaid = Lake(world.settings), datetime.fromtimestamp(0, UTC) - timedelta(milliseconds=1)
    messages = [row for row in rows_of(spark, lake, MESSAGES) if row["topic"] is not None]
    assert [(row["offset"], row["timestamp"]) for row in messages] == [(offset, unsaid) for offset in range(3)]
    assert rows_of(spark, lake, "silver.quarantine") == []
    assert {row["_applied_at"] for row in rows_of(spark, lake, CHANGES)} == {unsaid}
    assert statuses(world) == {"open": 1}
    assert_exact(world)

    later(monkeypatch, 1.5 * HOUR)
    take_in(world)
    assert statuses(world) == {"expired": 1}
    first, second = list_silences(world)
    assert (first.lasted, second.until - second.lasted) == (0, first.until)
    assert now - HOUR < datetime.fromtimestamp(first.until / 1000, UTC) < now + HOUR  # when bronze read them
    assert_exact(world)
