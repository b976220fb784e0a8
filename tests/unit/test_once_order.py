"""Class `once`: of points of one event time, a session's go by seq, in whatever order its messages came."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.gold.aggregate.functions import Endmost
from sessionlake.gold.aggregate.order import (
    LIFE,
    NO_LIFE,
    SEQ,
    SESSION_MARK,
    TURN,
    OnceTopics,
    add_change_order_columns,
    add_session_hashes,
    hash_session_ids,
)
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import POINT_KEY, DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1D, METRICS_1H, METRICS_1M
from sessionlake.gold.fold.pack import ChangePacker, list_owner_columns_of_averages
from sessionlake.gold.rules.patterns import MATCH, evaluate_pattern, list_pattern_events
from sessionlake.gold.rules.rule import Rule, RuleSettings, compile_rule
from sessionlake.settings.capture import CaptureSettings
from unit.test_points import _SCHEMA, METRICS, SERIES, Gold, change, left_sum

Change = dict[str, Any]
DECLARED = DeclaredColumns(METRICS)
ONCE = OnceTopics(CaptureSettings.model_validate({"by_topic": [{"pattern": r"capture\.a", "integrity": "once"}]}))
SCHEMA = pa.schema([*_SCHEMA, (LIFE, pa.int64()), (SEQ, pa.int64())])
SEEDS = range(8)


def messages(rnd: random.Random, count: int = 160) -> list[Change]:
    """Of three sessions in seq order, of which most share their event time; some set two rows."""
    found = []
    for i in range(count):
        session, ts = rnd.choice("stu"), i // rnd.choice([1, 5, 40]) * 1_000
        values = {name: float(rnd.randint(0, 9)) for name in rnd.sample(METRICS, rnd.randint(1, 2))}
        found += [
            change(session, row, 0, ts, **values) | {SEQ: i, "ordinal": ordinal, "partition": 0}
            for ordinal, row in enumerate(rnd.choice([("r",), ("r", "q")]))
        ]
    return found


def arriving(changes: Sequence[Change], rnd: random.Random, within: int) -> list[Change]:
    """The messages in the order of their arrival, each moved by less than so many; offsets go by arrival."""
    keys = {c[SEQ]: c[SEQ] + rnd.uniform(0, within) for c in changes}
    order = {seq: at for at, seq in enumerate(sorted(keys, key=keys.__getitem__))}
    lives: dict[str, int] = {}
    for c in sorted(changes, key=lambda c: order[c[SEQ]]):
        lives.setdefault(c["session_id"], order[c[SEQ]])
    placed = [
        c | {"position": (at := order[c[SEQ]]), "offset": at, "batch": at, LIFE: lives[c["session_id"]]}
        for c in changes
    ]
    return sorted(placed, key=lambda c: (c["position"], c["ordinal"]))


def cut(changes: Sequence[Change], rnd: random.Random) -> Iterable[Sequence[Change]]:
    places = [0, *sorted(rnd.sample(range(len(changes)), rnd.randint(0, 6))), len(changes)]
    return (changes[a:b] for a, b in pairwise(places))


def averages(changes: Sequence[Change], rnd: random.Random) -> dict[Any, Any]:
    """All three tables of averages, by what tells a point apart in whatever order it came."""
    packer = ChangePacker(DECLARED, list_owner_columns_of_averages(SERIES), ONCE)
    gold = Gold(rnd.randint(1, 3), series=SERIES, packer=packer, schema=SCHEMA)
    for batch in cut(changes, rnd):
        gold.batch(list(batch))
    by_place = {(c["offset"], c["ordinal"]): c for c in changes}
    found = {}
    for one in SERIES:
        for row in gold.tables[one.name].values():
            place = row["position"] if one.is_per_session else row["offset"]
            c = by_place[place, row["ordinal"]]
            assert (row["_seq"], row["_life"]) == (c[SEQ], c[LIFE])
            key = (one.name, c["session_id"], c["row_id"], row["metric"], c[SEQ])
            found[key] = (row["average"], row["points"])
    return found


def by_hand(changes: Sequence[Change]) -> dict[Any, Any]:
    """`rolling_average`, in the order of event time and seq."""
    found: dict[Any, Any] = {}
    lines: dict[Any, list[float]] = {}
    for c in sorted(changes, key=lambda c: (c["ts"], c[SEQ])):
        for i, metric in enumerate(METRICS):
            if c[f"value:{i}"] is not None:
                line = lines.setdefault((c["session_id"], c["row_id"], metric), [])
                line.append(c[f"value:{i}"])
                last = line[-SERIES[0].window_points :]
                found["rolling_average", c["session_id"], c["row_id"], metric, c[SEQ]] = (
                    left_sum(last) / len(last),
                    len(last),
                )
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_averages_of_shuffled_messages_are_those_of_ordered_ones_in_any_batches(seed: int) -> None:
    rnd = random.Random(seed)
    sent = messages(rnd)
    whole = averages(arriving(sent, rnd, 1), rnd)
    assert averages(arriving(sent, rnd, 100), rnd) == whole
    assert {key: figures for key, figures in whole.items() if key[0] == "rolling_average"} == by_hand(sent)


FIRST_AND_LAST = Product(
    "ends", ("topic", "session_id"), {"first": Endmost("value", last=False), "last": Endmost("value", last=True)}
)


def product_rows(product: Product, changes: Sequence[Change], rnd: random.Random) -> list[Change]:
    held = product.arrow_schema().empty_table()
    for batch in cut(changes, rnd):
        part = product.aggregate_changes(
            add_change_order_columns(pa.Table.from_pylist(list(batch), SCHEMA), ONCE), DECLARED
        )
        merged = {tuple(row[name] for name in product.row_keys): row for row in held.to_pylist()}
        merged |= {tuple(row[n] for n in product.row_keys): row for row in product.merge_rows(part, held).to_pylist()}
        held = pa.Table.from_pylist([*merged.values()], product.arrow_schema())
    shown = [*product.row_keys, *product.result_columns]
    return sorted(held.select(shown).to_pylist(), key=lambda row: [str(row[name]) for name in product.row_keys])


@pytest.mark.parametrize("product", [METRICS_1M, METRICS_1H, METRICS_1D, FIRST_AND_LAST], ids=lambda one: one.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_shuffled_messages_are_those_of_ordered_ones_in_any_batches(product: Product, seed: int) -> None:
    rnd = random.Random(seed)
    sent = messages(rnd)
    whole = product_rows(product, arriving(sent, rnd, 1), rnd)
    assert product_rows(product, arriving(sent, rnd, 100), rnd) == whole
    if product.keys == POINT_KEY and product.bucket_ms is not None:
        ends: dict[Any, list[float]] = {}
        for c in sorted(sent, key=lambda c: (c["ts"], c[SEQ])):
            for i, metric in enumerate(METRICS):
                if c[f"value:{i}"] is not None:
                    key = (c["session_id"], c["row_id"], metric, c["ts"] // product.bucket_ms)
                    ends.setdefault(key, []).append(c[f"value:{i}"])
        found = {}
        for row in whole:
            bucket = int(row["window_start"].timestamp() * 1000) // product.bucket_ms
            found[*(row[name] for name in POINT_KEY[1:]), bucket] = row["first"], row["last"]
        assert found == {key: (values[0], values[-1]) for key, values in ends.items()}


PATTERNS = [
    ("price = 1 then qty = 2 within 1 min", ["topic", "session_id", "row_id"]),
    ("price = 1 then qty = 2 within 1 min", ["row_id"]),
    ("qty = 2 without price = 1 before within 1 min", ["topic"]),
    ("price = 1 not followed by qty = 2 within 1 min", ["topic", "row_id"]),
]


def alerts_of(rule: Rule, changes: Sequence[Change]) -> set[Any]:
    table = add_change_order_columns(pa.Table.from_pylist(list(changes), SCHEMA), ONCE)
    table = table.append_column("deleted", pa.array([False] * table.num_rows))
    matches = pa.concat_tables(
        [MATCH.empty_table(), *(one.find_event_matches(table, DECLARED) for one in list_pattern_events(rule))]
    )
    return {*evaluate_pattern(rule, matches, 0, 10**9)}


@pytest.mark.parametrize(("when", "by"), PATTERNS)
def test_patterns_of_shuffled_messages_raise_what_those_of_ordered_ones_raise(when: str, by: list[str]) -> None:
    rule = compile_rule(RuleSettings.model_validate({"name": "own", "when": when, "by": by}), DECLARED)
    rnd, raised = random.Random(2), 0
    for _ in SEEDS:
        sent = messages(rnd)
        whole = alerts_of(rule, arriving(sent, rnd, 1))
        assert alerts_of(rule, arriving(sent, rnd, 100)) == whole
        raised += len(whole)
    assert raised > 10


@pytest.mark.parametrize("integrity", ["none", "order", "window", "strict"])
def test_changes_of_other_classes_go_by_position(integrity: str) -> None:
    other = OnceTopics(CaptureSettings.model_validate({"integrity": integrity}))
    assert not other.is_once_configured
    rows = pa.Table.from_pylist([change("s", "r", 7, 0, price=1.0) | {LIFE: 5, SEQ: 3}], SCHEMA)
    [row] = add_change_order_columns(rows, other).select([LIFE, TURN]).to_pylist()
    assert row == {LIFE: NO_LIFE, TURN: 7}
    assert add_session_hashes(add_change_order_columns(rows, other))[SESSION_MARK].to_pylist() == [None]
    [row] = add_change_order_columns(rows, ONCE).select([LIFE, TURN]).to_pylist()
    assert row == {LIFE: 5, TURN: 3}
    assert (
        add_session_hashes(add_change_order_columns(rows, ONCE))[SESSION_MARK].to_pylist()
        == hash_session_ids(pa.array(["s"])).tolist()
    )
