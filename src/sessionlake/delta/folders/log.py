"""Commits to a table that is a folder: its actions, and how they become a version. See Delta's protocol, "Actions".

delta-rs writes no deletion vectors, and cannot say of rows that take the place of others that they are the same. Spark
can do both, and takes a second.
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
"""What a property needs that is switched on."""
TimedFile = tuple[WrittenFile, int]
"""A file, and the time (ms) that a stream's first read of the table orders it by."""


def set_property(delta: DeltaTable, key: str, value: str) -> bool:
    """Gives the table a property; False if that is left to Spark, as for tables that only Spark can write."""
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
    """Protocol, if it changes, and metadata with these features and properties.

    delta-rs would list features besides that the table does not use, which all who read it then had to know.
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
    """Commits files in the table's folder; False if another commit has come behind the table's version.

    Args:
        txn: see `txn_action`.
    """
    return write_commit(table, _written("Append", files), [txn, *(add_action(file, now_ms()) for file in files)], files)


def commit_overwrite(
    table: Writable, former: Sequence[TableFile], files: Sequence[WrittenFile], txn: Action | None, metadata: str = ""
) -> bool:
    """Commits files in the place of others; False if another commit has come behind the table's version.

    Args:
        former: the others, as the version has them.
        files: in the table's folder.
        txn: see `txn_action`.
        metadata: kept with the commit, as Spark's `userMetadata`.
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
    """Commits files in the place of others, with rows of theirs.

    Args:
        former: the others.
        operation: what the commit is called.
        others: further actions.
        changes: whether not all rows of theirs are there.

    Returns:
        False if another commit has come behind the table's version; None if some of the others are no part of it.
    """
    if not {file.key for file in former} <= {file.key for file in table.files}:
        return None
    now = now_ms()
    actions = [*others, *(remove_action(file, now, changes=changes) for file in former)]
    actions += [add_action(file, at, changes=changes) for file, at in files]
    # A DELETE that names no condition is taken for one of all rows.
    parameters = {"predicate": '["some rows"]'} if changes else {}
    info = {"operation": operation, "operationParameters": parameters}
    return write_commit(table, info, actions, [file for file, _ in files])


def commit_corrected_stats(table: Writable) -> bool:
    """Gives entries of files correct statistics that earlier versions wrote wrong: no file is touched.

    Returns:
        False if another commit has come in between, so that it is to be done again.
    """
    found = ((file, corrected_stats(file.add.get("stats"), file.row_count)) for file in table.files)
    actions = [{"add": file.add | _NO_PARTITION | {"dataChange": False, "stats": new}} for file, new in found if new]
    return not actions or write_commit(table, {"operation": "COMPUTE STATISTICS", "operationParameters": {}}, actions)


_NO_PARTITION: Action = {"partitionValues": {}}


def now_ms() -> int:
    """The present, as actions have it."""
    return int(time.time() * 1000)


def txn_action(app: str, batch: int) -> Action:
    """The application's commit of this number: it is not made twice."""
    return {"txn": {"appId": app, "version": batch, "lastUpdated": now_ms()}}


def add_action(file: WrittenFile, now: int, *, changes: bool = True) -> Action:
    """A file that is part of the table from now on (ms)."""
    return {"add": file_fields(file) | {"modificationTime": now, "dataChange": changes, "stats": file.stats}}


def file_fields(file: WrittenFile) -> Action:
    """A file, as actions name it."""
    return {"path": log_path(file.path), "size": file.size} | _NO_PARTITION


def marked_add_action(file: TableFile, vector: Action) -> Action:
    """A file of whose rows a vector says which are gone from now on."""
    known = {name: file.add[name] for name in ("path", "size", "modificationTime")} | _NO_PARTITION
    stats = encode(file.stats | {"tightBounds": False}).decode()
    return {"add": known | {"dataChange": True, "stats": stats, "deletionVector": vector}}


def remove_action(file: TableFile, now: int, *, changes: bool = True) -> Action:
    """A file that is no part of the table from now on (ms)."""
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": changes, "extendedFileMetadata": True} | _NO_PARTITION
    return {"remove": known | rest | {"deletionTimestamp": now}}


def write_commit(
    table: Writable, info: Action, actions: Iterable[Action], files: Iterable[WrittenFile] = (), *others: Path
) -> bool:
    """Writes the commit behind the table's version, and then what `finish_commit` does.

    What it names is on the disk before it, and it before this returns: see `durable`.

    Args:
        info: what the commit says of itself: its operation.
        files: new ones, which it names.
        others: further ones.

    Returns:
        False, and nothing is written, if somebody else has written a commit of this number.
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
        # On NFS, whoever asks again because an answer was lost is told so of his own.
        if entry.read_bytes() != content:
            return False
    finally:
        unnamed.unlink(missing_ok=True)
    sync(log)
    finish_commit(table.delta, version)
    return True
