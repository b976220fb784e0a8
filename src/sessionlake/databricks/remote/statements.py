"""Runs SQL statements on a SQL warehouse, through the Statement Execution API."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sessionlake.errors import DatabricksWorkspaceError, UsageError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.sql import ResultData, StatementResponse

POLL_SECONDS = 1.0
# The longest wait that the API allows in one request.
_WAIT = "50s"
_UNDER_WAY = ("PENDING", "RUNNING")
_VALUES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG"), int),
    **dict.fromkeys(("FLOAT", "DOUBLE"), float),
    **dict.fromkeys(("ARRAY", "MAP", "STRUCT"), json.loads),
    "BINARY": base64.b64decode,
    "BOOLEAN": lambda text: text == "true",
    "DATE": lambda text: _parse_time_or_keep_text(text, date.fromisoformat),
    "DECIMAL": Decimal,
    "TIMESTAMP": lambda text: _parse_time_or_keep_text(text, datetime.fromisoformat),
}
"""Parsers for the API's values, which are all texts, by type name. Values of other types stay texts."""


def _parse_time_or_keep_text(text: str, read: Callable[[str], Any]) -> Any:
    """Returns the parsed date or time; the text itself if it cannot be parsed, as with years after 9999."""
    try:
        return read(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class StatementResult:
    """The result of a SQL statement.

    Attributes:
        names: Names of the columns.
        rows: The values of each row.
    """

    names: list[str]
    rows: list[tuple[Any, ...]]


def find_warehouse_id(client: WorkspaceClient, name_or_id: str | None, bundle_name: str) -> str:
    """Returns the id of the SQL warehouse to use.

    Args:
        client: Client of the workspace.
        name_or_id: Its id or name. None takes that of the SDK's configuration, else the bundle's, else the only one.
        bundle_name: Name of the bundle's warehouse.

    Raises:
        UsageError: No warehouse matches, or several do.
    """
    if name_or_id is None and client.config.warehouse_id:
        return str(client.config.warehouse_id)
    warehouses = list(client.warehouses.list())
    for fitting in (
        [one for one in warehouses if (name_or_id or bundle_name) in {one.id, one.name}],
        warehouses if name_or_id is None else [],
    ):
        if len(fitting) == 1:
            return str(fitting[0].id)
    names = ", ".join(sorted(f"{one.name} ({one.id})" for one in warehouses)) or "none"
    raise UsageError(
        f"query: the workspace has several SQL warehouses, and none was chosen: {names}",
        fix="Choose one with --warehouse ID or DATABRICKS_WAREHOUSE_ID",
    )


def run_statement_on_warehouse(client: WorkspaceClient, warehouse: str, sql: str) -> StatementResult:
    """Runs a SQL statement on a warehouse to its end, and returns its full result. Ctrl-C cancels the statement.

    Raises:
        DatabricksWorkspaceError: The statement fails, another user cancels it, or its result is larger than 25 MiB, the
            API's limit.
    """
    from databricks.sdk.service.sql import ExecuteStatementRequestOnWaitTimeout as OnWait

    api = client.statement_execution
    found = api.execute_statement(sql, warehouse, wait_timeout=_WAIT, on_wait_timeout=OnWait.CONTINUE)
    statement = str(found.statement_id)
    try:
        while _get_statement_state(found) in _UNDER_WAY:
            time.sleep(POLL_SECONDS)
            found = api.get_statement(statement)
        if _get_statement_state(found) != "SUCCEEDED":
            error = found.status.error if found.status else None
            raise DatabricksWorkspaceError(
                f"query: {(error and error.message) or _get_statement_state(found)}",
                why="The SQL warehouse did not run the statement",
                fix="Correct the statement, or look for it in the warehouse's query history",
            )
        return _read_statement_result(client, statement, found)
    except KeyboardInterrupt:
        api.cancel_execution(statement)
        raise


def _get_statement_state(response: StatementResponse) -> str:
    return response.status.state.value if response.status and response.status.state else "UNKNOWN"


def _read_statement_result(client: WorkspaceClient, statement: str, response: StatementResponse) -> StatementResult:
    columns = (response.manifest and response.manifest.schema and response.manifest.schema.columns) or []
    reads = [_VALUES.get(column.type_name.value if column.type_name else "", str) for column in columns]
    rows: list[tuple[Any, ...]] = []
    chunk: ResultData | None = response.result
    while chunk is not None:
        rows += (
            tuple(None if value is None else read(value) for read, value in zip(reads, row, strict=True))
            for row in chunk.data_array or ()
        )
        following = chunk.next_chunk_index
        chunk = None if following is None else _fetch_result_chunk(client, statement, following)
    return StatementResult([str(column.name) for column in columns], rows)


def _fetch_result_chunk(client: WorkspaceClient, statement: str, index: int) -> ResultData:
    return client.statement_execution.get_statement_result_chunk_n(statement, index)
