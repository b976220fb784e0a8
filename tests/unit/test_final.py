"""A product whose rows are appended when they are final: each once, and never to be another, whatever the batches."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.errors import ConfigError
from sessionlake.gold import Count, Product, Sum
from sessionlake.gold.aggregate.final import FinalRowProgress, FinalTable, find_final_table, select_newly_final_rows
from sessionlake.gold.aggregate.late import find_stream_times_by_partition, merge_latest_times
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.batch.final import _build_bucket_range_conditions
from sessionlake.gold.declared.tables import build_declared_gold_schemas, list_declared_products
from sessionlake.gold.testing import Change, check
from sessionlake.protocol.types import Row
from sessionlake.protocol.years import FIRST_MS
from sessionlake.settings.model import GoldSettings, Settings
from support.seeds import examples

SECOND, BUCKET = 1_000, 10_000
DECLARED = DeclaredColumns(("price",))
OWN = Product(
    "own",
    ("topic", "session_id", "metric"),
    {"n": Count(), "all": Sum("value")},
    bucket_ms=BUCKET,
    lateness_ms=5_000,
    output="append",
)
FINAL = FinalTable(OWN)


class Arrived(NamedTuple):
    """One message's point, and its Kafka timestamp (ms)."""

    session: int
    partition: int
    kafka: int
    ts: int
    price: float | None


ARRIVALS = st.lists(
    st.builds(
        Arrived,
        st.integers(0, 3),
        st.integers(0, 1),  # of a session, too: partitions may be added while it goes on
        st.integers(0, 60).map(lambda n: n * SECOND),
        st.integers(-20, 60).map(lambda n: n * SECOND) | st.sampled_from([-(2**63), 2**63 - 1, 253402300799999]),
        st.none() | st.sampled_from([-1.5, 0.0, 2.0, 7.25]),
    ),
    max_size=40,
)
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    + [(name, pa.int64()) for name in ("ts", "applied", "position")]
    + [("partition", pa.int32()), ("ordinal", pa.int32()), ("value:0", pa.float64())]
)


def applied(arrived: Iterable[Arrived]) -> list[Row]:
    """As silver's changes have them: each with the stream time of its topic-partition when it came."""
    highest: dict[int, int] = {}
    rows = []
    for place, one in enumerate(arrived):
        now = highest[one.partition] = max(highest.get(one.partition, one.kafka), one.kafka)
        names = {"topic": "capture.a", "session_id": f"s{one.session}", "row_id": "r", "ts": one.ts, "applied": now}
        rows.append(names | {"partition": one.partition, "position": place, "ordinal": 0, "value:0": one.price})
    return rows


def by_hand(changes: Sequence[Row], until: int) -> dict[Any, tuple[int, float]]:
    """Of each session, topic-partition and bucket that is final by the first changes: how many points, and the sum."""
    read, values = changes[:until], dict[Any, list[float]]()
    for one in read:
        begin = one["ts"] // BUCKET * BUCKET
        inside = begin >= -62135596800000 and one["ts"] <= 253402300799999
        if one["value:0"] is not None and inside and one["applied"] < begin + BUCKET + 5_000:
            values.setdefault((one["session_id"], one["partition"], begin), []).append(one["value:0"])
    now = {place: max(one["applied"] for one in read if one["partition"] == place) for place in (0, 1) if any(
        one["partition"] == place for one in read)}  # fmt: skip
    return {key: (len(each), math.fsum(each)) for key, each in values.items() if key[2] + BUCKET + 5_000 <= now[key[1]]}


def shown(rows: Iterable[Row]) -> dict[Any, tuple[int, float]]:
    """The same of rows that were appended: each key once."""
    listed = [*rows]
    found = {
        (row["session_id"], row["partition"], int(row["window_start"].timestamp() * 1000)): (row["n"], row["all"])
        for row in listed
    }
    assert len(found) == len(listed)
    return found


