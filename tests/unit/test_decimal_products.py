"""Products of a decimal column: sums of up to 38 digits in any batches equal the sums of Python's integers."""

from __future__ import annotations

import re
import statistics
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.gold.aggregate.decimals import MOST_DIGITS, read_unscaled_integers
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import VALUE_AS_DOUBLE, DeclaredColumns, build_order_column_name
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.declared.comments import build_product_comments
from sessionlake.gold.declared.tables import (
    build_declared_gold_schemas,
    create_product_from_settings,
    list_declared_products,
)
from sessionlake.gold.fold.product_payloads import compute_product_rows
from sessionlake.settings.model import Settings
from support.seeds import examples

SERIES = ["topic", "session_id", "row_id", "metric"]
RESULTS = {name: name for name in ("count", "sum", "min", "max", "mean", "first", "last")}
INEXACT = {"p50": "p50", "variance": "variance"}
Event = tuple[str, Decimal | None]
"""Row id and value."""


def settings(sql: str = "decimal(38,10)", **product: Any) -> Settings:
    feed = {
        "name": "orders",
        "topics": "orders",
        "session": "session",
        "key": ["id"],
        "columns": {"id": "string", "amount": {"type": sql, "from": "text"}, "price": "double"},
        "messages": [{"is": "update", "rows": [{"row": "all"}]}],
    }
    own = {"name": "own", "value": "amount", "keys": SERIES, "aggregates": RESULTS} | product
    return Settings.model_validate({"capture": {"feeds": [feed]}, "gold": {"products": [own]}})


def product_of(sql: str = "decimal(38,10)", **changed: Any) -> tuple[Product, DeclaredColumns]:
    made = settings(sql, **changed)
    return list_declared_products(made)[-1], get_value_columns(made)


def changes(events: list[tuple[int, Event]], sql: tuple[int, int]) -> pa.Table:
    """The changes of these events; the number of each is its place in the order of events."""
    same = {"topic": "orders", "session_id": "s"}
    table = {name: pa.array([value] * len(events), pa.string()) for name, value in same.items()}
    table["row_id"] = pa.array([row for _, (row, _) in events], pa.string())
    for name in ("ts", TURN, LIFE):
        table[name] = pa.array([NO_LIFE if name == LIFE else number for number, _ in events], pa.int64())
    for name in ("partition", "ordinal"):
        table[name] = pa.array([0] * len(events), pa.int32())
    values = [value for _, (_, value) in events]
    table["value:0"] = pa.array([None if value is None else float(value) for value in values], pa.float64())
    table["value:1"] = pa.nulls(len(events), pa.float64())
    return pa.table(
        table | {"text:0": pa.nulls(len(events), pa.string()), "decimal:0": pa.array(values, pa.decimal128(*sql))}
    )


def fold(product: Product, declared: DeclaredColumns, batches: list[pa.Table]) -> pa.Table:
    """The product's table after these batches, with its rows as they are stored."""
    stored = product.arrow_schema().empty_table()
    for batch in batches:
        part = product.aggregate_changes(batch, declared)
        rows = product.merge_rows(part, stored).cast(product.arrow_schema())
        touched = {tuple(row[key] for key in product.row_keys) for row in rows.to_pylist()}
        kept = [row for row in stored.to_pylist() if tuple(row[key] for key in product.row_keys) not in touched]
        stored = pa.concat_tables([rows, pa.Table.from_pylist(kept, product.arrow_schema())])
    return stored


def by_hand(events: list[Event], scale: int) -> dict[str, tuple[Any, ...]]:
    rows: dict[str, list[Decimal]] = {}
    for row, value in events:
        if value is not None:
            rows.setdefault(row, []).append(value)
    found = {}
    for row, values in rows.items():
        total = sum(map(Fraction, values))
        units = total * 10**scale
        assert units.denominator == 1
        fits = abs(units.numerator) < 10**MOST_DIGITS
        mean = float(total / len(values))
        found[row] = (len(values), total if fits else None, min(values), max(values), mean, values[0], values[-1])
    return found


