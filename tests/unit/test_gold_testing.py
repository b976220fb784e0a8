"""Products in Python: found, refused where they cannot be used, and tried in a unit test."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from sessionlake.errors import ConfigError
from sessionlake.gold import TEXTS, Aggregate, Count, Endmost, Extreme, Mean, Product, Sum
from sessionlake.gold.aggregate.groups import Columns
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.gold.testing import Change, check
from sessionlake.settings.model import GoldSettings, Settings
from support.docs import blocks

BY_METRIC = Product(
    "by_metric",
    keys=("topic", "metric"),
    aggregates={"points": Count(), "total": Sum("value"), "mean": Mean("total", "points")},
    bucket_ms=60_000,
)
CHANGES = [Change(place * 25_000, row_id=f"r{place % 2}", price=place + 0.5, status="on") for place in range(8)]


def test_a_product_is_the_same_whatever_the_batches():
    rows = check(BY_METRIC, CHANGES)
    assert [(row["points"], row["total"], row["mean"]) for row in rows] == [
        (3, 4.5, 1.5),
        (2, 8.0, 4.0),
        (3, 19.5, 6.5),
    ]
    [seen] = check(Product("seen", ("column", "value"), {"changes": Count()}, source=TEXTS), CHANGES)
    assert (seen["column"], seen["value"], seen["changes"]) == ("status", "on", 8)


def test_no_changes_make_no_rows():
    assert check(BY_METRIC, []) == []


@dataclass(frozen=True)
class Newcomer(Aggregate):
    """Whatever came first: no aggregate, since that depends on the batches."""

    @property
    def input_columns(self) -> tuple[str, ...]:
        return ("value",)

    def list_state_columns(self, name: str) -> tuple[tuple[str, str], ...]:
        return ((name, "double"),)

    def build_state_of_each_event(self, name: str, events: pa.Table) -> Columns:
        return {name: events["value"].to_numpy()}

    def combine_partial_results(self, name: str, left: Columns, right: Columns) -> Columns:
        del right
        return {name: left[name]}

    def build_result_sql(self) -> str:
        return "first(value)"


def test_what_depends_on_the_batches_is_named_with_them():
    wrong = Product("wrong", ("topic", "metric"), {"came": Newcomer()})
    with pytest.raises(AssertionError, match=r"gold.wrong: \{'topic': 'capture.test', 'metric': 'price'\} is .* after"):
        check(wrong, CHANGES)


def named(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, **product: Any) -> tuple[Product, ...]:
    (folder / "own_products.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "own_products", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    gold = GoldSettings.model_validate({"products": [product]})
    return list_declared_products(Settings(home=folder, gold=gold))


def test_a_product_of_the_documentation_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    [text] = [block.text for block in blocks() if block.language == "python" and "BY_ROW" in block.text]
    found = named(monkeypatch, tmp_path, text, name="by_row", python="own_products:BY_ROW")
    assert found[-1].table_name == "gold.by_row"
    assert check(found[-1], CHANGES)[0]["points"] == 4


FROM_HOURS = """
from sessionlake.gold import Count, Product
from sessionlake.gold.aggregate.standard import METRICS_1H
OWN = Product("own", ("topic", "metric"), {"points": Count()}, below=METRICS_1H)
BELOW = Product("own", ("topic",), {"points": Count()}, below=OWN)
OTHER = 1
"""


def test_a_product_may_be_made_from_a_standard_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = named(monkeypatch, tmp_path, FROM_HOURS, name="own", python="own_products:OWN")
    assert check(found[-1], CHANGES)[0]["points"] == 8


@pytest.mark.parametrize(
    ("target", "expected_text"),
    [
        ("own_products:NONE", "module own_products has no NONE; its products: .*OWN, BELOW"),
        ("own_products:OTHER", "own_products:OTHER is not a `sessionlake.gold.Product`"),
        (
            "own_products:BELOW",
            "own_products:BELOW is computed from gold.own",
        ),
        ("no_such_module:OWN", "module no_such_module cannot be imported .* nor in "),
    ],
)
def test_a_product_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, expected_text: str
):
    with pytest.raises(ConfigError, match=f"gold.products.own.python: .*{expected_text}"):
        named(monkeypatch, tmp_path, FROM_HOURS, name="own", python=target)


def test_a_product_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(ConfigError, match="has the name 'own', but the configuration says"):
        named(monkeypatch, tmp_path, FROM_HOURS, name="other", python="own_products:OWN")


@pytest.mark.parametrize(
    ("product", "expected_text"),
    [
        ({"name": "own", "python": "a:B", "keys": ["topic"]}, "leave out keys"),
        ({"name": "own", "keys": ["topic"]}, "set keys and aggregates"),
    ],
)
def test_a_declaration_is_whole_and_said_once(product: dict[str, Any], expected_text: str):
    with pytest.raises(ValidationError, match=expected_text):
        GoldSettings.model_validate({"products": [product]})


def test_first_and_last_of_a_series_are_those_in_event_time():
    ends = {"first": Endmost("value", last=False), "last": Endmost("value", last=True)}
    [row] = check(Product("ends", ("row_id",), ends | {"low": Extreme("value", greatest=False)}), CHANGES[::2])
    assert (row["first"], row["last"], row["low"]) == (0.5, 6.5, 0.5)
