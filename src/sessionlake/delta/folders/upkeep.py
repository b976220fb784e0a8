"""Removes files of a table and entries of its log that nobody needs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.json import decode

from sessionlake.delta.folders.commits import sync, write_checkpoint
from sessionlake.delta.folders.deletion_vectors import vector_file
from sessionlake.delta.folders.history import committed_at
from sessionlake.delta.folders.table_files import Action, live_files, open_table
from sessionlake.delta.folders.writable import has_vectors, spark_only_reason
from sessionlake.delta.storage.upkeep import HistoryToKeep, Vacuumed
from sessionlake.local.paths import file_of
from sessionlake.protocol.names import quote
from sessionlake.spark.interpreted import conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR = 3600
_WRITING_SECONDS = 3600  # a file is written before its commit, and has its time from then
# What files are called before they have their names, of delta-rs', of those written here to the log, and of Spark's.
# If the process is killed they stay so, and no listing of the table shows them.
_UNNAMED = re.compile(r".*#\d+|\.[0-9a-f]{8}-[0-9a-f-]{27}\.(json|crc)|\..*\.tmp(\.crc)?")
# Under this folder Spark's tasks write what is not whole yet.
_OF_TASKS = "_temporary"
# Removing is put off until it takes so many versions from the log.
_WORTHWHILE = 100
# What is to be kept is known better than by the check, which knows of no stream that has yet to read.
_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",  # it would go by the table's property alone
}


def lost_files(folder: Path) -> list[str]:
    """Returns missing files of the latest version, relative to the folder, also those of deletion vectors."""
    files = live_files(open_table(folder), read_vectors=False)
    named = {path for file in files for path in (file.path, file.vector) if path is not None}
    return sorted(os.path.relpath(path, folder) for path in named if not path.is_file())


def has_expired(folder: Path, kept: HistoryToKeep) -> bool:
    """True if enough of a table's log can be removed."""
    before = _log_kept_since(kept)
    versions = (file for file in _log(folder).glob("*.json") if file.stem.isdigit())
    passed = (file for file in versions if kept.first_unread is None or int(file.stem) < kept.first_unread)
    return sum(1 for file in passed if file.stat().st_mtime < before) > _WORTHWHILE


def _log_kept_since(kept: HistoryToKeep) -> float:
    return time.time() - min(kept.file_span, kept.log_span or kept.file_span).total_seconds()


def vacuum(spark: SparkSession, folder: Path, kept: HistoryToKeep) -> Vacuumed:
    """Removes files and log entries that are older than the retention."""
    moment = time.time() - kept.file_span.total_seconds()
    needed = None if kept.first_unread is None else committed_at(folder, kept.first_unread)
    freed = _vacuum_files(spark, folder, moment if needed is None else min(moment, needed - _WRITING_SECONDS))
    _remove_log(folder, _log_kept_since(kept), kept.first_unread)
    return freed


def _date_removed(folder: Path, before: float) -> None:
    """Sets the modification time of files removed since a moment to the time of their removal.

    VACUUM uses a file's modification time where the log does not name the file. This concerns deletion vectors, which
    delta-rs never looks up, and files that a log has forgotten after the table's `RETENTION`. Such a file may be much
    older than the last version that needs it.
    """
    for commit in (file for file in _log(folder).glob("*.json") if file.stem.isdigit()):
        moment = commit.stat().st_mtime
        if moment < before:
            continue
        for file in _removed_by(commit, folder):  # a clone's log also names files of the table that it was made of
            if file.is_relative_to(folder) and file.is_file() and file.stat().st_mtime < moment:
                os.utime(file, (moment, moment))


def _removed_by(commit: Path, folder: Path) -> Iterator[Path]:
    """Yields the files that a commit has removed: data files and their deletion vectors."""
    for line in commit.read_bytes().split(b"\n"):
        if line.startswith(b'{"remove"'):
            action: Action = decode(line)["remove"]
            yield file_of(folder, action["path"])
            vector = action.get("deletionVector")
            if vector and (file := vector_file(folder, vector)) is not None:
                yield file


