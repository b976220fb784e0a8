"""Table storage in a catalog: Unity Catalog, or any other catalog that Spark can use. Spark reads and writes tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.catalog import history, memory, snapshots
from sessionlake.delta.catalog.lease_table import SparkLeaseTable
from sessionlake.delta.catalog.leases import hold_lease, read_fencing_token, require_all_leases_still_held
from sessionlake.delta.schemas.ddl import build_cluster_statement, build_create_table_statements
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.schemas.names import CLAIMED_TABLES, LEASES, WRITTEN_OUTSIDE_BATCHES
from sessionlake.delta.schemas.properties import RETENTION, format_interval
from sessionlake.delta.storage.commits import LoggedCommit, TableCommit
from sessionlake.delta.storage.conflicts import list_conflict_errors, retry_on_conflict
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.interface import PURGED, StagedRows, TableStorage
from sessionlake.delta.storage.limits import DriverLimits
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.delta.storage.spark_writes import (
    StagedFrame,
    count_rows_with_spark,
    erase_messages_with_spark,
    merge_rows_with_spark,
    overwrite_rows,
    remove_rows_with_spark,
    stage_rows_with_spark,
)
from sessionlake.delta.storage.txn import CLAIMED_APP, Txn
from sessionlake.delta.storage.upkeep import CompactionResult, HistoryToKeep, VacuumResult
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError, UsageError
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows, convert_to_spark_frame
from sessionlake.spark.interpreted import disable_code_generation, use_temporary_spark_conf

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


# OPTIMIZE runs if a table has at least this many files, and more than this factor times the number of full files.
_MANY_FILES = 50
_WASTE = 2
_FULL_BYTES = 128 << 20
_VACUUM_EVERY = timedelta(days=1)
_LONG_AGO = datetime.fromtimestamp(0, UTC)
_VACUUMS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}
# The highest possible Delta version, which no table has.
_NO_VERSION = 2**63 - 1
# Attempts to create a table. If two processes create it at once, one fails and may not see the table immediately.
_ATTEMPTS = 4
_PAUSE_SECONDS = 0.5


class CatalogStorage(TableStorage):
    """Stores tables in a catalog, under names such as `<catalog>.<schema>.<table>`."""

    limits = DriverLimits(
        few_messages=0,
        few_changes=0,
        driver_changes=100_000,
        driver_cuts=0,
        driver_bytes=384 << 20,
        inline_bytes=256 << 10,
        rewritten_rows=0,
        index_bytes=0,
    )
    needs_spark = True
    functions_persist = True
    log_properties: Mapping[str, str] = {}  # the platform removes logs

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._vacuums: dict[str, datetime] = {}

    def to_sql_identifier(self, table: str) -> str:
        schema, name = table.split(".")
        return f"{self._quote_schema_name(schema)}.{quote(name)}"

    # The configuration may rename schemas, and other catalogs may have the same ones.
    get_sql_name_in_query_command = to_sql_identifier

    def _quote_schema_name(self, schema: str) -> str:
        return f"{quote(str(self._settings.catalog))}.{quote(self._settings.schemas.get_configured_name(schema))}"

    def build_create_function_target(self, schema: str, name: str) -> tuple[str, str]:
        return "FUNCTION", f"{self._quote_schema_name(schema)}.{quote(name)}"

    def create_view_schema_and_get_name(self, spark: SparkSession, name: str) -> str:
        """Returns the three-level name for a new view. Its schema exists, since gold's tables are in it."""
        del spark
        return self.to_sql_identifier(name)

    def require_writable_storage(self) -> None:
        """Does nothing, since the grants of the catalog decide whether tables can be written."""

    @contextmanager
    def hold_exclusive_claim(self, spark: SparkSession | None, name: str, activity: str) -> Iterator[None]:
        """Holds a lease until the block ends, so that no other process works on the same.

        If the previous holder did not end normally, it may still try to commit. Delta then skips its commits.
        """
        session = _require_spark(spark, self._settings)
        written = (
            *WRITTEN_OUTSIDE_BATCHES.get(name, ()),
            *((table, CLAIMED_APP) for table in CLAIMED_TABLES.get(name, ())),
        )

        def retire_transactions_before_token(token: int) -> None:
            for table, app_id in written:
                if self.exists(session, table):
                    self._commit_nothing_under_transaction(
                        session, table, Txn.build_txn_before_lease_holder(app_id, token)
                    )

        with hold_lease(
            self._settings, SparkLeaseTable(session, self), name, activity, retire_transactions_before_token
        ):
            yield

    def _commit_nothing_under_transaction(self, spark: SparkSession, table: str, txn: Txn) -> None:
        retry_on_conflict(lambda: self.append_rows(spark, table, self.read(spark, table, {}).limit(0), txn))

    def require_claims_still_held(self) -> None:
        require_all_leases_still_held(self.to_sql_identifier(LEASES))

    def get_fencing_token(self, name: str) -> int:
        return read_fencing_token(self.to_sql_identifier(LEASES), name)

    def build_staging_table_settings(self) -> Settings:
        """Returns settings for a second set of tables: schemas `silver` and `ops` end with `_rebuild`."""
        schemas = self._settings.schemas
        beside = {name: f"{schemas.get_configured_name(name)}_rebuild" for name in ("silver", "ops")}
        return self._settings.model_copy(update={"schemas": schemas.model_copy(update=beside)})

    # -- tables

    def cache_repeated_reads(self) -> AbstractContextManager[None]:
        return memory.cache_table_reads()

    def exists(self, spark: SparkSession | None, table: str) -> bool:
        name = self.to_sql_identifier(table)
        if memory.find_cached_table(name) is not None:
            return True
        session = _require_spark(spark, self._settings)
        with disable_code_generation(session):
            there = bool(session.catalog.tableExists(name))
        if there:
            memory.remember_table_exists(name)
        return there

    def list_tables(self, spark: SparkSession, schema: str) -> list[str]:
        if not spark.catalog.databaseExists(self._quote_schema_name(schema)):
            return []
        tables = spark.sql(f"SHOW TABLES IN {self._quote_schema_name(schema)}").where("NOT isTemporary").collect()
        views = {row["viewName"] for row in spark.sql(f"SHOW VIEWS IN {self._quote_schema_name(schema)}").collect()}
        return sorted(f"{schema}.{row['tableName']}" for row in tables if row["tableName"] not in views)

    def read_column_types(self, spark: SparkSession, table: str) -> dict[str, str]:
        with disable_code_generation(spark):
            return {field.name: field.dataType.simpleString() for field in self.read(spark, table, {}).schema.fields}

    def read_properties(self, spark: SparkSession | None, table: str) -> dict[str, str]:
        known = memory.find_cached_table(self.to_sql_identifier(table))
        found = None if known is None else known.properties
        if found is None:
            found = snapshots.read_properties(self, _require_spark(spark, self._settings), table)
            if known is not None:
                known.properties = found
        return dict(found)

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        super().set_property(spark, table, key, value)
        known = memory.find_cached_table(self.to_sql_identifier(table))
        if known is not None and known.properties is not None:
            known.properties[key] = value

    def create_table(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        """Creates the table in the catalog. If another process creates it at the same time, that is no error."""
        for _ in range(_ATTEMPTS - 1):
            try:
                self._create_table_once(spark, table, schema)
            except Exception:  # noqa: BLE001 - each catalog has its own way to say that another was faster
                time.sleep(_PAUSE_SECONDS)
            if self.exists(spark, table):
                return
        self._create_table_once(spark, table, schema)

    def _create_table_once(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        within = self._quote_schema_name(table.partition(".")[0])
        if not spark.catalog.databaseExists(within):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {within}")
        wanted = schema.build_table_properties(
            history.compute_minimum_file_retention(table, self._settings.maintain.keep)
        )
        columns = schema.list_column_definitions(self._settings)
        for statement in build_create_table_statements(self.to_sql_identifier(table), schema, columns, wanted):
            spark.sql(statement)
        memory.remember_table_exists(self.to_sql_identifier(table))

    def set_clustering_keys(self, spark: SparkSession, table: str, keys: Iterable[str]) -> None:
        spark.sql(build_cluster_statement(self.to_sql_identifier(table), keys))

    def drop_table(self, spark: SparkSession, table: str) -> None:
        memory.forget_cached_table(self.to_sql_identifier(table))
        spark.sql(f"DROP TABLE IF EXISTS {self.to_sql_identifier(table)}")

    def make_tables_queryable_by_sql(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Sets the current catalog of the Spark session, so that SQL finds tables by two-level names."""
        del tables
        spark.catalog.setCurrentCatalog(str(self._settings.catalog))

    def open_delta_table(self, spark: SparkSession, table: str) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forName(spark, self.to_sql_identifier(table))

    def find_missing_files(self, spark: SparkSession | None, table: str) -> list[str]:
        """Returns an empty list, since the files of a catalog's tables cannot be listed."""
        del spark, table
        return []

    def last_commit(self, spark: SparkSession, table: str) -> TableCommit:
        with disable_code_generation(spark):
            return history.read_last_commit(self.open_delta_table(spark, table))

    def describe_version(self, table: str, version: int) -> None:
        return None

    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        """Returns the table's latest version. Delta's error about a too high version names it, without a job."""
        from pyspark.errors import PySparkException

        session = _require_spark(spark, self._settings)
        try:
            self.read(session, table, {"versionAsOf": _NO_VERSION})
        except PySparkException as error:
            latest = (error.getMessageParameters() or {}).get("latest")
            if error.getCondition() != "DELTA_VERSION_NOT_FOUND" or latest is None:
                raise
            return int(latest)
        return self.last_commit(session, table).version  # some sessions ask Delta only when rows are read

    def latest_commits(self, spark: SparkSession | None, table: str, count: int) -> list[LoggedCommit]:
        session = _require_spark(spark, self._settings)
        with disable_code_generation(session):
            commits = self.open_delta_table(session, table).history(count)
            found = commits.select("version", "operation", "operationParameters").collect()
        return sorted((LoggedCommit(*row) for row in found), key=lambda commit: commit.version)

    def created_at(self, spark: SparkSession | None, table: str) -> datetime | None:
        detail = (
            self.open_delta_table(_require_spark(spark, self._settings), table).detail().select("createdAt").first()
        )
        return None if detail is None or detail["createdAt"] is None else detail["createdAt"].astimezone(UTC)

    # -- reading

    def read(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        return spark.read.format("delta").options(**options).table(self.to_sql_identifier(table))

    def stream_table(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        return spark.readStream.format("delta").options(**options).table(self.to_sql_identifier(table))

    def reader(self, spark: SparkSession | None) -> TableReader:
        session = _require_spark(spark, self._settings)
        has_no_files_by_checksum = partial(snapshots.has_no_files_by_checksum, self, session)
        return memory.CachingTableReader(SparkReader(self, session), self.to_sql_identifier, has_no_files_by_checksum)

    # -- writing

    def stage_rows(self, spark: SparkSession | None, table: str, rows: Rows) -> AbstractContextManager[StagedRows]:
        return stage_rows_with_spark(self, _require_spark(spark, self._settings), table, rows)

    def append_rows(self, spark: SparkSession | None, table: str, rows: Rows, txn: Txn) -> TableCommit:
        """Appends the rows with Spark's writer. It computes them once, so they are not written to files before."""
        frame = convert_to_spark_frame(_require_spark(spark, self._settings), rows)
        return StagedFrame(self, table, frame).commit_rows(txn)

    def replace_rows(self, spark: SparkSession | None, table: str, rows: pa.Table, txn: Txn | None) -> None:
        super().replace_rows(_require_spark(spark, self._settings), table, rows, txn)

    def merge_rows(self, spark: SparkSession, table: str, source: Rows, upsert: Upsert, txn: Txn) -> TableCommit:
        return merge_rows_with_spark(self, spark, table, source, upsert, txn)

    def append_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        with self.hold_commit_lock(table):
            rows.write.format("delta").mode("append").options(**options).saveAsTable(self.to_sql_identifier(table))

    def replace_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        with self.hold_commit_lock(table):
            overwrite_rows(rows, self.to_sql_identifier(table), options)

    def choose_commit_order_read_options(self, spark: SparkSession, table: str) -> dict[str, int]:
        return history.find_commit_order_read_options(self.open_delta_table(spark, table), table)

    # -- upkeep

    @contextmanager
    def hold_commit_lock(self, table: str) -> Iterator[None]:
        """Takes no lock: the catalog detects conflicting commits. Drops the table's cached rows at the end."""
        try:
            yield
        finally:
            memory.forget_cached_rows(self.to_sql_identifier(table))

    def compact_table(self, spark: SparkSession, table: str) -> CompactionResult | None:
        """Runs OPTIMIZE if the table has at least 50 files, and these have 64 MiB or less on average.

        Returns the number of files before and after; None if OPTIMIZE did not run or another commit conflicts.
        """
        before, size = self._count_files(spark, table)
        if before < _MANY_FILES or before < _WASTE * size / _FULL_BYTES:
            return None
        try:
            spark.sql(f"OPTIMIZE {self.to_sql_identifier(table)}").collect()
        except list_conflict_errors():
            return None
        return CompactionResult(before, self._count_files(spark, table)[0])

    def count_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> int:
        return count_rows_with_spark(self, spark, table, selection)

    def remove_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> None:
        remove_rows_with_spark(self, spark, table, selection)

    def erase_messages(self, spark: SparkSession, table: str, rows: SessionRowSelection) -> None:
        erase_messages_with_spark(self, spark, table, rows)

    def purge_deletion_vectors(self, table: str) -> int:
        raise UsageError(
            f"maintain --purge-vectors: {table} is in a catalog, and this option only works on local tables",
            fix=f"Run the SQL statement `ALTER TABLE {self.to_sql_identifier(table)} DROP FEATURE deletionVectors` "
            "on the platform, which removes the table's deletion vectors",
        )

    def purge_history(self, spark: SparkSession, table: str, why: str, since: int | None = None) -> VacuumResult:
        """Runs VACUUM for all files that the table's latest version does not need. The platform removes log entries."""
        del since
        self.set_property(spark, table, PURGED, why)
        with use_temporary_spark_conf(spark, _VACUUMS):
            spark.sql(f"VACUUM {self.to_sql_identifier(table)} RETAIN 0 HOURS").collect()
        return self._read_vacuum_result(spark, table)

    def needs_vacuum(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> bool:
        """True if the last VACUUM was a day ago or earlier. Only VACUUM can tell how much it will remove."""
        del history_to_keep
        if table not in self._vacuums:
            last = history.read_last_vacuum_entry(self.open_delta_table(spark, table))
            self._vacuums[table] = _LONG_AGO if last is None else last["timestamp"].astimezone(UTC)
        return datetime.now(UTC) - self._vacuums[table] >= _VACUUM_EVERY

    def vacuum_table(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> VacuumResult:
        """Sets the table property that says how long removed files must stay, and runs VACUUM, which obeys it.

        Other programs that vacuum the table obey it, too. The platform removes log entries.
        """
        span = history.compute_file_retention(self.open_delta_table(spark, table), table, history_to_keep)
        self.set_properties_that_differ(spark, table, {RETENTION: format_interval(span)})
        with use_temporary_spark_conf(spark, _VACUUMS):
            spark.sql(f"VACUUM {self.to_sql_identifier(table)}").collect()
        return self._read_vacuum_result(spark, table)

    def _read_vacuum_result(self, spark: SparkSession, table: str) -> VacuumResult:
        last = history.read_last_vacuum_entry(self.open_delta_table(spark, table))
        self._vacuums[table] = datetime.now(UTC)
        metrics = {} if last is None else last["operationMetrics"]
        return VacuumResult(int(metrics.get("numFilesToDelete", 0)), int(metrics.get("sizeOfDataToDelete", 0)))

    def _count_files(self, spark: SparkSession, table: str) -> tuple[int, int]:
        """Returns the number of files of the table's latest version, and their size in bytes together."""
        row = self.open_delta_table(spark, table).detail().select("numFiles", "sizeInBytes").first()
        return (0, 0) if row is None else (row["numFiles"], row["sizeInBytes"])


def _require_spark(spark: SparkSession | None, settings: Settings) -> SparkSession:
    if spark is None:
        raise LakeError(
            f"the tables of catalog {settings.catalog} can only be read by Spark, and no Spark session was given",
            fix="Pass a Spark session as the argument `spark`",
        )
    return spark
