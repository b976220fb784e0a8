"""Products of gold: merged batch by batch equals all at once, and a recomputation written in plain Python."""

from __future__ import annotations

import math
import random
import re
import statistics
import sys
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.groups import RowGroups
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import DISTINCT_VALUES, METRICS_1D, METRICS_1H, METRICS_1M, STANDARD
from sessionlake.gold.declared.tables import build_declared_gold_schemas, list_declared_products
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.gold import AggregateKind, GoldSettings, ProductSettings
from sessionlake.settings.model import Settings
from support.seeds import examples

Change = tuple[str, str, int, int, float | None, float | None, str | None]
"""Session (`s/` is the one of id `s` in partition 1), row, ts, position, values."""
DECLARED = DeclaredColumns(("price", "qty"), ("status",))
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    + [("partition", pa.int32())]
    + [("ts", pa.int64()), ("position", pa.int64()), ("ordinal", pa.int32())]
    + [("value:0", pa.float64()), ("value:1", pa.float64()), ("text:0", pa.string())]
)
# Steps of a few seconds, minutes and days, so that buckets are shared, and times that have no bucket.
TIMES = st.integers(0, 400).map(lambda n: n * 7_000) | st.integers(-3, 3).map(lambda n: n * 86_000_000)
VALUES = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1e15, -1e15, math.nan])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["s", "t", "s/"]), st.sampled_from("ab"), TIMES | st.just(LAST_MS + 1), st.integers(0, 5),
        VALUES, VALUES,
        st.none() | st.sampled_from(["on", "off", ""]),
    ),
    max_size=25,
)  # fmt: skip


def table(changes: Iterable[Change]) -> pa.Table:
    rows = [
        dict(zip(SCHEMA.names, ("capture.a", s[0], r, len(s) - 1, ts, at, i, x, y, text), strict=True))
        for i, (s, r, ts, at, x, y, text) in enumerate(changes)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def incremental(batches: Iterable[pa.Table]) -> dict[str, pa.Table]:
    """The products' tables after these batches, kept up as the job does."""
    held = {product.name: product.arrow_schema().empty_table() for product in STANDARD}
    for batch in batches:
        parts: dict[str, pa.Table] = {}
        for product in STANDARD:
            below = product.below
            found = product.aggregate_shorter_buckets(parts[below.name]) if below else product.aggregate_events(
                product.source.extract_events(batch, DECLARED)
            )  # fmt: skip
            parts[product.name] = found
            rows = product.merge_rows(found, held[product.name])
            keys = {key_of(product, row) for row in rows.to_pylist()}
            kept = [row for row in held[product.name].to_pylist() if key_of(product, row) not in keys]
            held[product.name] = pa.concat_tables([rows, pa.Table.from_pylist(kept, product.arrow_schema())])
    return held


def key_of(product: Product, row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in product.row_keys)


def results(product: Product, rows: pa.Table) -> dict[Any, tuple[Any, ...]]:
    names = [name for name in product.aggregates if not name.startswith("_")]
    found = {key_of(product, row): tuple(row[name] for name in names) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def by_hand(changes: list[Change], product: Product) -> dict[Any, tuple[Any, ...]]:
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for i, (session, row, ts, position, *values, text) in enumerate(changes):
        if product is DISTINCT_VALUES:
            if text is not None:
                groups.setdefault(("capture.a", "status", text), []).append((ts, position, i, text))
            continue
        for metric, value in zip(("price", "qty"), values, strict=True):
            if value is not None and not math.isnan(value) and ts <= LAST_MS:
                start = ts // product.bucket_ms
                key = ("capture.a", session[0], row, metric, len(session) - 1, start)
                groups.setdefault(key, []).append((ts, position, i, value + 0.0))
    found = {}
    for key, events in groups.items():
        events.sort(key=lambda event: event[:3])
        v = [event[3] for event in events]
        if product is DISTINCT_VALUES:
            found[key] = (len(v), events[0][0], events[-1][0])
        else:
            start = np.datetime64(key[-1] * product.bucket_ms, "ms").astype("datetime64[us]")
            when = pa.scalar(start).cast(pa.timestamp("us", "UTC")).as_py()
            total = math.fsum(v)
            spread = float(statistics.variance(map(Fraction, v))) if len(v) > 1 else None
            found[*key[:-1], when] = (
                len(v),
                min(v),
                max(v),
                Near(total),
                Near(total / len(v)),
                v[0],
                v[-1],
                Near(spread),
            )
    return found


class Near:
    """Equal to a number that is as near as sums with twice a double's digits are, whatever cancels in them."""

    def __init__(self, value: float | None) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return other == (self.value if self.value is None else pytest.approx(self.value, rel=1e-14, abs=1e-12))

    __hash__ = None


@examples(usual=60, in_all=500)
@given(CHANGES, st.lists(st.integers(0, 25), max_size=4))
def test_any_batches_come_to_what_plain_python_comes_to(changes: list[Change], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(changes)]
    found = incremental(table(changes[:b]).slice(a) for a, b in pairwise(edges))
    for product in STANDARD:
        assert results(product, found[product.name]) == by_hand(changes, product)


@pytest.mark.parametrize("seed", range(5))
def test_variance_merges_stably_far_from_zero(seed: int) -> None:
    rnd = random.Random(seed)
    values = [1e9 + rnd.gauss(0, 1) for _ in range(500)]
    changes: list[Change] = [("s", "a", i * 10, i, value, None, None) for i, value in enumerate(values)]
    rnd.shuffle(changes)
    cuts = sorted(rnd.sample(range(500), 7))
    parts = [table(changes[a:b]) for a, b in zip([0, *cuts], [*cuts, 500], strict=True)]
    [row] = incremental(parts)["metrics_1m"].to_pylist()
    assert row["variance"] == pytest.approx(statistics.variance(values), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "told"), [((1e154, -1e154), False), ((1e153, -1e153), True), ((1e200, 1e200), False)]
)
def test_no_variance_is_reported_where_squares_are_beyond_the_range_of_doubles(
    values: tuple[float, ...], told: bool
) -> None:
    changes: list[Change] = [("s", "a", i * 10, i, value, None, None) for i, value in enumerate(values)]
    [row] = incremental([table(changes)])["metrics_1m"].to_pylist()
    assert row["variance"] == (pytest.approx(2e306) if told else None)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=40))
