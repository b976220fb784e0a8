"""Decides which tables this package may commit to, and reads what it must know of them first.

No other module builds an `add` or a `remove`. `open_writable` reads a version's protocol, metadata and files, with the
rows that deletion vectors mark. Tables with unknown features are left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.folders.parquet import FAST_CODEC, FileWriter
from sessionlake.delta.folders.table_files import TableFile, folder_of, live_files
from sessionlake.delta.schemas.properties import CHANGE_FEED, DELETION_VECTORS, STATISTICS_COLUMNS, split_names
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Features that ask nothing of what is written here, or nothing that is not done.
_KNOWN = frozenset({"appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz"})
# These ask nothing of a table whose metadata has no such mark: a protocol may list them all the same, as delta-rs
# lists the last for any table that it sets a property of.
_UNUSED = {
    "invariants": ("delta.invariants", '"nullable":false'),
    "checkConstraints": ("delta.constraints.",),
    "generatedColumns": ("delta.generationExpression",),
    "columnMapping": ("delta.columnMapping.",),
    "identityColumns": ("delta.identity.",),
    "variantType": ('"variant"',),
}
# What a table asks of its writers that lists no features, by their version.
_LEGACY: Mapping[int, frozenset[str]] = {
    1: frozenset(),
    2: (_SECOND := frozenset({"appendOnly", "invariants"})),
    3: (_THIRD := _SECOND | {"checkConstraints"}),
    4: (_FOURTH := _THIRD | {"changeDataFeed", "generatedColumns"}),
    5: (_FIFTH := _FOURTH | {"columnMapping"}),
    6: _FIFTH | {"identityColumns"},
}
_LISTED, _LATEST_READER = 7, 3
_INDEXED = 32  # Delta's own default
VECTORS = "deletionVectors"
"""What protocols call the feature."""
READER_FEATURES = frozenset({VECTORS, "columnMapping", "timestampNtz", "variantType"})
"""Features that readers have to know, too, of those that are known here."""


@dataclass(frozen=True)
class Writable:
    """A version of a table to which this package may add a commit.

    Attributes:
        folder: the table's.
        schema: the table's columns.
        configuration: the table's properties.
    """

    delta: DeltaTable
    folder: Path
    schema: pa.Schema
    configuration: Mapping[str, str]

    @cached_property
    def files(self) -> list[TableFile]:
        """The version's files, with their deleted rows.

        Raises:
            LakeError: a deletion vector does not match the log.
        """
        return live_files(self.delta)

    @property
    def version(self) -> int:
        """The version's number."""
        return self.delta.version()

    @property
    def uses_vectors(self) -> bool:
        """True if new commits may mark replaced rows in deletion vectors."""
        return self.configuration.get(DELETION_VECTORS) == "true"

    @property
    def has_change_feed(self) -> bool:
        """True if commits must record which rows they change."""
        return self.configuration.get(CHANGE_FEED) == "true"

    def writer(self, codec: str = FAST_CODEC) -> FileWriter:
        """Returns a writer of files for the table.

        Args:
            codec: Parquet's compression codec.
        """
        indexed = split_names(self.configuration.get(STATISTICS_COLUMNS, "")) or self._usually_indexed()
        return FileWriter(str(self.folder), self.schema, indexed, codec)

    def _usually_indexed(self) -> tuple[str, ...]:
        """The columns that Delta keeps statistics of where no property names them."""
        flat = [field.name for field in self.schema if not pa.types.is_nested(field.type)]
        return tuple(flat[:_INDEXED])


def open_writable(delta: DeltaTable) -> Writable:
    """Returns the table for a commit.

    Raises:
        LakeError: the table uses features that this package does not support.
    """
    if why := spark_only_reason(delta):
        raise LakeError(
            f"{folder_of(delta)} has {why}",
            why="A commit that ignores this would damage the table, so only Spark may write to it",
            fix="Undo the change to the table's properties, or copy its rows to a new table",
        )
    return Writable(delta, folder_of(delta), pa.schema(delta.schema().to_arrow()), delta.metadata().configuration)


def spark_only_reason(delta: DeltaTable) -> str | None:
    """Returns the feature for which only Spark can write the table; None if this package can."""
    protocol = delta.protocol()
    if protocol.min_reader_version > _LATEST_READER or protocol.min_writer_version > _LISTED:
        return f"protocol ({protocol.min_reader_version}, {protocol.min_writer_version})"
    if unknown := features_of(delta) - _KNOWN - _UNUSED.keys():
        return f"the table feature {', '.join(sorted(unknown))}"
    if used := _used(delta):
        return f"the table feature {', '.join(sorted(used))} in use"
    return "partition columns" if delta.metadata().partition_columns else None


def needs_delta_reader(delta: DeltaTable) -> bool:
    """True if the files' columns are not simply the table's columns of the same names."""
    asked = {*(delta.protocol().reader_features or ())} - READER_FEATURES
    return bool(asked or "columnMapping" in _used(delta) or delta.metadata().partition_columns)


def _used(delta: DeltaTable) -> set[str]:
    """Returns the features of `_UNUSED` that the table really uses."""
    said = json.dumps([*delta.metadata().configuration]) + delta.schema().to_json().replace(" ", "")
    return {feature for feature, marks in _UNUSED.items() if any(mark in said for mark in marks)}


def features_of(delta: DeltaTable) -> set[str]:
    """Returns the features that the table's readers and writers must support."""
    protocol = delta.protocol()
    if protocol.min_writer_version >= _LISTED:
        return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    return {*_LEGACY[protocol.min_writer_version]}


def used_features(delta: DeltaTable) -> set[str]:
    """Returns the features that the table needs: all but those that it only lists."""
    return {feature for feature in features_of(delta) if feature not in _UNUSED} | _used(delta)


def has_vectors(delta: DeltaTable) -> bool:
    """True if a version of the table may have deletion vectors, whatever its properties say now."""
    return VECTORS in (delta.protocol().reader_features or ())