@st.composite
def drawn(draw: st.DrawFn) -> tuple[tuple[int, int], list[Event], list[int]]:
    precision = draw(st.sampled_from([1, 5, 18, 19, 28, 37, 38]))
    scale = draw(st.integers(0, precision))
    largest = 10**precision - 1
    units = st.integers(-largest, largest) | st.sampled_from([largest, -largest, 0, 1, -1])
    units = units | st.integers(-99, 99).map(lambda n: max(-largest, min(largest, n)))
    value = units.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))
    events = draw(st.lists(st.tuples(st.sampled_from("ab"), st.none() | value), max_size=20))
    return (precision, scale), events, draw(st.lists(st.integers(0, 20), max_size=4))


@examples(usual=80, in_all=1000)
@given(drawn(), st.randoms(use_true_random=False))
def test_in_any_batches_and_order_results_are_what_fractions_say(case: Any, chance: Any) -> None:
    kind, events, cuts = case
    product, declared = product_of("decimal({},{})".format(*kind))
    numbered = [*enumerate(events)]
    chance.shuffle(numbered)
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    rows = fold(product, declared, [changes(numbered[a:b], kind) for a, b in pairwise(edges)])
    found = {row["row_id"]: tuple(row[name] for name in RESULTS) for row in rows.to_pylist()}
    assert found == by_hand(events, kind[1])
    assert rows.schema.field("sum").type == pa.decimal128(38, kind[1])
    assert {rows.schema.field(name).type for name in ("min", "max", "first", "last")} == {pa.decimal128(*kind)}


