"""Chooses one version of each table that a statement reads, so that all parts of it read the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sessionlake.cli.sql_names import replace_table_and_function_names
from sessionlake.delta.lake import Lake
from sessionlake.settings.model import Settings

# Each attempt takes milliseconds, and a table gets a commit at most every few hundred.
_ATTEMPTS = 20


class LakeAtVersions(Lake):
    """A lake whose views and functions read chosen versions of its tables.

    Args:
        settings: The configuration.
        versions: The version of each table. Tables that are not listed are read at their latest version.
    """

    def __init__(self, settings: Settings, versions: Mapping[str, int]) -> None:
        super().__init__(settings)
        self.versions = versions

    def to_sql_identifier(self, table: str) -> str:
        """Returns the table's full, quoted name in SQL, followed by its version."""
        return super().to_sql_identifier(table) + build_version_clause(self.versions, table)


def read_latest_table_versions(lake: Lake, tables: Iterable[str]) -> dict[str, int]:
    """Returns the latest version of each of these tables that exists, if tables are in a home; empty for a catalog.

    All versions were the latest at the same moment: they are read again until none has changed. If commits are so
    frequent that each of 20 attempts finds one, the versions of the last attempt are returned. In a catalog every
    version
    would need a request.
    """
    if lake.storage.needs_spark:
        return {}
    present = [table for table in dict.fromkeys(tables) if lake.exists(None, table)]
    versions: dict[str, int] = {}
    for _ in range(_ATTEMPTS):
        again = {table: lake.latest_version(None, table) for table in present}
        if again == versions:
            break
        versions = again
    return versions


def build_version_clause(versions: Mapping[str, int], table: str) -> str:
    """Returns the SQL that chooses a table's version, as in ` VERSION AS OF 3`; empty if `versions` lacks the table."""
    return f" VERSION AS OF {versions[table]}" if table in versions else ""


def insert_version_clauses(sql: str, versions: Mapping[str, int]) -> str:
    """Returns the statement with a `VERSION AS OF` for each table in `versions` that has none in the statement."""
    return replace_table_and_function_names(
        sql,
        lambda one: (
            f"{sql[one.start : one.end]}{build_version_clause(versions, str(one))}"
            if one.is_table and not one.has_version
            else None
        ),
    )
