"""One wrong thing at a time in the bundle or its settings file: each is named, with file and line."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sessionlake.cli.app import app
from sessionlake.cli.job import explain_refusal
from sessionlake.databricks.bundle.rules import find_bundle_faults

ROOT = Path(__file__).parents[2]
REFUSED = partial(explain_refusal, typer.main.get_command(app))
BUNDLE, SETTINGS = "databricks.yml", "sessionlake.yml"
SILVER, GOLD = "resources/silver.job.yml", "resources/gold.job.yml"
SCHEMAS = "resources/lake.schemas.yml"

# file, what is there, what is put there, where its fault is said (the first line with that text), and the fault.
WRONG = [
    (BUNDLE, "lifecycle: *kept\n          grants:\n            - &writes", "grants:\n            - &writes",
     "bronze_schema:", "schemas.bronze_schema has data that cannot be restored"),
    (BUNDLE, "autoCompact.enabled", "autocompact.enabled", "autocompact.enabled", "is not one of the known settings"),
    (BUNDLE, "      data_security_mode: SINGLE_USER\n", "", "default: &cluster", "_security_mode must be SINGLE_USER"),
    (SILVER, "task_retry_mode: NEVER", "task_retry_mode: ON_FAILURE", "ON_FAILURE", "task_retry_mode must be NEVER"),
    (SCHEMAS, "gold_schema:", "gold:", "    gold:", "key 'gold' has several types: jobs, schemas"),
    (GOLD, "    gold:\n", "    silver:\n", "    silver:", "jobs.silver is spread over resources/gold.job.yml"),
    (GOLD, "gold\n      desc", "gold\n      name: twice\n      desc", "name: twice", "the key 'name' occurs twice"),
    (BUNDLE, "level: CAN_MANAGE_RUN", "level: CAN_RUNS", "level: CAN_RUNS",
     "level 'CAN_RUNS' is not one of CAN_VIEW, CAN_MANAGE_RUN"),
    (BUNDLE, "- level: CAN_MANAGE\n", "- level: CAN_MANGE\n", "CAN_MANGE", "level 'CAN_MANGE' is not one of"),
    (BUNDLE, "default: CAN_MANAGE_RUN", "default: CAN_MANGE", "CAN_MANGE", "level 'CAN_MANGE' is not one of CAN_VIEW"),
    (BUNDLE, "- level: CAN_RUN", "- level: CAN_READ", "CAN_READ", "level 'CAN_READ' is not one of CAN_VIEW, CAN_RUN"),
    (BUNDLE, "SELECT, EXECUTE]", "SELECT, EXECUT]", "EXECUT]", "'EXECUT' is not one of"),
    (BUNDLE, "          grants: &files", "          grant: &files", "grant: &files", "'grant' is not a key of Schema"),
    (BUNDLE, "        silver: *paused", "        slver: *paused", "slver: *paused", "jobs.slver: the job has no tasks"),
    (BUNDLE, "user_name: ${var.deployer}", "user_name: ${var.deploier}", "deploier",
     "${var.deploier}: there is no such variable"),
    (BUNDLE, 'autoscale: "${var.s', 'autoscal: "${var.s', "autoscal:", "'autoscal' is not a key of ClusterSpec"),
    (BUNDLE, "{min_workers: 1, max_workers: 4}", "{min_worker: 1}", "{min_worker:",
     "'min_worker' is not a key of AutoScale"),
    (BUNDLE, "continuous_status: UNPAUSED", "continuous_status: UNPAUSE", "_status: UNPAUSE", "'UNPAUSE' is not"),
    (BUNDLE, "    run_as: *run_as\n", "", "  prod:", "without run_as its jobs run as the user who deploys"),
    (BUNDLE, "include:\n  - resources/*.yml", "include: resources/*.yml", "include:", "include must be a list of"),
    ("resources/maintenance.job.yml", "[maintain,", "[maintian,", "parameters", "No such command 'maintian'"),
    ("resources/maintenance.job.yml", "--once", "--onec", "parameters", "No such option: --onec"),
    (GOLD, "entry_point: sessionlake-job", "entry_point: sessionlak", "entry_point", ", not 'sessionlak'"),
    (GOLD, "entry_point: sessionlake-job", "entry_point: sessionlake", "entry_point", ", not 'sessionlake'"),
    ("resources/operate.job.yml", "[doctor]", "[query, SELECT 1]", "parameters", "a job does not run `query`"),
    (SETTINGS, "  format: json", "  format: avro\n  payload: {schema_file: depth.avsc}", "schema_file", "no such file"),
    (BUNDLE, "mode: production", "mode: PRODUCTION", "PRODUCTION", "mode 'PRODUCTION' is not one of development"),
    (GOLD, "max_concurrent_runs", "max_concurent_runs", "max_concurent_runs", "max_concurent_runs"),
    (GOLD, "${var.gold_cluster}", "${var.gold_clustre}", "gold_clustre", "there is no such variable"),
    (GOLD, "${var.emails}", "${vars.emails}", "${vars", "must begin with var, resources"),
    ("resources/logs.volume.yml", "schemas.ops_schema", "schemas.ops", "schemas.ops.", "there is no such resource"),
    (BUNDLE, "    description: Unity Catalog that holds the schemas.\n", "    type: string\n", "  catalog:",
     "variable catalog has no description"),
    (BUNDLE, "continuous_status: UNPAUSED", "continous_status: UNPAUSED", "continous", "no variable continous_status"),
    ("resources/maintenance.job.yml", "0 17 * * * ?", "17 * * * *", "17 * * * *", "6 or 7 fields are needed, found 5"),
    (BUNDLE, "default: 0 0 3 * * ?", "default: 0 0 24 * * ?", "0 0 24", "hour '24'"),
    ("resources/backfill.job.yml", "- task_key: bronze\n          job", "- task_key: silver\n          job",
     "tasks:", "task key 'silver' is used 2 times"),
    (BUNDLE, "  prod:\n", "  empty:\n\n  prod:\n", "  empty:", "target empty: mode None is not one of"),
    (SETTINGS, "topic_pattern", "topic_patern", "topic_patern", "kafka.topic_patern: no such key"),
    (SETTINGS, "price: double", "price: money", "price: money", "type 'money' is not one of"),
    (SETTINGS, "integrity: strict", "integrity: strikt", "strikt", "capture.integrity = 'strikt'"),
    (SETTINGS, "staging: *databricks", "stagging: *databricks", "stagging", "the bundle has no such target"),
    (SETTINGS, "prod: *databricks", "prod: {silver: {shards: many}}", "shards", "silver.shards = 'many'"),
    (SETTINGS, "  format: json", "  format: json\n  format: avro", "format: avro", "the key 'format' occurs twice"),
    (SETTINGS, "options: !secret kafka-options", "options: !sekret x", "!sekret", "!sekret"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundle's files."""
    for name in (BUNDLE, SETTINGS):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "resources", tmp_path / "resources")
    return tmp_path


