"""Builds the actions of a commit to a table in a folder, and writes them as a version (Delta's protocol, "Actions").

delta-rs writes no deletion vectors, and cannot commit rewritten rows as unchanged. Spark can do both, but takes a
second.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.folders.commits import finish_commit, sync, sync_files
from sessionlake.delta.folders.file_statistics import corrected_stats, encode
from sessionlake.delta.folders.parquet import WrittenFile
from sessionlake.delta.folders.table_files import Action, TableFile
from sessionlake.delta.folders.writable import (
    READER_FEATURES,
    VECTORS,
    Writable,
    features_of,
    open_writable,
    spark_only_reason,
)
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, DELETION_VECTORS
from sessionlake.local.paths import log_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS = 20
_FEATURES_OF = {DELETION_VECTORS: VECTORS, CHANGE_FEED: "changeDataFeed", APPEND_ONLY: "appendOnly"}
"""The table feature that each property needs when it is true."""
TimedFile = tuple[WrittenFile, int]
"""A file, and the time in milliseconds by which a stream's first read orders it."""


def set_property(delta: DeltaTable, key: str, value: str) -> bool:
    """Sets a property of the table. Returns False if only Spark can write the table."""
    for _ in range(_ATTEMPTS):
        if spark_only_reason(delta):
            return False
        feature = _FEATURES_OF.get(key) if value == "true" else None
        wanted = features_of(delta) | ({feature} if feature else set[str]())
        info = {"operation": "SET TBLPROPERTIES", "operationParameters": {"properties": encode({key: value}).decode()}}
        if write_commit(open_writable(delta), info, metadata_actions(delta, wanted, {key: value})):
            return True
        delta.update_incremental()
    return False


def metadata_actions(delta: DeltaTable, features: set[str], properties: Mapping[str, str]) -> list[Action]:
    """Returns actions that give the table these features and properties: the protocol, if it changes, and the metadata.

    delta-rs would also list features that the table does not use, and every reader would have to support them.
    """
    described, actions = delta.metadata(), list[Action]()
    if features != features_of(delta):
        asked = sorted(features & READER_FEATURES)
        versions = {"minReaderVersion": 3 if asked else 1, "minWriterVersion": 7}
        listed = {"writerFeatures": sorted(features)} | ({"readerFeatures": asked} if asked else {})
        actions.append({"protocol": versions | listed})
    metadata = {
        "id": described.id,
        "name": described.name,
        "description": described.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": delta.schema().to_json(),
        "partitionColumns": described.partition_columns,
        "configuration": described.configuration | dict(properties),
        "createdTime": described.created_time,
    }
    return [*actions, {"metaData": metadata}]


def commit_append(table: Writable, files: Sequence[WrittenFile], txn: Action) -> bool:
    """Commits new files of the table's folder. Returns False if another commit came first.

    Args:
        txn: from `txn_action`.
    """
    return write_commit(table, _written("Append", files), [txn, *(add_action(file, now_ms()) for file in files)], files)


def commit_overwrite(
    table: Writable, former: Sequence[TableFile], files: Sequence[WrittenFile], txn: Action | None, metadata: str = ""
) -> bool:
    """Commits files in place of others. Returns False if another commit came first.

    Args:
        former: the replaced files, as in this version.
        files: new files of the table's folder.
        txn: from `txn_action`; None without a transaction.
        metadata: stored with the commit, as Spark's `userMetadata`.
    """
    now = now_ms()
    info = _written("Overwrite", files) | ({"userMetadata": metadata} if metadata else {})
    actions = [] if txn is None else [txn]
    actions += [remove_action(file, now) for file in former]
    return write_commit(table, info, [*actions, *(add_action(file, now) for file in files)], files)


def _written(mode: str, files: Sequence[WrittenFile]) -> Action:
    metrics = {"numFiles": str(len(files)), "numOutputRows": str(sum(file.rows for file in files))}
    return {"operation": "WRITE", "operationParameters": {"mode": mode}, "operationMetrics": metrics}


