"""`sessionlake remote` against a server on this machine that answers as the REST API does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.databricks.remote import runs, statements
from sessionlake.delta.lake import Lake
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import read_operator_decisions
from support.stops import make_home, stop
from support.workspace import TOKEN, USER, Workspace, serving

Call = Callable[..., Result]
CONTINUOUS = {"pause_status": "UNPAUSED", "task_retry_mode": "NEVER", "of_a_later_version": "kept"}
CLUSTER = {"SESSIONLAKE_CATALOG": "main", "SESSIONLAKE_SCHEMAS__SILVER": "dev_ada_silver"}


@pytest.fixture
def workspace(monkeypatch) -> Workspace:
    monkeypatch.setattr(runs, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(statements, "POLL_SECONDS", 0.001)
    return Workspace()


@pytest.fixture
def remote(workspace: Workspace, tmp_path: Path, monkeypatch):
    """Calls `sessionlake remote` in an empty folder, with nothing but the host and a token in the SDK's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABRICKS_CONFIG_PROFILE", "DATABRICKS_WAREHOUSE_ID"):
        monkeypatch.delenv(name, raising=False)
    with serving(workspace) as host:
        own = {"DATABRICKS_HOST": host, "DATABRICKS_TOKEN": TOKEN, "DATABRICKS_CONFIG_FILE": str(tmp_path / "none")}

        def call(*words: str, command: str = "remote", **environment: str) -> Result:
            env = own | {"SESSIONLAKE_HOME": str(tmp_path / "home")} | environment
            result = CliRunner().invoke(cli.app, [command, *words], env=env)
            assert TOKEN not in result.output
            assert "Traceback" not in result.output
            return result

        yield call


def deployed(workspace: Workspace, prefix: str = "", target: str = "prod", **other: str) -> dict[str, int]:
    """A deployment of the bundle: its jobs' ids."""
    cluster = [{"job_cluster_key": "x", "new_cluster": {"spark_env_vars": CLUSTER}}]
    named = {word: f"{prefix}sessionlake-{word}" for word in ("bronze", "silver", "maintenance", "operate")}
    paused = CONTINUOUS | {"pause_status": "PAUSED"}
    every_hour = {"quartz_cron_expression": "0 17 * * * ?", "timezone_id": "UTC", "pause_status": "UNPAUSED"}
    starts = {
        "bronze": {"continuous": paused},
        "silver": {"continuous": CONTINUOUS},
        "maintenance": {"schedule": every_hour},
    }
    return {
        word: workspace.add_job(name, target, **other, **starts.get(word, {}), job_clusters=cluster)
        for word, name in named.items()
    }


