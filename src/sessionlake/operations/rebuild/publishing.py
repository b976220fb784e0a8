"""How a rebuild of silver, or of a processor, replaces tables and states: the same steps, in the same journal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from sessionlake.build import code_version
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.entries import LedgerEntry, OffsetRange, TableOutput
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import PartitionCounts
from sessionlake.silver.job import counts_of, ranges_of
from sessionlake.streaming import handover
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import Journal
from sessionlake.streaming.manifest import discard
from sessionlake.streaming.operation import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Plan(msgspec.Struct):
    """What a rebuild publishes: decided before it replaces anything.

    Attributes:
        rebuild: names it.
        version: of bronze.
        batch: the number that it has among the layer's batches.
        ranges: topic, partition, first and last offset of what it took in, and the number of messages.
        counts: what became of the messages, as the ledger names it.
        changed: the tables of silver that differ from the live ones.
        gold_is_behind: whether gold has yet to read some of the live changes.
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
    def of(cls, version: int, batch: int, started: datetime, partitions: Sequence[PartitionCounts]) -> Plan:
        """The plan of a rebuild that took in these topic-partitions."""
        ranges = [(r.topic, r.partition, r.first, r.last, r.messages) for r in ranges_of(partitions)]
        return cls(version, batch, started, ranges, counts_of(partitions))

    @property
    def txn(self) -> Txn:
        """The transaction by which tables are replaced."""
        return Txn(f"{REBUILD}{self.rebuild}", self.batch)

    @property
    def empties_gold(self) -> bool:
        """Whether gold is computed anew: of other rows, or since what it has yet to read has other numbers now."""
        return bool(self.changed) or self.gold_is_behind


def prepare(settings: Settings, layer: str, plan: Plan, states: Iterable[tuple[int, bytes]]) -> None:
    """Writes the states that the layer's stream goes on from once the rebuild is published."""
    begin = Handover(plan.version, plan.batch + 1, settings.silver.shards, plan.rebuild)
    handover.prepare(settings, begin, states, layer)


def stored(states: DataFrame | None) -> Iterator[tuple[int, bytes]]:
    """States by shard, one at a time.

    Args:
        states: `shard int, chunk binary`; None if there are none.
    """
    for row in () if states is None else states.toLocalIterator():
        yield row["shard"], bytes(row["chunk"])


def replace(
    spark: SparkSession, lake: Lake, table: str, rows: DataFrame, plan: Plan, by: str, *, columns: bool
) -> None:
    """Puts rows in the place of a table's, in one commit that says by which code and configuration.

    Args:
        by: hash of the configuration.
        columns: whether the columns are replaced, too.
    """
    told = {"sessionlake": code_version(), "config": by, "rebuild": plan.rebuild, "bronze_version": plan.version}
    lake.overwrite(spark, table, rows, plan.txn, json.dumps(told), columns=columns)


def numbered(rows: DataFrame, batch: int) -> DataFrame:
    """Rows with the number of the batch that they come by."""
    from pyspark.sql import functions as F

    return rows.withColumn("_batch", F.lit(batch).cast("bigint"))


def bronze_ledger_entry(layer: str, plan: Plan, outputs: Sequence[TableOutput], by: str) -> LedgerEntry:
    """The ledger's entry of the rebuild, by the hash of its configuration."""
    return LedgerEntry(
        layer=layer,
        txn=plan.txn,
        source=MESSAGES,
        source_to=plan.version,
        started_at=plan.started_at,
        offsets=tuple(OffsetRange(*item) for item in plan.ranges),
        outputs=tuple(outputs),
        config_hash=by,
        **plan.counts,  # type: ignore[arg-type]  # counts are whole-number fields
    )


def finish(spark: SparkSession, lake: Lake, layer: str, journal: Journal[Plan], clear: Callable[[], None]) -> None:
    """Has the layer's stream go on from the rebuilt states, and ends the rebuild.

    Args:
        clear: removes the tables that it was built in.
    """
    settings, plan = lake.settings, journal.inputs
    lake.ensure_version_after(spark, MESSAGES, plan.version)

    def swap() -> None:
        lake.storage.require_claims()
        handover.swap(spark, settings, plan.rebuild, layer)
        discard(settings, layer)

    journal.take("swap", swap)
    journal.end()
    clear()


def cancel(
    spark: SparkSession,
    lake: Lake,
    operation: Operation,
    layer: str,
    tables: Iterable[str],
    clear: Callable[[], None],
) -> None:
    """Cancels a rebuild that was interrupted before it replaced a table.

    Args:
        tables: those that it replaces.
        clear: removes the tables that it was built in.

    Raises:
        UsageError: none was interrupted.
        LakeError: a table was replaced, or the query that wrote it was ended for it.
    """
    journal, command = Journal.read(lake.settings, operation, Plan), operation.finish
    if journal is None:
        raise UsageError(f"{command} --cancel: no rebuild was interrupted, so there is nothing to give up")
    txn = journal.inputs.txn
    replaced = [table for table in tables if lake.exists(spark, table) and lake.storage.has_commit(table, txn)]
    if lake.storage.token(layer) or replaced:
        what = f"{', '.join(replaced)} was replaced already" if replaced else f"the query of {layer} was ended for it"
        raise LakeError(
            f"{command} --cancel: {what}, which cannot be undone: run `sessionlake {command}`, which finishes it, or "
            f"`sessionlake {command} --start-over`, which builds everything again"
        )
    journal.end()  # first: without the states beside it, the publication must not go on
    handover.discard_prepared(lake.settings, layer)
    clear()
