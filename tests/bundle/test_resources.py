"""Every resource fits its published model, and avoids what deployment would let through."""

import json
import re
from pathlib import Path

import pytest
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from sessionlake.config import Settings, load_settings
from sessionlake.lake.tables import Lake
from sessionlake.runtime.spark import platform_conf

ROOT = Path(__file__).parents[2]
MODELS = {"jobs": Job, "schemas": Schema, "volumes": Volume}
CREDENTIAL = re.compile(r"password|passwd|secret|token|jaas", re.IGNORECASE)
CLIENT = {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'Login required username="u" password="p";'}
PARTITIONS = "spark.sql.shuffle.partitions"
SECRET = re.compile(r"\{\{secrets/[\w-]+/[\w-]+\}\}")


def test_every_resource_of_every_kind_loads_through_its_model(bundle):
    loaded = {
        (kind, key): MODELS[kind].from_dict(resource)
        for kind, resources in bundle.config["resources"].items()
        for key, resource in resources.items()
    }
    layers = {"bronze_job", "silver_job", "gold_job"}
    assert {key for kind, key in loaded if kind == "jobs"} == {*layers, "maintenance_job"}
    assert {key for kind, key in loaded if kind == "schemas"} == {"bronze", "silver", "gold", "ops"}
    assert {key for kind, key in loaded if kind == "volumes"} == {"checkpoints"}


def test_every_resource_loads_with_its_references_unresolved(sources):
    for kind, resources in sources["resources"].items():
        for resource in resources.values():
            MODELS[kind].from_dict(resource)


def test_models_refuse_a_misspelt_field(dev):
    job = dev.jobs["bronze_job"] | {"max_concurent_runs": 1}
    with pytest.raises(ValueError, match="max_concurent_runs"):
        Job.from_dict(job)


def test_one_resource_file_a_job_and_each_is_included(sources):
    files = {file.name.removesuffix(".job.yml") for file in (ROOT / "resources").glob("*.job.yml")}
    assert {f"{layer}_job" for layer in files} == set(sources["resources"]["jobs"])


def test_a_variable_is_declared_exactly_when_something_uses_it(sources):
    text = "".join(file.read_text() for file in [ROOT / "databricks.yml", *(ROOT / "resources").glob("*.yml")])
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) == set(sources["variables"])


def test_a_development_target_waits_paused_and_never_unpauses(dev):
    assert {pace(job)["pause_status"] for job in dev.jobs.values()} == {"PAUSED"}


def test_production_runs_unpaused_as_the_service_principal_from_one_root(prod):
    assert {pace(job)["pause_status"] for job in prod.jobs.values()} == {"UNPAUSED"}
    assert prod.config["run_as"] == {"service_principal_name": prod.config["var"]["service_principal_name"]}
    assert prod.config["workspace"]["root_path"].endswith("/sessionlake/prod")


def test_pause_status_is_left_to_the_presets(sources):
    assert all("pause_status" not in pace(job) for job in sources["resources"]["jobs"].values())


def test_layers_run_without_end_and_maintenance_at_its_times(bundle):
    assert {key for key, job in bundle.jobs.items() if "schedule" in job} == {"maintenance_job"}
    assert all("continuous" in job for key, job in bundle.jobs.items() if key != "maintenance_job")


def test_two_runs_of_a_job_never_overlap_not_even_in_development(bundle):
    assert {job["max_concurrent_runs"] for job in bundle.jobs.values()} == {1}


def test_schemas_are_named_only_through_their_resource(sources):
    for key, job in sources["resources"]["jobs"].items():
        environment = job["job_clusters"][0]["new_cluster"]["spark_env_vars"]
        for schema in sources["resources"]["schemas"]:
            assert environment[f"SESSIONLAKE_SCHEMAS__{schema.upper()}"] == f"${{resources.schemas.{schema}.name}}", key
    assert sources["resources"]["volumes"]["checkpoints"]["schema_name"] == "${resources.schemas.ops.name}"


