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

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CLAIMED_TABLES, SILVER_TABLES
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.storage.commits import Commit
from sessionlake.delta.storage.conflicts import retry_on_conflict
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.interface import StagedRows
from sessionlake.delta.storage.session_rows import SessionRows
from sessionlake.delta.storage.txn import CLAIMED_APP, Txn
from sessionlake.delta.storage.upsert import Combine, Upsert
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import conf

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def merge_app_id(app_id: str) -> str:
    """Application id under which batches of a query of silver's are merged."""
    return f"{app_id}:{SILVER_TABLES}"


def append(spark: SparkSession | None, lake: Lake, table: str, rows: Rows, txn: Txn) -> None:
    """Appends the rows once, whatever the number of replays."""
    fault_point(f"before:{table}")
    lake.storage.require_lease(table)
    lake.storage.append(spark, table, rows, txn)
    fault_point(f"after:{table}")


@contextmanager
def stage_append(spark: SparkSession, lake: Lake, table: str, rows: Rows, txn: Txn) -> Iterator[StagedRows]:
    """Writes rows down, runs the block, then makes them part of the table, as `append`; not if the block fails."""
    with lake.storage.stage(spark, table, rows) as written:
        yield written
        fault_point(f"before:{table}")
        lake.storage.require_lease(table)
        written.commit(txn)
        fault_point(f"after:{table}")


def replace_rows(spark: SparkSession | None, lake: Lake, table: str, rows: pa.Table, txn: Txn | None = None) -> None:
    """Replaces all rows of a small table, in one commit; with a transaction, once."""
    fault_point(f"before:{table}")
    lake.storage.require_lease(table)
    lake.storage.replace(spark, table, rows, txn)
    fault_point(f"after:{table}")


def replace_claimed(spark: SparkSession, lake: Lake, table: str, rows: pa.Table) -> None:
    """Replaces all rows of one of `names.CLAIMED_TABLES`, whose claim must be held."""
    lake.ensure(spark, [table])
    replace_rows(spark, lake, table, rows, _claimed_txn(spark, lake, table))


def merge_claimed(spark: SparkSession, lake: Lake, table: str, rows: pa.Table, upsert: Upsert) -> None:
    """MERGEs rows into one of `names.CLAIMED_TABLES`, which must be there, and whose claim must be held."""
    merge(spark, lake, table, rows, upsert, _claimed_txn(spark, lake, table))


def delete_claimed(spark: SparkSession, lake: Lake, table: str, where: Column) -> None:
    """Deletes rows of one of `names.CLAIMED_TABLES`, which must be there, and whose claim must be held."""
    txn = _claimed_txn(spark, lake, table)
    retry_on_conflict(lambda: delete_rows(spark, lake, table, txn, where))


def _claimed_txn(spark: SparkSession, lake: Lake, table: str) -> Txn:
    """A transaction of its own, above those of all holders of the claim before.

    What one of them, which stood still, would yet commit is passed over.
    """
    claim = next(name for name, tables in CLAIMED_TABLES.items() if table in tables)
    return next_txn(spark, lake, table, CLAIMED_APP).fenced_by(lake.storage.token(claim))


def next_txn(spark: SparkSession, lake: Lake, table: str, app_id: str) -> Txn:
    """Of a write that no plan of Spark's settles: its version is the one that the table is to have, or a lower one."""
    return Txn(app_id, lake.latest_version(spark, table) + 1)


def delete_all_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn) -> None:
    """Removes all rows of a table, once, as `delete_rows` those of which something holds."""
    _disable_append_only(spark, lake, table)
    lake.storage.require_lease(table)
    lake.storage.delete_all_rows(spark, table, txn)


def delete_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn, where: Column) -> None:
    """Deletes rows of a table, once, whatever the number of replays.

    One that rows are only appended to is open to it from then on, as by `remove_rows`.
    """
    _disable_append_only(spark, lake, table)
    lake.storage.require_lease(table)
    with lake.storage.commit_lock(table), conf(spark, txn.session_conf(table)):
        lake.delta(spark, table).delete(where)


def remove_rows(spark: SparkSession, lake: Lake, table: str, chosen: RowSelection) -> None:
    """Removes rows of a table that rows are only appended to, in one commit; what is gone already is no more to do.

    The table is open to it from then on: its `delta.appendOnly` is false.
    """
    fault_point(f"before:remove:{table}")
    _opened(spark, lake, table, lambda: lake.storage.remove_rows(spark, table, chosen))
    fault_point(f"after:remove:{table}")


def erase_messages(spark: SparkSession, lake: Lake, table: str, rows: SessionRows) -> None:
    """Leaves of a session's messages only where and when they were, as `remove_rows` removes."""
    _opened(spark, lake, table, lambda: lake.storage.erase_messages(spark, table, rows))


def _disable_append_only(spark: SparkSession, lake: Lake, table: str) -> None:
    if lake.storage.properties(spark, table).get(APPEND_ONLY) == "true":
        lake.set_property(spark, table, APPEND_ONLY, "false")


def _opened(spark: SparkSession, lake: Lake, table: str, write: Callable[[], None]) -> None:
    _disable_append_only(spark, lake, table)

    def surely() -> None:
        lake.storage.require_lease(table)
        write()

    retry_on_conflict(surely)


def fence_off(spark: SparkSession, lake: Lake, tables: Iterable[str], txn: Txn) -> None:
    """Sees to it that Delta passes over the transaction, and earlier ones of its application, from now on.

    A process that has made sure that it may write, and stands still before it commits, may go on at any time. Where the
    same transaction by another would not be the same rows, it is retired before anything is built on its not being
    there. One that is there already stays.
    """
    for table in tables:
        lake.storage.require_lease(table)
        lake.storage.append(spark, table, lake.read(spark, table).limit(0), txn)


def merge(spark: SparkSession, lake: Lake, table: str, source: Rows, upsert: Upsert, txn: Txn) -> Commit:
    """MERGEs the rows once, whatever the number of replays: see `Storage.merge`."""
    fault_point(f"before:{table}")
    commit = lake.storage.merge(spark, table, source, upsert, txn)
    fault_point(f"after:{table}")
    return commit


def accumulate(
    spark: SparkSession, lake: Lake, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
) -> Commit:
    """MERGEs once what the rows come to with those that are there: see `Storage.accumulate`."""
    fault_point(f"before:{table}")
    commit = lake.storage.accumulate(spark, table, rows, combine, upsert, txn)
    fault_point(f"after:{table}")
    return commit
