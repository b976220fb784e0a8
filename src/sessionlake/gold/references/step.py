"""A gold batch's changes joined with what gold has taken of reference tables, and added to the enriched tables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.gold.enrich.table import BATCH, IDENTITY, SOURCES, Enriched
from sessionlake.gold.fold.pack import ReadChanges
from sessionlake.gold.references.joined import enriched_rows
from sessionlake.gold.references.taken import PART, TakenRows, retire_others
from sessionlake.lake.commit import append, merge
from sessionlake.lake.ledger import TableOutput
from sessionlake.lake.names import CHANGES, GOLD
from sessionlake.lake.reading import Condition, TableReader, TooLargeError
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import Upsert
from sessionlake.runtime.frames import Rows

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

    def __call__(self, spark: SparkSession, read: ReadChanges, txn: Txn) -> list[TableOutput]:
        """Joins and adds the changes.

        A batch may have read a part of silver's: all of that is added, and what comes twice is kept as it is.
        """
        if not self._tables or read.first is None or read.last is None:
            return []
        if not self._begun:
            retire_others(spark, self._lake, [table.table for table in self._tables], txn.app_id)
            self._begun = True
        # From reading what is taken until its rows are there: a correction between the two would not find them.
        conditions = ((BATCH, operator.ge, read.first), (BATCH, operator.le, read.last))
        with self._taken.lock:
            found = self._added(spark, read, conditions, txn.under(self._lake.storage.token(GOLD)))
        for tell in self._told:
            tell(read.first, read.last)
        return found

    def _added(
        self, spark: SparkSession, read: ReadChanges, conditions: Sequence[Condition], txn: Txn
    ) -> list[TableOutput]:
        reader = self._lake.reader(spark)
        changes = self._at_hand(reader, conditions) if read.changes <= self._lake.limits.driver_changes else None
        versions = {} if changes is None else self._taken.versions(spark)
        found = []
        for table in self._tables:
            rows: Rows
            if changes is not None:
                rows = table.rows(changes, versions)
            else:
                rows = enriched_rows(spark, self._lake, self._frame(spark, read), table)
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
            return reader.table(CHANGES, *conditions, columns=[*names], at_most=self._lake.limits.driver_bytes // PART)
        except TooLargeError:
            return None

    def _frame(self, spark: SparkSession, read: ReadChanges) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(spark, CHANGES).where(F.col("_batch").between(read.first, read.last))

    def _write(self, spark: SparkSession, table: Enriched, rows: Rows, txn: Txn, *, there: bool) -> None:
        """Appends, unless some may be there already: those stay as they are, which later corrections have made good."""
        if there:
            upsert = Upsert(IDENTITY, (*table.results, BATCH), bounded=("topic", "offset"), updates=False)
            merge(spark, self._lake, table.table, rows, upsert, txn)
        else:
            append(spark, self._lake, table.table, rows, txn)
