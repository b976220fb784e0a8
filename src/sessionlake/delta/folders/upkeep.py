"""Removes files of a table in a folder, and entries of its log, that are no longer needed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.json import decode

from sessionlake.delta.folders.commits import sync_to_disk, write_log_checkpoint
from sessionlake.delta.folders.deletion_vectors import build_deletion_vector_path
from sessionlake.delta.folders.history import read_commit_time
from sessionlake.delta.folders.table_files import Action, list_data_files, open_table
from sessionlake.delta.folders.writable import find_spark_only_feature, may_have_deletion_vectors
from sessionlake.delta.storage.upkeep import HistoryToKeep, VacuumResult
from sessionlake.local.paths import resolve_path_of_delta_log
from sessionlake.protocol.names import quote
from sessionlake.spark.interpreted import use_temporary_spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR = 3600
_WRITING_SECONDS = 3600  # a file's modification time may be this long before its commit
# Temporary names of files that are still being written: by delta-rs, by this package in the log, and by Spark. They
# stay if the process is killed. VACUUM does not list them.
_UNNAMED = re.compile(r".*#\d+|\.[0-9a-f]{8}-[0-9a-f-]{27}\.(json|crc)|\..*\.tmp(\.crc)?")
# Folder in which Spark's tasks write files that are not complete yet.
_OF_TASKS = "_temporary"
# VACUUM runs only if more than this number of versions can be removed from the log.
_WORTHWHILE = 100
# Delta's own check is off, because `HistoryToKeep` decides. Unlike the check, it considers streams that still read.
_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",  # else VACUUM ignores its RETAIN clause
}


def find_missing_files(folder: Path) -> list[str]:
    """Returns the files that the table's latest version needs and that do not exist, also those of deletion vectors.

    They are given as paths relative to the folder, sorted.
    """
    files = list_data_files(open_table(folder), read_vectors=False)
    named = {path for file in files for path in (file.full_path, file.vector_path) if path is not None}
    return sorted(os.path.relpath(path, folder) for path in named if not path.is_file())


def has_many_versions_to_remove(folder: Path, retention: HistoryToKeep) -> bool:
    """True if more than 100 versions can be removed from the table's log, so that a VACUUM is worth its cost."""
    before = _compute_oldest_log_time_to_keep(retention)
    versions = (file for file in _find_log_folder(folder).glob("*.json") if file.stem.isdigit())
    passed = (file for file in versions if retention.first_unread is None or int(file.stem) < retention.first_unread)
    return sum(1 for file in passed if file.stat().st_mtime < before) > _WORTHWHILE


def _compute_oldest_log_time_to_keep(history_to_keep: HistoryToKeep) -> float:
    return (
        time.time()
        - min(history_to_keep.file_span, history_to_keep.log_span or history_to_keep.file_span).total_seconds()
    )


def vacuum_folder(spark: SparkSession, folder: Path, history_to_keep: HistoryToKeep) -> VacuumResult:
    """Removes files that only older versions of a table need, and the log entries of such versions.

    Args:
        spark: the session that runs VACUUM.
        folder: the table's folder.
        history_to_keep: which versions must stay readable.

    Returns:
        The number and size of the removed files, without those of the log.
    """
    moment = time.time() - history_to_keep.file_span.total_seconds()
    needed = None if history_to_keep.first_unread is None else read_commit_time(folder, history_to_keep.first_unread)
    freed = _delete_files_unneeded_since(
        spark, folder, moment if needed is None else min(moment, needed - _WRITING_SECONDS)
    )
    _delete_unneeded_log_files(folder, _compute_oldest_log_time_to_keep(history_to_keep), history_to_keep.first_unread)
    return freed


def _set_mtime_to_removal_time(folder: Path, before: float) -> None:
    """Sets the modification time of removed files to the time of the commit that removed them from the table.

    VACUUM uses a file's modification time if the log does not name the file. This is so for deletion vectors, which
    delta-rs never looks up, and for files that the log no longer lists. Such a file may be much older than the last
    version that needs it, and VACUUM would delete it too early.

    Args:
        folder: the table's folder.
        before: seconds since 1970. Only commits from then on are considered.
    """
    for commit in (file for file in _find_log_folder(folder).glob("*.json") if file.stem.isdigit()):
        moment = commit.stat().st_mtime
        if moment < before:
            continue
        for file in _list_files_removed_by_commit(
            commit, folder
        ):  # a clone's log may also name files of the original table
            if file.is_relative_to(folder) and file.is_file() and file.stat().st_mtime < moment:
                os.utime(file, (moment, moment))


def _list_files_removed_by_commit(commit: Path, folder: Path) -> Iterator[Path]:
    """Yields the full paths of the files that a commit removed from the table: data files and their deletion vectors.

    Args:
        commit: the commit's log file.
        folder: the table's folder.
    """
    for line in commit.read_bytes().split(b"\n"):
        if line.startswith(b'{"remove"'):
            action: Action = decode(line)["remove"]
            yield resolve_path_of_delta_log(folder, action["path"])
            vector = action.get("deletionVector")
            if vector and (file := build_deletion_vector_path(folder, vector)) is not None:
                yield file


