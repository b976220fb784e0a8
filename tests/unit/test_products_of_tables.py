"""Products of a table's rows: any batches of rows that come, change and go leave what all rows come to at once."""

from __future__ import annotations

import math
import re
import statistics
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from yaml import safe_dump

from sessionlake.errors import ConfigError, UsageError
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import build_order_column_name
from sessionlake.gold.declared.tables import (
    build_declared_gold_schemas,
    create_product_from_settings,
    list_declared_gold_tables,
)
from sessionlake.history.explain import explain
from sessionlake.operations.maintenance import list_streams_reading_table
from sessionlake.processors.job import require_loadable_processor
from sessionlake.publish.publishable import require_publishable
from sessionlake.settings.gold import AggregateKind, GoldSettings
from sessionlake.settings.model import ProcessorSettings, Settings, load_settings
from support.seeds import examples

FILLS = {
    "name": "fills_1m",
    "source": "silver.fills",
    "keys": ["customer", "venue"],
    "time": "filled_at",
    "value": "price",
    "order": ["number"],
    "bucket": "1 minute",
    "aggregates": {kind.value: kind.value for kind in AggregateKind if kind is not AggregateKind.APPROX_DISTINCT},
}
SCHEMA = pa.schema(
    [("customer", pa.string()), ("venue", pa.int32()), ("ts", pa.int64()), ("value", pa.float64()),
     (build_order_column_name(0), pa.string())]
)  # fmt: skip


def settings_of(*products: dict[str, Any], **more: Any) -> Settings:
    return Settings(gold=GoldSettings.model_validate({"products": products}), **more)


def product(**changed: Any) -> Product:
    return create_product_from_settings(settings_of(FILLS | changed).gold.products[0])


class Fill(NamedTuple):
    customer: str | None
    venue: int
    ts: int | None
    cents: int | None
    number: str | None


FILL = st.builds(
    Fill,
    st.sampled_from(["a", "b", None]),
    st.integers(1, 2),
    st.none() | st.integers(-3, 9).map(lambda n: n * 20_000),
    st.none() | st.integers(-500, 500),
    st.none() | st.sampled_from(["1", "10", "2"]),
)
BATCHES = st.lists(st.dictionaries(st.integers(0, 9), st.none() | FILL, max_size=6), max_size=6)


def figures(one: Product, fills: list[Fill]) -> dict[Any, dict[str, Any]]:
    columns = [[fill.customer for fill in fills], [fill.venue for fill in fills], [fill.ts for fill in fills]]
    columns += [[value_of(fill) for fill in fills], [fill.number for fill in fills]]
    typed = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    made = (
        one.aggregate_source_table_rows(*[pa.table(typed, schema=SCHEMA)] * 2)
        .select([*one.row_keys, *one.result_columns])
        .to_pylist()
    )
    return {tuple(row[name] for name in one.row_keys): row for row in made}


def value_of(fill: Fill) -> float | None:
    return None if fill.cents is None else math.nan if fill.cents == 0 else fill.cents / 100


