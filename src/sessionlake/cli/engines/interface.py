"""What an engine receives and returns: a statement with the versions of its tables, and an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class EngineName(StrEnum):
    """The engine that the user wants for a statement.

    With `auto`, a SQL warehouse runs it if the tables are in a workspace and the command is not. On a laptop, Sail runs
    the statements for which it gives the same results as Spark. Spark runs all others.
    """

    AUTO = "auto"
    SAIL = "sail"
    SPARK = "spark"
    WAREHOUSE = "warehouse"


@dataclass(frozen=True)
class SqlStatement:
    """A SQL statement that reads tables of the lake.

    Attributes:
        sql: The statement. It has the two-level names of tables and may have named parameters, as in `:topic`.
        arguments: The texts of these parameters, by name.
        versions: The Delta versions to read, by table. Tables that are not listed are read at their latest version.
    """

    sql: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryResult:
    """The result of a statement.

    Attributes:
        rows: The result. Its column names may repeat.
        names: Names of the lake's tables, views and functions that the statement reads.
        notes: What the user should know about these tables, one sentence each.
    """

    rows: pa.Table
    names: list[str]
    notes: list[str] = field(default_factory=list)


class EngineRefusalError(Exception):
    """An engine cannot run a statement, so another engine must. The text says why, as the end of a sentence."""


class SqlEngine(Protocol):
    """An engine that runs SQL statements on tables of the lake."""

    def run(self, statement: SqlStatement) -> QueryResult:
        """Runs a statement and returns its result.

        Raises:
            EngineRefusalError: Another engine must run the statement.
            SessionlakeError: The statement is not accepted, does more than read, or fails while it is computed.
        """
        ...
