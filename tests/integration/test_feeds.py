"""Two feeds in one lake, over a real broker, through all layers: rows are those of the definition of a feed's table."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import KafkaSettings, Settings
from support.feed_lake import (
    assert_rows_are_the_definition,
    books,
    capture_of,
    orders,
    random_messages,
    records_of_broker,
    send,
)

# Long, as `spark/test_feeds` has the same without a broker, and `integration/test_feed_crash` with one and kills.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.soak]


def with_feeds(folder: Path, broker: BrokerStatus, **location: Any) -> Settings:
    """Settings of a lake with two feeds, whose topics begin with the folder's name."""
    feeds = capture_of(books(folder.name), orders(folder.name))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=rf"{folder.name}\..+")
    return Settings(**({"home": folder / "home"} | location), kafka=kafka, capture=feeds)


@pytest.fixture(scope="module")
def filled(broker: BrokerStatus, tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Settings:
    """A lake that has read messages of both feeds in three runs of all layers."""
    settings = with_feeds(tmp_path_factory.mktemp("feeds"), broker)
    rnd, prefix = random.Random(1), settings.home.parent.name
    for first in (0, 60, 120):
        send(settings, random_messages(prefix, rnd, 60, first))
        assert run_once(spark, settings, Layer.ALL, threading.Event())
    return settings


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a command that reads the lake."""
    file = settings.home.parent / "lake.yml"
    kafka = {"bootstrap_servers": settings.kafka.bootstrap_servers, "topic_pattern": settings.kafka.topic_pattern}
    prefix = settings.home.parent.name
    capture = {"on_violation": "isolate", "feeds": [books(prefix), orders(prefix)]}
    file.write_text(yaml.safe_dump({"home": str(settings.home), "kafka": kafka, "capture": capture}), encoding="utf-8")
    return os.environ | {"SESSIONLAKE_CONFIG": str(file)}


def test_rows_are_those_of_the_definition_and_a_rebuild_finds_the_same(filled, spark):
    records = records_of_broker(filled)
    assert_rows_are_the_definition(spark, filled, records)
    assert verify_silver_tables(spark, filled).is_exact
    result = rebuild_silver_tables(spark, filled)
    assert result.comparison is not None
    assert result.comparison.first_difference is None
    assert run_once(spark, filled, Layer.ALL, threading.Event())
    assert_rows_are_the_definition(spark, filled, records, ledger=False)


def test_status_doctor_and_report_agree(filled, ask):
    def called(*words: str) -> list[dict[str, Any]]:
        said = ask(environment(filled), *words, "--format", "json")
        return [json.loads(line) for line in said.splitlines()]

    assert {(layer["behind"], layer["unaccounted"]) for layer in called("status")} == {(0, 0)}
    assert {finding["level"] for finding in called("doctor")} == {"ok"}
