"""What stands around a commit: its files on the disk before it, and behind it what spares readers work.

A power cut leaves no version without its contents. What fails behind a commit neither undoes it nor passes for it: it
is done behind the next one.
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
    """Returns when the content of files, and the names in folders, are on the disk.

    Raises:
        OSError: the disk did not take them.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_files(folder: Path, files: Iterable[Path]) -> None:
    """Returns when new files are on the disk with their names: each file and each folder once.

    Args:
        folder: a table's, in which the files are, or in folders of it.
    """
    new = [*files]
    if new:
        sync(*new, *sorted({file.parent for file in new} | {folder}))


def sync_created(folder: Path) -> None:
    """Returns when a new table is on the disk: its first version, and the folders down to it, of schema and warehouse.

    Args:
        folder: the table's.
    """
    sync_files(folder, [folder / "_delta_log" / f"{0:020}.json"])
    sync(folder.parent, folder.parent.parent)


def finish_commit(delta: DeltaTable, version: int) -> None:
    """Notes what spares readers work behind a commit: its checksum, and the log put together, if that is due.

    Args:
        delta: the table, at this version or a little before.
        version: of the latest commit.
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
    """Writes the checkpoint of the table's version, and returns when it is on the disk."""
    delta.create_checkpoint()
    log = folder_of(delta) / "_delta_log"
    written = (log / f"{delta.version():020}.checkpoint.parquet", log / "_last_checkpoint")
    sync(*filter(Path.is_file, written), log)


def _last_checkpoint(folder: Path) -> int:
    """The version that Delta's readers begin at; -1 if there is none, or none that can be told."""
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def discard_uncommitted(folder: Path, paths: Iterable[str], after: int | None) -> None:
    """Removes files that no version of the table names: a commit that has failed may be there all the same.

    Where that cannot be told, they stay until VACUUM takes what no version names.

    Args:
        paths: within the folder.
        after: the version that the table had before their commit was tried; None if it was not.
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
