"""Gold whatever the size: each branch on a limit taken, in the driver and on the cluster, comes to one result."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.config import GoldSettings, Settings
from sessionlake.lake.names import DISTINCT_VALUES
from spark.test_gold import SECOND, Feed, change
from support.lakes import rows_of

MINUTE = 60 * SECOND
PRODUCTS = (
    {"name": "texts", "of": "texts", "keys": ["topic", "column"], "aggregates": {"n": "count", "d": "approx_distinct"}},
    {"name": "by_hour", "keys": ["topic", "metric"], "bucket": "1 hour", "aggregates": {"middle": "p50"}},
    {
        "name": "closed",
        "keys": ["topic", "session_id", "metric"],
        "bucket": "1 minute",
        "lateness": "1 minute",
        "output": "append",
        "aggregates": {"n": "count", "most": "max"},
    },
)
AVERAGES = ({"name": "by_topic", "keys": ["topic", "metric"], "points": 3},)


@pytest.fixture
def feed(spark: Any, location: dict[str, Any]) -> Feed:
    gold = {"rolling_points": 3, "shards": 4, "products": PRODUCTS, "averages": AVERAGES}
    return Feed(spark, Settings(**location, gold=GoldSettings.model_validate(gold)))


def test_eight_thousand_texts_in_one_batch_are_eight_thousand_rows(feed: Feed) -> None:
    """More than the driver is brought along: of a table without buckets, no row is gone."""
    texts = [change("s", "r", i, i * SECOND, status=f"text {i:06} {'x' * 60}") for i in range(8_000)]
    feed.write(texts).run()
    assert len(rows_of(feed.spark, feed.lake, DISTINCT_VALUES)) == 8_000
    feed.require_exact()
