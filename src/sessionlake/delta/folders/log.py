"""Builds the actions of a commit, and writes them to the log as a new version of a table in a folder.

An action is one line of a commit file, such as `add` or `remove` (Delta's protocol, "Actions"). delta-rs cannot do
this: it writes no deletion vectors, and cannot mark moved rows as unchanged. Spark can, but takes a second.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.folders.commits import sync_files, sync_to_disk, write_checksum_and_checkpoint
from sessionlake.delta.folders.file_statistics import encode_log_json, repair_unreadable_statistics
from sessionlake.delta.folders.parquet import WrittenFile
from sessionlake.delta.folders.table_files import Action, TableFile
from sessionlake.delta.folders.writable import (
    READER_FEATURES,
    VECTORS,
    WritableTable,
    find_spark_only_feature,
    list_protocol_features,
    open_writable_table,
)
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, DELETION_VECTORS
from sessionlake.local.paths import encode_path_for_delta_log

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS = 20
_FEATURES_OF = {DELETION_VECTORS: VECTORS, CHANGE_FEED: "changeDataFeed", APPEND_ONLY: "appendOnly"}
"""The table feature that must be listed in the protocol if a property is true, by property name."""
TimedFile = tuple[WrittenFile, int]
"""A new file, and its modification time in ms since 1970. A stream's first read orders files by this time."""


def set_property(delta: DeltaTable, key: str, value: str) -> bool:
    """Sets a property of a table in one commit.

    Returns:
        True if the property is set. False if only Spark may write to the table, or other commits conflicted many times.
    """
    for _ in range(_ATTEMPTS):
        if find_spark_only_feature(delta):
            return False
        feature = _FEATURES_OF.get(key) if value == "true" else None
        wanted = list_protocol_features(delta) | ({feature} if feature else set[str]())
        info = {
            "operation": "SET TBLPROPERTIES",
            "operationParameters": {"properties": encode_log_json({key: value}).decode()},
        }
        if write_next_version(open_writable_table(delta), info, build_metadata_actions(delta, wanted, {key: value})):
            return True
        delta.update_incremental()
    return False


def build_metadata_actions(delta: DeltaTable, features: set[str], properties: Mapping[str, str]) -> list[Action]:
    """Returns actions of Delta's log that set a table's features and properties: `metaData`, and `protocol` if needed.

    delta-rs would also list features that the table does not use, and every reader would have to support them.

    Args:
        delta: the table.
        features: all features that the table has afterwards.
        properties: properties to set; others keep their values.
    """
    described, actions = delta.metadata(), list[Action]()
    if features != list_protocol_features(delta):
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


def commit_appended_files(table: WritableTable, files: Sequence[WrittenFile], txn: Action) -> bool:
    """Commits new files, so that their rows are added to the table.

    Args:
        table: the table, opened at its latest version.
        files: new files in the table's folder.
        txn: action from `build_txn_action`.

    Returns:
        True if it was committed. False if another process committed this version first, so that nothing is committed.
    """
    return write_next_version(
        table,
        _build_commit_info("Append", files),
        [txn, *(build_add_action(file, read_current_time_ms()) for file in files)],
        files,
    )


def commit_files_with_other_rows(
    table: WritableTable,
    replaced_files: Sequence[TableFile],
    files: Sequence[WrittenFile],
    txn: Action | None,
    metadata: str = "",
) -> bool:
    """Commits the replacement of files by new files with other rows.

    Args:
        table: the table, opened at its latest version.
        replaced_files: files of the table's version, which the commit removes.
        files: new files in the table's folder.
        txn: action from `build_txn_action`; None without a transaction.
        metadata: text stored with the commit, as `userMetadata` in the table's history.

    Returns:
        True if it was committed. False if another process committed this version first, so that nothing is committed.
    """
    now = read_current_time_ms()
    info = _build_commit_info("Overwrite", files) | ({"userMetadata": metadata} if metadata else {})
    actions = [] if txn is None else [txn]
    actions += [build_remove_action(file, now) for file in replaced_files]
    return write_next_version(table, info, [*actions, *(build_add_action(file, now) for file in files)], files)


def _build_commit_info(mode: str, files: Sequence[WrittenFile]) -> Action:
    metrics = {"numFiles": str(len(files)), "numOutputRows": str(sum(file.row_count for file in files))}
    return {"operation": "WRITE", "operationParameters": {"mode": mode}, "operationMetrics": metrics}


def commit_rewritten_files(
    table: WritableTable,
    replaced_files: Sequence[TableFile],
    files: Sequence[TimedFile],
    operation: str,
    others: Iterable[Action] = (),
    *,
    changes_rows: bool,
) -> bool | None:
    """Commits the replacement of files by new files that have the same rows, or some of them, perhaps changed.

    Args:
        table: the table, opened at its latest version.
        replaced_files: the files that the commit removes.
        files: the new files.
        operation: name of the commit's operation in the table's history.
        others: further actions of the commit.
        changes_rows: True if rows were changed or left out. False if all rows were only moved.

    Returns:
        True if it was committed. False if another process committed this version first. None if some of the replaced
        files are not part of the table's version.
    """
    if not {file.log_key for file in replaced_files} <= {file.log_key for file in table.data_files}:
        return None
    now = read_current_time_ms()
    actions = [*others, *(build_remove_action(file, now, changes_rows=changes_rows) for file in replaced_files)]
    actions += [build_add_action(file, at, changes_rows=changes_rows) for file, at in files]
    # A DELETE without a predicate would count as a deletion of all rows.
    parameters = {"predicate": '["some rows"]'} if changes_rows else {}
    info = {"operation": operation, "operationParameters": parameters}
    return write_next_version(table, info, actions, [file for file, _ in files])