@examples(usual=40, in_all=500)
@given(drawn(), st.randoms(use_true_random=False))
def test_products_of_a_table_have_the_same_exact_results_of_its_rows_in_any_order(case: Any, chance: Any) -> None:
    kind, events, _ = case
    own = {"name": "own", "source": "silver.orders", "value": "amount", "order": ["number"], "keys": ["customer"]}
    declared = Settings.model_validate({"gold": {"products": [own | {"aggregates": RESULTS | INEXACT}]}})
    product = create_product_from_settings(declared.gold.products[0], value_type="decimal({},{})".format(*kind))
    numbered = [*enumerate(events)]
    chance.shuffle(numbered)
    values = pa.array([value for _, (_, value) in numbered], pa.decimal128(*kind))
    doubles = pa.array([None if value is None else float(value) for _, (_, value) in numbered], pa.float64())
    number = pa.array([place for place, _ in numbered], pa.int64())
    keys = pa.table({"customer": pa.array([row for _, (row, _) in numbered], pa.string())})
    rows = product.aggregate_source_table_rows(
        keys, pa.table({"value": values, VALUE_AS_DOUBLE: doubles, build_order_column_name(0): number})
    )
    found = {row["customer"]: tuple(row[name] for name in RESULTS) for row in rows.to_pylist()}
    assert found == by_hand(events, kind[1])
    for row in rows.to_pylist():
        own_values = [float(value) for name, value in events if name == row["customer"] and value is not None]
        assert row["p50"] == pytest.approx(sorted(own_values)[(len(own_values) - 1) // 2], rel=0.009)
        spread = statistics.variance(own_values) if len(own_values) > 1 else None
        rounding = 1e-28 * max(value**2 for value in own_values)  # of sums of squares that are pairs of doubles
        assert row["variance"] == (None if spread is None else pytest.approx(spread, rel=1e-6, abs=1e-12 + rounding))


def test_a_table_s_product_depends_on_the_type_of_its_decimal_column() -> None:
    own = {"name": "own", "source": "silver.orders", "value": "amount", "order": ["n"], "keys": ["k"]}
    [declared] = Settings.model_validate({"gold": {"products": [own | {"aggregates": {"a": "first"}}]}}).gold.products
    kinds = (None, "double", "bigint", "decimal(20,4)", "decimal(20,5)")
    logics = [create_product_from_settings(declared, value_type=kind).logic_hash for kind in kinds]
    assert logics[0] == logics[1] == logics[2]
    assert len({*logics}) == 3


def test_what_cancels_leaves_the_last_digit_where_doubles_leave_nothing() -> None:
    product, declared = product_of()
    wide = Decimal("9" * 28 + "." + "9" * 10)
    events = [("a", value) for value in (wide, Decimal("0.0000000001"), wide.copy_negate())]
    [row] = fold(product, declared, [changes([*enumerate(events)], (38, 10))]).to_pylist()
    assert (row["sum"], row["mean"]) == (Decimal("0.0000000001"), 1e-10 / 3)
    assert sum(float(value) for _, value in events) == 0


def test_a_sum_with_too_many_digits_is_null_until_it_has_fewer_again() -> None:
    product, declared = product_of("decimal(38,0)")
    largest = Decimal(10**38 - 1)
    values = [largest, largest, largest.copy_negate()]
    batches = [changes([(number, ("a", value))], (38, 0)) for number, value in enumerate(values)]
    sums = [fold(product, declared, batches[:n]).to_pylist()[0]["sum"] for n in (1, 2, 3)]
    assert sums == [largest, None, largest]


def test_the_doubles_of_other_tables_and_columns_do_not_change_with_it() -> None:
    made = settings(keys=["topic"], aggregates={"n": "count", "total": "sum"}, bucket="1 day")
    table = changes([(i, ("a", Decimal(f"0.{i}"))) for i in range(1, 10)], (38, 10))
    table = table.set_column(table.column_names.index("value:1"), "value:1", pa.array([1.5] * 9))
    tables = compute_product_rows(table, get_value_columns(made), list_declared_products(made))
    [row] = tables["own"].to_pylist()
    assert (row["n"], row["total"]) == (9, Decimal("4.5"))
    sums = {row["metric"]: row["sum"] for row in tables["metrics_1m"].to_pylist()}
    assert sums == {"amount": pytest.approx(4.5), "price": 13.5}
    assert [len(STANDARD), get_value_columns(made).decimals] == [4, ("amount",)]


def test_units_are_read_from_any_part_of_an_array() -> None:
    values = [Decimal(n) for n in (-(10**38) + 1, -1, 0, 1, 1 << 64, -(1 << 64), 10**38 - 1)]
    column = pa.array(values, pa.decimal128(38, 0))
    assert read_unscaled_integers(column.slice(1, 5)).tolist() == [-1, 0, 1, 1 << 64, -(1 << 64)]
    assert read_unscaled_integers(pa.chunked_array([column, column.slice(2)])).tolist() == [
        int(v) for v in values + values[2:]
    ]
    assert read_unscaled_integers(pa.chunked_array([], pa.decimal128(38, 0))).tolist() == []


def test_columns_and_comments_say_that_results_are_exact() -> None:
    made = settings("decimal(20,4)", aggregates={"total": "sum", "low": "min", "mean": "mean"}, keys=["topic"])
    types = dict(build_declared_gold_schemas(made)["gold.own"].column_types)
    assert (types["total"], types["low"], types["mean"]) == ("decimal(38,4)", "decimal(20,4)", "double")
    comments = build_product_comments(list_declared_products(made)[-1])
    assert comments["total"] == "Exact sum of value; null if it has more than 38 digits"
    logics = [product_of(sql, aggregates={"n": "first"})[0].logic_hash for sql in ("decimal(20,4)", "decimal(20,5)")]
    assert len({*logics}) == len(logics)


@pytest.mark.parametrize(
    ("product", "said"),
    [
        ({"value": "price"}, "which a product without `source` needs; decimal columns are amount"),
        ({"value": "none"}, "gold.products: own: value: 'none' is not a decimal column of a feed"),
        (
            {"aggregates": {"spread": "variance", "p": "p50"}},
            "cannot be aggregated exactly as p50, variance; use some of",
        ),
        ({"of": "texts", "keys": ["value"], "aggregates": {"n": "count"}}, "it names a column of numbers"),
    ],
)
def test_what_has_no_exact_result_is_refused(product: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        settings(**product)
