"""`feed send` sends a file to librdkafka's own broker, which runs in this process without Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.errors import BrokerError
from sessionlake.kafka.last_messages import read_last_messages
from sessionlake.kafka.send_messages import send_messages
from sessionlake.settings.model import Settings

LINES = b"""{"topic": "md.a", "key": "k", "value": {"a": 1.50}, "headers": {"h": "x"}, "timestamp": 5000}
{"topic": "md.a", "key": "k", "value": null, "timestamp": 6000}
wss://ws.example.com <- 7.5: {}
1618678132.5: [1, 2]
"""


@pytest.fixture
def own() -> Iterator[Settings]:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    [broker] = producer.list_topics(timeout=5).brokers.values()
    yield Settings.model_validate({"kafka": {"bootstrap_servers": f"{broker.host}:{broker.port}"}})
    producer.flush(5)


def test_a_file_is_sent_as_it_is_and_in_order(own, tmp_path: Path, monkeypatch):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    monkeypatch.setenv("SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS", own.kafka.bootstrap_servers)
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(cli.app, ["feed", "send", "a.jsonl"])
    assert (refused.exit_code, "line 4 of the messages names no topic" in refused.stderr) == (2, True)
    result = CliRunner().invoke(cli.app, ["feed", "send", "a.jsonl", "--topic", "md.b"])
    assert (result.exit_code, result.stderr) == (0, "messages sent: 3\n")
    named = [(one.key, one.value, one.headers, one.timestamp) for one in read_last_messages(own, "md.a", 2)]
    assert named == [(b"k", b'{"a": 1.50}', {"h": b"x"}, 5000), (b"k", None, {}, 6000)]
    assert [(one.value, one.timestamp) for one in read_last_messages(own, "md.b", 9)] == [(b"[1, 2]", 1618678132500)]


def test_a_broker_that_is_not_there_is_named():
    away = Settings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:9"}})
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:9"):
        send_messages(away, [])
