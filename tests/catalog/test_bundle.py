"""The bundle's jobs as they are deployed, command line and environment, and its queries over what they wrote."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bundle.conftest import GIVEN, ROOT
from integration.test_run_all import simulated
from sessionlake.build import read_code_version
from sessionlake.cli import app as cli
from sessionlake.databricks.bundle.files import ResolvedTarget, read_bundle, resolve_target
from sessionlake.delta.lake import Lake
from sessionlake.local.broker import BrokerStatus
from sessionlake.settings.model import KafkaSettings, Settings, load_settings
from sessionlake.spark.interpreted import use_temporary_spark_conf
from sessionlake.spark.session import DATABRICKS_VARIABLE, build_databricks_conf
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.readback import compute_truth_from_broker
from support.dbutils import give_secrets

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]
QUERIES = sorted((ROOT / "resources" / "queries").glob("*.sql"))
# What a laptop's two cores do soon, and something for each job to do.
MORE = """
silver: {shards: 2}
gold: {shards: 2}
processors: [{name: logins, class: "sessionlake.examples.logins:Logins"}]
"""
PATTERN, PREFIX = r"bundled\..+", "spark_catalog.dev_ada_"


@pytest.fixture
def deployed(broker: BrokerStatus, spark: Any) -> Iterator[ResolvedTarget]:
    """A development target whose schemas are in the tests' catalog."""
    given = GIVEN | {"catalog": "spark_catalog", "kafka_bootstrap_servers": broker.bootstrap_servers}
    target = resolve_target(read_bundle(ROOT), "dev", given)
    schemas = [schema["name"] for schema in target.list_resources_of_kind("schemas").values()]
    for schema in schemas:
        spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    with use_temporary_spark_conf(
        spark, build_databricks_conf(Settings())
    ):  # which the jobs set, in the session that all tests share
        yield target
    for schema in schemas:
        spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")


