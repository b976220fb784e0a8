"""SQL on a warehouse, through the Statement Execution API."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sessionlake.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.sql import ResultData, StatementResponse

POLL_SECONDS = 1.0
# The longest that the API waits by itself.
_WAIT = "50s"
_UNDER_WAY = ("PENDING", "RUNNING")
_VALUES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG"), int),
    **dict.fromkeys(("FLOAT", "DOUBLE"), float),
    **dict.fromkeys(("ARRAY", "MAP", "STRUCT"), json.loads),
    "BINARY": base64.b64decode,
    "BOOLEAN": lambda text: text == "true",
    "DATE": lambda text: _time_or_text(text, date.fromisoformat),
    "DECIMAL": Decimal,
    "TIMESTAMP": lambda text: _time_or_text(text, datetime.fromisoformat),
}
"""What the API sends as texts, by the names of types; all else stays text."""


def _time_or_text(text: str, read: Callable[[str], Any]) -> Any:
    """A time, or its text where the year is not one of 1 to 9999."""
    try:
        return read(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Answer:
    """Column names and rows of the answer to a statement."""

    names: list[str]
    rows: list[tuple[Any, ...]]


def warehouse_id(client: WorkspaceClient, wanted: str | None, own: str) -> str:
    """The SQL warehouse to ask.

    Args:
        wanted: its id or name; without it, that of the SDK's configuration, the bundle's, or the only one there is.
        own: the name of the bundle's.

    Raises:
        UsageError: there is no such one, or several.
    """
    if wanted is None and client.config.warehouse_id:
        return str(client.config.warehouse_id)
    there = list(client.warehouses.list())
    for fitting in (
        [one for one in there if (wanted or own) in {one.id, one.name}],
        there if wanted is None else [],
    ):
        if len(fitting) == 1:
            return str(fitting[0].id)
    names = ", ".join(sorted(f"{one.name} ({one.id})" for one in there)) or "none"
    raise UsageError(f"choose a SQL warehouse by --warehouse or DATABRICKS_WAREHOUSE_ID; there are: {names}")


def answer_of(client: WorkspaceClient, warehouse: str, sql: str) -> Answer:
    """Runs a statement to its end, and brings all that it answers.

    If this is interrupted, the statement is, too.

    Raises:
        RemoteError: it fails, or is stopped by somebody else; over 25 MiB, too, are refused by the API.
    """
    from databricks.sdk.service.sql import ExecuteStatementRequestOnWaitTimeout as OnWait

    api = client.statement_execution
    found = api.execute_statement(sql, warehouse, wait_timeout=_WAIT, on_wait_timeout=OnWait.CONTINUE)
    statement = str(found.statement_id)
    try:
        while _state(found) in _UNDER_WAY:
            time.sleep(POLL_SECONDS)
            found = api.get_statement(statement)
        if _state(found) != "SUCCEEDED":
            error = found.status.error if found.status else None
            raise RemoteError(f"query: {(error and error.message) or _state(found)}")
        return _read(client, statement, found)
    except KeyboardInterrupt:
        api.cancel_execution(statement)
        raise


def _state(found: StatementResponse) -> str:
    return found.status.state.value if found.status and found.status.state else "UNKNOWN"


def _read(client: WorkspaceClient, statement: str, found: StatementResponse) -> Answer:
    columns = (found.manifest and found.manifest.schema and found.manifest.schema.columns) or []
    reads = [_VALUES.get(column.type_name.value if column.type_name else "", str) for column in columns]
    rows: list[tuple[Any, ...]] = []
    chunk: ResultData | None = found.result
    while chunk is not None:
        rows += (
            tuple(None if value is None else read(value) for read, value in zip(reads, row, strict=True))
            for row in chunk.data_array or ()
        )
        following = chunk.next_chunk_index
        chunk = None if following is None else _chunk(client, statement, following)
    return Answer([str(column.name) for column in columns], rows)


def _chunk(client: WorkspaceClient, statement: str, index: int) -> ResultData:
    return client.statement_execution.get_statement_result_chunk_n(statement, index)
