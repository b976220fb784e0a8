"""The lake: all tables of one home (on a laptop) or catalog, by two-level names such as `gold.rolling_average`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.ddl import build_columns_ddl
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.schemas.names import PROCESSOR_ERRORS, SILVER
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.interface import TableStorage
from sessionlake.delta.storage.limits import DriverLimits
from sessionlake.delta.storage.reading import TableReader, TooLargeError
from sessionlake.errors import LakeError
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.spark.frames import convert_to_spark_frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.delta.storage.txn import Txn

# Delta's error conditions for a version that is not in the log, or whose log entries or files were removed.
_NO_VERSION = {
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_CANNOT_RECREATE_SNAPSHOT",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
}
SKIP_REMOVALS = {"skipChangeCommits": "true"}
"""Option of a Spark stream: skips commits that remove rows. Retention removes only rows that streams have read."""
# `read_small_table_into_memory` reads tables with up to this many rows into memory.
_SMALL_ROWS = 20_000


def create_storage(settings: Settings) -> TableStorage:
    """Returns the storage of tables that the settings choose: a catalog if `catalog` is set, else local folders."""
    if settings.catalog is None:
        return FolderStorage(settings)
    from sessionlake.delta.catalog.storage import CatalogStorage  # commands for folders start faster without it

    return CatalogStorage(settings)


class Lake:
    """Creates, reads and describes the tables of one home or catalog. It holds no Spark session and no state.

    Tables are named by their two-level names in all methods.

    Args:
        settings: choose the home or the catalog.
        extra_tables: definitions of tables that are not in `schemas.tables.TABLES`, by table name.

    Attributes:
        storage: does the work, in folders or in a catalog.
    """

    def __init__(self, settings: Settings, extra_tables: dict[str, TableSchema] | None = None) -> None:
        self.settings = settings
        self.storage = create_storage(settings)
        self._schemas = TABLES | (extra_tables or {})

    @property
    def driver_limits(self) -> DriverLimits:
        """Sizes of batches and tables up to which Spark's driver does work itself, because a job would cost more."""
        return self.storage.limits

    def build_staging_lake(self) -> Lake:
        """Returns a separate lake in which a rebuild builds tables before it copies them into this lake."""
        return Lake(self.storage.build_staging_table_settings(), self._schemas)

    def to_sql_identifier(self, table: str) -> str:
        """Returns the table's full, quoted name in SQL."""
        return self.storage.to_sql_identifier(table)

    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """True if the table exists."""
        return self.storage.exists(spark, table)

    def is_known_missing(self, table: str) -> bool:
        """True if the table does not exist. Always False in a catalog, where finding out needs Spark."""
        return not self.storage.needs_spark and not self.exists(None, table)

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """Returns the table as a Spark frame.

        Args:
            spark: the session to read with.
            table: the table's two-level name.
            version: the Delta version to read; None for the latest.

        Raises:
            LakeError: the version does not exist, or its files or log entries were removed.
        """
        if version is None:
            return self.storage.read(spark, table, {})
        from pyspark.errors import PySparkException

        try:
            return self.storage.read(spark, table, {"versionAsOf": version})
        except PySparkException as error:
            if error.getCondition() not in _NO_VERSION:
                raise
            raise LakeError(
                f"{table}: version {version} cannot be read",
                why="It does not exist, or its history was removed: `sessionlake maintain` and `run all` keep "
                "a table's history for maintain.versions, and in a catalog for maintain.keep",
                fix="Choose a later version, one that `DESCRIBE HISTORY` of the table shows",
            ) from error

    def read_small_table_into_memory(self, spark: SparkSession, table: str) -> DataFrame:
        """Returns the table as a Spark frame. If the table is small and local, its rows are read into memory at once.

        This is faster: Spark takes some tenths of a second to plan the read of a Delta table, while reading a small
        table takes a few milliseconds.
        """
        if not self.storage.needs_spark and self.reader(spark).count_rows(table) <= _SMALL_ROWS:
            with suppress(TooLargeError):
                rows = self.reader(spark).read_arrow_table(table, max_bytes=self.driver_limits.driver_bytes)
                return convert_to_spark_frame(spark, rows).coalesce(1)
        return self.read(spark, table)

    def stream_table(self, spark: SparkSession, table: str, max_bytes: int, options: Mapping[str, Any]) -> DataFrame:
        """Returns a Spark stream of the rows that are appended to the table.

        Args:
            spark: the session to read with.
            table: the table's two-level name.
            max_bytes: approximate limit for the bytes of files that one batch reads. A batch reads at least one file.
            options: further options of Spark's stream reader.
        """
        return self.storage.stream_table(spark, table, {"maxBytesPerTrigger": f"{int(max_bytes)}b", **options})

    def reader(self, spark: SparkSession | None = None) -> TableReader:
        """Returns a reader that reads rows of tables into the driver's memory.

        Raises:
            LakeError: the tables are in a catalog, and `spark` is None.
        """
        return self.storage.reader(spark)

    def open_delta_table(self, spark: SparkSession, table: str) -> DeltaTable:
        """Returns the table as an object of Delta's Python API, for MERGE and history."""
        return self.storage.open_delta_table(spark, table)

    def last_commit(self, spark: SparkSession, table: str) -> TableCommit:
        """Returns the version of the table's latest commit, and how many rows it wrote."""
        return self.storage.last_commit(spark, table)

    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """Returns the version of the table's latest commit. Unlike `last_commit`, runs no Spark job."""
        return self.storage.latest_version(spark, table)

    def create_or_update_tables(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Creates the tables that are missing, and adapts existing tables to the configuration.

        Existing tables get newly declared columns, and the configured time for which their history is kept.

        Raises:
            LakeError: an existing table has columns or types that the configuration does not declare.
        """
        for table in tables:
            if self.exists(spark, table):
                self._adapt_table_to_configuration(spark, table)
                self.storage.set_history_retention(spark, table)
            else:
                self.storage.create_table(spark, table, self._schemas[table])

    def require_columns(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Checks that the configuration declares each column of these tables, with the same type.

        Tables that do not exist are skipped. Declared columns that a table lacks are no error, since
        `create_or_update_tables` adds them.

        Raises:
            LakeError: a column is not declared, or has another type. The text names the column and how to fix it.
        """
        for table in tables:
            if self.exists(spark, table):
                self._require_columns(table, self.storage.read_column_types(spark, table))

    def find_column_conflict(self, spark: SparkSession, tables: Iterable[str]) -> str | None:
        """Returns a sentence about the first column whose name or type the configuration does not declare.

        Returns None if all columns are correct. Tables that do not exist are skipped. Declared columns that a table
        lacks are no conflict.
        """
        there = (table for table in tables if self.exists(spark, table))
        found = (self._find_column_conflict(table, self.storage.read_column_types(spark, table)) for table in there)
        return next((other for other in found if other is not None), None)

    def add_missing_columns(self, spark: SparkSession, table: str) -> None:
        """Adds the columns that the configuration declares and the table lacks.

        Existing columns stay, even undeclared ones.
        """
        self._add_declared_columns(spark, table, self.storage.read_column_types(spark, table))

    def overwrite_table(
        self,
        spark: SparkSession,
        table: str,
        rows: DataFrame,
        txn: Txn,
        metadata: str,
        *,
        columns: bool = False,
    ) -> None:
        """Replaces all rows of a table in one commit. A replay of the same transaction changes nothing.

        Args:
            spark: the session to write with.
            table: the table's two-level name.
            rows: the new rows.
            txn: the transaction.
            metadata: text stored with the commit, as `userMetadata` in the table's history.
            columns: True to replace the table's columns by the columns of `rows`, too.
        """
        self.storage.require_claims_still_held()
        append_only = self._schemas[table].is_append_only
        if append_only:
            self.set_property(spark, table, APPEND_ONLY, "false")
        self.storage.overwrite_table(table, rows, txn, metadata, columns=columns)
        self.set_clustering_keys(spark, table)
        if append_only:
            self.set_property(spark, table, APPEND_ONLY, "true")

    def set_clustering_keys(self, spark: SparkSession, table: str) -> None:
        """Sets the table's clustering keys to those in its definition. Spark drops them when it replaces all rows."""
        if keys := self._schemas[table].cluster_by:
            self.storage.set_clustering_keys(spark, table, keys)

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property of the table, in a separate commit."""
        self.storage.set_property(spark, table, key, value)

    def ensure_version_after(self, spark: SparkSession, table: str, after: int) -> None:
        """Adds a commit without rows to the table if its latest version is not higher than `after`.

        A stream that starts at the version `after` + 1 needs that version to exist.
        """
        if self.latest_version(spark, table) <= after:
            self.set_property(spark, table, "sessionlake.built_from", str(int(after)))

    def drop_table(self, spark: SparkSession, table: str) -> None:
        """Removes a table with its history. Only for copies that a rebuild has built beside the live tables."""
        self.storage.drop_table(spark, table)

    def make_tables_queryable_by_sql(self, spark: SparkSession, tables: Iterable[str] | None = None) -> list[str]:
        """Makes tables available to SQL of this session under their two-level names.

        Args:
            spark: the session.
            tables: names of the tables; None for all in `schemas.tables.TABLES`. Tables that do not exist are skipped.

        Returns:
            The names of the tables that exist.
        """
        found = [table for table in tables or TABLES if self.exists(spark, table)]
        self.storage.make_tables_queryable_by_sql(spark, found)
        return found

    def _adapt_table_to_configuration(self, spark: SparkSession, table: str) -> None:
        present = self.storage.read_column_types(spark, table)
        self._require_columns(table, present)
        self._add_declared_columns(spark, table, present)

    def _require_columns(self, table: str, present: Mapping[str, str]) -> None:
        conflict = self._find_column_conflict(table, present)
        if conflict is not None:
            raise LakeError(
                conflict,
                why="A start adds declared columns, but neither removes columns nor changes their types",
                fix=self._describe_fix_of_columns(table),
            )

    def _find_column_conflict(self, table: str, present: Mapping[str, str]) -> str | None:
        """Returns a sentence about the first column whose name or type the configuration does not declare.

        Returns None if all columns are correct.

        Args:
            table: the table's two-level name.
            present: Spark SQL types of the table's columns, by name.
        """
        wanted, where = (
            dict(self._schemas[table].list_column_types(self.settings)),
            self._name_setting_that_declares_columns(table),
        )
        for name, sql in present.items():
            if name not in wanted:
                return f"{table}: column {name} ({sql}) is in the table but not in {where}"
            if wanted[name].replace(" ", "") != sql:
                return f"{table}: column {name} is {sql} in the table and {wanted[name]} in {where}"
        return None

    def _name_setting_that_declares_columns(self, table: str) -> str:
        own = self._find_processor_that_fills_table(table)
        declared = "capture.feeds" if self.settings.capture.feeds else "capture.columns"
        return declared if own is None else f"the output of processor {own.name}"

    def _describe_fix_of_columns(self, table: str) -> str:
        """Returns what the operator can do about a table whose columns differ from the configuration, as text."""
        own = self._find_processor_that_fills_table(table)
        if own is not None:
            return f"Run `sessionlake rebuild {own.rebuild_argument}`, or declare the column as it was"
        if table.startswith(f"{SILVER}.") and table != PROCESSOR_ERRORS:
            return (
                "Run `sessionlake rebuild silver`, which builds all of silver from bronze with the declared columns, "
                "or declare the column as it was"
            )
        return "Restore the table's columns as they were"

    def _find_processor_that_fills_table(self, table: str) -> ProcessorSettings | None:
        return next((own for own in self.settings.processors if own.output_table == table), None)

    def _add_declared_columns(self, spark: SparkSession, table: str, present: Mapping[str, str]) -> None:
        wanted = self._schemas[table].list_column_definitions(self.settings)
        added = [column for column in wanted if column.name not in present]
        if added:
            with self.storage.hold_commit_lock(table):
                spark.sql(f"ALTER TABLE {self.to_sql_identifier(table)} ADD COLUMNS ({build_columns_ddl(added)})")
