"""Reads and writes `ops.leases` in a catalog with Spark."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.catalog.leases import LeaseRow
from sessionlake.delta.schemas.names import LEASES
from sessionlake.delta.schemas.tables import TABLES, arrow_schema
from sessionlake.delta.storage.commits import LAST_COMMIT
from sessionlake.delta.storage.conflicts import list_conflict_errors, retry_on_conflict
from sessionlake.delta.storage.interface import TableStorage
from sessionlake.delta.storage.txn import Txn
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.spark.session import create_separate_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriterV2, SparkSession

# With Spark's fair scheduler, jobs of a separate pool get cores as soon as tasks of other pools end.
_POOL = "spark.scheduler.pool"


@contextmanager
def _run_jobs_in_separate_scheduler_pool(spark: SparkSession) -> Iterator[None]:
    """Runs this thread's Spark jobs in a separate scheduler pool until the block ends, so that they wait less."""
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, "leases")
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)


class SparkLeaseTable:
    """Reads and writes the table `ops.leases` in a catalog with Spark. Creates the table if it is missing.

    Args:
        spark: the session to use.
        storage: creates the table, and knows its full name.

    Attributes:
        identifier: the table's full, quoted name in SQL.
    """

    def __init__(self, spark: SparkSession, storage: TableStorage) -> None:
        self._spark = create_separate_session(spark)  # Delta reports the version of the last commit by session
        self._storage = storage
        self.identifier = storage.to_sql_identifier(LEASES)
        if not storage.exists(self._spark, LEASES):
            storage.create_table(self._spark, LEASES, TABLES[LEASES])

    def read_lease(self, name: str) -> LeaseRow | None:
        """Returns the stored row with this name and the highest rank; None if there is none."""
        with _run_jobs_in_separate_scheduler_pool(self._spark):
            found = self._storage.reader(self._spark).read_rows(LEASES, ("name", operator.eq, name))
            return max((LeaseRow(**row) for row in found), key=lambda lease: lease.rank, default=None)

    def write_lease(self, lease: LeaseRow) -> bool:
        """Replaces all rows with the lease's name. Returns False if Delta skipped the commit or it conflicted."""
        from pyspark.sql import functions as F

        txn = Txn(f"lease:{lease.name}", lease.number)
        self._spark.conf.unset(LAST_COMMIT)
        with self._open_lease_row_writer(lease) as writer, suppress(*list_conflict_errors()):
            # An UPDATE or a MERGE would read files first; replacing a partition does not.
            writer.options(**txn.build_writer_options(LEASES)).overwrite(F.col("name") == lease.name)
        return self._spark.conf.get(LAST_COMMIT, None) is not None

    def append_release_row(self, lease: LeaseRow) -> None:
        """Adds a row with which the holder gives the lease back.

        It runs one Spark job. With a transaction, or to replace rows, Delta would first compute the table's state.
        """
        with self._open_lease_row_writer(lease) as writer:
            retry_on_conflict(writer.append)

    @contextmanager
    def _open_lease_row_writer(self, lease: LeaseRow) -> Iterator[DataFrameWriterV2]:
        """Yields Spark's writer of one row to `ops.leases`. Only in the block may it write."""
        spark = self._spark
        with (
            _run_jobs_in_separate_scheduler_pool(spark),
            disable_code_generation(spark),
            self._storage.hold_commit_lock(LEASES),
        ):
            row = convert_to_spark_frame(spark, pa.Table.from_pylist([asdict(lease)], arrow_schema(LEASES)))
            yield row.writeTo(self.identifier)
