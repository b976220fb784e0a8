"""`sessionlake rebuild processor:NAME`: its table made of all of bronze once more, by the class as it is now.

It is made beside the live table, compared with it, and published in one commit; the stream goes on from the states
that this has left. What it replaces stays reachable by time travel. A publication that was interrupted is finished by
running the command again; until then the processor refuses to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append, remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, LEDGER, MESSAGES, PROCESSOR_ERRORS, RETAINED
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.expired import LIMIT, Expired
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import Ledger, TableOutput
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import last_batch
from sessionlake.operations.rebuild import publishing
from sessionlake.operations.rebuild.endings import retire_query
from sessionlake.operations.rebuild.publishing import Plan, bronze_ledger_entry, finish, numbered, replace, stored
from sessionlake.operations.rebuild.replay import is_small, require_whole_bronze
from sessionlake.operations.rebuild.slices import Slices
from sessionlake.processors.difference import Difference, difference
from sessionlake.processors.job import fold_of, load, processor_settings, row_ddl, table_schema
from sessionlake.processors.load import config_hash_of
from sessionlake.processors.outputs import ProcessorOutput, read_report, refuse_failures
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.silver.fold.schemas import PartitionCounts, ShardReport
from sessionlake.silver.job import rows_of, total
from sessionlake.silver.unread import unread_silences
from sessionlake.spark.frames import as_frame
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming import handover
from sessionlake.streaming.journal import Journal, building, require_uninterrupted
from sessionlake.streaming.operation import rebuild_of
from sessionlake.streaming.set_back import refuse_set_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

KEYS = (*SESSION, "_position", "ordinal")
"""What tells a processor's records apart."""


@dataclass(frozen=True)
class RebuiltProcessor:
    """The outcome.

    Attributes:
        table: the processor's.
        version: of bronze.
        messages: how many were taken in.
        behind: how many of these the processor had not taken in before.
        different: how the table before it compares; None if it finished an interrupted publication.
    """

    table: str
    version: int
    messages: int
    behind: int = 0
    different: Difference | None = None


def rebuild(
    spark: SparkSession,
    settings: Settings,
    name: str,
    *,
    slice_messages: int | None = None,
    start_over: bool = False,
) -> RebuiltProcessor:
    """Puts what the class makes of all of bronze in the place of the processor's table.

    One that was interrupted while it was published is finished instead.

    Args:
        start_over: makes it again all the same.

    Raises:
        LakeError: bronze lacks messages that retention has removed, or judging stops. Nothing was changed.
        ProcessorError: the class failed, under `fail`. Nothing was changed.
    """
    work = _Rebuild(spark, settings, name, slice_messages)
    with interpreted(spark, when=is_small(spark, work.lake)):
        return work.done(start_over=start_over)


def cancel(spark: SparkSession, settings: Settings, name: str) -> None:
    """Gives up a rebuild that was interrupted before it replaced the table. The processor must be claimed.

    Raises:
        UsageError: none was interrupted.
        LakeError: the table was replaced, or that cannot be told.
    """
    _Rebuild(spark, settings, name, None).cancel()


def compared(spark: SparkSession, settings: Settings, name: str) -> Difference:
    """How the table would differ if the class as it is now had made it, of the history that the processor has read.

    Nothing is changed.

    Raises:
        LakeError: as `rebuild`, or one was interrupted: what it has yet to publish is where this would be made.
        ProcessorError: likewise.
    """
    own = processor_settings(settings, name)
    require_uninterrupted(settings, own.layer)
    work = _Rebuild(spark, settings, name, None)
    with interpreted(spark, when=is_small(spark, work.lake)):
        work.replay(
            work.lake.latest_version(spark, MESSAGES), OffsetLog.load(spark, work.lake, work.own.layer).last_offsets
        )
        found = work.difference()
        work.clear()
        return found


def made_beside(name: str) -> tuple[str, str]:
    """The tables that a processor's records and errors are made in, which are its own.

    Of the schemas, only silver and ops have one beside them.
    """
    return f"silver.records_of_{name}", f"silver.errors_of_{name}"


