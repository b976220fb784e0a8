"""Runs a processor as a layer over `bronze.messages`.

Messages are judged as in silver, and results are committed exactly once.

Each processor has its own checkpoint and judges the messages itself, by silver's rules. So its output follows from
bronze alone, and its failures stop neither silver nor other processors.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import TableSchema, WriteMode, add_comments
from sessionlake.delta.schemas.names import DECISIONS, LEDGER, MESSAGES, PROCESSOR_ERRORS, VIEWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import ConfigError, DataLossError, LakeError
from sessionlake.gold.declared.tables import create_product_from_settings
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.processors import keyed
from sessionlake.processors.load import create_processor_class_reference, hash_processor_settings
from sessionlake.processors.output import HEAD_COMMENTS, OutputColumns
from sessionlake.processors.outputs import (
    ProcessorOutput,
    ProcessorReport,
    decode_processor_report,
    raise_first_failure,
)
from sessionlake.processors.shard import MessageProcessor, create_message_processor
from sessionlake.processors.stored import require_readable_states
from sessionlake.protocol.names import quote
from sessionlake.settings.feed_history import list_feed_mappings
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.silver.decisions import read_operator_decisions_in_force
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import (
    build_stop_error,
    list_offset_ranges,
    load_offset_log,
    select_table_rows,
    sum_ledger_counts,
    sum_partition_counts,
)
from sessionlake.silver.mappings import refuse_changed_feeds
from sessionlake.silver.packing import build_packed_stream
from sessionlake.silver.stream_times import StreamTimesLog, require_continued_stream_times
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming import handover
from sessionlake.streaming.folded import FoldedBatch, collect_fold_reports
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.journal import discard_building_record, refuse_interrupted_operations
from sessionlake.streaming.manifest import record_batch_commit, record_message_that_stopped_layer
from sessionlake.streaming.operation import create_processor_rebuild_operation
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import ShardFold, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_processor_settings(settings: Settings, name: str) -> ProcessorSettings:
    """Returns the settings of the processor with this name.

    Raises:
        ConfigError: No processor has this name, or its output table is one of sessionlake's own tables.
    """
    processor = next((processor for processor in settings.processors if processor.name == name), None)
    if processor is None:
        known = ", ".join(processor.name for processor in settings.processors) or "none"
        raise ConfigError(
            f"no processor is named {name!r} in the configuration",
            fix=f"Name one of the configured processors: {known}",
        )
    if processor.output_table in {*TABLES, *VIEWS}:
        raise ConfigError(
            f"{processor.config_key}.table: {processor.output_table} is a table of sessionlake itself",
            fix="Choose another name for the processor's table",
        )
    return processor


def require_loadable_processor(settings: Settings, name: str) -> None:
    """Checks that the processor with this name can be loaded.

    Raises:
        ConfigError: The processor is not configured, or its class cannot be used.
    """
    config = find_processor_settings(settings, name)
    if isinstance(config, ProductProcessor):
        create_product_from_settings(config.product)
    elif config.key:
        create_processor_class_reference(config).load_keyed_processor()
    else:
        load_processor(settings, name)


def load_processor(settings: Settings, name: str) -> MessageProcessor:
    """Loads and checks the class of the processor with this name. The processor must be one without a key.

    Raises:
        ConfigError: The processor is not configured, or its class cannot be used.
    """
    config = find_processor_settings(settings, name)
    ref = create_processor_class_reference(config)
    processor = create_message_processor(config, settings.capture, settings.silver.shards, ref)
    _ = processor.loaded_processor
    return processor


def start(spark: SparkSession, settings: Settings, name: str, *, once: bool = False) -> LayerQuery:
    """Starts a processor's stream and returns its query.

    Args:
        spark: The Spark session.
        settings: The configuration.
        name: The processor's name.
        once: True to process only what the source holds now, and then end. False to run until stopped.

    Raises:
        ConfigError: The processor is not configured, or its class cannot be used.
        LakeError: The checkpoint is new but the table has rows. Or the declared columns do not fit the table. Or a
            stored state cannot be read. Nothing was processed.
    """
    config = find_processor_settings(settings, name)
    refuse_interrupted_operations(settings, config.layer)
    if config.key:
        return keyed.start_keyed_processor(spark, settings, config, once=once)
    processor = load_processor(settings, name)
    lake = Lake(settings, {config.output_table: build_output_schema(config, processor.loaded_processor.output)})
    lake.create_or_update_tables(spark, [MESSAGES, config.output_table, PROCESSOR_ERRORS, DECISIONS, LEDGER])
    refuse_new_checkpoint_over_data(spark, lake, settings, config.layer)
    discard_building_record(settings, create_processor_rebuild_operation(config))
    _refuse_new_checkpoint_over_rows(spark, lake, config)
    checkpoint, begin = (
        settings.checkpoint_path(config.layer),
        handover.read_active_handover(settings, config.layer),
    )
    require_readable_states(spark, settings, config.layer, processor)
    fold = create_processor_fold(spark, lake, processor)
    if begin is not None:
        fold = handover.FoldResumedFromHandover(fold, str(handover.find_active_handover_folder(settings, config.layer)))
    first_batch = begin.first_batch if begin else 0
    log = load_offset_log(spark, lake, settings, config.layer, first_batch)
    last_batch, topics = (
        handover.read_next_batch_number(settings, config.layer) - 1,
        {topic for topic, _ in log.last_offsets},
    )
    refuse_changed_feeds(lake.reader(spark), settings, last_batch, topics, config.layer)
    times = StreamTimesLog.open_log(spark, settings, config.layer, log.last_offsets)
    stream = fold_shards(build_packed_stream(spark, lake, settings, config.layer, config.topics, begin), fold)
    batch = _ProcessorBatchCommit(lake, settings, config, processor, log, times)
    return LayerQuery(config.layer, checkpoint).start(
        stream, batch, trigger=config.trigger, once=once, txn=lambda query, number: Txn(query, first_batch + number)
    )


def _refuse_new_checkpoint_over_rows(spark: SparkSession, lake: Lake, config: ProcessorSettings) -> None:
    """Refuses to start without a checkpoint over a filled table, since all rows would be appended again.

    Raises:
        DataLossError: The output table has rows.
    """
    begun = (
        CheckpointGenerations(lake.settings.checkpoint_path(config.layer), config.layer).current_generation.app_id
        is not None
    )
    if (
        not begun
        and handover.read_active_handover(lake.settings, config.layer) is None
        and lake.reader(spark).has_rows(config.output_table)
    ):
        raise DataLossError(
            f"processor {config.name}: its table {config.output_table} has rows already, though the "
            "processor has not run yet",
            why="It would append the rows of all messages again",
            fix=f"Run `sessionlake rebuild processor:{config.name}`, which computes the table from all of "
            "bronze. Or choose another table name for the processor",
        )


def create_processor_fold(spark: SparkSession, lake: Lake, processor: MessageProcessor) -> ShardFold:
    """Returns the function that judges a shard's messages as silver does, and passes applied ones to the processor."""
    capture = lake.settings.capture
    return SilverFold(
        capture.declared_columns, capture, read_operator_decisions_in_force(lake.reader(spark)), processor=processor
    )


