"""`TableStorage`: the interface of table storage, with one implementation for folders and one for a catalog.

Everything that differs between folders and a catalog is behind it. Other modules do not ask which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from sessionlake.delta.schemas.ddl import quote_sql_string
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.storage.commits import LoggedCommit, TableCommit
from sessionlake.delta.storage.description import TableDescription
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.limits import DriverLimits
from sessionlake.delta.storage.reading import TableReader, build_key_conditions
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import CompactionResult, HistoryToKeep, VacuumResult
from sessionlake.delta.storage.upsert import Combine, Upsert
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows, convert_to_spark_frame
from sessionlake.spark.interpreted import use_temporary_spark_conf

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

PURGED = "sessionlake.purged"
"""Table property that stores the reason of the last `purge_history`."""


class StagedRows(Protocol):
    """Rows that were computed and written to files, and become part of a table with `commit_rows`."""

    def count_rows(self) -> int:
        """Returns the number of rows that were written to files."""

    def read_columns(self, *names: str) -> pa.Table:
        """Reads these columns of all rows that were written to files into the driver's memory."""

    def commit_rows(self, txn: Txn) -> TableCommit:
        """Appends these rows to the table in one commit, and returns it.

        A replay of the transaction adds nothing, and returns the table's latest commit.
        """