def places(fills: list[Fill]) -> set[Any]:
    return {(fill.customer, fill.venue, (fill.ts or 0) // 60_000) for fill in fills if fill.ts is not None}


def kept_up(one: Product, batches: list[dict[int, Fill | None]]) -> tuple[dict[Any, Any], list[Fill]]:
    """The table after batches that say of rows what they are now: all rows of touched keys are gone through."""
    source: dict[int, Fill] = {}
    held: dict[Any, dict[str, Any]] = {}
    for batch in batches:
        touched = places([source[number] for number in batch if number in source])
        for number, fill in batch.items():
            source.pop(number, None)
            if fill is not None:
                source[number] = fill
        touched |= places([fill for fill in batch.values() if fill is not None])
        again = figures(one, [fill for fill in reversed(source.values()) if places([fill]) & touched])
        held = {key: row for key, row in held.items() if place_of(key) not in touched} | again
    return held, list(source.values())


def place_of(key: Any) -> Any:
    return (*key[:2], math.floor(key[2].timestamp()) // 60)


def by_hand(fills: list[Fill]) -> dict[Any, dict[str, Any]]:
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for fill in fills:
        if None not in (fill.customer, fill.ts) and fill.cents:
            start = datetime.fromtimestamp(fill.ts // 60_000 * 60, UTC)
            event = (fill.ts, fill.number is None, fill.number or "", fill.cents / 100)
            groups.setdefault((fill.customer, fill.venue, start), []).append(event)
    found = {}
    for key, events in groups.items():
        events.sort()
        values, ordered = [event[-1] for event in events], sorted(event[-1] for event in events)
        found[key] = dict(zip(("customer", "venue", "window_start"), key, strict=True)) | {
            "count": len(values),
            "sum": near(math.fsum(values)),
            "min": ordered[0],
            "max": ordered[-1],
            "mean": near(math.fsum(values) / len(values)),
            "variance": near(statistics.variance(values)) if len(values) > 1 else None,
            "first": values[0],
            "last": values[-1],
            "first_ts": events[0][0],
            "last_ts": events[-1][0],
        }
        for share in (50, 90, 95, 99):
            exact = ordered[max(math.ceil(share / 100 * len(ordered)), 1) - 1]
            found[key][f"p{share}"] = pytest.approx(exact, rel=1 / 128)
    return found


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-9)


@examples(usual=80, in_all=1000)
@given(BATCHES)
def test_rows_that_come_late_are_replaced_or_go_in_any_batches_leave_what_all_come_to(
    batches: list[dict[int, Fill | None]],
) -> None:
    one = product()
    held, left = kept_up(one, batches)
    assert held == figures(one, left) == by_hand(left)


def test_texts_are_reported_apart_and_rows_without_time_or_value_need_none() -> None:
    rows = {"venue": [1, 1, 1, 2, None], "value": ["x", "x", "y", None, "z"]}
    texts = {"keys": ["venue"], "time": None, "bucket": None, "order": [], "of": "texts"}
    found = product(**texts, aggregates={"n": "count", "kinds": "approx_distinct"}).aggregate_source_table_rows(
        *[pa.table(rows)] * 2
    )
    assert found.select(["venue", "n", "kinds"]).to_pylist() == [{"venue": 1, "n": 3, "kinds": 2}]
    counted = product(**texts, value=None, aggregates={"n": "count"}).aggregate_source_table_rows(
        *[pa.table({"venue": rows["venue"]})] * 2
    )
    assert counted.to_pylist() == [{"venue": 1, "n": 3}, {"venue": 2, "n": 1}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.binary(), [b"x", b"y"]),
        (pa.bool_(), [True, False]),
        (pa.int8(), [1, 2]),
        (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("1.10")]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 2)]),
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]),
    ],
    ids=str,
)
def test_keys_and_orders_are_of_any_type_whose_values_are_reported_apart(kind: pa.DataType, values: list[Any]) -> None:
    one = product(keys=["customer"], time=None, bucket=None, aggregates={"n": "count", "end": "last"})
    rows = {
        "customer": [values[0], values[1], values[0]],
        "value": [3.0, 2.0, 1.0],
        build_order_column_name(0): values[:1] + values[1:] * 2,
    }
    typed = pa.table(rows, pa.schema([("customer", kind), ("value", pa.float64()), (build_order_column_name(0), kind)]))
    found = one.aggregate_source_table_rows(typed, typed)
    assert found.schema.field("customer").type == kind
    made = {row["customer"]: (row["n"], row["end"]) for row in found.to_pylist()}
    assert made == {values[0]: (2, 3.0 if values[1] < values[0] else 1.0), values[1]: (1, 2.0)}


