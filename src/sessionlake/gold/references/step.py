"""A gold batch's changes joined with what gold has taken of reference tables, and added to the enriched tables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append, merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.enrich.table import BATCH, IDENTITY, SOURCES, Enriched
from sessionlake.gold.fold.pack import ReadChanges
from sessionlake.gold.references.taken import PART, TakenRows, enriched_rows, retire_others
from sessionlake.ledger.entries import TableOutput
from sessionlake.spark.frames import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EnrichStep:
    """Adds one gold batch after the other.

    Args:
        told: are called with the first and the last of silver's batches whose changes were added.
    """

    def __init__(
        self, lake: Lake, tables: Sequence[Enriched], taken: TakenRows, told: Sequence[Callable[[int, int], None]]
    ) -> None:
        self._lake, self._tables, self._taken, self._told = lake, tables, taken, told
        self._begun = False
        self._added_all = range(0)  # of silver's batches, in one piece, since this process began

    def __call__(self, spark: SparkSession, read: ReadChanges, txn: Txn) -> list[TableOutput]:
        """Joins and adds the changes.

        A batch may have read a part of silver's: all of that is added, and what comes twice is kept as it is. So the
        batches that read the rest have nothing to add.
        """
        if not self._tables or read.first is None or read.last is None:
            return []
        batches = _without(range(read.first, read.last + 1), self._added_all)
        if not batches:
            return []
        if not self._begun:
            retire_others(spark, self._lake, [table.table for table in self._tables], txn.app_id)
            self._begun = True
        # From reading what is taken until its rows are there: a correction between the two would not find them.
        with self._taken.lock:
            found = self._added(spark, batches, read.changes, txn.fenced_by(self._lake.storage.token(GOLD)))
        for tell in self._told:
            tell(batches.start, batches.stop - 1)
        self._added_all = _together(self._added_all, batches)
        return found

    def _added(self, spark: SparkSession, batches: range, changed: int, txn: Txn) -> list[TableOutput]:
        reader = self._lake.reader(spark)
        conditions = ((BATCH, operator.ge, batches.start), (BATCH, operator.lt, batches.stop))
        changes = self._at_hand(reader, conditions) if changed <= self._lake.limits.driver_changes else None
        versions = {} if changes is None else self._taken.versions(spark)
        found = []
        for table in self._tables:
            rows: Rows
            if changes is not None:
                rows = table.rows(changes, versions)
            else:
                rows = enriched_rows(spark, self._lake, self._frame(spark, batches), table)
            there = reader.any(table.table, *conditions)
            self._write(spark, table, rows, txn, there=there)
            commit = self._lake.last_commit(spark, table.table)
            count = rows.num_rows if isinstance(rows, pa.Table) else commit.rows
            found.append(TableOutput(table.table, commit.version, count))
        return found

    def _at_hand(self, reader: TableReader, conditions: Sequence[Condition]) -> pa.Table | None:
        """The changes, unless they are too many."""
        names = dict.fromkeys(SOURCES.get(name, name) for table in self._tables for name in table.names)
        try:
            return reader.table(
                CHANGES, *conditions, columns=[*names], max_bytes=self._lake.limits.driver_bytes // PART
            )
        except TooLargeError:
            return None

    def _frame(self, spark: SparkSession, batches: range) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(spark, CHANGES).where(F.col("_batch").between(batches.start, batches.stop - 1))

    def _write(self, spark: SparkSession, table: Enriched, rows: Rows, txn: Txn, *, there: bool) -> None:
        """Appends, unless some may be there already: those stay as they are, which later corrections have made good."""
        if there:
            upsert = Upsert(IDENTITY, (*table.results, BATCH), pruned_by=("topic", "offset"), updates=False)
            merge(spark, self._lake, table.table, rows, upsert, txn)
        else:
            append(spark, self._lake, table.table, rows, txn)


def _without(batches: range, added: range) -> range:
    """Less those at an end that are added."""
    start = added.stop if batches.start in added else batches.start
    stop = added.start if batches.stop - 1 in added else batches.stop
    return range(start, stop) if start < stop else range(0)


def _together(added: range, batches: range) -> range:
    """Both, if they are in one piece; else the latter."""
    if not added or batches.stop < added.start or added.stop < batches.start:
        return batches
    return range(min(added.start, batches.start), max(added.stop, batches.stop))
