"""Metrics over any range: whichever tiers they are read from, they are what the minutes alone come to."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.standard import (
    METRICS_1D,
    METRICS_1H,
    METRICS_1M,
    MINUTE,
    TIERS,
    create_product_of_metrics_answer,
    split_time_range_by_metrics_table,
)
from sessionlake.gold.query import KEYS, metrics, read_metrics_answer
from sessionlake.gold.tables.table_properties import LOGIC
from sessionlake.settings.model import Settings
from support.seeds import examples

HOUR, DAY = 60 * MINUTE, 1440 * MINUTE
FIRST = -2 * DAY
MINUTES = st.integers(-3 * 1440, 3 * 1440).map(lambda n: n * MINUTE)


def points() -> pa.Table:
    """Four days of numbers of three series, some before 1970."""
    rnd = random.Random(7)
    times = [FIRST + rnd.randrange(4 * DAY) for _ in range(1500)] + [FIRST + n * HOUR for n in range(96)]
    events = [
        ("capture.a", rnd.choice("st"), "r", "price", rnd.choice([0, 0, 1]), ts, position, 0, rnd.gauss(1e3, 1))
        for position, ts in enumerate(times)
    ]
    names = (*KEYS, "partition", "ts", "position", "ordinal", "value")
    types = [*[pa.string()] * 4, pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.float64()]
    columns = zip(names, types, zip(*events, strict=True), strict=True)
    return pa.table({name: pa.array(values, kind) for name, kind, values in columns})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The tiers as gold leaves them, a file a day of each."""
    found = Settings(home=tmp_path_factory.mktemp("metrics") / "home")
    rows = METRICS_1M.aggregate_events(points())
    for tier in reversed(TIERS):
        rows = tier.aggregate_shorter_buckets(rows) if tier.below else rows
        day = pa.compute.floor_temporal(rows[START], unit="day")
        for one in pa.compute.unique(day):
            part = rows.filter(pa.compute.equal(day, one))
            write_deltalake(FolderStorage(found).path(tier.table_name), part, mode="append")
        DeltaTable(FolderStorage(found).path(tier.table_name)).alter.set_table_properties(
            {LOGIC: tier.logic_hash}, raise_if_not_exists=False
        )
    return found


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    ("begin", "end", "step", "read"),
    [
        (0, DAY, None, [("1d", 0, DAY)]),
        (MINUTE, HOUR - MINUTE, None, [("1m", MINUTE, HOUR - MINUTE)]),
        (HOUR - MINUTE, 2 * HOUR, None, [("1m", HOUR - MINUTE, HOUR), ("1h", HOUR, 2 * HOUR)]),
        (
            -DAY - HOUR - MINUTE, DAY + MINUTE, None,
            [("1m", -DAY - HOUR - MINUTE, -DAY - HOUR), ("1h", -DAY - HOUR, -DAY), ("1d", -DAY, DAY),
             ("1m", DAY, DAY + MINUTE)],
        ),
        (0, DAY, HOUR, [("1h", 0, DAY)]),
        (0, DAY, 90 * MINUTE, [("1m", 0, DAY)]),
        (0, 2 * DAY, 2 * DAY, [("1d", 0, 2 * DAY)]),
    ],
)  # fmt: skip
def test_a_range_is_read_from_the_coarsest_tiers_that_serve(
    begin: int, end: int, step: int | None, read: list[tuple[str, int, int]]
) -> None:
    found = [
        (span.table.name.removeprefix("metrics_"), span.begin, span.end)
        for span in split_time_range_by_metrics_table(begin, end, step)
    ]
    assert found == read


@examples(usual=24, in_all=240)
@given(
    MINUTES, MINUTES, st.sampled_from([None, MINUTE, 7 * MINUTE, HOUR, 6 * HOUR, DAY, 3 * DAY]),
    st.sampled_from([KEYS, ("topic", "metric"), ("session_id",), ()]),
)  # fmt: skip
def test_the_answer_is_that_of_the_minutes_alone_and_of_the_points(
    home: Settings, begin: int, end: int, step: int | None, by: tuple[str, ...]
) -> None:
    begin, end = min(begin, end), max(begin, end) + MINUTE
    reader, answer = Lake(home).reader(), create_product_of_metrics_answer(by, step)
    found = read_metrics_answer(reader, answer, [*split_time_range_by_metrics_table(begin, end, step)], [])
    alone = read_metrics_answer(
        reader, answer, [*split_time_range_by_metrics_table(begin, end, step, [METRICS_1M])], []
    )
    assert found.rows.equals(alone.rows)
    assert found.rows.num_rows == 0 or sum(found.read.values()) <= sum(alone.read.values())
    every = points()
    inside = every.filter((pa.compute.field("ts") >= begin) & (pa.compute.field("ts") < end))
    once = answer.aggregate_events(inside).select(found.rows.column_names)
    expected = once.sort_by([(name, "ascending") for name in answer.row_keys]) if answer.row_keys else once
    for name in expected.column_names:
        known = expected[name].to_pylist()
        assert found.rows[name].to_pylist() == (_near(known) if name in ("sum", "average", "variance") else known)


def _near(values: list[float | None]) -> Any:
    return [value if value is None else pytest.approx(value, rel=1e-9) for value in values]


def test_files_that_cannot_have_rows_of_the_range_are_not_counted_as_read(home: Settings) -> None:
    found = metrics(home, moment(0), moment(DAY + HOUR + MINUTE), of={"session_id": ["s"]}, by=["session_id"])
    assert dict(found.files) == dict.fromkeys(
        (METRICS_1D.table_name, METRICS_1H.table_name, METRICS_1M.table_name), (1, 4)
    )
    assert dict(found.read) == {
        METRICS_1D.table_name: 2,  # one for each partition
        METRICS_1H.table_name: 2,
        METRICS_1M.table_name: found.read[METRICS_1M.table_name],
    }
    assert found.rows["session_id"].to_pylist() == ["s"]


def test_a_tier_that_is_not_whole_is_passed_over(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = home, moment(0), moment(2 * DAY)
    by_days = metrics(*asked)
    monkeypatch.setattr("sessionlake.gold.query.find_complete_tables", lambda _, __, tiers: [*tiers[1:]])
    assert dict(metrics(*asked).files) == {METRICS_1H.table_name: (2, 4)}
    assert metrics(*asked).rows["points"].equals(by_days.rows["points"])
    monkeypatch.setattr("sessionlake.gold.query.find_complete_tables", lambda _, __, tiers: [*tiers[:2]])
    with pytest.raises(
        LakeError, match=r"metrics_1m does not exist yet, or was not filled completely.* Run `sessionlake run gold`"
    ):
        metrics(*asked)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"since": moment(30_000)}, "since 1970-01-01 00:00:30.* is not a whole minute"),
        ({"until": moment(0)}, "the range of time is empty"),
        ({"until": datetime(2026, 1, 1)}, "until 2026-01-01 00:00:00 has no time zone"),  # noqa: DTZ001 - that is it
        ({"by": ["topic", "colour"]}, "metrics have no key colour. Choose from topic, session_id, row_id, metric"),
        ({"by": ["topic", "topic"]}, "names a key twice"),
        ({"step": timedelta(seconds=90)}, "is not a number of whole minutes"),
        ({"step": timedelta(0)}, "is not a number of whole minutes"),
    ],
)
def test_what_cannot_be_asked_is_refused(home: Settings, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        metrics(**({"settings": home, "since": moment(0), "until": moment(DAY)} | changed))
