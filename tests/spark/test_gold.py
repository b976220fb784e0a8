"""Gold through real Spark and Delta: whatever the batches, the tables equal a recomputation from silver."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from operator import eq, itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.explain import show_explained_rows
from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.commit import delete_all_rows, remove_rows
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    LATE_POINTS,
    LEDGER,
    MESSAGES,
    METRICS_1H,
    METRICS_1M,
    PRODUCTS,
    RESTATEMENTS,
    SENSOR_AVERAGES,
    SILVER,
)
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, MachineSetupError, NotFoundError, UsageError
from sessionlake.gold import job
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.declared.tables import list_declared_averages, list_declared_gold_tables, list_declared_products
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.query import metrics
from sessionlake.gold.sql.figures_with import create_sql_function_figures_with
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.history.explain import SourceOffsetSpan, explain
from sessionlake.ledger.entries import Ledger, LedgerEntry
from sessionlake.ledger.retained import (
    LIMITS,
    RetentionRecord,
    select_rows_removed_by_retention,
    store_removal_record,
)
from sessionlake.operations.recover import gold as recover
from sessionlake.protocol.types import Row
from sessionlake.settings.gold import AverageSettings, ProductSettings
from sessionlake.settings.model import GoldSettings, Settings
from sessionlake.streaming.payload_files import PayloadFiles
from support.checkpoints import lose_last_commit
from support.lakes import limit, rows_of, write_rows

CHANGES = "silver.session_changes"
SECOND = 1_000
Change = tuple[Any, ...]


def change(session: str, row: str, position: int, ts: int, kafka: int = 0, **values: Any) -> Change:
    at = datetime.fromtimestamp(kafka / 1000, UTC)
    table = (values.get("price"), values.get("qty"), values.get("status"))
    marks = (None, 0, position, ts, position, "upsert", sorted(values), 0, 0, at, position)
    return ("capture.a", session, row, *table, *marks)


class Feed:
    """Silver's table, and gold over it."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self.spark, self.settings, self.lake = spark, settings, Lake(settings)
        self.lake.create_or_update_tables(spark, [CHANGES])
        self.batch = 0

    def write(self, changes: Iterable[Change]) -> Feed:
        names = self.lake.reader(self.spark).read_table_schema(CHANGES).names
        rows = [dict(zip(names, (*c, 0, c[15], None, self.batch), strict=True)) for c in changes]
        write_rows(self.spark, self.lake, CHANGES, rows)
        self.batch += 1
        return self

    def run(self) -> Feed:
        job.start(self.spark, self.settings, once=True).wait()
        return self

    def lose_last_commit(self) -> None:
        """Takes the checkpoint back to a batch that committed its tables and then died."""
        lose_last_commit(self.settings.checkpoint_path(job.LAYER))

    def declare(self, of: str = "numbers", **aggregates: str) -> Feed:
        """Declares the one product `gold.own`; without aggregates, none."""
        own = {"name": "own", "of": of, "keys": ("topic",), "aggregates": aggregates}
        products = (ProductSettings.model_validate(own),) if aggregates else ()
        gold = self.settings.gold.model_copy(update={"products": products})
        self.settings = self.settings.model_copy(update={"gold": gold})
        return self

    def ledger(self) -> list[Row]:
        return rows_of(self.spark, self.lake, LEDGER, ("layer", eq, "gold"))

    def restated(self) -> list[Row]:
        """Restatements; each row has as many as its revision says, and they lead to its figure."""
        found = sorted(rows_of(self.spark, self.lake, RESTATEMENTS), key=itemgetter("revision"))
        for series in list_declared_averages(self.settings):
            for row in rows_of(self.spark, self.lake, series.table_name):
                own = [
                    one
                    for one in found
                    if one["table"] == series.table_name and all(one[name] == row[name] for name in series.row_keys)
                ]
                assert [one["revision"] for one in own] == list(range(1, row["revision"] + 1))
                chain = [one["average_before"] for one in own[1:]] + [row["average"]] * bool(own)
                assert [one["average"] for one in own] == chain
        return found

    def averages(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        rows = rows_of(self.spark, self.lake, AVERAGES)
        found = {(*key_of(r), r["ts"], r["position"]): (r["value"], r["average"], r["points"]) for r in rows}
        assert len(found) == len(rows)
        return found

    def require_exact(self, *tables: str) -> None:
        """These tables, or all, equal a recomputation by SQL."""
        wanted = [one for one in list_declared_gold_tables(self.settings) if not tables or one.table_name in tables]
        found = verify_gold(self.spark, self.settings, wanted)
        told = [RESTATEMENTS] * any(isinstance(one, RollingAverage) for one in wanted)
        assert [one.table for one in found] == [one.table_name for one in wanted] + told
        assert [one.first_difference for one in found] == [None] * len(found)

    def minutes(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        rows = rows_of(self.spark, self.lake, METRICS_1M)
        found = {
            (*key_of(r), int(r["window_start"].timestamp()) // 60): (
                *(r["points"], r["min"], r["max"], r["sum"], r["average"], r["first"], r["last"]),
            )
            for r in rows
        }
        assert len(found) == len(rows)
        return found


def key_of(row: Row) -> tuple[str, str, str]:
    return row["session_id"], row["row_id"], row["metric"]


def by_hand(changes: Iterable[Change], window: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    lines: dict[tuple[str, str, str], list[tuple[int, int, float]]] = {}
    for c in changes:
        for metric, value in (("price", c[3]), ("qty", c[4])):
            if value is not None:
                lines.setdefault((c[1], c[2], metric), []).append((c[9], c[8], float(value)))
    averages, minutes = {}, {}
    for key, line in lines.items():
        line.sort()
        for i, (ts, position, value) in enumerate(line):
            last = [v for _, _, v in line[max(0, i - window + 1) : i + 1]]
            averages[(*key, ts, position)] = (value, left_sum(last) / len(last), len(last))
        for minute in {ts // 60_000 for ts, _, _ in line}:
            v = [value for ts, _, value in line if ts // 60_000 == minute]
            minutes[(*key, minute)] = (len(v), min(v), max(v), math.fsum(v), math.fsum(v) / len(v), v[0], v[-1])
    return averages, minutes


def left_sum(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


@pytest.fixture
def feed(spark, location) -> Feed:
    return Feed(spark, Settings(**location, gold=GoldSettings(rolling_points=3, shards=4)))


NOTHING_IN_DRIVER = {"inline_bytes": 0, "driver_bytes": 0, "rewritten_rows": 0}


def all_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are, the fold's go past Spark in files; in a catalog there are none."""

    def files(scratch: Path | None, query: str) -> PayloadFiles:
        return PayloadFiles(None if scratch is None else scratch / query, min_bytes=0)

    monkeypatch.setattr(PayloadFiles, "create_for_query", files)


LARGE_TOO = [pytest.param(seed, True, marks=pytest.mark.soak) for seed in range(5, 9)]


@pytest.mark.parametrize(("seed", "large"), [(5, False), *LARGE_TOO])
def test_random_points_in_random_batches_equal_a_recomputation(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, seed: int, large: bool
):
    """Late within the tail and far older, ties, several metrics and sessions, forgotten sessions; the last batch is too
    large for the driver, if `large`.
    """
    rng = random.Random(seed)
    changes = []
    for i in range(150):
        late = rng.choice([0, 0, 0, 0, 2, 10, 200])
        chosen = rng.sample(["price", "qty"], rng.randint(1, 2))
        values: dict[str, Any] = {n: rng.uniform(-1e3, 1e3) if n == "price" else rng.randint(0, 9) for n in chosen}
        if rng.random() < 0.3:
            values["status"] = rng.choice(["on", "off", "ö"])
        session, row = rng.choice(["s", "t"]), rng.choice(["r", "q"])
        changes.append(change(session, row, i, (i - late) * 5 * SECOND, i * 3 * 60 * SECOND, **values))
    start = 0
    feed.declare(of="texts", n="count", texts="approx_distinct")
    for cut in [*sorted(rng.sample(range(150), 1 + large)), 150]:
        if large and cut == len(changes):  # in a catalog, Spark merges whatever the size
            monkeypatch.setattr(FolderStorage, "limits", replace(FolderStorage.limits, **NOTHING_IN_DRIVER))
            all_in_files(monkeypatch)
        feed.write(changes[start:cut]).run()
        start = cut
    monkeypatch.undo()
    assert (feed.averages(), feed.minutes()) == by_hand(changes, 3)
    feed.require_exact()
    assert {row["pane"] for row in feed.restated()} == {"late"}
    day = datetime(1970, 1, 1, tzinfo=UTC)
    found = metrics(feed.settings, day, day + timedelta(days=1), spark=feed.spark, by=["metric"]).rows.to_pylist()
    inside = [values for key, values in feed.minutes().items() if 0 <= key[3] < 24 * 60]
    assert sum(row["points"] for row in found) == sum(values[0] for values in inside)


FORM = {
    "session": "session",
    "key": ["status"],
    "columns": {"price": "double", "qty": "bigint", "status": "string"},
    "messages": [{"is": "update", "rows": [{"row": "all"}]}],
}
OF_FEEDS = {
    "capture": {
        "feeds": [
            {"name": "boilers", "topics": r"plant\.b.*", **FORM},
            {"name": "plant", "topics": r"plant\..*", **FORM},
        ],
    },
    "gold": {
        "rolling_points": 3,
        "shards": 4,
        "products": [
            {"name": "own", "feed": "plant", "keys": ["metric"], "aggregates": {"n": "count", "total": "sum"}},
            {"name": "words", "feed": "plant", "of": "texts", "keys": ["value"], "aggregates": {"n": "count"},
             "bucket": "1 minute", "lateness": "1 minute"},
        ],
        "averages": [{"name": "of_feed", "feed": "plant", "keys": ["topic", "metric"]}],
    },
}  # fmt: skip


@pytest.mark.soak  # `unit/test_products_of_feeds` has the same without Spark
def test_products_and_averages_of_a_feed_have_its_topics_in_every_batch_rebuild_and_recomputation(spark, location):
    topics = ["plant.boiler", "plant.pump", "other", "plant.press"]
    feed = Feed(spark, Settings.model_validate({**location, **OF_FEEDS}))
    whole = [change("s", "", i, i * SECOND, 600 * SECOND * (i % 8 > 4), price=float(i), status="on") for i in range(24)]
    changes = [(topics[i % 4], *one[1:]) for i, one in enumerate(whole)]
    for first in (0, 8, 16):
        feed.write(changes[first : first + 8]).run()
    of_plant = [i for i in range(24) if topics[i % 4] in ("plant.pump", "plant.press")]

    def check() -> None:
        [row] = rows_of(spark, feed.lake, "gold.own")
        assert (row["metric"], row["n"], row["total"]) == ("price", len(of_plant), sum(of_plant))
        points = rows_of(spark, feed.lake, "gold.of_feed")
        assert sorted((row["topic"], row["value"]) for row in points) == sorted((topics[i % 4], i) for i in of_plant)
        late = [row["topic"] for row in rows_of(spark, feed.lake, LATE_POINTS)]
        [words] = rows_of(spark, feed.lake, "gold.words")
        assert {*late} == {"plant.pump", "plant.press"}
        assert words["n"] + len(late) == len(of_plant)
        feed.require_exact("gold.own", "gold.of_feed")
        wanted = [one for one in list_declared_gold_tables(feed.settings) if one.table_name == "gold.words"]
        assert [one.first_difference for one in verify_gold(spark, feed.settings, wanted)] == [None, None]

    check()
    ([explained], _) = explain(spark, feed.settings, "gold.own", "")
    assert (explained.events, {one.topic for one in explained.offsets}) == (12, {"plant.pump", "plant.press"})
    function = create_sql_function_figures_with(spark, feed.lake)
    sql = "SELECT DISTINCT `table` FROM {}('{}', 0, {}) WHERE `table` IN ('gold.own', 'gold.of_feed', 'gold.words')"
    found = {i: {row[0] for row in spark.sql(sql.format(function, topics[i], i)).collect()} for i in (0, 1, 2)}
    assert found == {0: set(), 1: {"gold.own", "gold.of_feed", "gold.words"}, 2: set()}
    names = ("gold.own", "gold.of_feed", "gold.words")
    tables = [one for one in list_declared_gold_tables(feed.settings) if one.table_name in names]
    job.rebuild_tables(spark, feed.settings, tables)
    check()


@pytest.mark.parametrize("on_cluster", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["driver", "cluster"])
def test_decimals_that_cancel_leave_their_last_digit_in_any_batches(spark, location, monkeypatch, on_cluster: bool):
    if on_cluster:
        limit(monkeypatch, **NOTHING_IN_DRIVER, driver_changes=0)
        all_in_files(monkeypatch)
        monkeypatch.setattr("sessionlake.gold.fold.product_payloads.FEW_CHANGES", 0)
    columns = FORM["columns"] | {"price": {"type": "decimal(38,10)", "from": "text"}}
    kinds = {kind: kind for kind in ("count", "sum", "min", "max", "mean")}
    own = {"name": "own", "value": "price", "keys": ["topic", "session_id"], "aggregates": kinds}
    append = {"bucket": "1 minute", "lateness": "1 s", "output": "append"} if on_cluster else {}
    capture = {"feeds": [{"name": "capture", "topics": r"capture\..*", **FORM, "columns": columns}]}
    made = {**location, "capture": capture, "gold": {"shards": 4, "products": [own | append]}}
    feed = Feed(spark, Settings.model_validate(made))
    wide, least = Decimal("9" * 28 + "." + "9" * 10), Decimal("0.0000000001")
    values = [wide, least, wide, wide.copy_negate(), least, wide.copy_negate(), None, least]
    for i, value in enumerate(values):
        feed.write([change("s", "r", i, i * SECOND, i * SECOND, price=value)])
        if i % 3 == 2:
            feed.run()
    feed.write([change("t", "r", 99, 900 * SECOND, 900 * SECOND, price=least)]).run()
    for table in ("gold.own", "gold.own_final") if on_cluster else ("gold.own",):
        [row] = [row for row in rows_of(spark, feed.lake, table) if row["session_id"] == "s"]
        assert tuple(row[kind] for kind in kinds) == (7, 3 * least, wide.copy_negate(), wide, 3e-10 / 7)
    tables = [one for one in list_declared_gold_tables(feed.settings) if one.table_name == "gold.own"]
    assert {one.first_difference for one in verify_gold(spark, feed.settings, tables)} == {None}


@pytest.mark.parametrize("on_cluster", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["driver", "cluster"])
def test_a_late_decimal_beyond_the_tail_is_averaged_exactly(spark, location, monkeypatch, on_cluster: bool):
    if on_cluster:
        limit(monkeypatch, **NOTHING_IN_DRIVER, driver_changes=0)
        all_in_files(monkeypatch)
    columns = FORM["columns"] | {"price": {"type": "decimal(38,10)", "from": "text"}}
    capture = {"feeds": [{"name": "capture", "topics": r"capture\..*", **FORM, "columns": columns}]}
    feed = Feed(spark, Settings.model_validate({**location, "capture": capture, "gold": {"shards": 4}}))
    wide, least = Decimal("9" * 28 + "." + "9" * 10), Decimal("0.0000000001")
    values = [least, wide, least, wide.copy_negate(), *[least] * 36]
    feed.write([change("s", "r", i, i * SECOND, price=value, qty=i) for i, value in enumerate(values)]).run()
    feed.write([change("s", "r", 100, 2 * SECOND + 1, price=least)]).run()
    line, places = [*values[:3], least, *values[3:]], [0, 1, 2, 100, *range(3, 40)]
    before = {place: _exact_mean(values, place) for place in range(40)}
    means = {place: _exact_mean(line, number) for number, place in enumerate(places)}
    rows = [row for row in rows_of(spark, feed.lake, AVERAGES) if row["metric"] == "price"]
    assert {row["position"]: row["average"] for row in rows} == means
    assert {row["position"]: row["_units"] for row in rows} == {
        place: int(value.scaleb(10, Context(prec=50))) for place, value in zip(places, line, strict=True)
    }
    assert {row["position"]: row["revision"] for row in rows} == {
        place: int(place in before and before[place] != mean) for place, mean in means.items()
    }
    assert {
        one.first_difference for one in verify_gold(spark, feed.settings, list_declared_averages(feed.settings))
    } == {None}


def _exact_mean(line: list[Decimal], number: int) -> float:
    last = line[max(0, number - 7) : number + 1]
    return float(sum(map(Fraction, last)) / len(last))


def test_a_point_far_older_than_the_tail_refines_old_rows_alone(feed: Feed):
    changes = [change("s", "r", i, i * 10 * SECOND, price=float(i)) for i in range(40)]
    feed.write(changes).run()
    late = change("s", "r", 100, 15 * SECOND, price=50.0)
    before = feed.averages()
    feed.write([late]).run()
    after = feed.averages()
    assert {key[3] // SECOND for key in after if after[key] != before.get(key)} == {15, 20, 30}
    assert (after, feed.minutes()) == by_hand([*changes, late], 3)


# A small batch has one commit a table, a large one two; each gap between commits is named by one of its ends.
EVERY = [f"before:{table}" for table in (RESTATEMENTS, AVERAGES, SENSOR_AVERAGES, *PRODUCTS, LEDGER)]
SMALL = 65_536, [*((place, 1) for place in EVERY), (f"after:{LEDGER}", 1)]
SOME = 65_536, SMALL[1][::4]
LARGE = 0, [(f"before:{AVERAGES}", 2), (f"before:{METRICS_1M}", 1)]


@pytest.mark.parametrize("sizes", [[SOME], pytest.param([SMALL, LARGE], marks=pytest.mark.soak)], ids=len)
def test_batches_that_die_between_any_two_commits_and_are_replayed_count_once(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, list[tuple[str, int]]]]
):
    """Each batch has new rows and changed rows of both tables, points older than the tail, and a session of its own.

    What one death leaves, the next replay takes up, and dies one commit later.
    """
    changes = [change("s", "r", i, i * 10 * SECOND, price=float(i)) for i in range(30)]
    feed.write(changes).run()
    for number, (inline, places) in enumerate(sizes):
        newest = 290 + 200 * number
        times = [5 + number, newest - 5, newest + 20, newest + 200]
        place = len(changes)
        batch = [change("s", "r", place + i, at * SECOND, price=1.5 + i, status="on") for i, at in enumerate(times)]
        batch.append(change(f"t{number}", "r", len(changes) + len(times), 0, price=1.0))
        changes += batch
        feed.write(batch)
        limit(monkeypatch, inline_bytes=inline)
        for place, nth in places:
            with monkeypatch.context() as patch:
                patch.setattr("sessionlake.delta.commit.inject_fault_if_requested", Dying(place, nth))
                with pytest.raises(MachineSetupError, match="power cut"):
                    feed.run()
        feed.run()
        assert (feed.averages(), feed.minutes()) == by_hand(changes, 3), number
    feed.require_exact()
    assert len(feed.restated()) > 4 * len(sizes)
    ledger = feed.ledger()
    assert sorted(row["batch_id"] for row in ledger) == list(range(len(sizes) + 1))


@pytest.mark.soak
def test_what_comes_too_late_for_a_product_is_reported_instead_of_counted_whatever_the_batches(feed: Feed):
    own = {"name": "own", "keys": ["topic", "metric"], "bucket": "1 minute", "aggregates": {"n": "count"}}
    products = (ProductSettings.model_validate(own | {"lateness": "30 seconds"}),)
    gold = feed.settings.gold.model_copy(update={"products": products})
    feed.settings = feed.settings.model_copy(update={"gold": gold})
    times = [(0, 0), (59, 89), (1, 89), (59, 90), (70, 90), (-1, 90), (61, 200), (130, 200)]
    arrived = [change("s", "r", i, ts * SECOND, now * SECOND, price=1.0) for i, (ts, now) in enumerate(times)]
    feed.write(arrived[:3]).run().write(arrived[3:5]).write(arrived[5:]).run()
    counted = [(row["window_start"].timestamp(), row["n"]) for row in rows_of(feed.spark, feed.lake, "gold.own")]
    assert sorted(counted) == [(0, 3), (60, 1), (120, 1)]

    def late() -> list[tuple[Any, ...]]:
        rows = rows_of(feed.spark, feed.lake, LATE_POINTS)
        return sorted((r["table"], r["offset"], r["ts"], r["stream_time"]) for r in rows)

    told = [("gold.own", i, times[i][0] * SECOND, times[i][1] * SECOND) for i in (3, 5, 6)]
    assert late() == told
    assert {o["table"]: o["rows"] for o in max(feed.ledger(), key=itemgetter("batch_id"))["outputs"]}[LATE_POINTS] == 3
    verified = verify_gold(feed.spark, feed.settings, [list_declared_products(feed.settings)[-1]])
    assert [(one.table, one.first_difference) for one in verified] == [("gold.own", None), (LATE_POINTS, None)]
    [first], _ = explain(feed.spark, feed.settings, "gold.own", "window_start = timestamp_seconds(0)", message=(0, 3))
    assert (first.events, first.holds) == (3, False)
    job.rebuild_tables(feed.spark, feed.settings, [list_declared_products(feed.settings)[-1]])
    assert late() == told


class Dying:
    """A fault point that fails at the nth passing of a place."""

    def __init__(self, place: str, nth: int) -> None:
        self.place, self.left = place, nth

    def __call__(self, point: str) -> None:
        self.left -= point == self.place
        if point == self.place and not self.left:
            raise MachineSetupError("power cut")


def test_the_ledger_names_silvers_batches_and_the_rows_written(feed: Feed):
    points = [change("s", "r", i, i * SECOND, price=1.0) for i in range(3)]
    feed.write(points[:1]).write(points[1:]).run()
    [row] = feed.ledger()
    assert (row["source"], row["source_from"], row["source_to"], row["messages"]) == (CHANGES, 0, 1, 3)
    metrics = dict.fromkeys(PRODUCTS[:3], 1)
    assert {o["table"]: o["rows"] for o in row["outputs"]} == {AVERAGES: 3, SENSOR_AVERAGES: 3} | metrics


@pytest.mark.soak
def test_a_batch_takes_in_no_more_bytes_than_it_may_and_one_file_at_least(spark, location):
    gold = GoldSettings(rolling_points=3, shards=4, max_bytes_per_trigger="1 KiB")
    feed = Feed(spark, Settings(**location, gold=gold))
    points = [change("s", "r", i, i * SECOND, price=1.0) for i in range(3)]
    for point in points:
        feed.write([point])
    feed.run()
    rows = sorted(feed.ledger(), key=itemgetter("batch_id"))
    assert [(row["batch_id"], row["messages"]) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert feed.averages() == by_hand(points, 3)[0]


def test_changes_without_points_write_nothing_but_their_ledger_row(feed: Feed):
    deleted = list(change("s", "r", 0, 0, price=1.0))
    deleted[11] = "delete"
    feed.write([tuple(deleted)]).run()
    assert feed.averages() == feed.minutes() == {}
    [row] = feed.ledger()
    assert (row["source_to"], row["messages"], row["outputs"]) == (0, 1, [])


def test_the_lowest_possible_time_is_refined_too(feed: Feed):
    first, second = change("s", "r", 5, -(2**63), price=1.0), change("s", "r", 3, -(2**63), price=3.0)
    feed.write([first]).run().write([second]).run()
    assert (feed.averages(), feed.minutes()) == (by_hand([first, second], 3)[0], {})


def test_other_numbers_of_points_and_of_shards_than_before_are_refused(feed: Feed):
    points = [change("s", "r", i, i * SECOND, price=float(i)) for i in range(3)]
    feed.write(points).run()
    for gold, expected_text in (
        (GoldSettings(rolling_points=4, shards=4), r"with another declaration.*rebuild gold.rolling_average"),
        (GoldSettings(rolling_points=3, shards=5), r"gold.shards is 5.*written for 4"),
    ):
        feed.settings = feed.settings.model_copy(update={"gold": gold})
        with pytest.raises(LakeError, match=expected_text):
            feed.run()
    assert feed.averages() == by_hand(points, 3)[0]


@pytest.mark.soak
def test_another_number_of_points_is_a_rebuild(feed: Feed):
    changes = [change("s", "r", i, i * SECOND, price=float(i)) for i in range(9)]
    feed.write(changes[:6]).run()
    late = change("s", "r", 9, 1500, price=9.0)
    declared = [{"name": "sensor_average", "early": False}, {"name": "own", "keys": ["metric", "topic"], "points": 2}]
    own = tuple(AverageSettings.model_validate(one) for one in declared)
    counts = ProductSettings.model_validate({"name": "counts", "keys": ("topic",), "aggregates": {"n": "count"}})
    gold = GoldSettings(rolling_points=4, shards=4, averages=own, products=(counts,))
    feed.settings = feed.settings.model_copy(update={"gold": gold})
    with pytest.raises(
        LakeError, match=r"rolling_average was computed with another declaration.*rebuild gold.rolling_average"
    ):
        feed.run()
    job.rebuild_tables(
        feed.spark, feed.settings, [*list_declared_averages(feed.settings), list_declared_products(feed.settings)[-1]]
    )
    feed.lose_last_commit()  # of which they were made
    feed.write(changes[6:7]).run().write([*changes[7:], late]).run()
    feed.lose_last_commit()  # a batch since the making that has died is no hindrance
    feed.run()
    assert feed.averages() == by_hand([*changes, late], 4)[0]
    feed.require_exact()
    feed.restated()


@pytest.mark.soak
def test_a_product_that_is_new_or_made_again_holds_all_that_gold_has_read(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    changes = [change("s", "r", i, i * 40 * SECOND, price=float(i), status="on") for i in range(12)]
    with monkeypatch.context() as patch:  # a version that had the first alone
        patch.setattr(job, "list_declared_gold_tables", lambda _: (*list_declared_averages(feed.settings), STANDARD[0]))
        feed.write(changes[:5]).run()
    feed.write(changes[5:9])
    feed.declare(n="count", spread="variance", middle="p50", most="p99")
    feed.run().require_exact()
    with monkeypatch.context() as patch:  # a product that is left out for a while has missed what came meanwhile
        patch.setattr(job, "list_declared_gold_tables", lambda _: (*list_declared_averages(feed.settings), *STANDARD))
        feed.write(changes[9:10]).run()
    feed.run().require_exact("gold.own")
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.gold.rebuilding.tables.recompute_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job.rebuild_tables(feed.spark, feed.settings, STANDARD[1:2])
    feed.write(changes[10:]).run().require_exact(STANDARD[1].table_name)  # what died while it was made is made again
    monkeypatch.setattr(job, "list_declared_gold_tables", lambda _: (replace(STANDARD[0], version=2), *STANDARD[1:]))
    with pytest.raises(
        LakeError, match=r"metrics_1m was computed with another declaration.*sessionlake rebuild gold.metrics_1m"
    ):
        job.start(feed.spark, feed.settings, once=True)


@pytest.mark.soak
def test_what_the_last_batch_would_tell_of_tables_made_again_is_not_reported_when_it_is_done_once_more(feed: Feed):
    times = [(0, 0), (59, 89), (59, 90), (70, 90), (-1, 90), (61, 200), (130, 200)]
    feed.write([change("s", "r", i, ts * SECOND, now * SECOND, price=float(i)) for i, (ts, now) in enumerate(times)])
    feed.run()
    own = {"name": "own", "keys": ["topic"], "bucket": "1 minute", "lateness": "30 s", "aggregates": {"n": "count"}}
    product = ProductSettings.model_validate(own)
    gold = feed.settings.gold.model_copy(update={"products": (product,)})
    feed.settings = feed.settings.model_copy(update={"gold": gold})
    feed.write([change("s", "r", 7, 45 * SECOND, 201 * SECOND, price=7.0)])  # taken in as they are made anew
    job.rebuild_tables(feed.spark, feed.settings, list_declared_gold_tables(feed.settings))

    def told() -> list[tuple[str, int, int]]:
        rows = [row for table in (LATE_POINTS, RESTATEMENTS) for row in rows_of(feed.spark, feed.lake, table)]
        return sorted((row["table"], row["ts"], row["_batch"]) for row in rows)

    late = told()
    assert [table for table, *_ in late] == ["gold.own"] * 4
    feed.lose_last_commit()
    feed.run()
    assert told() == late
    found = verify_gold(feed.spark, feed.settings, list_declared_gold_tables(feed.settings))
    assert [one.first_difference for one in found] == [None] * len(found)


@pytest.mark.soak
def test_a_product_declared_otherwise_is_refused_until_it_is_made_again(feed: Feed):
    changes = [change("s", "r", i, i * 40 * SECOND, price=float(i)) for i in range(6)]
    feed.declare(n="count").write(changes[:2]).run()
    with pytest.raises(LakeError, match=r"sessionlake rebuild gold.own"):
        feed.declare(total="sum").run()
    feed.declare().write(changes[2:4])
    job.rebuild_tables(feed.spark, feed.settings, STANDARD[:1])  # the stream goes on, without the product
    feed.declare(n="count").run().require_exact("gold.own")
    feed.declare(total="sum")
    job.rebuild_tables(feed.spark, feed.settings, list_declared_products(feed.settings)[-1:])
    feed.write(changes[4:5]).run().require_exact("gold.own")
    recover.empty_gold(feed.spark, feed.settings)
    feed.declare(low="min")
    job.rebuild_tables(feed.spark, feed.settings, list_declared_products(feed.settings)[-1:])
    feed.write(changes[5:]).run().require_exact("gold.own")


def test_a_difference_is_found_and_reported(feed: Feed):
    beyond = [change("t", "q", i, i * SECOND, price=1.7e308 / i) for i in (3, 4)]  # whose squares no double is
    feed.write([*(change("s", "r", i, i * SECOND, price=1e4 + 0.1 * i) for i in range(3)), *beyond]).run()
    feed.lake.open_delta_table(feed.spark, METRICS_1M).update(set={"sum": "sum + 1e-3"})
    feed.lake.open_delta_table(feed.spark, METRICS_1H).update(set={"variance": "variance + 1e-6"})
    feed.lake.open_delta_table(feed.spark, AVERAGES).delete(f"ts = {SECOND}")
    feed.lake.open_delta_table(feed.spark, SENSOR_AVERAGES).update("ts = 0", {"revision": "revision + 1"})
    found = {
        one.table: one
        for one in verify_gold(feed.spark, feed.settings, list_declared_gold_tables(feed.settings))
        if one.first_difference
    }
    assert set(found) == {METRICS_1M, METRICS_1H, AVERAGES, RESTATEMENTS}
    told = f"{SENSOR_AVERAGES}: topic=capture.a, row_id=r, metric=price, ts=0, partition=0, offset=0, ordinal=0: "
    assert (found[RESTATEMENTS].expected_rows, found[RESTATEMENTS].different_rows) == (0, 1)
    assert found[RESTATEMENTS].first_difference == f"{told}has revision 1, and 0 restatements"
    assert (found[AVERAGES].expected_rows, found[AVERAGES].different_rows) == (5, 1)
    assert re.search(
        r"row_id=r, metric=price, ts=1000.*: is None, should be \{'value': 10000.1",
        str(found[AVERAGES].first_difference),
    )


def test_a_figure_is_explained_down_to_its_offsets_and_says_of_a_message_whether_it_is_in_it(feed: Feed):
    with pytest.raises(LakeError, match=r"gold\.metrics_1m does not exist yet"):
        explain(feed.spark, feed.settings, METRICS_1M, "")
    points = [change("s", "r", i, i * 20 * SECOND, price=float(i), status="on") for i in range(6)]
    feed.write(points[:2]).run().write(points[2:4]).run().write([*points[4:], change("t", "r", 9, 0, price=1.0)]).run()
    where = "session_id = 's' AND window_start = '1970-01-01 00:00:00'"
    ([one], _) = explain(feed.spark, feed.settings, METRICS_1M, where, message=(0, 2))
    assert (one.figures["points"], one.figures["sum"], one.events, one.holds) == (3, 3.0, 3, True)
    assert one.offsets == (SourceOffsetSpan("capture.a", 0, 0, 2, 3),)
    assert [(batch.batch, batch.silver_batches) for batch in one.batches] == [(0, (0, 0)), (1, (1, 1))]
    assert one.logic == STANDARD[0].logic_hash
    sql = "SELECT session_id, window_start, events FROM figures_with('capture.a', 0, {}) WHERE table = '{}'"
    schema, _, _ = create_sql_function_figures_with(feed.spark, feed.lake).rpartition(".")
    feed.spark.sql(f"USE {schema or 'default'}")  # Spark's own catalog finds table functions in no other
    found = fetch_query_result(feed.spark, feed.settings, sql.format(3, METRICS_1M))[1]
    assert found == [("s", datetime.fromtimestamp(60, UTC), 1)]
    feed.spark.sql("USE default")
    of_average = f"session_id = 's' AND ts = {80 * SECOND}"
    ([average], _) = explain(feed.spark, feed.settings, AVERAGES, of_average, message=(0, 1))
    assert (average.figures["average"], average.events, average.holds) == (3.0, 3, False)
    assert average.offsets == (SourceOffsetSpan("capture.a", 0, 2, 4, 3),)


@pytest.mark.soak
def test_which_figures_are_explained_and_what_cannot_be_is_said(feed: Feed):
    points = [change("s", "r", i, i * 20 * SECOND, price=float(i), status="on") for i in range(6)]
    feed.write(points[:4]).run().write([*points[4:], change("t", "r", 9, 0, price=1.0)]).run()
    where = "session_id = 's' AND window_start = '1970-01-01 00:00:00'"
    ([one], _) = explain(feed.spark, feed.settings, METRICS_1M, where, message=(0, 2))
    ([text], more) = explain(feed.spark, feed.settings, "gold.distinct_values", "value = 'on'")
    assert (text.figures["changes"], text.events, text.offsets[0].messages) == (6, 6, 6)
    assert more is False
    rows, more = explain(feed.spark, feed.settings, AVERAGES, "")
    assert ([row.key["ts"] for row in rows], more) == ([0, 20 * SECOND, 40 * SECOND], True)
    with pytest.raises(UsageError, match=r"'silver.sessions' cannot be explained\. Name one of gold"):
        explain(feed.spark, feed.settings, "silver.sessions", "")
    with pytest.raises(NotFoundError, match="has no row with session_id = 'x'"):
        explain(feed.spark, feed.settings, METRICS_1M, "session_id = 'x'")
    with pytest.raises(UsageError, match=r"explain: (--where: )?\["):
        show_explained_rows(feed.spark, feed.settings, METRICS_1M, "sesion_id = 's'", None, OutputFormat.JSON)
    feed.lose_last_commit()  # as while a batch is being made
    assert explain(feed.spark, feed.settings, METRICS_1M, where, message=(0, 2))[0] == [one]


@pytest.mark.soak
def test_what_retention_has_removed_of_a_figure_is_reported_and_of_its_messages_nothing_said(
    feed: Feed, capsys: pytest.CaptureFixture[str]
):
    points = [change("s", "r", i, i * SECOND, price=float(i)) for i in range(3)]
    feed.write(points[:2]).run().write([*points[2:], change("t", "r", 9, 0, price=1.0)]).run()
    limits = pa.Table.from_pylist([{"topic": "capture.a", "partition": 0, "session_id": "s", "limit": 1}], LIMITS)
    remove_rows(feed.spark, feed.lake, CHANGES, select_rows_removed_by_retention(CHANGES, limits))
    cut = RetentionRecord(CHANGES, datetime(2026, 1, 1, tzinfo=UTC), batch=0, removed=2, limits=limits)
    store_removal_record(feed.spark, feed.lake, cut)

    def told(table: str, where: str, offset: int) -> tuple[int, bool | None, datetime | None]:
        ([one], _) = explain(feed.spark, feed.settings, table, where, message=(0, offset))
        return one.events, one.holds, one.gone_before

    first = "session_id = '{}' AND window_start = '1970-01-01 00:00:00'"
    assert told(METRICS_1M, first.format("s"), 0) == (1, None, cut.before)
    assert told(METRICS_1M, first.format("s"), 2) == (1, True, cut.before)
    assert told(METRICS_1M, first.format("t"), 0) == (1, False, None)
    assert told(AVERAGES, "session_id = 's' AND ts = 2000", 0) == (1, None, cut.before)
    assert told(AVERAGES, "session_id = 't'", 0) == (1, False, None)
    show_explained_rows(feed.spark, feed.settings, METRICS_1M, first.format("s"), (0, 0), OutputFormat.TABLE)
    shown = " ".join(capsys.readouterr().out.split())
    assert "made of 1 values that still exist removed maintain.retention has removed changes" in shown
    assert "changes from before 2026-01-01T00:00:00" in shown
    assert "message unknown: its changes" in shown


@pytest.mark.soak
def test_batches_of_a_figure_are_reported_as_far_as_they_are_known_behind_a_rebuild_of_silver(feed: Feed):
    points = [change("s", "r", i, i * SECOND, price=float(i)) for i in range(3)]
    feed.write(points[:1]).run().write(points[1:2]).run()
    delete_all_rows(feed.spark, feed.lake, CHANGES, Txn("rebuild:r", 2))
    feed.batch = 2
    feed.write(points[:2])  # gold has read them, and does not read them again
    entry = LedgerEntry(SILVER, Txn("rebuild:r", 2), MESSAGES, datetime.now(UTC))
    Ledger(feed.lake).write_entry(feed.spark, entry)
    rows = [row | {"source_from": 3, "source_to": 3, "batch_id": 2} for row in feed.ledger()[:1]]
    schema = feed.lake.reader(feed.spark).read_table_schema(LEDGER)
    write_rows(feed.spark, feed.lake, LEDGER, [{name: row[name] for name in schema.names} for row in rows])
    feed.write(points[2:])
    ([one], _) = explain(feed.spark, feed.settings, METRICS_1M, "window_start = '1970-01-01 00:00:00'", message=(0, 0))
    assert (one.events, one.holds) == (3, True)
    assert sorted((batch.batch, batch.silver_batches, batch.with_earlier) for batch in one.batches) == [
        (1, (0, 1), True),
        (2, (3, 3), False),
    ]


@pytest.mark.soak
def test_metrics_of_a_range_are_the_same_in_sql_and_in_python(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    rng, hour = random.Random(4), timedelta(hours=1)
    times = [rng.randrange(-36 * 3600, 60 * 3600) * SECOND for _ in range(120)]
    changes = [change("st"[i % 2], "r", i, ts, price=rng.gauss(1e6, 1)) for i, ts in enumerate(times)]
    feed.write(changes[:80]).run()
    limit(monkeypatch, rewritten_rows=0)  # what is replaced is marked in deletion vectors
    feed.write(changes[80:]).run()
    epoch, sql = datetime.fromtimestamp(0, UTC), "SELECT * FROM metrics_between({}, {}) ORDER BY session_id"
    for begin, end in ((-25 * hour, 49 * hour + hour / 60), (3 * hour + hour / 4, 5 * hour)):
        found = metrics(feed.settings, epoch + begin, epoch + end, spark=feed.spark).rows.to_pylist()
        edges = (f"timestamp_millis({edge // timedelta(milliseconds=1)})" for edge in (begin, end))
        names, rows = fetch_query_result(feed.spark, feed.settings, sql.format(*edges))
        assert [dict(zip(names, row, strict=True)) for row in rows] == [
            {name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for name, value in row.items()}
            | {"whole": True}
            for row in found
        ]
        inside = [ts for ts in times if begin <= timedelta(milliseconds=ts) < end]
        assert sum(row["points"] for row in found) == len(inside) > 0


@pytest.mark.soak  # the last of the random batches is large, too
@pytest.mark.parametrize("driver_bytes", [1 << 20, 0])
def test_a_large_batch_is_written_from_the_workers_and_merged_where_there_is_room(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
):
    limit(monkeypatch, inline_bytes=10, driver_bytes=driver_bytes, rewritten_rows=driver_bytes)
    all_in_files(monkeypatch)
    first = [change("s", "r", i, i * 10 * SECOND, price=float(i), qty=i, status="on") for i in range(30)]
    late = [change("s", "r", 30 + i, at * SECOND, price=1.5) for i, at in enumerate([5, 285])]
    feed.write(first).run().write(late).run()
    assert (feed.averages(), feed.minutes()) == by_hand([*first, *late], 3)
    feed.require_exact()
    assert [*feed.settings.home.glob("scratch/*/*")] == []
