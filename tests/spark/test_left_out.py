"""Tables of gold that were left out for a while, or emptied, have what gold has read, and have it once."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Any

import pytest

from sessionlake.cli import gold as commands
from sessionlake.delta.schemas.names import CHANGES, DISTINCT_VALUES, LEDGER, METRICS_1H
from sessionlake.errors import DataLossError, LakeError, MachineSetupError
from sessionlake.gold import job
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.ledger.retained import RetentionRecord, store_removal_record
from sessionlake.operations.recover import gold as recover
from sessionlake.settings.gold import AverageSettings, ProductSettings
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Change, Dying, Feed, change
from support.lakes import find_table_folder

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


@pytest.mark.soak
def test_tables_that_missed_batches_are_made_again_though_another_is_rebuilt_first(feed: Feed) -> None:
    named(feed).write(points(0, 5)).run()
    left_out(feed).write(points(5, 10)).run()
    named(feed).write(points(10, 12))
    job.rebuild_tables(feed.spark, feed.settings, list_declared_products(feed.settings)[:1])
    feed.run().require_exact(*TABLES)


@pytest.mark.soak
def test_tables_that_were_not_emptied_with_gold_are_made_again(feed: Feed) -> None:
    named(feed).write(points(0, 5)).run()
    recover.empty_gold(feed.spark, left_out(feed).settings)
    named(feed).run().require_exact(*TABLES)


@pytest.mark.soak
def test_what_is_only_declared_so_far_is_not_lost(feed: Feed) -> None:
    left_out(feed).write(points(0, 5)).run()
    assert recover.recover_gold(feed.spark, named(feed).settings) == ()
    feed.run().require_exact(*TABLES)
    shutil.rmtree(find_table_folder(feed.lake, "gold.own"))
    assert recover.recover_gold(feed.spark, feed.settings) == ("gold.own is gone",)


@pytest.mark.soak
def test_nothing_is_made_again_that_would_begin_later_unless_that_is_asked_for(feed: Feed) -> None:
    """Retention has removed the first changes, and figures of them stay."""
    said: list[str] = []
    named(feed).write(points(0, 10)).run()
    left_out(feed).run()
    before = datetime.now(UTC)
    gone = RetentionRecord(CHANGES, before, 0, 3)
    store_removal_record(feed.spark, feed.lake, gone)
    shorter = "retention has removed rows of silver.session_changes"
    with pytest.raises(
        LakeError,
        match=rf"{shorter}.* left gold\.by_metric out .* Leave it out, or .*rebuild gold.by_metric --shorten-gold`",
    ):
        named(feed).run()
    commands.rebuild_gold_tables(feed.spark, feed.settings, "gold.by_metric", said.append, shorten=True)
    commands.rebuild_gold_tables(feed.spark, feed.settings, "gold.own", said.append, shorten=True)
    feed.run()
    with pytest.raises(LakeError, match=rf"{shorter}.*--shorten-gold"):
        commands.rebuild_gold_tables(feed.spark, feed.settings, METRICS_1H, said.append)
    with pytest.raises(LakeError, match=rf"{shorter}.*--shorten-gold"):
        recover.empty_gold(feed.spark, feed.settings)
    feed.run()  # nothing was changed
    commands.rebuild_gold_tables(feed.spark, feed.settings, METRICS_1H, said.append, shorten=True)
    assert any(line.startswith(f"{METRICS_1H} is rebuilt: ") for line in said)
    recover.empty_gold(feed.spark, feed.settings, shorten=True)
    feed.run()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("after:gold.aside", {"status": "on"}),
        (f"after:empty:{METRICS_1H}", {"price": 1.0}),
    ],
)
def test_gold_that_died_as_it_was_emptied_twice_is_emptied_before_it_begins(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, place: str, values: dict[str, Any]
) -> None:
    feed.write([change("s", "r", i, i * SECOND, **values) for i in range(5)])
    recover.empty_gold(feed.spark, feed.settings)
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", Dying(f"before:{LEDGER}", 1))
        with pytest.raises(MachineSetupError, match="power cut"):
            feed.run()
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.operations.rebuild.endings.inject_fault_if_requested", Dying(place, 1))
        with pytest.raises(MachineSetupError, match="power cut"):
            recover.empty_gold(feed.spark, feed.settings)
    with pytest.raises(DataLossError, match="of gold is new or was removed, but the layer's tables already hold data"):
        feed.run()
    assert recover.recover_gold(feed.spark, feed.settings)
    feed.run().require_exact(METRICS_1H, DISTINCT_VALUES)
