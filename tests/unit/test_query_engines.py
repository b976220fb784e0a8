"""Which engine runs a statement, which lines the user reads, and which parameters and versions it gets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.cli.engines.choice import run_statement_on_chosen_engine
from sessionlake.cli.engines.coverage import FUNCTIONS, NODES, explain_why_sail_cannot_run
from sessionlake.cli.engines.interface import EngineName, EngineRefusalError, QueryResult, SqlStatement
from sessionlake.cli.engines.sail import RESULT_BYTES, SailEngine
from sessionlake.cli.engines.sail_process import encode_flight_sql_request
from sessionlake.cli.engines.value_kinds import (
    COUNT,
    DECIMAL,
    DOUBLE,
    INTEGER,
    SMALL,
    TEXT,
    TIME,
    map_columns_to_value_kinds,
)
from sessionlake.cli.engines.versions import LakeAtVersions, insert_version_clauses, read_latest_table_versions
from sessionlake.cli.query import prepare_statement
from sessionlake.cli.sql import _parse_param_options
from sessionlake.cli.sql_names import find_sql_parameters, insert_sql_arguments
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SESSIONS
from sessionlake.errors import UsageError
from sessionlake.settings.model import Settings
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS
from support.lakes import find_table_folder

SQL = "SELECT topic, count(*) AS n FROM silver.sessions GROUP BY topic ORDER BY topic"
KINDS = {
    name: frozenset({kind})
    for name, kind in {
        "n": INTEGER, "small": SMALL, "offset": COUNT, "d": DOUBLE, "e": DECIMAL, "s": TEXT, "t": TIME,
    }.items()
}  # fmt: skip


@pytest.fixture
def lake(settings: Settings) -> Lake:
    """A lake whose table of sessions has two versions: one row, then three."""
    made = Lake(settings)
    for topics in (["a"], ["a", "b"]):
        write_deltalake(find_table_folder(made, SESSIONS), pa.table({"topic": topics}), mode="append")
    return made


def run(lake: Lake, engine: EngineName, sql: str = SQL) -> tuple[list[str], list[str]]:
    """Runs a statement, and returns what ran it and the lines that the user reads. Nothing starts Spark."""
    ran, lines = [], list[str]()

    def run_with_spark(statement: SqlStatement) -> QueryResult:
        ran.append(f"spark: {statement.sql}")
        return QueryResult(pa.table({}), [])

    answer = run_statement_on_chosen_engine(
        lake.settings, lambda: prepare_statement(lake.settings, sql), engine, run_with_spark, lines.append
    )
    return ran or [str(row) for row in answer.rows.to_pylist()], lines


def test_sail_answers_at_once_and_says_nothing(lake: Lake):
    assert run(lake, EngineName.AUTO) == (["{'topic': 'a', 'n': 2}", "{'topic': 'b', 'n': 1}"], [])


def test_spark_runs_what_sail_computes_differently_and_one_line_says_why(lake: Lake):
    sql = "SELECT round(1.5D) AS n FROM silver.sessions"
    ran, [line] = run(lake, EngineName.AUTO, sql)
    assert ran == [f"spark: {sql}"]
    assert line == "query: Spark runs this statement, which takes longer: round is not covered"


def test_spark_runs_everything_if_the_user_wants_it(lake: Lake):
    assert run(lake, EngineName.SPARK) == ([f"spark: {SQL}"], [])


def test_sail_alone_refuses_what_it_computes_differently(lake: Lake):
    with pytest.raises(UsageError, match="because round is not covered") as error:
        run(lake, EngineName.SAIL, "SELECT round(1.5D) AS n FROM silver.sessions")
    assert "--engine spark" in str(error.value)


def test_what_sail_itself_refuses_is_run_by_spark(lake: Lake):
    _, [line] = run(lake, EngineName.AUTO, "SELECT topic FROM silver.sessions WHERE nothing IS NULL")
    assert line.startswith("query: Spark runs this statement, which takes longer: Sail refuses it: ")


@pytest.mark.parametrize("feature", ["columnMapping", "timestampNtz", "variantType", "somethingNew"])
def test_a_table_with_a_feature_that_is_not_covered_is_left_to_spark(lake: Lake, feature: str, monkeypatch):
    def describe(self: Any, table: str, version: int) -> Any:
        found = original(self, table, version)
        return type(found)(found.features | {feature}, found.fields, found.has_partitions)

    original = type(lake.storage).describe_version
    monkeypatch.setattr(type(lake.storage), "describe_version", describe)
    _, [line] = run(lake, EngineName.AUTO)
    assert line.endswith(f"silver.sessions has the Delta feature {feature}, which is not covered")


def test_a_table_with_partitions_is_left_to_spark(settings: Settings):
    lake = Lake(settings)
    write_deltalake(find_table_folder(lake, SESSIONS), pa.table({"topic": ["a"], "n": [1]}), partition_by=["topic"])
    _, [line] = run(lake, EngineName.AUTO)
    assert line.endswith("silver.sessions has partitions, which are not covered")


def test_a_folder_with_special_characters_is_left_to_spark(tmp_path: Path):
    lake = Lake(Settings(home=tmp_path / "a home#1"))
    write_deltalake(find_table_folder(lake, SESSIONS), pa.table({"topic": ["a"]}))
    _, [line] = run(lake, EngineName.AUTO)
    assert line.endswith("has special characters")


def test_an_answer_larger_than_the_limit_is_an_error(lake: Lake, monkeypatch):
    monkeypatch.setattr("sessionlake.cli.engines.sail.RESULT_BYTES", 0)
    with pytest.raises(UsageError, match="the result has more than 0 MiB"):
        run(lake, EngineName.AUTO)
    assert RESULT_BYTES > 0


def test_sail_s_process_ends_with_its_block(lake: Lake):
    with SailEngine(lake.settings) as sail:
        process = sail._process
        assert process.poll() is None
    assert process.returncode is not None


def test_sail_s_process_ends_if_its_parent_is_killed(lake: Lake):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from sessionlake.cli.engines.sail import SailEngine; from sessionlake.settings.model import Settings\n"
        "print(SailEngine(Settings(home=Path(sys.argv[1])))._process.pid, flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(lake.settings.home)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1)
        parent.kill()
    end = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_process_that_dies_is_a_refusal(lake: Lake):
    with SailEngine(lake.settings) as sail:
        sail._process.kill()
        with pytest.raises(EngineRefusalError, match="Sail"):
            sail.run(prepare_statement(lake.settings, SQL))


def test_all_tables_are_read_at_the_versions_chosen_before(lake: Lake):
    old = SqlStatement(SQL, versions={SESSIONS: 0})
    with SailEngine(lake.settings) as sail:
        assert sail.run(old).rows.to_pylist() == [{"topic": "a", "n": 1}]
    assert read_latest_table_versions(lake, [SESSIONS, "silver.quarantine"]) == {SESSIONS: 1}


def test_versions_are_read_again_until_none_has_changed(lake: Lake, monkeypatch):
    found = iter([1, 2, 2])
    monkeypatch.setattr(Lake, "latest_version", lambda *_: next(found))
    assert read_latest_table_versions(lake, [SESSIONS]) == {SESSIONS: 2}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT s.topic FROM silver.sessions AS s", "SELECT s.topic FROM silver.sessions VERSION AS OF 7 AS s"),
        (
            "SELECT silver.sessions.topic FROM silver.sessions",
            "SELECT silver.sessions.topic FROM silver.sessions VERSION AS OF 7",
        ),
        ("SELECT * FROM silver.sessions VERSION AS OF 1", None),
        ("SELECT * FROM silver.quarantine", None),
        ("DESCRIBE HISTORY silver.sessions", None),
        ("SELECT 'silver.sessions'", None),
    ],
)
def test_a_version_is_inserted_where_a_table_is_read(sql: str, expected: str | None):
    assert insert_version_clauses(sql, {SESSIONS: 7}) == (expected or sql)


def test_views_read_tables_at_their_versions(settings: Settings):
    lake = LakeAtVersions(settings, {SESSIONS: 3})
    assert lake.to_sql_identifier(SESSIONS).endswith(" VERSION AS OF 3")
    assert "VERSION" not in lake.to_sql_identifier("silver.quarantine")


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT :a, x:b FROM t WHERE c = :long_name", ["a", "long_name"]),
        ("SELECT ':a', a::int", []),
        ("-- :a\nSELECT 1", []),
    ],
)
def test_parameters_are_found(sql: str, names: Sequence[str]):
    assert [name for name, _, _ in find_sql_parameters(sql)] == names


def test_plain_texts_are_inserted_and_others_are_not():
    assert insert_sql_arguments("SELECT * FROM t WHERE a = :a", {"a": "orders.eu-1"}) == (
        "SELECT * FROM t WHERE a = 'orders.eu-1'"
    )
    for text in ("it's", "a\\", "'; DROP", "Ä"):
        assert insert_sql_arguments("SELECT :a", {"a": text}) is None
    assert insert_sql_arguments("SELECT :a", {}) is None


def test_the_bundle_s_queries_need_no_argument_for_their_prefix(lake: Lake):
    sql = "-- why\nSELECT topic FROM IDENTIFIER(:prefix || 'silver.sessions')"
    for arguments in ({}, {"prefix": ""}):
        statement = prepare_statement(lake.settings, sql, arguments)
        assert statement == SqlStatement("-- why\nSELECT topic FROM silver.sessions", {}, {SESSIONS: 1})


def test_an_argument_without_a_parameter_is_refused(lake: Lake):
    with pytest.raises(UsageError, match="has no parameter :topic"):
        prepare_statement(lake.settings, SQL, {"topic": "a"})


def test_a_parameter_is_given_as_name_and_value():
    assert _parse_param_options(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            _parse_param_options([wrong])


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT n + 1 AS a FROM t", "may overflow"),
        ("SELECT small * 2 AS a FROM t", "may overflow"),
        ("SELECT e / 2 AS a FROM t", "kind decimal"),
        ("SELECT sum(n) AS a FROM t", "kind integer"),
        ("SELECT e AS x FROM t UNION SELECT n FROM t", "several kinds"),
        ("SELECT x + 1 AS a FROM (SELECT n AS x FROM t)", "may overflow"),
        ("SELECT x + 1 AS a FROM (SELECT * FROM t) AS q(x)", "may overflow"),
        ("SELECT unknown + 1 AS a FROM t", "may overflow"),
        ("SELECT d FROM t ORDER BY d, n", "kind double"),
        ("SELECT n FROM t WHERE d = 0", "comparison"),
        ("SELECT n FROM t WHERE s = 1", "comparison"),
        ("SELECT n + d FROM t", "without a name"),
        ("SELECT 'a\\n' AS x FROM t", "backslash"),
        ("SELECT n FROM t; SELECT n FROM t", "single queries"),
        ("EXPLAIN SELECT n FROM t", "single queries"),
        ("DELETE FROM t", "single queries"),
        ("SELECT uuid() AS u FROM t", "uuid is not covered"),
    ],
)
def test_what_sail_computes_differently_is_not_covered(sql: str, why: str):
    assert why in (explain_why_sail_cannot_run(sql, [], KINDS) or "")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT offset + 1 AS a, n + d AS b, d * 2 AS c, n / 2 AS g FROM t",
        "SELECT sum(offset) AS a, sum(small) AS b, sum(d) AS c FROM t WHERE t > now() - INTERVAL 7 DAYS",
        "SELECT x + 1D AS a FROM (SELECT n AS x FROM t) ORDER BY a",
        "SELECT n FROM t WHERE e > 1.5 AND s LIKE 'a%' ORDER BY n, d",
    ],
)
def test_what_sail_computes_like_spark_is_covered(sql: str):
    assert explain_why_sail_cannot_run(sql, [], KINDS) is None


def test_fields_inside_columns_have_kinds_too():
    inside = {"type": "struct", "fields": [{"name": "N", "type": "long"}, {"name": "e", "type": "decimal(10,2)"}]}
    kinds = map_columns_to_value_kinds([{"name": "a", "type": {"type": "array", "elementType": inside}}], ["n"])
    assert (kinds["n"], kinds["e"]) == (frozenset({COUNT}), frozenset({DECIMAL}))


def test_every_covered_function_is_one_that_only_computes():
    assert FUNCTIONS <= SAFE_FUNCTIONS
    assert "Command" not in NODES


def test_a_statement_is_encoded_as_flight_sql():
    long = "x" * 200
    assert encode_flight_sql_request(long).endswith(b"\x0a\xc8\x01" + long.encode())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has network namespaces")
def test_no_other_process_can_connect_to_sail(lake: Lake):
    with SailEngine(lake.settings) as sail:
        sail.run(prepare_statement(lake.settings, SQL))
        inside, outside = (Path(f"/proc/{pid}/ns/net").readlink() for pid in (sail._process.pid, os.getpid()))
    if inside == outside:
        pytest.skip("this system does not let a process leave its network")


HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "pydantic", "deltalake", "sqlglot", "pysail")


@pytest.mark.parametrize("words", [["--help"], ["query", "--help"], ["--version"]])
def test_help_imports_no_large_package(words: list[str]):
    code = f"import sys; sys.argv = ['sessionlake', *{words}]\nfrom sessionlake.cli.app import main\nmain()"
    listing = f"import atexit, sys\natexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))\n{code}"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=False)
    modules = {name.strip("' ").partition(".")[0] for name in done.stderr.strip()[1:-1].split(",")}
    assert "typer" in modules, done.stderr
    own = {"pydantic"} if "query" in words else set()  # Typer itself needs it to describe some options
    assert modules & {*HEAVY} <= own
