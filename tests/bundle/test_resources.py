"""Every resource fits its published model, and each target is what it is for."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import typer

from bundle.conftest import GIVEN
from sessionlake.cli.app import app
from sessionlake.cli.job import explain_why_job_may_not_run
from sessionlake.databricks.bundle.files import ResolvedTarget, resolve_target
from sessionlake.databricks.bundle.models import MODEL_FILE
from sessionlake.delta.lake import Lake, create_storage
from sessionlake.delta.schemas.names import ERASURES
from sessionlake.settings.file import read_document
from sessionlake.settings.model import Settings, load_settings
from sessionlake.spark.session import build_databricks_conf
from support.bundle_models import KINDS, write_models
from support.dbutils import give_secrets

ROOT = Path(__file__).parents[2]
LAYERS = {"bronze", "silver", "gold"}
ENDLESS = {*LAYERS, "lake", "processors", "publish"}
CLIENT = {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'Login required username="u" password="p$\\";'}
HOST = re.compile(r"https?://(?!docs\.|github\.com)|\b\d{1,3}(\.\d{1,3}){3}\b|\.(cloud|net|io|databricks\.com)\b")
CREDENTIAL = re.compile(r"dapi[0-9a-f]{8}|password\s*[=:]|BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}")
PARTITIONS = "spark.sql.shuffle.partitions"


def test_every_resource_of_every_kind_loads_through_its_model(bundle):
    for kind, resources in bundle.config["resources"].items():
        model = getattr(import_module(f"databricks.bundles.{kind}"), KINDS[kind])
        for resource in resources.values():
            model.from_dict({name: value for name, value in resource.items() if name != "id"})


def test_the_stored_models_are_those_of_the_package():
    assert MODEL_FILE.read_text() == write_models(), "run `make bundle-models`"


def test_there_is_one_file_a_resource(files):
    kinds = {"job": "jobs", "volume": "volumes", "alert": "alerts"}
    for kind, resources in kinds.items():
        named = {Path(name).name.removesuffix(f".{kind}.yml") for name in files.documents if f".{kind}." in name}
        assert named == set(files.merged_content["resources"][resources])
    assert set(files.merged_content["resources"]["jobs"]) == {*ENDLESS, "maintenance", "operate", "backfill"}


def test_no_file_has_a_secret_or_a_host(files):
    paths = [*files.documents, "sessionlake.yml", "resources/requirements.txt"]
    for path in paths:
        text = (ROOT / path).read_text()
        assert [found[0] for found in (*HOST.finditer(text), *CREDENTIAL.finditer(text))] == [], path


def test_a_development_target_waits_paused_and_shares_no_name_with_others(dev, production):
    assert {pace(job)["pause_status"] for job in dev.jobs.values() if pace(job)} == {"PAUSED"}
    assert {alert["schedule"]["pause_status"] for alert in dev.list_resources_of_kind("alerts").values()} == {"PAUSED"}
    for kind, field in (
        ("schemas", "name"),
        ("secret_scopes", "name"),
        ("jobs", "name"),
        ("dashboards", "display_name"),
    ):
        ours, theirs = (
            {resource[field] for resource in target.list_resources_of_kind(kind).values()}
            for target in (dev, production)
        )
        assert not ours & theirs
    sent = [target.jobs["publish"]["tasks"][0]["python_wheel_task"]["parameters"][-1] for target in (dev, production)]
    assert sent == ["tables.dev.ada.session_rows", f"tables.{production.name}.session_rows"]


def test_production_runs_as_the_service_principal_from_one_root(production):
    unpaused = {key for key, job in production.jobs.items() if pace(job).get("pause_status") == "UNPAUSED"}
    assert unpaused == {*LAYERS, "maintenance"}
    assert production.config["run_as"] == {"service_principal_name": production.config["var"]["service_principal_name"]}
    principal = production.config["var"]["service_principal_name"]
    root = f"/Workspace/Users/{principal}/.bundle/sessionlake/{production.name}"
    assert production.config["workspace"]["root_path"] == root


@pytest.mark.parametrize("name", ["staging", "prod"])
def test_a_second_user_deploys_the_same(files, name):
    ada, grace = (
        resolve_target(files, name, GIVEN, {"userName": f"{user}@example.com", "short_name": user}).config
        for user in ("ada", "grace")
    )
    assert ada["workspace"].pop("current_user") != grace["workspace"].pop("current_user")
    assert ada == grace


def test_what_runs_without_end_is_reported_when_it_fails_or_falls_behind(bundle):
    assert {key for key, job in bundle.jobs.items() if "continuous" in job} == ENDLESS
    for key, job in bundle.jobs.items():
        rules = {rule["metric"] for rule in job["health"]["rules"]}
        behind = {"STREAMING_BACKLOG_RECORDS", "STREAMING_BACKLOG_SECONDS"}
        assert rules == (behind if key in ENDLESS else {"RUN_DURATION_SECONDS"})
        assert set(job["email_notifications"]) == set(job["webhook_notifications"])
        assert job["email_notifications"]["on_failure"] == ["ada@example.com"]
        assert job["email_notifications"]["on_streaming_backlog_exceeded"] == ["ada@example.com"]


def test_two_runs_of_a_job_never_overlap_and_what_ends_has_a_timeout_and_a_queue(bundle):
    assert {job["max_concurrent_runs"] for job in bundle.jobs.values()} == {1}
    for key in bundle.jobs.keys() - ENDLESS:
        assert bundle.jobs[key]["timeout_seconds"] > 0
        assert bundle.jobs[key]["queue"] == {"enabled": True}


def test_schemas_are_named_only_through_their_resource(files):
    environment = files.merged_content["variables"]["environment"]["default"]
    for schema in ("bronze", "silver", "gold", "ops", "reference"):
        assert environment[f"SESSIONLAKE_SCHEMAS__{schema.upper()}"] == f"${{resources.schemas.{schema}_schema.name}}"


def test_what_is_built_beside_silver_has_schemas_that_are_there(bundle, read_job_settings):
    beside, schemas = (
        create_storage(read_job_settings(bundle)).build_staging_table_settings().schemas,
        bundle.list_resources_of_kind("schemas"),
    )
    named = (schemas["silver_rebuild_schema"]["name"], schemas["ops_rebuild_schema"]["name"])
    assert (beside.silver, beside.ops) == named


def test_every_job_has_one_environment_without_secrets_or_what_a_shell_would_read(bundle):
    [environment] = {json.dumps(own) for job in bundle.jobs.values() for own in environments(job)}
    assert not re.search(r"[$'\\{}]|\\\"", "".join(json.loads(environment).values()))
    assert set(json.loads(environment)) >= {"SESSIONLAKE_CONFIG", "SESSIONLAKE_TARGET", "SESSIONLAKE_SECRET_SCOPE"}


def test_the_package_reads_the_deployed_settings_file_and_the_secret_in_a_job(
    bundle, read_job_settings, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = read_job_settings(bundle)
    lake = Lake(settings)
    schemas = bundle.list_resources_of_kind("schemas")
    assert lake.to_sql_identifier("silver.sessions") == f"`lake`.`{schemas['silver_schema']['name']}`.`sessions`"
    assert settings.checkpoint_path("gold") == f"/Volumes/lake/{schemas['ops_schema']['name']}/checkpoints/gold"
    assert settings.kafka.options == CLIENT
    assert settings.kafka.bootstrap_servers == "broker-1:9093,broker-2:9093"
    assert settings.capture == Settings().capture


def test_a_laptop_in_this_folder_has_the_defaults(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert load_settings() == Settings()


def test_a_stateful_layer_has_as_many_state_stores_as_shards(bundle, read_job_settings):
    for layer in ("silver", "gold"):
        settings = read_job_settings(bundle)
        assert build_databricks_conf(settings)[PARTITIONS] == str(getattr(settings, layer).shards)


@pytest.mark.parametrize(("silver", "gold", "partitions"), [(16, 16, "16"), (128, 64, "128"), (16, 256, "256")])
def test_state_stores_follow_the_settings_and_suffice_for_the_layer_of_most_shards(silver, gold, partitions):
    settings = Settings(silver={"shards": silver}, gold={"shards": gold})
    assert build_databricks_conf(settings)[PARTITIONS] == partitions


def test_clusters_keep_states_in_rocksdb_and_say_nothing_that_the_session_is_reported(bundle):
    conf = {key: value for job in bundle.jobs.values() for c in clusters(job) for key, value in c["spark_conf"].items()}
    assert conf["spark.sql.streaming.stateStore.providerClass"].endswith(".RocksDBStateStoreProvider")
    assert conf["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"
    assert not build_databricks_conf(Settings()).keys() & conf.keys()
    assert {c["spark_version"] for job in bundle.jobs.values() for c in clusters(job)} == {"17.3.x-scala2.13"}


def test_grants_in_production_are_the_least_that_work(production):
    principal = production.config["var"]["service_principal_name"]
    writes, reads = {"USE_SCHEMA", "CREATE_TABLE", "SELECT", "MODIFY"}, {"USE_SCHEMA", "SELECT"}
    granted = {
        key: {grant["principal"]: set(grant["privileges"]) for grant in schema["grants"]}
        for key, schema in production.list_resources_of_kind("schemas").items()
    }
    assert granted == {
        "bronze_schema": {principal: writes},
        **{
            key: {principal: {*writes, "CREATE_FUNCTION"}, "analysts": {*reads, "EXECUTE"}}
            for key in ("silver_schema", "gold_schema")
        },
        **{key: {principal: writes, "analysts": reads} for key in ("ops_schema", "reference_schema")},
        **{key: {principal: writes} for key in ("silver_rebuild_schema", "ops_rebuild_schema")},
    }
    for volume in production.list_resources_of_kind("volumes").values():
        assert volume["grants"] == [{"principal": principal, "privileges": ["READ_VOLUME", "WRITE_VOLUME"]}]


def test_operators_start_jobs_and_edit_none(production):
    assert {levels_of(job)["lake operators"] for job in production.jobs.values()} == {"CAN_MANAGE_RUN"}


def test_a_deployment_may_let_operators_pause_the_jobs_that_start_by_themselves(files):
    given = GIVEN | {"operators_level": "CAN_MANAGE"}
    levels = {key: levels_of(job)["lake operators"] for key, job in resolve_target(files, "prod", given).jobs.items()}
    assert {key for key, level in levels.items() if level == "CAN_MANAGE"} == {*ENDLESS, "backfill"}


def test_readers_may_not_see_which_sessions_were_forgotten(production):
    schema = ERASURES.partition(".")[0]
    granted = production.list_resources_of_kind("schemas")[f"{schema}_schema"]["grants"]
    assert "analysts" not in {grant["principal"] for grant in granted}


def test_every_job_runs_by_the_entry_point_that_takes_a_closed_list_of_commands(production):
    tasks = [task["python_wheel_task"] for job in production.jobs.values() for task in job["tasks"]]
    assert {task["entry_point"] for task in tasks} == {"sessionlake-job"}
    commands = typer.main.get_command(app)
    for job in production.jobs.values():
        [environment, *_] = environments(job)
        for task in job["tasks"]:
            assert explain_why_job_may_not_run(commands, task["python_wheel_task"]["parameters"], environment) is None


def test_the_principal_may_ask_the_warehouse_that_its_alerts_ask_and_read_the_secrets(production):
    principal = production.config["var"]["service_principal_name"]
    [warehouse], [scope] = (
        production.list_resources_of_kind("sql_warehouses").values(),
        production.list_resources_of_kind("secret_scopes").values(),
    )
    assert len(production.list_resources_of_kind("alerts")) == 5
    for alert in production.list_resources_of_kind("alerts").values():
        assert alert["run_as"] == {"service_principal_name": principal}
        assert alert["warehouse_id"] == warehouse["id"]
    assert levels_of(warehouse) == {"analysts": "CAN_USE", principal: "CAN_MONITOR", "ada@example.com": "CAN_MANAGE"}
    assert levels_of(scope) == {principal: "READ", "ada@example.com": "MANAGE"}


def test_development_grants_nothing(dev):
    granted = [
        r for kind in dev.config["resources"].values() for r in kind.values() if {"grants", "permissions"} & r.keys()
    ]
    assert granted == []


def test_the_artifact_keeps_its_version(files):
    [artifact] = files.merged_content["artifacts"].values()
    assert (artifact["type"], artifact.get("dynamic_version")) == ("whl", None)


def test_what_jobs_read_as_files_is_deployed(files):
    assert "sessionlake.yml" not in files.merged_content["sync"]["exclude"]
    assert read_document(ROOT / "sessionlake.yml").content["targets"].keys() == files.targets.keys()


@pytest.fixture
def read_job_settings(monkeypatch):
    """The settings that the package reads in a job of a target."""

    def read(bundle: ResolvedTarget) -> Settings:
        [scope] = [scope["name"] for scope in bundle.list_resources_of_kind("secret_scopes").values()]
        give_secrets(monkeypatch, {"kafka-options": json.dumps(CLIENT)}, scope)
        for job in bundle.jobs.values():
            [environment, *_] = environments(job)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("SESSIONLAKE_CONFIG", str(ROOT / "sessionlake.yml"))
        return load_settings()

    return read


def pace(job):
    """When a job runs by itself."""
    return job.get("schedule") or job.get("continuous") or {}


def levels_of(resource):
    """Who has which level on it."""
    return {list(given.values())[-1]: given["level"] for given in resource["permissions"]}


def clusters(job):
    return [item["new_cluster"] for item in job["job_clusters"]]


def environments(job):
    return [cluster["spark_env_vars"] for cluster in clusters(job)]