def objects(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- which jobs


def test_status_has_a_row_for_each_job_with_its_latest_run_and_what_starts_it(workspace, remote):
    ids = deployed(workspace)
    workspace.add_job("somebody's own", target="")
    workspace.add_run(ids["silver"], "RUN_EXECUTION_ERROR", "Task silver failed")
    workspace.add_run(ids["silver"])
    workspace.add_run(ids["maintenance"], "SUCCESS")
    rows = objects(remote("status", "--format", "json"))
    assert [(row["job"], row["starts"], row["run"], row["state"], row["ended"]) for row in rows] == [
        ("bronze", "continuous, paused", None, "never run", None),
        ("maintenance", "0 17 * * * ?", 1020, "SUCCESS", "1970-01-01T04:00:00+00:00"),
        ("operate", "", None, "never run", None),
        ("silver", "continuous", 1010, "RUNNING", None),
    ]
    assert workspace.statements == []


def test_with_a_warehouse_status_has_each_layers_batches_of_the_last_hour(workspace, remote):
    deployed(workspace)
    workspace.answers = [
        answered([("layer", "STRING"), ("batches", "LONG"), ("messages", "LONG")], [["silver", "7", "90"]])
    ]
    rows = objects(remote("status", "--warehouse", "lake", "--format", "json"))
    assert {row["job"]: (row["batches"], row["messages"]) for row in rows} == {
        "bronze": (None, None), "maintenance": (None, None), "operate": (None, None), "silver": (7, 90),
    }  # fmt: skip
    (sent,) = workspace.statements
    assert sent["warehouse_id"] == "w1"
    assert "FROM `main`.`ops`.`ledger`" in sent["statement"]


def test_several_deployments_are_reported_apart_by_target(workspace, remote):
    deployed(workspace, target="staging")
    ids = deployed(workspace, target="prod")
    result = remote("status")
    assert result.exit_code == 1
    assert "several deployments" in result.stderr
    assert re.search(r"sessionlake-silver \(prod, job \d+\).*sessionlake-silver \(staging", result.stderr)
    assert remote("run", "silver", "--target", "prod").exit_code == 0
    assert {run["job_id"] for run in workspace.runs.values()} == {ids["silver"]}
    assert "There is" in remote("status", "--target", "pord").stderr


def test_of_development_copies_only_ones_own_is_touched(workspace, remote):
    deployed(workspace, "[dev bob] ", "dev", creator="bob@example.com")
    assert f"no job sessionlake-… that {USER} may see" in remote("status").stderr
    ids = deployed(workspace, "[dev ada] ", "dev")
    assert "[dev ada] sessionlake-silver is paused" in remote("pause", "silver").stderr
    paused = [number for number, job in workspace.jobs.items() if is_paused(job)]
    assert paused == [min(workspace.jobs), ids["bronze"], ids["silver"]]


def test_two_jobs_of_one_name_in_one_deployment_are_ambiguous(workspace, remote):
    for _ in range(2):
        workspace.add_job("sessionlake-silver", target="")
    result = remote("pause", "silver")
    assert (result.exit_code, "several deployments" in result.stderr) == (1, True)
    assert "job 100), sessionlake-silver (deployed by no bundle, job 101)" in result.stderr


def test_an_unknown_job_is_reported_with_those_there_are(workspace, remote):
    deployed(workspace)
    result = remote("logs", "platinum")
    assert result.exit_code == 1
    assert (
        "no job sessionlake-platinum in this deployment. Name one of the jobs bronze, maintenance, operate, silver"
        in result.stderr
    )


# -- runs


def is_paused(job: dict) -> bool:
    return any(job["settings"].get(name, {}).get("pause_status") == "PAUSED" for name in ("continuous", "schedule"))


def test_pause_starts_jobs_no_more_and_ends_their_runs_and_run_lets_them_go_on(workspace, remote):
    ids = deployed(workspace)
    run = workspace.add_run(ids["silver"])
    assert remote("pause", "silver", "maintenance").exit_code == 0
    assert workspace.runs[run]["status"]["termination_details"]["code"] == "USER_CANCELED"
    assert is_paused(workspace.jobs[ids["maintenance"]])
    assert workspace.jobs[ids["silver"]]["settings"]["continuous"] == CONTINUOUS | {"pause_status": "PAUSED"}
    assert "is resumed: Databricks starts its run" in remote("run", "silver").stderr
    assert workspace.jobs[ids["silver"]]["settings"]["continuous"] == CONTINUOUS
    assert len(workspace.runs) == 1
    assert "run 1010 is started" in remote("run", "maintenance").stderr
    assert not is_paused(workspace.jobs[ids["maintenance"]])


def test_run_starts_a_continuous_job_again_and_once_leaves_a_paused_one_paused(workspace, remote):
    ids = deployed(workspace)
    before = workspace.add_run(ids["silver"])
    assert "run 1010 is started" in remote("run", "silver").stderr
    assert [workspace.runs[run]["status"]["state"] for run in (before, 1010)] == ["TERMINATED", "RUNNING"]
    assert "run 1020 is started" in remote("run", "bronze", "--once").stderr
    assert is_paused(workspace.jobs[ids["bronze"]])


def test_logs_are_those_of_the_latest_run_that_has_ended_unless_one_is_named(workspace, remote):
    silver = deployed(workspace)["silver"]
    assert "no run of the job silver has ended yet" in remote("logs", "silver").stderr
    workspace.add_run(silver, "SUCCESS", logs="first\n")
    workspace.add_run(silver, "RUN_EXECUTION_ERROR", "failed", logs="gap: session 's'\n", error="SystemExit: 3")
    workspace.add_run(silver)
    result = remote("logs", "silver")
    assert (result.exit_code, result.stdout) == (0, "gap: session 's'\n")
    assert "run 1010" in result.stderr
    assert "SystemExit: 3" in result.stderr
    assert remote("logs", "silver", "--run", "1000").stdout == "first\n"
    assert "no output yet" in remote("logs", "silver", "--run", "1020").stderr
    assert "INVALID_PARAMETER_VALUE: Run 7 does not exist" in remote("logs", "silver", "--run", "7").stderr


# -- decisions


def by_the_command_line(home: Path) -> Callable[[list[str]], tuple[bool, str]]:
    """What the job operate does: the words, as a command line of its own."""

    def operate(words: list[str]) -> tuple[bool, str]:
        done = CliRunner().invoke(cli.app, words, env={"SESSIONLAKE_HOME": str(home)})
        return done.exit_code == 0, done.output

    return operate


def test_an_operator_decides_from_his_laptop_about_the_place_at_which_silver_stopped(workspace, remote, tmp_path):
    deployed(workspace)
    there = Settings(home=tmp_path / "there")
    make_home(there)
    stop(there, 6)
    workspace.operate = by_the_command_line(there.home)
    result = remote("resolve", "--session", "s", "--topic", "t", "--skip-message", "6", "--why", "--a test")
    assert result.exit_code == 0, result.output
    assert "offset 6" in result.stdout
    assert read_operator_decisions(Lake(there).reader()) == {("t", 0, "s", 6): OperatorDecision.SKIP}
    (row,) = Lake(there).reader().read_rows("ops.decisions")
    assert row["why"] == f"--a test (asked for by {USER})"
    assert "run 1000: SUCCESS" in result.stderr


def test_what_the_run_refuses_is_shown_and_exits_with_1(workspace, remote, tmp_path):
    deployed(workspace)
    workspace.operate = by_the_command_line(tmp_path / "there")
    result = remote("resolve", "--session", "s", "--isolate")
    assert result.exit_code == 1
    assert "no layer has stopped at session 's'" in result.stdout
    assert (
        "ended as RUN_EXECUTION_ERROR: task main failed. Look at the run's output above, or on its page https://page/1000"
        in result.stderr
    )


def test_words_that_a_run_does_not_take_are_refused_before_it_is_started(workspace, remote):
    deployed(workspace)
    for words in (["--session", "s", "--why", "Überlauf"], ["--session", "Kühlung"]):
        result = remote("resolve", "--isolate", *words)
        assert result.exit_code == 2
        assert "not ASCII" in result.stderr
    assert workspace.runs == {}


def test_what_is_no_decision_is_refused_before_anything_is_started(workspace, remote):
    deployed(workspace)
    result = remote("resolve", "--session", "s", "--isolate", "--accept-gap")
    assert (result.exit_code, "Give one of" in result.stderr) == (2, True)
    assert workspace.runs == {}


def test_any_command_line_is_run_by_operate_and_its_output_shown(workspace, remote, tmp_path):
    deployed(workspace)
    workspace.operate = by_the_command_line(tmp_path / "there")
    rows = objects(remote("run", "operate", "--", "status", "--format", "json"))
    assert [row["layer"] for row in rows] == ["bronze", "silver", "silver_tables", "gold"]
    for words in (["run", "operate"], ["run", "silver", "doctor"]):
        assert remote(*words).exit_code == 2


# -- queries


def answered(columns: list[tuple[str, str]], *chunks: list[list[str | None]]) -> dict[str, object]:
    """What the Statement Execution API says of a statement that was successful."""
    told = [{"data_array": rows} | {"next_chunk_index": n} for n, rows in enumerate(chunks, 1)]
    del told[-1]["next_chunk_index"]
    schema = {"columns": [{"name": name, "type_name": kind} for name, kind in columns]}
    return {
        "status": {"state": "SUCCEEDED"}, "manifest": {"schema": schema}, "result": told[0], "chunks": told
    }  # fmt: skip


def test_a_query_asks_the_deployments_tables_under_their_names_on_a_laptop(workspace, remote):
    deployed(workspace)
    kinds = ("LONG", "DOUBLE", "DECIMAL", "BOOLEAN", "TIMESTAMP", "BINARY", "ARRAY", "STRING")
    columns = [(kind.lower(), kind) for kind in kinds]
    full = ["1", "0.5", "1.10", "true", "2026-01-02T03:04:05.678Z", "/w==", '["a"]', "ä"]
    workspace.answers = [answered(columns, [full], [[None] * 8, full])]
    sql = "SELECT 'silver.sessions', s.* FROM silver.sessions s JOIN `gold`.metrics_1h -- silver.sessions"
    rows = objects(remote("query", sql, "--format", "json"))
    assert list(rows[0].values()) == [1, 0.5, "1.10", True, "2026-01-02T03:04:05.678000+00:00", "/w==", ["a"], "ä"]
    assert [row["long"] for row in rows] == [1, None, 1]
    assert workspace.statements[0]["statement"] == (
        "SELECT 'silver.sessions', s.* FROM `main`.`dev_ada_silver`.`sessions` s "
        "JOIN `main`.`gold`.`metrics_1h` -- silver.sessions"
    )


def test_the_command_query_asks_the_warehouse_if_the_tables_are_in_a_workspace(workspace, remote, monkeypatch):
    deployed(workspace)
    monkeypatch.setenv("SESSIONLAKE_CATALOG", "main")
    workspace.answers = [answered([("n", "LONG")], [["1"]])] * 2
    for words in ([], ["--engine", "warehouse"]):
        assert objects(remote("SELECT count(*) AS n FROM silver.sessions", *words, "--format", "json", command="query"))
    assert {sent["statement"] for sent in workspace.statements} == {
        "SELECT count(*) AS n FROM `main`.`dev_ada_silver`.`sessions`"
    }
    for words in (["--as-of-batch", "7"], ["--param", "topic=a"]):
        assert remote("SELECT 1", *words, command="query").exit_code == 2


def test_names_that_a_statement_gives_itself_stay(workspace, remote):
    deployed(workspace)
    workspace.answers = [answered([("n", "LONG")], [["1"]])]
    sql = "WITH silver AS (SELECT * FROM {}) SELECT silver.topic FROM silver, {}('s', TIMESTAMP '2026-01-01'), {}"
    names = ("silver.sessions", "silver.session_as_of", "gold.session_summary")
    assert remote("query", sql.format(*names)).exit_code == 0
    assert workspace.statements[0]["statement"] == sql.format(
        "`main`.`dev_ada_silver`.`sessions`",
        "`main`.`dev_ada_silver`.`session_as_of`",
        "`main`.`gold`.`session_summary`",
    )


def test_a_query_is_written_as_csv_and_as_a_table(workspace, remote):
    deployed(workspace)
    workspace.answers = [answered([("n", "LONG")], [["1"], [None]])] * 2
    assert remote("query", "SELECT 1", "--format", "csv").stdout == 'n\n1\n""\n'
    assert "null" in remote("query", "SELECT 1").stdout


def test_a_query_that_fails_says_why_and_one_that_does_not_read_is_not_sent(workspace, remote):
    deployed(workspace)
    workspace.answers = [
        {"status": {"state": "FAILED", "error": {"error_code": "BAD_REQUEST", "message": "no column x"}}}
    ]
    result = remote("query", "SELECT x FROM gold.metrics_1h")
    assert (result.exit_code, "error: query: no column x" in result.stderr) == (1, True)
    assert remote("query", "DROP TABLE gold.metrics_1h").exit_code == 2
    assert len(workspace.statements) == 1


def test_an_interrupted_query_is_stopped_on_the_warehouse(workspace, remote, monkeypatch):
    deployed(workspace)

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        workspace, "statement", lambda statement_id: {"statement_id": statement_id, "status": {"state": "RUNNING"}}
    )
    # The module's own name alone: other threads of this process sleep, too.
    monkeypatch.setattr(statements, "time", SimpleNamespace(sleep=interrupted))
    assert remote("query", "SELECT 1").exit_code == 130
    assert workspace.cancelled == ["1"]