def commit_replacement(
    table: Writable,
    former: Sequence[TableFile],
    files: Sequence[TimedFile],
    operation: str,
    others: Iterable[Action] = (),
    *,
    changes: bool,
) -> bool | None:
    """Commits files in place of others, with rows of those.

    Args:
        former: the replaced files.
        files: the new files.
        operation: name of the commit's operation.
        others: further actions.
        changes: True if some rows were changed or left out.

    Returns:
        False if another commit came first; None if some replaced files are not part of the version.
    """
    if not {file.key for file in former} <= {file.key for file in table.files}:
        return None
    now = now_ms()
    actions = [*others, *(remove_action(file, now, changes=changes) for file in former)]
    actions += [add_action(file, at, changes=changes) for file, at in files]
    # Without a predicate, a DELETE would count as one of all rows.
    parameters = {"predicate": '["some rows"]'} if changes else {}
    info = {"operation": operation, "operationParameters": parameters}
    return write_commit(table, info, actions, [file for file, _ in files])


def commit_corrected_stats(table: Writable) -> bool:
    """Corrects statistics of files that earlier versions of sessionlake wrote wrong. No file is rewritten.

    Returns:
        False if another commit came first and this must be repeated.
    """
    found = ((file, corrected_stats(file.add.get("stats"), file.row_count)) for file in table.files)
    actions = [{"add": file.add | _NO_PARTITION | {"dataChange": False, "stats": new}} for file, new in found if new]
    return not actions or write_commit(table, {"operation": "COMPUTE STATISTICS", "operationParameters": {}}, actions)


_NO_PARTITION: Action = {"partitionValues": {}}


def now_ms() -> int:
    """Returns the present time in milliseconds since the epoch, as actions have it."""
    return int(time.time() * 1000)


def txn_action(app: str, batch: int) -> Action:
    """Returns the action that makes Delta skip a repetition of this application's commit."""
    return {"txn": {"appId": app, "version": batch, "lastUpdated": now_ms()}}


def add_action(file: WrittenFile, now: int, *, changes: bool = True) -> Action:
    """Returns the action that adds a file to the table.

    Args:
        now: time of the commit in milliseconds since the epoch.
        changes: False if the file only has rows of the table that were moved.
    """
    return {"add": file_fields(file) | {"modificationTime": now, "dataChange": changes, "stats": file.stats}}


def file_fields(file: WrittenFile) -> Action:
    """Returns the fields that name a file in an action."""
    return {"path": log_path(file.path), "size": file.size} | _NO_PARTITION


def marked_add_action(file: TableFile, vector: Action) -> Action:
    """Returns the action that adds a file again with a deletion vector."""
    known = {name: file.add[name] for name in ("path", "size", "modificationTime")} | _NO_PARTITION
    stats = encode(file.stats | {"tightBounds": False}).decode()
    return {"add": known | {"dataChange": True, "stats": stats, "deletionVector": vector}}


def remove_action(file: TableFile, now: int, *, changes: bool = True) -> Action:
    """Returns the action that removes a file from the table.

    Args:
        now: time of the commit in milliseconds since the epoch.
        changes: False if its rows are only moved.
    """
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": changes, "extendedFileMetadata": True} | _NO_PARTITION
    return {"remove": known | rest | {"deletionTimestamp": now}}


def write_commit(
    table: Writable, info: Action, actions: Iterable[Action], files: Iterable[WrittenFile] = (), *others: Path
) -> bool:
    """Writes the commit after the table's version, and then its checksum and, if due, a checkpoint.

    The files that it names are on the disk before it is written, and it is on the disk before this returns.

    Args:
        info: the commit's description of itself: its operation.
        files: new data files that it names.
        others: further new files.

    Returns:
        False, and nothing is written, if another process has written this version first.
    """
    own, version, log = uuid.uuid4(), table.version + 1, table.folder / "_delta_log"
    said: Action = {"commitInfo": {"timestamp": now_ms(), "engineInfo": "sessionlake", "txnId": str(own), **info}}
    content = b"".join(encode(action) + b"\n" for action in (said, *actions))
    unnamed, entry = log / f".{own}.json", log / f"{version:020}.json"
    sync_files(table.folder, [*(table.folder / file.path for file in files), *others])
    try:
        unnamed.write_bytes(content)
        sync(unnamed)
        os.link(unnamed, entry)
    except FileExistsError:
        # On NFS, a request that is repeated because its answer was lost finds the file that it wrote itself.
        if entry.read_bytes() != content:
            return False
    finally:
        unnamed.unlink(missing_ok=True)
    sync(log)
    finish_commit(table.delta, version)
    return True
