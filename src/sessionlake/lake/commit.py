"""Idempotent commits: a replayed batch finds its own transaction in the table and changes nothing.

Delta remembers, for each application id, the highest transaction version it has seen. Every write of a
micro-batch carries the application id `<streaming query id>:<table>` and the batch id, so a new checkpoint
never collides with an old one, and a batch that died half-way repeats only what it had not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.lake.conflicts import repeated
from sessionlake.lake.expired import Expired
from sessionlake.lake.faults import fault_point
from sessionlake.lake.storage import Commit
from sessionlake.lake.table_schema import APPEND_ONLY
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.runtime.frames import Rows
from sessionlake.runtime.interpreted import conf

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession


def append(spark: SparkSession | None, lake: Lake, table: str, rows: Rows, txn: Txn) -> None:
    """Appends the rows once, whatever the number of replays."""
    fault_point(f"before:{table}")
    _make_sure(lake, table)
    lake.storage.append(spark, table, rows, txn)
    fault_point(f"after:{table}")


@contextmanager
def staged(spark: SparkSession, lake: Lake, table: str, rows: Rows, txn: Txn) -> Iterator[None]:
    """Writes rows down, runs the block, then makes them part of the table, as `append`; not if the block fails."""
    with lake.storage.stage(spark, table, rows) as written:
        yield
        fault_point(f"before:{table}")
        _make_sure(lake, table)
        written.commit(txn)
        fault_point(f"after:{table}")


def replace_rows(spark: SparkSession | None, lake: Lake, table: str, rows: pa.Table, txn: Txn | None = None) -> None:
    """Replaces all rows of a small table, in one commit; with a transaction, once."""
    _make_sure(lake, table)
    lake.storage.replace(spark, table, rows, txn)


def delete_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn) -> None:
    """Deletes all rows of a table once, whatever the number of replays."""
    _make_sure(lake, table)
    with conf(spark, txn.conf(table)):
        lake.delta(spark, table).delete()


def remove_rows(spark: SparkSession, lake: Lake, table: str, expired: Expired) -> None:
    """Removes rows of a table that rows are only appended to, in one commit; what is gone already is no more to do.

    The table is open to it from then on: its `delta.appendOnly` is false.
    """
    if lake.storage.properties(spark, table).get(APPEND_ONLY) == "true":
        lake.set_property(spark, table, APPEND_ONLY, "false")
    fault_point(f"before:remove:{table}")
    repeated(lambda: _remove(spark, lake, table, expired))
    fault_point(f"after:remove:{table}")


def _remove(spark: SparkSession, lake: Lake, table: str, expired: Expired) -> None:
    _make_sure(lake, table)
    lake.storage.remove(spark, table, expired)


def retire(spark: SparkSession, lake: Lake, tables: Iterable[str], txn: Txn) -> None:
    """Sees to it that Delta passes over the transaction, and earlier ones of its application, from now on.

    A process that has made sure that it may write, and stands still before it commits, may go on at any time. Where the
    same transaction by another would not be the same rows, it is retired before anything is built on its not being
    there. One that is there already stays.
    """
    for table in tables:
        _make_sure(lake, table)
        lake.storage.append(spark, table, lake.read(spark, table).limit(0), txn)


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
    lake.storage.before_merge(spark, table)

    def execute() -> Commit:
        _make_sure(lake, table)
        with lake.storage.exclusive(table):
            clauses(lake.delta(spark, table).alias("t").merge(source.alias("s"), on)).execute()
            return lake.last_commit(spark, table)

    with conf(spark, txn.conf(table)):
        commit = repeated(execute)
    fault_point(f"after:{table}")
    return commit


def _make_sure(lake: Lake, table: str) -> None:
    """Returns if this process is the one that may write, as far as can be told before Delta is asked."""
    lake.storage.require_claims()
    fault_point(f"sure:{table}")
