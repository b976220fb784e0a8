"""The step of gold's batch that joins changes with reference rows and adds them to enriched tables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append_rows, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.enrich.table import BATCH, CHANGE_ID, SILVER_NAMES, EnrichedTable
from sessionlake.gold.fold.pack import ReadChangesSummary
from sessionlake.gold.references.applied import (
    MEMORY_FACTOR,
    AppliedReferenceRows,
    block_earlier_writers,
    join_changes_with_references_on_cluster,
)
from sessionlake.ledger.entries import TableOutput
from sessionlake.spark.frames import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EnrichmentStep:
    """Joins the changes of each gold batch with reference rows, and adds the result to enriched tables.

    Args:
        tables: the enriched tables.
        applied: gold's copies of the reference tables.
        listeners: functions that are called with the first and the last silver batch whose changes were added.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Sequence[EnrichedTable],
        applied: AppliedReferenceRows,
        listeners: Sequence[Callable[[int, int], None]],
    ) -> None:
        self._lake, self._tables, self._applied, self._listeners = lake, tables, applied, listeners
        self._retired = False
        self._added_batches = range(0)  # consecutive silver batches that this process has added

    def __call__(self, spark: SparkSession, read: ReadChangesSummary, txn: Txn) -> list[TableOutput]:
        """Adds the changes of the silver batches that gold's batch has read, at least in part.

        If gold's batch read only a part of a silver batch, all changes of that silver batch are added. Later gold
        batches that read the rest of it add nothing.

        Returns:
            The version and the number of added rows of each enriched table.
        """
        if not self._tables or read.first_batch is None or read.last_batch is None:
            return []
        batches = _drop_batches_already_added(range(read.first_batch, read.last_batch + 1), self._added_batches)
        if not batches:
            return []
        if not self._retired:
            block_earlier_writers(spark, self._lake, [table.table_name for table in self._tables], txn.app_id)
            self._retired = True
        # A correction that came between the join and the commit would not update the rows of this commit.
        with self._applied.lock:
            found = self._add_joined_rows(
                spark, batches, read.changes, txn.add_fencing_token(self._lake.storage.get_fencing_token(GOLD))
            )
        for listener in self._listeners:
            listener(batches.start, batches.stop - 1)
        self._added_batches = _unite_ranges(self._added_batches, batches)
        return found

    def _add_joined_rows(self, spark: SparkSession, batches: range, change_count: int, txn: Txn) -> list[TableOutput]:
        """Joins the changes of some batches with the reference tables, and adds the result to each enriched table.

        Args:
            batches: Numbers of the batches of silver.
            change_count: Number of their changes. If it is small enough, they are joined in the driver's memory.
            txn: The transaction of the commits.
        """
        reader = self._lake.reader(spark)
        conditions = ((BATCH, operator.ge, batches.start), (BATCH, operator.lt, batches.stop))
        changes = (
            self._read_changes_into_memory(reader, conditions)
            if change_count <= self._lake.driver_limits.driver_changes
            else None
        )
        versions = {} if changes is None else self._applied.read_current_rows_by_reference(spark)
        found = []
        for table in self._tables:
            rows: Rows
            if changes is not None:
                rows = table.join_changes_with_references(changes, versions)
            else:
                rows = join_changes_with_references_on_cluster(
                    spark, self._lake, self._read_changes_on_cluster(spark, batches), table
                )
            may_exist = reader.has_rows(table.table_name, *conditions)
            commit = self._add_enriched_rows(spark, table, rows, txn, may_exist=may_exist)
            count = rows.num_rows if isinstance(rows, pa.Table) else commit.rows
            found.append(TableOutput(table.table_name, commit.version, count))
        return found

    def _read_changes_into_memory(self, reader: TableReader, conditions: Sequence[Condition]) -> pa.Table | None:
        """Returns the changes that meet the conditions as an Arrow table; None if they need too much memory."""
        names = dict.fromkeys(
            SILVER_NAMES.get(name, name) for table in self._tables for name in table.change_column_names
        )
        try:
            return reader.read_arrow_table(
                CHANGES, *conditions, columns=[*names], max_bytes=self._lake.driver_limits.driver_bytes // MEMORY_FACTOR
            )
        except TooLargeError:
            return None

    def _read_changes_on_cluster(self, spark: SparkSession, batches: range) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(spark, CHANGES).where(F.col("_batch").between(batches.start, batches.stop - 1))

    def _add_enriched_rows(
        self, spark: SparkSession, table: EnrichedTable, rows: Rows, txn: Txn, *, may_exist: bool
    ) -> TableCommit:
        """Adds rows to an enriched table. Rows that the table already has are not changed, since they may be corrected.

        Args:
            table: The enriched table.
            rows: The rows to add.
            txn: The transaction of the commit.
            may_exist: True if the table may have some of the rows already.

        Returns:
            The commit; after a replay, the table's latest one.
        """
        if may_exist:
            upsert = Upsert(CHANGE_ID, (*table.result_columns, BATCH), pruned_by=("topic", "offset"), updates=False)
            return merge_rows(spark, self._lake, table.table_name, rows, upsert, txn)
        return append_rows(spark, self._lake, table.table_name, rows, txn)


def _drop_batches_already_added(batches: range, added_before: range) -> range:
    """Returns a range of silver batches without those at its start and end that were added before.

    Args:
        batches: The batches to add.
        added_before: The batches that were added before.
    """
    start = added_before.stop if batches.start in added_before else batches.start
    stop = added_before.start if batches.stop - 1 in added_before else batches.stop
    return range(start, stop) if start < stop else range(0)


def _unite_ranges(first: range, second: range) -> range:
    """Returns the union of two ranges if they touch or overlap, else the range `second`."""
    if not first or second.stop < first.start or first.stop < second.start:
        return second
    return range(min(first.start, second.start), max(first.stop, second.stop))
