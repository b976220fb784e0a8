"""The data dictionary: every column has a comment, every table names its writer, and the page says both."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sessionlake
from sessionlake.delta.schemas import names
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.schemas.tables import COUNTS, TABLES
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.settings.gold import GoldSettings
from sessionlake.settings.model import Settings

PACKAGE = Path(sessionlake.__file__).parent
CONSTANTS = {value: name for name, value in vars(names).items() if isinstance(value, str)}
# Modules that commit to several tables by a parameter that has the table's definition.
BY_PARAMETER = {"gold.batch.averages": "series.table_name", "gold.batch.products": "product.table_name"}
DECLARED_PARAMETERS = BY_PARAMETER | {
    "gold.batch.final": "final_table.table_name",
    "gold.references.step": "table.table_name",
    "gold.references.writing": "reference.table_name",
    "gold.references.applied": "reference.applied_table_name",
}


def declared() -> dict[str, TableSchema]:
    """Tables of each kind that a configuration can declare for gold."""
    kinds = ("count", "sum", "min", "max", "mean", "variance", "first", "last", "first_ts", "last_ts", "p50", "p99")
    numbers = {"name": "numbers", "keys": ["topic", "session_id", "row_id", "metric"], "bucket": "1 hour"}
    numbers |= {"lateness": "1 minute", "output": "append", "aggregates": {kind: kind for kind in kinds}}
    texts = {
        "name": "texts",
        "of": "texts",
        "keys": ["topic", "column", "value"],
        "aggregates": {"n": "approx_distinct"},
    }
    gold = {
        "averages": [{"name": "by_metric", "keys": ["topic", "metric"]}],
        "products": [numbers, texts],
        "references": [{"name": "rooms", "keys": {"topic": "string"}, "columns": {"room": "string"}}],
        "enriched": [{"name": "with_rooms", "join": [{"reference": "rooms", "keys": {"topic": "topic"}}]}],
    }
    return build_declared_gold_schemas(Settings(gold=GoldSettings.model_validate(gold)))


EVERY = TABLES | declared()


def dotted(module: str) -> set[str]:
    """The names and the attributes of names that a module's code uses."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_declared_tables_of_every_kind_are_looked_at():
    assert {schema.written_by for schema in declared().values()} == DECLARED_PARAMETERS.keys()


@pytest.mark.parametrize("table", EVERY)
def test_every_column_has_a_comment_of_one_line(table: str):
    comments = {column.name: column.comment for column in EVERY[table].definitions}
    assert {name for name, comment in comments.items() if not comment or comment != comment.strip(" .\n")} == set()
    assert {
        name for name, comment in comments.items() if len(comment) > 160 or "\n" in comment or "|" in comment
    } == set()


@pytest.mark.parametrize("table", EVERY)
def test_the_module_that_writes_a_table_names_it(table: str):
    writer = EVERY[table].written_by
    parameter = (DECLARED_PARAMETERS if table not in TABLES else BY_PARAMETER).get(writer)
    assert dotted(writer) & {CONSTANTS.get(table), parameter}


def test_the_ledger_and_its_sums_have_the_counts_that_balance():
    for table in (names.LEDGER, names.POSITIONS):
        assert {*COUNTS} <= dict(TABLES[table].column_types).keys()
