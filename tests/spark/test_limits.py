"""Gold whatever the size: each branch on a limit taken, in the driver and on the cluster, comes to one result."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli.rules import load_alert_rules, write_alert_rules
from sessionlake.delta.schemas.names import DISTINCT_VALUES
from sessionlake.gold import job
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.settings.model import GoldSettings, Settings
from sessionlake.streaming.checkpoint import read_last_committed_batch
from sessionlake.streaming.sharded import read_states_after_batch
from spark.test_gold import SECOND, Feed, all_in_files, by_hand, change
from support.lakes import rows_of
from support.limits import force

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


@pytest.mark.soak
def test_eight_thousand_texts_in_one_batch_are_eight_thousand_rows(feed: Feed) -> None:
    """More than the driver is brought along: of a table without buckets, no row is gone."""
    texts = [change("s", "r", i, i * SECOND, status=f"text {i:06} {'x' * 60}") for i in range(8_000)]
    feed.write(texts).run()
    assert len(rows_of(feed.spark, feed.lake, DISTINCT_VALUES)) == 8_000
    exact(feed)


@pytest.mark.soak
def test_rules_and_distinct_texts_leave_nothing_in_the_state(feed: Feed, tmp_path: Path) -> None:
    """Texts without end grow their table alone: each batch brings new ones, and alerts of a rule about them."""
    file = tmp_path / "rules.yml"
    odd = "status != 'text 0' then status != 'text 1' within 5 min"
    file.write_text(f'rules: [{{name: odd, when: "{odd}"}}, {{name: high, when: max(price) over 5 min > 10}}]')
    write_alert_rules(feed.spark, feed.settings, load_alert_rules(feed.settings, file), print, only=False)
    feed.write([change("s", "r", i, i * SECOND, price=float(i)) for i in range(20)]).run()
    before = states(feed)
    for batch in range(8):
        places = range(100 + batch * 500, 600 + batch * 500)
        feed.write([change("s", "r", n, n * SECOND, status=f"text {n}") for n in places]).run()
    assert before
    assert states(feed) == before
    assert len(rows_of(feed.spark, feed.lake, DISTINCT_VALUES)) == 4_000
    exact(feed)


def states(feed: Feed) -> dict[int, bytes]:
    """The state of each of gold's shards after the last batch."""
    checkpoint = feed.settings.checkpoint_path(job.LAYER)
    found = read_states_after_batch(feed.spark, str(checkpoint), read_last_committed_batch(checkpoint) or 0)
    return {row["shard"]: bytes(row["chunk"]) for row in found.collect()}


def exact(feed: Feed) -> None:
    assert {
        one.first_difference for one in verify_gold(feed.spark, feed.settings, list_declared_gold_tables(feed.settings))
    } == {None}


@pytest.mark.soak
def test_random_points_equal_a_recomputation_with_every_limit_at_its_least_and_beside_it(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch as it is, one where nothing fits into the driver, one where as much fits as has 1 of everything."""
    rnd, changes = random.Random(11), []
    for i in range(120):
        ts = (i - rnd.choice([0, 0, 0, 2, 40])) * 20 * SECOND
        values: dict[str, Any] = {"price": rnd.uniform(-9, 9)} if rnd.random() < 0.7 else {"qty": rnd.randint(0, 9)}
        values |= {"status": rnd.choice(["on", "off", "ö"])} if rnd.random() < 0.5 else {}
        changes.append(change(rnd.choice("st"), rnd.choice("rq"), i, ts, i * 20 * SECOND, **values))
    for number, above in enumerate((None, 0, 1, 0, None)):
        with monkeypatch.context() as patch:
            if above is not None:
                force(patch, above)
                all_in_files(patch)
            feed.write(changes[number * 24 : number * 24 + 24]).run()
    assert (feed.averages(), feed.minutes()) == by_hand(changes, 3)
    exact(feed)
