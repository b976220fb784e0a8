"""What the lake asks of where its tables are: folders on a laptop, entries of a catalog on a platform.

Everything that differs between the two is behind `Storage`; no other module asks which of them it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from sessionlake.delta.schemas.ddl import sql_string
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.storage.commits import Commit, LoggedCommit
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.reading import TableReader, key_conditions
from sessionlake.delta.storage.session_rows import SessionRows
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import Compacted, HistoryToKeep, Vacuumed
from sessionlake.delta.storage.upsert import Combine, Upsert
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows, as_frame
from sessionlake.spark.interpreted import conf

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PURGED = "sessionlake.purged"
"""The table's property that names what its history was last removed for."""


@dataclass(frozen=True)
class Limits:
    """Up to which size work is done in the driver, where a Spark job costs more than the work. Zero: never.

    Attributes:
        few_messages: of a batch; up to so many, bronze takes its rows to the driver, and queries generate no code.
        few_changes: of a range of batches that is merged; up to so many, the MERGEs generate no code.
        driver_changes: of a range of batches, up to which the driver works out what they come to.
        driver_cuts: of a range of batches, up to which the driver makes their snapshots.
        driver_bytes: that the driver may read for one merge; in all it takes about four times as many.
        inline_bytes: of one payload of a fold; larger ones stay where they were made.
        rewritten_rows: of a table, up to which the driver merges into it by writing the files anew that it touches.
        index_bytes: that the driver may hold to know where keys are in files, some 12 a row, and the files' footers: of
            more, it reads keys.
    """

    few_messages: int
    few_changes: int
    driver_changes: int
    driver_cuts: int
    driver_bytes: int
    inline_bytes: int
    rewritten_rows: int
    index_bytes: int


def delta_writer(rows: DataFrame, table: str, txn: Txn, mode: str) -> DataFrameWriter:
    """Spark's writer of the rows, which Delta passes over if a commit of the transaction is in the table."""
    return rows.write.format("delta").mode(mode).options(txnAppId=txn.app_id_for(table), txnVersion=txn.version)


class StagedRows(Protocol):
    """Rows that are written down, and not part of their table yet."""

    def count(self) -> int:
        """How many they are."""

    def columns(self, *names: str) -> pa.Table:
        """These columns of them, read into the driver."""

    def commit(self, txn: Txn) -> None:
        """Makes them part of the table, unless a commit of the same transaction has done so before."""


