"""A product with a lateness: what it counts, and what it leaves out, arrival alone settles, whatever the batches."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.errors import ConfigError
from sessionlake.gold import Count, Product, Sum
from sessionlake.gold.aggregate.late import (
    APPLIED,
    LATE_KEYS,
    NEVER,
    are_changes_late,
    compute_first_unexpired_bucket_start,
    find_latest_time_by_topic,
    find_stream_times_by_partition,
)
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.gold.tables.expiry import compute_expiry_times
from sessionlake.gold.testing import Change, check
from sessionlake.protocol.types import Row
from sessionlake.settings.model import GoldSettings, Settings

DECLARED = DeclaredColumns(("price",), ("status",))
SECOND = 1_000


class Arrived(NamedTuple):
    """One message's point, and its Kafka timestamp (ms)."""

    partition: int
    kafka: int
    ts: int
    price: float | None


ARRIVALS = st.lists(
    st.builds(
        Arrived,
        st.integers(0, 2),
        st.integers(0, 40).map(lambda n: n * SECOND),
        st.integers(-20, 60).map(lambda n: n * SECOND) | st.sampled_from([-(2**63), 2**63 - 1, 253402300799999]),
        st.none() | st.floats(-100, 100),
    ),
    max_size=30,
)


def product(bucket: int | None, lateness: int | None) -> Product:
    aggregates = {"n": Count(), "all": Sum("value")}
    return Product("own", ("topic", "metric"), aggregates, bucket_ms=bucket, lateness_ms=lateness)


