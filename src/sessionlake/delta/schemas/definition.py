"""How one table is defined: its columns, how rows come into it, and the Delta properties that follow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings

Columns = tuple[tuple[str, str], ...]
"""Names and Spark SQL types, in order."""
DECLARED = "<declared>"
CHECKPOINTS = "delta.checkpointInterval"
"""After how many versions the log is put together, which readers begin at."""
CHECKPOINT_INTERVAL = 50
_LOG = {CHECKPOINTS: str(CHECKPOINT_INTERVAL)}
RETENTION = "delta.deletedFileRetentionDuration"
"""How long the log remembers files that are no part of the table any more. Each is in every checkpoint until then."""
LOG_BY_AGE = "delta.enableExpiredLogCleanup"
"""Whether Delta removes log entries by their age, whoever has yet to read them."""
SKIPPING = "delta.dataSkippingStatsColumns"
"""Names of the columns that files have the least and the greatest value of."""
APPEND_ONLY = "delta.appendOnly"
"""Whether Delta refuses commits that remove rows; what retention has removed rows of has it no more."""
DELETION_VECTORS = "delta.enableDeletionVectors"
CHANGE_FEED = "delta.enableChangeDataFeed"
"""Whether what MERGE replaces is marked, and its file left as it is."""
_MERGED = {DELETION_VECTORS: "true"}


_LISTED = re.compile(r"`[^`]*`|[^,]+")


def listed(names: Iterable[str]) -> str:
    """Names of columns as Delta's properties have them."""
    return ",".join(name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quote(name) for name in names)


def names_listed(told: str) -> tuple[str, ...]:
    """What `listed` wrote."""
    return tuple(name.strip("`") for name in _LISTED.findall(told))


def interval(span: timedelta) -> str:
    """A duration as Delta's properties have it."""
    return f"interval {int(span.total_seconds())} seconds"


def span_of(told: str | None) -> timedelta:
    """What a property says that `interval` wrote; zero for anything else."""
    found = re.fullmatch(r"interval (\d+) seconds", told or "")
    return timedelta(seconds=int(found[1])) if found else timedelta(0)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        sql: its Spark SQL type.
        comment: what it means, its unit, and when it is null. Tables in storage have it as the column's comment.
    """

    name: str
    sql: str
    comment: str


def described(columns: Columns, comments: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns with their comments.

    Raises:
        KeyError: a column has no comment.
    """
    return tuple(Column(name, sql, comments[name]) for name, sql in columns)


class Writes(StrEnum):
    """How rows come into a table."""

    APPEND = "append"
    MERGE = "merge"
    BOTH = "both"
    REPLACE = "replace"
    """All at once: the table is small."""


@dataclass(frozen=True)
class TableSchema:
    """Definition of one Delta table.

    Attributes:
        definitions: its columns in order; `DECLARED` stands for the declared capture columns, which have its comment.
        comment: what a row is.
        written_by: the module, without `sessionlake.`, that usually commits the table's rows.
        partition_by: the column whose values divide a table of one row for each of them, in a catalog.
        cluster_by: liquid clustering keys, where the storage has it.
        writes: how rows come in; what MERGE replaces is marked in deletion vectors.
        skipping: columns that files keep minimum and maximum of.
        feed: whether Delta's change data feed is on.
    """

    definitions: tuple[Column, ...]
    comment: str
    written_by: str
    partition_by: str | None = None
    cluster_by: tuple[str, ...] = ()
    skipping: tuple[str, ...] = ()
    feed: bool = False
    writes: Writes = Writes.MERGE

    @cached_property
    def columns(self) -> Columns:
        """Names and Spark SQL types of the columns."""
        return tuple((column.name, column.sql) for column in self.definitions)

    def definitions_for(self, settings: Settings) -> tuple[Column, ...]:
        """The columns, with the declared ones in place."""
        whole: list[Column] = []
        for column in self.definitions:
            if column.name == DECLARED:
                whole.extend(Column(own.name, own.sql, column.comment) for own in settings.capture.declared)
            else:
                whole.append(column)
        return tuple(whole)

    def resolved(self, settings: Settings) -> Columns:
        """Names and Spark SQL types of the columns, with the declared ones in place."""
        return tuple((column.name, column.sql) for column in self.definitions_for(settings))

    @property
    def append_only(self) -> bool:
        """Whether rows never change."""
        return self.writes is Writes.APPEND

    @property
    def merged(self) -> bool:
        """Whether MERGE changes rows."""
        return self.writes in (Writes.MERGE, Writes.BOTH)

    def properties(self, keep: timedelta) -> dict[str, str]:
        """Delta table properties.

        Args:
            keep: how far back the table's history is to reach.
        """
        found = _LOG | {RETENTION: interval(keep)}
        found |= {APPEND_ONLY: "true"} if self.append_only else _MERGED if self.merged else {}
        if self.skipping:
            found[SKIPPING] = listed(self.skipping)
        if self.feed:
            found[CHANGE_FEED] = "true"
        return found
