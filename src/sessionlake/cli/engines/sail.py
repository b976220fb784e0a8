"""Runs statements with Sail, an engine for Spark SQL in Rust that starts in a fraction of a second."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from sessionlake.cli.engines.coverage import TABLE_FEATURES, explain_why_sail_cannot_run
from sessionlake.cli.engines.expired_rows import describe_expired_rows
from sessionlake.cli.engines.interface import EngineRefusalError, QueryResult, SqlStatement
from sessionlake.cli.engines.value_kinds import LAKE_COUNTS, ValueKinds, map_columns_to_value_kinds
from sessionlake.cli.engines.versions import LakeAtVersions, build_version_clause, insert_version_clauses
from sessionlake.cli.sql_names import insert_sql_arguments
from sessionlake.cli.sql_reading import find_tables_and_functions_read
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import DECLARED
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import UsageError
from sessionlake.gold.sql.views import DEFINITIONS, build_view_query
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_BYTES = 512 << 20
"""Largest result that is returned, in bytes."""
_MEMORY_BYTES = 2 << 30
# Sail reads a location as a URL, so only characters are allowed that mean the same in both.
_LOCATION = re.compile(r"[\w./+=,@-]+", re.ASCII)
_SAIL_SETTINGS = {
    "RUST_LOG": "off",
    "SAIL_MODE": "local",
    "SAIL_RUNTIME__MEMORY_POOL__TYPE": "fair",
    "SAIL_RUNTIME__MEMORY_POOL__FAIR__MAX_SIZE": str(_MEMORY_BYTES),
}


def is_sail_installed() -> bool:
    """Returns True if the package with Sail is installed. It is part of the extra `local`."""
    return find_spec("pysail") is not None


class SailEngine:
    """Runs statements with Sail in another process. Use it in a `with` block, at whose end the process ends.

    The process starts at once, and gets ready while the statement is checked.

    Args:
        settings: The configuration of a lake in a home.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SAIL_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sessionlake.cli.engines.sail_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | _SAIL_SETTINGS,
            start_new_session=True,  # Ctrl-C ends this process, which then ends that one
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent is no longer needed
                    pipe.close()

    def run(self, statement: SqlStatement) -> QueryResult:
        """Runs a statement and returns its result. The statement's versions must include all tables that it reads.

        Raises:
            EngineRefusalError: Spark must run the statement.
            UsageError: The result is too large.
        """
        sql = insert_sql_arguments(statement.sql, statement.arguments)
        if sql is None:
            raise EngineRefusalError("only parameters with plain texts are covered")
        names = _find_tables_and_views_read(sql)
        views = [name for name in names if name in DEFINITIONS]
        tables = dict.fromkeys([*(name for name in names if name not in views), *_list_tables_read_by_views(views)])
        lake = _LakeWithSailTableNames(self._settings, statement.versions)
        queries = {view: build_view_query(lake, view) for view in views}
        columns: dict[str, ValueKinds] = {}
        setup = [
            f"CREATE DATABASE IF NOT EXISTS {quote(schema)}"
            for schema in {name.partition(".")[0] for name in [*tables, *views]}
        ]
        for table in tables:
            if table not in statement.versions:
                if any(table in feed.view_names for feed in self._settings.capture.feeds):
                    raise EngineRefusalError(f"{table} is a view of a feed")
                if table in names:
                    raise EngineRefusalError(f"{table} does not exist yet")
                continue  # a view counts it as a table without rows
            folder = lake.folder(table)
            _add_value_kinds(columns, _read_value_kinds_of_columns(lake, table, statement.versions[table]))
            setup.append(f"CREATE TABLE IF NOT EXISTS {_quote_table_name(table)} USING delta LOCATION '{folder}'")
        if why := explain_why_sail_cannot_run(sql, list(queries.values()), columns):
            raise EngineRefusalError(why)
        setup += [f"CREATE OR REPLACE VIEW {_quote_table_name(view)} AS {query}" for view, query in queries.items()]
        rows = self._run_in_sail_process(setup, insert_version_clauses(sql, statement.versions))
        return QueryResult(rows, names, describe_expired_rows(lake.reader(None), self._settings, names))

    def _run_in_sail_process(self, setup: list[str], sql: str) -> pa.Table:
        import pyarrow as pa

        asked, status_pipe = self._process.stdin, self._process.stdout
        if asked is None or status_pipe is None:
            raise EngineRefusalError("Sail has no pipes")
        try:
            asked.write(json.dumps({"setup": setup, "sql": sql}).encode() + b"\n")
            asked.flush()
            _require_success_status(status_pipe)
            with pa.ipc.open_stream(status_pipe) as stream:
                rows = _read_result_up_to_size_limit(stream)
            _require_success_status(status_pipe)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise EngineRefusalError(f"Sail failed: {_shorten_sail_error(str(error))}") from error
        return rows


