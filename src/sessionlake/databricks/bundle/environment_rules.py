"""Checks the environment variables of clusters, which tell the package where its tables and checkpoints are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from sessionlake.databricks.bundle.files import ResourceFault, YamlMapping
from sessionlake.databricks.bundle.models import is_known_only_to_deployment, suggest_similar_name
from sessionlake.databricks.bundle.query_rules import ColumnsOfTables
from sessionlake.settings.environment import find_rejected_variables, find_unknown_variables
from sessionlake.settings.file import TARGET_VARIABLE, FileError, KeyPath, SettingsFile, YamlDocument, read_settings
from sessionlake.settings.model import CONFIG_VARIABLE, DEFAULT_FILE, ENV_PREFIX, PUBLICATIONS_VARIABLE, SchemaSettings

_SECRET_REFERENCE = re.compile(r"\{\{secrets/.+\}\}")
"""How the variable of a cluster names a secret, which only the cluster reads."""
_SCHEMA_PREFIX, _CHECKPOINTS = f"{ENV_PREFIX}SCHEMAS__", f"{ENV_PREFIX}CHECKPOINTS"


def find_environment_faults(
    job: YamlMapping, schemas: Mapping[str, str], columns: ColumnsOfTables, document: YamlDocument | None
) -> Iterator[ResourceFault]:
    """Yields the faults in the environment variables of a job's clusters: the key in the job, and the fault's text.

    Args:
        job: The job as the bundle declares it, with all variables replaced by their values.
        schemas: For each schema's name in the deployment, such as `dev_ada_silver`, its name in the lake, such as
            `silver`.
        columns: The columns of each table of the lake, by the table's name.
        document: The bundle's settings file; None if it cannot be read.
    """
    for number, item in enumerate(job.get("job_clusters", [])):
        cluster = item.get("new_cluster") or {}
        variables = {str(name): str(value) for name, value in (cluster.get("spark_env_vars") or {}).items()}
        key: KeyPath = ("job_clusters", number, "new_cluster", "spark_env_vars")
        known = {
            name: None if _is_known_only_to_deployment_or_cluster(value) else value for name, value in variables.items()
        }
        for name, text in (
            *find_unknown_variables(variables),
            *find_rejected_variables(known, _read_settings_file(known, document)),
            *_find_schemas_of_another_layer(variables, schemas),
            *_find_checkpoints_in_log_volume(variables, cluster),
            *_find_wrong_publications(variables, columns),
        ):
            yield (*key, name), text


def _is_known_only_to_deployment_or_cluster(value: str) -> bool:
    """Returns True if only the deployment or the cluster knows the value, as with a secret."""
    return is_known_only_to_deployment(value) or _SECRET_REFERENCE.search(value) is not None


def _read_settings_file(variables: Mapping[str, str | None], document: YamlDocument | None) -> SettingsFile | None:
    """Returns the settings that a cluster with these variables reads; None for another file or an unknown target."""
    named, target = variables.get(CONFIG_VARIABLE), variables.get(TARGET_VARIABLE)
    is_other = CONFIG_VARIABLE in variables and (named is None or PurePosixPath(named).name != DEFAULT_FILE)
    if document is None or is_other or (target is None and TARGET_VARIABLE in variables):
        return None
    try:
        return read_settings(document, target)
    except FileError:
        return None


def _find_schemas_of_another_layer(
    variables: Mapping[str, str], schemas: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields name and fault of each variable that names the schema of another layer than its own."""
    layers = {layer: f"{_SCHEMA_PREFIX}{layer.upper()}" for layer in SchemaSettings.model_fields}
    for layer, name in layers.items():
        written = schemas.get(variables.get(name, ""), layer)
        if written != layer and written in layers:
            yield name, f"{name} names the schema of {written}: two layers would write into one schema"


def _find_checkpoints_in_log_volume(variables: Mapping[str, str], cluster: YamlMapping) -> Iterator[tuple[str, str]]:
    """Yields name and fault of the variable with the checkpoints' folder, if that is in the volume of the logs."""
    logs = ((cluster.get("cluster_log_conf") or {}).get("volumes") or {}).get("destination")
    if logs and f"{variables.get(_CHECKPOINTS)}/".startswith(f"{logs}/"):
        text = f"the checkpoints are in {logs}, the volume of the clusters' logs, which nothing protects"
        yield _CHECKPOINTS, text


def _find_wrong_publications(variables: Mapping[str, str], columns: ColumnsOfTables) -> Iterator[tuple[str, str]]:
    """Yields name and fault of the variable with publications, for each that is not `table=topic` of a known table."""
    for one in variables.get(PUBLICATIONS_VARIABLE, "").split(","):
        table, separator, topic = one.strip().partition("=")
        if one.strip() and not (separator and table and topic):
            yield PUBLICATIONS_VARIABLE, f"{one.strip()!r} is no publication, such as silver.session_rows=tables.rows"
        elif table and not is_known_only_to_deployment(table) and table not in columns:
            text = f"the lake has no table {table!r} to publish{suggest_similar_name(table, list(columns))}"
            yield PUBLICATIONS_VARIABLE, text
