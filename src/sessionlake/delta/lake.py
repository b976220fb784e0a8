"""The lake: its tables by their two-level names, on a laptop or in a catalog."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionlake.delta.catalog.storage import CatalogStorage
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.ddl import columns_ddl
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.schemas.names import PROCESSOR_ERRORS, SILVER
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.commits import Commit
from sessionlake.delta.storage.interface import Storage
from sessionlake.delta.storage.limits import Limits
from sessionlake.delta.storage.reading import TableReader, TooLargeError
from sessionlake.errors import LakeError
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.spark.frames import as_frame

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
"""Option of a stream: it skips commits that remove rows, as retention does. The stream has read those rows."""
# A table of at most this many rows is read into memory.
_SMALL_ROWS = 20_000


def storage_of(settings: Settings) -> Storage:
    """Returns the storage that these settings choose: a catalog if `catalog` is set, else local folders."""
    return FolderStorage(settings) if settings.catalog is None else CatalogStorage(settings)


class Lake:
    """Opens, creates and describes the tables of one home or catalog. Holds no Spark session and no state.

    Args:
        own: definitions of further tables that not every lake has.

    Attributes:
        storage: creates, reads and writes the tables.
    """

    def __init__(self, settings: Settings, own: dict[str, TableSchema] | None = None) -> None:
        self.settings = settings
        self.storage = storage_of(settings)
        self._schemas = TABLES | (own or {})

    @property
    def limits(self) -> Limits:
        """Sizes up to which the driver does work that Spark would do otherwise."""
        return self.storage.limits

    def staging(self) -> Lake:
        """Returns a separate lake for tables that are built only to be copied into this one."""
        return Lake(self.storage.staging(), self._schemas)

    def identifier(self, table: str) -> str:
        """Returns the table's full, quoted name in SQL."""
        return self.storage.identifier(table)

    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """True if the table has been created."""
        return self.storage.exists(spark, table)

    def is_known_missing(self, table: str) -> bool:
        """True if the table has not been created, as far as this can be checked without Spark."""
        return not self.storage.needs_spark and not self.exists(None, table)

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """Returns the table as a frame, at its latest Delta version or at the given one.

        Raises:
            LakeError: the version does not exist, or is no longer kept.
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
                fix="Choose a later version",
            ) from error

    def read_small_in_memory(self, spark: SparkSession, table: str) -> DataFrame:
        """Returns the table as a frame; a small local table is read now, and the frame holds its rows.

        Spark takes some tenths of a second to plan a read of a Delta table. Reading a small one takes a few
        milliseconds.
        """
        if not self.storage.needs_spark and self.reader(spark).count(table) <= _SMALL_ROWS:
            with suppress(TooLargeError):
                rows = self.reader(spark).table(table, max_bytes=self.limits.driver_bytes)
                return as_frame(spark, rows).coalesce(1)
        return self.read(spark, table)

    def stream(self, spark: SparkSession, table: str, max_bytes: int, options: Mapping[str, Any]) -> DataFrame:
        """Returns the table as a stream of its appended rows.

        Args:
            max_bytes: approximate size of the files that one batch reads; a batch reads at least one file.
            options: further options of Spark's reader.
        """
        return self.storage.stream(spark, table, {"maxBytesPerTrigger": f"{int(max_bytes)}b", **options})

    def reader(self, spark: SparkSession | None = None) -> TableReader:
        """Returns a reader that brings rows to the driver.

        Raises:
            LakeError: the tables are in a catalog, and `spark` is None.
        """
        return self.storage.reader(spark)

    def delta(self, spark: SparkSession, table: str) -> DeltaTable:
        """Returns Delta's handle of the table, for MERGE and history."""
        return self.storage.delta(spark, table)

    def last_commit(self, spark: SparkSession, table: str) -> Commit:
        """Returns the table's latest commit."""
        return self.storage.last_commit(spark, table)

    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """Returns the version of the table's latest commit. Unlike `last_commit`, runs no Spark job."""
        return self.storage.latest_version(spark, table)

    def ensure(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Creates missing tables; for existing ones, adds newly declared columns and sets how far back history reaches.

        Raises:
            LakeError: an existing table has columns or types that the configuration does not declare.
        """
        for table in tables:
            if self.exists(spark, table):
                self._evolve(spark, table)
                self.storage.set_retention(spark, table)
            else:
                self.storage.create(spark, table, self._schemas[table])

    def require_columns(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Checks that these tables have only declared columns, of the declared types. Missing columns and tables pass.

        Raises:
            LakeError: a table has another column or type. The text names it, and the command that rebuilds the table.
        """
        for table in tables:
            if self.exists(spark, table):
                self._require_columns(table, self.storage.columns(spark, table))

    def find_column_conflict(self, spark: SparkSession, tables: Iterable[str]) -> str | None:
        """Describes the first column that the configuration declares otherwise, or not at all; None if there is none.

        Missing columns do not count, since `ensure` adds them. Nor do missing tables.
        """
        there = (table for table in tables if self.exists(spark, table))
        found = (self._column_conflict(table, self.storage.columns(spark, table)) for table in there)
        return next((other for other in found if other is not None), None)

    def add_missing_columns(self, spark: SparkSession, table: str) -> None:
        """Adds declared columns that the table lacks. Other columns, and all types, stay as they are."""
        self._add_columns(spark, table, self.storage.columns(spark, table))

    def overwrite(
        self,
        spark: SparkSession,
        table: str,
        rows: DataFrame,
        txn: Txn,
        metadata: str,
        *,
        columns: bool = False,
    ) -> None:
        """Replaces a table's rows in one commit; a replay of the same transaction changes nothing.

        Args:
            metadata: stored with the commit, as its `userMetadata` in the table's history.
            columns: True if the table also gets the columns of `rows`.
        """
        self.storage.require_claims()
        append_only = self._schemas[table].append_only
        if append_only:
            self.set_property(spark, table, APPEND_ONLY, "false")
        self.storage.overwrite(table, rows, txn, metadata, columns=columns)
        self.cluster(spark, table)
        if append_only:
            self.set_property(spark, table, APPEND_ONLY, "true")

    def cluster(self, spark: SparkSession, table: str) -> None:
        """Sets the table's clustering keys as defined. Spark's writer drops them when it replaces all rows."""
        if keys := self._schemas[table].cluster_by:
            self.storage.cluster(spark, table, keys)

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property in a separate commit."""
        self.storage.set_property(spark, table, key, value)

    def ensure_version_after(self, spark: SparkSession, table: str, after: int) -> None:
        """Adds a commit if the table has no version after `after`.

        A stream cannot start at a version that does not exist.
        """
        if self.latest_version(spark, table) <= after:
            self.set_property(spark, table, "sessionlake.built_from", str(int(after)))

    def drop(self, spark: SparkSession, table: str) -> None:
        """Removes a table and its history. Meant for tables that are built only to be copied."""
        self.storage.drop(spark, table)

    def register(self, spark: SparkSession, tables: Iterable[str] | None = None) -> list[str]:
        """Lets this session's SQL find existing tables by their two-level names; returns the names of those tables."""
        found = [table for table in tables or TABLES if self.exists(spark, table)]
        self.storage.register(spark, found)
        return found

    def _evolve(self, spark: SparkSession, table: str) -> None:
        present = self.storage.columns(spark, table)
        self._require_columns(table, present)
        self._add_columns(spark, table, present)

    def _require_columns(self, table: str, present: Mapping[str, str]) -> None:
        conflict = self._column_conflict(table, present)
        if conflict is not None:
            raise LakeError(
                conflict,
                why="A start adds declared columns, but neither removes columns nor changes their types",
                fix=self._column_fix(table),
            )

    def _column_conflict(self, table: str, present: Mapping[str, str]) -> str | None:
        """Describes the first of these columns that the configuration declares otherwise; None if there is none."""
        wanted, where = dict(self._schemas[table].columns_for(self.settings)), self._declared_in(table)
        for name, sql in present.items():
            if name not in wanted:
                return f"{table}: column {name} ({sql}) is in the table but not in {where}"
            if wanted[name].replace(" ", "") != sql:
                return f"{table}: column {name} is {sql} in the table and {wanted[name]} in {where}"
        return None

    def _declared_in(self, table: str) -> str:
        own = self._processor_of(table)
        return "capture.columns" if own is None else f"the output of processor {own.name}"

    def _column_fix(self, table: str) -> str:
        """Returns what to do where a table's columns differ from the configuration."""
        own = self._processor_of(table)
        if own is not None:
            return f"Run `sessionlake rebuild {own.rebuilt_as}`, or declare the column as it was"
        if table.startswith(f"{SILVER}.") and table != PROCESSOR_ERRORS:
            return (
                "Run `sessionlake rebuild silver`, which builds all of silver from bronze with the declared columns, "
                "or declare the column as it was"
            )
        return "Restore the table's columns as they were"

    def _processor_of(self, table: str) -> ProcessorSettings | None:
        return next((own for own in self.settings.processors if own.into == table), None)

    def _add_columns(self, spark: SparkSession, table: str, present: Mapping[str, str]) -> None:
        wanted = self._schemas[table].definitions_for(self.settings)
        added = [column for column in wanted if column.name not in present]
        if added:
            with self.storage.commit_lock(table):
                spark.sql(f"ALTER TABLE {self.identifier(table)} ADD COLUMNS ({columns_ddl(added)})")
