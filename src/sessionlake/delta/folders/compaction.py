"""Merges small files of a table into larger ones.

Tables without deletion vectors are merged here without Spark. Only files that are adjacent in arrival order are merged,
because a stream's first read follows this order. OPTIMIZE would move merged rows to the end.

Files are divided into tiers (classes of size): below 1 MiB, 16 MiB and 128 MiB. When a tier has many files, they are
merged into a file that mostly belongs to the next tier. So each byte is rewritten about once per tier, and not each
time that the table grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.folders.commits import delete_uncommitted_files
from sessionlake.delta.folders.file_rows import read_undeleted_rows
from sessionlake.delta.folders.log import TimedFile, commit_corrected_stats, commit_rewritten_files
from sessionlake.delta.folders.parquet import COMPACT_CODEC, combine_small_batches
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.upkeep import build_folder_sql_identifier
from sessionlake.delta.folders.writable import WritableTable, find_spark_only_feature, open_writable_table
from sessionlake.delta.storage.conflicts import list_conflict_errors
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.upkeep import CompactionResult
from sessionlake.spark.interpreted import use_temporary_spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An append takes milliseconds, so more conflicts in a row have another cause.
_ATTEMPTS = 20
ROW_GROUP = 1 << 20
"""Bytes of a row group in files of a table that MERGE changes. A MERGE reads the whole row group of a replaced row."""
_BOUNDS = (1 << 20, 16 << 20, 128 << 20)
# Number of files of each tier from which they are merged. Files of the first tier may have only a few kilobytes each.
_ENOUGH = (50, 16, 16)
# Fewer files are enough if a larger file arrived after them, since then no further small file will be adjacent.
_ENOUGH_CLOSED = 8
LARGEST = 256 << 20
"""Largest number of bytes merged at once. Files of half this size or more stay as they are."""


@dataclass(frozen=True)
class CompactionFile:
    """A data file of a table's latest version.

    Attributes:
        path: path relative to the table's folder.
        size: size in bytes.
        modified: time at which the file was added, in milliseconds since 1970. A stream's first read follows the order
            of these times.
    """

    path: str
    size: int
    modified: int


def compute_optimize_size_limit(sizes: Sequence[int]) -> int | None:
    """Returns the size in bytes below which OPTIMIZE should merge files; None if there are too few small files.

    Args:
        sizes: the sizes of all files of the table, in bytes.
    """
    tiers = [_compute_size_class(size) for size in sizes]
    return next((bound for n, bound in enumerate(_BOUNDS) if tiers.count(n) >= _ENOUGH[n]), None)


def find_small_files_to_compact(files: Sequence[CompactionFile]) -> list[CompactionFile]:
    """Returns files that should be merged into one: neighbours in the order of arrival. Empty if none should be merged.

    The merged file gets the `modified` time of the last returned file, which keeps the order of arrival.

    Args:
        files: all files of the table.
    """
    ordered = sorted(files, key=lambda file: (file.modified, file.path))
    for tier, enough in enumerate(_ENOUGH):
        for run in _group_neighbouring_files(ordered, tier):
            closed = run[-1] is not ordered[-1] and len(run) >= _ENOUGH_CLOSED
            if closed or sum(_compute_size_class(file.size) == tier for file in run) >= enough:
                return _limit_files_to_size_of_one(run)
    return []


def _group_neighbouring_files(files: Sequence[CompactionFile], size_class: int) -> Iterator[list[CompactionFile]]:
    """Yields each longest sequence of neighbouring files that have at most this size class.

    Files with the same `modified` time are treated as one, since their order is unknown.

    Args:
        files: the files in the order of arrival.
        size_class: the highest class of a file in a sequence. Classes are ranges of sizes, numbered from the smallest.
    """
    together = (list(group) for _, group in groupby(files, key=lambda file: file.modified))
    for small, groups in groupby(
        together, key=lambda group: all(_compute_size_class(file.size) <= size_class for file in group)
    ):
        if small:
            yield [file for group in groups for file in group]


def _limit_files_to_size_of_one(run: Sequence[CompactionFile]) -> list[CompactionFile]:
    """Returns the first files of the sequence that are not too large together for one file; at least two files."""
    taken: list[CompactionFile] = []
    for _, group in groupby(run, key=lambda file: file.modified):
        added = [*taken, *group]
        if len(taken) > 1 and sum(file.size for file in added) > LARGEST:
            break
        taken = added
    return taken


def _compute_size_class(size: int) -> int:
    return bisect_right(_BOUNDS, size)


def compact_table_in_folder(spark: SparkSession, folder: Path) -> CompactionResult | None:
    """Merges small files of a table if there are many: for example, 50 files below 1 MiB, or 16 below 16 MiB.

    Returns:
        The number of files before and after. None if there are too few small files, or if another commit conflicts.
    """
    delta = open_table(folder)
    if find_spark_only_feature(delta) is None:
        if not commit_corrected_stats(open_writable_table(delta)):
            return None
        delta.update_incremental()
        if not (table := open_writable_table(delta)).uses_vectors:
            return _compact_next_small_files(table)
    before = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
    bound = compute_optimize_size_limit(before)
    if bound is None:
        return None
    try:
        with use_temporary_spark_conf(spark, _build_optimize_settings(bound)):
            spark.sql(f"OPTIMIZE {build_folder_sql_identifier(folder)}").collect()
    except list_conflict_errors():
        return None
    return CompactionResult(len(before), open_table(folder).get_add_actions().num_rows)


def _build_optimize_settings(bound: int) -> dict[str, str]:
    """Returns Spark settings with which OPTIMIZE merges only files smaller than `bound` bytes.

    By default, OPTIMIZE rewrites a clustered table of less than 100 GB completely after each added file.
    """
    clustering = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize"
    return {
        "spark.databricks.delta.optimize.minFileSize": str(bound),
        "spark.databricks.delta.optimize.maxFileSize": str(LARGEST),
        f"{clustering}.threshold": str(bound),
        f"{clustering}.targetCubeSize": str(LARGEST),
        "parquet.block.size": str(ROW_GROUP),
        "spark.sql.parquet.compression.codec": COMPACT_CODEC,
    }


def _compact_next_small_files(table: WritableTable) -> CompactionResult | None:
    """Merges one sequence of small files that arrived one after the other, in one commit.

    Returns:
        The number of files before and after. None if there is no such sequence, or if another commit removed its files.
    """
    folder, files = table.folder, {file.add["path"]: file for file in table.data_files}
    known = (CompactionFile(path, file.add["size"], file.add["modificationTime"]) for path, file in files.items())
    run = find_small_files_to_compact([*known])
    if not run:
        return None
    former = [files[one.path] for one in run]
    merged = table.create_data_file_writer(COMPACT_CODEC).write_files(
        combine_small_batches(read_undeleted_rows(former, table.schema))
    )
    name = f"{folder.parent.name}.{folder.name}"
    inject_fault_if_requested(f"before:compact:{name}")
    if not replace_files(table, former, [(file, run[-1].modified) for file in merged], "OPTIMIZE", changes_rows=False):
        return None
    inject_fault_if_requested(f"after:compact:{name}")
    return CompactionResult(len(files), len(files) - len(run) + len(merged))


def replace_files(
    table: WritableTable,
    replaced_files: Sequence[TableFile],
    files: Sequence[TimedFile],
    operation: str,
    *,
    changes_rows: bool,
) -> bool:
    """Replaces files of a table by new files in one commit. It does not conflict with appends by other processes.

    Args:
        table: the table.
        replaced_files: the files to remove from the table.
        files: the new files, already written.
        operation: name of the commit's operation in the table's history.
        changes_rows: True if the new files have other rows than the replaced files.

    Returns:
        True if it was committed. False if one of the replaced files is no longer part of the table; the new files are
        then deleted.
    """
    before, done = table.table_version, False
    try:
        for _ in range(_ATTEMPTS):
            found = commit_rewritten_files(table, replaced_files, files, operation, changes_rows=changes_rows)
            if found is not False:
                done = found is True
                break
            table = open_writable_table(open_table(table.folder))
    finally:
        delete_uncommitted_files(table.folder, [] if done else [file.path for file, _ in files], before)
    return done
