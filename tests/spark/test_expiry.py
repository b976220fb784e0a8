"""Products kept for a time: what is left is what all of silver comes to, row for row; coarser ones miss nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli import gold as command
from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.schemas.names import METRICS_1D, METRICS_1H, METRICS_1M, RULE_EVENTS, RULE_STATUS
from sessionlake.errors import LakeError, MachineSetupError, NotFoundError
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.gold.query import metrics
from sessionlake.gold.tables.expiry import drop_expired_arrow_rows, drop_expired_spark_rows, read_expiry_times
from sessionlake.history.explain import explain
from sessionlake.ledger.retained import CLAIM, read_removal_records
from sessionlake.operations.recover import gold as recover
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Change, Dying, Feed, change
from spark.test_rules import require_exact, write_rules
from support.engines import write_files_with_spark
from support.lakes import limit, rows_of

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
TOPICS = ("capture.a", "capture.b")
OWN = {"keys": ["topic", "metric"], "bucket": "10 minutes", "aggregates": {"n": "count", "total": "sum"}}
GOLD: dict[str, Any] = {
    "shards": 4,
    "retention": {"metrics_1m": "2 hours", "metrics_1h": "5 hours"},
    "products": [{"name": "own", **OWN, "retention": "90 minutes"}, {"name": "kept", **OWN}],
}
LENGTH = {
    METRICS_1M: MINUTE,
    METRICS_1H: HOUR,
    METRICS_1D: 24 * HOUR,
    "gold.own": 10 * MINUTE,
    "gold.kept": 10 * MINUTE,
}
SPAN = {METRICS_1M: 2 * HOUR, METRICS_1H: 5 * HOUR, "gold.own": 90 * MINUTE}


@pytest.fixture
def feed(spark, location) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings.model_validate(GOLD)))


def with_gold(feed: Feed, **changed: Any) -> None:
    gold = GoldSettings.model_validate(GOLD | changed)
    feed.settings = feed.settings.model_copy(update={"gold": gold})


def stream(seed: int, count: int) -> list[Change]:
    """Two topics, of which one is an hour behind; points late by minutes, and by longer than anything is kept."""
    rng, found = random.Random(seed), []
    for i in range(count):
        topic = rng.choice(TOPICS)
        now = i * 4 * MINUTE - HOUR * (topic == TOPICS[1])
        ts = now - rng.choice([0, 0, 1, 20, 100, 130, 400]) * MINUTE - rng.randrange(MINUTE)
        values = {name: float(rng.randint(0, 9)) for name in ("price", "qty") if rng.random() < 0.7}
        made = change(rng.choice("st"), rng.choice("rq"), i, ts, now + 24 * HOUR, **values)
        found.append((topic, *made[1:9], made[9] + 24 * HOUR, *made[10:]))
    return found


def by_hand(changes: Iterable[Change], table: str) -> dict[tuple[Any, ...], tuple[int, float]]:
    """Of each key and bucket's start, how many points there are, and their sum."""
    found: dict[tuple[Any, ...], tuple[int, float]] = {}
    for one in changes:
        for metric, value in (("price", one[3]), ("qty", one[4])):
            if value is not None:
                own = (metric,) if LENGTH[table] == 10 * MINUTE else (one[1], one[2], metric)
                key = (one[0], *own, one[9] // LENGTH[table] * LENGTH[table])
                count, total = found.get(key, (0, 0.0))
                found[key] = count + 1, total + value
    return found


def held(feed: Feed, table: str) -> dict[tuple[Any, ...], tuple[int, float]]:
    own = ("topic", "metric") if LENGTH[table] == 10 * MINUTE else ("topic", "session_id", "row_id", "metric")
    names = ("n", "total") if LENGTH[table] == 10 * MINUTE else ("points", "sum")
    rows = rows_of(feed.spark, feed.lake, table)
    found = {
        (*(row[name] for name in own), int(row["window_start"].timestamp() * 1000)): tuple(row[name] for name in names)
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def floors_of(feed: Feed) -> dict[str, Any]:
    return {table: dict(floors) for table, floors in read_expiry_times(feed.lake.reader(feed.spark), LENGTH).items()}


def assert_left(feed: Feed, changes: Iterable[Change]) -> dict[str, Any]:
    """Each table holds what all changes come to, from where it begins on, and nothing that stream time has made old."""
    changes, floors = list(changes), floors_of(feed)
    times = {topic: max(int(c[15].timestamp() * 1000) for c in changes if c[0] == topic) for topic in TOPICS}
    for table, length in LENGTH.items():
        begins, truth, left = floors.get(table, {}), by_hand(changes, table), held(feed, table)
        assert left == {key: row for key, row in truth.items() if key[-1] >= begins.get(key[0], key[-1])}
        assert table in SPAN or not begins
        for topic, time in times.items() if table in SPAN else ():
            due = (time - SPAN[table]) // length * length
            assert begins.get(topic, due) <= due <= min(key[-1] for key in left if key[0] == topic)
    return floors


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "batches"), [(3, 2), (0, 3), (1, 3), (2, 3)])
def test_random_streams_cut_between_batches_leave_what_a_recomputation_does(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, seed: int, batches: int
):
    rng, changes = random.Random(seed), stream(seed, 260)
    cuts = [0, *sorted(rng.sample(range(40, 260), batches - 1)), 260]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        large = number == batches - 1
        limit(monkeypatch, **({"inline_bytes": 0, "driver_changes": 0} if large else {"rewritten_rows": 0}))
        feed.write(changes[begin:end]).run()
        floors = assert_left(feed, changes[:end])
    assert {table: {*begins} for table, begins in floors.items()} == {table: {*TOPICS} for table in SPAN}
    late = [c for c in changes[cuts[1] :] if c[9] < floors[METRICS_1M][c[0]] - HOUR]
    assert len(late) > 5
    said: list[str] = []
    assert command.verify_gold_tables(feed.spark, feed.settings, said.append)
    assert [line.split(" has a retention: buckets before ")[0] for line in said[-3:]] == sorted(SPAN, key=said_order)
    assert all(line.endswith("are gone, and not compared") for line in said[-3:])