def _vacuum_files(spark: SparkSession, folder: Path, before: float) -> Vacuumed:
    """Removes files that no version since a moment (seconds since the epoch) needs."""
    unnamed = _remove_unnamed(folder, before)
    _date_removed(folder, before)
    hours = -(-max(0, int(time.time() - before)) // _HOUR)
    delta = open_table(folder)
    if has_vectors(delta) or spark_only_reason(delta):  # delta-rs would take vectors for files that no version names
        held = _held(folder)
        with conf(spark, _VACUUM):
            spark.sql(f"VACUUM {identifier(folder)} RETAIN {hours} HOURS").collect()
        left = _held(folder)
        freed = Vacuumed(len(held) - len(left), sum(held.values()) - sum(left.values()))
    else:
        # It also names a file that was removed long ago with one vector, and lately with another.
        found = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        freed = _remove_older((folder / path for path in found), before)
    return Vacuumed(unnamed.files + freed.files, unnamed.freed + freed.freed)


def _remove_unnamed(folder: Path, before: float) -> Vacuumed:
    """Removes files that killed processes had begun to write, also in the log."""
    found = list[Path]()
    for parent, _, names in os.walk(folder):  # which skips files removed meanwhile
        of_task = _OF_TASKS in Path(parent).relative_to(folder).parts
        found += (Path(parent, name) for name in names if of_task or _UNNAMED.fullmatch(name))
    return _remove_older(found, before)


def _remove_older(found: Iterable[Path], before: float) -> Vacuumed:
    """Removes those files whose modification time is before a moment (seconds since the epoch)."""
    files = size = 0
    for file in found:
        with suppress(FileNotFoundError):  # it is gone, or has its name, meanwhile
            status = file.stat()
            if status.st_mtime < before:
                file.unlink()
                files, size = files + 1, size + status.st_size
    return Vacuumed(files, size)


def purge(spark: SparkSession, folder: Path, since: int | None) -> Vacuumed:
    """Removes everything that the latest version does not need, except log entries from version `since` on."""
    for version in sorted({open_table(folder).version()} | ({since} if since is not None else set())):
        if committed_at(folder, version) is not None:  # a stream may wait for one that is yet to come
            write_checkpoint(open_table(folder, version=version))
    freed = _vacuum_files(spark, folder, time.time() + _HOUR)
    _remove_log(folder, time.time() + _HOUR, since)
    return freed


def _held(folder: Path) -> dict[str, int]:
    """Returns all files in the folder except the log's, and their sizes."""
    log = _log(folder)
    return {str(f): f.stat().st_size for f in folder.rglob("*") if f.is_file() and log not in f.parents}


def _remove_log(folder: Path, before: float, since: int | None = None) -> None:
    """Removes log files that no version since a moment needs (Delta's protocol: metadata cleanup).

    Spark lists the log with every batch, and each file costs it some 30 us. Delta's own cleanup would remove entries by
    age alone, even if a stream has not read them.
    """
    log = _log(folder)
    versions = {int(file.stem): file for file in log.glob("*.json") if file.stem.isdigit()}
    oldest = max((n for n, file in versions.items() if file.stat().st_mtime < before), default=-1)
    oldest = oldest if since is None else min(oldest, since)
    checkpoints = {int(file.name.partition(".")[0]) for file in log.glob("*.checkpoint.parquet")}
    base = max((n for n in checkpoints if n <= oldest), default=0)
    if base:
        sync(log / f"{base:020}.checkpoint.parquet", log)  # of earlier versions, or Spark's
    for file in log.iterdir():
        version = file.name.removeprefix(".").partition(".")[0]
        if version.isdigit() and int(version) < base:
            file.unlink(missing_ok=True)


def _log(folder: Path) -> Path:
    return folder / "_delta_log"


def identifier(folder: Path) -> str:
    """Returns the name in SQL of the table in a folder."""
    return f"delta.{quote(str(folder))}"