class _Rebuild:
    """One processor's, with the tables that it is built in beside the live ones."""

    def __init__(self, spark: SparkSession, settings: Settings, name: str, slice_messages: int | None) -> None:
        self._spark, self._settings, self._slice = spark, settings, slice_messages
        self.own: ProcessorSettings = processor_settings(settings, name)
        self._operation = rebuild_of(self.own)
        self._processor = load(settings, name)
        self._made, self._failed = made_beside(name)
        self._tables = {ProcessorOutput.RECORDS: self._made, ProcessorOutput.ERRORS: self._failed}
        records, errors = table_schema(self.own, self._processor.loaded_processor.output), TABLES[PROCESSOR_ERRORS]
        self.lake = Lake(settings, {self.own.into: records, self._made: records, self._failed: errors})
        self.lake.ensure(spark, [MESSAGES, PROCESSOR_ERRORS, DECISIONS, LEDGER])
        if not self.lake.exists(spark, self.own.into):
            self.lake.ensure(spark, [self.own.into])
        self._beside = self.lake.staging()
        self._states: DataFrame | None = None
        self._partitions: list[PartitionCounts] = []
        self._version = -1

    def cancel(self) -> None:
        """Cancels what was interrupted, if it has replaced nothing."""
        own = self.own
        publishing.cancel(self._spark, self.lake, self._operation, own.layer, [own.into], self.clear)

    def done(self, *, start_over: bool = False) -> RebuiltProcessor:
        """Makes and publishes it, or finishes what was interrupted."""
        settings, own = self._settings, self.own
        require_uninterrupted(settings, own.layer, but=[self._operation], from_bronze=True)
        journal = None if start_over else Journal.read(settings, self._operation, Plan)
        if journal is not None:
            self._publish(journal)
            return RebuiltProcessor(own.into, journal.inputs.version, journal.inputs.counts["messages"])
        started = datetime.now(UTC)
        ends = OffsetLog.load(self._spark, self.lake, own.layer).last_offsets
        version = self.lake.latest_version(self._spark, MESSAGES)
        with building(settings, self._operation, version):
            self.replay(version)
            found = self.difference()
            plan = self._plan(started)
            publishing.prepare(settings, own.layer, plan, stored(self._states))
            self.lake.storage.require_claims()
        self._publish(Journal.begin(settings, self._operation, plan))
        behind = sum(max(0, part.last - ends.get((part.topic, part.partition), -1)) for part in self._partitions)
        return RebuiltProcessor(own.into, plan.version, plan.counts["messages"], behind, found)

    def replay(self, version: int, ends: Mapping[TopicPartition, int] | None = None) -> None:
        """Fills the tables beside from a version of bronze; by `ends` up to these offsets alone."""
        spark, own = self._spark, self.own
        require_whole_bronze(self.lake.reader(spark), own.into)
        refuse_set_back(spark, self.lake, [MESSAGES, RETAINED])
        self.clear()
        self._beside.ensure(spark, self._tables.values())
        self._version = version
        what = f"a rebuild of {own.into}"
        unread = () if ends is None else unread_silences(spark, self._settings, own.layer, ends)
        slices = Slices(what, ProcessorOutput.REPORT, read_report, ends, self._slice, own.topics, unread)
        partitions: list[PartitionCounts] = []
        source = self.lake.read(spark, MESSAGES, version)
        for part in slices.folded(spark, self._settings, source, fold_of(spark, self.lake, self._processor)):
            refuse_failures(own.name, part.reports)
            txn = Txn("rebuild", part.number)
            for kind, table in self._tables.items():
                if any(report.rows.get(kind, 0) for report in part.reports):
                    ddl = row_ddl(kind, self._processor.loaded_processor.output)
                    append(spark, self._beside, table, rows_of(part.folded, kind, txn, ddl), txn)
            partitions += part.partitions
            self._states = part.states
        self._partitions = total([ShardReport(partitions, {})])

    def difference(self) -> Difference:
        """How what was made differs from the live table."""
        spark = self._spark
        return difference(self.lake.read(spark, self.own.into), self._beside.read(spark, self._made), KEYS)

    def clear(self) -> None:
        """Removes the tables beside."""
        for table in self._tables.values():
            self._beside.drop(self._spark, table)

    def _plan(self, started: datetime) -> Plan:
        last = last_batch(self.lake.reader(self._spark), self.own.layer)
        batches = [number for number in (last, self._newest_error()) if number is not None]
        return Plan.of(self._version, max(batches, default=-1) + 1, started, self._partitions)

    def _newest_error(self) -> int | None:
        """The last batch that the processor has errors of, which may have died before its ledger row."""
        from pyspark.sql import functions as F

        errors = self.lake.read(self._spark, PROCESSOR_ERRORS).where(F.col("processor") == self.own.name)
        found = errors.agg(F.max("_batch")).first()
        return None if found is None else found[0]

    def _publish(self, journal: Journal[Plan]) -> None:
        spark, own, lake, plan = self._spark, self.own, self.lake, journal.inputs
        handover.require_prepared(self._settings, plan.rebuild, own.layer, self._operation.damaged)
        retire_query(spark, lake, own.layer, [own.into])
        told = journal.take(own.into, lambda: self._replace(plan))
        journal.take(PROCESSOR_ERRORS, lambda: self._publish_errors(plan))
        output = TableOutput(own.into, told["version"], told["rows"])
        Ledger(lake).write(spark, bronze_ledger_entry(own.layer, plan, [output], config_hash_of(self._settings, own)))
        finish(spark, lake, own.layer, journal, self.clear)

    def _replace(self, plan: Plan) -> dict[str, int]:
        """Puts the rebuilt records in the place of the live ones; returns the version and the number of rows."""
        spark, own, lake = self._spark, self.own, self.lake
        rows = numbered(self._beside.read(spark, self._made), plan.batch)
        columns = lake.storage.columns(spark, own.into) != self._beside.storage.columns(spark, self._made)
        replace(spark, lake, own.into, rows, plan, config_hash_of(self._settings, own), columns=columns)
        return {"version": lake.latest_version(spark, own.into), "rows": rows.count()}

    def _publish_errors(self, plan: Plan) -> None:
        """Puts the errors in the place of the processor's own; the table has those of others, too, who go on."""
        spark, lake = self._spark, self.lake
        limits = pa.table({"processor": [self.own.name], LIMIT: [plan.batch - 1]})
        former = Expired(("processor",), "_batch", limits, {})
        if lake.storage.count_rows(spark, PROCESSOR_ERRORS, former):
            remove_rows(spark, lake, PROCESSOR_ERRORS, former)
        errors = numbered(self._beside.read(spark, self._failed), plan.batch)
        append(spark, lake, PROCESSOR_ERRORS, as_frame(spark, errors), plan.txn.second_write)
