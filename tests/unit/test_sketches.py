"""Sketches: the same bytes whatever the batches, and figures within what they promise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sketches import QUANTILE_ERROR, Buckets, SketchAggregate, unpack_sketch_entries
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.settings.gold import GoldSettings, ProductSettings
from sessionlake.settings.model import Settings
from support.seeds import examples

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# All doubles but those so near to zero that they have fewer digits than others.
NUMBERS = st.floats(allow_nan=False, allow_subnormal=False) | st.integers(-5, 5).map(float)
TEXTS = st.text(max_size=3)


def product(of: str, keys: list[str], **aggregates: str) -> Product:
    own = {"name": "own", "of": of, "keys": keys, "aggregates": aggregates}
    gold = GoldSettings(products=(ProductSettings.model_validate(own),))
    return list_declared_products(Settings(gold=gold))[-1]


NUMERIC = product("numbers", ["topic"], n="count", **{kind: kind for kind in SHARES})
DISTINCT = product("texts", ["topic"], n="count", texts="approx_distinct")


def events(values: list[Any], topics: list[str], kind: pa.DataType) -> pa.Table:
    numbers = pa.array(range(len(values)), pa.int64())
    names = pa.array(topics, pa.string())
    return pa.table({"topic": names, "ts": numbers, "position": numbers, "value": pa.array(values, kind)})


def by_topic(rows: pa.Table) -> dict[str, dict[str, Any]]:
    return {row["topic"]: row for row in rows.to_pylist()}


@examples(usual=60, in_all=600)
@given(st.data(), st.sampled_from([(NUMERIC, NUMBERS, pa.float64()), (DISTINCT, TEXTS, pa.string())]))
def test_batches_in_any_order_come_to_the_same_bytes_as_all_at_once(data: Any, case: tuple[Any, ...]) -> None:
    own, values, kind = case
    drawn = data.draw(st.lists(st.tuples(st.sampled_from("ab"), values), max_size=40))
    table = events([value for _, value in drawn], [topic for topic, _ in drawn], kind)
    whole = own.aggregate_events(table)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=4)))
    parts = [own.aggregate_events(table.slice(a, b - a)) for a, b in pairwise([0, *cuts, len(drawn)])]
    held = own.arrow_schema().empty_table()
    for part in data.draw(st.permutations(parts)):
        rows = own.merge_rows(part, held)
        kept = [row for name, row in by_topic(held).items() if name not in by_topic(rows)]
        held = pa.concat_tables([rows, pa.Table.from_pylist(kept, own.arrow_schema())])
    assert by_topic(held) == by_topic(whole)
    for name, kept in own.aggregates.items():
        if isinstance(kept, SketchAggregate):
            column = {name: convert_to_contiguous_array(whole[name])}
            twice = own.merge_rows(pa.concat_tables([whole, whole]))[name]
            assert kept.combine_partial_results(name, column, column)[name].equals(convert_to_contiguous_array(twice))


@examples(usual=60, in_all=600)
@given(st.lists(NUMBERS, min_size=1, max_size=200))
def test_a_quantile_is_within_its_error_of_the_number_that_a_share_of_all_are_not_above(values: list[float]) -> None:
    [row] = NUMERIC.aggregate_events(events(values, ["a"] * len(values), pa.float64())).to_pylist()
    for name, share in SHARES.items():
        exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
        assert row[name] == exact or abs(row[name] - exact) <= QUANTILE_ERROR * abs(exact)


@pytest.mark.parametrize("distinct", [1, 10, 300, 2_000, 40_000, 60_000, 300_000])
def test_an_approximate_count_is_within_two_percent(distinct: int) -> None:
    values = [f"text {i % distinct}" for i in range(distinct + 100)]
    [row] = DISTINCT.aggregate_events(events(values, ["a"] * len(values), pa.string())).to_pylist()
    assert row["n"] == distinct + 100
    assert row["texts"] == pytest.approx(distinct, rel=0.02)


@pytest.mark.soak
def test_the_error_of_approximate_counts_is_what_the_literature_says_and_without_bias() -> None:
    found = []
    for run in range(60):
        values = [f"{run} {i}" for i in range(20_000)]
        [row] = DISTINCT.aggregate_events(events(values, ["a"] * len(values), pa.string())).to_pylist()
        found.append(row["texts"] / 20_000 - 1)
    assert np.std(found) < 1.3 * 1.04 / math.sqrt(1 << 14)
    assert abs(np.mean(found)) < 3 * 0.0081 / math.sqrt(60)


def test_what_is_stored_means_the_same_for_good() -> None:
    """Other bytes for the same values need another `format`, by which a table of before is known, and made anew."""
    [row] = DISTINCT.aggregate_events(events(["on", "off", ""], ["a"] * 3, pa.string())).to_pylist()
    assert row["__sl_registers"].hex() == "ee1b012c2d01473a01"
    [row] = NUMERIC.aggregate_events(events([0.0, -1.5, 3.25, math.inf], ["a"] * 4, pa.float64())).to_pylist()
    assert unpack_sketch_entries(pa.array([row["__sl_buckets"]]), Buckets.entry_type)[0].tolist() == [
        (65_567, 1), (131_072, 1), (196_648, 1), (262_080, 1),
    ]  # fmt: skip


def test_no_sketch_grows_beyond_what_it_can_tell_apart_whatever_comes() -> None:
    """Random bits as numbers, and a new text in each of 300,000 events: 3 MiB at most, and 48 KiB."""
    bits = np.random.default_rng(1).bytes(8 * 300_000)
    numbers = np.frombuffer(bits, "<f8")
    finite = numbers[np.isfinite(numbers)].tolist()
    own = product("numbers", ["topic"], middle="p50")
    one_sketch = own.aggregate_events(events(finite, ["a"] * len(finite), pa.float64()))["__sl_buckets"]
    assert one_sketch.nbytes < Buckets.entry_type.itemsize * (1 << 18) + 64
    texts = product("texts", ["topic"], n="approx_distinct")
    found = texts.aggregate_events(events([f"text {i}" for i in range(300_000)], ["a"] * 300_000, pa.string()))
    assert found["__sl_registers"].nbytes <= 3 * (1 << 14) + 64