class _LakeWithSailTableNames(LakeAtVersions):
    """A lake whose tables Sail knows by their two-level names."""

    def to_sql_identifier(self, table: str) -> str:
        return _quote_table_name(table) + build_version_clause(self.versions, table)

    def folder(self, table: str) -> Path:
        """Returns the folder of a table.

        Raises:
            EngineRefusalError: Its path has characters for which Sail may look in another folder.
        """
        schema, name = table.split(".")
        folder = self.settings.warehouse.resolve() / schema / name
        if not _LOCATION.fullmatch(str(folder)):
            raise EngineRefusalError(f"the path {folder} has special characters")
        return folder


def _find_tables_and_views_read(sql: str) -> list[str]:
    """Returns the names of the tables and views of the lake that a statement reads.

    Raises:
        EngineRefusalError: The names cannot be found.
    """
    try:
        found = [".".join(name) for name in find_tables_and_functions_read(sql)]
    except UsageError as error:
        raise EngineRefusalError(str(error).partition("\n")[0]) from None
    return list(dict.fromkeys(found))


def _list_tables_read_by_views(views: list[str]) -> list[str]:
    return [table for view in views for table in DEFINITIONS[view].reads.values()]


def _read_value_kinds_of_columns(lake: Lake, table: str, version: int) -> Mapping[str, ValueKinds]:
    """Returns, for each column of a table and each field inside it, the kinds of its values.

    Raises:
        EngineRefusalError: The table has a feature for which Sail was not compared with Spark.
    """
    description = lake.storage.describe_version(table, version)
    if description is None:
        raise EngineRefusalError(f"only Spark can read the log of {table}")
    if features := description.features - TABLE_FEATURES:
        raise EngineRefusalError(f"{table} has the Delta feature {', '.join(sorted(features))}, which is not covered")
    if description.has_partitions:
        raise EngineRefusalError(f"{table} has partitions, which are not covered")
    fixed = {name for name, _ in TABLES[table].column_types if name != DECLARED} if table in TABLES else set()
    kinds = dict[str, ValueKinds]()
    for field in description.fields:
        found = map_columns_to_value_kinds([field], LAKE_COUNTS if field["name"] in fixed else ())
        _add_value_kinds(kinds, found)
    return kinds


def _add_value_kinds(kinds: dict[str, ValueKinds], added: Mapping[str, ValueKinds]) -> None:
    for name, found in added.items():
        kinds[name] = kinds.get(name, frozenset()) | found


def _require_success_status(status_pipe: IO[bytes]) -> None:
    """Reads one line of status that Sail's process has written.

    Raises:
        EngineRefusalError: Sail has refused the statement, or failed.
    """
    error = json.loads(status_pipe.readline() or b'{"error": "its process ended"}')["error"]
    if error is not None:
        raise EngineRefusalError(f"Sail refuses it: {_shorten_sail_error(error)}")


def _read_result_up_to_size_limit(stream: pa.RecordBatchReader) -> pa.Table:
    import pyarrow as pa

    batches, size = list[pa.RecordBatch](), 0
    for batch in stream:
        batches.append(batch)
        size += batch.nbytes
        if size > RESULT_BYTES:
            raise UsageError(
                f"query: the result has more than {RESULT_BYTES >> 20} MiB",
                why="It is kept in memory until it is complete",
                fix="Add a LIMIT or a condition to the statement, or write the table to files with "
                "`sessionlake export`",
            )
    return pa.Table.from_batches(batches, stream.schema)


def _quote_table_name(name: str) -> str:
    return ".".join(map(quote, name.split(".")))


def _shorten_sail_error(text: str) -> str:
    return text.partition("\n")[0].removeprefix("Flight returned internal error, with message: ")
