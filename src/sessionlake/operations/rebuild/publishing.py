"""Publishes a rebuild of silver or of a processor: replaces tables and states in journalled steps."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from sessionlake.build import read_code_version
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.entries import LedgerEntry, OffsetRange, TableOutput
from sessionlake.settings.feed_history import list_feed_mappings
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.silver.fold.schemas import PartitionMessageCounts
from sessionlake.silver.job import list_offset_ranges, sum_ledger_counts
from sessionlake.streaming import handover
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import OperationJournal
from sessionlake.streaming.manifest import remove_commit_manifest
from sessionlake.streaming.operation import ReplacingOperation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RebuildPublishPlan(msgspec.Struct):
    """The journal's record of a rebuild whose tables are built. With it, any process can publish them.

    Attributes:
        version: The version of `bronze.messages` from which the tables were built.
        batch: The batch number of the rebuild in its layer.
        started_at: When the rebuild started.
        ranges: For each topic-partition that was read: topic, partition, first offset, last offset, number of messages.
        counts: The numbers of applied, duplicate and other messages, by the names of the ledger's columns.
        changed: The names of silver's tables whose rebuilt rows differ from the live ones.
        gold_is_behind: True if gold has not read all live changes.
        rebuild: The id of the rebuild.
    """

    version: int
    batch: int
    started_at: datetime
    ranges: list[tuple[str, int, int, int, int]]
    counts: dict[str, int]
    changed: list[str] = []
    gold_is_behind: bool = False
    rebuild: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def create_publish_plan(
        cls, version: int, batch: int, started: datetime, partitions: Sequence[PartitionMessageCounts]
    ) -> RebuildPublishPlan:
        """Returns the plan of a rebuild, with the offset ranges and counts of these topic-partitions.

        Args:
            version: The version of `bronze.messages` from which the tables were built.
            batch: The batch number of the rebuild in its layer.
            started: When the rebuild started.
            partitions: The counts of each topic-partition that was read.
        """
        ranges = [(r.topic, r.partition, r.first, r.last, r.messages) for r in list_offset_ranges(partitions)]
        return cls(version, batch, started, ranges, sum_ledger_counts(partitions))

    @property
    def txn(self) -> Txn:
        """The transaction that replaces the tables."""
        return Txn(f"{REBUILD}{self.rebuild}", self.batch)

    @property
    def must_empty_gold(self) -> bool:
        """True if gold must be computed again.

        That is so if silver's rows have changed, or if changes that gold has not read have new batch numbers.
        """
        return bool(self.changed) or self.gold_is_behind


def prepare_handover(
    settings: Settings, layer: str, plan: RebuildPublishPlan, states: Iterable[tuple[int, bytes]]
) -> None:
    """Stores the rebuilt states. The layer's stream will resume from them once the rebuild is published.

    Args:
        states: The number and the encoded state of each shard.
    """
    begin = Handover(plan.version, plan.batch + 1, settings.silver.shards, plan.rebuild)
    handover.prepare_handover(settings, begin, states, layer)


def iterate_states_by_shard(states: DataFrame | None) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the encoded state of each shard. Reads one state at a time into memory.

    Args:
        states: Rows `shard int, chunk binary`; None if there are no states.
    """
    for row in () if states is None else states.toLocalIterator():
        yield row["shard"], bytes(row["chunk"])


def replace_table(
    spark: SparkSession,
    lake: Lake,
    table: str,
    rows: DataFrame,
    plan: RebuildPublishPlan,
    settings_hash: str,
    *,
    replaces_columns: bool,
) -> None:
    """Replaces a table's rows in one commit, which records the code's version and the configuration's hash.

    Args:
        table: The table to replace.
        rows: The table's new rows.
        plan: The rebuild's plan, which has the transaction.
        settings_hash: The hash of the configuration.
        replaces_columns: True to replace the table's columns too.
    """
    origin = {
        "sessionlake": read_code_version(),
        "config": settings_hash,
        "rebuild": plan.rebuild,
        "bronze_version": plan.version,
    }
    lake.overwrite_table(spark, table, rows, plan.txn, json.dumps(origin), columns=replaces_columns)


