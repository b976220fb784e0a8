"""Commits to a table that is a folder, written here: see Delta's protocol, "Actions".

delta-rs writes no deletion vectors, and cannot say of rows that take the place of others that they are the same. Spark
can do both, and takes a second.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sessionlake.lake.folder_commits import committing, settle
from sessionlake.lake.parquet import WrittenFile
from sessionlake.lake.table_files import Action, TableFile, folder_of
from sessionlake.lake.table_schema import DELETION_VECTORS
from sessionlake.laptop.paths import log_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Who writes to a table must know all that its protocol lists: of these nothing follows for what is written here.
# delta-rs lists the last for any table that it sets a property of.
_FEATURES = frozenset({"appendOnly", "changeDataFeed", "deletionVectors", "invariants", "variantType"})
# A table of an older protocol lists these when it gets vectors, whether or not it has any of the kind.
_UNUSED = {"checkConstraints": "delta.constraints.", "generatedColumns": "delta.generationExpression"}
_VECTORS = "deletionVectors"
# What a table asks of its writers that lists no features, by their version.
_LEGACY: Mapping[int, tuple[str, ...]] = {
    2: ("appendOnly", "invariants"),
    4: ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}


def can_be_written(delta: DeltaTable) -> bool:
    """Whether the table asks nothing of its writers that is not done here."""
    said = json.dumps([*delta.metadata().configuration]) + delta.schema().to_json()
    unused = {feature for feature, mark in _UNUSED.items() if mark not in said}
    return (_FEATURES | unused).issuperset(delta.protocol().writer_features or ())


def is_clustered(delta: DeltaTable) -> bool:
    """Whether the table has liquid clustering, with which delta-rs does not write to it."""
    return "clustering" in (delta.protocol().writer_features or ())


def property_set(delta: DeltaTable, key: str, value: str) -> bool:
    """Gives the table a property; False if that is left to Spark, as for tables that only Spark can write."""
    if is_clustered(delta):
        return False
    if key == DELETION_VECTORS:
        return _marks_rows(delta)
    with committing(delta) as hooks:
        delta.alter.set_table_properties({key: value}, raise_if_not_exists=False, post_commithook_properties=hooks)
    return True


def _marks_rows(delta: DeltaTable) -> bool:
    """Has rows marked from now on, where they are replaced.

    delta-rs would list another feature besides, which all who read the table then had to know.
    """
    held, described = delta.protocol(), delta.metadata()
    legacy = _LEGACY.get(held.min_writer_version)
    if (legacy is None and (held.min_reader_version, held.min_writer_version) != (3, 7)) or not can_be_written(delta):
        return False
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*(held.reader_features or ()), _VECTORS}),
        "writerFeatures": sorted({*(held.writer_features or ()), *(legacy or ()), _VECTORS}),
    }
    metadata = {
        "id": described.id,
        "name": described.name,
        "description": described.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": delta.schema().to_json(),
        "partitionColumns": described.partition_columns,
        "configuration": described.configuration | {DELETION_VECTORS: "true"},
        "createdTime": described.created_time,
    }
    told = {"properties": json.dumps({DELETION_VECTORS: "true"})}
    now = int(time.time() * 1000)
    info = commit_info(now, {"operation": "SET TBLPROPERTIES", "operationParameters": told})
    return committed(delta, [info, {"protocol": protocol}, {"metaData": metadata}])


def overwritten(
    delta: DeltaTable,
    former: Sequence[TableFile],
    files: Sequence[WrittenFile],
    app: str,
    batch: int,
    metadata: str = "",
    *,
    changes: bool = True,
) -> bool:
    """Commits files in the place of others; False if another commit has come behind the table's version.

    Args:
        former: the others, as the version has them.
        files: in the table's folder.
        app: application id of the transaction.
        batch: its version.
        metadata: kept with the commit, as Spark's `userMetadata`.
        changes: whether the rows are other ones than before.
    """
    now = int(time.time() * 1000)
    metrics = {"numFiles": str(len(files)), "numOutputRows": str(sum(file.rows for file in files))}
    info: Action = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}, "operationMetrics": metrics}
    info |= {"userMetadata": metadata} if metadata else {}
    actions = [removed(file, now, changes=changes) for file in former]
    actions += [added(file, now, changes=changes) for file in files]
    return committed(delta, [commit_info(now, info), transaction(app, batch, now), *actions])


def commit_info(now: int, info: Mapping[str, Any]) -> Action:
    """What a commit says of itself."""
    return {"commitInfo": {"timestamp": now, "engineInfo": "sessionlake", **info}}


def transaction(app: str, batch: int, now: int) -> Action:
    """The application's commit of this number: it is not made twice."""
    return {"txn": {"appId": app, "version": batch, "lastUpdated": now}}


def added(file: WrittenFile, now: int, *, changes: bool = True) -> Action:
    """A file that is part of the table from now on (ms)."""
    return {"add": named(file) | {"modificationTime": now, "dataChange": changes, "stats": file.stats}}


def named(file: WrittenFile) -> Action:
    """A file, as actions name it."""
    return {"path": log_path(file.path), "size": file.size, "partitionValues": {}}


def removed(file: TableFile, now: int, *, changes: bool = True) -> Action:
    """A file that is no part of the table from now on (ms)."""
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": changes, "extendedFileMetadata": True, "partitionValues": {}}
    return {"remove": known | rest | {"deletionTimestamp": now}}


def committed(delta: DeltaTable, actions: Iterable[Action]) -> bool:
    """Writes the commit behind the table's version, and then what `settle` does.

    Returns:
        False, and nothing is written, if somebody else has written a commit of this number.
    """
    version = delta.version() + 1
    log = folder_of(delta) / "_delta_log"
    written = log / f".{uuid.uuid4()}.json"
    written.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
    try:
        os.link(written, log / f"{version:020}.json")
    except FileExistsError:
        return False
    finally:
        written.unlink()
    settle(delta, version)
    return True
