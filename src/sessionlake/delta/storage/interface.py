"""The interface of table storage: folders on a laptop, a catalog on a platform.

Everything that differs between the two is behind `Storage`. No other module asks which of them it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from sessionlake.delta.schemas.ddl import sql_string
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.storage.commits import Commit, LoggedCommit
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.limits import Limits
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
"""Table property that names what the table's history was last removed for."""


def delta_writer(rows: DataFrame, table: str, txn: Txn, mode: str) -> DataFrameWriter:
    """Returns Spark's writer for the rows. Delta skips the write if the table has this transaction already."""
    return rows.write.format("delta").mode(mode).options(txnAppId=txn.app_id_for(table), txnVersion=txn.version)


class StagedRows(Protocol):
    """Rows that are written to files but not yet part of their table."""

    def count(self) -> int:
        """Returns the number of rows."""

    def columns(self, *names: str) -> pa.Table:
        """Reads these columns of the rows into the driver."""

    def commit(self, txn: Txn) -> None:
        """Makes the rows part of the table; a replay of the same transaction adds nothing."""


class Storage(ABC):
    """Creates, reads and writes tables by their two-level names.

    Attributes:
        limits: sizes up to which the driver does the work instead of the cluster.
        scratch: folder for files that last no longer than a batch and that the driver and all tasks can read; None if
            there is none.
        needs_spark: True if only Spark can read the tables.
        functions_persist: True if SQL functions and views outlive the session.
        log_properties: properties of every table that say who removes its log.
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
        """Returns the table's full, quoted name in SQL."""

    @abstractmethod
    def sql_name(self, table: str) -> str:
        """Returns the name in SQL of what `sessionlake query` calls by this name: a table, view or function."""

    @abstractmethod
    def function_kind_and_name(self, schema: str, name: str) -> tuple[str, str]:
        """Returns how SQL creates a function: its kind (`FUNCTION` or `TEMPORARY FUNCTION`) and its name."""

    @abstractmethod
    def prepare_view(self, spark: SparkSession, name: str) -> str:
        """Returns the name under which SQL creates a view of this two-level name, and creates its schema."""

    @abstractmethod
    def require_writable(self) -> None:
        """Checks, before Spark starts, that tables can be written.

        Raises:
            MachineError: they cannot.
        """

    @abstractmethod
    def claim(self, spark: SparkSession | None, name: str, doing: str) -> AbstractContextManager[None]:
        """Holds an exclusive claim until the block ends; no other process can hold a claim of this name meanwhile.

        Args:
            name: what is claimed, such as a layer.
            doing: what this process does, as in "runs silver". A refused process reports it.

        Raises:
            ClaimedError: another process holds the claim, or has taken it over in the meantime.
        """

    @abstractmethod
    def require_claims(self) -> None:
        """Checks that this process still holds every claim it made here. Call it before each commit.

        Raises:
            ClaimedError: another process has taken one over.
        """

    @abstractmethod
    def token(self, name: str) -> int:
        """Returns this process's fencing token of a claim, which is higher than every earlier holder's.

        It is 0 if claims are locks.
        """

    @abstractmethod
    def staging(self) -> Settings:
        """Returns settings for a separate place, where tables are built only to be copied."""

    # -- tables

    def caching(self) -> AbstractContextManager[None]:
        """Caches tables' properties and the rows of small tables until the block ends, for this thread.

        Does nothing where reading them costs no Spark job.
        """
        return nullcontext()

    @abstractmethod
    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """True if the table has been created."""

    @abstractmethod
    def tables(self, spark: SparkSession, schema: str) -> list[str]:
        """Returns the names of all tables in a schema, sorted. It includes tables of other tools, but no views."""

    @abstractmethod
    def columns(self, spark: SparkSession, table: str) -> dict[str, str]:
        """Returns the table's columns with their Spark SQL types, in order."""

    @abstractmethod
    def properties(self, spark: SparkSession | None, table: str) -> dict[str, str]:
        """Returns the table's Delta properties."""

    @abstractmethod
    def create(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        """Creates the table, which must not exist."""

    @abstractmethod
    def cluster(self, spark: SparkSession, table: str, keys: Iterable[str]) -> None:
        """Sets the columns by which new rows are clustered, if the storage supports clustering."""

    @abstractmethod
    def drop(self, spark: SparkSession, table: str) -> None:
        """Removes the table and its history."""

    @abstractmethod
    def register(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Lets SQL in this session find the tables by the names that `sessionlake query` uses."""

    @abstractmethod
    def delta(self, spark: SparkSession, table: str) -> DeltaTable:
        """Returns Delta's handle of the table, for MERGE and history."""

    @abstractmethod
    def lost_files(self, spark: SparkSession | None, table: str) -> list[str]:
        """Returns files that the table's latest version names and that are missing.

        Empty where files cannot be listed.
        """

    @abstractmethod
    def last_commit(self, spark: SparkSession, table: str) -> Commit:
        """Returns the table's latest commit."""

    @abstractmethod
    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """Returns the version of the table's latest commit."""

    @abstractmethod
    def latest_commits(self, spark: SparkSession | None, table: str, count: int) -> list[LoggedCommit]:
        """Returns the table's latest `count` commits, oldest first; fewer if its log has fewer."""

    @abstractmethod
    def created_at(self, spark: SparkSession | None, table: str) -> datetime | None:
        """Returns when the table was created; None if its log does not say."""

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property in a separate commit."""
        with self.commit_lock(table):
            spark.sql(
                f"ALTER TABLE {self.identifier(table)} SET TBLPROPERTIES ({sql_string(key)} = {sql_string(value)})"
            )

    def set_retention(self, spark: SparkSession, table: str) -> None:
        """Sets how far back history reaches and who removes the log.

        Does nothing in a catalog, where this costs a job.
        """
        del spark, table

    def set_changed_properties(self, spark: SparkSession, table: str, wanted: Mapping[str, str]) -> dict[str, str]:
        """Sets those of these Delta properties whose value differs. Returns the table's properties from before."""
        present = self.properties(spark, table)
        for key in (key for key, value in wanted.items() if present.get(key) != value):
            self.set_property(spark, table, key, wanted[key])
        return present

    # -- reading

    def first_read_options(self, spark: SparkSession, table: str) -> dict[str, int]:
        """Returns options with which a new stream reads the table in commit order; none if its files are in that order.

        Raises:
            LakeError: the commit order is lost.
        """
        del spark, table
        return {}

    @abstractmethod
    def read(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """Returns the table as a frame."""

    @abstractmethod
    def stream(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """Returns the table as a stream of its appended rows."""

    @abstractmethod
    def reader(self, spark: SparkSession | None) -> TableReader:
        """Returns a reader that brings rows to the driver.

        Raises:
            LakeError: the tables are in a catalog, and `spark` is None.
        """

    # -- writing

    @abstractmethod
    def stage(self, spark: SparkSession | None, table: str, rows: Rows) -> AbstractContextManager[StagedRows]:
        """Writes rows to files for the time of the block. Rows not committed by its end are removed."""

    def append(self, spark: SparkSession | None, table: str, rows: Rows, txn: Txn) -> None:
        """Appends the rows; a replay of the same transaction appends nothing."""
        with self.stage(spark, table, rows) as staged:
            staged.commit(txn)

    def has_commit(self, table: str, txn: Txn) -> bool:
        """True if the table has a commit of this transaction or a later one.

        False if only Delta's writer can check that.
        """
        del table, txn
        return False

    def replace(self, spark: SparkSession | None, table: str, rows: pa.Table, txn: Txn | None) -> None:
        """Replaces all rows of a small table in one commit; a replay of the same transaction changes nothing."""
        frame = as_frame(spark, rows)
        writer = frame.write.format("delta") if txn is None else delta_writer(frame, table, txn, "append")
        self.save(writer.mode("overwrite"), table)

    def overwrite(self, table: str, rows: DataFrame, txn: Txn, metadata: str, *, columns: bool = False) -> None:
        """Replaces all rows of a table; a replay of the same transaction changes nothing.

        Args:
            metadata: stored with the commit, as its `userMetadata` in the table's history.
            columns: True if the table also gets the columns of `rows`.
        """
        writer = delta_writer(rows, table, txn, "overwrite")
        self.save(writer.options(userMetadata=metadata, overwriteSchema=columns), table)

    def delete_all_rows(self, spark: SparkSession, table: str, txn: Txn) -> None:
        """Deletes all rows of a table; a replay of the same transaction deletes nothing."""
        with self.commit_lock(table), conf(spark, txn.session_conf(table)):
            self.delta(spark, table).delete()

    @abstractmethod
    def merge(self, spark: SparkSession, table: str, source: Rows, upsert: Upsert, txn: Txn) -> Commit:
        """MERGEs rows into the table; a replay of the same transaction changes nothing.

        Args:
            spark: the batch's own session. No other write may run in it at the same time.

        Returns:
            The commit; after a replay, the table's latest one.
        """

    def accumulate(
        self, spark: SparkSession, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
    ) -> Commit:
        """Combines rows with the table's rows of the same keys, and MERGEs the results as `merge` does.

        No other process may write rows of these keys.

        Args:
            rows: one per key, with the table's columns. If the table has none of the keys, they are appended.
            combine: computes the resulting rows from `rows` and the table's rows.
            upsert: covers all columns, with updates and inserts but no deletes.

        Raises:
            TooLargeError: the table's rows of these keys do not fit into memory.
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
        """Checks, right before a commit, that this process is still the one that may write (see `require_claims`)."""
        self.require_claims()
        fault_point(f"sure:{table}")

    @abstractmethod
    def save(self, writer: DataFrameWriter, table: str) -> None:
        """Runs one of Spark's writers on the table."""

    # -- upkeep

    @abstractmethod
    def commit_lock(self, table: str) -> AbstractContextManager[None]:
        """Excludes other commits to the table by processes of this machine, where the storage cannot detect conflicts.

        Appends lock by themselves. The lock is not reentrant.
        """

    @abstractmethod
    def compact(self, spark: SparkSession, table: str) -> Compacted | None:
        """Merges some small files into larger ones; None if there are few, or if another commit conflicts.

        The rows do not change. Streams and change feeds skip the commit.
        """

    @abstractmethod
    def count_rows(self, spark: SparkSession, table: str, chosen: RowSelection) -> int:
        """Returns how many rows of a table are selected."""

    @abstractmethod
    def remove_rows(self, spark: SparkSession, table: str, chosen: RowSelection) -> None:
        """Removes rows of an append-only table in one commit, which streams skip. Call `commit.remove_rows`."""

    @abstractmethod
    def erase_messages(self, spark: SparkSession, table: str, rows: SessionRows) -> None:
        """Erases the session's messages in one commit, which streams skip.

        Each message keeps its offset and Kafka timestamp.
        """

    @abstractmethod
    def purge_vectors(self, table: str) -> int:
        """Rewrites the files that have deletion vectors, so that readers without that feature can open the table.

        Returns:
            The number of files that had deleted rows.

        Raises:
            UsageError: the table is in a catalog, whose platform does this.
        """

    @abstractmethod
    def purge_history(self, spark: SparkSession, table: str, why: str, since: int | None = None) -> Vacuumed:
        """Removes all files and log entries that the latest version does not need. This cannot be undone.

        Args:
            why: stored as the table's property `PURGED`.
            since: the version at which a stream resumes; log entries from there on stay. None if no stream reads the
                table.
        """

    @abstractmethod
    def needs_vacuum(self, spark: SparkSession, table: str, kept: HistoryToKeep) -> bool:
        """True if `vacuum` has enough to remove to be worth running."""

    @abstractmethod
    def vacuum(self, spark: SparkSession, table: str, kept: HistoryToKeep) -> Vacuumed:
        """Removes files that no version within the retention needs.

        Log entries that are useless without them go, too.
        """