class Gold:
    """What a process that keeps the product up does, over tables that outlive it."""

    def __init__(self) -> None:
        self.held: dict[Any, Row] = {}
        self.appended: list[Row] = []
        self.merged_by, self.appended_by, self.committed = -1, -1, -1
        self.before: dict[Any, int] = {}
        """Stream times of what was read of a version in part, when the last batch was committed."""
        self.start()

    def start(self) -> None:
        """A process begins: all that it knows is in the tables, and what silver's version tells."""
        following = self.committed + 1
        earlier = [row for row in self.appended if row["_batch"] < following]
        self.closing = FinalRowProgress(FINAL, self.limits(earlier), self.limits(self.appended))
        self.times = dict(self.before)

    def limits(self, rows: Iterable[Row]) -> dict[Any, int]:
        last: dict[Any, int] = {}
        for row in rows:
            last = merge_latest_times(
                last, {("capture.a", row["partition"]): int(row["window_start"].timestamp() * 1000)}
            )
        return FINAL.compute_bucket_ends(last)

    def take_in(self, batch: pa.Table, *, whole: bool, dies: int) -> bool:
        """One batch; it dies behind so many commits, of which there are two."""
        number = self.committed + 1
        part = OWN.aggregate_changes(batch, DECLARED)
        starts = part["window_start"].cast(pa.int64()).to_pylist()
        for start, partition in zip(starts, part["partition"].to_pylist(), strict=True):
            assert start // 1000 >= self.closing.appended_until.get(
                ("capture.a", partition), start // 1000
            )  # it is open
        if self.merged_by < number:
            before = pa.Table.from_pylist([*self.held.values()], OWN.arrow_schema())
            names = OWN.row_keys
            self.held |= {tuple(r[name] for name in names): r for r in OWN.merge_rows(part, before).to_pylist()}
            self.merged_by = number
        if dies == 1:
            return False
        self.times = (
            merge_latest_times(self.times, find_stream_times_by_partition(batch)) if batch.num_rows else self.times
        )
        if whole:
            until = self.closing.compute_times_to_append_until(self.times)
            table = pa.Table.from_pylist([*self.held.values()], OWN.arrow_schema())
            found = select_newly_final_rows(table, self.closing.appended_until, until).to_pylist() if until else []
            if self.appended_by < number and found:
                self.appended += [row | {"_batch": number} for row in found]
                self.appended_by = number
            elif self.appended_by == number:  # what would be appended once more is what is there
                there = [row for row in self.appended if row["_batch"] == number]
                assert shown(found) == shown(there)
            self.closing.mark_appended(until)
            self.times = {}
        if dies == 2:
            return False
        self.committed, self.before = number, dict(self.times)
        return True


@examples(usual=80, in_all=1000)
@given(ARRIVALS, st.randoms())
def test_any_batches_and_deaths_append_each_final_row_once_as_a_recomputation_has_it(
    arrived: list[Arrived], chance: random.Random
):
    changes, gold = applied(arrived), Gold()
    ends = sorted({len(changes), *(chance.randint(0, len(changes)) for _ in range(4))})
    first, seen = 0, dict[Any, tuple[int, float]]()
    for end in ends:
        version = changes[first:end]
        # Within a version, files of sessions have no order.
        sessions = chance.sample(range(4), 4)
        files = [[row for row in version if row["session_id"] == f"s{one}"] for one in sessions]
        cuts = [n for n in range(1, 4) if chance.random() < 1 / 3]
        parts = [[*chain(*files[a:b])] for a, b in zip([0, *cuts], [*cuts, 4], strict=True)]
        for number, part in enumerate(parts):
            batch = pa.Table.from_pylist(part, SCHEMA)
            while not gold.take_in(batch, whole=number == len(parts) - 1, dies=chance.choice([0, 0, 1, 2])):
                gold.start()
            if chance.random() < 1 / 4:
                gold.start()
        found = shown(gold.appended)
        assert found == by_hand(changes, end)
        assert {key: found[key] for key in seen} == seen  # none is another, or gone
        first, seen = end, found
    kept = {(*key, *row) for key, row in shown(gold.held.values()).items()}
    assert {(*key, *row) for key, row in seen.items()} <= kept  # nor in the table that is the state


