"""A table of gold that the configuration leaves out for a while and then names again has all that gold has read."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.config import GoldSettings, Settings
from sessionlake.gold import job, recover
from sessionlake.gold.declared import products_of
from sessionlake.gold_settings import AverageSettings, ProductSettings
from spark.test_gold import SECOND, Change, Feed, change

OWN = ProductSettings.model_validate({"name": "own", "keys": ("topic",), "aggregates": {"n": "count"}})
BY_METRIC = AverageSettings.model_validate({"name": "by_metric", "keys": ("topic", "metric"), "points": 2})
TABLES = ("gold.own", "gold.by_metric")


@pytest.fixture
def feed(spark: Any, location: dict[str, Any]) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings(rolling_points=3, shards=4)))


def points(begin: int, end: int) -> list[Change]:
    return [change("s", "r", i, i * 10 * SECOND, price=float(i)) for i in range(begin, end)]


def named(feed: Feed) -> Feed:
    """With the tables in the configuration."""
    return configured(feed, products=(OWN,), averages=(BY_METRIC,))


def left_out(feed: Feed) -> Feed:
    """With the tables taken out of it."""
    return configured(feed, products=(), averages=())


def configured(feed: Feed, **update: Any) -> Feed:
    feed.settings = feed.settings.model_copy(update={"gold": feed.settings.gold.model_copy(update=update)})
    return feed


def test_tables_that_missed_batches_are_made_anew_though_another_is_rebuilt_first(feed: Feed) -> None:
    named(feed).write(points(0, 5)).run()
    left_out(feed).write(points(5, 10)).run()
    named(feed).write(points(10, 12))
    job.make_tables(feed.spark, feed.settings, products_of(feed.settings)[:1])
    feed.run().require_exact(*TABLES)


def test_tables_that_were_not_emptied_with_gold_are_made_anew(feed: Feed) -> None:
    named(feed).write(points(0, 5)).run()
    recover.empty(feed.spark, left_out(feed).settings)
    named(feed).run().require_exact(*TABLES)
