"""Class `once` in real tables: gold of shuffled messages is gold of ordered ones, and SQL says the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pytest

from sessionlake.cli import rules
from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, RULE_EVENTS, SENSOR_AVERAGES
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.rules.rules_file import parse_rules_file
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.history.explain import explain
from sessionlake.protocol.types import Row
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Feed
from support.lakes import limit, rows_of, write_rows

ORDERED, SHUFFLED = "capture.a", "capture.b"
MESSAGES = 240
BATCH = MESSAGES // 2
RULES = """
rules:
  - {name: pair, when: "price = 1 then qty = 2 within 1 min", by: [topic, row_id]}
  - {name: alone, when: "qty = 2 without price = 1 before within 1 min", by: [topic, session_id]}
  - {name: last, when: "last(price) over 1 min > 4"}
"""


@pytest.fixture
def feed(spark: Any, location: dict[str, Any]) -> Feed:
    averages = [{"name": "by_topic", "keys": ["topic", "metric"], "points": 4}]
    gold = GoldSettings.model_validate({"rolling_points": 3, "shards": 4, "averages": averages})
    capture = {"by_topic": [{"pattern": r"capture\..", "integrity": "once"}]}
    return Feed(spark, Settings.model_validate({**location, "gold": gold, "capture": capture}))


def sent(rnd: random.Random) -> list[Row]:
    """In seq order, a dozen messages at each event time."""
    found: list[Row] = []
    for seq in range(MESSAGES):
        values = {name: float(rnd.randint(0, 6)) for name in rnd.sample(["price", "qty"], rnd.randint(1, 2))}
        values |= {"qty": int(values["qty"])} if "qty" in values else {}
        row = {"session_id": rnd.choice("st"), "row_id": rnd.choice("rq"), "_seq": seq, "_ts": seq // 12 * 10 * SECOND}
        found.append(row | values | {"_set": sorted(values), "change": "upsert", "partition": 0, "ordinal": 0})
    return found


def arriving(rows: Sequence[Row], rnd: random.Random, topic: str, within: int) -> list[Row]:
    """In order of arrival, each moved by less than so many places; the first of each session stays first."""
    at = datetime.fromtimestamp(0, UTC)
    moved = sorted(rows, key=lambda row: row["_seq"] + rnd.uniform(0, within))
    first = {row["session_id"]: place for place, row in reversed([*enumerate(moved)])}
    return [
        row
        | {"topic": topic, "_offset": place, "_position": place, "_life": first[row["session_id"]]}
        | {"kafka_timestamp": at, "_applied_at": at}
        for place, row in enumerate(moved)
    ]


def figures(feed: Feed, table: str, topic: str) -> list[tuple[Any, ...]]:
    """Averages by what tells a point apart in whatever order it came."""
    rows = [row for row in rows_of(feed.spark, feed.lake, table) if row["topic"] == topic]
    names = ("row_id", "metric", "_seq", "ts", "value", "average", "points")
    return sorted(tuple(row.get(name) for name in names) for row in rows)


def tables(feed: Feed, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in list_declared_gold_tables(feed.settings):
        if one.table_name in (AVERAGES, SENSOR_AVERAGES, "gold.by_topic"):
            found[one.table_name] = [[str(part) for part in row] for row in figures(feed, one.table_name, topic)]
        else:
            rows = rows_of(feed.spark, feed.lake, one.table_name)
            names = [*one.row_keys[1:], *one.result_columns]
            found[one.table_name] = sorted([str(row[name]) for name in names] for row in rows if row["topic"] == topic)
    logged = [row for row in rows_of(feed.spark, feed.lake, RULE_EVENTS) if row["topic"] == topic]
    net: dict[Any, int] = {}
    for row in logged:
        what = (row["rule"], row["session_id"], row["row_id"], row["window_end"], row["retracts"] or row["event"])
        net[what] = net.get(what, 0) + (-1 if row["event"] == "retracted" else 1)
    found[RULE_EVENTS] = {what: times for what, times in net.items() if times}
    return found


@pytest.mark.soak
def test_gold_of_shuffled_messages_is_that_of_ordered_ones_late_ones_too_and_sql_says_the_same(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rnd = random.Random(9)
    rows = sent(rnd)
    ordered, shuffled = arriving(rows, rnd, ORDERED, 1), arriving(rows, rnd, SHUFFLED, 100)
    written, _ = parse_rules_file(RULES, get_value_columns(feed.settings))
    for begin in range(0, MESSAGES, BATCH):
        limit(monkeypatch, **({"inline_bytes": 0, "driver_bytes": 0} if begin else {}))
        end = begin + BATCH
        both = [row | {"_batch": feed.batch} for row in (*ordered[begin:end], *shuffled[begin:end])]
        write_rows(feed.spark, feed.lake, CHANGES, both)
        feed.batch += 1
        feed.run()
        monkeypatch.undo()
        if not begin:
            rules.write_alert_rules(feed.spark, feed.settings, written, lambda _: None, only=False)
    assert {
        one.first_difference for one in verify_gold(feed.spark, feed.settings, list_declared_gold_tables(feed.settings))
    } == {None}
    mine, theirs = tables(feed, ORDERED), tables(feed, SHUFFLED)
    assert mine == theirs
    assert {rule for rule, *_ in mine[RULE_EVENTS]} == {"pair", "alone", "last"}

    row = max(rows_of(feed.spark, feed.lake, AVERAGES), key=itemgetter("topic", "ts", "_seq"))
    told = {one["_seq"]: one for one in shuffled}
    line = [one for one in told.values() if all(one[name] == row[name] for name in ("session_id", "row_id"))]
    last = sorted((one for one in line if row["metric"] in one), key=itemgetter("_ts", "_seq"))[-3:]
    where = f"topic = '{SHUFFLED}' AND ts = {row['ts']} AND _seq = {row['_seq']} AND metric = '{row['metric']}'"
    [found], _ = explain(feed.spark, feed.settings, AVERAGES, where)
    offsets = sorted(one["_offset"] for one in last)
    assert [(one.first, one.last, one.messages) for one in found.offsets] == [(offsets[0], offsets[-1], 3)]
    query = "SELECT `table`, ts FROM figures_with('capture.b', 0, {})"
    assert (AVERAGES, row["ts"]) in [
        tuple(one) for one in fetch_query_result(feed.spark, feed.settings, query.format(offsets[0]))[1]
    ]
