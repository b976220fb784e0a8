"""Commits to a table that is a folder: its actions, and how they become a version. See Delta's protocol, "Actions".

delta-rs writes no deletion vectors, and cannot say of rows that take the place of others that they are the same. Spark
can do both, and takes a second.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sessionlake.lake.file_statistics import correct, encode
from sessionlake.lake.folder_commits import committing, settle
from sessionlake.lake.parquet import WrittenFile
from sessionlake.lake.table_files import Action, TableFile
from sessionlake.lake.table_schema import DELETION_VECTORS
from sessionlake.lake.writable import VECTORS, Writable, features_of, obstacle, writable

if TYPE_CHECKING:
    from deltalake import DeltaTable

Placed = tuple[WrittenFile, int]
"""A file, and the time (ms) that a stream's first read of the table orders it by."""


def property_set(delta: DeltaTable, key: str, value: str) -> bool:
    """Gives the table a property; False if that is left to Spark, as for tables that only Spark can write."""
    if obstacle(delta):
        return False
    if key == DELETION_VECTORS and value == "true":
        return _enable_vectors(writable(delta))
    with committing(delta) as hooks:
        delta.alter.set_table_properties({key: value}, raise_if_not_exists=False, post_commithook_properties=hooks)
    return True


def _enable_vectors(table: Writable) -> bool:
    """Has rows marked from now on, where they are replaced.

    delta-rs would list another feature besides, which all who read the table then had to know.
    """
    delta = table.delta
    described, held = delta.metadata(), delta.protocol()
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*(held.reader_features or ()), VECTORS}),
        "writerFeatures": sorted({*(features_of(delta) or ()), VECTORS}),
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
    info = {"operation": "SET TBLPROPERTIES", "operationParameters": told}
    return committed(table, info, [{"protocol": protocol}, {"metaData": metadata}])


def appended(table: Writable, files: Sequence[WrittenFile], txn: Action) -> bool:
    """Commits files in the table's folder; False if another commit has come behind the table's version.

    Args:
        txn: see `transaction`.
    """
    return committed(table, _written("Append", files), [txn, *(added(file, now_ms()) for file in files)])


def overwritten(
    table: Writable, former: Sequence[TableFile], files: Sequence[WrittenFile], txn: Action | None, metadata: str = ""
) -> bool:
    """Commits files in the place of others; False if another commit has come behind the table's version.

    Args:
        former: the others, as the version has them.
        files: in the table's folder.
        txn: see `transaction`.
        metadata: kept with the commit, as Spark's `userMetadata`.
    """
    now = now_ms()
    info = _written("Overwrite", files) | ({"userMetadata": metadata} if metadata else {})
    actions = [] if txn is None else [txn]
    actions += [removed(file, now) for file in former]
    return committed(table, info, [*actions, *(added(file, now) for file in files)])


def _written(mode: str, files: Sequence[WrittenFile]) -> Action:
    metrics = {"numFiles": str(len(files)), "numOutputRows": str(sum(file.rows for file in files))}
    return {"operation": "WRITE", "operationParameters": {"mode": mode}, "operationMetrics": metrics}


def rearranged(
    table: Writable, former: Sequence[TableFile], files: Sequence[Placed], operation: str, *, changes: bool
) -> bool | None:
    """Commits files in the place of others, with rows of theirs.

    Args:
        former: the others.
        operation: what the commit is called.
        changes: whether not all rows of theirs are there.

    Returns:
        False if another commit has come behind the table's version; None if some of the others are no part of it.
    """
    if not {file.key for file in former} <= {file.key for file in table.files}:
        return None
    now = now_ms()
    actions = [removed(file, now, changes=changes) for file in former]
    actions += [added(file, at, changes=changes) for file, at in files]
    # A DELETE that names no condition is taken for one of all rows.
    parameters = {"predicate": '["some rows"]'} if changes else {}
    return committed(table, {"operation": operation, "operationParameters": parameters}, actions)


def corrected(table: Writable) -> bool:
    """Gives entries of files correct statistics that earlier versions wrote wrong: no file is touched.

    Returns:
        False if another commit has come in between, so that it is to be done again.
    """
    found = ((file, correct(file.add.get("stats"))) for file in table.files)
    actions = [{"add": file.add | _NO_PARTITION | {"dataChange": False, "stats": new}} for file, new in found if new]
    return not actions or committed(table, {"operation": "COMPUTE STATISTICS", "operationParameters": {}}, actions)


_NO_PARTITION: Action = {"partitionValues": {}}


def now_ms() -> int:
    """The present, as actions have it."""
    return int(time.time() * 1000)


def transaction(app: str, batch: int) -> Action:
    """The application's commit of this number: it is not made twice."""
    return {"txn": {"appId": app, "version": batch, "lastUpdated": now_ms()}}


def added(file: WrittenFile, now: int, *, changes: bool = True) -> Action:
    """A file that is part of the table from now on (ms)."""
    return {"add": named(file) | {"modificationTime": now, "dataChange": changes, "stats": file.stats}}


def named(file: WrittenFile) -> Action:
    """A file, as actions name it."""
    return {"path": file.path, "size": file.size} | _NO_PARTITION


def marked_file(file: TableFile, vector: Action) -> Action:
    """A file of whose rows a vector says which are gone from now on."""
    known = {name: file.add[name] for name in ("path", "size", "modificationTime")} | _NO_PARTITION
    stats = encode(file.stats | {"tightBounds": False}).decode()
    return {"add": known | {"dataChange": True, "stats": stats, "deletionVector": vector}}


def removed(file: TableFile, now: int, *, changes: bool = True) -> Action:
    """A file that is no part of the table from now on (ms)."""
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": changes, "extendedFileMetadata": True} | _NO_PARTITION
    return {"remove": known | rest | {"deletionTimestamp": now}}


def committed(table: Writable, info: Action, actions: Iterable[Action]) -> bool:
    """Writes the commit behind the table's version, and then what `settle` does.

    Args:
        info: what the commit says of itself: its operation.

    Returns:
        False, and nothing is written, if somebody else has written a commit of this number.
    """
    own, version, log = uuid.uuid4(), table.version + 1, table.folder / "_delta_log"
    said: Action = {"commitInfo": {"timestamp": now_ms(), "engineInfo": "sessionlake", "txnId": str(own), **info}}
    content = b"".join(encode(action) + b"\n" for action in (said, *actions))
    unnamed, entry = log / f".{own}.json", log / f"{version:020}.json"
    unnamed.write_bytes(content)
    try:
        os.link(unnamed, entry)
    except FileExistsError:
        # On NFS, whoever asks again because an answer was lost is told so of his own.
        if entry.read_bytes() != content:
            return False
    finally:
        unnamed.unlink()
    settle(table.delta, version)
    return True