def add_batch_column(rows: DataFrame, batch: int) -> DataFrame:
    """Returns the rows with the column `_batch`, set to a batch's number."""
    from pyspark.sql import functions as F

    return rows.withColumn("_batch", F.lit(batch).cast("bigint"))


def build_rebuild_ledger_entry(
    layer: str, plan: RebuildPublishPlan, outputs: Sequence[TableOutput], settings_hash: str, capture: CaptureSettings
) -> LedgerEntry:
    """Returns the rebuild's entry for the ledger.

    Args:
        layer: The rebuilt layer.
        plan: The plan of the rebuild.
        outputs: The tables that were replaced.
        settings_hash: The hash of the configuration.
        capture: The settings by which messages were read.
    """
    return LedgerEntry(
        layer=layer,
        txn=plan.txn,
        source=MESSAGES,
        source_to=plan.version,
        started_at=plan.started_at,
        offsets=tuple(OffsetRange(*item) for item in plan.ranges),
        outputs=tuple(outputs),
        config_hash=settings_hash,
        feeds=list_feed_mappings(capture),
        **plan.counts,  # type: ignore[arg-type]  # the names of counts are int fields of the entry
    )


def finish_publishing_rebuild(
    spark: SparkSession,
    lake: Lake,
    layer: str,
    journal: OperationJournal[RebuildPublishPlan],
    remove_staging: Callable[[], None],
) -> None:
    """Replaces the layer's states by the rebuilt ones, from which its stream resumes, and ends the rebuild.

    Args:
        journal: The journal of the rebuild, whose other steps are finished.
        remove_staging: Removes the staging tables.
    """
    settings, plan = lake.settings, journal.inputs
    lake.ensure_version_after(spark, MESSAGES, plan.version)

    def replace_layer_states() -> None:
        lake.storage.require_claims_still_held()
        handover.activate_handover(spark, settings, plan.rebuild, layer)
        remove_commit_manifest(settings, layer)

    journal.run_step_if_unfinished("swap", replace_layer_states)
    journal.remove_journal()
    remove_staging()


def cancel_unpublished_rebuild(
    spark: SparkSession,
    lake: Lake,
    operation: ReplacingOperation,
    layer: str,
    tables: Iterable[str],
    remove_staging: Callable[[], None],
) -> None:
    """Cancels an interrupted rebuild that has not replaced a table yet.

    Args:
        tables: The tables that the rebuild replaces.
        remove_staging: Removes the staging tables.

    Raises:
        UsageError: No rebuild was interrupted.
        LakeError: A table was replaced already, or the layer's query was ended.
    """
    journal, command = OperationJournal.read_journal(lake.settings, operation, RebuildPublishPlan), operation.finish
    if journal is None:
        raise UsageError(
            f"{command} --cancel: no such rebuild is unfinished, so there is nothing to cancel",
            fix=f"Run `sessionlake {command}` to start a rebuild",
        )
    txn = journal.inputs.txn
    replaced = [table for table in tables if lake.exists(spark, table) and lake.storage.has_commit(table, txn)]
    if lake.storage.get_fencing_token(layer) or replaced:
        what = f"{', '.join(replaced)} was replaced already" if replaced else f"the query of {layer} was ended for it"
        raise LakeError(
            f"{command} --cancel: {what}, which cannot be undone",
            fix=f"Run `sessionlake {command}`, which finishes the rebuild, or `sessionlake {command} "
            "--start-over`, which builds everything again",
        )
    journal.remove_journal()  # first, because the publication cannot be finished once the prepared states are discarded
    handover.discard_prepared_handover(lake.settings, layer)
    remove_staging()
