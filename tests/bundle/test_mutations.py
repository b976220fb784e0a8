"""One wrong thing at a time in the bundle or its settings file: each is named, with file and line."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sessionlake.cli.app import app
from sessionlake.cli.job import explain_why_job_may_not_run
from sessionlake.databricks.bundle.rules import find_bundle_faults

ROOT = Path(__file__).parents[2]
REFUSED = partial(explain_why_job_may_not_run, typer.main.get_command(app))
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
    (BUNDLE, "          grants: &files", "          grant: &files", "grant: &files", "'grant' is not a key of Volume"),
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
    (SETTINGS, "status: string}", "status: string", "  integrity:", "is not valid YAML"),
    (BUNDLE, 'name_prefix: "[staging] "', 'name_prefix: "[staging] ', "name_prefix", "is not valid YAML"),
    (BUNDLE, "  name: sessionlake\n", "", "bundle:", "bundle.name is required"),
    (SCHEMAS, "      name: gold\n", "", "    gold_schema:", "schemas.gold_schema: name is required"),
    (BUNDLE, "        user_name: ${var.deployer}\n", "", "- level: CAN_MANAGE", "a permission must name exactly"),
    (BUNDLE, "    run_as: &run_as\n", "    run_as: &run_as\n      user_name: ada@example.com\n", "run_as: &run_as",
     "run_as must name exactly one of"),
    (BUNDLE, "      autoscale: ${var.bronze_workers}", "      autoscale: ${var.bronze_workers}\n      num_workers: 3",
     "num_workers: 3", "exactly one of autoscale, num_workers, is_single_node"),
    (BUNDLE, "    - tests/**", "    - tests/**\n    - resources/*", "    - resources/*",
     "sync.exclude leaves out resources/requirements.txt"),
    ("resources/logs.volume.yml", "MANAGED", "MANAGED\n      storage_location: s3://logs", "MANAGED",
     "a volume has a storage_location if its type is EXTERNAL"),
    ("resources/warehouse.sql_warehouse.yml", "max_num_clusters: 1", "max_num_clusters: 1\n      min_num_clusters: 2",
     "min_num_clusters: 2", "min_num_clusters is greater than max_num_clusters"),
    ("resources/secrets.scope.yml", "resources:", "resources:\n  pipelines: {own: {libraries: [{file: {path: a.py}}]}}",
     "pipelines", "there is no file resources/a.py"),
]  # fmt: skip


JOBS = ("bronze", "backfill", "maintenance", "publish")
BRONZE, BACKFILL, MAINTENANCE, PUBLISH = (f"resources/{job}.job.yml" for job in JOBS)
BACKLOG, RATE, VIOLATIONS = (f"resources/{alert}.alert.yml" for alert in ("backlog", "quarantine_rate", "violations"))
DASHBOARD, WAREHOUSE = "resources/lake.dashboard.yml", "resources/warehouse.sql_warehouse.yml"
CHECKPOINTS, SCOPE = "resources/checkpoints.volume.yml", "resources/secrets.scope.yml"

# file, what is there, what is put there; the fault is said at the line of the change.
ONE_WORD = [
    (BRONZE, "max_concurrent_runs: 1", "max_concurrent_runs: 2", "must be 1: two runs of a layer"),
    (BRONZE, "health: ${var", "healt: ${var", "Did you mean 'health'"),
    (BRONZE, "task_key: bronze", "task_ky: bronze", "Did you mean 'task_key'"),
    (BRONZE, "package_name: sessionlake", "package_name: sessionlak", "one of the package sessionlake"),
    (BRONZE, "[run, bronze]", "run bronze", "parameters must be a list"),
    (BRONZE, "[run, bronze]", "[run, silver]", "both run silver"),
    (BRONZE, "[run, bronze]", "[run, bronze, --once]", "a continuous job must not run --once"),
    (BRONZE, "job_clusters:", "jobs_clusters:", "Did you mean 'job_clusters'"),
    (BACKFILL, "            - task_key: silver\n", "            - task_key: silvr\n", "which is not a task"),
    (BACKFILL, "[run, silver, --once]", "[run, silver]", "must run --once"),
    (BACKFILL, "timezone_id: UTC", "timezone_id: Europe/Berln", "Did you mean 'Europe/Berlin'"),
    (BACKFILL, "timeout_seconds: 43200", "timeout_seconds: 12h", "must be an integer"),
    (BACKFILL, "op: GREATER_THAN", "op: GREATER", "is not one of GREATER_THAN"),
    (BACKFILL, "value: 21600", "value: 216000", "never takes 216000 seconds"),
    (BACKFILL, "enabled: true", "enabled: yes please", "must be true or false"),
    (MAINTENANCE, "0 17 * * * ?", "0 77 * * * ?", "minute '77'"),
    (MAINTENANCE, "[maintain, --once]", "[maintain]", "must run --once"),
    (PUBLISH, "--topic", "--topics", "No such option"),
    (BACKLOG, "query_text: |", "query_txt: |", "Did you mean 'query_text'"),
    (BACKLOG, "warehouse.id", "warehouse.ident", "have no field 'ident'"),
    (BACKLOG, "name: waiting_seconds", "name: waiting_second", "the query returns no column 'waiting_second'"),
    (BACKLOG, "aggregation: MAX", "aggregation: MAXIMUM", "'MAXIMUM' is not one of"),
    (BACKLOG, "retrigger_seconds: 3600", "retrigger_seconds: -1", "must be at least 0"),
    (BACKLOG, "cron_schedule: ${var.alerts_cron}", "cron_schedule: 0 0/15 * * *", "6 or 7 fields are needed"),
    (BACKLOG, "ops_schema.name}.ledger", "ops_schema.name}.leger", "the lake has no table 'ops.leger'"),
    (BACKLOG, "committed_at > current", "commited_at > current", "'commited_at' could not be resolved"),
    (RATE, "FROM ${var", "FORM ${var", "is not valid SQL"),
    (RATE, "sum(quarantined)", "sum(quarantine)", "'quarantine' could not be resolved"),
    (VIOLATIONS, "layer = 'silver'", "layr = 'silver'", "'layr' could not be resolved"),
    (DASHBOARD, '"datasetName": "freshness"', '"datasetName": "freshnes"', "there is no dataset 'freshnes'"),
    (DASHBOARD, '"fieldName": "layer"', '"fieldName": "layr"', "the widget has no field 'layr'"),
    (DASHBOARD, "`age_seconds`", "`age_second`", "the dataset returns no column 'age_second'"),
    (DASHBOARD, '"widgetType": "table"', '"widgetType": "tabel"', "Did you mean 'table'"),
    (DASHBOARD, '"y": 5', '"y": 4', "overlaps"),
    (DASHBOARD, '"keyword": "prefix"', '"keyword": "prefx"', "does not use the parameter 'prefx'"),
    (DASHBOARD, "embed_credentials: false", "embed_credentials: nope", "must be true or false"),
    (WAREHOUSE, "2X-Small", "2XSmall", "Did you mean '2X-Small'"),
    (WAREHOUSE, "max_num_clusters: 1", "max_num_clusters: 0", "must be at least 1"),
    (WAREHOUSE, "warehouse_type: PRO", "warehouse_type: PROO", "'PROO' is not one of"),
    (SCHEMAS, "catalog_name: ${var.catalog}", "catalog_name: main2", "not in 'main2'"),
    (SCHEMAS, "name: silver\n", "name: sil ver\n", "must not have a space"),
    (CHECKPOINTS, "schema_name: ${resources.schemas.ops_schema.name}", "schema_name: opps", "has no schema 'opps'"),
    (CHECKPOINTS, "volume_type: MANAGED", "volume_type: MANGED", "'MANGED' is not one of"),
    (SCOPE, "name: ${var.secret_scope}", "names: ${var.secret_scope}", "'names' is not a key of SecretScope"),
    (SCOPE, "secret_scopes:", "secret_scope:", "kind 'secret_scope' are not supported"),
    ("resources/queries/metrics.sql", "sum(points)", "sum(point)", "'point' could not be resolved"),
    (BUNDLE, "resources/*.yml", "resource/*.yml", "no file matches 'resource/*.yml'"),
    (BUNDLE, "uv build --wheel", "uv biuld --wheel", "builds no wheel"),
    (BUNDLE, "sync:", "sinc:", "Did you mean 'sync'"),
    (BUNDLE, ">= 1.9.0", ">== 1.9", "is no constraint of a version"),
    (BUNDLE, "keep_job_status", "keep_jobs_status", "there is no function"),
    (BUNDLE, "{min_workers: 1, max_workers: 2}", "{min_workers: 3, max_workers: 2}", "greater than max_workers"),
    (BUNDLE, "17.3.x-scala2.13", "17.3.x-scala2.12", "is no version of Databricks Runtime"),
    (BUNDLE, "kind: CLASSIC_PREVIEW", "kind: CLASSIC", "'CLASSIC' is not one of"),
    (BUNDLE, "SESSIONLAKE_CATALOG:", "SESSIONLAKE_CATALOGUE:", "is not a key of the settings"),
    (BUNDLE, "destination: /Volumes/", "destination: /Volums/", "Did you mean 'Volumes'"),
    (BUNDLE, "- whl: dist/*.whl", "- whl: dst/*.whl", "no artifact is built into dst"),
    (BUNDLE, "resources/requirements.txt", "resources/requirement.txt", "there is no file"),
    (BUNDLE, "on_failure: ${var.notify_emails}", "on_failures: ${var.notify_emails}", "Did you mean 'on_failure'"),
    (BUNDLE, "schema_prefix: staging_", "schema_prefix: stagng_", "the dashboard looks for the schema"),
    (BUNDLE, "root_path:", "rootpath:", "Did you mean 'root_path'"),
    (BUNDLE, "${var.root_folder}", "${workspace.current_user.userName}", "depends on who deploys"),
    (BUNDLE, "user_name: ${var.deployer}", "user_name: ${workspace.current_user.userName}", "depends on who deploys"),
    (BUNDLE, "principal: ${var.readers_group}", "principle: ${var.readers_group}", "Did you mean 'principal'"),
    (BUNDLE, "prevent_destroy: true", "prevent_destory: true", "Did you mean 'prevent_destroy'"),
    (BUNDLE, "[READ_VOLUME, WRITE_VOLUME]", "[SELECT]", "SELECT cannot be granted on volumes"),
    (BUNDLE, "default: true", "default: false", "exactly one target must have default: true"),
    (BUNDLE, "default: 17.3.x-scala2.13", "default: 17.3", "is no version of Databricks Runtime"),
    (BUNDLE, "SCHEMAS__GOLD: ${resources.schemas.gold_schema", "SCHEMAS__GOLD: ${resources.schemas.silver_schema",
     "names the schema of silver"),
    (BUNDLE, "${resources.volumes.checkpoints.name}", "${resources.volumes.logs.name}", "volume of the clusters' logs"),
    (BUNDLE, "SESSIONLAKE_CATALOG: ${var.catalog}", "SESSIONLAKE_CATALOG: main.lake", "CATALOG: catalog = 'main.lake'"),
    (BUNDLE, "${var.publish_table}=", "${var.publish_table}:", "is no publication"),
    (BUNDLE, "default: ${workspace.file_path}/sessionlake.yml", "default: ${var.settings_file}", "refers to itself"),
    (BUNDLE, 'default: "false"', 'default: "no"', "variable start must be true or false"),
    (BUNDLE, "spark.scheduler.mode: FAIR", "spark.scheduler.mode: FAIRE", "Did you mean 'FAIR'"),
    (BUNDLE, "default: 900", "default: -900", "a rule's value must be at least 1"),
    (BUNDLE, "default: m6id.xlarge", 'default: ""', "a cluster needs node_type_id"),
    (BUNDLE, "default: sessionlake-${bundle.target}", "default: session lake", "may only have letters, digits"),
    (BUNDLE, "        gold_schema: *", "        golden_schema: *", "Did you mean 'gold_schema'"),
    (PUBLISH, '"${var.publish_table}", --topic, "${var.publish_topic}"', '"${var.publish_topic}", --topic, x',
     "this deployment publishes"),
    (GOLD, "libraries: ${var.libraries}", "libraries: [{pypi: {package: numpy}}]", "installs no wheel"),
    (SCHEMAS, "name: gold\n", "name: silver\n", "has the same name as schemas.silver_schema"),
    (WAREHOUSE, "warehouse_type: PRO", "warehouse_type: CLASSIC", "a serverless warehouse has the type PRO"),
    (DASHBOARD, '"widgetType": "table"', '"widgetType": table', "is not valid JSON"),
    (DASHBOARD, "embed_credentials: false", "file_path: absent.json", "there is no file resources/absent.json"),
    ("resources/requirements.txt", "fastavro==", "fastavro=", "is no requirement, such as"),
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


@pytest.mark.parametrize(("file", "old", "new", "fault"), ONE_WORD)
def test_one_wrong_word_is_named_at_its_line(folder, file, old, new, fault):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    found = find_bundle_faults(folder, {}, REFUSED)
    assert [one for one in found if (one.file, one.line) == (file, line) and fault in one.text], found


@pytest.mark.parametrize(
    ("file", "old", "new", "used"),
    [
        (GOLD, "webhook_notifications: ${var.webhooks}", "webhook_notifications: ${var.emails}", f"{GOLD}:19"),
        (GOLD, "new_cluster: ${var.gold_cluster}", "new_cluster: ${var.gold_workers}", f"{GOLD}:30"),
        (BUNDLE, "on_failure: ${var.notify_destinations}", "on_failure: ${var.notify_emails}", f"{BUNDLE}:92"),
    ],
)  # fmt: skip
def test_a_wrong_reference_is_named_with_its_line_beside_the_value_that_it_leads_to(folder, file, old, new, used):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    assert any(f"Used in {used}" in one.text for one in find_bundle_faults(folder, {}, REFUSED))


def test_one_wrong_value_of_all_jobs_is_one_fault(folder):
    text = (folder / BUNDLE).read_text()
    (folder / BUNDLE).write_text(text.replace("17.3.x-scala2.13", "15.4.x-scala2.12"))
    (fault,) = find_bundle_faults(folder, {}, REFUSED)
    assert "jobs.backfill: sessionlake needs Databricks Runtime 16 or later" in fault.text
    assert "(also jobs.bronze, jobs.gold" in fault.text


def test_a_table_of_the_settings_file_may_be_queried_and_published(folder):
    own = "gold: {products: [{name: hourly, keys: [topic], bucket: 1 hour, aggregates: {points: count}}]}"
    settings = (folder / SETTINGS).read_text()
    (folder / SETTINGS).write_text(settings.replace("# What differs", f"{own}\n# What differs"))
    (folder / "resources/queries/own.sql").write_text("SELECT * FROM IDENTIFIER(:prefix || 'gold.hourly')\n")
    assert find_bundle_faults(folder, {}, REFUSED) == []


def test_the_environment_overrides_a_target_s_variable(folder):
    """A lake on one cluster, as the how-to page says, in all targets at once."""
    given = {"continuous_status": "PAUSED", "lake_status": "UNPAUSED"}
    assert find_bundle_faults(folder, given, REFUSED) == []
    assert find_bundle_faults(folder, {"lake_status": "UNPAUSED"}, REFUSED)


def test_the_file_of_overrides_is_read_and_checked(folder):
    own = folder / ".databricks/bundle/prod/variable-overrides.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"continuous_status": "PAUSED",\n "lake_status": "UNPAUSED"}')
    assert find_bundle_faults(folder, {}, REFUSED) == []
    own.write_text('{"continuous_status": "PAUSED",\n "lake_statu": "UNPAUSED"}')
    (fault,) = find_bundle_faults(folder, {}, REFUSED)
    assert (fault.file, fault.line) == (".databricks/bundle/prod/variable-overrides.json", 2)
    assert fault.text == "there is no variable lake_statu. Did you mean 'lake_status'?"
    own.write_text('{"continuous_status": "PAUSED"\n "lake_status": "UNPAUSED"}')
    (fault,) = find_bundle_faults(folder, {}, REFUSED)
    assert "variable-overrides.json:2: is not valid JSON: Expecting ',' delimiter" in str(fault)


def test_a_library_may_be_in_a_volume_that_the_bundle_does_not_have(folder):
    libraries = [{"whl": "dist/*.whl"}, {"whl": "/Volumes/main/wheels/own/x.whl"}]
    assert find_bundle_faults(folder, {"catalog": "main", "libraries": libraries}, REFUSED) == []


def test_a_job_of_a_shared_target_whose_failure_nobody_hears_of_is_named(folder):
    text = (folder / GOLD).read_text()
    (folder / GOLD).write_text(
        text.replace("email_notifications: ${var.emails}", "email_notifications: ${var.webhooks}")
    )
    assert any("nobody is notified of a failure" in one.text for one in find_bundle_faults(folder, {}, REFUSED))


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