class TableStorage(ABC):
    """Creates, reads and writes tables by their two-level names.

    Attributes:
        limits: sizes up to which the driver does work itself instead of the cluster.
        scratch: folder for files of one batch, which the driver and all tasks can read; None if there is none.
        needs_spark: True if only Spark can read the tables.
        functions_persist: True if SQL functions and views still exist after the Spark session.
        log_properties: Delta properties for every table that decide who removes old log entries.
    """

    limits: DriverLimits
    scratch: Path | None = None
    needs_spark: bool
    functions_persist: bool
    log_properties: Mapping[str, str]

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    # -- where tables are

    @abstractmethod
    def to_sql_identifier(self, table: str) -> str:
        """Returns the table's full, quoted name in SQL."""

    @abstractmethod
    def get_sql_name_in_query_command(self, table: str) -> str:
        """Returns the name of a table, view or function in SQL of `sessionlake query`, given its two-level name."""

    @abstractmethod
    def build_create_function_target(self, schema: str, name: str) -> tuple[str, str]:
        """Returns two parts of the SQL that creates a function: `FUNCTION` or `TEMPORARY FUNCTION`, and the name."""

    @abstractmethod
    def create_view_schema_and_get_name(self, spark: SparkSession, name: str) -> str:
        """Creates the schema of a view if it is missing, and returns the view's name for `CREATE VIEW`."""

    @abstractmethod
    def require_writable_storage(self) -> None:
        """Checks that tables can be written. It is called before Spark starts.

        Raises:
            MachineSetupError: the home cannot be written.
        """

    @abstractmethod
    def hold_exclusive_claim(
        self, spark: SparkSession | None, name: str, activity: str
    ) -> AbstractContextManager[None]:
        """Holds an exclusive claim until the block ends: no other process can hold a claim of this name meanwhile.

        Args:
            name: what is claimed, such as a layer.
            activity: what this process does, as in "runs silver". It is in the error of a process that is refused.

        Raises:
            ClaimedByOtherProcessError: another process holds the claim, or took it over before the block ended.
        """

    @abstractmethod
    def require_claims_still_held(self) -> None:
        """Checks that this process still holds all claims that it has made. It is called before each commit.

        Raises:
            ClaimedByOtherProcessError: another process has taken over one of these claims.
        """

    @abstractmethod
    def get_fencing_token(self, name: str) -> int:
        """Returns a number for the claim of this process on `name`, which is higher than those of all earlier holders.

        Always 0 if claims are file locks, which need no number.
        """

    @abstractmethod
    def build_staging_table_settings(self) -> Settings:
        """Returns settings for a second set of tables, which a rebuild builds and then copies to the live ones."""

    # -- tables

    def cache_repeated_reads(self) -> AbstractContextManager[None]:
        """Caches properties of tables and rows of small tables in this thread until the block ends.

        Does nothing if the storage reads them without a Spark job.
        """
        return nullcontext()

    @abstractmethod
    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """True if the table exists."""

    @abstractmethod
    def list_tables(self, spark: SparkSession, schema: str) -> list[str]:
        """Returns the two-level names of all tables in a schema, sorted. Views are left out."""

    @abstractmethod
    def read_column_types(self, spark: SparkSession, table: str) -> dict[str, str]:
        """Returns the Spark SQL types of the table's columns by column name, in the order of the columns."""

    @abstractmethod
    def read_properties(self, spark: SparkSession | None, table: str) -> dict[str, str]:
        """Returns all Delta properties of the table, by name."""

    @abstractmethod
    def create_table(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        """Creates the table, which must not exist."""

    @abstractmethod
    def set_clustering_keys(self, spark: SparkSession, table: str, keys: Iterable[str]) -> None:
        """Sets the columns by which new rows of the table are clustered, if the storage can cluster rows."""

    @abstractmethod
    def drop_table(self, spark: SparkSession, table: str) -> None:
        """Removes the table and its history."""

    @abstractmethod
    def make_tables_queryable_by_sql(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Makes the tables available to SQL in this session under their two-level names."""

    @abstractmethod
    def open_delta_table(self, spark: SparkSession, table: str) -> DeltaTable:
        """Returns the table as an object of Delta's Python API, for MERGE and history."""

    @abstractmethod
    def find_missing_files(self, spark: SparkSession | None, table: str) -> list[str]:
        """Returns the paths of missing files of the table's latest version; empty if the storage cannot list files."""

    @abstractmethod
    def last_commit(self, spark: SparkSession, table: str) -> TableCommit:
        """Returns the version of the table's latest commit, and how many rows it wrote."""

    @abstractmethod
    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """Returns the version of the table's latest commit."""

    @abstractmethod
    def describe_version(self, table: str, version: int) -> TableDescription | None:
        """Returns the features and columns of a version of a table; None if only Spark can read the table's log."""

    @abstractmethod
    def latest_commits(self, spark: SparkSession | None, table: str, count: int) -> list[LoggedCommit]:
        """Returns the table's latest `count` commits, oldest first; fewer if its log has fewer."""

    @abstractmethod
    def created_at(self, spark: SparkSession | None, table: str) -> datetime | None:
        """Returns when the table was created; None if its log does not say."""

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property of the table, in a separate commit."""
        with self.hold_commit_lock(table):
            assigned = f"{quote_sql_string(key)} = {quote_sql_string(value)}"
            spark.sql(f"ALTER TABLE {self.to_sql_identifier(table)} SET TBLPROPERTIES ({assigned})")

    def set_history_retention(self, spark: SparkSession, table: str) -> None:
        """Sets the table's Delta properties that say how long history is kept and who removes old log entries.

        Does nothing in a catalog, where this would cost a Spark job.
        """
        del spark, table

    def set_properties_that_differ(self, spark: SparkSession, table: str, wanted: Mapping[str, str]) -> dict[str, str]:
        """Sets the Delta properties that are not as wanted. Returns all properties of the table as they were before."""
        present = self.read_properties(spark, table)
        for key in (key for key, value in wanted.items() if present.get(key) != value):
            self.set_property(spark, table, key, wanted[key])
        return present

    # -- reading

    def choose_commit_order_read_options(self, spark: SparkSession, table: str) -> dict[str, int]:
        """Returns options with which a new stream reads the table in the order of its commits; empty if it needs none.

        Raises:
            LakeError: the order of the commits can no longer be found.
        """
        del spark, table
        return {}

    @abstractmethod
    def read(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """Returns the table as a Spark frame. The options are those of Spark's Delta reader."""

    @abstractmethod
    def stream_table(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """Returns a Spark stream of rows appended to the table. The options are those of Spark's Delta reader."""

    @abstractmethod
    def reader(self, spark: SparkSession | None) -> TableReader:
        """Returns a reader that reads rows of tables into the driver's memory.

        Raises:
            LakeError: the tables are in a catalog, and `spark` is None.
        """

    # -- writing

    @abstractmethod
    def stage_rows(self, spark: SparkSession | None, table: str, rows: Rows) -> AbstractContextManager[StagedRows]:
        """Writes rows to files, so that the block can commit them. Files that it does not commit are deleted."""

    @abstractmethod
    def append_rows(self, spark: SparkSession | None, table: str, rows: Rows, txn: Txn) -> TableCommit:
        """Appends rows to the table in one commit, and returns it.

        A replay of the same transaction appends nothing, and returns the table's latest commit.
        """

    def has_commit(self, table: str, txn: Txn) -> bool:
        """True if the table has this transaction or a later one of its application; False if only Delta can tell."""
        del table, txn
        return False

    def replace_rows(self, spark: SparkSession | None, table: str, rows: pa.Table, txn: Txn | None) -> None:
        """Replaces all rows of a small table in one commit; a replay of the same transaction changes nothing."""
        self.replace_rows_with_spark(
            convert_to_spark_frame(spark, rows), table, {} if txn is None else txn.build_writer_options(table)
        )

    def overwrite_table(self, table: str, rows: DataFrame, txn: Txn, metadata: str, *, columns: bool = False) -> None:
        """Replaces all rows of a table; a replay of the same transaction changes nothing.

        Args:
            metadata: text stored with the commit, as `userMetadata` in the table's history.
            columns: True to replace the table's columns by the columns of `rows`, too.
        """
        options = {"userMetadata": metadata, "overwriteSchema": columns}
        self.replace_rows_with_spark(rows, table, txn.build_writer_options(table) | options)

    def delete_all_rows(self, spark: SparkSession, table: str, txn: Txn) -> None:
        """Deletes all rows of a table; a replay of the same transaction deletes nothing."""
        with self.hold_commit_lock(table), use_temporary_spark_conf(spark, txn.build_session_conf(table)):
            self.open_delta_table(spark, table).delete()

    @abstractmethod
    def merge_rows(self, spark: SparkSession, table: str, source: Rows, upsert: Upsert, txn: Txn) -> TableCommit:
        """MERGEs rows into the table; a replay of the same transaction changes nothing.

        Args:
            spark: a session in which no other write runs at the same time, such as the batch's own session.

        Returns:
            The commit; after a replay, the table's latest one.
        """

    def combine_and_merge_rows(
        self, spark: SparkSession, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
    ) -> TableCommit:
        """Combines rows with the table's rows of the same keys, such as sums, and MERGEs the results in one commit.

        No other process may write rows with these keys at the same time.

        Args:
            rows: at most one row per key, with the table's columns. If the table has none of the keys, they are added.
            combine: computes the resulting rows from `rows` and the table's rows of the same keys.
            upsert: names the keys and all other columns. It must update and insert, and not delete.

        Raises:
            TooLargeError: the table's rows of these keys do not fit into memory.
        """
        reader = self.reader(spark)
        conditions = build_key_conditions(rows, upsert.keys, reader.read_table_schema(table))
        held = reader.read_arrow_table(table, *conditions, max_bytes=self.limits.driver_bytes)
        if held.num_rows:
            return self.merge_rows(spark, table, combine(rows, held), upsert, txn)
        self.require_claims_before_commit(table)
        return self.append_rows(spark, table, rows.cast(held.schema), txn)

    def require_claims_before_commit(self, table: str) -> None:
        """Checks that this process still holds all its claims. It is called right before a commit to the table."""
        self.require_claims_still_held()
        inject_fault_if_requested(f"sure:{table}")

    @abstractmethod
    def append_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        """Appends rows to a table in one commit, with Spark's Delta writer and these options of it."""

    @abstractmethod
    def replace_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        """Replaces all rows in one commit, with options of Spark's Delta writer. The clustering keys are removed."""

    # -- upkeep

    @abstractmethod
    def hold_commit_lock(self, table: str) -> AbstractContextManager[None]:
        """Holds a lock that excludes other commits to the table, if the storage cannot detect conflicting commits.

        Appends take the lock themselves. The lock is not reentrant.
        """

    @abstractmethod
    def compact_table(self, spark: SparkSession, table: str) -> CompactionResult | None:
        """Merges small files of a table into larger ones, in a commit that streams and change feeds skip.

        Returns the number of files before and after; None if there are too few small files or another commit conflicts.
        """

    @abstractmethod
    def count_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> int:
        """Returns how many rows of a table the selection contains."""

    @abstractmethod
    def remove_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> None:
        """Removes the selected rows of a table in one commit, which streams skip. Call `commit.remove_rows` instead."""

    @abstractmethod
    def erase_messages(self, spark: SparkSession, table: str, rows: SessionRowSelection) -> None:
        """Erases key, value and headers of a session's messages in one commit, which streams skip.

        Each message keeps its offset and Kafka timestamp.
        """

    @abstractmethod
    def purge_deletion_vectors(self, table: str) -> int:
        """Rewrites the table's files with deletion vectors, so that readers without that feature can open the table.

        Returns:
            The number of files that had deleted rows and were rewritten.

        Raises:
            UsageError: the table is in a catalog, whose platform does this.
        """

    @abstractmethod
    def purge_history(self, spark: SparkSession, table: str, why: str, since: int | None = None) -> VacuumResult:
        """Removes all files and log entries that the table's latest version does not need. This cannot be undone.

        Args:
            why: the reason, stored in a property of the table.
            since: the version at which a stream resumes; later log entries stay, too. None if no stream reads the
                table.
        """

    @abstractmethod
    def needs_vacuum(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> bool:
        """True if a VACUUM would remove enough to be worth its cost."""

    @abstractmethod
    def vacuum_table(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> VacuumResult:
        """Removes files that only versions older than `history_to_keep` need, and the log entries of such versions.

        Returns the number of removed files and their size.
        """
