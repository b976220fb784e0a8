"""Processors with a key: they compute a table from all rows that another table, the source, has of each key.

They keep no state besides the table. Each batch says which keys have new or changed rows. All rows of these keys are
processed again in order, and one MERGE replaces the output rows of these keys. So late rows, other batch boundaries,
replays and rebuilds give the same rows. But each batch reads all rows of its keys, and scans the source's key columns.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.build import read_code_version
from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.definition import TableSchema, add_comments
from sessionlake.delta.schemas.names import LEDGER, REFERENCE
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, STATISTICS_COLUMNS, decode_column_list
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ConfigError, DataLossError, LakeError
from sessionlake.gold.tables.table_properties import LOGIC
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.ledger.retained import read_removal_records_without_limits
from sessionlake.processors.by_class import KeyedComputation
from sessionlake.processors.by_product import ProductComputation
from sessionlake.processors.difference import TableDifference, compare_tables
from sessionlake.processors.load import hash_processor_settings
from sessionlake.processors.output import BATCH, BATCH_COMMENT
from sessionlake.protocol.names import DELETE, quote
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProcessorSettings, ProductProcessor
from sessionlake.streaming.checkpoint import read_last_planned_batch
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.source_columns import (
    can_read_version_at_checkpoint,
    find_changed_source_column,
    is_checkpoint_ahead_of_table,
    read_delta_table_id,
    read_last_planned_offset,
)
from sessionlake.streaming.stores import archive_checkpoint_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KeyedProcessorTable:
    """The output table of a processor with a key, and how it is computed from the source table.

    Attributes:
        computation: Computes output rows with the user's class or the declared product.
        columns: All columns of the output table with their Spark SQL types.

    Raises:
        ConfigError: The class, the product or the columns cannot be used.
        LakeError: The source table does not exist.
    """

    def __init__(self, spark: SparkSession, settings: Settings, config: ProcessorSettings) -> None:
        self._settings, self._config = settings, config
        if not Lake(settings).exists(spark, config.source):
            raise LakeError(
                f"{config.layer}: its source {config.source} does not exist yet",
                fix="Run `sessionlake run all --once`, which runs all layers and processors, or correct `source`",
            )
        present = Lake(settings).storage.read_column_types(spark, config.source)
        self.computation = (
            ProductComputation(config, present)
            if isinstance(config, ProductProcessor)
            else KeyedComputation(config, present)
        )
        self.columns = (*self.computation.columns, (BATCH, "bigint"))
        by = self.computation.by
        columns = add_comments(self.columns, {**self.computation.comments, BATCH: BATCH_COMMENT})
        schema = TableSchema(
            columns,
            self.computation.comment,
            written_by="processors.keyed",
            cluster_by=by[:2],
            statistics_columns=by,
            change_feed=True,
        )
        self.lake = Lake(settings, {config.output_table: schema})

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the columns that identify a row of the output table."""
        return self.computation.keys

    def require_same_key_as_stored(self, spark: SparkSession) -> None:
        """Checks that an existing output table was written with the configured key.

        Raises:
            ConfigError: The table was written with another key.
        """
        config = self._config
        if (by := self._read_stored_key_columns(spark)) not in (None, self.computation.by):
            raise ConfigError(
                f"{config.config_key}.key: the table {config.output_table} was written with the key "
                f"{', '.join(by or ())}, but the configuration has the key {', '.join(self.computation.by)}",
                fix=f"Choose another `table`. Or drop it, and run `sessionlake rebuild {config.rebuild_argument}`",
            )

    def _read_stored_key_columns(self, spark: SparkSession) -> tuple[str, ...] | None:
        """Returns the key columns of the existing output table; None if there is no table."""
        table = self._config.output_table
        if not self.lake.exists(spark, table):
            return None
        return decode_column_list(self.lake.storage.read_properties(spark, table).get(STATISTICS_COLUMNS, ""))

    # -- which declaration a product's rows were computed by

    def is_up_to_date(self, spark: SparkSession) -> bool:
        """Returns True if the output table is complete and was computed by the present declaration of the product."""
        lake, table = self.lake, self._config.output_table
        if not lake.exists(spark, table):
            return False
        return lake.storage.read_properties(spark, table).get(LOGIC) == self.computation.logic

    def prepare_table(self, spark: SparkSession) -> None:
        """Creates the output table if it does not exist, and checks how its existing rows were computed.

        Raises:
            ConfigError: A user's class computes the table, and the existing rows have another key.
            LakeError: A product computes the table, and existing rows are incomplete or follow another declaration.
        """
        config, lake, logic = self._config, self.lake, self.computation.logic
        if logic is None:
            self.require_same_key_as_stored(spark)
        elif not self.is_up_to_date(spark):
            checkpoint = self._settings.checkpoint_path(config.layer)
            begun = CheckpointGenerations(checkpoint, config.layer).current_generation.app_id is not None
            if begun or (lake.exists(spark, config.output_table) and lake.reader(spark).has_rows(config.output_table)):
                raise LakeError(
                    f"{config.output_table} was computed with another declaration (hash {logic}), or not completely",
                    fix=f"Run `sessionlake rebuild {config.rebuild_argument}`, which computes it again",
                )
        lake.create_or_update_tables(spark, [config.output_table, LEDGER])
        self.store_declaration_hash(spark)

    def archive_unusable_checkpoint(self, spark: SparkSession) -> None:
        """Archives the stream's checkpoint if the stream cannot resume from it. The next start reads the whole source.

        It cannot if the source is another table, was restored, has other columns, or lacks the versions to read next.
        Call this only when the output table already has all rows.
        """
        config, checkpoint = self._config, self._settings.checkpoint_path(self._config.layer)
        read, place = read_last_planned_offset(checkpoint), (spark, self.lake, config.source, checkpoint)
        of_another = read is not None and read.table != read_delta_table_id(spark, self.lake, config.source)
        if (
            of_another
            or is_checkpoint_ahead_of_table(*place)
            or not can_read_version_at_checkpoint(*place)
            or find_changed_source_column(*place) is not None
        ):
            archive_checkpoint_folders(spark, self.lake, [Path(checkpoint)], uuid.uuid4().hex[:12])

    def prepare_rebuild(self, spark: SparkSession) -> None:
        """Marks the table of a product as incomplete if its declaration has changed; drops it if its key has."""
        config, lake = self._config, self.lake
        if (
            self.computation.logic is not None
            and lake.exists(spark, config.output_table)
            and not self.is_up_to_date(spark)
        ):
            lake.set_property(spark, config.output_table, LOGIC, "")
            if self._read_stored_key_columns(spark) != self.computation.by:
                lake.drop_table(spark, config.output_table)

    def store_declaration_hash(self, spark: SparkSession) -> None:
        """Stores a hash of the product's declaration in the table's properties, which marks the table as complete."""
        if self.computation.logic is not None and not self.is_up_to_date(spark):
            self.lake.set_property(spark, self._config.output_table, LOGIC, self.computation.logic)

    # -- reading the source

    def read_source_stream(self, spark: SparkSession) -> DataFrame:
        """Returns a stream of the rows that are added to the source table or changed in it.

        Raises:
            LakeError: The source table does not record its changes.
        """
        config, entry = self._config, self.lake.storage.read_properties(spark, self._config.source)
        if config.source.startswith(REFERENCE) and entry.get(CHANGE_FEED) != "true":
            self.lake.set_property(spark, config.source, CHANGE_FEED, "true")
            entry = {CHANGE_FEED: "true"}
        if entry.get(CHANGE_FEED) == "true":
            options = {"readChangeFeed": "true"}
        elif entry.get(APPEND_ONLY) is not None or (config.source in TABLES and TABLES[config.source].is_append_only):
            options = SKIP_REMOVALS
        else:
            raise LakeError(
                f"{config.config_key}.source: the table {config.source} does not record which of its rows change",
                why="It can have updates, and no change data feed",
                fix="Name another source. For a table of gold, add its name to `gold.change_feed`",
            )
        return self.lake.stream_table(spark, config.source, self._settings.silver.max_bytes_per_trigger, options)

    def read_source_table(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Returns all rows of the source table at a version; None means the latest.

        Raises:
            LakeError: Retention has removed some of the rows.
        """
        config = self._config
        cut = read_removal_records_without_limits(self.lake.reader(spark)).get(config.source)
        if cut is not None and cut.max_missing_rows:
            raise LakeError(
                f"{cut.removal_description}",
                why=f"Processor {config.name} computes a key's rows from all rows of the key in this table",
                fix=f"Let maintain.retention keep the table's rows, or set {config.config_key}.source to another table",
            )
        return self.lake.read(spark, config.source, version)

    def compute_rows(self, spark: SparkSession, changed_keys: DataFrame | None = None) -> DataFrame:
        """Returns the output rows, without `_batch`, computed from the source table's current rows.

        Args:
            spark: The Spark session.
            changed_keys: The keys whose rows are computed, with the key's columns; None for all keys.

        Raises:
            LakeError: Retention has removed some of the source rows.
            ProcessorError: The user's class failed.
        """
        rows = self.computation.select_input_rows(self.read_source_table(spark))
        if changed_keys is not None:
            rows = rows.join(changed_keys, list(self.computation.by), "left_semi")
        return self.computation.compute_rows(rows)


def start_keyed_processor(
    spark: SparkSession, settings: Settings, config: ProcessorSettings, *, once: bool = False
) -> LayerQuery:
    """Starts the stream of a processor with a key, and returns its query.

    Args:
        spark: The Spark session.
        settings: The configuration.
        config: The processor's settings.
        once: True to process only what the source table holds now, and then end.

    Raises:
        ConfigError: The class, the product or the columns cannot be used.
        LakeError: The output table, the source table and the checkpoint do not belong together.
    """
    table = KeyedProcessorTable(spark, settings, config)
    table.prepare_table(spark)
    _refuse_outdated_checkpoint(table.lake.reader(spark), settings, config)
    other = find_changed_source_column(spark, table.lake, config.source, settings.checkpoint_path(config.layer))
    if other is not None:
        raise LakeError(
            f"{config.layer}: {config.source} had a column {other} when it was read last, and now lacks it",
            why="So earlier versions of the table cannot be compared with later ones",
            fix=f"Run `sessionlake rebuild {config.rebuild_argument}`, which computes {config.output_table} again",
        )
    if is_checkpoint_ahead_of_table(spark, table.lake, config.source, settings.checkpoint_path(config.layer)):
        raise DataLossError(
            f"{config.layer} has read versions of {config.source} that are gone: the table was restored to an "
            "older one",
            fix=f"Run `sessionlake rebuild {config.rebuild_argument}`, which computes {config.output_table} again",
        )
    query = LayerQuery(config.layer, settings.checkpoint_path(config.layer))
    return query.start(
        table.read_source_stream(spark),
        _KeyedBatchCommit(table, Ledger(table.lake), settings, config),
        trigger=config.trigger,
        once=once,
    )


def _refuse_outdated_checkpoint(reader: TableReader, settings: Settings, config: ProcessorSettings) -> None:
    """Checks that the checkpoint is not older than the ledger.

    An older checkpoint would reuse batch numbers that the table already has, and Delta would skip these batches.

    Raises:
        DataLossError: The ledger has later batches than the checkpoint.
    """
    checkpoint = settings.checkpoint_path(config.layer)
    app_id, planned = (
        CheckpointGenerations(checkpoint, config.layer).current_generation.app_id,
        read_last_planned_batch(checkpoint),
    )
    recorded = None if app_id is None else read_last_batch_number(reader, config.layer, app_id)
    if recorded is not None and (planned is None or recorded > planned):
        raise DataLossError(
            f"{config.layer}: the checkpoint {checkpoint} ends with batch {planned}, but its table "
            f"holds batches up to {recorded}",
            fix="Restore the newer checkpoint. Or remove it: all rows are read again, and the table stays the same",
        )


@dataclass(frozen=True)
class _KeyedBatchCommit:
    """Replaces the output rows of all keys that occur in a micro-batch, then writes the ledger row."""

    table: KeyedProcessorTable
    ledger: Ledger
    settings: Settings
    config: ProcessorSettings

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, config = datetime.now(UTC), frame.sparkSession, self.config
        by, lake = self.table.computation.by, self.table.lake
        keys = self.table.computation.select_input_rows(frame).select(*map(quote, by)).distinct().localCheckpoint()
        rows = self.table.compute_rows(spark, keys).withColumn(BATCH, F.lit(txn.version).cast("bigint"))
        same = list(self.table.key_columns)
        former = self._select_replaced_rows(spark, keys, is_first_batch=not txn.version)
        gone = former.join(rows.select(*map(quote, same)), same, "left_anti").withColumn(DELETE, F.lit(col=True))
        source = rows.withColumn(DELETE, F.lit(col=False)).unionByName(gone).localCheckpoint()
        count, outputs = source.count(), list[TableOutput]()
        if count:
            others = tuple(name for name, _ in self.table.columns if name not in same)
            upsert = Upsert(self.table.key_columns, others, pruned_by=by[:1], deletes=True)
            commit = merge_rows(spark, lake, config.output_table, source, upsert, txn)
            outputs.append(TableOutput(config.output_table, commit.version, count))
        by_settings = hash_processor_settings(self.settings, config)
        entry = LedgerEntry(config.layer, txn, config.source, started, outputs=tuple(outputs), config_hash=by_settings)
        self.ledger.write_entry(spark, entry)

    def _select_replaced_rows(self, spark: SparkSession, changed_keys: DataFrame, *, is_first_batch: bool) -> DataFrame:
        """Returns the output table's present rows that the batch replaces or deletes.

        Args:
            spark: The Spark session.
            changed_keys: The keys in the batch.
            is_first_batch: True to include rows of keys that the source table lacks, as no later batch reports these.
        """
        work, held = self.table.computation, self.table.lake.read(spark, self.config.output_table)
        if not is_first_batch:
            return held.join(changed_keys, list(work.by), "left_semi")
        exists = work.select_input_rows(self.table.read_source_table(spark)).select(*map(quote, work.by)).distinct()
        return held.join(exists.join(changed_keys, list(work.by), "left_anti"), list(work.by), "left_anti")


def rebuild_table(spark: SparkSession, settings: Settings, config: ProcessorSettings) -> tuple[int, TableDifference]:
    """Recomputes the output table from all rows of the source table. Rows are written in one commit, if any differ.

    The stream resumes from its checkpoint, and processes the rows again that it had not read yet. If it cannot resume,
    its checkpoint is archived and the stream reads the whole source table again.

    Returns:
        The number of rows, and how the table differs from the table before.
    """
    from pyspark.sql import functions as F

    started, table = datetime.now(UTC), KeyedProcessorTable(spark, settings, config)
    table.prepare_rebuild(spark)
    rows, found = _recompute_rows(spark, table, config)
    lake, last = table.lake, read_last_batch_number(table.lake.reader(spark), config.layer)
    txn = Txn(f"{REBUILD}{uuid.uuid4().hex[:12]}", 0 if last is None else last + 1)
    by = hash_processor_settings(settings, config)
    metadata = json.dumps({"sessionlake": read_code_version(), "config": by})
    numbered = rows.withColumn(BATCH, F.lit(txn.version).cast("bigint"))
    columns = lake.storage.read_column_types(spark, config.output_table) != dict(table.columns)
    if found or columns:  # without a difference nothing is written, so that readers of the table see no change
        lake.overwrite_table(spark, config.output_table, numbered, txn, metadata, columns=columns)
    output = TableOutput(config.output_table, lake.latest_version(spark, config.output_table), found.rows)
    Ledger(lake).write_entry(
        spark, LedgerEntry(config.layer, txn, config.source, started, outputs=(output,), config_hash=by)
    )
    # Only after the rows are written: a new stream would not remove rows of keys that the source no longer has.
    table.archive_unusable_checkpoint(spark)
    table.store_declaration_hash(spark)
    return found.rows, found


def preview_keyed_table_rebuild(spark: SparkSession, settings: Settings, config: ProcessorSettings) -> TableDifference:
    """Returns how a rebuild would change the output table. No row is written."""
    return _recompute_rows(spark, KeyedProcessorTable(spark, settings, config), config)[1]


def _recompute_rows(
    spark: SparkSession, table: KeyedProcessorTable, config: ProcessorSettings
) -> tuple[DataFrame, TableDifference]:
    table.require_same_key_as_stored(spark)
    if not table.lake.exists(spark, config.output_table):
        table.lake.create_or_update_tables(spark, [config.output_table, LEDGER])
    rows = table.compute_rows(spark)
    return rows, compare_tables(table.lake.read(spark, config.output_table), rows, table.key_columns)
