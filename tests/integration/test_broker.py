from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionlake.errors import BrokerError, UsageError
from sessionlake.kafka.clients import require_reachable_broker
from sessionlake.local.broker import BrokerStatus, read_broker_status, start_broker, stop_broker
from sessionlake.settings.model import KafkaSettings, Settings


@pytest.fixture
def own(tmp_path: Path, free_port: int):
    """Settings of a broker that the test starts itself; it is stopped whatever happens."""
    settings = Settings(home=tmp_path / "home", kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}"))
    yield settings
    stop_broker(settings)


def _produce(servers: str, topic: str, value: bytes, **message: int) -> None:
    failures = []
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 20_000_000})
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None, **message)
    assert producer.flush(20) == 0
    assert failures == []


def _read(servers: str, topic: str, partition: int) -> list[tuple[tuple[int, int], bytes]]:
    """`((timestamp type, timestamp), value)` of everything in the partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "fetch.message.max.bytes": 20_000_000})
    place = TopicPartition(topic, partition)
    _, end = consumer.get_watermark_offsets(place, timeout=10)
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while len(found) < end:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        found.append((message.timestamp(), message.value()))
    consumer.close()
    return found


def test_a_broker_that_runs_answers_and_up_again_changes_nothing(broker, tmp_path):
    settings = Settings(home=broker.folder.parent, kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    require_reachable_broker(settings)
    assert start_broker(settings) == broker
    assert read_broker_status(settings) == broker
    elsewhere = Settings(home=tmp_path / "other", kafka=settings.kafka)
    assert read_broker_status(elsewhere) == BrokerStatus(
        "foreign", broker.bootstrap_servers, None, tmp_path / "other" / "kafka"
    )


def test_a_topic_is_made_on_first_use_with_two_partitions(broker):
    _produce(broker.bootstrap_servers, "made", b"x")
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert len(topics["made"].partitions) == 2


@pytest.mark.parametrize("timestamp", [1, 1_700_000_000_000])
def test_timestamps_are_the_producer_s_even_far_in_the_past(broker, timestamp):
    topic = f"time-{timestamp}"
    _produce(broker.bootstrap_servers, topic, b"x", partition=0, timestamp=timestamp)
    assert _read(broker.bootstrap_servers, topic, 0) == [((1, timestamp), b"x")]


def test_a_message_beyond_what_the_pipeline_accepts_can_still_be_sent(broker):
    value = os.urandom(11 * 1024 * 1024)
    _produce(broker.bootstrap_servers, "large", value, partition=0)
    assert _read(broker.bootstrap_servers, "large", 0)[0][1] == value


@pytest.mark.soak
def test_down_stops_it_and_up_finds_the_data_again_after_a_kill_too(own):
    assert stop_broker(own) is False
    first = start_broker(own)
    _produce(own.kafka.bootstrap_servers, "kept", b"x", partition=0, timestamp=5)
    assert stop_broker(own) is True
    assert not psutil.pid_exists(first.pid)
    assert read_broker_status(own).state == "stopped"
    assert stop_broker(own) is False
    second = start_broker(own)
    assert second.pid != first.pid
    assert _read(own.kafka.bootstrap_servers, "kept", 0) == [((1, 5), b"x")]
    _produce(own.kafka.bootstrap_servers, "kept", b"y", partition=0, timestamp=6)
    process = psutil.Process(second.pid)
    process.kill()
    process.wait(10)
    assert read_broker_status(own).state == "stopped"  # its pid file is stale
    assert start_broker(own).pid != second.pid
    assert _read(own.kafka.bootstrap_servers, "kept", 0) == [((1, 5), b"x"), ((1, 6), b"y")]


@pytest.mark.soak
def test_a_pid_that_another_process_has_now_is_neither_taken_for_the_broker_nor_stopped(own):
    folder = own.home / "kafka"
    folder.mkdir(parents=True)
    (folder / "broker.pid").write_text(f"{os.getpid()} {own.kafka.bootstrap_servers}\n")
    assert read_broker_status(own).state == "stopped"
    assert stop_broker(own) is False
    assert start_broker(own).pid != os.getpid()


@pytest.mark.parametrize("content", ["", "x y", "999999999 127.0.0.1:1"])
def test_a_pid_file_that_makes_no_sense_is_a_stopped_broker(own, content):
    folder = own.home / "kafka"
    folder.mkdir(parents=True)
    (folder / "broker.pid").write_text(content)
    assert read_broker_status(own).state == "stopped"
    assert stop_broker(own) is False


def test_a_port_in_use_names_the_port_and_the_key(own):
    port = int(own.kafka.bootstrap_servers.split(":")[1])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(BrokerError, match=rf"port {port} on 127.0.0.1.*is in use .* kafka.bootstrap_servers"),
    ):
        start_broker(own)
    assert not (own.home / "kafka" / "data").exists()


def test_the_port_of_another_home_s_broker_is_in_use(broker, tmp_path):
    other = Settings(home=tmp_path / "other", kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    with pytest.raises(BrokerError, match="is in use by another program"):
        start_broker(other)
    assert stop_broker(other) is False


def test_a_port_changed_while_the_broker_runs_is_reported_not_ignored(broker, free_port):
    moved = Settings(home=broker.folder.parent, kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}"))
    with pytest.raises(
        BrokerError, match=rf"already runs at {broker.bootstrap_servers}, but .* `sessionlake broker down`"
    ):
        start_broker(moved)
    assert read_broker_status(moved).bootstrap_servers == broker.bootstrap_servers


@pytest.mark.parametrize("servers", ["kafka.example:9092", "10.1.2.3:9092", "127.0.0.1:1,127.0.0.1:2"])
def test_an_outside_broker_is_not_started(tmp_path, servers):
    settings = Settings(home=tmp_path / "home", kafka=KafkaSettings(bootstrap_servers=servers))
    with pytest.raises(UsageError, match=r"an external broker\. The embedded broker listens only"):
        start_broker(settings)
    assert read_broker_status(settings).state == "outside"


def test_a_broker_that_cannot_start_says_why(own):
    start_broker(own)
    stop_broker(own)
    (own.home / "kafka" / "data" / "meta.properties").write_text("version=1\ncluster.id=other\nnode.id=7\n")
    with pytest.raises(
        BrokerError, match=r"the embedded broker stopped while it was starting \(.*node.?id.*\)\. Look for the cause"
    ):
        start_broker(own)
    assert read_broker_status(own).state == "stopped"


@pytest.mark.soak
def test_two_ups_at_once_start_one_broker(own):
    command = [sys.executable, "-c", _UP]
    environment = os.environ | {
        "SESSIONLAKE_HOME": str(own.home),
        "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": own.kafka.bootstrap_servers,
    }
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    pids = {process.communicate(timeout=120)[0].strip() for process in both}
    assert pids == {str(read_broker_status(own).pid)}


def test_the_broker_outlives_the_command_that_started_it_and_its_ctrl_c(own):
    environment = os.environ | {
        "SESSIONLAKE_HOME": str(own.home),
        "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": own.kafka.bootstrap_servers,
    }
    command = [sys.executable, "-c", _UP + "\nimport time; time.sleep(60)"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as starter:
        pid = int(starter.stdout.readline())
        os.killpg(starter.pid, signal.SIGINT)
        starter.wait(20)
    time.sleep(0.5)
    assert read_broker_status(own).pid == pid
    assert read_broker_status(own).state == "running"


_UP = """
from sessionlake.settings.model import load_settings
from sessionlake.local.broker import start_broker
print(start_broker(load_settings()).pid, flush=True)
"""