class Storage(ABC):
    """Creates, reads and writes tables by their two-level names.

    Attributes:
        limits: between the driver's work and the cluster's.
        scratch: a folder for what lasts no longer than a batch, which driver and tasks see alike, if there is one.
        needs_session: whether tables can be read only by Spark.
        keeps_functions: whether SQL functions and views stay when the session ends.
        log: properties of every table that say who removes its log.
    """

    limits: Limits
    scratch: Path | None = None
    needs_spark: bool
    functions_persist: bool
    log_properties: Mapping[str, str]

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    # -- where tables are

    @abstractmethod
    def identifier(self, table: str) -> str:
        """What SQL calls the table."""

    @abstractmethod
    def sql_name(self, table: str) -> str:
        """What SQL calls a table, view or function that `sessionlake query` knows by this name: see `register`."""

    @abstractmethod
    def function_kind_and_name(self, schema: str, name: str) -> tuple[str, str]:
        """How SQL creates a function: what kind (`FUNCTION`, `TEMPORARY FUNCTION`), and under which name."""

    @abstractmethod
    def prepare_view(self, spark: SparkSession, name: str) -> str:
        """How SQL creates a view of this two-level name; its schema is there afterwards."""

    @abstractmethod
    def require_writable(self) -> None:
        """Checks, before Spark is started, that tables can be written.

        Raises:
            MachineError: they cannot.
        """

    @abstractmethod
    def claim(self, spark: SparkSession | None, name: str, doing: str) -> AbstractContextManager[None]:
        """Keeps others from claiming the same until the block is left.

        Args:
            name: of what is claimed.
            doing: what this process does, as in "runs silver": what others are told that want it.

        Raises:
            ClaimedError: another process has claimed it already, or has taken it over meanwhile.
        """

    @abstractmethod
    def require_claims(self) -> None:
        """Returns if what this process has claimed here is its own still: to be asked before each commit.

        Raises:
            ClaimedError: another process has taken it over.
        """

    @abstractmethod
    def token(self, name: str) -> int:
        """Of a claim: greater than every holder's before; 0 where none is taken over from one that goes on later."""

    @abstractmethod
    def staging(self) -> Settings:
        """Settings of a place of its own for tables that are only built to be copied."""

    # -- tables

    def caching(self) -> AbstractContextManager[None]:
        """In the block, this thread may ask once what a table's properties are, and for the rows of small tables."""
        return nullcontext()

    @abstractmethod
    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """Whether the table has been created."""

    @abstractmethod
    def tables(self, spark: SparkSession, schema: str) -> list[str]:
        """All tables that are in a schema, whoever has made them, in order; views are none."""

    @abstractmethod
    def columns(self, spark: SparkSession, table: str) -> dict[str, str]:
        """The table's columns and their Spark SQL types, in order."""

    @abstractmethod
    def properties(self, spark: SparkSession | None, table: str) -> dict[str, str]:
        """The table's Delta properties."""

    @abstractmethod
    def create(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        """Creates the table, which is not there."""

    @abstractmethod
    def cluster(self, spark: SparkSession, table: str, keys: Iterable[str]) -> None:
        """Has the table's rows clustered by these columns from now on, where that can be."""

    @abstractmethod
    def drop(self, spark: SparkSession, table: str) -> None:
        """Removes the table and its history."""

    @abstractmethod
    def register(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Sees to it that SQL in this session finds the tables by the names that `sessionlake query` uses."""

    @abstractmethod
    def delta(self, spark: SparkSession, table: str) -> DeltaTable:
        """The table's Delta handle, for MERGE and history."""

    @abstractmethod
    def lost_files(self, spark: SparkSession | None, table: str) -> list[str]:
        """Files that the table's present version names and that are gone; none where files cannot be seen."""

    @abstractmethod
    def last_commit(self, spark: SparkSession, table: str) -> Commit:
        """The table's latest commit."""

    @abstractmethod
    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """The version of the table's latest commit."""

    @abstractmethod
    def latest_commits(self, spark: SparkSession | None, table: str, count: int) -> list[LoggedCommit]:
        """The table's latest commits, oldest first: `count` of them, or as many as its log still has."""

    @abstractmethod
    def created_at(self, spark: SparkSession | None, table: str) -> datetime | None:
        """When the table was created; None if its log does not say so."""

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property, in a commit of its own."""
        with self.commit_lock(table):
            spark.sql(
                f"ALTER TABLE {self.identifier(table)} SET TBLPROPERTIES ({sql_string(key)} = {sql_string(value)})"
            )

    def set_retention(self, spark: SparkSession, table: str) -> None:
        """Sets how far back the table's history reaches, and who removes its log, if a start does so.

        In a catalog, where asking for a table's properties can cost a Spark job, maintenance alone does.
        """
        del spark, table

    def set_changed_properties(self, spark: SparkSession, table: str, wanted: Mapping[str, str]) -> dict[str, str]:
        """Sets those of these Delta properties that the table does not have so; returns what it had."""
        present = self.properties(spark, table)
        for key in (key for key, value in wanted.items() if present.get(key) != value):
            self.set_property(spark, table, key, wanted[key])
        return present

    # -- reading

    def first_read_options(self, spark: SparkSession, table: str) -> dict[str, int]:
        """A stream's options, by which it begins in the order of the table's commits: here its files have that order.

        Raises:
            LakeError: it cannot.
        """
        del spark, table
        return {}

    @abstractmethod
    def read(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """The table as a frame."""

    @abstractmethod
    def stream(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """The table as a stream of its appended rows."""

    @abstractmethod
    def reader(self, spark: SparkSession | None) -> TableReader:
        """What brings rows to the driver: see `Lake.reader`."""

    # -- writing

    @abstractmethod
    def stage(self, spark: SparkSession | None, table: str, rows: Rows) -> AbstractContextManager[StagedRows]:
        """Writes rows down, once, until the block is left: what is not committed by then is gone."""

    def append(self, spark: SparkSession | None, table: str, rows: Rows, txn: Txn) -> None:
        """Appends the rows, unless a commit of the same transaction has done so before."""
        with self.stage(spark, table, rows) as staged:
            staged.commit(txn)

    def has_commit(self, table: str, txn: Txn) -> bool:
        """True if the table has a commit of this transaction or a later one; False if only Delta's writer can tell."""
        del table, txn
        return False

    def replace(self, spark: SparkSession | None, table: str, rows: pa.Table, txn: Txn | None) -> None:
        """Replaces all rows of a small table, in one commit, unless one of the transaction has done so before."""
        frame = as_frame(spark, rows)
        writer = frame.write.format("delta") if txn is None else delta_writer(frame, table, txn, "append")
        self.save(writer.mode("overwrite"), table)

    def overwrite(self, table: str, rows: DataFrame, txn: Txn, metadata: str, *, columns: bool = False) -> None:
        """Replaces all rows of a table, unless a commit of the transaction has done so before: see `Lake.overwrite`."""
        writer = delta_writer(rows, table, txn, "overwrite")
        self.save(writer.options(userMetadata=metadata, overwriteSchema=columns), table)

    def delete_all_rows(self, spark: SparkSession, table: str, txn: Txn) -> None:
        """Removes all rows of a table, as `overwrite`."""
        with self.commit_lock(table), conf(spark, txn.session_conf(table)):
            self.delta(spark, table).delete()

    @abstractmethod
    def merge(self, spark: SparkSession, table: str, source: Rows, upsert: Upsert, txn: Txn) -> Commit:
        """MERGEs rows into the table, unless a commit of the same transaction has done so before.

        Args:
            spark: the batch's own session: no other write may run in it meanwhile.

        Returns:
            The table's latest commit, which is this one, unless an earlier run made it.
        """

    def accumulate(
        self, spark: SparkSession, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
    ) -> Commit:
        """MERGEs what rows come to with those that the table has of their keys: see `merge`.

        Nobody else may write to those rows.

        Args:
            rows: one a key, of the table's columns; where the table has none of the keys, they are appended.
            upsert: of all columns, with updates and inserts alone.

        Raises:
            TooLargeError: the rows that the table has do not fit into memory.
        """
        reader = self.reader(spark)
        conditions = key_conditions(rows, upsert.keys, reader.schema(table))
        held = reader.table(table, *conditions, max_bytes=self.limits.driver_bytes)
        if held.num_rows:
            return self.merge(spark, table, combine(rows, held), upsert, txn)
        self.require_lease(table)
        self.append(spark, table, rows.cast(held.schema), txn)
        return self.last_commit(spark, table)

    def require_lease(self, table: str) -> None:
        """Returns if this process is the one that may write, as far as can be told before Delta is asked."""
        self.require_claims()
        fault_point(f"sure:{table}")

    @abstractmethod
    def save(self, writer: DataFrameWriter, table: str) -> None:
        """Runs a writer of Spark's on the table."""

    # -- upkeep

    @abstractmethod
    def commit_lock(self, table: str) -> AbstractContextManager[None]:
        """Holds other commits of this machine off that the place itself cannot tell from one another.

        Appends see to it themselves. Not to be entered again inside.
        """

    @abstractmethod
    def compact(self, spark: SparkSession, table: str) -> Compacted | None:
        """Merges small files, some at a time; None if there are few, or if another commit was in the way.

        Rows stay as they are: streams and change feeds pass over the commit.
        """

    @abstractmethod
    def count_rows(self, spark: SparkSession, table: str, chosen: RowSelection) -> int:
        """How many rows of a table are chosen."""

    @abstractmethod
    def remove_rows(self, spark: SparkSession, table: str, chosen: RowSelection) -> None:
        """Removes rows of a table that rows are only appended to, in one commit, which streams pass over.

        See `Lake.stream`. `commit.remove_rows` does so only if this process may write.
        """

    @abstractmethod
    def erase_messages(self, spark: SparkSession, table: str, rows: SessionRows) -> None:
        """Leaves of a session's messages only where and when they were, in one commit, which streams pass over."""

    @abstractmethod
    def purge_vectors(self, table: str) -> int:
        """Writes the files anew that have marked rows, so that readers without deletion vectors open the table.

        Returns:
            How many files had such rows.

        Raises:
            UsageError: that is for the platform to do.
        """

    @abstractmethod
    def purge_history(self, spark: SparkSession, table: str, why: str, since: int | None = None) -> Vacuumed:
        """Removes all that is no part of the present version: there is no way back.

        Args:
            why: noted as the table's property `PURGED`.
            since: the version that a stream goes on with: of the log, what comes from there on stays.
        """

    @abstractmethod
    def needs_vacuum(self, spark: SparkSession, table: str, kept: HistoryToKeep) -> bool:
        """Whether `vacuum` has enough to do to be worth it."""

    @abstractmethod
    def vacuum(self, spark: SparkSession, table: str, kept: HistoryToKeep) -> Vacuumed:
        """Removes files that no version needs that is to be kept, and what of the log is of no use without them."""