@pytest.mark.parametrize(("time", "final"), [(14_999, []), (15_000, [0]), (24_999, [0]), (25_000, [0, 10_000])])
def test_a_row_is_final_when_stream_time_has_come_to_its_buckets_end_and_the_lateness_exactly(
    time: int, final: list[int]
):
    rows = OWN.aggregate_changes(
        pa.Table.from_pylist(applied([Arrived(0, 0, 0, ts, 1.0) for ts in (9_999, 10_000)]), SCHEMA), DECLARED
    )
    found = select_newly_final_rows(
        rows, {}, FINAL.compute_first_open_buckets({("capture.a", 0): time, ("capture.a", 1): 10**9})
    )
    assert [start // 1000 for start in found["window_start"].cast(pa.int64()).to_pylist()] == final


def test_rows_of_a_session_that_has_moved_between_topic_partitions_are_apart():
    changes = applied([Arrived(0, 0, 9, 1, 1.0), Arrived(0, 1, 9, 2, 2.0)])
    rows = OWN.aggregate_changes(pa.Table.from_pylist(changes, SCHEMA), DECLARED).to_pylist()
    assert [(row["partition"], row["n"], row["all"]) for row in rows] == [(0, 1, 1.0), (1, 1, 2.0)]
    assert check(OWN, [Change(9, price=1.0)])[0]["partition"] == 0


def test_all_that_ever_was_is_read_of_topics_alone_with_a_topic_partition_that_is_new():
    since = {("a", 0): 5_000, ("b", 0): 7_000, ("b", 1): 6_000}
    until = {("a", 0): 9_000, ("a", 2): 4_000, ("b", 0): 8_000, ("b", 1): 9_500}
    found = {
        tuple(topics[2]): [_ms(one[2]) for one in times]
        for topics, _, *times in _build_bucket_range_conditions(since, until)
    }
    assert found == {("b",): [6_000, 9_500], ("a",): [FIRST_MS, 9_000]}
    assert [*_build_bucket_range_conditions(since, {})] == []


def _ms(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def test_the_table_of_final_rows_has_the_keys_and_the_results_and_the_batch(tmp_path):
    names = ["topic", "session_id", "metric", "partition", "window_start", "n", "all", "_batch"]
    assert [name for name, _ in FINAL.column_types] == names
    gold = GoldSettings.model_validate({"products": [YAML]})
    found = build_declared_gold_schemas(Settings(home=tmp_path, gold=gold))["gold.own_final"]
    assert (found.is_append_only, found.statistics_columns) == (
        True,
        ("topic", "session_id", "partition", "window_start", "_batch"),
    )
    assert (gold.added_tables, find_final_table(METRICS_1M)) == (("gold.own", "gold.own_final"), None)


YAML = {
    "name": "own",
    "keys": ["topic", "session_id"],
    "bucket": "10 seconds",
    "lateness": "5 seconds",
    "aggregates": {"n": "count"},
    "output": "append",
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bucket": None}, "needs a bucket, which says when a row is complete"),
        ({"lateness": None}, "needs a lateness, after which no event is added to a bucket"),
        ({"keys": ["topic"]}, "topic and session_id among its keys, because the stream time"),
        ({"keys": ["session_id"], "bucket": None}, "needs a bucket.*; and topic and session_id among its keys"),
        ({"lateness": "1 hour", "retention": "1 hour"}, "a retention that is longer than the lateness"),
        ({"aggregates": {"partition": "count"}}, "column 'partition': gold.own has a column of this name itself"),
        ({"output": "complete"}, "each version of the table is a complete result.*VERSION AS OF"),
        ({"output": "upsert"}, "'update' or 'append'"),
    ],
)
def test_what_cannot_be_appended_is_refused_with_what_it_lacks_and_why(changed: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        GoldSettings.model_validate({"products": [YAML | changed]})


def test_a_table_of_final_rows_has_a_name_of_its_own_and_can_be_published():
    other = YAML | {"name": "own_final", "output": "update"}
    with pytest.raises(ValidationError, match="two tables of gold have the name own_final"):
        GoldSettings.model_validate({"products": [YAML, other]})
    assert GoldSettings.model_validate({"products": [YAML], "change_feed": ["own_final"]}).change_feed == ("own_final",)
    with pytest.raises(ValidationError, match="gold has no table own_final"):
        GoldSettings.model_validate({"products": [YAML | {"output": "update"}], "change_feed": ["own_final"]})


def test_output_is_part_of_the_logic_and_update_leaves_the_logic_that_tables_have():
    assert OWN.logic_hash != replace(OWN, output="update").logic_hash
    assert METRICS_1M.logic_hash == "e1524455351e"


def test_a_product_in_python_says_append_as_its_configuration_does(tmp_path, monkeypatch):
    text = "from sessionlake.gold import Count, Product\n"
    own = 'OWN = Product("own", ("topic", "session_id"), {"n": Count()}, bucket_ms=9, lateness_ms=9, output="append")\n'
    bare = 'BARE = Product("own", ("topic",), {"n": Count()}, output="append")\n'
    twice = own.replace("OWN", "TWICE").replace('"n"', '"partition"')
    (tmp_path / "own_final.py").write_text(text + own + bare + twice)
    monkeypatch.chdir(tmp_path)

    def declared(name: str, **said: str) -> Product:
        gold = GoldSettings.model_validate({"products": [{"name": "own", "python": f"own_final:{name}"} | said]})
        return list_declared_products(Settings(home=tmp_path, gold=gold))[-1]

    assert find_final_table(declared("OWN", output="append")) is not None
    with pytest.raises(ConfigError, match=r"has the output 'append', but the configuration says 'update'"):
        declared("OWN")
    with pytest.raises(
        ConfigError, match=r"own_final:BARE: output append needs a bucket.*; and a lateness.*; and topic"
    ):
        declared("BARE", output="append")
    with pytest.raises(ConfigError, match=r"own_final:TWICE: the column 'partition' is declared twice"):
        declared("TWICE", output="append")