def build_output_ddl(kind: ProcessorOutput, output: OutputColumns) -> str:
    """Returns the columns of the processor's output table, or of its table of errors, as Spark DDL.

    Args:
        kind: `RECORDS` for the output table, `ERRORS` for `silver.processor_errors`.
        output: The columns of the output table.
    """
    columns = output.column_types if kind is ProcessorOutput.RECORDS else TABLES[PROCESSOR_ERRORS].column_types
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)


def build_output_schema(config: ProcessorSettings, output: OutputColumns) -> TableSchema:
    """Returns the schema with which a processor's output table is created.

    Args:
        config: The processor's configuration.
        output: The columns of the table.
    """
    return TableSchema(
        add_comments(output.column_types, HEAD_COMMENTS | output.column_comments),
        f"Records of the processor {config.name}",
        written_by="processors.job",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "_offset", "_batch"),
        writes=WriteMode.APPEND,
    )


class _ProcessorBatchCommit:
    """Commits a micro-batch of a processor: first its records and failures, then its entry in the ledger.

    If a message stops the layer, the processor failed, or offsets or stream times have a hole, it raises an error
    before it writes.
    """

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        config: ProcessorSettings,
        processor: MessageProcessor,
        log: OffsetLog,
        times: StreamTimesLog,
    ) -> None:
        self._lake, self._ledger, self._settings, self._config = lake, Ledger(lake), settings, config
        self._output = processor.loaded_processor.output
        self._hash = hash_processor_settings(settings, config)
        self._log, self._times = log, times
        self._few = False  # whether the last batch was small: the best guess for the next one

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        started, spark, config = datetime.now(UTC), frame.sparkSession, self._config
        frame.persist()
        try:
            with disable_code_generation(spark, enabled=self._few):
                folded, written = collect_fold_reports(
                    frame, ProcessorOutput.REPORT, self._lake.driver_limits.inline_bytes
                )
            reports = [decode_processor_report(report) for report in written]
            partitions = sum_partition_counts([*reports])
            if violation := build_stop_error([*reports]):
                record_message_that_stopped_layer(self._settings, violation.violation, config.layer)
                raise violation
            raise_first_failure(config.name, reports)
            ranges = list_offset_ranges(partitions)
            self._log.require_consecutive_ranges(
                ranges, allow_gaps=self._settings.allows_offset_gaps, layer=config.layer
            )
            require_continued_stream_times(config.layer, partitions, self._log.last_offsets)
            with record_batch_commit(self._settings, config.layer, txn.version, self._hash, ranges):
                entry = LedgerEntry(
                    layer=config.layer,
                    txn=txn,
                    source=MESSAGES,
                    started_at=started,
                    offsets=ranges,
                    outputs=self._append_records_and_failures(folded, reports, txn),
                    **sum_ledger_counts(partitions),
                    config_hash=self._hash,
                    feeds=list_feed_mappings(self._settings.capture),
                )
                self._lake.storage.require_claims_still_held()  # another process may have taken the layer over
                self._times.add_batch_notes(partitions, reports)
                self._ledger.write_entry(spark, entry)
        finally:
            frame.unpersist()
        self._log.record_committed_ranges(ranges)
        self._few = entry.messages <= self._lake.driver_limits.few_messages

    def _append_records_and_failures(
        self, folded: FoldedBatch, reports: list[ProcessorReport], txn: Txn
    ) -> tuple[TableOutput, ...]:
        """Appends the batch's records and failures to their tables. A table without new rows gets no commit.

        Returns the tables that were written, each with its new version and the number of added rows.

        Raises:
            LakeError: The table's last commit has another number of rows than the processor yielded.
        """
        spark, outputs = folded.frame.sparkSession, []
        for kind, table in (
            (ProcessorOutput.RECORDS, self._config.output_table),
            (ProcessorOutput.ERRORS, PROCESSOR_ERRORS),
        ):
            count = sum(report.rows.get(kind, 0) for report in reports)
            if count:
                rows = select_table_rows(folded, kind, txn, build_output_ddl(kind, self._output))
                commit = append_rows(spark, self._lake, table, rows, txn)
                # Other processors also append to the table of errors: its last commit may be theirs.
                if kind is ProcessorOutput.RECORDS and commit.rows not in (0, count):
                    raise LakeError(
                        f"processor {self._config.name}: version {commit.version} of {table} has {commit.rows} "
                        f"rows of this batch, but the repeated batch yields {count}",
                        why="A repeated batch must give the same rows",
                        fix=f"If rows were removed from {MESSAGES} by hand, restore it (RESTORE TABLE). If another "
                        f"program writes to {table}, name another table under processors.{self._config.name}",
                    )
                outputs.append(TableOutput(table, commit.version, count))
        return tuple(outputs)
