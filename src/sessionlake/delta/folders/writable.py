"""Decides which tables this package may commit to, and opens them for a commit.

Only Spark may write to tables with features that this package does not support. `open_writable_table` refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.folders.parquet import FAST_CODEC, DataFileWriter
from sessionlake.delta.folders.table_files import TableFile, find_table_folder, list_data_files
from sessionlake.delta.schemas.properties import CHANGE_FEED, DELETION_VECTORS, STATISTICS_COLUMNS, decode_column_list
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Features that this package supports when it writes.
_KNOWN = frozenset({"appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz"})
# Features that a protocol may list although the table does not use them, and texts that its metadata has if it does.
# delta-rs lists the last one for every table of which it sets a property.
_UNUSED = {
    "invariants": ("delta.invariants", '"nullable":false'),
    "checkConstraints": ("delta.constraints.",),
    "generatedColumns": ("delta.generationExpression",),
    "columnMapping": ("delta.columnMapping.",),
    "identityColumns": ("delta.identity.",),
    "variantType": ('"variant"',),
}
# Features of tables with an old protocol, which lists none: the writer version of the protocol implies them.
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
"""Name of the table feature for deletion vectors."""
READER_FEATURES = frozenset({VECTORS, "columnMapping", "timestampNtz", "variantType"})
"""Those features in this module that readers must support, too."""


@dataclass(frozen=True)
class WritableTable:
    """A table in a folder that sessionlake may commit to without Spark, opened at one version.

    Attributes:
        delta: the table, as delta-rs opened it.
        folder: the table's folder.
        schema: the table's columns.
        configuration: the table's properties.
    """

    delta: DeltaTable
    folder: Path
    schema: pa.Schema
    configuration: Mapping[str, str]

    @cached_property
    def data_files(self) -> list[TableFile]:
        """All data files of the opened version of the table, with their deleted rows.

        Raises:
            LakeError: a deletion vector has another number of rows than the log says.
        """
        return list_data_files(self.delta)

    @property
    def table_version(self) -> int:
        """Number of the opened version of the table."""
        return self.delta.version()

    @property
    def uses_vectors(self) -> bool:
        """True if new commits to the table may mark replaced rows in deletion vectors."""
        return self.configuration.get(DELETION_VECTORS) == "true"

    @property
    def has_change_feed(self) -> bool:
        """True if commits to the table must record which rows they change, for its change feed."""
        return self.configuration.get(CHANGE_FEED) == "true"

    def create_data_file_writer(self, codec: str = FAST_CODEC) -> DataFileWriter:
        """Returns a writer that writes new data files into the table's folder.

        Args:
            codec: Parquet's compression codec.
        """
        indexed = (
            decode_column_list(self.configuration.get(STATISTICS_COLUMNS, "")) or self._list_default_indexed_columns()
        )
        return DataFileWriter(str(self.folder), self.schema, indexed, codec)

    def _list_default_indexed_columns(self) -> tuple[str, ...]:
        """Returns the columns that get statistics if no table property names any: the first 32 not nested ones."""
        flat = [field.name for field in self.schema if not pa.types.is_nested(field.type)]
        return tuple(flat[:_INDEXED])


def open_writable_table(delta: DeltaTable) -> WritableTable:
    """Returns the table for a commit without Spark, after checking that this is allowed.

    Raises:
        LakeError: the table uses features that only Spark can write.
    """
    if why := find_spark_only_feature(delta):
        raise LakeError(
            f"the table in {find_table_folder(delta)} has {why}, which sessionlake does not support",
            why="A commit that ignores it would damage the table, so only Spark may write to the table",
            fix="Take back the change to the table's properties (ALTER TABLE … UNSET TBLPROPERTIES), or "
            "copy the rows to a new table",
        )
    return WritableTable(
        delta, find_table_folder(delta), pa.schema(delta.schema().to_arrow()), delta.metadata().configuration
    )


def find_spark_only_feature(delta: DeltaTable) -> str | None:
    """Returns why only Spark may write to the table: the name of a feature, as text.

    None if sessionlake may write itself.
    """
    protocol = delta.protocol()
    if protocol.min_reader_version > _LATEST_READER or protocol.min_writer_version > _LISTED:
        return f"protocol ({protocol.min_reader_version}, {protocol.min_writer_version})"
    if unknown := list_protocol_features(delta) - _KNOWN - _UNUSED.keys():
        return f"the table feature {', '.join(sorted(unknown))}"
    if used := _list_features_used_by_metadata(delta):
        return f"the table feature {', '.join(sorted(used))} in use"
    return "partition columns" if delta.metadata().partition_columns else None


def needs_delta_reader(delta: DeltaTable) -> bool:
    """True if a plain Parquet reader would read the table's data files wrong, so that a Delta reader is needed.

    This is so with mapped or partition columns, and with features for readers that sessionlake does not support.
    """
    asked = {*(delta.protocol().reader_features or ())} - READER_FEATURES
    return bool(
        asked or "columnMapping" in _list_features_used_by_metadata(delta) or delta.metadata().partition_columns
    )


def _list_features_used_by_metadata(delta: DeltaTable) -> set[str]:
    """Returns the features that the table's metadata shows to be in use, of those that protocols often only list."""
    said = json.dumps([*delta.metadata().configuration]) + delta.schema().to_json().replace(" ", "")
    return {feature for feature, marks in _UNUSED.items() if any(mark in said for mark in marks)}


def list_protocol_features(delta: DeltaTable) -> set[str]:
    """Returns the names of all features that the table's protocol lists or implies."""
    protocol = delta.protocol()
    if protocol.min_writer_version >= _LISTED:
        return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    return {*_LEGACY[protocol.min_writer_version]}


def list_used_features(delta: DeltaTable) -> set[str]:
    """Returns the names of the features that the table really uses.

    Features that its protocol only lists are left out.
    """
    return {
        feature for feature in list_protocol_features(delta) if feature not in _UNUSED
    } | _list_features_used_by_metadata(delta)


def may_have_deletion_vectors(delta: DeltaTable) -> bool:
    """True if the table may have deletion vectors, also in old versions and whatever its properties say now."""
    return VECTORS in (delta.protocol().reader_features or ())
