"""What is on the disk before the log names it, so that a power cut leaves no version without its contents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


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
