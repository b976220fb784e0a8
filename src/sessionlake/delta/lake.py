"""The lake: its tables by their two-level names, wherever they are."""

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
from sessionlake.delta.storage.interface import Limits, Storage
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

# Delta's conditions: a version that the log does not begin so early for or does not have, or older than files stay.
_NO_VERSION = {
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_CANNOT_RECREATE_SNAPSHOT",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
}
SKIP_REMOVALS = {"skipChangeCommits": "true"}
"""A stream's option: it goes on where retention has removed rows, which it has read. Such a commit appends none."""
# Up to so many rows a table is small.
_SMALL_ROWS = 20_000


def storage_of(settings: Settings) -> Storage:
    """Where the tables of these settings are: the one place that asks."""
    return FolderStorage(settings) if settings.catalog is None else CatalogStorage(settings)


class Lake:
    """Opens and creates the tables of one home or catalog. Holds no session and no state.

    Args:
        own: definitions of tables beside those that every lake has.

    Attributes:
        storage: what creates, reads and writes them.
    """

    def __init__(self, settings: Settings, own: dict[str, TableSchema] | None = None) -> None:
        self.settings = settings
        self.storage = storage_of(settings)
        self._schemas = TABLES | (own or {})

    @property
    def limits(self) -> Limits:
        """Up to which size work is done in the driver."""
        return self.storage.limits

    def staging(self) -> Lake:
        """A lake beside this one, for tables that are only built to be copied."""
        return Lake(self.storage.staging(), self._schemas)

    def identifier(self, table: str) -> str:
        """What SQL calls the table."""
        return self.storage.identifier(table)

    def exists(self, spark: SparkSession | None, table: str) -> bool:
        """Whether the table has been created."""
        return self.storage.exists(spark, table)

    def is_known_missing(self, table: str) -> bool:
        """Whether the table has not been created, as far as can be told without Spark."""
        return not self.storage.needs_spark and not self.exists(None, table)

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """The table as a frame, now or as of a Delta version.

        Raises:
            LakeError: the version is not kept any more, or not there yet.
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
                f"{table}: version {version} cannot be read: with `sessionlake maintain`, or `run all`, a table's "
                "history reaches back as far as maintain.versions, in a catalog as far as maintain.keep"
            ) from error

    def read_small_in_memory(self, spark: SparkSession, table: str) -> DataFrame:
        """The table as a frame; of a small one in folders, its rows as they are now, read already.

        To plan a read of a Delta table takes Spark some tenths of a second, and to read a small one next to nothing.
        """
        if not self.storage.needs_spark and self.reader(spark).count(table) <= _SMALL_ROWS:
            with suppress(TooLargeError):
                rows = self.reader(spark).table(table, max_bytes=self.limits.driver_bytes)
                return as_frame(spark, rows).coalesce(1)
        return self.read(spark, table)

    def stream(self, spark: SparkSession, table: str, max_bytes: int, options: Mapping[str, Any]) -> DataFrame:
        """The table as a stream of its appended rows.

        Args:
            max_bytes: of files, as they are stored: about what a batch takes in, and one file at least.
        """
        return self.storage.stream(spark, table, {"maxBytesPerTrigger": f"{int(max_bytes)}b", **options})

    def reader(self, spark: SparkSession | None = None) -> TableReader:
        """What brings rows to the driver.

        Raises:
            LakeError: it needs a session, and there is none.
        """
        return self.storage.reader(spark)

    def delta(self, spark: SparkSession, table: str) -> DeltaTable:
        """The table's Delta handle, for MERGE and history."""
        return self.storage.delta(spark, table)

    def last_commit(self, spark: SparkSession, table: str) -> Commit:
        """The table's latest commit."""
        return self.storage.last_commit(spark, table)

    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """The version of the table's latest commit: costs no Spark job, as `last_commit` may."""
        return self.storage.latest_version(spark, table)

    def ensure(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Creates what is missing, adds newly declared columns, and sets how far back history reaches.

        Raises:
            LakeError: an existing table has columns or types that the configuration does not.
        """
        for table in tables:
            if self.exists(spark, table):
                self._evolve(spark, table)
                self.storage.set_retention(spark, table)
            else:
                self.storage.create(spark, table, self._schemas[table])

    def require_columns(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Returns if none of these tables has a column that is not declared so.

        Raises:
            LakeError: naming one, and what makes the tables anew.
        """
        for table in tables:
            if self.exists(spark, table):
                self._require_columns(table, self.storage.columns(spark, table))

    def find_column_conflict(self, spark: SparkSession, tables: Iterable[str]) -> str | None:
        """What the first of these tables has that is not declared so; None if none has such a column.

        Columns that tables lack do not count: `ensure` adds them. Nor do tables that are not there.
        """
        there = (table for table in tables if self.exists(spark, table))
        found = (self._column_conflict(table, self.storage.columns(spark, table)) for table in there)
        return next((other for other in found if other is not None), None)

    def add_missing_columns(self, spark: SparkSession, table: str) -> None:
        """Adds the columns that a table is to have and lacks; others, and their types, are left as they are."""
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
        """Replaces a table's rows in one commit, once, whatever the number of repetitions.

        Args:
            metadata: kept with the commit: its `userMetadata` in the table's history.
            columns: whether the table takes over the rows' columns.
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
        """Has a table's rows clustered as it is defined, which Spark's writer forgets where it replaces all of them."""
        if keys := self._schemas[table].cluster_by:
            self.storage.cluster(spark, table, keys)

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        """Sets a Delta property, in a commit of its own."""
        self.storage.set_property(spark, table, key, value)

    def ensure_version_after(self, spark: SparkSession, table: str, after: int) -> None:
        """Makes sure that there is a version behind `after`: a stream cannot be told to begin at one yet to come."""
        if self.latest_version(spark, table) <= after:
            self.set_property(spark, table, "sessionlake.built_from", str(int(after)))

    def drop(self, spark: SparkSession, table: str) -> None:
        """Removes a table and its history: for tables that are only built to be copied."""
        self.storage.drop(spark, table)

    def register(self, spark: SparkSession, tables: Iterable[str] | None = None) -> list[str]:
        """Makes tables known to SQL in this session by their two-level names; returns those that exist."""
        found = [table for table in tables or TABLES if self.exists(spark, table)]
        self.storage.register(spark, found)
        return found

    def _evolve(self, spark: SparkSession, table: str) -> None:
        present = self.storage.columns(spark, table)
        self._require_columns(table, present)
        self._add_columns(spark, table, present)

    def _require_columns(self, table: str, present: Mapping[str, str]) -> None:
        other = self._column_conflict(table, present)
        if other is not None:
            raise LakeError(
                f"{other}. A start adds columns, and leaves those that are there: {self._column_fix(table)}"
            )

    def _column_conflict(self, table: str, present: Mapping[str, str]) -> str | None:
        """See `other_columns`, of one table that has these columns."""
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
        """What to do where a table is to have other columns."""
        own = self._processor_of(table)
        if own is not None:
            return f"run `sessionlake rebuild {own.rebuilt_as}`, or declare it as it was"
        if table.startswith(f"{SILVER}.") and table != PROCESSOR_ERRORS:
            return (
                "`sessionlake rebuild silver` makes all of silver from bronze with the columns that are declared now; "
                "or declare it as it was"
            )
        return "put the table back as it was"

    def _processor_of(self, table: str) -> ProcessorSettings | None:
        return next((own for own in self.settings.processors if own.into == table), None)

    def _add_columns(self, spark: SparkSession, table: str, present: Mapping[str, str]) -> None:
        wanted = self._schemas[table].definitions_for(self.settings)
        added = [column for column in wanted if column.name not in present]
        if added:
            with self.storage.commit_lock(table):
                spark.sql(f"ALTER TABLE {self.identifier(table)} ADD COLUMNS ({columns_ddl(added)})")
