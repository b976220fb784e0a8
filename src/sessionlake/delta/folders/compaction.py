"""Merges small files of a table.

Append-only tables are merged here without Spark. Only files next to each other in arrival order are merged, so that the
order is kept: a stream's first read uses it, and OPTIMIZE would move merged rows to the end.

Files belong to tiers by their size. When a tier has many files, they are merged into files that mostly belong to the
next tier. So each byte is rewritten about once per tier, and not each time that the table grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.folders.commits import discard_uncommitted
from sessionlake.delta.folders.file_rows import read_files
from sessionlake.delta.folders.log import TimedFile, commit_corrected_stats, commit_replacement
from sessionlake.delta.folders.parquet import COMPACT_CODEC, gather_batches
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.upkeep import identifier
from sessionlake.delta.folders.writable import Writable, open_writable, spark_only_reason
from sessionlake.delta.storage.conflicts import conflict_errors
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.upkeep import Compacted
from sessionlake.spark.interpreted import conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An append takes milliseconds, so this many conflicts in a row have another cause.
_ATTEMPTS = 20
ROW_GROUP = 1 << 20
"""Bytes of a row group of a table that is merged into. Replacing a row reads its whole row group."""
_BOUNDS = (1 << 20, 16 << 20, 128 << 20)
# Number of files of each tier that are merged at once. Those of the first tier may have a few kilobytes each.
_ENOUGH = (50, 16, 16)
# Fewer files are enough if a larger one came after them: no further files will join them, so they are merged once.
_ENOUGH_CLOSED = 8
LARGEST = 256 << 20
"""Largest number of bytes merged at once. Files of half this size or more stay as they are."""


@dataclass(frozen=True)
class LiveFile:
    """A file of a table's latest version.

    Attributes:
        path: relative to the table's folder.
        size: in bytes.
        modified: when it was added, in milliseconds since the epoch. A stream's first read uses this order.
    """

    path: str
    size: int
    modified: int


def size_to_merge_below(sizes: Sequence[int]) -> int | None:
    """Returns the size below which files should be merged; None if no tier has enough files."""
    tiers = [_tier(size) for size in sizes]
    return next((bound for n, bound in enumerate(_BOUNDS) if tiers.count(n) >= _ENOUGH[n]), None)


def find_mergeable_run(files: Sequence[LiveFile]) -> list[LiveFile]:
    """Returns files that should be merged into one and are adjacent in arrival order; empty if there are none.

    The merged file gets the time of the last of them, which keeps the order.
    """
    ordered = sorted(files, key=lambda file: (file.modified, file.path))
    for tier, enough in enumerate(_ENOUGH):
        for run in _runs(ordered, tier):
            closed = run[-1] is not ordered[-1] and len(run) >= _ENOUGH_CLOSED
            if closed or sum(_tier(file.size) == tier for file in run) >= enough:
                return _cut(run)
    return []


def _runs(files: Sequence[LiveFile], tier: int) -> Iterator[list[LiveFile]]:
    """Yields the longest runs of files of this tier or smaller ones. Files with the same time stay together."""
    together = (list(group) for _, group in groupby(files, key=lambda file: file.modified))
    for small, groups in groupby(together, key=lambda group: all(_tier(file.size) <= tier for file in group)):
        if small:
            yield [file for group in groups for file in group]


def _cut(run: Sequence[LiveFile]) -> list[LiveFile]:
    """Returns as many files from the start of the run as fit into one file."""
    taken: list[LiveFile] = []
    for _, group in groupby(run, key=lambda file: file.modified):
        added = [*taken, *group]
        if len(taken) > 1 and sum(file.size for file in added) > LARGEST:
            break
        taken = added
    return taken


def _tier(size: int) -> int:
    return bisect_right(_BOUNDS, size)


def compact(spark: SparkSession, folder: Path) -> Compacted | None:
    """Merges small files if there are many; None if there are few, or if other commits removed them."""
    delta = open_table(folder)
    if spark_only_reason(delta) is None:
        if not commit_corrected_stats(open_writable(delta)):
            return None
        delta.update_incremental()
        if not (table := open_writable(delta)).uses_vectors:
            return _merge_run(table)
    before = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
    bound = size_to_merge_below(before)
    if bound is None:
        return None
    try:
        with conf(spark, _optimizing(bound)):
            spark.sql(f"OPTIMIZE {identifier(folder)}").collect()
    except conflict_errors():
        return None
    return Compacted(len(before), open_table(folder).get_add_actions().num_rows)


def _optimizing(bound: int) -> dict[str, str]:
    """Returns settings with which OPTIMIZE merges only files below this size, and no clustered ones.

    By default it rewrites a table of less than 100 GB whenever a file was added.
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


def _merge_run(table: Writable) -> Compacted | None:
    """Merges adjacent small files into one."""
    folder, files = table.folder, {file.add["path"]: file for file in table.files}
    known = (LiveFile(path, file.add["size"], file.add["modificationTime"]) for path, file in files.items())
    run = find_mergeable_run([*known])
    if not run:
        return None
    former = [files[one.path] for one in run]
    merged = table.writer(COMPACT_CODEC).files(gather_batches(read_files(former, table.schema)))
    name = f"{folder.parent.name}.{folder.name}"
    fault_point(f"before:compact:{name}")
    if not replace_files(table, former, [(file, run[-1].modified) for file in merged], "OPTIMIZE", changes=False):
        return None
    fault_point(f"after:compact:{name}")
    return Compacted(len(files), len(files) - len(run) + len(merged))


def replace_files(
    table: Writable, former: Sequence[TableFile], files: Sequence[TimedFile], operation: str, *, changes: bool
) -> bool:
    """Commits files in place of others, even if rows are appended at the same time.

    Returns:
        False if one of the replaced files is no longer part of the table. The new files are removed then.
    """
    before, done = table.version, False
    try:
        for _ in range(_ATTEMPTS):
            found = commit_replacement(table, former, files, operation, changes=changes)
            if found is not False:
                done = found is True
                break
            table = open_writable(open_table(table.folder))
    finally:
        discard_uncommitted(table.folder, [] if done else [file.path for file, _ in files], before)
    return done