def test_rows_of_one_place_come_in_the_order_of_their_values() -> None:
    fills = [Fill("a", 1, 0, cents, None) for cents in (200, 300, 100)]
    [row] = figures(product(), fills).values()
    assert (row["first"], row["last"]) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lateness": "15 minutes"}, "lateness 0:15:00: with a source, no row is too late, because a result"),
        (
            {"retention": "30 days"},
            "retention 30 days, 0:00:00: with a source, results stay as long as its rows",
        ),
        ({"output": "append"}, "output append: with a source, no result is ever final"),
        ({"source": None}, "order: only a product with a `source` can have this key"),
        ({"source": "bronze.messages"}, "gold.products.0.source = 'bronze.messages': String should match"),
        ({"source": "gold.fills_1m"}, "source gold.fills_1m: a table cannot be its own source"),
        ({"time": None}, "first_ts: needs `time`, the source's column with the event time"),
        ({"time": None, "aggregates": {"n": "count"}}, "bucket: needs `time`"),
        ({"value": None}, "first: needs `value`, the source's column to aggregate"),
        ({"time": None, "bucket": None, "order": [], "aggregates": {"x": "last"}}, "last: needs `time` or `order`"),
        ({"keys": ["customer", "CUSTOMER"]}, "columns 'customer' and 'CUSTOMER' differ only in case"),
        ({"keys": ["window_start"]}, "column 'window_start': gold.fills_1m has a column of this name itself"),
        ({"keys": ["_Batch"]}, "column '_Batch': gold.fills_1m has a column of this name itself"),
        ({"aggregates": {"customer": "count"}}, "the column 'customer' is declared twice"),
        ({"aggregates": {"n u": "count"}}, "column 'n u': Delta does not allow ' ' in a column's name"),
        ({"aggregates": {"n": "approx_distinct"}}, "numbers cannot be aggregated as approx_distinct"),
        ({"of": "texts", "aggregates": {"n": "p50"}}, "texts cannot be aggregated as p50"),
        (
            {"python": "kinds:FILLS"},
            "the product in Python says everything else itself: leave out aggregates, bucket, order",
        ),
    ],
)
def test_what_means_nothing_of_a_tables_rows_is_refused_with_key_value_and_reason(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    file = tmp_path / "sessionlake.yml"
    file.write_text(safe_dump({"gold": {"products": [FILLS | changed]}}))
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        load_settings(file)
    assert "gold.products.0" in str(error.value)


def test_a_product_in_python_says_its_source_and_keys_in_both_places(tmp_path: Path, monkeypatch: Any) -> None:
    code = """
from sessionlake.gold import Count, Product, Rows, Sum
OWN = Product("own", ("customer",), {{"n": Count(), "paid": Sum("price")}}, source=Rows("silver.fills", {rows}), {more})
"""
    monkeypatch.chdir(tmp_path)
    own = {"name": "own", "python": "of_fills:OWN", "source": "silver.fills", "keys": ["customer"]}
    for changed, rows, more, said in (
        ({}, "time='at'", "bucket_ms=60_000", None),
        ({}, "", "bucket_ms=60_000", "needs a `time` in its Rows"),
        ({}, "", "lateness_ms=0", "leave out below, lateness_ms and retention_ms"),
        ({"source": "silver.others"}, "", "", "has the source silver.fills, but the configuration says silver.others"),
        ({"keys": ["venue"]}, "", "", "has the keys customer, but the configuration says venue"),
    ):
        (tmp_path / "of_fills.py").write_text(code.format(rows=rows, more=more))
        sys.modules.pop("of_fills", None)
        mine = settings_of(own | changed)
        if said is None:
            require_loadable_processor(mine, "own")
            assert create_product_from_settings(mine.gold.products[0]).source_columns == ("price",)
        else:
            with pytest.raises(ConfigError, match=said):
                require_loadable_processor(mine, "own")


def test_it_is_run_as_a_processor_behind_those_that_fill_its_source_and_gold_leaves_it_alone(tmp_path: Path) -> None:
    by_day = FILLS | {"name": "by_day", "source": "gold.fills_1m", "keys": ["customer"], "time": "window_start"}
    by_day |= {"value": "sum", "order": [], "bucket": "1 day", "aggregates": {"paid": "sum"}}
    fills = ProcessorSettings(name="fills", target="sessionlake.examples.logins:Logins")
    mine = settings_of(by_day, FILLS, processors=(fills,), home=tmp_path)
    assert [own.output_table for own in mine.processors] == ["silver.fills", "gold.fills_1m", "gold.by_day"]
    assert [own.rebuild_argument for own in mine.processors] == ["processor:fills", "gold.fills_1m", "gold.by_day"]
    assert {*mine.added_table_names} == {"silver.fills", "gold.fills_1m", "gold.by_day"}
    assert not {*mine.added_table_names} & {
        *build_declared_gold_schemas(mine),
        *(one.table_name for one in list_declared_gold_tables(mine)),
    }
    assert [reader.name for reader in list_streams_reading_table(mine, "silver.fills")] == ["processor-fills_1m"]
    assert Settings(gold=mine.gold, processors=mine.processors).processors == mine.processors
    assert require_publishable(mine, "gold.by_day").key == ("customer", "window_start")
    with pytest.raises(UsageError, match=r"computed from rows of silver\.fills"):
        explain(None, mine, "gold.fills_1m", "")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "fills_1m"}, "have the same name fills_1m"),
        ({"name": "other", "table": "gold.fills_1m"}, "write to the same table gold.fills_1m"),
        ({"name": "fills", "key": ("customer",), "source": "gold.fills_1m"}, "cannot be computed from each other"),
    ],
)
def test_tables_that_two_fill_or_that_are_made_of_each_other_are_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings_of(FILLS, processors=(ProcessorSettings(target="a:B", **other),))


def test_another_declaration_is_other_logic_and_another_trigger_is_none() -> None:
    changes = [{}, {"value": "fee"}, {"order": []}, {"source": "silver.others"}, {"bucket": "1 hour"}]
    assert len({product(**changed).logic_hash for changed in changes}) == len(changes)
    assert settings_of(FILLS).processors[0].trigger == GoldSettings().trigger == timedelta(seconds=3)
