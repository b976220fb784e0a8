"""Enriched tables through real Spark and Delta: whatever the batches and the reference's corrections, as SQL says."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.commit import replace_rows
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.errors import LakeError, MachineSetupError
from sessionlake.gold import job
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.history.explain import explain
from sessionlake.operations.recover import gold as recover
from sessionlake.protocol.types import Row
from sessionlake.settings.model import GoldSettings, Settings
from spark.test_gold import SECOND, Change, Dying, Feed, change
from support.answers import QueryResult, Rows, answering, rows
from support.lakes import limit, rows_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SITES, PLACED, TAKEN = "reference.sites", "gold.placed", "gold.reference_sites"
GOLD: dict[str, Any] = {
    "shards": 4,
    "references": [
        {"name": "sites", "keys": {"site": "string"}, "columns": {"place": "string", "size": "double"}},
        {"name": "states", "keys": {"row": "string", "status": "string"}, "columns": {"bad": "boolean"}},
    ],
    "enriched": [
        {
            "name": "placed",
            "columns": ["price"],
            "join": [
                {"reference": "sites", "keys": {"site": "session_id"}, "take": {"place": "place"}},
                {"reference": "states", "name": "state", "keys": {"row": "row_id", "status": "status"}},
            ],
        }
    ],
}


@pytest.fixture
def feed(spark, location) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings.model_validate(GOLD)))


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


def write_reference(feed: Feed, table: str, rows: list[Row]) -> None:
    """What SQL would leave in the table."""
    whole = [row | {"valid_from": at(row["valid_from"]), "valid_to": at(row["valid_to"])} for row in rows]
    schema = feed.lake.reader(feed.spark).read_table_schema(table)
    replace_rows(feed.spark, feed.lake, table, pa.Table.from_pylist(whole, schema))


def site(name: str, since: float | None, until: float | None, place: str) -> Row:
    return {"site": name, "valid_from": since, "valid_to": until, "place": place, "size": 1.0}


def history(rng: random.Random, key: Row, **values: list[Any]) -> list[Row]:
    bounds = sorted(rng.sample(range(-50, 300), rng.randint(0, 4)))
    spans = zip(bounds, [*bounds[1:], None], strict=False)
    return [
        key | {"valid_from": since, "valid_to": until} | {name: rng.choice(of) for name, of in values.items()}
        for since, until in spans
        if rng.random() < 0.8
    ]


def stream(rng: random.Random, begin: int, count: int) -> list[Change]:
    changes = []
    for i in range(begin, begin + count):
        ts = rng.choice([i, i, i - 60, rng.randrange(-50, 300), 10**14]) * SECOND
        values = {"price": rng.random(), "status": rng.choice(["in", "out"])}
        changes.append(change(rng.choice("stu"), rng.choice("rq"), i, ts, **values))
    return changes


def require_exact(feed: Feed) -> int:
    found = verify_gold(
        feed.spark, feed.settings, [one for one in list_declared_gold_tables(feed.settings) if one.table_name == PLACED]
    )
    assert {one.table: one.first_difference for one in found} == dict.fromkeys([PLACED, TAKEN, "gold.reference_states"])
    return found[0].expected_rows


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 3), *(pytest.param(seed, 4, marks=pytest.mark.soak) for seed in range(2, 7))]
)
def test_random_changes_and_corrections_come_to_what_sql_makes_of_them(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
):
    """Changes late, or of no year; reference rows that come before, with and long after what they are about."""
    rng, done = random.Random(seed), 0
    for i in range(rounds):
        count = rng.randint(1, 40)
        feed.write(stream(rng, done, count))
        done += count
        if i and rng.random() < 0.8:
            sites = [r for s in "stx" for r in history(rng, {"site": s}, place=["a", "b"], size=[1.0, None])]
            write_reference(feed, SITES, sites)
        if i and rng.random() < 0.8:
            keys = [{"row": row, "status": status} for row in "rq" for status in ("in", "out")]
            write_reference(feed, "reference.states", [r for key in keys for r in history(rng, key, bad=[True, None])])
        if i == rounds - 1:
            limit(monkeypatch, driver_changes=0, driver_bytes=4_000)
        monkeypatch.setattr("sessionlake.gold.references.corrections._SLICE_ROWS", rng.choice([6, 10_000]))
        feed.run()
        assert require_exact(feed) == done


def placed(feed: Feed) -> dict[int, str | None]:
    return {row["offset"]: row["place"] for row in rows_of(feed.spark, feed.lake, PLACED)}


@pytest.mark.soak
def test_a_late_reference_row_corrects_what_it_touches_and_a_faulty_key_rests(feed: Feed):
    feed.write([change("s", "r", i, i * 10 * SECOND, price=1.0) for i in range(4)]).run()
    assert placed(feed) == dict.fromkeys(range(4))
    write_reference(feed, SITES, [site("s", 0, None, "early")])
    feed.run()  # though silver has nothing new
    assert placed(feed) == dict.fromkeys(range(4), "early")
    live = job.start(feed.spark, feed.settings)
    try:
        write_reference(feed, SITES, [site("s", 0, None, "old")])
        live.process_all_available()
        assert placed(feed) == dict.fromkeys(range(4), "old")
    finally:
        live.stop()
    write_reference(feed, SITES, [site("s", 0, 15, "old"), site("s", 15, None, "new"), site("x", 0, 0, "nowhere")])
    feed.write([change("s", "r", 4, 5 * SECOND, price=1.0)]).run()
    assert placed(feed) == {0: "old", 1: "old", 2: "new", 3: "new", 4: "old"}
    write_reference(feed, SITES, [site("s", 0, None, "one"), site("s", 15, None, "two"), site("y", 0, None, "here")])
    feed.write([change("s", "r", 5, 20 * SECOND, price=1.0), change("y", "r", 6, 0, price=1.0)]).run()
    assert placed(feed) == {0: "old", 1: "old", 2: "new", 3: "new", 4: "old", 5: "new", 6: "here"}
    (told,), more = explain(feed.spark, feed.settings, PLACED, "offset = 5", message=(0, 5))
    assert (told.figures["place"], told.figures["sites_valid_from"], told.holds, more) == ("new", at(15), True, False)
    require_exact(feed)
    sites = GOLD["references"][0]
    wider = sites | {"columns": sites["columns"] | {"owner": "string"}}
    gold = GoldSettings.model_validate(GOLD | {"references": [wider, GOLD["references"][1]]})
    feed.settings = feed.settings.model_copy(update={"gold": gold})
    feed.run()  # made anew, of what the table holds now: what rests has nothing that was taken before
    assert placed(feed) == {**dict.fromkeys(range(6)), 6: "here"}
    require_exact(feed)
    feed.lake.drop_table(feed.spark, TAKEN)  # lost; meanwhile rows go that nobody knows of any more
    write_reference(feed, SITES, [])
    feed.run()
    assert placed(feed) == dict.fromkeys(range(7))
    require_exact(feed)


@pytest.mark.soak
@pytest.mark.parametrize("step", [2, 1])
def test_batches_and_corrections_that_die_at_any_commit_are_made_good(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, step: int
):
    """While they are dead, the reference goes on."""
    rng = random.Random(3)
    feed.write(stream(rng, 0, 20)).run()
    places = [f"before:{PLACED}", f"after:{PLACED}", f"before:{TAKEN}", f"after:{TAKEN}", f"taken:{SITES}"]
    for i, place in enumerate(places[::step]):
        write_reference(feed, SITES, [site("s", i - 3, 100, "a"), site("s", 100, None, f"b{i}")])
        feed.write(stream(rng, 20 + 10 * i, 10))
        with monkeypatch.context() as patch:
            dying = Dying(place, 1)
            patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", dying)
            patch.setattr("sessionlake.gold.references.corrections.inject_fault_if_requested", dying)
            with pytest.raises((MachineSetupError, LakeError), match="power cut"):
                feed.run()
        write_reference(feed, SITES, [site("s", i - 2, 90, "c"), site("t", 50, None, "d")])
    feed.run()
    assert require_exact(feed) == 20 + 10 * len(places[::step])


@pytest.mark.soak
def test_lookups_ask_for_what_changes_name_and_again_for_what_failed(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    """The outside is away at first; then it knows one key, and what it says of another cannot be used."""
    known = {"s": {"place": "here", "size": 1}, "t": {"place": 7, "size": 1}}

    def answer(keys: Rows) -> QueryResult:
        return rows([key | known[key["site"]] for key in keys if key["site"] in known])

    with answering(lambda _: (503, b"")) as asked:
        lookup = {"url": asked.url, "attempts": 1, "batch": 2, "in_flight": 2, "retry_after": "1 hour"}
        sites = GOLD["references"][0] | {"lookup": lookup}
        gold = GoldSettings.model_validate(GOLD | {"references": [sites, GOLD["references"][1]]})
        feed.settings = feed.settings.model_copy(update={"gold": gold})
        feed.write([change(session, "r", i, i * SECOND, price=1.0) for i, session in enumerate("stu")]).run()
        assert placed(feed) == dict.fromkeys(range(3))
        assert sorted(len(keys) for keys in asked.requests) == [1, 2]
        assert failures(feed) == dict.fromkeys("stu", ("http_503", 1))
        asked.answer = answer
        feed.write([change("s", "r", 3, 0, price=1.0)]).run()  # not due yet
        assert len(asked.requests) == 2
        later = datetime.now(UTC) + timedelta(hours=2)
        monkeypatch.setattr("sessionlake.gold.references.lookups._read_utc_now", lambda: later)
        feed.write([change("s", "r", 4, 0, price=1.0)]).run()
        assert placed(feed) == {0: "here", 1: None, 2: None, 3: "here", 4: "here"}
        assert failures(feed) == {"t": ("answer", 2), "u": ("unknown", 2)}
        assert asked.most_at_once <= 2
        requests = len(asked.requests)
        require_exact(feed)
        job.rebuild_tables(
            feed.spark,
            feed.settings,
            [one for one in list_declared_gold_tables(feed.settings) if one.table_name == PLACED],
        )
        assert (len(asked.requests), placed(feed)[4]) == (requests, "here")
        recover.empty_gold(feed.spark, feed.settings)
        assert failures(feed) == {}


def failures(feed: Feed) -> dict[str, tuple[str, int]]:
    found = rows_of(feed.spark, feed.lake, LOOKUP_FAILURES)
    return {json.loads(row["key"])[0]: (row["error"], row["attempts"]) for row in found}


def test_a_file_is_put_into_a_reference_table_and_the_command_says_what_gold_has_taken(
    feed: Feed, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sessionlake.spark.session.stop_spark", lambda: None)
    config = tmp_path / "sessionlake.yml"
    config.write_text(yaml.safe_dump({"home": str(feed.settings.home), "gold": GOLD}))

    def ask(*words: str) -> Any:
        return CliRunner().invoke(cli.app, ["reference", *words, "--config", str(config)])

    def states() -> dict[str, tuple[str, int]]:
        rows = map(json.loads, ask("list", "--format", "json").stdout.splitlines())
        return {row["reference"]: (row["state"], row["waiting"]) for row in rows}

    file = tmp_path / "sites.csv"
    file.write_text("site,place,size,valid_from\ns,one,1.5,1970-01-01T00:00:00Z\ns,two,,1970-01-01T00:00:20Z\n")
    assert ask("load", "sites", str(file)).exit_code == 0
    feed.write([change("s", "r", i, i * 10 * SECOND, price=1.0) for i in range(5)]).run()
    assert placed(feed) == {0: "one", 1: "one", 2: "two", 3: "two", 4: "two"}
    file.write_text("site,place,size,valid_from,valid_to\ns,late,1.5,1970-01-01T00:00:10Z,1970-01-01T00:00:30Z\n")
    assert "3 written, 1 removed" in ask("load", "sites", str(file)).stderr
    assert states() == {"sites": ("waits for gold", 5), "states": ("taken", 0)}
    feed.run()
    assert placed(feed) == {0: "one", 1: "late", 2: "late", 3: "two", 4: "two"}
    assert states() == {"sites": ("taken", 0), "states": ("taken", 0)}
    for text, wrong in (("site,place\n", "lacks the columns size"), ("site,place,size\n,a,1\n", "a key is null")):
        file.write_text(text)
        done = ask("load", "sites", str(file))
        assert (done.exit_code, wrong in done.stderr) == (2, True), done.stderr
