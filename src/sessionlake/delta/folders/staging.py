"""Writes rows to files of a table in a folder, and commits the files; a replay of the same transaction adds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.commits import discard_uncommitted
from sessionlake.delta.folders.log import commit_append, commit_overwrite, txn_action
from sessionlake.delta.folders.parquet import WrittenFile, column_types, write_with_arrow, write_with_spark
from sessionlake.delta.folders.table_files import TableFile, open_table
from sessionlake.delta.folders.writable import Writable, open_writable
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.spark.frames import Mapped, Rows

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS = 100  # of several that commit at once, each time one gets through


class StagedFiles:
    """Written files that are not part of their table yet.

    Args:
        delta: the table, at any version; None to open it.
    """

    def __init__(self, place: TableLocation, files: Sequence[WrittenFile], delta: DeltaTable | None = None) -> None:
        self._place, self._files = place, list(files)
        self._delta = open_table(place.folder) if delta is None else delta
        self._after: int | None = None

    def count(self) -> int:
        """Returns the number of rows in the files."""
        return sum(file.rows for file in self._files)

    def columns(self, *names: str) -> pa.Table:
        """Reads these columns of the rows from the files."""
        table_schema = pa.schema(self._delta.schema().to_arrow())
        schema = pa.schema([table_schema.field(name) for name in names])
        parts = (pq.read_table(self._place.folder / file.path, columns=[*names]) for file in self._files)
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def commit(self, txn: Txn) -> None:
        """Commits the files. Takes the table's lock if MERGE or Spark also commits to the table.

        Spark's rename can overwrite a commit that came first. All commits to other tables are written here, and need no
        lock.
        """
        place, action = self._place, txn_action(txn.app_id_for(self._place.table), txn.version)
        known = open_writable(self._delta)
        waits = APPEND_ONLY not in known.configuration or known.uses_vectors
        with place.commit_lock(place.table) if waits else nullcontext():
            self._commit(txn, lambda table: commit_append(table, self._files, action))

    def replace(self, former: Sequence[TableFile] | None, txn: Txn | None, metadata: str = "") -> None:
        """Commits the files in place of others; a replay of the same transaction changes nothing.

        Rows appended after those files stay.

        Args:
            former: the replaced files; None for all files of the table.

        Raises:
            LakeError: some replaced files are gone.
        """
        place = self._place
        action = None if txn is None else txn_action(txn.app_id_for(place.table), txn.version)

        def overwrite(table: Writable) -> bool:
            there = {file.path: file for file in table.files}
            gone = [*there] if former is None else [file.path for file in former]
            if not there.keys() >= {*gone}:
                raise LakeError(f"{place.folder}: other commits have replaced its rows", fix="Run the command again")
            return commit_overwrite(table, [there[path] for path in gone], self._files, action, metadata)

        with place.commit_lock(place.table):
            self._commit(txn, overwrite)

    def _commit(self, txn: Txn | None, write: Callable[[Writable], bool]) -> None:
        """Commits unless the table has the transaction, and again if another commit came first."""
        place, delta = self._place, self._delta
        for _ in range(_ATTEMPTS):
            delta.update_incremental()  # which takes a tenth of what opening the table does
            if txn is not None and has_commit(delta, place.table, txn):
                return
            self._after = delta.version() if self._after is None else self._after
            if write(open_writable(delta)):
                self._files = []
                return
        raise LakeError(f"{place.folder}: other commits conflicted {_ATTEMPTS} times", fix="Run the command again")

    def discard(self) -> None:
        """Removes the files unless they were committed."""
        discard_uncommitted(self._place.folder, [file.path for file in self._files], self._after)


@contextmanager
def stage_files(place: TableLocation, rows: Rows, delta: DeltaTable) -> Iterator[StagedFiles]:
    """Writes rows to files for the time of the block; files not committed by its end are removed.

    Raises:
        LakeError: the rows have a column that the table lacks, or only Spark can write the table.
    """
    table = open_writable(delta)
    writer = table.writer()
    if isinstance(rows, pa.Table):
        if unknown := {*rows.column_names} - {*table.schema.names}:
            raise LakeError(
                f"{place.folder}: the rows have columns that the table lacks: {', '.join(sorted(unknown))}",
                fix="Remove them from the rows, or add them to the table",
            )
        files = writer.files(rows.to_batches())
    elif isinstance(rows, Mapped):
        files = write_with_arrow(rows, writer)
    else:
        files = write_with_spark(rows, column_types(table.delta), writer)
    staged = StagedFiles(place, files, delta)
    try:
        yield staged
    finally:
        staged.discard()


@dataclass(frozen=True)
class TableLocation:
    """A table's folder and name, and the lock that excludes other commits (`Storage.commit_lock`)."""

    folder: Path
    table: str
    commit_lock: Callable[[str], AbstractContextManager[None]]


def has_commit(delta: DeltaTable, table: str, txn: Txn) -> bool:
    """True if the table's version includes this transaction or a later one."""
    known = delta.transaction_version(txn.app_id_for(table))
    return known is not None and known >= txn.version
