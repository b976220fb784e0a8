"""Kills silver between commits while a feed keeps rows in its state: books and checksums are right afterwards."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from integration.test_crash import DEATHS, SOME
from sessionlake.delta.lake import Lake
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.settings.model import Settings, load_settings
from sessionlake_lab.simulate.books import BOOK_FEED, generate_order_book_messages, make_order_books
from support.crash_worker import LAYERS, run_layer
from support.crashes import SECONDS, Death, die, in_the_same_batch, lose_last_commits
from support.feed_cases import KRAKEN
from support.lakes import rows_of
from support.streams import cut
from unit.test_feed_table import frames, recorded

Frame = tuple[int, bytes]
"""Kafka timestamp (ms) and value of a message."""
PRODUCTS = ("XBT/USD", "ETH/USD")
# Tables that a batch of a clean recording does not write to.
SELDOM = ("integrity_events", "session_cuts", "quarantine", "session_snapshot")
REACHED = [death for death in DEATHS if not death.place.partition("silver.")[2].startswith(SELDOM)]


def configured(folder: Path, broker: Settings, feed: dict[str, Any]) -> Settings:
    """Writes a configuration with a feed that reads one topic, creates the topic, and returns the settings."""
    topic = f"{folder.name}.book"
    content = {
        "home": str(folder / "home"),
        "kafka": {"bootstrap_servers": broker.kafka.bootstrap_servers},
        "capture": {
            "integrity": "strict",
            "on_violation": "isolate",
            "session_timeout": "100 days",
            "feeds": [feed | {"topics": re.escape(topic)}],
        },
        "silver": {"shards": 2},
    }
    (folder / "sessionlake.yml").write_text(yaml.safe_dump(content))
    settings = load_settings(folder / "sessionlake.yml")
    admin = AdminClient(build_librdkafka_client_config(settings))
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(30)
    return settings


def send(settings: Settings, topic: str, messages: Sequence[Frame]) -> None:
    producer = Producer(build_librdkafka_client_config(settings) | {"enable.idempotence": True})
    for time, value in messages:
        producer.produce(topic, value, partition=0, timestamp=time, headers={"connection": b"c"})
    assert producer.flush(60) == 0


def run_and_die(
    spark: Any, broker: Settings, folder: Path, feed: dict[str, Any], messages: list[Frame], deaths: Sequence[Death]
) -> Settings:
    """Sends the messages in parts. After each part, a process is killed; the last part is read to its end."""
    settings, file = configured(folder, broker, feed), folder / "sessionlake.yml"
    fresh = [number for number, _ in enumerate(deaths) if not in_the_same_batch(deaths, number)]
    *batches, last = cut(random.Random(3), messages, len(fresh) + 1)
    arriving = dict(zip(fresh, batches, strict=True))
    for number, death in enumerate(deaths):
        send(settings, f"{folder.name}.book", arriving.get(number, ()))
        if number % 4 == 3:
            lose_last_commits(settings)
        die(file, death, spark, fresh=number in arriving)
    send(settings, f"{folder.name}.book", last)
    for layer in LAYERS:
        run_layer(spark, settings, layer)
    return settings


@pytest.mark.timeout(len(DEATHS) * SECONDS)
@pytest.mark.parametrize("deaths", [SOME, pytest.param(REACHED, marks=pytest.mark.soak)], ids=["some", "all"])
def test_books_with_checksums_are_exact_after_kills(
    spark: Any, broker_settings: Settings, tmp_path: Path, deaths: Sequence[Death]
) -> None:
    books = make_order_books(PRODUCTS, 1)
    sent = generate_order_book_messages(books, start_ms=1_700_000_000_000, duration_s=60, rate=5, seed=1)
    messages = [(one.timestamp, one.value) for one in sent]
    settings = run_and_die(spark, broker_settings, tmp_path, BOOK_FEED, messages, deaths)
    lake = Lake(settings)
    rows = rows_of(spark, lake, "silver.session_rows")
    for book in books:
        mine = {(r["side"], r["book_price"], r["book_qty"]) for r in rows if r["session_id"] == book.product}
        assert mine == book.list_expected_rows()
    sessions = rows_of(spark, lake, "silver.sessions")
    assert [(row["checks"], row["checks_failed"]) for row in sessions] == [(300 - 5, 1)] * 2
    assert len(rows_of(spark, lake, "bronze.messages")) == len(messages)


@recorded
@pytest.mark.soak
@pytest.mark.timeout(len(DEATHS) * SECONDS)
def test_every_checksum_of_a_recording_fits_after_kills(spark: Any, broker_settings: Settings, tmp_path: Path) -> None:
    messages = frames("KRAKEN.ws.50.0")
    settings = run_and_die(spark, broker_settings, tmp_path, yaml.safe_load(KRAKEN), list(messages), REACHED)
    sessions = rows_of(spark, Lake(settings), "silver.sessions")
    assert (sum(row["checks"] for row in sessions), sum(row["checks_failed"] for row in sessions)) == (4269, 0)
