"""Writes rows to new files in a table's folder, and commits these files later.

A replay of the same transaction commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.commits import delete_uncommitted_files
from sessionlake.delta.folders.history import read_last_commit
from sessionlake.delta.folders.log import build_txn_action, commit_appended_files, commit_files_with_other_rows
from sessionlake.delta.folders.parquet import (
    WrittenFile,
    read_sql_column_types,
    write_files_with_arrow,
    write_files_with_spark,
)
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.writable import WritableTable, open_writable_table
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.spark.frames import DeferredArrowMap, Rows

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS = 100  # if several processes commit at once, one of them succeeds in each attempt


class StagedFiles:
    """New files in a table's folder, which become part of the table with `commit_rows` or `replace_files`.

    Args:
        location: the table's folder, name and lock.
        files: the new files.
        delta: the table, opened at any version; None to open it here.
    """

    def __init__(self, location: TableLocation, files: Sequence[WrittenFile], delta: DeltaTable | None = None) -> None:
        self._place, self._files = location, list(files)
        self._delta = open_table(location.folder) if delta is None else delta
        self._after: int | None = None

    def count_rows(self) -> int:
        """Returns the number of rows in the new files."""
        return sum(file.row_count for file in self._files)

    def read_columns(self, *names: str) -> pa.Table:
        """Reads these columns of all rows in the new files into memory."""
        table_schema = pa.schema(self._delta.schema().to_arrow())
        schema = pa.schema([table_schema.field(name) for name in names])
        parts = (pq.read_table(self._place.folder / file.path, columns=[*names]) for file in self._files)
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def commit_rows(self, txn: Txn) -> TableCommit:
        """Adds the new files to the table in one commit, and returns it.

        A replay of the same transaction adds nothing, and returns the table's latest commit.

        Holds the table's lock if MERGE or Spark also commits to the table, since Spark can overwrite a commit that came
        first. Tables that only get appends need no lock, because only this class commits to them.
        """
        place, action = self._place, build_txn_action(txn.build_delta_app_id(self._place.table), txn.version)
        known, row_count = open_writable_table(self._delta), self.count_rows()
        waits = APPEND_ONLY not in known.configuration or known.uses_vectors
        with place.hold_commit_lock(place.table) if waits else nullcontext():
            version = self._retry_until_committed(txn, lambda table: commit_appended_files(table, self._files, action))
        return read_last_commit(place.folder) if version is None else TableCommit(version, row_count)

    def replace_files(self, former: Sequence[TableFile] | None, txn: Txn | None, metadata: str = "") -> None:
        """Replaces files of the table by the new files in one commit. A replay of the same transaction changes nothing.

        Args:
            former: the files to replace. Files that were added to the table later stay. None to replace all files that
                the table has at the time of the commit.
            txn: the transaction; None to commit without one.
            metadata: text stored with the commit, as `userMetadata` in the table's history.

        Raises:
            LakeError: the table no longer has some of the files to replace.
        """
        place = self._place
        action = None if txn is None else build_txn_action(txn.build_delta_app_id(place.table), txn.version)

        def commit_staged_files(table: WritableTable) -> bool:
            there = {file.full_path: file for file in table.data_files}
            gone = [*there] if former is None else [file.full_path for file in former]
            if not there.keys() >= {*gone}:
                raise LakeError(
                    f"{place.folder}: another process replaced the rows of this table while new rows were "
                    "written to it",
                    why="The table has the rows of the other process, and none of the new ones",
                    fix="Run the command again",
                )
            return commit_files_with_other_rows(table, [there[path] for path in gone], self._files, action, metadata)

        with place.hold_commit_lock(place.table):
            self._retry_until_committed(txn, commit_staged_files)

    def _retry_until_committed(self, txn: Txn | None, write: Callable[[WritableTable], bool]) -> int | None:
        """Calls `write` with the table's latest version, again and again until it succeeds.

        Does nothing if the table already has the transaction.

        Returns:
            The version that was committed; None if the table already has the transaction.

        Args:
            txn: the transaction; None to commit without one.
            write: commits to the version passed to it, and returns False if another commit came first.
        """
        place, delta = self._place, self._delta
        for _ in range(_ATTEMPTS):
            delta.update_incremental()  # which takes a tenth of what opening the table does
            if txn is not None and has_commit(delta, place.table, txn):
                return None
            self._after = delta.version() if self._after is None else self._after
            if write(open_writable_table(delta)):
                self._files = []
                return int(delta.version()) + 1
        raise LakeError(
            f"{place.folder}: the new rows could not be committed, because other processes wrote to "
            f"the table during each of {_ATTEMPTS} attempts",
            why="Nothing was written",
            fix="Run the command again",
        )

    def delete_staged_files(self) -> None:
        """Deletes the new files, unless they were committed."""
        delete_uncommitted_files(self._place.folder, [file.path for file in self._files], self._after)


@contextmanager
def write_rows_to_staged_files(location: TableLocation, rows: Rows, delta: DeltaTable) -> Iterator[StagedFiles]:
    """Writes rows to new files in the table's folder, so that the block can commit them.

    Files that are not committed when the block ends are deleted.

    Args:
        location: the table's folder, name and lock.
        rows: the rows.
        delta: the table, opened at any version.

    Raises:
        LakeError: the rows have a column that the table lacks, or only Spark may write to the table.
    """
    table = open_writable_table(delta)
    writer = table.create_data_file_writer()
    if isinstance(rows, pa.Table):
        if unknown := {*rows.column_names} - {*table.schema.names}:
            raise LakeError(
                f"{location.folder}: the rows to write have columns that the table lacks: {', '.join(sorted(unknown))}",
                why="Nothing was written",
                fix="Remove these columns from the rows, or add them to the table",
            )
        files = writer.write_files(rows.to_batches())
    elif isinstance(rows, DeferredArrowMap):
        files = write_files_with_arrow(rows, writer)
    else:
        files = write_files_with_spark(rows, read_sql_column_types(table.delta), writer)
    staged = StagedFiles(location, files, delta)
    try:
        yield staged
    finally:
        staged.delete_staged_files()


@dataclass(frozen=True)
class TableLocation:
    """The folder and the name of a table, and a function that locks it.

    Attributes:
        folder: the table's folder.
        table: the table's two-level name.
        hold_commit_lock: returns a lock on the table of this name, which excludes other commits.
    """

    folder: Path
    table: str
    hold_commit_lock: Callable[[str], AbstractContextManager[None]]


def has_commit(delta: DeltaTable, table: str, txn: Txn) -> bool:
    """True if the opened version of the table includes this transaction, or a later one of the same application.

    Args:
        delta: the table.
        table: the table's two-level name, which is part of the application id.
        txn: the transaction.
    """
    known = delta.transaction_version(txn.build_delta_app_id(table))
    return known is not None and known >= txn.version
