"""Net changes: merged stretch by stretch, in any stretches, they leave what every change in its turn leaves."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.protocol.columns import parse_columns
from sessionlake.silver.fold.schemas import build_changes_schema
from sessionlake.silver.tables.net_changes import NetChangesMapper, build_net_changes_schema, compute_net_changes
from support.folding import apply_net

COLUMNS = parse_columns({"a": "int", "b": "string"})
SCHEMA = build_changes_schema(COLUMNS)
Change = dict[str, Any]
Tables = dict[tuple[str, int, str], dict[str, dict[str, Any]]]


def change(kind: str, row: str | None, position: int, ordinal: int = 0, session: str = "s", **values: Any) -> Change:
    given = {"topic": "t", "partition": 0, "session_id": session, "row_id": row, "change": kind, "_position": position}
    marks = {"_epoch": 0, "_seq": position, "_ts": position, "_offset": position, "ordinal": ordinal}
    return dict.fromkeys(SCHEMA.names) | given | marks | values | {"_set": sorted(values)}


def merged(*stretches: list[Change]) -> Tables:
    tables: Tables = {}
    for stretch in stretches:
        apply_net(tables, compute_net_changes(pa.Table.from_pylist(stretch, SCHEMA), COLUMNS), COLUMNS)
    return {key: table for key, table in tables.items() if table}


def in_turn(changes: list[Change]) -> Tables:
    tables: Tables = {}
    for item in sorted(changes, key=lambda c: (c["_position"], c["ordinal"])):
        table = tables.setdefault((item["topic"], item["partition"], item["session_id"]), {})
        if item["change"] == "clear":
            table.clear()
        elif item["change"] == "delete":
            table.pop(item["row_id"], None)
        else:
            before = table.get(item["row_id"], {"a": None, "b": None})
            values = {name: item[name] for name in item["_set"]}
            marks = {name: item[name] for name in ("_rescued", "_epoch", "_seq", "_ts", "_offset")}
            table[item["row_id"]] = before | values | marks
    return {key: table for key, table in tables.items() if table}


def history(rnd: random.Random, messages: int) -> list[Change]:
    """A session's messages: snapshots, updates and deletes over few rows, so that they meet."""
    found: list[Change] = []
    for position in range(messages):
        session = rnd.choice(["s", "t", "é"])
        parts = [("clear", None)] if rnd.random() < 0.1 else []
        parts += [("upsert", row) for row in rnd.sample("wxyz", rnd.randint(0, 3))]
        if len(parts) == 0 or parts[0][0] != "clear":
            parts += [("delete", rnd.choice("wxyz")) for _ in range(rnd.randint(0, 2))]
        for ordinal, (kind, row) in enumerate(parts):
            whole = parts[0][0] == "clear" and kind == "upsert"
            values = {name: rnd.choice([None, value]) for name, value in (("a", position), ("b", str(position)))}
            chosen = {n: v for n, v in values.items() if kind == "upsert" and (whole or rnd.random() < 0.5)}
            rescued = {"_rescued": rnd.choice([None, "{}"])} if kind == "upsert" else {}
            item = change(kind, row, position, ordinal, session, **chosen)
            found.append(item | rescued)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_any_stretches_merged_equal_every_change_in_its_turn(seed: int) -> None:
    rnd = random.Random(seed)
    changes = history(rnd, rnd.choice([3, 10, 40]))
    positions = sorted({item["_position"] for item in changes})
    bounds = sorted(rnd.sample(positions, min(len(positions), rnd.randint(0, 4))))
    spans = zip([0, *bounds], [*bounds, 99], strict=True)
    stretches = [[c for c in changes if low <= c["_position"] < high] for low, high in spans]
    for stretch in stretches:
        rnd.shuffle(stretch)  # a table's rows have no order
    assert merged(*filter(None, stretches)) == in_turn(changes)


@pytest.mark.parametrize("seed", range(50))
def test_a_stretch_merged_again_with_more_behind_it_changes_nothing(seed: int) -> None:
    """What happens when a merge dies between its tables and its ledger row, and more batches have come since."""
    rnd = random.Random(seed)
    changes = history(rnd, 20)
    assert merged([c for c in changes if c["_position"] < 10], changes) == in_turn(changes)


def test_a_column_that_no_change_set_is_left_alone() -> None:
    before = [change("upsert", "x", 0, a=1, b="old")]
    assert merged(before, [change("upsert", "x", 1, a=2)])["t", 0, "s"]["x"]["b"] == "old"


def test_an_explicit_null_is_written() -> None:
    before = [change("upsert", "x", 0, a=1, b="old")]
    assert merged(before, [change("upsert", "x", 1, b=None)])["t", 0, "s"]["x"]["b"] is None


def test_a_row_deleted_and_inserted_again_has_nothing_of_its_former_life() -> None:
    before = [change("upsert", "x", 0, a=1, b="old")]
    again = [change("delete", "x", 1), change("upsert", "x", 2, a=2)]
    assert merged(before, again)["t", 0, "s"]["x"] | {"a": 2, "b": None} == merged(before, again)["t", 0, "s"]["x"]


def test_rows_that_a_clear_leaves_out_are_gone_and_those_after_it_stay() -> None:
    before = [change("upsert", "x", 0, a=1), change("upsert", "y", 0, 1, a=1)]
    cleared = [change("clear", None, 1), change("upsert", "y", 1, 1, a=2, b=None)]
    assert list(merged(before, cleared)["t", 0, "s"]) == ["y"]


def test_a_clear_alone_empties_its_session_and_no_other() -> None:
    before = [change("upsert", "x", 0, a=1), change("upsert", "x", 0, session="other", a=1)]
    assert list(merged(before, [change("clear", None, 1)])) == [("t", 0, "other")]


def test_nothing_comes_to_nothing() -> None:
    assert compute_net_changes(SCHEMA.empty_table(), COLUMNS).num_rows == 0
    assert list(NetChangesMapper(COLUMNS)([])) == []


def test_the_rows_are_as_the_merge_declares_them() -> None:
    [batch] = NetChangesMapper(COLUMNS)(pa.Table.from_pylist([change("upsert", "x", 0, a=1)], SCHEMA).to_batches())
    assert batch.schema == build_net_changes_schema(COLUMNS)
