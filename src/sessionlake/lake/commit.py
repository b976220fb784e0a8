"""Idempotent commits: a replayed batch finds its own transaction in the table and changes nothing.

Delta remembers, for each application id, the highest transaction version it has seen. Every write of a
micro-batch carries the application id `<streaming query id>:<table>` and the batch id, so a new checkpoint
never collides with an old one, and a batch that died half-way repeats only what it had not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.lake.conflicts import conflicts
from sessionlake.lake.faults import fault_point
from sessionlake.lake.storage import Commit
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.runtime.frames import Rows

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession

_APP = "spark.databricks.delta.write.txnAppId"
_ATTEMPTS = 5
_VERSION = "spark.databricks.delta.write.txnVersion"


def append(spark: SparkSession | None, lake: Lake, table: str, rows: Rows, txn: Txn) -> None:
    """Appends the rows once, whatever the number of replays."""
    fault_point(f"before:{table}")
    lake.storage.append(spark, table, rows, txn)
    fault_point(f"after:{table}")


@contextmanager
def staged(spark: SparkSession, lake: Lake, table: str, rows: Rows, txn: Txn) -> Iterator[None]:
    """Writes rows down, runs the block, then makes them part of the table, as `append`; not if the block fails."""
    with lake.storage.stage(spark, table, rows) as written:
        yield
        fault_point(f"before:{table}")
        written.commit(txn)
        fault_point(f"after:{table}")


def replace_rows(spark: SparkSession | None, lake: Lake, table: str, rows: pa.Table) -> None:
    """Replaces all rows of a small table, in one commit."""
    lake.storage.replace(spark, table, rows)


def merge(
    lake: Lake,
    table: str,
    source: DataFrame,
    on: str | Column,
    clauses: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    txn: Txn,
) -> Commit:
    """MERGEs `source` (alias `s`) into the table (alias `t`) once, whatever the number of replays.

    Where another commit has changed files that it has read, such as OPTIMIZE, it is done again.

    The transaction is set in the session of `source`, which must be the batch's own: no other write may
    run in it meanwhile.

    Args:
        on: the join condition, written over `t` and `s`.
        clauses: adds the WHEN clauses to the builder.

    Returns:
        The table's latest commit, which is this one, unless an earlier run made it.
    """
    spark = source.sparkSession
    fault_point(f"before:{table}")
    spark.conf.set(_APP, txn.on(table))
    spark.conf.set(_VERSION, str(txn.version))
    lake.storage.before_merge(spark, table)

    def execute() -> Commit:
        with lake.storage.exclusive(table):
            clauses(lake.delta(spark, table).alias("t").merge(source.alias("s"), on)).execute()
            return lake.last_commit(spark, table)

    try:
        commit = _repeated(execute)
    finally:
        spark.conf.unset(_APP)
        spark.conf.unset(_VERSION)
    fault_point(f"after:{table}")
    return commit


def _repeated(write: Callable[[], Commit]) -> Commit:
    """Does an idempotent write until no other commit is in its way."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(*conflicts()):
            return write()
    return write()
