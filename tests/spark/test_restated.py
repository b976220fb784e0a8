"""How averages came about: whatever the batches nothing is found, and whatever is changed is."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from sessionlake.delta.schemas.gold import GOLD_SCHEMAS
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.verify.averages import find_inconsistent_restatements
from sessionlake.protocol.types import Row
from support.seeds import seeds
from unit.test_points import BY_SENSOR, BY_SESSION, HOUR, METRICS, Gold, change

STEP = 10
SERIES = (
    BY_SESSION,
    BY_SENSOR,
    RollingAverage("by_metric", ("topic", "metric"), window_points=2, watermark_ms=40 * STEP),
    RollingAverage("final", window_points=4, watermark_ms=60 * STEP, publishes_early=False),
    RollingAverage("filled", ("topic", "row_id", "metric"), window_points=3, watermark_ms=20 * STEP, minimum_points=2),
)
TOLD = ", ".join(f"`{name}` {sql}" for name, sql in GOLD_SCHEMAS[RESTATEMENTS].column_types)
TOPICS = 36


class History:
    """Streams of as many topics, in batches, as gold folds them."""

    def __init__(self, rng: random.Random) -> None:
        self.gold, self.changes, self.told = Gold(2, rng.choice([0, HOUR]), SERIES), list[Row](), list[Row]()
        for position in range(24):
            for topic in range(TOPICS):
                late = rng.choice([0, 0, 0, 1, 3, 9, 40])
                values = {name: float(rng.randint(0, 3)) for name in METRICS if rng.random() < 0.7}
                row, ts = rng.choice("rq"), (position + rng.randint(-1, 1) - late) * STEP * 10
                made = change(rng.choice("st"), row, position, ts, position * HOUR // 8, **values)
                self.changes.append(made | {"topic": f"capture.{topic:02}"})
        cuts = sorted({0, len(self.changes), *rng.sample(range(len(self.changes)), 9)})
        for batch, (begin, end) in enumerate(pairwise(cuts)):
            before = len(self.gold.restated)
            self.gold.batch(self.changes[begin:end])
            self.told += [row | {"_batch": batch, "restated_at": None} for row in self.gold.restated[before:]]

    def of(self, series: RollingAverage) -> tuple[list[Row], list[Row]]:
        """Rows of the table and of its restatements, to be changed at will."""
        told = [dict(row) for row in self.told if row["table"] == series.table_name]
        return [dict(row) for row in self.gold.tables[series.name].values()], told


def broken(spark: Any, history: History, series: RollingAverage, table: list[Row], told: list[Row]) -> dict[str, str]:
    """By topic, the first thing that is wrong."""
    names = ("topic", "session_id", "row_id", "ts", "position", "ordinal", "partition", "offset")
    points = [
        (*(one[name] for name in names), metric, one[f"value:{i}"])
        for one in history.changes
        for i, metric in enumerate(METRICS)
        if one[f"value:{i}"] is not None
    ]
    ddl = "topic string, session_id string, row_id string, ts long, position long, ordinal int, partition int"
    frame = spark.createDataFrame(points, f"{ddl}, offset long, metric string, value double")
    columns = [name for name, _ in GOLD_SCHEMAS[RESTATEMENTS].column_types]
    held = spark.createDataFrame(
        [tuple(row[name] for name, _ in series.column_types) for row in table], series.columns_ddl
    )
    chain = spark.createDataFrame([tuple(row[name] for name in columns) for row in told], TOLD)
    found: dict[str, str] = {}
    for row in find_inconsistent_restatements(series, held, chain, frame).collect():
        found.setdefault(row["topic"], row["what"])
    return found


def row_of(series: RollingAverage, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in series.row_keys)


class Forger:
    """Changes one thing of a topic's rows in a way that cannot have come about; False where there is nothing to."""

    def __init__(self, series: RollingAverage, rng: random.Random, table: list[Row], told: list[Row]) -> None:
        self.series, self.rng, self.table, self.told = series, rng, table, told

    def chain(self, row: Row) -> list[Row]:
        mine = [one for one in self.told if row_of(self.series, one) == row_of(self.series, row)]
        return sorted(mine, key=lambda one: one["_batch"])

    def some(self, rows: list[Row]) -> Row | None:
        return self.rng.choice(rows) if rows else None

    def set(self, rows: list[Row], name: str, value: Callable[[Row], Any]) -> bool:
        row = self.some(rows)
        if row is not None:
            row[name] = value(row)
        return row is not None

    def a_revision(self) -> bool:
        return self.set(self.table, "revision", lambda row: row["revision"] + self.rng.choice([-1, 1, 5]))

    def a_pane(self) -> bool:
        restated = [row for row in self.table if self.chain(row)]
        return self.set(restated, "pane", lambda row: "late" if row["pane"] != "late" else "on_time")

    def a_pane_of_a_row_never_restated(self) -> bool:
        return self.set(self.table, "pane", lambda row: "early" if row["pane"] != "early" else "on_time")

    def a_figure(self) -> bool:
        return self.set([row for row in self.table if self.chain(row)], "average", lambda row: row["average"] + 1)

    def a_lost_restatement(self) -> bool:
        row = self.some(self.told)
        if row is not None:
            self.told.remove(row)
        return row is not None

    def a_restatement_twice(self) -> bool:
        row = self.some(self.told)
        if row is not None:
            self.told.append(row | {"_batch": row["_batch"] + self.rng.choice([0, 1])})
        return row is not None

    def a_restatement_of_no_row(self) -> bool:
        row = self.some(self.told)
        if row is not None:
            self.told.append(row | {"ts": row["ts"] + 1, "revision": 1})
        return row is not None

    def where_one_goes_on_from(self) -> bool:
        return self.set([one for one in self.told if one["revision"] > 1], "average_before", lambda _: 77.5)

    def where_one_leads_to(self) -> bool:
        return self.set(self.told, "average", lambda row: row["average"] + 0.25)

    def a_size(self) -> bool:
        return self.set(self.told, "points", lambda _: self.series.window_points + 1)

    def a_restatement_that_changes_nothing(self) -> bool:
        row = self.some([one for one in self.told if one["revision"] == 1])
        if row is not None:
            row |= {"average_before": row["average"], "points_before": row["points"]}
        return row is not None

    def a_restatements_pane(self) -> bool:
        return self.set(self.told, "pane", lambda row: "late" if row["pane"] != "late" else "on_time")

    def a_restatements_number(self) -> bool:
        return self.set(self.told, "revision", lambda row: row["revision"] + 1)

    def how_late(self) -> bool:
        return self.set(self.told, "late_ms", lambda row: row["late_ms"] + STEP - 3)

    def how_many(self) -> bool:
        return self.set(self.told, "late_points", lambda row: row["late_points"] + 1)

    def a_cause(self) -> bool:
        def other(row: Row) -> list[Row]:
            return [*row["because"][:-1], row["because"][-1] | {"offset": 9_999}]

        return self.set(self.told, "because", other)

    def a_logic(self) -> bool:
        return self.set(self.told, "logic", lambda _: "another")


