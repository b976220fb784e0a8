"""Names that users give: which are refused, and why; with all others every pure part computes what it does with any."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.delta.schemas.properties import decode_column_list, encode_column_list
from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.sources import DeclaredColumns, build_order_column_name
from sessionlake.gold.declared.tables import build_declared_gold_schemas, create_product_from_settings
from sessionlake.gold.enrich.reference import (
    FROM,
    TO,
    ReferenceTable,
    find_changed_time_spans,
    find_reference_difference,
)
from sessionlake.gold.enrich.table import ReferenceJoin
from sessionlake.gold.rules.condition_tree import Selection, find_comparisons
from sessionlake.gold.rules.parse import ConditionNameScope, parse_condition
from sessionlake.processors.output import OutputColumns
from sessionlake.processors.typed import generate_types_source
from sessionlake.protocol.arrow import select_matching_rows, sort_rows
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import INTERNAL, add_internal_prefix, fold_case, require_allowed_column_names
from sessionlake.settings.gold import AggregateKind, GoldSettings, ProductSettings
from sessionlake.settings.model import CaptureSettings, Settings, load_settings
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import Scenario
from sessionlake_lab.truth import KafkaMessage
from support.folding import fold, of_silver, of_truth, truth_of
from support.names import STRANGE, own_names, usable

EVERY = usable([*STRANGE, *own_names()])
DECLARABLE = usable(EVERY, *BUILT_IN_COLUMNS)
KINDS = [kind.value for kind in AggregateKind if kind is not AggregateKind.APPROX_DISTINCT]


def some(names: list[str], count: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=count, max_size=count, unique=True)


def test_the_names_that_are_drawn_are_those_of_the_source() -> None:
    assert {"group", "shard", "here", "t", "s", "ts", "offset", "window_start", "value"} <= {*EVERY}
    assert {"newest", "judged", "disordered", "of_session", "metric"} <= {*own_names()}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "a column's name must be a text of 1 to 255 characters"),
        ("x" * 256, "a column's name must be a text of 1 to 255 characters"),
        ("two words", "Delta does not allow ' ' in a column's name"),
        ("a;b,c", "Delta does not allow ',' ';' in a column's name"),
        ("a`b", "Delta does not allow '`' in a column's name"),
        ("a\x00b", "'\\x00' is a control character or half of a surrogate pair"),
        ("\ud800", "'\\ud800' is a control character or half of a surrogate pair"),
        ("_Change_Type", "Delta uses this name for a column in its commands"),
        ("__delta_internal_x", "Delta uses this name for a column in its commands"),
        ("__SL_x", "names that begin with __sl_ are reserved for columns that sessionlake adds in its queries"),
        ("Topic", "silver has a column of this name itself"),
    ],
)
def test_a_name_that_no_table_can_have_is_refused_with_the_reason_and_what_to_do(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^column") as error:
        require_allowed_column_names(["price", name], ["topic"], "silver")
    assert str(error.value).startswith(f"column {name!r}: {said}")
    assert "Give the column another name" in str(error.value)


@pytest.mark.parametrize(
    ("first", "second"), [("Price", "PRICE"), ("ß", "ẞ"), ("größe", "GRÖSSE"), ("\u017f", "S"), ("\u0130", "i")]
)
def test_names_that_differ_only_in_case_are_refused(first: str, second: str) -> None:
    said = f"columns '{first}' and '{second}' differ only in case, which SQL does not see. Give one of them another"
    with pytest.raises(ValueError, match=re.escape(said)):
        require_allowed_column_names([first, second], [], "silver")


def test_configuration_names_the_key_the_column_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "sessionlake.yml"
    file.write_text("capture: {columns: {partition: int}}")
    with pytest.raises(ConfigError) as error:
        load_settings(file)
    assert "capture.columns: column 'partition': silver has a column of this name itself" in str(error.value)
    assert "such as 'my_partition', or leave it out: fields" in str(error.value)
    file.write_text("capture: {columns: {id: bigint}}")
    with pytest.raises(
        ConfigError,
        match=r"column 'id': type 'bigint', but .* a text that identifies a row.*as string",
    ):
        load_settings(file)


# -- silver


@given(some([name for name in DECLARABLE if name != "id"], 6), st.booleans(), st.randoms(use_true_random=False))
def test_silver_is_the_truth_whatever_columns_are_called(names: list[str], bulk: bool, rnd: random.Random) -> None:
    types = dict(zip(names, ["double", "string", "bigint"] * 2, strict=True)) | {"id": "string"}
    capture = CaptureSettings(columns=types, on_violation="record")
    values = {"double": (1.5, None), "string": ("x", None), "bigint": (1, None)}
    sent = []
    for offset in range(6):
        rows = [
            {name: rnd.choice(values[types[name]]) for name in rnd.sample(names, 4)} | {"id": row, "other": 1}
            for row in rnd.sample("pq", rnd.randint(1, 2))
        ]
        body = {"type": "update" if offset % 3 else "snapshot", "seq": offset, "ts": offset, "rows": rows}
        sent.append(KafkaMessage("t", 0, offset, offset, b"s", json.dumps(body).encode()))
    found = fold([sent[:3], sent[3:]], capture, shards=2, rnd=rnd, bulk=bulk)
    assert of_silver(found) == of_truth(truth_of(sent, capture))
    assert {row["id"] for rows in found.rows.values() for row in rows.values()} <= {"p", "q"}


@given(some([name for name in DECLARABLE if name != "id"], 3))
def test_what_is_simulated_has_the_declared_columns(names: list[str]) -> None:
    columns = CaptureSettings(columns=dict.fromkeys(names, "double") | {"id": "string"}).declared_columns
    found = [
        json.loads(record.value)
        for record in generate_messages(
            Scenario(seed=1, sensors=1, sessions_per_sensor=1, rows=3, rate=20.0, duration_s=3.0), columns
        )
    ]
    rows = [row for body in found for row in body.get("rows", ())]
    assert rows
    assert {name for row in rows for name in row} >= {"id", *names}


@given(some(DECLARABLE, 5))
def test_the_module_of_types_has_the_columns_under_their_names(names: list[str]) -> None:
    types = dict.fromkeys(names, "string")
    tree = ast.parse(generate_types_source(Settings(capture=CaptureSettings(columns=types))))
    keys = [key.value for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    assert {*names} <= {*keys}


# -- gold: the same rows with plain names, and with any


@given(some(usable(EVERY, "_batch", "window_start"), 6), st.randoms(use_true_random=False))
def test_a_product_of_a_table_is_the_same_whatever_keys_and_results_are_called(
    names: list[str], rnd: random.Random
) -> None:
    def made(keys: list[str], results: list[str], kinds: list[str]) -> list[tuple[Any, ...]]:
        product = create_product_from_settings(
            ProductSettings.model_validate(
                {"name": "own", "source": "silver.fills", "keys": keys, "time": "at", "value": "price", "order": ["n"],
                 "bucket": "1 minute", "aggregates": dict(zip(results, kinds, strict=True))}
            )
        )  # fmt: skip
        told = pa.table([one.rename_columns([add_internal_prefix("x")])[0] for one in columns], keys)
        found = product.aggregate_source_table_rows(told, values).select(
            [*keys, "window_start", *product.result_columns]
        )
        return sorted(map(str, zip(*(column.to_pylist() for column in found.columns), strict=True)))

    count, kinds = 20, rnd.sample(KINDS, 4)
    columns = [pa.table({"x": [rnd.choice("ab") for _ in range(count)]}) for _ in range(2)]
    values = pa.table(
        {
            "ts": pa.array([rnd.randrange(200_000) for _ in range(count)], pa.int64()),
            "value": [rnd.choice([1.5, -2.0, 4.0]) for _ in range(count)],
            build_order_column_name(0): [*range(count)],
        }
    )
    assert made(names[:2], names[2:], kinds) == made(["k", "l"], ["c", "d", "e", "f"], kinds)


@given(some(usable(EVERY, "valid_from", "valid_to", "_taken_by", "_gone_by"), 4))
def test_a_reference_is_joined_and_corrected_the_same_whatever_its_columns_are_called(names: list[str]) -> None:
    def made(key: str, more: str, said: str, taken: str) -> tuple[Any, ...]:
        reference = ReferenceTable("r", ((key, "string"), (more, "bigint")), ((said, "double"),))
        rows = [
            {key: "a", more: 1, FROM: 0, TO: 5_000, said: 1.0},
            {key: "a", more: 1, FROM: 5_000, TO: None, said: 2.0},
        ]
        versions = pa.Table.from_pylist(rows, reference.arrow_schema())
        found = ReferenceJoin(reference, "r", ("on", "too"), ((taken, said),)).compute_added_columns(changes, versions)
        spans = find_changed_time_spans(
            reference, find_reference_difference(reference, versions.slice(0, 0), versions)[0]
        )
        return [*map(pa.ChunkedArray.to_pylist, found.values())], spans.rename_columns(list("abcd")).to_pylist()

    changes = pa.table({"on": ["a", "a", "b"], "too": [1, 1, 1], "ts": [1, 7, 1]})
    assert made(*names) == made("site", "floor", "place", "where")


@given(some(usable(EVERY, "_batch", "ordinal"), 4))
def test_a_processors_records_have_its_columns(names: list[str]) -> None:
    output = OutputColumns(dict.fromkeys(names, "bigint"), (("ordinal", "int"),))
    found = output.create_declared_arrays(
        [
            output.convert_record_to_struct({name: place for place, name in enumerate(names)}),
            output.convert_record_to_struct({}),
        ]
    )
    assert {name: column.to_pylist() for name, column in found.items()} == {
        name: [place, None] for place, name in enumerate(names)
    }


@given(some(usable(EVERY), 3))
def test_rows_are_sorted_and_looked_up_whatever_their_columns_are_called(names: list[str]) -> None:
    rows = pa.table([["b", "a", "b"], [2, 1, 1], [1.0, 2.0, 3.0]], names)
    assert sort_rows(rows, names[:2])[names[2]].to_pylist() == [2.0, 3.0, 1.0]
    others = pa.table([["b", "c"], [1, 1]], names[:2])
    assert select_matching_rows(rows, names[:2], others)[names[2]].to_pylist() == [3.0]


# -- what names are refused in other places


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (
            {"references": [{"name": "r", "keys": {"Valid_From": "string"}, "columns": {"x": "string"}}]},
            "column 'Valid_From': a reference table, as reference.r, has a column of this name itself",
        ),
        (
            {
                "products": [
                    {"name": "p", "keys": ["topic"], "bucket": "1 hour", "aggregates": {"window_start": "count"}}
                ]
            },
            "column 'window_start': gold.p has a column of this name itself",
        ),
        (
            {
                "references": [{"name": "r", "keys": {"k": "string"}, "columns": {"x": "string"}}],
                "enriched": [{"name": "e", "join": [{"reference": "r", "keys": {"k": "topic"}}]}],
            },
            "gold.enriched.e: column 'ts': gold.e has a column of this name itself",
        ),
    ],
)
def test_a_name_that_a_table_of_gold_has_itself_is_refused(gold: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as error:
        build_declared_gold_schemas(
            Settings(capture=CaptureSettings(columns={"ts": "double"}), gold=GoldSettings.model_validate(gold))
        )
    assert said in str(error.value)
    assert "Give the column another name" in str(error.value)


def test_internal_names_are_no_user_s() -> None:
    assert all(not fold_case(name).startswith(INTERNAL) for name in EVERY)


@given(some([name for name in DECLARABLE if name != "deleted"], 2))
def test_a_rule_names_any_column_in_backticks(names: list[str]) -> None:
    scope = ConditionNameScope(DeclaredColumns((names[0],), (names[1],)), Selection("t"), {})
    told = parse_condition(f"max(`{names[0]}`) over 5 min > 1 and every `{names[0]}` over 5 min > 2", scope)
    assert {window.metric for leaf in find_comparisons(told) for window in (leaf.left,)} == {names[0]}
    assert parse_condition(f"`{names[1]}` = 'x' then `{names[0]}` > 1 within 5 min", scope)


@given(some(EVERY, 4))
def test_the_columns_that_files_have_statistics_of_are_listed_and_read_back(names: list[str]) -> None:
    assert decode_column_list(encode_column_list(names)) == tuple(names)
    assert decode_column_list("") == ()
