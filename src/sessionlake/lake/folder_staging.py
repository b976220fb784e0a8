"""How delta-rs commits rows to a table that is a folder: appended once, whatever the number of repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.errors import LakeError
from sessionlake.lake.folder_commits import committing, discard, write
from sessionlake.lake.folder_upkeep import is_merged
from sessionlake.lake.log_commits import overwritten
from sessionlake.lake.parquet import (
    FileWriter,
    WrittenFile,
    columns_of,
    indexed_columns,
    written_by_arrow,
    written_by_spark,
)
from sessionlake.lake.table_files import TableFile, live, opened
from sessionlake.lake.table_schema import APPEND_ONLY
from sessionlake.lake.txn import Txn
from sessionlake.runtime.frames import Mapped

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from deltalake import DeltaTable as LocalTable
    from pyspark.sql import DataFrame

_ATTEMPTS = 20


class StagedRows:
    """Rows in memory, which the commit writes."""

    def __init__(self, place: Place, rows: pa.Table) -> None:
        self._place, self._rows = place, rows

    def count(self) -> int:
        """See `Staged`."""
        return self._rows.num_rows

    def columns(self, *names: str) -> pa.Table:
        """See `Staged`."""
        return self._rows.select(names)

    def commit(self, txn: Txn) -> None:
        """See `Staged`."""
        properties = txn_properties(self._place.table, txn)

        self._place.append(txn, lambda delta: write(delta, self._rows, "append", properties))


class StagedFiles:
    """Files in the table's folder."""

    def __init__(self, place: Place, schema: pa.Schema, files: Sequence[WrittenFile]) -> None:
        self._place, self._schema = place, schema
        self._files = list(files)
        self._after: int | None = None

    def count(self) -> int:
        """See `Staged`."""
        return sum(file.rows for file in self._files)

    def columns(self, *names: str) -> pa.Table:
        """See `Staged`."""
        schema = pa.schema([self._schema.field(name) for name in names])
        parts = (pq.read_table(self._place.folder / file.path, columns=[*names]) for file in self._files)
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def commit(self, txn: Txn) -> None:
        """See `Staged`."""
        from deltalake.transaction import AddAction, RemoveAction

        now = int(time.time() * 1000)
        added: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now, data_change=True, stats=file.stats) for file in self._files
        ]
        properties = txn_properties(self._place.table, txn)

        def add(delta: LocalTable) -> None:
            self._after = delta.version() if self._after is None else self._after
            with committing(delta) as hooks:
                delta.create_write_transaction(
                    added,
                    "append",
                    self._schema,
                    commit_properties=properties,
                    post_commithook_properties=hooks,
                )
                self._files = []

        self._place.append(txn, add)

    def replace(self, former: Sequence[TableFile], txn: Txn, metadata: str = "", *, changes: bool = True) -> None:
        """Makes them the table, once, in the place of files that were there: see `log_commits.overwritten`.

        What has been appended behind those stays.

        Raises:
            LakeError: some of those are gone.
        """
        place = self._place
        with place.exclusive(place.table):
            for _ in range(_ATTEMPTS):
                delta = without(place.folder, place.table, txn)
                if delta is None:
                    return
                self._after = delta.version() if self._after is None else self._after
                there = {file.path: file for file in live(delta)}
                if any(file.path not in there for file in former):
                    break
                gone = [there[file.path] for file in former]
                if overwritten(delta, gone, self._files, txn.on(place.table), txn.version, metadata, changes=changes):
                    self._files = []
                    return
        raise LakeError(f"{place.folder}: other commits were in the way of replacing its rows; repeat the command")

    def discard(self) -> None:
        """Removes what has not been committed."""
        discard(self._place.folder, [file.path for file in self._files], self._after)


@contextmanager
def written(place: Place, rows: DataFrame | Mapped) -> Iterator[StagedFiles]:
    """Files with the rows, which are gone behind the block if they are not part of the table by then."""
    delta = opened(place.folder)
    schema, indexed = pa.schema(delta.schema().to_arrow()), indexed_columns(delta)
    if isinstance(rows, Mapped):
        files = written_by_arrow(rows, FileWriter(str(place.folder), schema, indexed))
    else:
        files = written_by_spark(rows, place.folder, columns_of(delta), indexed)
    staged = StagedFiles(place, schema, files)
    try:
        yield staged
    finally:
        staged.discard()


@dataclass(frozen=True)
class Place:
    """Where a table is, and how others are held off it: see `Storage.exclusive`."""

    folder: Path
    table: str
    exclusive: Callable[[str], AbstractContextManager[None]]

    def append(self, txn: Txn, write: Callable[[LocalTable], None]) -> None:
        """Writes once, unless a commit of the transaction is there; again behind one that delta-rs does not pass.

        To a table that MERGE changes, or that Spark puts together, in its turn: Spark may rename its commit over one
        that comes before. Others do not wait for what is long under way there, for that is committed by delta-rs, which
        sees each commit.
        """
        from deltalake.exceptions import CommitFailedError

        delta = without(self.folder, self.table, txn)
        waits = delta is not None and (APPEND_ONLY not in delta.metadata().configuration or is_merged(delta))
        with self.exclusive(self.table) if waits else nullcontext():
            delta = without(self.folder, self.table, txn) if waits else delta
            for left in reversed(range(_ATTEMPTS)):
                if delta is None:
                    return
                try:
                    write(delta)
                except CommitFailedError:  # as behind rows that were removed
                    if not left:
                        raise
                    delta = without(self.folder, self.table, txn)
                else:
                    return


def without(folder: Path, table: str, txn: Txn) -> LocalTable | None:
    """The table, unless a commit of this transaction, or of a later one, is in it."""
    delta = opened(folder)
    return None if has_commit(delta, table, txn) else delta


def has_commit(delta: LocalTable, table: str, txn: Txn) -> bool:
    """Whether a commit of this transaction, or of a later one, is in the table's version."""
    known = delta.transaction_version(txn.on(table))
    return known is not None and known >= txn.version


def txn_properties(table: str, txn: Txn) -> CommitProperties:
    """What makes a commit of delta-rs bear the transaction."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(txn.on(table), txn.version)])
