"""The tables of a deployment, asked in SQL under the names that they have on a laptop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sessionlake.cli import sql_reading
from sessionlake.cli.query import FUNCTIONS, placed, tables
from sessionlake.databricks.remote.deployment import DeployedJob, job_environment
from sessionlake.databricks.remote.statements import Answer, run_statement, warehouse_id
from sessionlake.delta.lake import Lake
from sessionlake.errors import ConfigError, UsageError
from sessionlake.settings.model import ENV_PREFIX, SchemaSettings, Settings

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

LAST_HOUR = """
    SELECT layer, count(*) AS batches, sum(messages) AS messages, max(committed_at) AS committed_at,
        round(avg(timestampdiff(MILLISECOND, started_at, committed_at)) / 1000, 1) AS batch_seconds
    FROM ops.ledger WHERE committed_at > current_timestamp() - INTERVAL 1 HOUR GROUP BY layer
"""


def asked(
    client: WorkspaceClient, settings: Settings, jobs: Mapping[str, DeployedJob], warehouse: str | None, sql: str
) -> Answer:
    """The answer of a deployment's tables to one statement.

    Raises:
        ConfigError: nothing says which catalog the tables are in.
        UsageError: there is no such warehouse, or it must be named.
        RemoteError: the statement fails.
    """
    own = next(iter(jobs.values())).warehouse
    return run_statement(client, warehouse_id(client, warehouse, own), _placed(client, settings, jobs.values(), sql))


def require_reading(settings: Settings, sql: str) -> None:
    """Refuses, before it is sent, a statement that does more than read tables.

    The warehouse parses it once more, and runs it with the rights of whoever asks: tables outside the lake may be read
    by their full names.

    Raises:
        UsageError: it does more, or cannot be parsed here.
    """
    lake = {*tables(settings), *FUNCTIONS}
    try:
        named = sql_reading.tables_of(sql)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    for name in (".".join(parts) for parts in named if len(parts) < len(("catalog", "schema", "table"))):
        if name not in lake:
            raise UsageError(
                f"query: {name} is neither a table of the lake nor named in full (catalog.schema.table); files are not "
                f"read. Tables: {', '.join(tables(settings))}"
            )


def hour_of(
    client: WorkspaceClient, settings: Settings, jobs: Mapping[str, DeployedJob], warehouse: str | None
) -> tuple[list[str], dict[str, list[Any]]]:
    """Figures of each layer's batches of the last hour, by layer, and their names; none without a warehouse."""
    if warehouse is None and not client.config.warehouse_id:
        return [], {}
    answer = asked(client, settings, jobs, warehouse, LAST_HOUR)
    return answer.names[1:], {row[0]: list(row[1:]) for row in answer.rows}


def _placed(client: WorkspaceClient, settings: Settings, jobs: Iterable[DeployedJob], sql: str) -> str:
    """The statement with the names that the lake's tables have in the deployment.

    Which catalog and schemas are its own, its jobs say, by their clusters' variables; else the configuration.
    """
    given = job_environment(client, jobs)
    catalog = given.get(f"{ENV_PREFIX}CATALOG") or settings.catalog
    if catalog is None:
        raise ConfigError(
            f"no job says which catalog the tables are in: set catalog in sessionlake.yml, or {ENV_PREFIX}CATALOG"
        )
    schemas = {
        schema: given.get(f"{ENV_PREFIX}SCHEMAS__{schema.upper()}") or settings.schemas.name_of(schema)
        for schema in SchemaSettings.model_fields
    }
    there = settings.model_copy(update={"catalog": catalog, "schemas": SchemaSettings(**schemas)})
    return placed(Lake(there), sql)