def table(arrived: Sequence[Arrived]) -> pa.Table:
    """As gold reads them: each with the stream time of its topic-partition when it came."""
    highest: dict[int, int] = {}
    rows = []
    for place, one in enumerate(arrived):
        now = highest[one.partition] = max(highest.get(one.partition, one.kafka), one.kafka)
        names = {"topic": "capture.a", "session_id": f"s{one.partition}", "row_id": "r", "ts": one.ts, "applied": now}
        where = {"partition": one.partition, "offset": place, "position": place, "ordinal": 0}
        rows.append(names | where | {"value:0": one.price, "text:0": None})
    texts = [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    numbers = [(name, pa.int64()) for name in ("ts", "applied", "offset", "position")]
    places = [("partition", pa.int32()), ("ordinal", pa.int32()), ("value:0", pa.float64()), ("text:0", pa.string())]
    return pa.Table.from_pylist(rows, pa.schema(texts + numbers + places))


def by_hand(arrived: Iterable[Arrived], bucket: int | None, lateness: int) -> tuple[dict[int, list[float]], set[int]]:
    """The values of each bucket, by its number, and the offsets of what is late, in the order of arrival."""
    highest: dict[int, int] = {}
    values: dict[int, list[float]] = {}
    late = set()
    for place, one in enumerate(arrived):
        now = highest[one.partition] = max(highest.get(one.partition, one.kafka), one.kafka)
        if one.price is None:
            continue
        number = one.ts // (bucket or 1)
        if (number + 1) * (bucket or 1) + lateness <= now:
            late.add(place)
        elif bucket is None:
            values.setdefault(0, []).append(one.price)
        elif number * bucket >= -62135596800000 and one.ts <= 253402300799999:
            values.setdefault(number, []).append(one.price)
    return values, late


@given(ARRIVALS, st.sampled_from([None, 10 * SECOND]), st.sampled_from([0, 1, 5 * SECOND]), st.randoms())
def test_any_batches_count_what_a_recomputation_by_arrival_counts_and_tell_of_all_else(
    arrived: list[Arrived], bucket: int | None, lateness: int, chance: random.Random
):
    own, changes = product(bucket, lateness), table(arrived)
    cuts = sorted({0, len(arrived), *(chance.randint(0, len(arrived)) for _ in range(3))})
    held: dict[Any, Row] = {}
    told: list[Row] = []
    for first, end in pairwise(cuts):
        batch = changes.slice(first, end - first)
        before = pa.Table.from_pylist([*held.values()], own.arrow_schema())
        merged = own.merge_rows(own.aggregate_changes(batch, DECLARED), before)
        held |= {row.get("window_start"): row for row in merged.to_pylist()}
        told += own.select_late_rows(batch, DECLARED).to_pylist()
    values, late = by_hand(arrived, bucket, lateness)
    assert {row["offset"] for row in told} == late
    assert len({tuple(row[key] for key in LATE_KEYS) for row in told}) == len(told) == len(late)
    figures = sorted((row["n"], row["all"]) for row in held.values())
    assert [n for n, _ in figures] == sorted(len(each) for each in values.values())
    assert [total for _, total in figures] == pytest.approx(
        [total for _, total in sorted((len(each), math.fsum(each) + 0.0) for each in values.values())]
    )


@pytest.mark.parametrize(("applied", "late"), [(14_999, False), (15_000, True)])
def test_a_bucket_is_closed_when_stream_time_has_come_to_its_end_and_the_lateness_exactly(applied: int, late: bool):
    rows = check(product(10 * SECOND, 5 * SECOND), [Change(9_999, applied=applied, price=1.0)])
    assert (rows == []) is late


@pytest.mark.parametrize(("applied", "late"), [(14_999, False), (15_000, False), (15_001, True)])
def test_without_buckets_an_event_may_be_as_late_as_the_lateness(applied: int, late: bool):
    rows = check(product(None, 5 * SECOND), [Change(10_000, applied=applied, price=1.0)])
    assert (rows == []) is late


def test_a_lateness_is_part_of_the_logic_and_none_leaves_the_logic_that_tables_have():
    logics = {product(10, lateness).logic_hash for lateness in (None, 0, 1)}
    assert len(logics) == 3
    assert METRICS_1M.logic_hash == "e1524455351e"


def test_a_lateness_is_declared_as_a_duration_not_below_nothing(tmp_path):
    own = {"name": "own", "keys": ["topic"], "aggregates": {"n": "count"}, "bucket": "1 minute"}
    gold = GoldSettings.model_validate({"products": [own | {"lateness": "5 minutes"}]})
    assert list_declared_products(Settings(home=tmp_path, gold=gold))[-1].lateness_ms == 300_000
    with pytest.raises(ValidationError, match="lateness"):
        GoldSettings.model_validate({"products": [own | {"lateness": "-1 second"}]})


def test_one_that_is_made_from_another_products_rows_has_no_lateness(tmp_path, monkeypatch):
    text = "from dataclasses import replace\nfrom sessionlake.gold.aggregate.standard import METRICS_1D\n"
    (tmp_path / "own_late.py").write_text(text + 'OWN = replace(METRICS_1D, name="own", lateness_ms=1)\n')
    monkeypatch.chdir(tmp_path)
    gold = GoldSettings.model_validate({"products": [{"name": "own", "python": "own_late:OWN"}]})
    with pytest.raises(ConfigError, match=r"is computed from gold.metrics_1h, which does not say"):
        list_declared_products(Settings(home=tmp_path, gold=gold))


@given(st.integers(-(10**14), 10**14), st.integers(1, 10**6), st.integers(0, 10**7), st.integers(-3, 3))
def test_a_bucket_is_gone_when_what_came_for_it_would_be_too_late_by_as_much(now: int, bucket: int, kept: int, by: int):
    first = compute_first_unexpired_bucket_start(now, bucket, kept)
    ts = first + by * bucket
    changes = pa.table({"ts": [ts], APPLIED: [now]})
    assert (ts < first) == are_changes_late(changes, bucket, kept)[0]


def test_stream_times_are_reported_by_topic_partition_and_of_changes_that_have_one():
    topics, partitions, applied = ["a", "b", "a", "c", "a", "b"], [0, 1, 0, 0, 1, 1], [5, None, 9, None, 12, 3]
    changes = {"topic": pa.array(topics).dictionary_encode(), "partition": pa.array(partitions, pa.int32())}
    found = find_stream_times_by_partition(pa.table(changes | {APPLIED: pa.array(applied)}))
    assert found == {("a", 0): 9, ("a", 1): 12, ("b", 1): 3, ("c", 0): NEVER}
    assert find_latest_time_by_topic(found) == {"a": 12, "b": 3, "c": NEVER}


def test_a_topic_whose_stream_time_is_ahead_of_the_clock_loses_no_more_than_by_the_clock():
    kept = replace(product(60 * SECOND, None), retention_ms=3_600 * SECOND)
    found = compute_expiry_times(kept, {"right": 7_205 * SECOND, "ahead": 10**15, "unknown": NEVER})
    assert found.keys() == {"right", "ahead"}
    assert found["right"] == 3_600 * SECOND
    assert 0 <= time.time() * SECOND - 3_600 * SECOND - found["ahead"] < 120 * SECOND