def _delete_files_unneeded_since(spark: SparkSession, folder: Path, before: float) -> VacuumResult:
    """Deletes the files that are needed by no version that was committed since `before` (seconds since 1970)."""
    unnamed = _delete_incomplete_files(folder, before)
    _set_mtime_to_removal_time(folder, before)
    hours = -(-max(0, int(time.time() - before)) // _HOUR)
    delta = open_table(folder)
    if may_have_deletion_vectors(delta) or find_spark_only_feature(
        delta
    ):  # delta-rs would delete files of vectors that are still needed
        held = _read_file_sizes(folder)
        with use_temporary_spark_conf(spark, _VACUUM):
            spark.sql(f"VACUUM {build_folder_sql_identifier(folder)} RETAIN {hours} HOURS").collect()
        left = _read_file_sizes(folder)
        freed = VacuumResult(len(held) - len(left), sum(held.values()) - sum(left.values()))
    else:
        # delta-rs also lists files that were removed long ago with one vector, and only recently with another.
        found = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        freed = _delete_files_modified_before((folder / path for path in found), before)
    return VacuumResult(unnamed.files + freed.files, unnamed.freed + freed.freed)


def _delete_incomplete_files(folder: Path, before: float) -> VacuumResult:
    """Deletes incomplete files that killed processes left behind in the table's folder and its log.

    Args:
        folder: the table's folder.
        before: seconds since 1970. Files that were modified later stay, since they may still be written.
    """
    found = list[Path]()
    for parent, _, names in os.walk(folder):  # does not fail if files are deleted meanwhile
        of_task = _OF_TASKS in Path(parent).relative_to(folder).parts
        found += (Path(parent, name) for name in names if of_task or _UNNAMED.fullmatch(name))
    return _delete_files_modified_before(found, before)


def _delete_files_modified_before(found: Iterable[Path], before: float) -> VacuumResult:
    """Deletes those of the files that were last modified before a time (seconds since 1970)."""
    files = size = 0
    for file in found:
        with suppress(FileNotFoundError):  # it was deleted or renamed meanwhile
            status = file.stat()
            if status.st_mtime < before:
                file.unlink()
                files, size = files + 1, size + status.st_size
    return VacuumResult(files, size)


def purge_history(spark: SparkSession, folder: Path, since: int | None) -> VacuumResult:
    """Removes all files and log entries that the table's latest version does not need. This cannot be undone.

    Args:
        spark: the session that runs VACUUM.
        folder: the table's folder.
        since: version from which on log entries stay, because a stream resumes there; None to keep only the latest.
    """
    for version in sorted({open_table(folder).version()} | ({since} if since is not None else set())):
        if read_commit_time(folder, version) is not None:  # a stream may wait for a version that does not exist yet
            write_log_checkpoint(open_table(folder, version=version))
    freed = _delete_files_unneeded_since(spark, folder, time.time() + _HOUR)
    _delete_unneeded_log_files(folder, time.time() + _HOUR, since)
    return freed


def _read_file_sizes(folder: Path) -> dict[str, int]:
    """Returns the sizes in bytes of all files in a table's folder, by full path. Files of the log are left out."""
    log = _find_log_folder(folder)
    return {str(f): f.stat().st_size for f in folder.rglob("*") if f.is_file() and log not in f.parents}


def _delete_unneeded_log_files(folder: Path, before: float, since: int | None = None) -> None:
    """Deletes log files that are needed by no version committed since `before` (Delta's protocol, "Metadata Cleanup").

    Spark lists the log in every batch, and each file costs about 30 us. Delta's own cleanup would delete log files by
    age alone, even if a stream has not read them.

    Args:
        folder: the table's folder.
        before: seconds since 1970.
        since: version that a stream reads next; log files from there on stay. None if no stream waits.
    """
    log = _find_log_folder(folder)
    versions = {int(file.stem): file for file in log.glob("*.json") if file.stem.isdigit()}
    oldest = max((n for n, file in versions.items() if file.stat().st_mtime < before), default=-1)
    oldest = oldest if since is None else min(oldest, since)
    checkpoints = {int(file.name.partition(".")[0]) for file in log.glob("*.checkpoint.parquet")}
    base = max((n for n in checkpoints if n <= oldest), default=0)
    if base:
        sync_to_disk(
            log / f"{base:020}.checkpoint.parquet", log
        )  # Spark or an earlier sessionlake may not have synced it
    for file in log.iterdir():
        version = file.name.removeprefix(".").partition(".")[0]
        if version.isdigit() and int(version) < base:
            file.unlink(missing_ok=True)


def _find_log_folder(folder: Path) -> Path:
    return folder / "_delta_log"


def build_folder_sql_identifier(folder: Path) -> str:
    """Returns the SQL name of the table in a folder, such as: delta.`/path/of/the/folder`."""
    return f"delta.{quote(str(folder))}"
