"""Rules through real Spark and Delta: whatever the batches and deaths, the log bears what all of silver does."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.commit import replace_rows
from sessionlake.delta.schemas.names import RULE_EVENTS, RULE_MATCHES, RULE_RESULTS, RULE_STATUS, RULE_TIMES, RULES
from sessionlake.errors import MachineSetupError
from sessionlake.gold import job
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.protocol.types import Row
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Change, Dying, Feed, change
from support.lakes import limit, rows_of
from support.waiting import eventually

MINUTE = 60 * SECOND
TEXTS = {
    "sums": "{by: [session_id], when: sum(price) over 3 min < 4.5 and every qty over 2 min > 0}",
    "long": "{by: [row_id], when: not sum(price) over 130 min <= 9.75}",
    "in_out": "{by: [session_id], when: status = 'in' then status = 'out' within 7 min}",
    "stuck": "when: status != 'out' and not price < 0 not followed by status = 'out' or deleted within 6 min",
}

SINCE = "{since: 1970-01-01T00:10:00Z, "


@pytest.fixture
def feed(spark, location) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings(shards=4)))


def write_rules(feed: Feed, texts: dict[str, str]) -> None:
    """What SQL would leave in the table."""
    feed.lake.create_or_update_tables(feed.spark, [RULES])
    rows = [{"name": name, "text": text, "enabled": True, "updated_at": None} for name, text in texts.items()]
    replace_rows(
        feed.spark, feed.lake, RULES, pa.Table.from_pylist(rows, feed.lake.reader(feed.spark).read_table_schema(RULES))
    )


def require_exact(feed: Feed) -> int:
    """How many alerts there are, once they are what SQL makes of silver."""
    found = verify_gold(feed.spark, feed.settings, [])[-1]
    assert (found.table, found.first_difference) == (RULE_EVENTS, None)
    return found.expected_rows


def stream(seed: int, count: int) -> list[Change]:
    rng = random.Random(seed)
    changes = []
    for i in range(count):
        ts = rng.choice([i * 20, i * 20, i * 20 - 600, rng.randrange(-300, 3) * 60]) * SECOND
        values: dict[str, Any] = {"price": rng.choice([0.1, 0.2, 2.5, 4.0, -1.5]), "qty": rng.randint(0, 9)}
        values = {name: value for name, value in values.items() if rng.random() < 0.6}
        if rng.random() < 0.5:
            values["status"] = rng.choice(["in", "out"])
        changes.append(change(rng.choice("st"), rng.choice("rq"), i, ts, **values))
    return changes


@pytest.mark.soak
def test_random_changes_in_random_batches_bear_what_sql_makes_of_them(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    """Late by minutes and hours, or of no year; a rule is bad, two change, one of them to look further back for events;
    one batch is too large for the driver, and a table that rules read is made anew beside one.
    """
    changes = stream(1, 100)
    first = TEXTS | {"bad": "when: max(nothing) over 2 min > 3", "soon": f"{SINCE}{TEXTS['in_out'][1:]}"}
    write_rules(feed, first | {"long": "when: sum(price) over 9 h > 1", "in_out": first["soon"]})
    feed.write(changes[:40]).run()
    write_rules(feed, first)
    no_time = [change("s", "r", 300 + i, 10**17, **one) for i, one in enumerate(({"price": 9.0}, {"status": "in"}))]
    feed.write([*changes[40:70], *no_time]).run()
    limit(monkeypatch, inline_bytes=0)
    feed.write(changes[70:]).run()
    assert require_exact(feed) > 50
    status = {row["rule"]: (row["error"], row["taken_by"]) for row in rows_of(feed.spark, feed.lake, RULE_STATUS)}
    assert status.pop("bad") == ("line 1, column 11: nothing is not a number column; available: price, qty", 0)
    assert status == {name: (None, int(name in {"long", "in_out"})) for name in (*TEXTS, "soon")}
    causes = {(row["event"], row["cause"]) for row in rows_of(feed.spark, feed.lake, RULE_EVENTS)}
    assert {("raised", "late data"), ("retracted", "late data"), ("retracted", "new or changed rule")} <= causes
    feed.write([change("s", "r", 200, 99 * MINUTE, price=4.0, status="in")])
    job.rebuild_tables(feed.spark, feed.settings, [METRICS_1M])
    assert verify_gold(feed.spark, feed.settings, []) == []  # until gold takes the rules once more
    feed.write([change("s", "r", 201, 120 * MINUTE, price=4.0)]).run()
    assert require_exact(feed) > 50


FIRST = [f"after:{RULE_STATUS}", *(f"{when}:{table}" for table in (RULE_MATCHES, RULE_EVENTS, RULE_TIMES)
                                  for when in ("before", "after"))]  # fmt: skip
SECOND_BATCH = [f"after:{RULE_STATUS}", f"before:{RULE_STATUS}", f"before:{RULE_EVENTS}"]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_batches_that_die_at_any_commit_of_rules_log_nothing_twice(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, step: int
):
    """While they are dead, rules change: who comes back takes what it had taken, and the change once that is done."""
    changes, kept = stream(2, 90), {"high": "when: max(price) over 1 min > 3", "in_out": TEXTS["in_out"]}
    for start, places, first, later in (
        (0, FIRST, {**kept, "gone": "when: min(price) over 1 min > 3"}, kept),
        (50, SECOND_BATCH, *(kept | {"high": f"when: max(price) over {minutes} min > 3"} for minutes in (2, 3))),
    ):
        write_rules(feed, first)
        feed.write(changes[start : start + 50])
        for place in places[::step]:
            with monkeypatch.context() as patch:
                patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", Dying(place, 1))
                with pytest.raises(MachineSetupError, match="power cut"):
                    feed.run()
            write_rules(feed, later)
        feed.run()
    assert require_exact(feed) > 10
    status = {row["rule"]: (row["taken_by"], row["version"]) for row in rows_of(feed.spark, feed.lake, RULE_STATUS)}
    assert {rule: batch for rule, (batch, _) in status.items()} == {"high": 1, "in_out": 0}
    events = rows_of(feed.spark, feed.lake, RULE_EVENTS)
    assert {row["_batch"] for row in events if row["rule_version"] == status["high"][1]} == {1}


@pytest.mark.soak
def test_rules_that_are_to_look_at_all_once_more_do_so_though_the_last_batch_is_done_again(feed: Feed):
    write_rules(feed, {"stuck": "when: status = 'in' not followed by status = 'out' within 5 min"})
    feed.write([change("t", "r", 0, 0, price=1.0)]).run()
    feed.write([change("s", "r", 1, 1 * MINUTE, price=1.0, status="in")]).run()
    job.rebuild_tables(feed.spark, feed.settings, [METRICS_1M])
    feed.lose_last_commit()
    feed.run()
    feed.write([change("t", "r", 2, 20 * MINUTE, price=2.0)]).run()
    assert require_exact(feed) == 1


def test_a_late_point_retracts_and_the_commands_say_what_there_is_and_would_be(
    feed: Feed, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sessionlake.spark.session.stop_spark", lambda: None)
    feed.write([change("s", "r", 0, 0, price=5.0), change("s", "r", 1, 5 * MINUTE, price=1.0)]).run()
    assert not any(feed.lake.exists(feed.spark, table) for table in RULE_RESULTS)
    file = tmp_path / "rules.yml"
    file.write_text("rules: [{name: high, by: [session_id], when: max(price) over 2 min > 3}]")

    def ask(*words: str) -> list[Row]:
        done = CliRunner().invoke(cli.app, ["rules", *words], env={"SESSIONLAKE_HOME": str(feed.settings.home)})
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    tried = ask("test", str(file), "--format", "json")
    assert [(row["change"], row["event"], row["at"]) for row in tried] == [
        ("gained", "raised", "1970-01-01T00:01:00+00:00"), ("gained", "cleared", "1970-01-01T00:03:00+00:00"),
    ]  # fmt: skip
    ask("apply", str(file))
    feed.write([change("s", "r", 2, 5 * MINUTE + SECOND, price=1.0)]).run()
    feed.write([change("s", "r", 3, 90 * SECOND, price=7.0)]).run()
    rows = sorted(rows_of(feed.spark, feed.lake, RULE_EVENTS), key=lambda row: (row["_batch"], row["window_end"]))
    told = [
        (row["_batch"], row["event"], row["retracts"], row["window_end"].minute, row["late"], row["cause"])
        for row in rows
    ]
    assert told == [
        (1, "raised", None, 1, True, "new or changed rule"),
        (1, "cleared", None, 3, True, "new or changed rule"),
        (2, "retracted", "cleared", 3, True, "late data"),
        (2, "cleared", None, 4, True, "late data"),
    ]
    assert [int(row["late_ts"].timestamp()) for row in rows[2:]] == [90, 90]
    assert dict(rows[0]["values"]) == {"max(price) over 2 min": 5.0}
    assert [row["state"] for row in ask("list", "--format", "json")] == ["evaluated"]
    assert ask("test", str(file), "--format", "json") == []
    assert rows_of(feed.spark, feed.lake, RULE_TIMES) == [{"topic": "capture.a", "ts": 5 * MINUTE + SECOND}]


def test_a_rule_on_a_quiet_lake_is_applied_to_all_that_gold_has_read(feed: Feed):
    """No message comes any more. What is logged is what a batch would have logged, and nothing is logged twice."""
    feed.write(stream(3, 60)).run()
    write_rules(feed, {"high": "when: max(price) over 1 min > 3"})
    feed.run()
    assert require_exact(feed) > 5
    write_rules(feed, TEXTS)
    feed.run()
    count = require_exact(feed)
    status = {row["rule"]: row["taken_by"] for row in rows_of(feed.spark, feed.lake, RULE_STATUS)}
    assert status == dict.fromkeys(TEXTS, 0)
    version = feed.lake.latest_version(feed.spark, RULE_EVENTS)
    feed.run()
    assert feed.lake.latest_version(feed.spark, RULE_EVENTS) == version
    feed.write(stream(4, 60)).run()
    assert require_exact(feed) > count
    write_rules(feed, {})
    feed.run()
    assert rows_of(feed.spark, feed.lake, RULE_STATUS) == rows_of(feed.spark, feed.lake, RULE_TIMES) == []


def test_a_rule_is_applied_while_gold_runs_and_nothing_arrives(feed: Feed):
    feed.write([change("s", "r", 0, 0, price=5.0), change("s", "r", 1, 5 * MINUTE, price=1.0)]).run()
    query = job.start(feed.spark, feed.settings)
    try:
        query.process_all_available()
        write_rules(feed, {"high": "{by: [session_id], when: max(price) over 2 min > 3}"})
        eventually(lambda: rows_of(feed.spark, feed.lake, RULE_TIMES), 60, meanwhile=query.check_query_health)
    finally:
        query.stop()
    assert require_exact(feed) == 2
    assert {row["_batch"] for row in rows_of(feed.spark, feed.lake, RULE_EVENTS)} == {0}


UNTIL_RECORDED = [
    *(f"{when}:{table}" for table in (RULE_MATCHES, RULE_EVENTS) for when in ("before", "after")),
    f"before:{RULE_STATUS}",
]
RECORDED = [[f"after:{RULE_STATUS}"], [f"before:{RULE_TIMES}"], [f"after:{RULE_TIMES}"]]


@pytest.mark.parametrize(
    "places",
    [
        [f"after:{RULE_EVENTS}", f"after:{RULE_STATUS}"],
        *(pytest.param(places, marks=pytest.mark.soak) for places in (UNTIL_RECORDED, *RECORDED)),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("arrives", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_rule_whose_application_died_at_any_commit_is_exact(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, places: list[str], arrives: bool
):
    """Whether nothing arrives afterwards, or the next batch finds what is left."""
    changes = stream(5, 90)
    feed.write(changes[:60]).run()
    write_rules(feed, {"high": "when: max(price) over 1 min > 3", "in_out": TEXTS["in_out"]})
    for place in places:
        with monkeypatch.context() as patch:
            patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", Dying(place, 1))
            with pytest.raises(MachineSetupError, match="power cut"):
                feed.run()
    feed.write(changes[60:] if arrives else []).run()
    assert require_exact(feed) > 10