def test_groups_are_reduced_whatever_their_sizes(pairs: list[tuple[int, int]]) -> None:
    rows = pa.table(
        {"key": pa.array([k for k, _ in pairs], pa.int64()), "n": pa.array([n for _, n in pairs], pa.int64())}
    )
    groups = RowGroups.group_rows(rows, ["key"])
    reduced = groups.merge_rows_of_each_group({"n": rows["n"].to_numpy()}, lambda a, b: {"n": a["n"] + b["n"]})
    found = dict(zip(rows["key"].to_numpy()[groups.first_row_indices].tolist(), reduced["n"].tolist(), strict=True))
    assert found == {key: sum(n for k, n in pairs if k == key) for key, _ in pairs}


def test_what_a_table_rests_on_shows_in_its_logic_and_nothing_else_does() -> None:
    assert len({product.logic_hash for product in STANDARD}) == len(STANDARD)
    assert METRICS_1M.logic_hash == Product(
        "other", METRICS_1M.keys, METRICS_1M.aggregates, bucket_ms=60_000, comment="in other words"
    ).logic_hash  # fmt: skip
    assert METRICS_1H.below is METRICS_1M
    assert METRICS_1D.logic_hash != METRICS_1H.logic_hash


@pytest.mark.parametrize("product", STANDARD, ids=lambda product: product.name)
def test_tables_have_the_columns_of_their_products(product: Product) -> None:
    assert TABLES[product.table_name].column_types == product.column_types
    assert TABLES[product.table_name].comment == product.comment


DECLARED_PRODUCT = {
    "name": "by_metric",
    "keys": ["topic", "metric"],
    "bucket": "1 hour",
    "aggregates": {"n": "count", "low": "min", "mean": "mean", "spread": "variance"},
}


def declared(**changed: Any) -> Settings:
    return Settings(gold=GoldSettings(products=(ProductSettings.model_validate(DECLARED_PRODUCT | changed),)))


def test_a_declared_product_merges_as_those_of_every_lake_do() -> None:
    [product] = list_declared_products(declared())[len(STANDARD) :]
    changes: list[Change] = [("st"[i % 2], "a", i * 600_000, i, float(i), None, None) for i in range(9)]
    parts = [product.aggregate_changes(table(changes[a:b]), DECLARED) for a, b in ((0, 2), (2, 7), (7, 9))]
    rows = product.merge_rows(pa.concat_tables(parts[1:]), parts[0]).sort_by("window_start").to_pylist()
    assert [(row["metric"], row["n"], row["low"], row["mean"], row["spread"]) for row in rows] == [
        ("price", 6, 0.0, 2.5, 3.5),
        ("price", 3, 6.0, 7.0, 1.0),
    ]
    assert build_declared_gold_schemas(declared())["gold.by_metric"].column_types == product.column_types


