"""Rows appended once they are final: each once, whatever the batches and deaths, and as a recomputation has them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from sessionlake.delta.schemas.names import GOLD as LAYER
from sessionlake.delta.schemas.names import LATE_POINTS, LEDGER
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.errors import LakeError, MachineSetupError
from sessionlake.gold import job
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.operations.recover import gold as recover
from sessionlake.settings.model import GoldSettings, Settings, load_settings
from sessionlake.spark.frames import convert_to_spark_frame
from spark.test_gold import CHANGES, SECOND, Change, Dying, Feed, change
from support.crashes import Death, die, run
from support.lakes import limit, rows_of

MINUTE = 60 * SECOND
OWN: dict[str, Any] = {
    "name": "own",
    "keys": ["topic", "session_id", "metric"],
    "bucket": "1 minute",
    "lateness": "30 seconds",
    "aggregates": {"n": "count", "total": "sum", "usual": "p50"},
    "output": "append",
}
GOLD: dict[str, Any] = {"shards": 4, "rolling_points": 3, "products": [OWN]}
PLACES = (("capture.a", 0), ("capture.a", 1), ("capture.b", 0))


@pytest.fixture
def feed(spark: Any, location: dict[str, Any]) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings.model_validate(GOLD)))


def with_gold(feed: Feed, **changed: Any) -> None:
    gold = GoldSettings.model_validate(GOLD | changed)
    feed.settings = feed.settings.model_copy(update={"gold": gold})


def at(place: tuple[str, int], made: Change) -> Change:
    return (place[0], *made[1:13], place[1], *made[14:])


def stream(seed: int, count: int) -> list[Change]:
    """Three topic-partitions of two sessions each, one of them far behind; what comes late, some of it too late."""
    rng, found, highest = random.Random(seed), list[Change](), dict[Any, int]()
    for i in range(count):
        place = rng.choice(PLACES)
        now = i * 2 * SECOND - (place[0] == "capture.b") * 5 * MINUTE + rng.randrange(-10, 10) * SECOND
        stood = highest[place] = max(highest.get(place, now), now)
        ts = now - rng.choice([0, 0, 0, 1, 20, 60, 89, 120, 400]) * SECOND
        values = {name: float(rng.randint(0, 9)) for name in ("price", "qty") if rng.random() < 0.7}
        session = f"{place[0]}-{place[1]}-{rng.choice('st')}"
        found.append(at(place, change(session, rng.choice("rq"), i, ts, stood, **values)))
    return found


def by_hand(changes: Sequence[Change], lateness: int = 30 * SECOND) -> dict[Any, tuple[int, float]]:
    """Of each session, partition, metric and minute that is final by all of these: how many points, and their sum."""
    found: dict[Any, tuple[int, float]] = {}
    times: dict[Any, int] = {}
    for one in changes:
        applied, start, place = int(one[15].timestamp() * 1000), one[9] // MINUTE * MINUTE, (one[0], one[13])
        times[place] = max(times.get(place, applied), applied)
        for metric, value in (("price", one[3]), ("qty", one[4])):
            if value is not None and applied < start + MINUTE + lateness:
                key = (*place, one[1], metric, start)
                count, total = found.get(key, (0, 0.0))
                found[key] = count + 1, total + value
    return {key: row for key, row in found.items() if key[-1] + MINUTE + lateness <= times[key[:2]]}


def appended(feed: Feed, table: str = "gold.own_final") -> dict[Any, tuple[int, float]]:
    rows = rows_of(feed.spark, feed.lake, table)
    names = ("topic", "partition", "session_id", "metric")
    found = {
        (*(row[name] for name in names), int(row["window_start"].timestamp() * 1000)): (row["n"], row["total"])
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def require_exact(feed: Feed) -> None:
    found = verify_gold(feed.spark, feed.settings, list_declared_products(feed.settings)[4:])
    assert [one.first_difference for one in found] == [None] * len(found)
    products = feed.settings.gold.products
    assert {one.table for one in found} - {LATE_POINTS} == {table for own in products for table in own.tables}
    assert all(one.expected_rows for one in found if one.table != LATE_POINTS)


def property_of(feed: Feed) -> str | None:
    return feed.lake.storage.read_properties(feed.spark, "gold.own_final").get(APPEND_ONLY)


@pytest.mark.soak
@pytest.mark.parametrize("batches", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_any_batches_and_deaths_append_each_final_row_once_and_it_stays(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, batches: int
):
    changes, seen, deaths = stream(3, 240), dict[Any, Any](), ["before:gold.own_final", "after:gold.own_final"]
    for number, places in enumerate(([], deaths, [])[-batches:]):
        end = 80 * (number + 1)
        feed.write(changes[end - 80 : end])
        for place in places:
            with monkeypatch.context() as patch:
                patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", Dying(place, 1))
                with pytest.raises(MachineSetupError, match="power cut"):
                    feed.run()
        with monkeypatch.context() as patch:
            if number == 2:  # from the workers, and read by Spark
                limit(patch, inline_bytes=0, driver_bytes=0)
            feed.run()
        if places:
            feed.lose_last_commit()
        found = appended(feed)
        assert found == by_hand(changes[:end])
        assert {key: found[key] for key in seen} == seen
        assert len(found) > len(seen)
        seen = found
    require_exact(feed)
    outputs = [one for row in feed.ledger() for one in row["outputs"] if one["table"] == "gold.own_final"]
    assert sum(one["rows"] for one in outputs) == len(seen)
    assert len({one["version"] for one in outputs}) == len(outputs) == batches
    assert property_of(feed) == "true"


@pytest.mark.soak
def test_made_again_emptied_new_and_otherwise_declared_it_has_all_that_is_final(feed: Feed):
    changes = stream(5, 150)
    feed.write(changes[:70]).run()
    [own] = list_declared_products(feed.settings)[4:]
    for _ in range(2):
        job.rebuild_tables(feed.spark, feed.settings, [own])
        assert (appended(feed), property_of(feed)) == (by_hand(changes[:70]), "true")
    feed.lose_last_commit()  # of which it was made
    feed.write(changes[70:90]).run()
    assert appended(feed) == by_hand(changes[:90])
    recover.empty_gold(feed.spark, feed.settings)
    assert (appended(feed), property_of(feed)) == ({}, "false")
    feed.write(changes[90:110])
    with_gold(feed, products=[OWN, OWN | {"name": "patient", "lateness": "3 minutes"}])
    feed.run().write(changes[110:]).run()
    assert (appended(feed), property_of(feed)) == (by_hand(changes), "true")
    assert appended(feed, "gold.patient_final") == by_hand(changes, 3 * MINUTE)
    require_exact(feed)
    feed.lake.drop_table(feed.spark, "gold.own_final")  # one of the two alone is not whole
    feed.run()
    assert appended(feed) == by_hand(changes)
    with_gold(feed, products=[OWN | {"output": "update"}])
    with pytest.raises(LakeError, match=r"own was computed with another declaration.*rebuild gold.own"):
        feed.run()


def write_in_files(feed: Feed, changes: Iterable[Change]) -> None:
    """One version of several files, by session: the newest first, as it may be."""
    names = feed.lake.reader(feed.spark).read_table_schema(CHANGES).names
    rows = [dict(zip(names, (*c, 0, c[15], None, feed.batch), strict=True)) for c in changes]
    table = pa.Table.from_pylist(rows, feed.lake.reader(feed.spark).read_table_schema(CHANGES))
    frame = convert_to_spark_frame(feed.spark, table).repartition(4, "session_id")
    feed.lake.storage.append_rows_with_spark(frame, CHANGES, {})
    feed.batch += 1


@pytest.mark.soak
def test_within_a_version_that_is_read_in_parts_nothing_is_final_before_its_end(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
):
    with_gold(feed, max_bytes_per_trigger="1 KiB")
    changes = stream(7, 240)
    for number, end in enumerate((120, 240)):
        write_in_files(feed, changes[end - 120 : end])
        for nth in (3, 2) if number else ():  # what is known of a part that was read is known after a death, too
            with monkeypatch.context() as patch:
                patch.setattr(
                    "sessionlake.delta.commit.inject_fault_if_requested", Dying("before:gold.metrics_1m", nth)
                )
                with pytest.raises(MachineSetupError, match="power cut"):
                    feed.run()
            assert appended(feed) == by_hand(changes[:120])
        feed.run()
        assert appended(feed) == by_hand(changes[:end])
    assert len(feed.ledger()) > 4
    require_exact(feed)


@pytest.mark.soak
def test_what_silver_applies_at_a_time_that_was_past_for_a_final_bucket_is_refused(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
):
    feed.write([change("s", "r", i, i * MINUTE, i * MINUTE, price=1.0) for i in range(4)]).run()
    kept = appended(feed)
    assert len(kept) == 2
    feed.write([change("t", "r", 4, 0, 0, price=1.0), change("t", "r", 5, 3 * MINUTE, 3 * MINUTE, price=1.0)])
    for large in (False, True):
        limit(monkeypatch, **({"inline_bytes": 0} if large else {}))
        with pytest.raises(
            LakeError, match=r"gold.own_final: .*partition 0: .* 1970-01-01 00:00:00Z, whose rows are fi"
        ):
            feed.run()
        assert appended(feed) == kept
    job.rebuild_tables(feed.spark, feed.settings, list_declared_products(feed.settings)[4:])
    require_exact(feed)
    assert len(appended(feed)) == 3


@pytest.mark.soak  # how rows of products go, test_expiry says
def test_final_rows_are_kept_as_long_as_the_product_keeps_its_own(feed: Feed):
    hour = 60 * MINUTE
    with_gold(feed, products=[OWN | {"retention": "1 hour"}])
    first = [change("s", "r", i, i * MINUTE, i * MINUTE, price=1.0) for i in range(8)]
    feed.write(first).run()
    assert len(appended(feed)) == 6
    feed.write([change("s", "r", 8, hour + 4 * MINUTE, hour + 4 * MINUTE, price=1.0)]).run()
    assert [key[-1] // MINUTE for key in sorted(appended(feed))] == [4, 5, 6, 7]
    require_exact(feed)
    job.rebuild_tables(feed.spark, feed.settings, list_declared_products(feed.settings)[4:])
    assert [key[-1] // MINUTE for key in sorted(appended(feed))] == [4, 5, 6, 7]
    feed.write([change("s", "r", 9, 2 * hour, 2 * hour, price=1.0)]).run()
    assert [key[-1] // MINUTE for key in sorted(appended(feed))] == [64]


@pytest.mark.soak
@pytest.mark.parametrize("whole", [False, True])
def test_a_process_that_is_killed_between_its_commits_leaves_what_one_that_lives_does(
    spark: Any, tmp_path: Path, *, whole: bool
):
    file = tmp_path / "sessionlake.yml"
    file.write_text(yaml.safe_dump({"home": str(tmp_path / "home"), "gold": GOLD}))
    feed, changes = Feed(spark, load_settings(file)), stream(11, 160)
    for number, place in enumerate(("after:gold.own", "after:gold.own_final")):
        feed.write(changes[80 * number : 80 * number + 80])
        if whole:  # with a JVM of its own
            assert run(file, Death(LAYER, place)).returncode == -signal.SIGKILL
        else:
            die(file, Death(LAYER, place), spark, fresh=False)
    feed.run()
    assert appended(feed) == by_hand(changes)
    require_exact(feed)
    assert sorted(row["batch_id"] for row in rows_of(spark, feed.lake, LEDGER)) == [0, 1]
