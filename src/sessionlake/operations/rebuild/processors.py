"""`sessionlake rebuild processor:NAME`: makes a processor's table again from all of bronze, with the present code.

The new table is built beside the live one, compared with it, and published in one commit. The stream then resumes from
the states that the rebuild leaves. Delta's time travel still reads the former table. If the publication is interrupted,
the same command finishes it; until then the processor does not start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append_rows, remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, LEDGER, MESSAGES, PROCESSOR_ERRORS, RETAINED
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.expired import LIMIT, ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import Ledger, TableOutput
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.operations.rebuild import publishing
from sessionlake.operations.rebuild.endings import reject_later_commits_of_query
from sessionlake.operations.rebuild.publishing import (
    RebuildPublishPlan,
    add_batch_column,
    build_rebuild_ledger_entry,
    finish_publishing_rebuild,
    iterate_states_by_shard,
    replace_table,
)
from sessionlake.operations.rebuild.replay import is_bronze_small, require_complete_bronze
from sessionlake.operations.rebuild.slices import BronzeSliceReplayer
from sessionlake.processors.difference import TableDifference, compare_tables
from sessionlake.processors.job import (
    build_output_ddl,
    build_output_schema,
    create_processor_fold,
    find_processor_settings,
    load_processor,
)
from sessionlake.processors.load import hash_processor_settings
from sessionlake.processors.outputs import ProcessorOutput, decode_processor_report, raise_first_failure
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.silver.fold.schemas import PartitionMessageCounts, ShardReport
from sessionlake.silver.job import select_table_rows, sum_partition_counts
from sessionlake.silver.unread import read_unread_silences
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming import handover
from sessionlake.streaming.journal import OperationJournal, record_tables_being_built, refuse_interrupted_operations
from sessionlake.streaming.operation import create_processor_rebuild_operation
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

KEYS = (*SESSION, "_position", "ordinal")
"""The columns that identify a record, which is a row of a processor's table."""


@dataclass(frozen=True)
class ProcessorRebuildResult:
    """The result of rebuilding a processor's table.

    Attributes:
        table: The name of the processor's table.
        version: The version of `bronze.messages` from which it was built.
        messages: The number of messages read.
        behind: How many of these messages the processor had not read before the rebuild.
        different: How the former table differs from the new one; None if an interrupted rebuild was finished.
    """

    table: str
    version: int
    messages: int
    behind: int = 0
    different: TableDifference | None = None


def rebuild_processor(
    spark: SparkSession,
    settings: Settings,
    processor_name: str,
    *,
    slice_messages: int | None = None,
    start_over: bool = False,
) -> ProcessorRebuildResult:
    """Builds a processor's table again from all of bronze with the present code, and replaces the live table.

    If a rebuild was interrupted while it was published, finishes that one instead.

    Args:
        processor_name: The processor's name.
        slice_messages: About how many messages are read at a time; None means the default.
        start_over: True to build everything again instead of finishing an interrupted rebuild.

    Raises:
        LakeError: Retention has removed messages of bronze, or judging stops at a violation. Nothing was changed.
        ProcessorError: The processor's code failed under `fail`. Nothing was changed.
    """
    work = _ProcessorRebuilder(spark, settings, processor_name, slice_messages)
    with disable_code_generation(spark, enabled=is_bronze_small(spark, work.lake)):
        return work.run_rebuild(start_over=start_over)


def cancel_rebuild(spark: SparkSession, settings: Settings, processor_name: str) -> None:
    """Cancels an interrupted rebuild of a processor's table that has not replaced the table yet.

    This process must have claimed the processor.

    Raises:
        UsageError: No rebuild of this processor was interrupted.
        LakeError: The table was replaced already, or it is not known whether it was.
    """
    _ProcessorRebuilder(spark, settings, processor_name, None).cancel_rebuild()


def preview_processor_rebuild(spark: SparkSession, settings: Settings, processor_name: str) -> TableDifference:
    """Builds a processor's table from the messages it has read, and compares it with the live table.

    Nothing is changed.

    Raises:
        LakeError: Retention has removed messages of bronze, judging stops at a violation, or a rebuild was interrupted,
            whose unpublished tables a comparison would overwrite.
        ProcessorError: The processor's code failed under `fail`.
    """
    processor = find_processor_settings(settings, processor_name)
    refuse_interrupted_operations(settings, processor.layer)
    work = _ProcessorRebuilder(spark, settings, processor_name, None)
    with disable_code_generation(spark, enabled=is_bronze_small(spark, work.lake)):
        work.replay_messages_into_staging(
            work.lake.latest_version(spark, MESSAGES),
            OffsetLog.load_from_ledger(spark, work.lake, work.processor.layer).last_offsets,
        )
        difference = work.compare_staging_with_live_table()
        work.remove_staging_tables()
        return difference


