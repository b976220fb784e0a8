"""Two feeds in a lake in a catalog: the rows of their definition, and views that a SQL warehouse reads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.pipeline import Layer, run_once
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

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.soak]


def test_rows_are_those_of_the_definition_and_views_are_permanent(
    spark: Any, broker: BrokerStatus, location: dict[str, Any]
) -> None:
    prefix = location["schemas"]["bronze"]
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=rf"{prefix}\..+")
    feeds = capture_of(books(prefix), orders(prefix, rescue=True))
    settings = Settings(**location, kafka=kafka, capture=feeds)
    rnd = random.Random(2)
    for first in (0, 40):
        send(settings, random_messages(prefix, rnd, 40, first))
        assert run_once(spark, settings, Layer.ALL, threading.Event())
    assert_rows_are_the_definition(spark, settings, records_of_broker(settings))
    assert verify_silver_tables(spark, settings).is_exact
    silver = f"spark_catalog.{location['schemas']['silver']}"
    tables = {name: spark.table(f"{silver}.{name}") for name in ("session_rows", "books", "orders", "orders_changes")}
    counts = {name: frame.count() for name, frame in tables.items()}
    assert counts["books"] + counts["orders"] == counts["session_rows"]
    assert min(counts.values()) > 0
    assert tables["orders"].columns[:6] == ["topic", "session_id", "id", "customer", "total", "changed"]
