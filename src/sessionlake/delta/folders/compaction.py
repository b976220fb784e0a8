"""Merges small files, which keeps a table's folder small.

Tables that rows are only appended to are merged here, without Spark: files with their neighbours in the order in which
they came, which is kept. OPTIMIZE would put what it has merged at the end, and a stream's first read of a table goes in
that order.

Files are of tiers by their size, and a tier is merged when it has many of them, into files that are mostly of the next.
So a byte is written once more a tier, and not each time that a table grows: see the test of what that comes to.
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

# An append takes milliseconds: whoever loses so often meets something else.
_ATTEMPTS = 20
ROW_GROUP = 1 << 20
"""Bytes of a row group of a table that is merged into: whoever replaces a row reads the group that it is in."""
_BOUNDS = (1 << 20, 16 << 20, 128 << 20)
# How many files of a tier are merged at once; those of the first may be a few kilobytes each.
_ENOUGH = (50, 16, 16)
# Of files that a larger one has come after, fewer: no more will join them, so that they are merged once.
_ENOUGH_CLOSED = 8
LARGEST = 256 << 20
"""Bytes that are merged at once; files from half of it on are left as they are."""


@dataclass(frozen=True)
class LiveFile:
    """A file of a table's present version.

    Attributes:
        path: within the table's folder.
        size: in bytes.
        modified: when it came to the table, in ms since the epoch: a stream's first read goes in this order.
    """

    path: str
    size: int
    modified: int


def size_to_merge_below(sizes: Sequence[int]) -> int | None:
    """The size below which files should be merged, if there are enough of them of one tier."""
    tiers = [_tier(size) for size in sizes]
    return next((bound for n, bound in enumerate(_BOUNDS) if tiers.count(n) >= _ENOUGH[n]), None)


def find_mergeable_run(files: Sequence[LiveFile]) -> list[LiveFile]:
    """Files that should be merged into one, and stand next to each other in the order in which they came.

    A file that takes their place, as modified when the last of them was, then leaves that order as it is.
    """
    ordered = sorted(files, key=lambda file: (file.modified, file.path))
    for tier, enough in enumerate(_ENOUGH):
        for run in _runs(ordered, tier):
            closed = run[-1] is not ordered[-1] and len(run) >= _ENOUGH_CLOSED
            if closed or sum(_tier(file.size) == tier for file in run) >= enough:
                return _cut(run)
    return []


def _runs(files: Sequence[LiveFile], tier: int) -> Iterator[list[LiveFile]]:
    """The longest runs of files that are of the tier or of smaller ones; what came at once is not parted."""
    together = (list(group) for _, group in groupby(files, key=lambda file: file.modified))
    for small, groups in groupby(together, key=lambda group: all(_tier(file.size) <= tier for file in group)):
        if small:
            yield [file for group in groups for file in group]


def _cut(run: Sequence[LiveFile]) -> list[LiveFile]:
    """As much of it, from its beginning, as fits into one file."""
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
    """Merges small files, if there are many; None if not, or if they are gone meanwhile."""
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
    """What makes OPTIMIZE merge the files below this size, and leave alone those that are clustered already.

    By its defaults it writes a table of less than 100 GB anew whenever a file has come.
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
    """Makes one file of small ones that are next to each other."""
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
    """Commits files in the place of others, whatever is appended meanwhile: see `commit_replacement`.

    Returns:
        False if any of these is no part of the table any more; the new ones are gone then, too.
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