def commit_corrected_stats(table: WritableTable) -> bool:
    """Commits corrected statistics of files, where some readers cannot decode the present ones. No file is rewritten.

    Returns:
        True if nothing had to be corrected, or the corrections were committed. False if another process committed this
        version first, and the caller must try again.
    """
    found = ((file, repair_unreadable_statistics(file.add.get("stats"), file.row_count)) for file in table.data_files)
    actions = [{"add": file.add | _NO_PARTITION | {"dataChange": False, "stats": new}} for file, new in found if new]
    return not actions or write_next_version(
        table, {"operation": "COMPUTE STATISTICS", "operationParameters": {}}, actions
    )


_NO_PARTITION: Action = {"partitionValues": {}}


def read_current_time_ms() -> int:
    """Returns the present wall-clock time in milliseconds since 1970, the unit of times in Delta's log."""
    return int(time.time() * 1000)


def build_txn_action(app: str, batch: int) -> Action:
    """Returns the `txn` action of Delta's log, by which writers recognise a repeated commit and skip it.

    Args:
        app: application id of the transaction.
        batch: version of the transaction.
    """
    return {"txn": {"appId": app, "version": batch, "lastUpdated": read_current_time_ms()}}


def build_add_action(file: WrittenFile, now: int, *, changes_rows: bool = True) -> Action:
    """Returns the `add` action of Delta's log for a new data file.

    Args:
        file: the new file.
        now: the file's modification time in milliseconds since 1970.
        changes_rows: True if the file has new or changed rows. False if it only has rows moved from other files.
    """
    return {
        "add": build_file_action_fields(file)
        | {"modificationTime": now, "dataChange": changes_rows, "stats": file.stats}
    }


def build_file_action_fields(file: WrittenFile) -> Action:
    """Returns the fields that describe a new file in the actions `add` and `cdc`: path, size and partition values."""
    return {"path": encode_path_for_delta_log(file.path), "size": file.size} | _NO_PARTITION


def build_add_action_with_new_vector(file: TableFile, vector: Action) -> Action:
    """Returns the `add` action that gives a data file of the table a new deletion vector.

    Args:
        file: the file.
        vector: the field `deletionVector`, as `write_deletion_vectors` returns it.
    """
    known = {name: file.add[name] for name in ("path", "size", "modificationTime")} | _NO_PARTITION
    stats = encode_log_json(file.stats | {"tightBounds": False}).decode()
    return {"add": known | {"dataChange": True, "stats": stats, "deletionVector": vector}}


def build_remove_action(file: TableFile, now: int, *, changes_rows: bool = True) -> Action:
    """Returns the `remove` action of Delta's log for a data file.

    Args:
        file: the file.
        now: time of the commit in milliseconds since 1970.
        changes_rows: True if rows are deleted or replaced. False if all rows only move to other files.
    """
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": changes_rows, "extendedFileMetadata": True} | _NO_PARTITION
    return {"remove": known | rest | {"deletionTimestamp": now}}


def write_next_version(
    table: WritableTable, info: Action, actions: Iterable[Action], files: Iterable[WrittenFile] = (), *others: Path
) -> bool:
    """Commits actions as the table's next version.

    Then writes the version's checksum and, if due, a checkpoint of the log.

    New files are synced to disk before the commit is written. The commit is synced before the function returns.

    Args:
        table: the table, opened at the version before the commit.
        info: fields of the commit's `commitInfo`, such as `operation`.
        actions: all other actions of the commit.
        files: new data files that the actions name.
        others: further new files that the actions name, as full paths.

    Returns:
        True if it was committed. False if another process committed this version first, so that nothing is committed.
    """
    own, version, log = uuid.uuid4(), table.table_version + 1, table.folder / "_delta_log"
    said: Action = {
        "commitInfo": {"timestamp": read_current_time_ms(), "engineInfo": "sessionlake", "txnId": str(own), **info}
    }
    content = b"".join(encode_log_json(action) + b"\n" for action in (said, *actions))
    unnamed, entry = log / f".{own}.json", log / f"{version:020}.json"
    sync_files(table.folder, [*(table.folder / file.path for file in files), *others])
    try:
        unnamed.write_bytes(content)
        sync_to_disk(unnamed)
        os.link(unnamed, entry)
    except FileExistsError:
        # NFS repeats a request whose answer was lost. The repeated request finds the file that the first one wrote.
        if entry.read_bytes() != content:
            return False
    finally:
        unnamed.unlink(missing_ok=True)
    sync_to_disk(log)
    write_checksum_and_checkpoint(table.delta, version)
    return True
