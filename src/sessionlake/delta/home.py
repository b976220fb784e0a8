"""Table storage on a laptop: each table is a folder in the home.

Most operations use `delta.folders`, which works without Spark. A write with Spark costs a second of CPU or more, most
of it for planning. So this process or Spark's tasks write the rows of an append or MERGE as Arrow data, and the commit
takes milliseconds (`folders.log`). A MERGE into a small table rewrites the table's files. In a large table it marks
replaced rows in deletion vectors (`folders.marked_merge`). Only Spark writes to tables with features that
`delta.folders` does not support.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.folders import compaction, history, removal, upkeep
from sessionlake.delta.folders.commits import sync_created_folder
from sessionlake.delta.folders.log import set_property
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.parquet import read_sql_column_types
from sessionlake.delta.folders.reader import FolderReader, is_delta_table_folder
from sessionlake.delta.folders.rows_by_key import KeyIndexCache, MergeRowLookup
from sessionlake.delta.folders.staging import StagedFiles, TableLocation, has_commit, write_rows_to_staged_files
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.folders.writable import find_spark_only_feature, list_protocol_features, open_writable_table
from sessionlake.delta.schemas.ddl import build_columns_ddl
from sessionlake.delta.schemas.definition import TableSchema
from sessionlake.delta.schemas.properties import DELETION_VECTORS, LOG_CLEANUP, RETENTION, format_interval
from sessionlake.delta.storage.commits import LoggedCommit, TableCommit
from sessionlake.delta.storage.description import TableDescription
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.interface import PURGED, StagedRows, TableStorage
from sessionlake.delta.storage.limits import DriverLimits
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.spark_writes import (
    count_rows_with_spark,
    erase_messages_with_spark,
    merge_rows_with_spark,
    remove_rows_with_spark,
    stage_rows_with_spark,
)
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import CompactionResult, HistoryToKeep, VacuumResult
from sessionlake.delta.storage.upsert import Combine, Upsert
from sessionlake.local.home import create_home_folder, hold_lock_after_waiting, hold_lock_without_waiting
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from deltalake import DeltaTable as LocalTable
    from pyspark.sql import DataFrame, SparkSession

_Merge = Callable[..., bool]  # `merge_without_spark` with all arguments except the transaction
_MERGE_CONF = {
    "spark.databricks.delta.merge.deletionVectors.persistent": "true",
    "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
    "spark.sql.shuffle.partitions": "1",
}
# A MERGE rewrites a table with at most this many times its own rows, since it would mark rows in most files anyway.
_REWRITE_FACTOR = 4


class FolderStorage(TableStorage):
    """Stores tables as folders `warehouse/<schema>/<table>` of a home."""

    # The cluster is the driver's own machine. Arrow in the driver needs a fifth of the CPU time that Spark's shuffle
    # and Python workers need. So the driver does all work that fits into memory.
    limits = DriverLimits(
        few_messages=20_000,
        few_changes=100_000,
        driver_changes=2_000_000,
        driver_cuts=200_000,
        driver_bytes=384 << 20,
        inline_bytes=256 << 10,
        rewritten_rows=100_000,
        index_bytes=192 << 20,
    )
    needs_spark = False
    functions_persist = False
    log_properties: Mapping[str, str] = {
        LOG_CLEANUP: "false"
    }  # maintenance removes old log entries, because it knows which versions streams have not read

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.scratch = settings.home / "scratch"
        self._indexes = KeyIndexCache(self.limits.index_bytes)

    def path(self, table: str) -> Path:
        """Returns the table's folder."""
        schema, name = table.split(".")
        return self._settings.warehouse / schema / name

    def to_sql_identifier(self, table: str) -> str:
        return upkeep.build_folder_sql_identifier(self.path(table))

    def get_sql_name_in_query_command(self, table: str) -> str:
        return table

    def build_create_function_target(self, schema: str, name: str) -> tuple[str, str]:
        return "TEMPORARY FUNCTION", name

    def create_view_schema_and_get_name(self, spark: SparkSession, name: str) -> str:
        schema, view = name.split(".")
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        return f"{quote(schema)}.{quote(view)}"

    def require_writable_storage(self) -> None:
        create_home_folder(self._settings)

    def hold_exclusive_claim(
        self, spark: SparkSession | None, name: str, activity: str
    ) -> AbstractContextManager[None]:
        """Holds a file lock until the block ends, so that no other process of this machine works on the same."""
        return hold_lock_without_waiting(self._settings, name, activity)

    def require_claims_still_held(self) -> None:
        """Does nothing: a process keeps its file locks until it ends."""

    def get_fencing_token(self, name: str) -> int:
        return 0

    def build_staging_table_settings(self) -> Settings:
        """Returns settings for a second set of tables beside the live ones: in a home inside this home."""
        return self._settings.model_copy(update={"home": self._settings.home / "rebuild"})

    # -- tables

    def exists(self, spark: SparkSession | None, table: str) -> bool:
        return is_delta_table_folder(self.path(table))

    def list_tables(self, spark: SparkSession, schema: str) -> list[str]:
        found = (f"{schema}.{place.name}" for place in (self._settings.warehouse / schema).glob("*"))
        return sorted(table for table in found if self.exists(spark, table))

    def read_column_types(self, spark: SparkSession, table: str) -> dict[str, str]:
        return read_sql_column_types(open_table(self.path(table)))

    def read_properties(self, spark: SparkSession | None, table: str) -> dict[str, str]:
        return dict(open_table(self.path(table)).metadata().configuration)

    def set_property(self, spark: SparkSession, table: str, key: str, value: str) -> None:
        with self.hold_commit_lock(table):
            if set_property(open_table(self.path(table)), key, value):
                return
        super().set_property(spark, table, key, value)

    def create_table(self, spark: SparkSession, table: str, schema: TableSchema) -> None:
        from deltalake import DeltaTable, Schema
        from pyspark.sql.types import StructType

        declared = Schema.from_json(
            StructType.fromDDL(build_columns_ddl(schema.list_column_definitions(self._settings))).json()
        )
        wanted = {**schema.build_table_properties(self._settings.maintain.keep), **self.log_properties}
        wanted.pop(DELETION_VECTORS, None)
        with self.hold_commit_lock(table):
            DeltaTable.create(self.path(table), declared, "ignore", description=schema.comment, configuration=wanted)
            sync_created_folder(self.path(table))

    def set_clustering_keys(self, spark: SparkSession, table: str, keys: Iterable[str]) -> None:
        """Does nothing, because delta-rs cannot write to clustered tables."""

    def drop_table(self, spark: SparkSession, table: str) -> None:
        """Deletes the table's folder, and also its parent folders if they are empty then."""
        folder = self.path(table)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for parent in (folder.parent, self._settings.warehouse, self._settings.home):
                parent.rmdir()

    def make_tables_queryable_by_sql(self, spark: SparkSession, tables: Iterable[str]) -> None:
        for table in tables:
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(table.partition('.')[0])}")
            place, noted = str(self.path(table)), f"sessionlake.registered.{table}"
            if spark.conf.get(noted, None) != place or not spark.catalog.tableExists(table):
                # A table of this name may belong to another home. Dropping it removes the name, not the folder.
                spark.sql(f"DROP TABLE IF EXISTS {'.'.join(map(quote, table.split('.')))}")
                spark.catalog.createTable(table, path=place, source="delta")
                spark.conf.set(noted, place)

    def open_delta_table(self, spark: SparkSession, table: str) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(spark, str(self.path(table)))

    def find_missing_files(self, spark: SparkSession | None, table: str) -> list[str]:
        """Returns missing files of the table's latest version, as paths relative to the table's folder."""
        return upkeep.find_missing_files(self.path(table))

    def last_commit(self, spark: SparkSession, table: str) -> TableCommit:
        """Returns the table's latest commit, from its log; `NO_COMMIT` if there is no table."""
        return history.read_last_commit(self.path(table))

    def latest_version(self, spark: SparkSession | None, table: str) -> int:
        return history.read_latest_version(self.path(table))

    def describe_version(self, table: str, version: int) -> TableDescription:
        delta = open_table(self.path(table), version)
        fields = json.loads(delta.schema().to_json())["fields"]
        return TableDescription(
            frozenset(list_protocol_features(delta)), fields, bool(delta.metadata().partition_columns)
        )

    def set_history_retention(self, spark: SparkSession, table: str) -> None:
        self.set_properties_that_differ(
            spark, table, {RETENTION: format_interval(self._settings.maintain.keep), **self.log_properties}
        )

    def latest_commits(self, spark: SparkSession | None, table: str, count: int) -> list[LoggedCommit]:
        return history.read_latest_commits(self.path(table), count)

    def created_at(self, spark: SparkSession | None, table: str) -> datetime | None:
        created = open_table(self.path(table)).metadata().created_time
        return None if created is None else datetime.fromtimestamp(created / 1000, UTC)

    # -- reading

    def read(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        return spark.read.format("delta").options(**options).load(str(self.path(table)))

    def stream_table(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        return spark.readStream.format("delta").options(**options).load(str(self.path(table)))

    def reader(self, spark: SparkSession | None) -> FolderReader:
        return FolderReader(self.path)

    # -- writing

    def stage_rows(self, spark: SparkSession | None, table: str, rows: Rows) -> AbstractContextManager[StagedRows]:
        """Writes rows to files, so that the block can commit them. Uses Spark if only Spark may write to the table."""
        return self._stage_rows(spark, table, rows, open_table(self.path(table)))

    def _stage_rows(
        self, spark: SparkSession | None, table: str, rows: Rows, delta: LocalTable
    ) -> AbstractContextManager[StagedRows]:
        if spark is not None and find_spark_only_feature(delta):
            return stage_rows_with_spark(self, spark, table, rows)
        return write_rows_to_staged_files(self._table_location(table), rows, delta)

    def _table_location(self, table: str) -> TableLocation:
        return TableLocation(self.path(table), table, self.hold_commit_lock)

    def append_rows(self, spark: SparkSession | None, table: str, rows: Rows, txn: Txn) -> TableCommit:
        """Appends rows to the table. If the transaction is already committed, the rows are not even computed."""
        delta = open_table(self.path(table))
        if has_commit(delta, table, txn):
            return history.read_last_commit(self.path(table))
        with self._stage_rows(spark, table, rows, delta) as staged:
            return staged.commit_rows(txn)

    def has_commit(self, table: str, txn: Txn) -> bool:
        return has_commit(open_table(self.path(table)), table, txn)

    def replace_rows(self, spark: SparkSession | None, table: str, rows: pa.Table, txn: Txn | None) -> None:
        delta = open_table(self.path(table))
        if txn is not None and has_commit(delta, table, txn):
            return
        if spark is not None and find_spark_only_feature(delta):
            super().replace_rows(spark, table, rows, txn)
            return
        with write_rows_to_staged_files(self._table_location(table), rows, delta) as files:
            files.replace_files(None, txn)

    def overwrite_table(self, table: str, rows: DataFrame, txn: Txn, metadata: str, *, columns: bool = False) -> None:
        """Replaces all rows of the table. Uses Spark if columns change or only Spark may write to the table."""
        delta = open_table(self.path(table))
        if has_commit(delta, table, txn):
            return
        if columns or find_spark_only_feature(delta):
            super().overwrite_table(table, rows, txn, metadata, columns=columns)
            return
        former = open_writable_table(delta).data_files
        with write_rows_to_staged_files(self._table_location(table), rows, delta) as files:
            files.replace_files(former, txn, metadata)

    def delete_all_rows(self, spark: SparkSession, table: str, txn: Txn) -> None:
        delta = open_table(self.path(table))
        if has_commit(delta, table, txn):
            return
        if find_spark_only_feature(delta):
            super().delete_all_rows(spark, table, txn)
        else:
            StagedFiles(self._table_location(table), [], delta).replace_files(
                open_writable_table(delta).data_files, txn
            )

    def merge_rows(self, spark: SparkSession, table: str, source: Rows, upsert: Upsert, txn: Txn) -> TableCommit:
        delta, how = self._open_table_and_choose_merge(spark, table, source)
        if how is None or not isinstance(source, pa.Table):
            return merge_rows_with_spark(self, spark, table, source, upsert, txn, _MERGE_CONF)
        merge = partial(how, delta, source, upsert, lookup=MergeRowLookup(self._indexes))
        return self._merge_and_retry_without_spark(spark, table, delta, source.num_rows, txn, merge)

    def combine_and_merge_rows(
        self, spark: SparkSession, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
    ) -> TableCommit:
        """Combines rows with those rows of the table's same version that have the same keys, and MERGEs the results."""
        delta, how = self._open_table_and_choose_merge(spark, table, rows)
        if how is None:
            return super().combine_and_merge_rows(spark, table, rows, combine, upsert, txn)
        lookup = MergeRowLookup(self._indexes, combine, self.limits.driver_bytes)
        return self._merge_and_retry_without_spark(
            spark, table, delta, rows.num_rows, txn, partial(how, delta, rows, upsert, lookup=lookup)
        )

    def _open_table_and_choose_merge(
        self, spark: SparkSession, table: str, source: Rows
    ) -> tuple[LocalTable, _Merge | None]:
        """Opens the table, and returns it with the function that MERGEs these rows without Spark.

        The function is None if Spark must merge.
        """
        delta = open_table(self.path(table))
        if find_spark_only_feature(delta):
            return delta, None
        if isinstance(source, pa.Table) and self._is_small_enough_to_rewrite(delta, source.num_rows):
            return delta, partial(merge_without_spark, uses_vectors=False)
        if not open_writable_table(delta).uses_vectors:
            self.set_property(spark, table, DELETION_VECTORS, "true")
        return delta, merge_without_spark if isinstance(source, pa.Table) else None

    def _is_small_enough_to_rewrite(self, delta: LocalTable, rows: int) -> bool:
        few = self.limits.rewritten_rows
        return delta.count() <= (max(few, _REWRITE_FACTOR * rows) if few > 0 else few)  # according to the log

    def _merge_and_retry_without_spark(
        self, spark: SparkSession, table: str, delta: LocalTable, rows: int, txn: Txn, merge: _Merge
    ) -> TableCommit:
        self.require_claims_before_commit(table)
        with self.hold_commit_lock(table):
            done = not rows
            while not done:  # repeated if a process that does not use this lock committed first
                delta.update_incremental()  # takes a tenth of the time of opening the table
                done = has_commit(delta, table, txn) or merge(txn.build_delta_app_id(table), txn.version)
            return self.last_commit(spark, table)

    def append_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        with self.hold_commit_lock(table):
            rows.write.format("delta").mode("append").options(**options).save(str(self.path(table)))

    def replace_rows_with_spark(self, rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
        with self.hold_commit_lock(table):
            rows.write.format("delta").mode("overwrite").options(**options).save(str(self.path(table)))

    # -- upkeep

    def hold_commit_lock(self, table: str) -> AbstractContextManager[None]:
        """Holds a lock that excludes other commits to the table, because Spark could overwrite one on a local disk."""
        return hold_lock_after_waiting(self._settings, f"commit-{table}")

    def compact_table(self, spark: SparkSession, table: str) -> CompactionResult | None:
        with self.hold_commit_lock(table):
            return compaction.compact_table_in_folder(spark, self.path(table))

    def count_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> int:
        if find_spark_only_feature(open_table(self.path(table))):
            return count_rows_with_spark(self, spark, table, selection)
        return removal.count_rows(self.path(table), selection)

    def remove_rows(self, spark: SparkSession, table: str, selection: RowSelection) -> None:
        if find_spark_only_feature(open_table(self.path(table))):
            remove_rows_with_spark(self, spark, table, selection)
            return
        with self.hold_commit_lock(table):
            removal.remove_rows(self.path(table), selection)

    def erase_messages(self, spark: SparkSession, table: str, rows: SessionRowSelection) -> None:
        if find_spark_only_feature(open_table(self.path(table))):
            erase_messages_with_spark(self, spark, table, rows)
            return
        with self.hold_commit_lock(table):
            removal.rewrite_selected_rows(self.path(table), rows, rows.erase_selected_rows)

    def purge_deletion_vectors(self, table: str) -> int:
        """Rewrites the table's files with deletion vectors. A later MERGE into a large table may add new vectors."""
        with self.hold_commit_lock(table):
            return removal.purge_deletion_vectors(self.path(table))

    def purge_history(self, spark: SparkSession, table: str, why: str, since: int | None = None) -> VacuumResult:
        self.set_property(spark, table, PURGED, why)
        with self.hold_commit_lock(table):
            return upkeep.purge_history(spark, self.path(table), since)

    def needs_vacuum(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> bool:
        return upkeep.has_many_versions_to_remove(self.path(table), history_to_keep)

    def vacuum_table(self, spark: SparkSession, table: str, history_to_keep: HistoryToKeep) -> VacuumResult:
        with self.hold_commit_lock(table):
            return upkeep.vacuum_folder(spark, self.path(table), history_to_keep)
