"""A processor as a layer of its own over `bronze.messages`: judged as silver judges, committed exactly once.

It has its own checkpoint and judges for itself, by the same rules: so what it writes follows from what bronze holds,
as silver's tables do, and what it fails on stops neither them nor other processors.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sessionlake.delta.commit import append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import TableSchema, Writes, with_comments
from sessionlake.delta.schemas.names import DECISIONS, LEDGER, MESSAGES, PROCESSOR_ERRORS, VIEWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import ConfigError, LakeError, LossError
from sessionlake.gold.declared.tables import product_of
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.processors import keyed
from sessionlake.processors.load import config_hash_of, ref_of
from sessionlake.processors.output import HEAD_COMMENTS, OutputColumns
from sessionlake.processors.outputs import ProcessorOutput, ProcessorReport, read_report, refuse_failures
from sessionlake.processors.shard import MessageByMessage, processor_of
from sessionlake.processors.stored import require_readable_states
from sessionlake.protocol.names import quote
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.settings.processors import ProductProcessor
from sessionlake.silver.decisions import binding_decisions
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import (
    counts_of,
    offset_log,
    packed,
    ranges_of,
    rows_of,
    total,
    violation_of,
)
from sessionlake.silver.stream_times import StreamTimesLog, require_continued
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming import handover
from sessionlake.streaming.folded import Folded, collect
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from sessionlake.streaming.journal import discard_building, require_uninterrupted
from sessionlake.streaming.manifest import committing, note_stop
from sessionlake.streaming.operation import rebuild_of
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.sharded import ShardFold, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def configured(settings: Settings, name: str) -> ProcessorSettings:
    """The processor of this name.

    Raises:
        ConfigError: there is none, or its table is one of the lake's own.
    """
    found = next((processor for processor in settings.processors if processor.name == name), None)
    if found is None:
        known = ", ".join(processor.name for processor in settings.processors) or "none"
        raise ConfigError(f"processors: there is none named {name!r}; configured: {known}")
    if found.into in {*TABLES, *VIEWS}:
        raise ConfigError(f"{found.where}.table: {found.into} is a table of the lake's own: name another")
    return found


def require_usable(settings: Settings, name: str) -> None:
    """Returns if the processor of this name can be loaded.

    Raises:
        ConfigError: it is not configured, or its class cannot be used.
    """
    own = configured(settings, name)
    if isinstance(own, ProductProcessor):
        product_of(own.product)
    elif own.key:
        ref_of(own).load_keyed()
    else:
        load(settings, name)


def load(settings: Settings, name: str) -> MessageByMessage:
    """The processor of sessions of this name, its class found and checked.

    Raises:
        ConfigError: it is not configured, or its class cannot be used.
    """
    own = configured(settings, name)
    ref = ref_of(own)
    made = processor_of(own, settings.capture, settings.silver.shards, ref)
    _ = made.workings
    return made


def start(spark: SparkSession, settings: Settings, name: str, *, once: bool = False) -> LayerQuery:
    """Starts a processor's stream.

    Args:
        once: take in what bronze holds now, then end.

    Raises:
        ConfigError: it is not configured, or its class cannot be used.
        LakeError: the checkpoint is new and the table is not, the declared columns do not fit the table, or a stored
            state cannot be read. Nothing was consumed.
    """
    own = configured(settings, name)
    require_uninterrupted(settings, own.layer)
    if own.key:
        return keyed.start(spark, settings, own, once=once)
    processor = load(settings, name)
    lake = Lake(settings, {own.into: table_of(own, processor.workings.output)})
    lake.ensure(spark, [MESSAGES, own.into, PROCESSOR_ERRORS, DECISIONS, LEDGER])
    refuse_fresh_checkpoint(spark, lake, settings, own.layer)
    discard_building(settings, rebuild_of(own))
    _refuse_filled(spark, lake, own)
    checkpoint, begin = settings.checkpoint(own.layer), handover.in_force(settings, own.layer)
    require_readable_states(spark, settings, own.layer, processor)
    fold = fold_of(spark, lake, processor)
    if begin is not None:
        fold = handover.HandedOver(fold, str(handover.folder(settings, own.layer)))
    first_batch = begin.first_batch if begin else 0
    log = offset_log(spark, lake, settings, own.layer, first_batch)
    times = StreamTimesLog.begin(spark, settings, own.layer, log.last_offsets)
    stream = fold_shards(packed(spark, lake, settings, own.layer, own.topics, begin), fold)
    batch = _ProcessorBatch(lake, settings, own, processor, log, times)
    return LayerQuery(own.layer, checkpoint).start(
        stream, batch, trigger=own.trigger, once=once, txn=lambda query, number: Txn(query, first_batch + number)
    )


def _refuse_filled(spark: SparkSession, lake: Lake, own: ProcessorSettings) -> None:
    """A processor that begins would add all rows once more to a table that it has filled under another name.

    Raises:
        LossError: naming the table.
    """
    begun = Generations(lake.settings.checkpoint(own.layer), own.layer).present.app_id is not None
    if not begun and handover.in_force(lake.settings, own.layer) is None and lake.reader(spark).any(own.into):
        raise LossError(
            f"{own.into} holds rows already, though {own.layer} has yet to begin: running on would add all once more",
            fix=f"`sessionlake rebuild processor:{own.name}` makes it of all of bronze; or name another table",
        )


def fold_of(spark: SparkSession, lake: Lake, processor: MessageByMessage) -> ShardFold:
    """Bronze judged as silver judges it, and given to the processor."""
    capture = lake.settings.capture
    return SilverFold(capture.declared, capture, binding_decisions(lake.reader(spark)), processor=processor)


def row_ddl(kind: ProcessorOutput, output: OutputColumns) -> str:
    """DDL of the rows that the fold's payloads of a kind come to."""
    columns = output.ddl if kind is ProcessorOutput.RECORDS else TABLES[PROCESSOR_ERRORS].columns
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)