@pytest.fixture
def environment(deployed: ResolvedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a job's cluster has, but for two places: the settings' copy here has topics of its own, and a processor."""
    give_secrets(monkeypatch, {"kafka-options": json.dumps({"client.id": "as-deployed"})})
    copied = tmp_path / "sessionlake.yml"
    text = (ROOT / "sessionlake.yml").read_text().replace(r"capture\..+", PATTERN)
    copied.write_text(text.replace("on_violation: fail", "on_violation: isolate") + MORE)
    clusters = [item["new_cluster"] for job in deployed.jobs.values() for item in job["job_clusters"]]
    [own] = {json.dumps(cluster["spark_env_vars"]) for cluster in clusters}
    here = {"SESSIONLAKE_CONFIG": str(copied), "SESSIONLAKE_CHECKPOINTS": str(tmp_path / "checkpoints")}
    return json.loads(own) | here | {DATABRICKS_VARIABLE: "17.3"}


@pytest.fixture
def run(environment: dict[str, str], deployed: ResolvedTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a job's tasks as its cluster does; one without end until it has said that it runs, and worked a while."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if text.startswith(("running", "publishing")):
            threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()

    for module in ("cli.app", "cli.once", "cli.publish"):
        monkeypatch.setattr(f"sessionlake.{module}.say", tell, raising=False)

    def job(key: str, *words: str) -> list[str]:
        said.clear()
        for task in deployed.jobs[key]["tasks"]:  # `bundle run` gives words in the place of parameters
            done = CliRunner().invoke(cli.app, words or task["python_wheel_task"]["parameters"], env=environment)
            assert done.exit_code == 0, (key, said, done.output)
        return list(said)

    return job


@pytest.fixture
def topics(environment: dict[str, str], tmp_path: Path) -> None:
    """Sessions of sensors, in topics that only these tests read."""
    servers = environment["SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS"]
    simulated(
        Settings(home=tmp_path, kafka=KafkaSettings(bootstrap_servers=servers, topic_pattern=PATTERN)), messages=400
    )
    return servers


@pytest.mark.soak
@pytest.mark.usefixtures("topics")
def test_jobs_that_end_run_as_they_are_deployed_their_tables_are_the_truth_and_every_question_and_query_answers(
    run: Any, spark: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [line.partition(",")[0] for line in run("backfill") if ":" not in line] == ["done"] * 3
    assert_all_that_is_asked_agrees(spark, environment, monkeypatch)
    assert run("operate") == []
    versions = spark.table(f"{PREFIX}ops.ledger").select("code_version").distinct().collect()
    assert [row["code_version"] for row in versions] == [read_code_version()]
    found = {file.stem: spark.sql(file.read_text(), {"prefix": PREFIX}) for file in QUERIES}
    given = {name: set(answer.columns) for name, answer in found.items()}
    assert {name for name, columns in shown().items() if not columns <= given[name]} == set()
    rows = {name: answer.collect() for name, answer in found.items()}
    assert {row["layer"] for row in rows["freshness"]} >= {"bronze", "silver", "silver_tables", "gold"}
    assert {(row["layer"], row["waiting"], row["stopped"]) for row in rows["backlog"]} == {
        (layer, 0, 0) for layer in ("silver", "silver_tables", "gold")
    }
    taken_in = spark.table(f"{PREFIX}bronze.messages").count()
    assert sum(row["messages"] for row in rows["throughput"] if row["layer"] == "bronze") == taken_in > 0
    assert [0 <= row["percent"] <= 100 for row in rows["quarantine_rate"]] == [True]
    assert all(rows[name] for name in ("sessions", "metrics", "distinct_values", "violations"))


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("topics")
def test_every_job_runs_as_it_is_deployed_and_all_together_come_to_the_truth(
    run: Any, spark: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("bronze", "silver", "gold", "processors"):
        assert run(key)[-1] == "stopped"
    assert run("publish")[-1].startswith("stopped: ")
    run("maintenance")
    assert [line.partition(",")[0] for line in run("backfill") if ":" not in line] == [
        "done"
    ] * 3  # what the others had no time for
    for asked in ("verify silver", "rebuild silver", "doctor"):
        run("operate", *asked.split())
    assert_all_that_is_asked_agrees(spark, environment, monkeypatch)


def assert_all_that_is_asked_agrees(spark: Any, environment: dict[str, str], patch: pytest.MonkeyPatch) -> None:
    """The tables are what an independent judge makes of the topics, and the commands that read say so."""

    def asked(*words: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(cli.app, [*words, "--format", "json"], env=environment)
        assert done.exit_code == 0, (words, done.output)
        return [json.loads(line) for line in done.stdout.splitlines()]

    with patch.context() as deployed:
        for name, value in environment.items():
            deployed.setenv(name, value)
        settings = load_settings()
        outcome = verify_session_rows(spark, Lake(settings), truth := compute_truth_from_broker(settings))
    assert (outcome.exact, outcome.differences) == (len(truth.session_rows), {})
    layers = {layer["layer"]: (layer["behind"], layer["unaccounted"]) for layer in asked("status")}
    of_layers = {"bronze", "silver", "silver_tables", "gold"}
    assert {name: layers[name] for name in of_layers} == dict.fromkeys(of_layers, (0, 0))
    done = CliRunner().invoke(cli.app, ["verify", "gold"], env=environment)
    assert done.exit_code == 0, done.output
    (topic, partition, session), told = next(iter(truth.sessions.items()))
    [traced] = asked("trace", topic, str(told["partition"]), str(told["first_offset"]))
    assert traced["topic"] == topic
    rows = asked("session", "show", session, "--topic", topic, "--partition", str(partition))
    assert len(rows) == len(truth.session_rows.get((topic, partition, session), {}))


def shown() -> dict[str, set[str]]:
    """The columns that the dashboard takes of each query."""
    pages = read_bundle(ROOT).merged_content["resources"]["dashboards"]["dashboard"]["serialized_dashboard"]["pages"]
    widgets = [item["widget"] for page in pages for item in page["layout"]]
    queries = [query["query"] for widget in widgets for query in widget["queries"]]
    return {
        query["datasetName"]: set(re.findall(r"`(\w+)`", "".join(field["expression"] for field in query["fields"])))
        for query in queries
        if "fields" in query
    }