def test_the_package_reads_its_settings_from_a_jobs_environment(bundle, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for job in bundle.jobs:
        layer, settings = job.removesuffix("_job"), settings_of(bundle, job, monkeypatch)
        lake = Lake(settings)
        assert lake.identifier("silver.sessions") == f"`lake`.`{bundle.schemas['silver']['name']}`.`sessions`"
        assert settings.checkpoint(layer) == f"/Volumes/lake/{bundle.schemas['ops']['name']}/checkpoints/{layer}"
        assert settings.kafka.options == (CLIENT if layer == "bronze" else {})
        assert [column.name for column in settings.capture.declared] == ["price", "qty", "status"]


def test_the_layers_agree_on_every_setting_they_share(bundle):
    bronze = bundle.environment("bronze_job")
    for job in ("silver_job", "gold_job", "maintenance_job"):
        environment = bundle.environment(job)
        assert environment == {name: bronze[name] for name in environment}


def test_only_bronze_is_told_where_kafka_is(bundle):
    told = {job for job in bundle.jobs if any("KAFKA" in name for name in bundle.environment(job))}
    assert told == {"bronze_job"}


def test_credentials_come_whole_from_a_secret_scope_of_the_target(bundle):
    [secret] = [value for job in bundle.jobs for value in bundle.environment(job).values() if "secrets" in value]
    assert SECRET.fullmatch(secret)
    assert secret == f"{{{{secrets/sessionlake-{bundle.target}/kafka-options}}}}"


def test_no_setting_is_named_like_a_credential(sources):
    assert [path for path in paths(sources["resources"]) if CREDENTIAL.search(path)] == []


def test_clusters_run_the_long_term_runtime_as_one_well_formed_node(bundle):
    for job in bundle.jobs.values():
        [shared] = job["job_clusters"]
        cluster = shared["new_cluster"]
        assert cluster["spark_version"] == "17.3.x-scala2.13"
        assert cluster["num_workers"] == 0
        assert cluster["spark_conf"]["spark.databricks.cluster.profile"] == "singleNode"
        assert cluster["spark_conf"]["spark.master"] == "local[*]"
        assert cluster["custom_tags"] == {"ResourceClass": "SingleNode"}


def test_stateful_layers_use_rocksdb(bundle):
    for job in ("silver_job", "gold_job"):
        conf = bundle.jobs[job]["job_clusters"][0]["new_cluster"]["spark_conf"]
        assert conf["spark.sql.streaming.stateStore.providerClass"].endswith(".RocksDBStateStoreProvider")


def test_a_stateful_layer_has_as_many_state_stores_as_shards(bundle, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for job in ("silver_job", "gold_job"):
        settings = settings_of(bundle, job, monkeypatch)
        shards = getattr(settings, job.removesuffix("_job")).shards
        assert platform_conf(settings)[PARTITIONS] == str(shards)


@pytest.mark.parametrize(("silver", "gold", "partitions"), [(16, 16, "16"), (128, 64, "128"), (16, 256, "256")])
def test_state_stores_follow_the_settings_and_suffice_for_the_layer_of_most_shards(silver, gold, partitions):
    settings = Settings(silver={"shards": silver}, gold={"shards": gold})
    assert platform_conf(settings)[PARTITIONS] == partitions


def test_no_cluster_says_again_what_the_session_is_told(bundle):
    told = platform_conf(Settings())
    for job in bundle.jobs.values():
        assert not told.keys() & job["job_clusters"][0]["new_cluster"]["spark_conf"].keys()


def test_grants_in_production_are_the_least_that_work(prod):
    principal = prod.config["var"]["service_principal_name"]
    writes = {"USE_SCHEMA", "CREATE_TABLE", "SELECT", "MODIFY"}
    granted = {
        key: {grant["principal"]: set(grant["privileges"]) for grant in schema["grants"]}
        for key, schema in prod.schemas.items()
    }
    assert granted == {
        "bronze": {principal: writes},
        **{
            key: {principal: {*writes, "CREATE_FUNCTION"}, "analysts": {"USE_SCHEMA", "SELECT", "EXECUTE"}}
            for key in ("silver", "gold")
        },
        "ops": {principal: writes, "analysts": {"USE_SCHEMA", "SELECT"}},
    }
    [volume] = prod.config["resources"]["volumes"]["checkpoints"]["grants"]
    assert volume == {"principal": principal, "privileges": ["READ_VOLUME", "WRITE_VOLUME"]}


def test_development_grants_nothing(dev):
    assert not [schema for schema in dev.schemas.values() if "grants" in schema]


def test_the_artifact_keeps_its_version(sources):
    [artifact] = sources["artifacts"].values()
    assert artifact["type"] == "whl"
    assert not artifact.get("dynamic_version")
    assert "artifacts_dynamic_version" not in sources.get("presets", {})


def pace(job):
    """When a job runs."""
    return job["schedule" if "schedule" in job else "continuous"]


def settings_of(bundle, job, monkeypatch):
    """The settings that the package reads in a job."""
    with monkeypatch.context() as patch:
        for name, value in bundle.environment(job).items():
            patch.setenv(name, json.dumps(CLIENT) if SECRET.fullmatch(value) else value)
        return load_settings()


def paths(node, path=""):
    """Dotted paths of every value below a node."""
    if not isinstance(node, dict | list):
        return [path]
    items = node.items() if isinstance(node, dict) else enumerate(node)
    return [found for key, value in items for found in paths(value, f"{path}.{key}")]
