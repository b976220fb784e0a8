"""Work before and after a commit to a table in a folder.

Before the commit, its new files are synced to disk, so that a power cut never leaves a version without its files. After
the commit, a checksum and sometimes a checkpoint of the log are written. If that fails, the commit stays valid, and the
next commit writes them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.folders.table_files import find_table_folder, open_table
from sessionlake.delta.folders.version_checksums import write_version_checksum_file
from sessionlake.delta.schemas.properties import CHECKPOINT_INTERVAL, CHECKPOINTS
from sessionlake.local.paths import encode_path_for_delta_log

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG = logging.getLogger(__name__)


def sync_to_disk(*paths: Path) -> None:
    """Waits until files and folders are on the disk: the contents of files, and the names in folders.

    Raises:
        OSError: a path does not exist, or the disk failed.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_files(folder: Path, files: Iterable[Path]) -> None:
    """Waits until new files of a table are on the disk, and also their names in their folders.

    Args:
        folder: the table's folder, which contains the files directly or in subfolders.
        files: full paths of the new files.
    """
    new = [*files]
    if new:
        sync_to_disk(*new, *sorted({file.parent for file in new} | {folder}))


def sync_created_folder(folder: Path) -> None:
    """Waits until a new table is on the disk: its version 0, and the folders of table, schema and warehouse.

    Args:
        folder: the table's folder.
    """
    sync_files(folder, [folder / "_delta_log" / f"{0:020}.json"])
    sync_to_disk(folder.parent, folder.parent.parent)


def write_checksum_and_checkpoint(delta: DeltaTable, version: int) -> None:
    """Writes the checksum file of a version that was just committed, and a checkpoint of the log if one is due.

    Args:
        delta: the table, opened at this version or a slightly older one.
        version: the version that was just committed.
    """
    folder = find_table_folder(delta)
    write_version_checksum_file(folder, version)
    interval = int(delta.metadata().configuration.get(CHECKPOINTS) or CHECKPOINT_INTERVAL)
    if version - _read_last_checkpoint_version(folder) < interval:
        return
    try:
        write_log_checkpoint(open_table(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, the commit is there
        _LOG.warning("%s: its log could not be put together, which is tried again: %s", folder, error)


def write_log_checkpoint(delta: DeltaTable) -> None:
    """Writes a checkpoint of the log at the opened version of the table, and waits until it is on the disk."""
    delta.create_checkpoint()
    log = find_table_folder(delta) / "_delta_log"
    written = (log / f"{delta.version():020}.checkpoint.parquet", log / "_last_checkpoint")
    sync_to_disk(*filter(Path.is_file, written), log)


def _read_last_checkpoint_version(folder: Path) -> int:
    """Returns the table version of the log's last checkpoint; -1 if there is none, or its number cannot be read."""
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def delete_uncommitted_files(folder: Path, paths: Iterable[str], after: int | None) -> None:
    """Deletes the new files of a failed commit, unless the table's log names them: the commit may have succeeded.

    If the log cannot be read, all files stay until VACUUM removes them.

    Args:
        folder: the table's folder.
        paths: paths of the new files, relative to the folder.
        after: the table's version before the commit was tried; None if no commit was tried.
    """
    from deltalake.exceptions import DeltaError

    left, commits = list(paths), list[str]()
    if left and after is not None:
        try:
            behind = range(after + 1, open_table(folder).version() + 1)
            commits = [(folder / "_delta_log" / f"{n:020}.json").read_text(encoding="utf-8") for n in behind]
        except (OSError, DeltaError) as error:
            _LOG.warning("%s: files stay that may be part of it, for its log cannot be read: %s", folder, error)
            return
    for path in left:
        if not any(encode_path_for_delta_log(path) in commit for commit in commits):
            (folder / path).unlink(missing_ok=True)