def test_the_bundle_as_it_is_has_no_fault(folder):
    assert find_bundle_faults(folder, {}, REFUSED) == []


@pytest.mark.parametrize(("file", "old", "new", "at", "fault"), WRONG)
def test_a_wrong_bundle_or_settings_file_is_named_with_its_line(folder, file, old, new, at, fault):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text := text.replace(old, new, 1))
    line = next(number for number, said in enumerate(text.splitlines(), 1) if at in said)
    found = find_bundle_faults(folder, {}, REFUSED)
    assert any(fault in one.text for one in found), found
    assert f"{file}:{line}" in {f"{one.file}:{one.line}" for one in found}, found


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("- level: CAN_RUN", "- level: CAN_VIEW", "alerts.backlog: it runs as <service_principal_name>, who"),
        ("level: CAN_USE\n              group_name: ${var.readers_group}",
         "level: CAN_USE\n              service_principal_name: ${var.service_principal_name}",
         "sql_warehouses.warehouse: <service_principal_name> has two levels"),
    ],
)  # fmt: skip
def test_who_runs_an_alert_may_ask_its_warehouse_and_has_one_level_there(folder, old, new, fault):
    text = (folder / BUNDLE).read_text()
    assert old in text
    (folder / BUNDLE).write_text(text.replace(old, new, 1))
    assert any(one.text.startswith(fault) for one in find_bundle_faults(folder, {}, REFUSED))


def test_doctor_says_so_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert CliRunner().invoke(app, ["doctor", "--bundle"]).exit_code == 0
    (folder / SETTINGS).write_text("kafka: {topic_patern: a}")
    result = CliRunner().invoke(app, ["doctor", "--bundle", "--format", "json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout.splitlines()[0])
    assert (found["level"], found["check"]) == ("fail", f"{SETTINGS}:1")
    assert "kafka.topic_patern: no such key" in found["found"]
