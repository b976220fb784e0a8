"""Writes rows to tables so that a repeated write changes nothing.

Delta stores, for each application id, the highest transaction version it has committed. Every write of a micro-batch
carries the application id `<streaming query id>:<table>` and the batch number as version. So Delta skips a write that
an earlier run of the batch has already committed. A new checkpoint has a new query id, so its batch numbers never
collide with those of an old one.
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
    """Returns the application id under which batches of a silver query are merged."""
    return f"{app_id}:{SILVER_TABLES}"


def append(spark: SparkSession | None, lake: Lake, table: str, rows: Rows, txn: Txn) -> None:
    """Appends rows in one commit; a replay of the same transaction appends nothing."""
    fault_point(f"before:{table}")
    lake.storage.require_lease(table)
    lake.storage.append(spark, table, rows, txn)
    fault_point(f"after:{table}")


@contextmanager
def stage_append(spark: SparkSession, lake: Lake, table: str, rows: Rows, txn: Txn) -> Iterator[StagedRows]:
    """Writes rows to files, runs the block, and then appends the rows to the table; not if the block fails.

    A replay of the same transaction appends nothing.
    """
    with lake.storage.stage(spark, table, rows) as written:
        yield written
        fault_point(f"before:{table}")
        lake.storage.require_lease(table)
        written.commit(txn)
        fault_point(f"after:{table}")


def replace_rows(spark: SparkSession | None, lake: Lake, table: str, rows: pa.Table, txn: Txn | None = None) -> None:
    """Replaces all rows of a small table in one commit; with a transaction, a replay changes nothing."""
    fault_point(f"before:{table}")
    lake.storage.require_lease(table)
    lake.storage.replace(spark, table, rows, txn)
    fault_point(f"after:{table}")


def replace_claimed(spark: SparkSession, lake: Lake, table: str, rows: pa.Table) -> None:
    """Replaces all rows of one of `names.CLAIMED_TABLES`. The caller must hold the table's claim."""
    lake.ensure(spark, [table])
    replace_rows(spark, lake, table, rows, _claimed_txn(spark, lake, table))


def merge_claimed(spark: SparkSession, lake: Lake, table: str, rows: pa.Table, upsert: Upsert) -> None:
    """MERGEs rows into one of `names.CLAIMED_TABLES`, which must exist. The caller must hold the table's claim."""
    merge(spark, lake, table, rows, upsert, _claimed_txn(spark, lake, table))


def delete_claimed(spark: SparkSession, lake: Lake, table: str, where: Column) -> None:
    """Deletes rows of one of `names.CLAIMED_TABLES`, which must exist. The caller must hold the table's claim."""
    txn = _claimed_txn(spark, lake, table)
    retry_on_conflict(lambda: delete_rows(spark, lake, table, txn, where))


def _claimed_txn(spark: SparkSession, lake: Lake, table: str) -> Txn:
    """Returns a transaction that is newer than those of all earlier holders of the table's claim.

    If an earlier holder was suspended and commits later, Delta skips its commit.
    """
    claim = next(name for name, tables in CLAIMED_TABLES.items() if table in tables)
    return next_txn(spark, lake, table, CLAIMED_APP).fenced_by(lake.storage.token(claim))


def next_txn(spark: SparkSession, lake: Lake, table: str, app_id: str) -> Txn:
    """Returns a transaction for a write outside a streaming query, versioned by the table's next Delta version."""
    return Txn(app_id, lake.latest_version(spark, table) + 1)


def delete_all_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn) -> None:
    """Deletes all rows of a table; a replay of the same transaction deletes nothing.

    Sets `delta.appendOnly` to false if the table has it.
    """
    _disable_append_only(spark, lake, table)
    lake.storage.require_lease(table)
    lake.storage.delete_all_rows(spark, table, txn)


def delete_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn, where: Column) -> None:
    """Deletes the rows that meet a condition; a replay of the same transaction deletes nothing.

    Sets `delta.appendOnly` to false if the table has it.
    """
    _disable_append_only(spark, lake, table)
    lake.storage.require_lease(table)
    with lake.storage.commit_lock(table), conf(spark, txn.session_conf(table)):
        lake.delta(spark, table).delete(where)


def remove_rows(spark: SparkSession, lake: Lake, table: str, chosen: RowSelection) -> None:
    """Removes the selected rows of an append-only table in one commit that streams skip.

    Does nothing where the rows are gone already, and sets `delta.appendOnly` to false.
    """
    fault_point(f"before:remove:{table}")
    _opened(spark, lake, table, lambda: lake.storage.remove_rows(spark, table, chosen))
    fault_point(f"after:remove:{table}")


def erase_session_rows(spark: SparkSession, lake: Lake, table: str, rows: SessionRows) -> None:
    """Erases the session's messages in one commit that streams skip; each keeps its offset and Kafka timestamp.

    Sets `delta.appendOnly` to false if the table has it.
    """
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
    """Makes Delta skip this transaction, and earlier ones of its application, from now on.

    A process that was suspended just before its commit can wake up and commit at any time. Where another process would
    write different rows under the same transaction, it first calls this. A commit that the transaction has made already
    stays.
    """
    for table in tables:
        lake.storage.require_lease(table)
        lake.storage.append(spark, table, lake.read(spark, table).limit(0), txn)


def merge(spark: SparkSession, lake: Lake, table: str, source: Rows, upsert: Upsert, txn: Txn) -> Commit:
    """MERGEs rows in one commit; a replay of the same transaction changes nothing.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    fault_point(f"before:{table}")
    commit = lake.storage.merge(spark, table, source, upsert, txn)
    fault_point(f"after:{table}")
    return commit


def accumulate(
    spark: SparkSession, lake: Lake, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
) -> Commit:
    """Combines rows with the table's rows of the same keys, and MERGEs the results in one commit.

    A replay of the same transaction changes nothing. `Storage.accumulate` describes the arguments.
    """
    fault_point(f"before:{table}")
    commit = lake.storage.accumulate(spark, table, rows, combine, upsert, txn)
    fault_point(f"after:{table}")
    return commit