def list_staging_tables_of_processor(processor_name: str) -> tuple[str, str]:
    """Returns the names of the staging tables for a processor's records and for its errors.

    They are in the schemas silver and ops, because other schemas have no staging tables.
    """
    return f"silver.records_of_{processor_name}", f"silver.errors_of_{processor_name}"


class _ProcessorRebuilder:
    """Rebuilds the table of one processor: in staging tables first, which then replace the live table."""

    def __init__(self, spark: SparkSession, settings: Settings, name: str, slice_messages: int | None) -> None:
        self._spark, self._settings, self._slice = spark, settings, slice_messages
        self.processor: ProcessorSettings = find_processor_settings(settings, name)
        self._operation = create_processor_rebuild_operation(self.processor)
        self._loaded = load_processor(settings, name)
        self._records, self._errors = list_staging_tables_of_processor(name)
        self._tables = {ProcessorOutput.RECORDS: self._records, ProcessorOutput.ERRORS: self._errors}
        records, errors = (
            build_output_schema(self.processor, self._loaded.loaded_processor.output),
            TABLES[PROCESSOR_ERRORS],
        )
        self.lake = Lake(settings, {self.processor.output_table: records, self._records: records, self._errors: errors})
        self.lake.create_or_update_tables(spark, [MESSAGES, PROCESSOR_ERRORS, DECISIONS, LEDGER])
        if not self.lake.exists(spark, self.processor.output_table):
            self.lake.create_or_update_tables(spark, [self.processor.output_table])
        self._staging = self.lake.build_staging_lake()
        self._states: DataFrame | None = None
        self._partitions: list[PartitionMessageCounts] = []
        self._version = -1

    def cancel_rebuild(self) -> None:
        """Cancels an interrupted rebuild that has replaced nothing."""
        processor = self.processor
        publishing.cancel_unpublished_rebuild(
            self._spark,
            self.lake,
            self._operation,
            processor.layer,
            [processor.output_table],
            self.remove_staging_tables,
        )

    def run_rebuild(self, *, start_over: bool = False) -> ProcessorRebuildResult:
        """Builds and publishes the table, or finishes an interrupted rebuild."""
        settings, processor = self._settings, self.processor
        refuse_interrupted_operations(settings, processor.layer, except_for=[self._operation], from_bronze=True)
        journal = None if start_over else OperationJournal.read_journal(settings, self._operation, RebuildPublishPlan)
        if journal is not None:
            self._publish_rebuilt_tables(journal)
            return ProcessorRebuildResult(
                processor.output_table, journal.inputs.version, journal.inputs.counts["messages"]
            )
        started = datetime.now(UTC)
        ends = OffsetLog.load_from_ledger(self._spark, self.lake, processor.layer).last_offsets
        version = self.lake.latest_version(self._spark, MESSAGES)
        with record_tables_being_built(settings, self._operation, version):
            self.replay_messages_into_staging(version)
            difference = self.compare_staging_with_live_table()
            plan = self._build_publish_plan(started)
            publishing.prepare_handover(settings, processor.layer, plan, iterate_states_by_shard(self._states))
            self.lake.storage.require_claims_still_held()
        self._publish_rebuilt_tables(OperationJournal.create_journal(settings, self._operation, plan))
        behind = sum(max(0, part.last_offset - ends.get((part.topic, part.partition), -1)) for part in self._partitions)
        return ProcessorRebuildResult(processor.output_table, plan.version, plan.counts["messages"], behind, difference)

    def replay_messages_into_staging(
        self, version: int, last_offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Reads bronze in slices, and fills the staging tables with what the processor makes of its messages.

        Args:
            version: The version of `bronze.messages` to read.
            last_offsets: The last offset to read of each topic-partition; None means all messages.
        """
        spark, processor = self._spark, self.processor
        require_complete_bronze(self.lake.reader(spark), processor.output_table)
        refuse_restored_tables(spark, self.lake, [MESSAGES, RETAINED])
        self.remove_staging_tables()
        self._staging.create_or_update_tables(spark, self._tables.values())
        self._version = version
        what = f"a rebuild of {processor.output_table}"
        unread = (
            () if last_offsets is None else read_unread_silences(spark, self._settings, processor.layer, last_offsets)
        )
        slices = BronzeSliceReplayer(
            what, ProcessorOutput.REPORT, decode_processor_report, last_offsets, self._slice, processor.topics, unread
        )
        partitions: list[PartitionMessageCounts] = []
        source = self.lake.read(spark, MESSAGES, version)
        for part in slices.fold_bronze_slices(
            spark, self._settings, source, create_processor_fold(spark, self.lake, self._loaded)
        ):
            raise_first_failure(processor.name, part.reports)
            txn = Txn("rebuild", part.number)
            for kind, table in self._tables.items():
                if any(report.rows.get(kind, 0) for report in part.reports):
                    ddl = build_output_ddl(kind, self._loaded.loaded_processor.output)
                    append_rows(spark, self._staging, table, select_table_rows(part.folded, kind, txn, ddl), txn)
            partitions += part.partitions
            self._states = part.states
        self._partitions = sum_partition_counts([ShardReport(partitions, {})])

    def compare_staging_with_live_table(self) -> TableDifference:
        """Compares the staging table with the live table."""
        spark = self._spark
        return compare_tables(
            self.lake.read(spark, self.processor.output_table), self._staging.read(spark, self._records), KEYS
        )

    def remove_staging_tables(self) -> None:
        """Removes the staging tables."""
        for table in self._tables.values():
            self._staging.drop_table(self._spark, table)

    def _build_publish_plan(self, started: datetime) -> RebuildPublishPlan:
        """Returns the plan to publish the built tables.

        Args:
            started: When the rebuild started.
        """
        last = read_last_batch_number(self.lake.reader(self._spark), self.processor.layer)
        batches = [number for number in (last, self._find_last_batch_with_errors()) if number is not None]
        return RebuildPublishPlan.create_publish_plan(
            self._version, max(batches, default=-1) + 1, started, self._partitions
        )

    def _find_last_batch_with_errors(self) -> int | None:
        """Returns the last batch of this processor in the table of processor errors; None if it has no errors.

        It can be later than the last batch in the ledger, if the processor died between the two commits.
        """
        from pyspark.sql import functions as F

        errors = self.lake.read(self._spark, PROCESSOR_ERRORS).where(F.col("processor") == self.processor.name)
        newest = errors.agg(F.max("_batch")).first()
        return None if newest is None else newest[0]

    def _publish_rebuilt_tables(self, journal: OperationJournal[RebuildPublishPlan]) -> None:
        """Replaces the live tables and the processor's states by the rebuilt ones, in the steps of the journal."""
        spark, processor, lake, plan = self._spark, self.processor, self.lake, journal.inputs
        handover.require_prepared_handover(self._settings, plan.rebuild, processor.layer, self._operation.damaged)
        reject_later_commits_of_query(spark, lake, processor.layer, [processor.output_table])
        replaced = journal.run_step_if_unfinished(processor.output_table, lambda: self._replace_live_table(plan))
        journal.run_step_if_unfinished(PROCESSOR_ERRORS, lambda: self._publish_processor_errors(plan))
        output = TableOutput(processor.output_table, replaced["version"], replaced["rows"])
        hashed = hash_processor_settings(self._settings, processor)
        entry = build_rebuild_ledger_entry(processor.layer, plan, [output], hashed, self._settings.capture)
        Ledger(lake).write_entry(spark, entry)
        finish_publishing_rebuild(spark, lake, processor.layer, journal, self.remove_staging_tables)

    def _replace_live_table(self, plan: RebuildPublishPlan) -> dict[str, int]:
        """Replaces the live table's records by the rebuilt ones. Returns its new `version` and number of `rows`."""
        spark, processor, lake = self._spark, self.processor, self.lake
        rows = add_batch_column(self._staging.read(spark, self._records), plan.batch)
        columns = lake.storage.read_column_types(
            spark, processor.output_table
        ) != self._staging.storage.read_column_types(spark, self._records)
        replace_table(
            spark,
            lake,
            processor.output_table,
            rows,
            plan,
            hash_processor_settings(self._settings, processor),
            replaces_columns=columns,
        )
        return {"version": lake.latest_version(spark, processor.output_table), "rows": rows.count()}

    def _publish_processor_errors(self, plan: RebuildPublishPlan) -> None:
        """Replaces the processor's rows in the table of processor errors.

        Other processors may write to the table meanwhile.
        """
        spark, lake = self._spark, self.lake
        limits = pa.table({"processor": [self.processor.name], LIMIT: [plan.batch - 1]})
        former = ExpiredRowSelection(("processor",), "_batch", limits, {})
        if lake.storage.count_rows(spark, PROCESSOR_ERRORS, former):
            remove_rows(spark, lake, PROCESSOR_ERRORS, former)
        errors = add_batch_column(self._staging.read(spark, self._errors), plan.batch)
        append_rows(spark, lake, PROCESSOR_ERRORS, convert_to_spark_frame(spark, errors), plan.txn.txn_of_second_write)