def test_the_warehouse_is_the_bundles_or_must_be_named_where_there_are_several(workspace, remote):
    deployed(workspace, "[dev ada] ", "dev")
    workspace.warehouses.append({"id": "w2", "name": "other"})
    result = remote("query", "SELECT 1")
    assert (result.exit_code, "and none was chosen: lake (w1), other (w2)" in result.stderr) == (2, True)
    workspace.answers = [answered([("n", "LONG")], [["1"]])]
    assert remote("query", "SELECT 1", DATABRICKS_WAREHOUSE_ID="w2").exit_code == 0
    workspace.warehouses.append({"id": "w3", "name": "[dev ada] sessionlake"})
    workspace.answers *= 3
    assert remote("query", "SELECT 1").exit_code == 0
    assert remote("query", "SELECT 1", "--warehouse", "lake").exit_code == 0
    assert remote("query", "SELECT 1", "--warehouse", "none").exit_code == 2
    assert [sent["warehouse_id"] for sent in workspace.statements] == ["w2", "w3", "w1"]


# -- the workspace itself


def test_a_wrong_token_is_reported_by_the_host_and_shown_nowhere(remote):
    result = remote("status", DATABRICKS_TOKEN="dapi-wrong")  # noqa: S106 - of no server
    assert result.exit_code == 1
    assert "rejects the request: PERMISSION_DENIED: Invalid access token" in result.stderr
    assert "dapi-wrong" not in result.output


def test_no_configuration_and_an_unknown_profile_are_reported_with_what_to_do(remote, tmp_path):
    (tmp_path / "none").write_text("[other]\nhost = https://other\n", encoding="utf-8")
    for words, environment in ((["status"], {"DATABRICKS_HOST": ""}), (["status", "--profile", "none"], {})):
        result = remote(*words, **environment)
        assert result.exit_code == 1
        assert "no Databricks workspace is configured" in result.stderr
        assert "DATABRICKS_CONFIG_PROFILE" in result.stderr
