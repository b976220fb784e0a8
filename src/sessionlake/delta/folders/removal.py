"""Removes or erases rows of a table in a folder, without Spark.

Each file that has such rows is rewritten, all in one commit. A rewritten file keeps its modification time, and so its
place in the arrival order, which a stream's first read follows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.commits import delete_uncommitted_files, write_log_checkpoint
from sessionlake.delta.folders.compaction import replace_files
from sessionlake.delta.folders.file_rows import read_undeleted_rows
from sessionlake.delta.folders.log import TimedFile, build_metadata_actions, commit_rewritten_files
from sessionlake.delta.folders.parquet import COMPACT_CODEC, combine_small_batches
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.writable import (
    VECTORS,
    WritableTable,
    list_protocol_features,
    list_used_features,
    open_writable_table,
)
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.errors import LakeError

_ATTEMPTS = 20


def count_rows(folder: Path, selection: RowSelection) -> int:
    """Returns how many rows of the table the selection contains. Reads only the columns that the selection needs."""
    table = open_writable_table(open_table(folder))
    return sum(_count_selected_rows(file, selection, table.schema) for file in _find_files_to_scan(table, selection))


def remove_rows(folder: Path, selection: RowSelection) -> None:
    """Removes the selected rows of a table in one commit.

    Other processes may append meanwhile, but not merge or remove files.

    Raises:
        LakeError: another process has merged or removed affected files meanwhile. Nothing is committed then.
    """
    rewrite_selected_rows(folder, selection, lambda batch: batch.filter(pc.invert(selection.mask_selected_rows(batch))))


def rewrite_selected_rows(
    folder: Path, selection: RowSelection, change: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    """Rewrites the files that have selected rows, in one commit.

    Args:
        folder: the table's folder.
        selection: selects rows; it decides which files are rewritten.
        change: function that returns the new content of a record batch. It gets all rows of these files, also rows that
            are not selected.

    Raises:
        LakeError: another process has merged or removed affected files meanwhile. Nothing is committed then.
    """
    table = open_writable_table(open_table(folder))
    writer = table.create_data_file_writer(COMPACT_CODEC)
    gone = [
        file for file in _find_files_to_scan(table, selection) if _count_selected_rows(file, selection, table.schema)
    ]
    left: list[TimedFile] = []
    try:
        for file in gone:
            parts = writer.write_files(combine_small_batches(map(change, read_undeleted_rows([file], table.schema))))
            left += [(part, file.add["modificationTime"]) for part in parts]
    except BaseException:
        delete_uncommitted_files(folder, [written.path for written, _ in left], None)
        raise
    if gone and not replace_files(table, gone, left, "DELETE", changes_rows=True):
        raise LakeError(
            f"{folder}: another process replaced files of the table while rows were being removed from them",
            why="Nothing was removed from this table",
            fix="Run the command again",
        )


def purge_deletion_vectors(folder: Path) -> int:
    """Rewrites files that have deletion vectors, and removes the feature `deletionVectors` from the table.

    Readers without support for deletion vectors can then open the table. The commit changes no row, so streams and
    change feeds skip it.

    Returns:
        The number of files that had deletion vectors.

    Raises:
        LakeError: other commits conflicted in all of 20 attempts.
    """
    for _ in range(_ATTEMPTS):
        table = open_writable_table(open_table(folder))
        marked = [file for file in table.data_files if len(file.deleted_rows)]
        if _rewrite_files_with_vectors(table, marked):
            return len(marked)
    raise LakeError(
        f"{folder}: rows could not be removed, because other processes wrote to the table during "
        f"each of {_ATTEMPTS} attempts",
        why="Nothing was removed from this table",
        fix="Run the command again",
    )


def _rewrite_files_with_vectors(table: WritableTable, marked: list[TableFile]) -> bool:
    features = list_used_features(table.delta) - {VECTORS}
    if not marked and features == list_protocol_features(table.delta):
        return True
    done, placed = False, list[TimedFile]()
    try:
        for file in marked:
            parts = table.create_data_file_writer(COMPACT_CODEC).write_files(
                combine_small_batches(read_undeleted_rows([file], table.schema))
            )
            placed += [(part, file.add["modificationTime"]) for part in parts]
        actions = build_metadata_actions(table.delta, features, {DELETION_VECTORS: "false"})
        done = bool(commit_rewritten_files(table, marked, placed, "REORG", actions, changes_rows=False))
    finally:
        delete_uncommitted_files(table.folder, [] if done else [part.path for part, _ in placed], table.table_version)
    if done:
        write_log_checkpoint(open_table(table.folder))  # readers without the feature cannot read the log before it
    return done


def _count_selected_rows(file: TableFile, selection: RowSelection, schema: pa.Schema) -> int:
    read = pa.schema([schema.field(name) for name in selection.columns_needed_for_mask])
    return sum(pc.sum(selection.mask_selected_rows(batch)).as_py() or 0 for batch in read_undeleted_rows([file], read))


def _find_files_to_scan(table: WritableTable, selection: RowSelection) -> list[TableFile]:
    """Returns the files that may have selected rows, according to their statistics."""
    ends = {name: (None, value) for name, value in selection.upper_bounds.items()}
    return [file for file in table.data_files if file.may_have_values_in_ranges(ends)]