def said_order(table: str) -> int:
    return [METRICS_1M, METRICS_1H, METRICS_1D, "gold.own"].index(table)


@pytest.mark.soak
def test_what_died_while_it_was_removed_is_removed_and_counted_once(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    changes, reader = stream(7, 120), feed.lake.reader(feed.spark)
    for number, point in enumerate(("before:expire:gold.metrics_1m", "after:expire:gold.metrics_1m")):
        feed.write(changes[60 * number : 60 * number + 60])
        with monkeypatch.context() as patch:
            patch.setattr("sessionlake.gold.tables.expiry.inject_fault_if_requested", Dying(point, 1))
            with pytest.raises(MachineSetupError, match="power cut"):
                feed.run()
        assert read_removal_records(reader)[METRICS_1M].pending
        feed.run()
        assert_left(feed, changes[: 60 * number + 60])
    known = read_removal_records(reader)[METRICS_1M]
    assert known.pending == 0
    assert known.removed <= len(by_hand(changes, METRICS_1M)) - len(held(feed, METRICS_1M))
    assert known.removed >= len(by_hand(changes[:60], METRICS_1M)) - len(held(feed, METRICS_1M))


@pytest.mark.soak
def test_nothing_goes_while_another_removes_rows(feed: Feed):
    changes = stream(8, 80)
    with feed.lake.storage.hold_exclusive_claim(feed.spark, CLAIM, "verifies"):
        feed.write(changes[:70]).run()
        assert floors_of(feed) == {}
    feed.write(changes[70:]).run()
    assert assert_left(feed, changes)[METRICS_1M]


@pytest.mark.soak
def test_a_query_answers_with_what_is_left_and_says_from_when_on_that_is(feed: Feed, capsys: Any):
    feed.write(stream(8, 160)).run()
    for sql, told in (
        ("SELECT count(*) AS n FROM gold.metrics_1m", [METRICS_1M]),
        ("SELECT count(*) AS n FROM gold.own JOIN gold.metrics_1d USING (topic)", ["gold.own"]),
        (
            "SELECT * FROM metrics_between(timestamp'1970-01-02 00:00:00', timestamp'1970-01-03 00:00:00')",
            [METRICS_1M, METRICS_1H],
        ),
    ):
        write_files_with_spark(feed.spark, feed.settings, sql, OutputFormat.JSON)
        said = [line.split(" is kept for a time: ")[0] for line in capsys.readouterr().err.splitlines()]
        assert sorted(line for line in said if line.startswith("gold.")) == sorted(told)
    ranges = [(24, 48), (25 + 1 / 60, 48), (30.5, 33), (31, 34), (24, 72), (33.75, 34.1), (34, 34.5)]
    between = (
        "SELECT '{0}-{1}' AS span, topic, whole FROM metrics_between(timestamp_seconds({2}), timestamp_seconds({3}))"
    )
    asked = (between.format(*span, *(round(3600 * edge) for edge in span)) for span in ranges)
    _, rows = fetch_query_result(feed.spark, feed.settings, " UNION ".join(asked))
    found = {(span, topic): whole for span, topic, whole in rows}
    assert len(found) == len(rows)
    for begin, end in ranges:
        for topic in TOPICS:
            told = found.get((f"{begin}-{end}", topic))
            assert told in (None, is_whole(feed, topic, begin, end)), (begin, end, topic)
    assert {*found.values()} == {True, False}


def is_whole(feed: Feed, topic: str, begin: float, end: float) -> bool:
    """Whether Python tells the topic's metrics of a range, in hours, or refuses, since something of it is gone."""
    since, until = (datetime.fromtimestamp(round(3600 * edge), UTC) for edge in (begin, end))
    try:
        metrics(feed.settings, since, until, spark=feed.spark, of={"topic": [topic]})
    except LakeError:
        return False
    return True


@pytest.mark.soak
def test_who_asks_for_what_is_gone_is_reported_and_a_rebuild_goes_by_what_is_kept_now(feed: Feed):
    changes = stream(9, 160)
    feed.write(changes).run()
    begins = max(floors_of(feed)[METRICS_1M].values())
    gone = rf"gold\.metrics_1m has a retention: buckets before {datetime.fromtimestamp(begins // 1000 - 3600, UTC):%F}"
    day, first = datetime(1970, 1, 2, tzinfo=UTC), timedelta(minutes=1)
    with pytest.raises(LakeError, match=gone):
        metrics(feed.settings, day + first, day + timedelta(hours=30), spark=feed.spark)
    assert metrics(feed.settings, day, day + timedelta(days=1), spark=feed.spark).rows.num_rows
    later = datetime.fromtimestamp(begins / 1000, UTC)
    assert metrics(feed.settings, later, later + timedelta(hours=1), spark=feed.spark).rows.num_rows
    with pytest.raises(NotFoundError, match=gone):
        explain(feed.spark, feed.settings, METRICS_1M, "window_start = '1970-01-02 00:01:00'")
    with_gold(feed, retention={"metrics_1m": "4 hours", "metrics_1h": "5 hours"})
    said: list[str] = []
    command.rebuild_gold_tables(feed.spark, feed.settings, METRICS_1M, said.append)
    assert min(floors_of(feed)[METRICS_1M].values()) <= begins - 2 * HOUR
    assert said[-1].startswith("gold.metrics_1m is kept for a time")
    with_gold(feed, retention={})
    command.rebuild_gold_tables(feed.spark, feed.settings, METRICS_1M, said.append)
    assert held(feed, METRICS_1M) == by_hand(changes, METRICS_1M)
    assert METRICS_1M not in floors_of(feed)
    with_gold(feed)
    recover.empty_gold(feed.spark, feed.settings)
    feed.run()
    assert_left(feed, changes)
    feed.require_exact()


@pytest.mark.soak
def test_rules_say_nothing_of_windows_that_are_gone_and_take_nothing_back(feed: Feed):
    changes = stream(10, 200)
    rules = {"some": "when: max(price) over 25 min > 6", "across": "{by: [session_id], when: count(qty) over 1 h > 2}"}
    others = {"long": "when: sum(price) over 2 h > 1", "seq": "when: price > 8 then price < 2 within 9 h"}
    write_rules(feed, rules | others)
    for begin, end in pairwise((0, 90, 150, 200)):
        feed.write(changes[begin:end]).run()
    status = {row["rule"]: row["error"] for row in rows_of(feed.spark, feed.lake, RULE_STATUS)}
    assert status.pop("long") == "the longest window must be shorter than gold.retention (2:00:00)"
    assert status == dict.fromkeys(["across", "seq", "some"])
    assert require_exact(feed) > 5
    floor = floors_of(feed)[METRICS_1M]["capture.a"] / 1000
    logged = [row for row in rows_of(feed.spark, feed.lake, RULE_EVENTS) if row["rule"] == "some"]
    early = [row for row in logged if row["topic"] == "capture.a" and row["window_end"].timestamp() <= floor]
    assert {row["event"] for row in early} >= {"raised", "cleared"}
    write_rules(feed, rules | others | {"some": "when: max(price) over 25 min > 7"})
    feed.write(changes[:0]).run()
    assert require_exact(feed) > 5
    now = [row for row in rows_of(feed.spark, feed.lake, RULE_EVENTS) if row["rule"] == "some"]
    assert [row for row in now if row["topic"] == "capture.a" and row["window_end"].timestamp() <= floor] == early


def test_both_ways_to_pass_over_what_is_gone_are_one(spark: Any, feed: Feed):
    [product] = [one for one in list_declared_products(feed.settings) if one.table_name == "gold.own"]
    rng = random.Random(1)
    moments = [datetime.fromtimestamp(rng.randrange(50) * 600, UTC) for _ in range(40)]
    rows = [{"topic": rng.choice("abc"), "metric": "m", "window_start": at, "n": 1, "total": 1.0} for at in moments]
    table = pa.Table.from_pylist(rows, product.arrow_schema())
    floors = {"a": 9_000_000, "b": 20 * 600_000}
    frame = drop_expired_spark_rows(spark.createDataFrame(table), floors).toArrow()
    assert frame.num_rows == drop_expired_arrow_rows(table, floors).num_rows < 40
    assert {row["topic"] for row in frame.to_pylist()} == {"a", "b", "c"}