def table_of(own: ProcessorSettings, output: OutputColumns) -> TableSchema:
    """Definition of a processor's output table."""
    return TableSchema(
        with_comments(output.ddl, HEAD_COMMENTS | output.comments),
        f"Records of the processor {own.name}",
        written_by="processors.job",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "_offset", "_batch"),
        writes=Writes.APPEND,
    )


class _ProcessorBatch:
    """Commits one micro-batch: checks first, then records and errors, then the ledger row."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        own: ProcessorSettings,
        processor: MessageByMessage,
        log: OffsetLog,
        times: StreamTimesLog,
    ) -> None:
        self._lake, self._ledger, self._settings, self._own = lake, Ledger(lake), settings, own
        self._output = processor.workings.output
        self._hash = config_hash_of(settings, own)
        self._log, self._times = log, times
        self._few = False  # whether the batch before was small, which is the best guess for the next

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        started, spark, own = datetime.now(UTC), frame.sparkSession, self._own
        frame.persist()
        try:
            with interpreted(spark, when=self._few):
                folded, written = collect(frame, ProcessorOutput.REPORT, self._lake.limits.inline_bytes)
            reports = [read_report(report) for report in written]
            partitions = total([*reports])
            if violation := violation_of([*reports]):
                note_stop(self._settings, violation.violation, own.layer)
                raise violation
            refuse_failures(own.name, reports)
            ranges = ranges_of(partitions)
            self._log.check(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=own.layer)
            require_continued(own.layer, partitions, self._log.last_offsets)
            with committing(self._settings, own.layer, txn.version, self._hash, ranges):
                entry = LedgerEntry(
                    layer=own.layer,
                    txn=txn,
                    source=MESSAGES,
                    started_at=started,
                    offsets=ranges,
                    outputs=self._append(folded, reports, txn),
                    **counts_of(partitions),
                    config_hash=self._hash,
                )
                self._lake.storage.require_claims()  # the notes may be of whoever has taken the layer over
                self._times.advance(partitions, reports)
                self._ledger.write(spark, entry)
        finally:
            frame.unpersist()
        self._log.advance(ranges)
        self._few = entry.messages <= self._lake.limits.few_messages

    def _append(self, folded: Folded, reports: list[ProcessorReport], txn: Txn) -> tuple[TableOutput, ...]:
        """Appends what there is; a table that gets nothing gets no commit."""
        spark, outputs = folded.frame.sparkSession, []
        for kind, table in ((ProcessorOutput.RECORDS, self._own.into), (ProcessorOutput.ERRORS, PROCESSOR_ERRORS)):
            count = sum(report.rows.get(kind, 0) for report in reports)
            if count:
                append(spark, self._lake, table, rows_of(folded, kind, txn, row_ddl(kind, self._output)), txn)
                commit = self._lake.last_commit(spark, table)
                # Other processors append to the table of errors too: its last commit need not be this one.
                if kind is ProcessorOutput.RECORDS and commit.rows not in (0, count):
                    raise LakeError(
                        f"{table}: version {commit.version} holds {commit.rows} rows of a batch of {count}; if rows "
                        f"were removed from {MESSAGES} by hand, restore it (RESTORE TABLE); if another writes to "
                        f"{table}, name a table of its own under processors.{self._own.name}"
                    )
                outputs.append(TableOutput(table, commit.version, count))
        return tuple(outputs)
