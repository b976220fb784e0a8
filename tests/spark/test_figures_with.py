"""`figures_with` in SQL says of each message and each figure what `explain` says in Python."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.schemas.names import METRICS_1M
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.history.explain import explain
from sessionlake.operations.rebuild.endings import empty_gold_to_recompute
from sessionlake.protocol.types import Row
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Feed, change
from support.lakes import rows_of

MINUTE, MESSAGES, EPOCH = 60 * SECOND, 28, datetime.fromtimestamp(0, UTC)
OWN = {"of": "texts", "keys": ["column", "value"], "aggregates": {"n": "count"}}
CLOSED = {"name": "closed", "keys": ["topic", "session_id"], "bucket": "1 hour", "lateness": "0 s"}
GOLD: dict[str, Any] = {
    "rolling_points": 3,
    "shards": 4,
    "retention": {"metrics_1m": "3 hours"},
    "averages": [{"name": "by_metric", "keys": ["topic", "metric"], "points": 4, "least_points": 3}],
    "products": [
        {"name": "seen", **OWN},
        {"name": "soon", "keys": ["topic"], "bucket": "1 hour", "lateness": "0 s", "aggregates": {"n": "count"}},
        CLOSED | {"aggregates": {"n": "count"}, "output": "append"},
    ],
    "references": [{"name": "sites", "keys": {"row": "string"}, "columns": {"place": "string"}}],
    "enriched": [{"name": "placed", "join": [{"reference": "sites", "keys": {"row": "row_id"}}]}],
}


@pytest.fixture
def feed(spark: Any, location: dict[str, Any]) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings.model_validate(GOLD)))


EVERY = "SELECT m.id AS o, f.* FROM range({}) AS m, LATERAL figures_with('capture.a', 0, m.id) AS f"


class Asked:
    """What SQL says of messages: of each table and row, by its keys, how many values of which offset are in it."""

    def __init__(self, feed: Feed, offsets: int) -> None:
        names, rows = fetch_query_result(feed.spark, feed.settings, EVERY.format(offsets))
        self.found: dict[tuple[str, tuple[Any, ...]], dict[int, int]] = {}
        keys = {one.table_name: one.row_keys for one in list_declared_gold_tables(feed.settings)}
        for row in (dict(zip(names, row, strict=True)) for row in rows):
            own = tuple(row[name] for name in keys[row["table"]])
            told = self.found.setdefault((row["table"], own), {})
            assert row["o"] not in told
            told[row["o"]] = row["events"]


def where(row: Row, keys: Iterable[str]) -> str:
    """The condition that the row alone meets."""
    values = {name: f"timestamp'{row[name]:%Y-%m-%d %H:%M:%S}Z'" if name == START else repr(row[name]) for name in keys}
    return " AND ".join(f"`{name}` = {value}" for name, value in values.items())


@pytest.mark.soak
def test_sql_says_of_every_message_what_python_says_of_any_figure(feed: Feed) -> None:
    rng = random.Random(5)
    for begin in range(0, MESSAGES, MESSAGES // 2):
        changes = []
        for i in range(begin, begin + MESSAGES // 2):
            ts = i * 20 * MINUTE - rng.choice([0, 0, 3, 90]) * MINUTE
            values: dict[str, Any] = {
                "price": rng.choice([1.0, 2.0, float("nan")]),
                "qty": 1,
                "status": rng.choice("ab"),
            }
            chosen = {name: values[name] for name in rng.sample(sorted(values), rng.randint(1, 2))}
            changes.append(change(rng.choice("st"), rng.choice("rq"), i, ts, i * 20 * MINUTE, **chosen))
        feed.write(changes).run()
    feed.write([change("s", "r", MESSAGES, 0, MESSAGES * 20 * MINUTE, price=1.0)])  # which gold has not taken in
    found = Asked(feed, MESSAGES + 1).found
    for table in list_declared_gold_tables(feed.settings):
        rows = rows_of(feed.spark, feed.lake, table.table_name)
        keys = [tuple(row[name] for name in table.row_keys) for row in rows]
        assert {key for name, key in found if name == table.table_name} == {*keys}
        for key, row in rng.sample([*zip(keys, rows, strict=True)], min(len(rows), 3)):
            told = found[table.table_name, key]
            inside, outside = rng.choice([*told]), rng.choice([o for o in range(MESSAGES + 1) if o not in told])
            for offset in (inside, outside):
                ([one], _) = explain(
                    feed.spark, feed.settings, table.table_name, where(row, table.row_keys), message=(0, offset)
                )
                assert (one.events, one.holds) == (sum(told.values()), offset == inside)
                assert sum(part.messages for part in one.offsets) == len(told)
    left = rows_of(feed.spark, feed.lake, METRICS_1M)
    assert left
    assert min(row[START] for row in left) > EPOCH + timedelta(hours=1), "nothing is gone"

    empty_gold_to_recompute(feed.spark, feed.settings, feed.lake, "test", 0, datetime.now(UTC))
    assert Asked(feed, MESSAGES + 1).found == {}
    feed.run()
    assert Asked(feed, MESSAGES).found.keys() >= {key for key in found if key[0] != METRICS_1M}
    [one, *_], _ = explain(feed.spark, feed.settings, "gold.seen", "value = 'a'", at_most=1)
    assert len(one.batches) == 1  # not those from before
