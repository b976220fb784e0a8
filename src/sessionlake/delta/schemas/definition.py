"""`TableSchema`: defines a table by its columns and by how rows are written, from which its Delta properties follow."""

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
    encode_column_list,
    format_interval,
)
from sessionlake.protocol.columns import has_type_min_max_statistics
from sessionlake.settings.model import Settings

Columns = tuple[tuple[str, str], ...]
"""Name and Spark SQL type of each column, in order."""
DECLARED = "<declared>"
_LOG = {CHECKPOINTS: str(CHECKPOINT_INTERVAL)}
_MERGED = {DELETION_VECTORS: "true"}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: the column's name.
        sql: the column's Spark SQL type.
        comment: the column's meaning, its unit, and when it is null. Stored as the column's comment in the table.
    """

    name: str
    sql: str
    comment: str


def add_comments(columns: Columns, comments: Mapping[str, str]) -> tuple[Column, ...]:
    """Returns columns with name, type and comment.

    Args:
        columns: name and Spark SQL type of each column.
        comments: comments by column name; further names are ignored.

    Raises:
        KeyError: a column has no comment.
    """
    return tuple(Column(name, sql, comments[name]) for name, sql in columns)


class WriteMode(StrEnum):
    """How rows are written to a table: only appended, merged, both, or all replaced at once."""

    APPEND = "append"
    MERGE = "merge"
    BOTH = "both"
    REPLACE = "replace"
    """Each write replaces all rows, since the table is small."""


@dataclass(frozen=True)
class TableSchema:
    """Definition of a Delta table: its columns, how they are written, and how files are laid out.

    Attributes:
        definitions: the table's columns in order. A column named `DECLARED` stands for all columns in the setting
            `capture.columns`, which get its comment.
        comment: what one row of the table is.
        written_by: the module, without `sessionlake.`, that usually commits the table's rows.
        partition_by: in a catalog, the column by which the table is partitioned; each partition has one row. None for
            no partitioning.
        cluster_by: keys for liquid clustering, used if the storage supports it. Keys of types for which Delta stores no
            minimum and maximum, such as boolean, are left out.
        statistics_columns: columns whose minimum and maximum Delta stores for each file, without those types.
        change_feed: True to turn on Delta's change data feed.
        writes: how rows are written. For tables with MERGE, deletion vectors are turned on.
    """

    definitions: tuple[Column, ...]
    comment: str
    written_by: str
    partition_by: str | None = None
    cluster_by: tuple[str, ...] = ()
    statistics_columns: tuple[str, ...] = ()
    change_feed: bool = False
    writes: WriteMode = WriteMode.MERGE

    def __post_init__(self) -> None:
        """Leaves out clustering keys and statistics columns of types for which Delta stores no minimum and maximum."""
        without = {column.name for column in self.definitions if not has_type_min_max_statistics(column.sql)}
        for name in ("cluster_by", "statistics_columns"):
            object.__setattr__(self, name, tuple(one for one in getattr(self, name) if one not in without))

    @cached_property
    def column_types(self) -> Columns:
        """Name and Spark SQL type of each column. One column may be a placeholder for those of `capture.columns`."""
        return tuple((column.name, column.sql) for column in self.definitions)

    def list_column_definitions(self, settings: Settings) -> tuple[Column, ...]:
        """Returns the table's columns, with the columns of `capture.columns` in place of their placeholder."""
        columns: list[Column] = []
        for column in self.definitions:
            if column.name == DECLARED:
                columns.extend(Column(own.name, own.sql, column.comment) for own in settings.capture.declared_columns)
            else:
                columns.append(column)
        return tuple(columns)

    def list_column_types(self, settings: Settings) -> Columns:
        """Returns name and Spark SQL type of the table's columns, also of those in the setting `capture.columns`."""
        return tuple((column.name, column.sql) for column in self.list_column_definitions(settings))

    @property
    def is_append_only(self) -> bool:
        """True if rows of the table are only appended, and never change."""
        return self.writes is WriteMode.APPEND

    @property
    def is_merged(self) -> bool:
        """True if rows are written to the table with MERGE, alone or in addition to appends."""
        return self.writes in (WriteMode.MERGE, WriteMode.BOTH)

    def build_table_properties(self, keep: timedelta) -> dict[str, str]:
        """Returns the Delta properties with which the table is created, by name.

        Args:
            keep: how long files of old versions stay readable.
        """
        found = _LOG | {RETENTION: format_interval(keep)}
        found |= {APPEND_ONLY: "true"} if self.is_append_only else _MERGED if self.is_merged else {}
        if self.statistics_columns:
            found[STATISTICS_COLUMNS] = encode_column_list(self.statistics_columns)
        if self.change_feed:
            found[CHANGE_FEED] = "true"
        return found
