"""Sail answers as Spark does: rows, types and names of columns. What it would answer differently is left to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli.engines.coverage import FUNCTIONS, NODES
from sessionlake.cli.engines.sail import SailEngine
from sessionlake.cli.query import SparkEngine, prepare_statement
from sessionlake.cli.sql_names import parse_statements
from sessionlake.cli.sql_reading import list_names_of_called_function
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS as TABLE
from sessionlake.delta.schemas.names import VIEWS
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.settings.model import Settings
from support.docs import ROOT, commands
from support.engine_probes import (
    LEFT_STATEMENTS,
    LEFT_TO_SPARK,
    ROWS,
    SAME,
    SAME_STATEMENTS,
    list_joined_statements,
    list_statements,
    write_probes,
    write_probes_again,
)
from support.engines import EnginePair
from support.lakes import find_table_folder
from support.random_lakes import write_random_lake

_QUERIES = sorted((ROOT / "resources" / "queries").glob("*.sql"))


@pytest.fixture(scope="module")
def engines(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    settings = Settings(home=tmp_path_factory.mktemp("probes"))
    write_probes(find_table_folder(Lake(settings), TABLE))
    with SailEngine(settings) as sail:
        yield EnginePair(spark, sail, settings, [])


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    settings = Settings(home=tmp_path_factory.mktemp("filled"))
    write_random_lake(spark, Lake(settings))
    with SailEngine(settings) as sail:
        yield EnginePair(spark, sail, settings, [])


def test_every_covered_statement_has_the_answer_of_spark(engines: EnginePair):
    joined = {sql: engines.compare(sql) for sql in list_joined_statements(SAME, TABLE)}
    alone = list_statements(SAME if set(joined.values()) != {None} else "", SAME_STATEMENTS, TABLE)
    found = {sql: engines.compare(sql, ordered="ORDER BY" in sql and "OVER" not in sql) for sql in alone}
    assert {sql: why for sql, why in (joined | found).items() if why is not None} == {}


def test_every_function_and_node_that_sail_may_run_was_compared():
    functions, nodes = set[str](), set[str]()
    for sql in list_statements(SAME, SAME_STATEMENTS, TABLE):
        [tree] = parse_statements(sql)
        for node in tree.walk():
            functions |= called(node, sql)
            nodes.add(type(node).__name__)
    assert functions >= FUNCTIONS, FUNCTIONS - functions
    assert nodes >= NODES, NODES - nodes


def called(node: Any, sql: str) -> set[str]:
    from sqlglot import exp

    return list_names_of_called_function(node, sql) if isinstance(node, exp.Func) else set()


def test_what_sail_computes_differently_is_left_to_spark(engines: EnginePair):
    statements = list_statements(LEFT_TO_SPARK, LEFT_STATEMENTS, TABLE)
    found = {sql: engines.compare(sql) or "not left to Spark" for sql in statements}
    assert {sql: why for sql, why in found.items() if why.startswith(("differs", "not"))} == {}


def test_deleted_rows_and_changed_logs_are_read_as_spark_reads_them(spark, settings):
    lake = Lake(settings)
    write_probes(find_table_folder(lake, TABLE))
    statements = [
        "SELECT count(*), count(i), min(t), max(t), sum(d) FROM silver.session_rows WHERE k < 4",
        "SELECT * FROM silver.session_rows ORDER BY k",
        "SELECT k FROM silver.session_rows WHERE t >= TIMESTAMP'2026-01-01 00:30:00.123456' ORDER BY k",
        "SELECT k FROM silver.session_rows WHERE e > 1.24 AND s >= 'a' AND dt >= DATE'2026-01-01' ORDER BY k",
    ]
    lake.set_property(spark, TABLE, DELETION_VECTORS, "true")
    table = lake.open_delta_table(spark, TABLE)
    changes = (
        lambda: table.delete("k = 2"),  # a deletion vector
        lambda: table.update("k = 7", {"s": "'changed'", "t": "t + INTERVAL 1 MICROSECOND"}),
        lambda: open_table(find_table_folder(lake, TABLE)).create_checkpoint(),  # as Parquet
        lambda: table.delete("k = 8"),
        lambda: lake.set_property(spark, TABLE, "delta.enableChangeDataFeed", "true"),
        lambda: table.optimize().executeCompaction(),
        table.delete,
    )
    with SailEngine(settings) as sail:
        both = EnginePair(spark, sail, settings, [])
        for change in changes:
            change()
            assert [both.compare(sql, ordered="ORDER BY" in sql) for sql in statements] == [None] * len(statements)
    log = find_table_folder(lake, TABLE) / "_delta_log"
    assert any('deletionVector":{' in file.read_text() for file in log.glob("*.json"))
    assert [*log.glob("*.checkpoint.parquet")]


def test_both_engines_read_the_same_versions_whatever_is_committed_meanwhile(spark, settings):
    lake = Lake(settings)
    write_probes(find_table_folder(lake, TABLE))
    statement = prepare_statement(
        settings, "SELECT count(*) AS n FROM silver.session_rows AS a JOIN silver.session_rows AS c USING (k)"
    )
    write_probes_again(find_table_folder(lake, TABLE))
    with SailEngine(settings) as sail:
        answers = [engine.run(statement).rows.to_pylist() for engine in (sail, SparkEngine(spark, settings))]
    assert answers == [[{"n": len(ROWS)}]] * 2


@pytest.mark.parametrize("file", _QUERIES, ids=lambda file: file.stem)
def test_the_queries_of_the_dashboard_run_with_sail(filled: EnginePair, file: Path):
    now = f"TIMESTAMP'{datetime.now(UTC):%Y-%m-%d %H:%M:%S}'"  # the engines read their clocks one after the other
    sql = file.read_text(encoding="utf-8").replace("current_timestamp()", now)
    assert filled.compare(sql, {"prefix": ""}) is None


@pytest.mark.parametrize("view", VIEWS)
def test_the_views_run_with_sail(filled: EnginePair, view: str):
    assert filled.compare(f"SELECT * FROM {view}") is None  # noqa: S608 - names of the package's own views


def statements_of_docs() -> list[str]:
    """The statements that README and docs give to `sessionlake query`."""
    found = [command.arguments for command in commands("sessionlake")]
    return sorted({words[1] for words in found if words[0] == "query" and "--as-of-batch" not in words})


def test_the_statements_of_the_docs_have_the_answer_of_spark(filled: EnginePair):
    asked = [sql for sql in statements_of_docs() if all(exists(filled, name) for name in tables_of(sql))]
    refused = {sql: why for sql in asked if (why := filled.compare(sql))}
    assert len(asked) - len(refused) >= 3, refused


def tables_of(sql: str) -> list[str]:
    from sessionlake.cli.sql_names import find_table_and_function_names

    return [str(one) for one in find_table_and_function_names(sql)]


def exists(pair: EnginePair, name: str) -> bool:
    return name in VIEWS or Lake(pair.settings).exists(None, name)
