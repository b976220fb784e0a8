"""Queries the tables of a deployment on Databricks, under the names that they have on a laptop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sessionlake.cli import sql_reading
from sessionlake.cli.query import list_table_names, replace_by_stored_names
from sessionlake.databricks.remote.deployment import DeployedJob, read_job_environment
from sessionlake.databricks.remote.statements import StatementResult, find_warehouse_id, run_statement_on_warehouse
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import FUNCTIONS
from sessionlake.errors import ConfigError, UsageError
from sessionlake.settings.model import ENV_PREFIX, SchemaSettings, Settings

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

LAST_HOUR = """
    SELECT layer, count(*) AS batches, sum(messages) AS messages, max(committed_at) AS committed_at,
        round(avg(timestampdiff(MILLISECOND, started_at, committed_at)) / 1000, 1) AS batch_seconds
    FROM ops.ledger WHERE committed_at > current_timestamp() - INTERVAL 1 HOUR GROUP BY layer
"""


def run_query_on_warehouse(
    client: WorkspaceClient, settings: Settings, jobs: Mapping[str, DeployedJob], warehouse: str | None, sql: str
) -> StatementResult:
    """Runs a statement over a deployment's tables on a SQL warehouse, and returns its result.

    Args:
        client: The workspace.
        settings: The configuration.
        jobs: The deployment's jobs by name, which say where its tables are.
        warehouse: Id or name of the warehouse; None for the default one.
        sql: The statement, with the names that tables have on a laptop.

    Raises:
        ConfigError: The catalog of the tables is not configured.
        UsageError: The warehouse does not exist, or several exist and none is named.
        DatabricksWorkspaceError: The statement fails.
    """
    bundle_warehouse = next(iter(jobs.values())).warehouse
    return run_statement_on_warehouse(
        client,
        find_warehouse_id(client, warehouse, bundle_warehouse),
        _insert_table_names_of_deployment(client, settings, jobs.values(), sql),
    )


def require_read_only_statement(settings: Settings, sql: str) -> None:
    """Checks, before a statement is sent, that it only reads tables.

    The warehouse runs the statement with the rights of the user. So tables outside the lake are allowed if they have
    their full names.

    Raises:
        UsageError: The statement does more than read tables, or cannot be parsed.
    """
    lake = {*list_table_names(settings), *FUNCTIONS}
    try:
        named = sql_reading.find_tables_and_functions_read(sql)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    for name in (".".join(parts) for parts in named if len(parts) < len(("catalog", "schema", "table"))):
        if name not in lake:
            raise UsageError(
                f"query: {name} is neither a table of the lake nor a full name (catalog.schema.table)",
                why="Over a SQL warehouse, files cannot be read",
                fix=f"Use one of these tables, or a full name: {', '.join(list_table_names(settings))}",
            )


def read_batch_figures_of_last_hour(
    client: WorkspaceClient, settings: Settings, jobs: Mapping[str, DeployedJob], warehouse: str | None
) -> tuple[list[str], dict[str, list[Any]]]:
    """Returns the names of figures about each layer's batches of the last hour, and their values by layer.

    Both are empty if no warehouse is known that could be asked.
    """
    if warehouse is None and not client.config.warehouse_id:
        return [], {}
    answer = run_query_on_warehouse(client, settings, jobs, warehouse, LAST_HOUR)
    return answer.names[1:], {row[0]: list(row[1:]) for row in answer.rows}


def _insert_table_names_of_deployment(
    client: WorkspaceClient, settings: Settings, jobs: Iterable[DeployedJob], sql: str
) -> str:
    """Returns the statement with the full names that the lake's tables have in the deployment.

    Catalog and schemas come from the environment variables of the jobs' clusters, otherwise from the configuration.

    Raises:
        ConfigError: Neither names the catalog.
    """
    given = read_job_environment(client, jobs)
    catalog = given.get(f"{ENV_PREFIX}CATALOG") or settings.catalog
    if catalog is None:
        raise ConfigError(
            "the catalog that holds the tables of the deployment is unknown, because no job of it sets the catalog",
            fix=f"Set `catalog` in sessionlake.yml, or {ENV_PREFIX}CATALOG",
        )
    schemas = {
        schema: given.get(f"{ENV_PREFIX}SCHEMAS__{schema.upper()}") or settings.schemas.get_configured_name(schema)
        for schema in SchemaSettings.model_fields
    }
    deployed = settings.model_copy(update={"catalog": catalog, "schemas": SchemaSettings(**schemas)})
    return replace_by_stored_names(Lake(deployed), sql)
