"""Work before and after a commit: syncing files to disk before it, and checksum and checkpoint after it.

A power cut never leaves a version without its files. If work after a commit fails, the commit stays valid, and the next
commit makes up for it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.folders.table_files import folder_of, open_table
from sessionlake.delta.folders.version_checksums import write_checksum
from sessionlake.delta.schemas.properties import CHECKPOINT_INTERVAL, CHECKPOINTS
from sessionlake.local.paths import log_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG = logging.getLogger(__name__)


def sync(*paths: Path) -> None:
    """Waits until the contents of files, and the names in folders, are on the disk.

    Raises:
        OSError: the disk failed.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_files(folder: Path, files: Iterable[Path]) -> None:
    """Waits until new files and their names are on the disk. Syncs each file and each folder once.

    Args:
        folder: the table's, which contains the files directly or in subfolders.
    """
    new = [*files]
    if new:
        sync(*new, *sorted({file.parent for file in new} | {folder}))


def sync_created(folder: Path) -> None:
    """Waits until a new table is on the disk: its first version, and the folders of table, schema and warehouse.

    Args:
        folder: the table's.
    """
    sync_files(folder, [folder / "_delta_log" / f"{0:020}.json"])
    sync(folder.parent, folder.parent.parent)


def finish_commit(delta: DeltaTable, version: int) -> None:
    """Writes the checksum of a committed version, and the log's checkpoint if one is due.

    Args:
        delta: the table, at this version or shortly before.
        version: the latest commit's.
    """
    folder = folder_of(delta)
    write_checksum(folder, version)
    interval = int(delta.metadata().configuration.get(CHECKPOINTS) or CHECKPOINT_INTERVAL)
    if version - _last_checkpoint(folder) < interval:
        return
    try:
        write_checkpoint(open_table(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, the commit is there
        _LOG.warning("%s: its log could not be put together, which is tried again: %s", folder, error)


def write_checkpoint(delta: DeltaTable) -> None:
    """Writes the log's checkpoint for the table's version, and waits until it is on the disk."""
    delta.create_checkpoint()
    log = folder_of(delta) / "_delta_log"
    written = (log / f"{delta.version():020}.checkpoint.parquet", log / "_last_checkpoint")
    sync(*filter(Path.is_file, written), log)


def _last_checkpoint(folder: Path) -> int:
    """Returns the version of the last checkpoint; -1 if there is none, or it cannot be read."""
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def discard_uncommitted(folder: Path, paths: Iterable[str], after: int | None) -> None:
    """Removes files that no version of the table names. A commit that seemed to fail may have named them.

    If the log cannot be read, they stay until VACUUM removes them.

    Args:
        paths: relative to the folder.
        after: the table's version before the commit was tried; None if it was not tried.
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
        if not any(log_path(path) in commit for commit in commits):
            (folder / path).unlink(missing_ok=True)
