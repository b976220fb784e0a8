"""Averages over decimals are the doubles nearest to the exact averages, whatever the batches, shards and tails."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.fold.pack import ChangePacker, list_owner_columns_of_averages
from sessionlake.gold.fold.series import EXACT, RollingAverage
from sessionlake.gold.fold.shard import GoldShardFold, TrackedAverageTable
from sessionlake.gold.fold.unscaled_decimals import UnscaledDecimals, replace_decimal_columns_by_unscaled
from support.seeds import examples
from unit.test_points import _SCHEMA, HOUR, METRICS, SERIES, Change, Gold, change, left_sum

DECLARED = DeclaredColumns(METRICS, decimals=METRICS[:1])
"""`price` is a decimal, `qty` a double."""
CONTEXT = Context(prec=80)
Kind = tuple[int, int]
"""Precision and scale."""


def gold_of(kind: Kind, shards: int, idle_ms: int) -> Gold:
    packer = ChangePacker(DECLARED, list_owner_columns_of_averages(SERIES))
    schema = _SCHEMA.append(pa.field("decimal:0", pa.decimal128(*kind)))
    gold = Gold(shards, idle_ms, SERIES, packer=packer, schema=schema)
    gold.fold = GoldShardFold(DECLARED, tuple(map(TrackedAverageTable, SERIES)), (), idle_ms, idle_ms)
    return gold


def with_price(of: Change, price: Decimal | None) -> Change:
    return of | {"value:0": None if price is None else float(price), "decimal:0": price}


def by_hand(changes: list[Change], series: RollingAverage) -> dict[Any, Any]:
    """Value and average of each row, with the sums of decimals as fractions."""
    lines: dict[Any, list[tuple[Any, Any]]] = {}
    for c in changes:
        for metric, value in (("price", c["decimal:0"]), ("qty", c["value:1"])):
            if value is not None:
                key = tuple((c | {"metric": metric})[name] for name in series.keys)
                lines.setdefault(key, []).append((tuple(c[name] for name in series.point_columns), value))
    found = {}
    for key, line in lines.items():
        line.sort()
        for i, (place, value) in enumerate(line):
            last = [v for _, v in line[max(0, i - series.window_points + 1) : i + 1]]
            is_exact = isinstance(value, Decimal)
            mean = float(sum(map(Fraction, last)) / len(last)) if is_exact else left_sum(last) / len(last)
            found[(*key, *place)] = (float(value), mean, len(last), value if is_exact else None)
    return found


def held(gold: Gold, series: RollingAverage) -> dict[Any, Any]:
    units, scale = EXACT
    rows = gold.tables[series.name].items()
    exact = {
        key: None if row[scale] is None else Decimal(int(row[units])).scaleb(-row[scale], CONTEXT) for key, row in rows
    }
    return {key: (row["value"], row["average"], row["points"], exact[key]) for key, row in rows}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Kind, list[list[Change]]]:
    """Batches of changes that set decimals of up to 38 digits, which may cancel, and doubles."""
    precision = draw(st.sampled_from([1, 9, 18, 19, 28, 38]))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    units = st.integers(-most, most) | st.sampled_from([most, -most, 0, 1, -1])
    price = st.none() | units.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))
    at = st.tuples(st.sampled_from(["s", "t", "s/1"]), st.sampled_from("rq"), st.integers(-200_000, 200_000))
    raw = draw(
        st.lists(
            st.tuples(at, st.integers(0, 3 * HOUR), price, st.none() | st.floats(-1e6, 1e6)), min_size=1, max_size=40
        )
    )
    drift = draw(st.sampled_from([0, 10_000]))
    made = [
        with_price(change(session, row, i, ts + i * drift, kafka, **({} if qty is None else {"qty": qty})), value)
        for i, ((session, row, ts), kafka, value, qty) in enumerate(raw)
    ]
    cuts = sorted(draw(st.sets(st.integers(0, len(made)), max_size=10)) | {0, len(made)})
    return (precision, scale), [made[a:b] for a, b in pairwise(cuts)]


@examples(usual=60, in_all=1000)
@given(histories(), st.integers(1, 5), st.sampled_from([0, HOUR, 10 * HOUR]))
def test_in_any_batches_shards_and_idle_times_averages_are_what_fractions_say(
    history: tuple[Kind, list[list[Change]]], shards: int, idle: int
) -> None:
    kind, batches = history
    gold = gold_of(kind, shards, idle)
    for batch in batches:
        gold.batch(batch)
    for series in SERIES:
        assert held(gold, series) == by_hand([c for batch in batches for c in batch], series)


def test_a_late_point_beyond_the_tail_is_averaged_with_the_exact_values_of_the_table() -> None:
    gold, wide, least = gold_of((38, 10), 1, HOUR), Decimal("9" * 28 + "." + "9" * 10), Decimal("0.0000000001")
    values = [wide, least, wide.copy_negate(), *[least] * 20]
    sent = [with_price(change("s", "r", i, i * 1_000), value) for i, value in enumerate(values)]
    late = with_price(change("s", "r", 99, 1_500), least)
    gold.batch(sent)
    gold.batch([late])
    assert gold.beyond == 1  # series across sessions have longer tails
    for series in SERIES:
        assert held(gold, series) == by_hand([*sent, late], series)
    row = gold.tables["rolling_average"]["capture.a", "s", 0, "r", "price", 2_000, 2, 0]
    assert (row["average"], row["revision"]) == (float((2 * Fraction(least) - Fraction(wide)) / 3), 1)


@pytest.mark.parametrize(
    "values",
    [
        ["1.5", "0.25", "1e-10"],  # the scale of the column was changed
        ["9" * 38, "0.1", "-" + "9" * 38],
        ["0.1", "0.2", "0.3"],
    ],
)
def test_a_window_over_values_of_several_scales_is_exact(values: list[str]) -> None:
    decimals = [Decimal(text) for text in values]
    scales = [-int(one.as_tuple().exponent) if one.as_tuple().exponent < 0 else 0 for one in decimals]
    parts = [
        UnscaledDecimals.from_decimals(pa.array([one], pa.decimal128(38, s)))
        for one, s in zip(decimals, scales, strict=True)
    ]
    units = UnscaledDecimals.concat_points(*parts)
    sizes = np.arange(1, len(values) + 1)
    found = units.replace_by_exact_averages(np.full(len(values), np.nan), np.arange(len(values)), sizes)
    means = [float(sum(map(Fraction, decimals[:n])) / n) for n in sizes.tolist()]
    assert found.tolist() == means


def test_a_window_with_a_double_keeps_its_average_over_doubles() -> None:
    one = UnscaledDecimals.from_decimals(pa.array([Decimal("0.1")]))
    units = UnscaledDecimals.concat_points(UnscaledDecimals.create_nulls(1), one, one)
    assert units.replace_by_exact_averages(np.full(3, 7.0), np.arange(3), np.array([1, 2, 2])).tolist() == [
        7.0,
        7.0,
        0.1,
    ]


@given(st.lists(st.none() | st.decimals(-(10**19), 10**19, places=2), max_size=8))
def test_exact_values_are_the_same_after_they_were_stored(values: list[Decimal | None]) -> None:
    column = pa.chunked_array([pa.array(values, pa.decimal128(22, 2))])
    stored = replace_decimal_columns_by_unscaled(pa.table({"d": column}), ["d"])
    assert stored["_scale"].to_pylist() == [None if one is None else 2 for one in values]
    assert stored["_units"].to_pylist() == [None if one is None else one.scaleb(2) for one in values]
    found = UnscaledDecimals.from_table(stored)
    if found is None:
        assert all(one is None for one in values)
    else:
        again = found.to_columns()
        assert {name: part.to_pylist() for name, part in again.items()} == stored.to_pydict()