FORGERIES = [name for name in vars(Forger) if name.startswith(("a_", "how_", "where_"))]


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_nothing_is_found_whatever_the_batches_and_each_forgery_of_one_topic_is(spark: Any, seed: int) -> None:
    rng = random.Random(seed)
    history, done = History(rng), set[str]()
    for series in SERIES:
        table, told = history.of(series)
        assert {row["pane"] for row in told} >= (
            {"late", "early"} if series.watermark_ms and series.publishes_early else {"late"}
        )
        assert broken(spark, history, series, table, told) == {}
        forged: dict[str, str] = {}
        rows, restatements = list[Row](), list[Row]()
        for topic in sorted({row["topic"] for row in table}):
            forger = Forger(series, rng, *([row for row in many if row["topic"] == topic] for many in (table, told)))
            name = FORGERIES[len(forged) % len(FORGERIES)]
            if rng.random() < 0.8 and getattr(forger, name)():
                forged[topic] = name
            rows, restatements = rows + forger.table, restatements + forger.told
        found = broken(spark, history, series, rows, restatements)
        assert {topic: forged.get(topic, what) for topic, what in found.items()} == forged
        done |= {*forged.values()}
    assert done == {*FORGERIES}


@pytest.mark.soak
def test_it_is_said_in_words(spark: Any) -> None:
    history = History(random.Random(3))
    table, told = history.of(BY_SESSION)
    row = max(table, key=lambda one: one["revision"])
    row["revision"] += 1
    [said] = broken(spark, history, BY_SESSION, table, told).values()
    assert said == f"has revision {row['revision']}, and {row['revision'] - 1} restatements"