def test_columns_may_have_the_names_of_all_that_there_is() -> None:
    kinds = {kind.value: kind.value for kind in AggregateKind if kind is not AggregateKind.APPROX_DISTINCT}
    keys = ["topic", "session_id", "row_id", "metric"]
    [product] = list_declared_products(declared(keys=keys, aggregates=kinds | {"squares": "sum"}))[len(STANDARD) :]
    names = [name for name, _ in product.column_types]
    assert len(names) == len({*names})
    part = product.aggregate_changes(
        table([("s", "a", 0, 0, 2.0, None, None), ("s", "a", 5, 1, 4.0, None, None)]), DECLARED
    )
    [row] = product.merge_rows(part, part).to_pylist()
    assert (row["count"], row["sum"], row["squares"], row["mean"], row["first"], row["last"]) == (4, 12, 12, 3, 2, 4)


def test_an_event_whose_bucket_would_begin_before_year_1_is_in_none() -> None:
    [product] = list_declared_products(declared(bucket="7 days"))[len(STANDARD) :]
    times = [FIRST_MS, FIRST_MS + 7 * 86_400_000]
    changes: list[Change] = [("s", "a", ts, i, 1.0, None, None) for i, ts in enumerate(times)]
    [row] = product.aggregate_changes(table(changes), DECLARED).to_pylist()
    assert row["n"] == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"keys": ["topic", "colour"]},
            "keys: use some of topic, session_id, row_id, metric with of: numbers; found colour",
        ),
        ({"keys": ["topic", "topic"]}, "the column 'topic' is declared twice"),
        ({"aggregates": {"a": "first"}}, "first and last need the points of one series"),
        ({"aggregates": {"a=b": "sum"}}, "column 'a=b': Delta does not allow '=' in a column's name"),
        (
            {"of": "texts", "keys": ["value"]},
            "texts cannot be aggregated as mean, min, variance; use some of approx",
        ),
        (
            {"aggregates": {"a": "approx_distinct"}},
            "numbers cannot be aggregated as approx_distinct; use some of count, first",
        ),
        ({"aggregates": {"mean": "mean", "Mean": "mean"}}, "columns 'mean' and 'Mean' differ only in case"),
        ({"aggregates": {"a": "median"}}, "aggregates.a"),
        ({"bucket": "0 s"}, "bucket"),
        ({"name": "metrics_1m"}, "gold declares a table gold.metrics_1m"),
        ({"retention": "1 day", "bucket": None}, "`retention` counts from a bucket"),
        ({"retention": "1 day", "bucket": "1 hour", "keys": ["metric"]}, "and the key topic"),
        ({"retention": "59 minutes", "bucket": "1 minute"}, "retention"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_what_can(changed: dict[str, Any], said: str) -> None:
    with pytest.raises((ValidationError, ConfigError), match=re.escape(said)):
        list_declared_products(declared(**changed))


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        ({"metrics_1m": "2 days", "metrics_1h": "1 day"}, "keep metrics_1h at least as long as metrics_1m"),
        ({"metrics_1d": "1 day"}, "keep metrics_1d at least as long as metrics_1h"),
        ({"metrics_1m": "59 minutes"}, "greater than or equal"),
        ({"distinct_values": "1 day"}, "distinct_values"),
    ],
)
def test_a_coarser_tier_is_kept_no_shorter_than_a_finer_one(retention: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GoldSettings.model_validate({"retention": retention})
    kept = GoldSettings.model_validate({"retention": {"metrics_1m": "7 days", "metrics_1h": "90 days"}})
    days = [one.retention_ms and one.retention_ms / 86_400_000 for one in list_declared_products(Settings(gold=kept))]
    assert days == [7, 90, None, None]
    assert [one.logic_hash for one in list_declared_products(Settings(gold=kept))] == [
        one.logic_hash for one in STANDARD
    ]


def test_a_product_in_python_that_is_kept_for_a_time_has_buckets_by_topic(tmp_path: Path, monkeypatch: Any) -> None:
    code = "from sessionlake.gold import Count, Product\nOWN = Product('own', {keys}, {{'n': Count()}}, {more})\n"
    own = {"products": [{"name": "own", "python": "kept_for:OWN"}]}
    monkeypatch.chdir(tmp_path)
    settings_ = Settings(gold=GoldSettings.model_validate(own))
    for keys, more, is_right in (
        (("topic", "metric"), "bucket_ms=60_000, retention_ms=3_600_000", True),
        (("topic", "metric"), "retention_ms=3_600_000", False),
        (("metric",), "bucket_ms=60_000, retention_ms=3_600_000", False),
    ):
        (tmp_path / "kept_for.py").write_text(code.format(keys=keys, more=more))
        sys.modules.pop("kept_for", None)
        if is_right:
            assert list_declared_products(settings_)[-1].retention_ms == 3_600_000
        else:
            with pytest.raises(ConfigError, match="no bucket_ms or no key `topic`"):
                list_declared_products(settings_)
