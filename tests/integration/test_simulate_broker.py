"""The simulator against a real broker: what it meant to write is what is there, in order, at its time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.errors import BrokerError, UsageError
from sessionlake.settings.model import KafkaSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.readback import compute_truth_from_broker, make_truth_rules, read_all_messages
from sessionlake_lab.simulate.run import run_simulation, send_scenario
from sessionlake_lab.simulate.scenario import FaultRates, Scenario
from sessionlake_lab.simulate.sink import produce_messages
from sessionlake_lab.truth import hash_session_tables, read_expected_tables

SMALL = Scenario(
    rows=10, rate=2000, duration_s=2, sessions_per_sensor=4, faults=FaultRates.create_with_equal_rates(0.01)
)


@pytest.fixture
def mine(broker_settings, request):
    """Settings whose pattern sees this test's topics alone; their prefix is `prefix(...)`."""
    return _with(broker_settings, topic_pattern=rf"{request.node.name}\..+")


def _with(settings: Settings, **kafka: str) -> Settings:
    capture = settings.capture.model_copy(update={"on_violation": OnViolation.ISOLATE, "max_message_bytes": 2_000_000})
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=kafka), "capture": capture})


def prefix(settings: Settings) -> str:
    return settings.kafka.topic_pattern.replace(r"\..+", ".")


def scenario(settings: Settings, partitions: int = 2, start_ms: int = SMALL.start_ms) -> Scenario:

    return replace(
        SMALL, prefix=prefix(settings), max_message_bytes=2_000_000, partitions=partitions, start_ms=start_ms
    )


def test_every_message_is_there_in_order_with_its_partition_and_timestamp(mine):
    played = scenario(mine)
    meant = defaultdict(list)
    for message in generate_messages(played, mine.capture.declared_columns):
        meant[message.topic, message.partition].append((message.timestamp, message.key, message.value))
    report = send_scenario(mine, played)
    found = defaultdict(list)
    for message in read_all_messages(mine):
        assert message.offset == len(found[message.topic, message.partition])
        found[message.topic, message.partition].append((message.timestamp, message.key, message.value or b""))
    assert found == meant
    assert report.produced.messages == sum(map(len, meant.values()))
    assert report.produced.offsets == {where: (0, len(said)) for where, said in meant.items()}


def test_a_second_run_continues_the_same_topics_behind_the_first(mine):
    first = send_scenario(mine, scenario(mine)).produced
    second = send_scenario(mine, scenario(mine, start_ms=SMALL.start_ms + 60_000)).produced
    assert first.offsets.keys() & second.offsets.keys()
    for where, (begin, _) in second.offsets.items():
        assert begin == first.offsets.get(where, (0, 0))[1]


def test_the_truth_read_back_accounts_for_every_message(mine, tmp_path):
    report = run_simulation(
        mine, mode="burst", rate=2000, duration=2, rows=10, sessions=4, prefix=prefix(mine), duplicates=0.02,
        malformed=0.02, gaps=0.01, truth=tmp_path / "truth",
    )  # fmt: skip
    tables = compute_truth_from_broker(mine)
    assert sum(count["messages"] for count in tables.counts.values()) == report.produced.messages
    assert len(tables.sessions) == 16
    assert tables.quarantine
    assert hash_session_tables(read_expected_tables(tmp_path / "truth")) == hash_session_tables(tables)


def test_rules_follow_the_settings(mine):
    rules = make_truth_rules(mine)
    assert (rules.integrity, rules.on_violation, rules.max_message_bytes) == ("strict", "isolate", 2_000_000)
    assert rules.columns == {"price": "double", "qty": "bigint", "status": "string"}


def test_live_keeps_to_the_clock_and_its_timestamps_are_not_in_the_future(mine):
    begin = time.time()
    report = run_simulation(mine, rate=200, duration=2, rows=5, sessions=2, prefix=prefix(mine))
    took = time.time() - begin
    assert report.produced.messages == 400
    assert 1.9 < took < 5
    assert all(begin - 1 < message.timestamp / 1000 < begin + took for message in read_all_messages(mine))


def test_the_stop_flag_ends_it_early_and_what_was_handed_over_is_there(mine):
    stop = threading.Event()
    report = run_simulation(
        mine,
        rate=1000,
        duration=600,
        rows=5,
        sessions=2,
        prefix=prefix(mine),
        stop=stop,
        on_progress=lambda _: stop.set(),
    )
    assert report.produced.stopped
    assert report.produced.seconds < 20
    assert report.produced.messages == sum(1 for _ in read_all_messages(mine)) >= 1000


def test_topics_get_the_partitions_asked_for_and_keep_old_timestamps(mine):
    send_scenario(mine, scenario(mine, partitions=3))
    admin = AdminClient({"bootstrap.servers": mine.kafka.bootstrap_servers, "log_level": 2})
    topics = [topic for name, topic in admin.list_topics(timeout=10).topics.items() if name.startswith(prefix(mine))]
    assert len(topics) == 4
    assert {len(topic.partitions) for topic in topics} == {3}


def test_a_topic_with_too_few_partitions_is_refused_with_the_remedy(mine):
    admin = AdminClient({"bootstrap.servers": mine.kafka.bootstrap_servers, "log_level": 2})
    topic = prefix(mine) + "chamber-00"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    with pytest.raises(UsageError, match=r"has 1 partitions, but the simulation uses 2\. Give --partitions 1"):
        send_scenario(mine, scenario(mine))


def test_a_message_that_the_broker_refuses_is_an_error_not_a_loss(mine):
    admin = AdminClient({"bootstrap.servers": mine.kafka.bootstrap_servers, "log_level": 2})
    topic = prefix(mine) + "x"
    admin.create_topics([NewTopic(topic, 2, 1, config={"max.message.bytes": "2000"})])[topic].result(10)
    random = bytes(range(256)) * 4000  # beyond the topic's limit, below the client's
    message = next(generate_messages(SMALL, mine.capture.declared_columns))._replace(topic=topic, value=random)
    with pytest.raises(BrokerError, match="too large"):
        produce_messages(mine, [message])


def test_no_broker_is_one_clear_error_within_seconds(mine, free_port):
    nowhere = mine.model_copy(update={"kafka": KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}")})
    begin = time.monotonic()
    with pytest.raises(BrokerError, match=nowhere.kafka.bootstrap_servers):
        send_scenario(nowhere, Scenario())
    assert time.monotonic() - begin < 10
