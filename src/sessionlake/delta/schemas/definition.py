"""How a table is defined: its columns, how rows get into it, and the Delta properties that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from sessionlake.delta.schemas.properties import (
    APPEND_ONLY,
    CHANGE_FEED,
    CHECKPOINT_INTERVAL,
    CHECKPOINTS,
    DELETION_VECTORS,
    RETENTION,
    STATISTICS_COLUMNS,
    interval_text,
    join_names,
)
from sessionlake.settings.model import Settings

Columns = tuple[tuple[str, str], ...]
"""Names and Spark SQL types, in order."""
DECLARED = "<declared>"
_LOG = {CHECKPOINTS: str(CHECKPOINT_INTERVAL)}
_MERGED = {DELETION_VECTORS: "true"}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        sql: its Spark SQL type.
        comment: its meaning, its unit, and when it is null. Stored as the column's comment.
    """

    name: str
    sql: str
    comment: str


def with_comments(columns: Columns, comments: Mapping[str, str]) -> tuple[Column, ...]:
    """Returns the columns with their comments.

    Raises:
        KeyError: a column has no comment.
    """
    return tuple(Column(name, sql, comments[name]) for name, sql in columns)


class Writes(StrEnum):
    """How rows get into a table."""

    APPEND = "append"
    MERGE = "merge"
    BOTH = "both"
    REPLACE = "replace"
    """All rows are replaced at once: the table is small."""


@dataclass(frozen=True)
class TableSchema:
    """Definition of a Delta table.

    Attributes:
        definitions: its columns in order. `DECLARED` stands for the declared capture columns, which share its comment.
        comment: what a row is.
        written_by: the module, without `sessionlake.`, that usually commits the table's rows.
        partition_by: in a catalog, the column whose values partition the table, with one row each.
        cluster_by: liquid clustering keys, where the storage supports them.
        statistics_columns: columns for which files keep minimum and maximum.
        change_feed: True if Delta's change data feed is on.
        writes: how rows get in. Rows that MERGE replaces are marked in deletion vectors.
    """

    definitions: tuple[Column, ...]
    comment: str
    written_by: str
    partition_by: str | None = None
    cluster_by: tuple[str, ...] = ()
    statistics_columns: tuple[str, ...] = ()
    change_feed: bool = False
    writes: Writes = Writes.MERGE

    @cached_property
    def columns(self) -> Columns:
        """Names and Spark SQL types of the columns."""
        return tuple((column.name, column.sql) for column in self.definitions)

    def definitions_for(self, settings: Settings) -> tuple[Column, ...]:
        """Returns the columns with the declared ones in place."""
        columns: list[Column] = []
        for column in self.definitions:
            if column.name == DECLARED:
                columns.extend(Column(own.name, own.sql, column.comment) for own in settings.capture.declared)
            else:
                columns.append(column)
        return tuple(columns)

    def columns_for(self, settings: Settings) -> Columns:
        """Returns names and Spark SQL types of the columns, with the declared ones in place."""
        return tuple((column.name, column.sql) for column in self.definitions_for(settings))

    @property
    def append_only(self) -> bool:
        """True if rows never change."""
        return self.writes is Writes.APPEND

    @property
    def merged(self) -> bool:
        """True if MERGE changes rows."""
        return self.writes in (Writes.MERGE, Writes.BOTH)

    def properties(self, keep: timedelta) -> dict[str, str]:
        """Returns the table's Delta properties.

        Args:
            keep: how far back the table's history must reach.
        """
        found = _LOG | {RETENTION: interval_text(keep)}
        found |= {APPEND_ONLY: "true"} if self.append_only else _MERGED if self.merged else {}
        if self.statistics_columns:
            found[STATISTICS_COLUMNS] = join_names(self.statistics_columns)
        if self.change_feed:
            found[CHANGE_FEED] = "true"
        return found
