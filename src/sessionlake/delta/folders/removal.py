"""Rows removed from a table that is a folder, or blanked: each file that has some is written anew, in one commit.

Like merging, it needs no Spark. What is left of a file has that file's place in the order in which rows came.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.commits import discard_uncommitted, write_checkpoint
from sessionlake.delta.folders.compaction import replace_files
from sessionlake.delta.folders.file_rows import read_files
from sessionlake.delta.folders.log import TimedFile, commit_replacement, metadata_actions
from sessionlake.delta.folders.parquet import COMPACT_CODEC, gather_batches
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.writable import VECTORS, Writable, features_of, open_writable, used_features
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.errors import LakeError

_ATTEMPTS = 20


def count(folder: Path, chosen: RowSelection) -> int:
    """How many rows are chosen."""
    table = open_writable(open_table(folder))
    return sum(_count(file, chosen, table.schema) for file in _concerned(table, chosen))


def remove(folder: Path, chosen: RowSelection) -> None:
    """Removes them; nobody else may merge or remove files of the table meanwhile.

    Raises:
        LakeError: somebody has.
    """
    rewrite(folder, chosen, lambda batch: batch.filter(pc.invert(chosen.mask(batch))))


def rewrite(folder: Path, chosen: RowSelection, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Writes the files anew that have chosen rows, each batch as the function returns it, as `remove` does."""
    table = open_writable(open_table(folder))
    writer = table.writer(COMPACT_CODEC)
    gone = [file for file in _concerned(table, chosen) if _count(file, chosen, table.schema)]
    left: list[TimedFile] = []
    try:
        for file in gone:
            parts = writer.files(gather_batches(map(change, read_files([file], table.schema))))
            left += [(part, file.add["modificationTime"]) for part in parts]
    except BaseException:
        discard_uncommitted(folder, [written.path for written, _ in left], None)
        raise
    if gone and not replace_files(table, gone, left, "DELETE", changes=True):
        raise LakeError(f"{folder}: other commits have replaced files while rows were removed; repeat the command")


def purge_vectors(folder: Path) -> int:
    """Writes the files anew in which rows are marked, and has the table ask no more of its readers than it needs.

    Readers that know no vectors open it from then on. Streams and feeds pass over the commit, which changes no row.

    Returns:
        How many files had such rows.

    Raises:
        LakeError: other commits were in the way, again and again.
    """
    for _ in range(_ATTEMPTS):
        table = open_writable(open_table(folder))
        marked = [file for file in table.files if len(file.deleted_rows)]
        if _without_vectors(table, marked):
            return len(marked)
    raise LakeError(f"{folder}: other commits were in the way {_ATTEMPTS} times; repeat the command")


def _without_vectors(table: Writable, marked: list[TableFile]) -> bool:
    features = used_features(table.delta) - {VECTORS}
    if not marked and features == features_of(table.delta):
        return True
    done, placed = False, list[TimedFile]()
    try:
        for file in marked:
            parts = table.writer(COMPACT_CODEC).files(gather_batches(read_files([file], table.schema)))
            placed += [(part, file.add["modificationTime"]) for part in parts]
        actions = metadata_actions(table.delta, features, {DELETION_VECTORS: "false"})
        done = bool(commit_replacement(table, marked, placed, "REORG", actions, changes=False))
    finally:
        discard_uncommitted(table.folder, [] if done else [part.path for part, _ in placed], table.version)
    if done:
        write_checkpoint(open_table(table.folder))  # at which readers begin that would not know the log before it
    return done


def _count(file: TableFile, chosen: RowSelection, schema: pa.Schema) -> int:
    read = pa.schema([schema.field(name) for name in chosen.columns])
    return sum(pc.sum(chosen.mask(batch)).as_py() or 0 for batch in read_files([file], read))


def _concerned(table: Writable, chosen: RowSelection) -> list[TableFile]:
    """The files whose least values leave it open whether they have such rows."""
    ends = {name: (None, value) for name, value in chosen.upper_bounds.items()}
    return [file for file in table.files if file.may_have(ends)]
