"""Writes rows to tables so that a repeated write changes nothing.

For each application id, a Delta table stores the highest transaction version that was committed. Every write of a
micro-batch carries the application id `<streaming query id>:<table>` and the batch number as transaction version. So
Delta skips a write that an earlier run of the batch has already committed. A new checkpoint has a new query id, so
batch numbers of an old checkpoint do not matter.

Some functions need a claim: an exclusive right that one process at a time holds (`Storage.claim`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CLAIMED_TABLES, SILVER_TABLES
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.conflicts import retry_on_conflict
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.interface import StagedRows
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.spark_writes import rewrite_rows_with_spark
from sessionlake.delta.storage.txn import CLAIMED_APP, Txn
from sessionlake.delta.storage.upsert import Combine, Upsert
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import use_temporary_spark_conf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")


def build_merge_app_id(app_id: str) -> str:
    """Returns the application id for the transactions of MERGEs that bring the batches of a silver query into tables.

    Args:
        app_id: the application id of the silver query.
    """
    return f"{app_id}:{SILVER_TABLES}"


def append_rows(spark: SparkSession | None, lake: Lake, table: str, rows: Rows, txn: Txn) -> TableCommit:
    """Appends rows to a table in one commit; a replay of the same transaction appends nothing.

    Args:
        spark: a session in which no other write runs at the same time, such as the batch's own session. None if the
            tables are in folders.
        lake: the lake that has the table.
        table: the table's two-level name.
        rows: the rows.
        txn: the transaction.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    return _check_claims_and_commit(lake, table, lambda: lake.storage.append_rows(spark, table, rows, txn))


def commit_staged_rows(lake: Lake, table: str, staged: StagedRows, txn: Txn) -> TableCommit:
    """Appends rows that `Storage.stage_rows` has computed, in one commit; a replay of the transaction appends nothing.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    return _check_claims_and_commit(lake, table, lambda: staged.commit_rows(txn))


def replace_rows(spark: SparkSession | None, lake: Lake, table: str, rows: pa.Table, txn: Txn | None = None) -> None:
    """Replaces all rows of a small table in one commit. With a transaction, a replay changes nothing."""
    _check_claims_and_commit(lake, table, lambda: lake.storage.replace_rows(spark, table, rows, txn))


def _check_claims_and_commit(lake: Lake, table: str, commit: Callable[[], T]) -> T:
    """Calls `commit` if this process still holds its claims, and returns its result. Tests stop it before and after."""
    inject_fault_if_requested(f"before:{table}")
    lake.storage.require_claims_before_commit(table)
    result = commit()
    inject_fault_if_requested(f"after:{table}")
    return result


def replace_rows_as_claim_holder(spark: SparkSession, lake: Lake, table: str, rows: pa.Table) -> None:
    """Replaces all rows of a table that only the holder of its claim writes (`names.CLAIMED_TABLES`)."""
    lake.create_or_update_tables(spark, [table])
    replace_rows(spark, lake, table, rows, _create_txn_of_claim_holder(spark, lake, table))


def merge_rows_as_claim_holder(spark: SparkSession, lake: Lake, table: str, rows: pa.Table, upsert: Upsert) -> None:
    """MERGEs rows into an existing table that only the holder of its claim writes (`names.CLAIMED_TABLES`)."""
    merge_rows(spark, lake, table, rows, upsert, _create_txn_of_claim_holder(spark, lake, table))


def delete_rows_as_claim_holder(spark: SparkSession, lake: Lake, table: str, where: Column) -> None:
    """Deletes the rows that meet `where` from an existing table that only the holder of its claim writes.

    The table is one of `names.CLAIMED_TABLES`.
    """
    txn = _create_txn_of_claim_holder(spark, lake, table)
    retry_on_conflict(lambda: delete_rows(spark, lake, table, txn, where))


def _create_txn_of_claim_holder(spark: SparkSession, lake: Lake, table: str) -> Txn:
    """Returns a transaction for a write by the holder of the table's claim.

    Its version is higher than those of all earlier holders. If an earlier holder was suspended and tries to commit now,
    Delta skips its commit.
    """
    claim = next(name for name, tables in CLAIMED_TABLES.items() if table in tables)
    return create_txn_outside_queries(spark, lake, table, CLAIMED_APP).add_fencing_token(
        lake.storage.get_fencing_token(claim)
    )


def create_txn_outside_queries(spark: SparkSession, lake: Lake, table: str, app_id: str) -> Txn:
    """Returns a transaction for a write that belongs to no streaming query.

    Its version is the table's next Delta version.
    """
    return Txn(app_id, lake.latest_version(spark, table) + 1)


def delete_all_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn) -> None:
    """Deletes all rows of a table; a replay of the same transaction deletes nothing.

    Sets the table property `delta.appendOnly` to false if it is true.
    """
    _set_append_only_to_false(spark, lake, table)
    lake.storage.require_claims_before_commit(table)
    lake.storage.delete_all_rows(spark, table, txn)


def delete_rows(spark: SparkSession, lake: Lake, table: str, txn: Txn, where: Column) -> None:
    """Deletes the rows that meet a condition; a replay of the same transaction deletes nothing.

    Sets the table property `delta.appendOnly` to false if it is true.
    """
    _set_append_only_to_false(spark, lake, table)
    lake.storage.require_claims_before_commit(table)
    with lake.storage.hold_commit_lock(table), use_temporary_spark_conf(spark, txn.build_session_conf(table)):
        lake.open_delta_table(spark, table).delete(where)


def remove_rows(spark: SparkSession, lake: Lake, table: str, selection: RowSelection) -> None:
    """Removes the selected rows of an append-only table in one commit. Streams that read the table skip this commit.

    Sets the table property `delta.appendOnly` to false. If called again, and no selected rows are left, removes
    nothing.
    """
    inject_fault_if_requested(f"before:remove:{table}")
    _retry_write(spark, lake, table, lambda: lake.storage.remove_rows(spark, table, selection))
    inject_fault_if_requested(f"after:remove:{table}")


def erase_session_rows(spark: SparkSession, lake: Lake, table: str, rows: SessionRowSelection) -> None:
    """Erases key, value and headers of a session's messages in one commit.

    Streams that read the table skip this commit.

    Each message keeps its offset and Kafka timestamp. Sets `delta.appendOnly` to false if the table has it.

    Args:
        spark: the session to write with.
        lake: the lake that has the table.
        table: the table with the messages.
        rows: selects the session's messages.
    """
    _retry_write(spark, lake, table, lambda: lake.storage.erase_messages(spark, table, rows))


def replace_column(
    spark: SparkSession, lake: Lake, table: str, selection: RowSelection, column: str, source: DataFrame
) -> None:
    """Replaces a column's values in the selected rows in one commit. Streams that read the table skip this commit.

    If the table has `delta.appendOnly`, it is set to false, and stays so.

    Args:
        selection: The rows to change, as a condition that joins them with `source`.
        column: The column to change.
        source: The new values in a column of the same name, and the columns that `selection` compares. Alias `s`.
    """
    _set_append_only_to_false(spark, lake, table)
    values = {column: f"s.{column}"}
    rewrite_rows_with_spark(
        lake.storage, spark, table, selection, lambda merge: merge.whenMatchedUpdate(set=values), source
    )


def _set_append_only_to_false(spark: SparkSession, lake: Lake, table: str) -> None:
    if lake.storage.read_properties(spark, table).get(APPEND_ONLY) == "true":
        lake.set_property(spark, table, APPEND_ONLY, "false")


def _retry_write(spark: SparkSession, lake: Lake, table: str, write: Callable[[], None]) -> None:
    _set_append_only_to_false(spark, lake, table)

    def check_claims_and_write() -> None:
        lake.storage.require_claims_before_commit(table)
        write()

    retry_on_conflict(check_claims_and_write)


def make_delta_skip_transaction(spark: SparkSession, lake: Lake, tables: Iterable[str], txn: Txn) -> None:
    """Makes Delta skip a transaction in these tables from now on, and earlier transactions of the same application.

    A process that was suspended just before its commit may resume and commit at any time. So a process that would write
    different rows under the same transaction calls this function first. If the transaction was already committed, that
    commit stays.

    Args:
        spark: the session to write with.
        lake: the lake that has the tables.
        tables: the tables.
        txn: the transaction to skip.
    """
    for table in tables:
        lake.storage.require_claims_before_commit(table)
        lake.storage.append_rows(spark, table, lake.read(spark, table).limit(0), txn)


def merge_rows(spark: SparkSession, lake: Lake, table: str, source: Rows, upsert: Upsert, txn: Txn) -> TableCommit:
    """MERGEs rows into a table in one commit; a replay of the same transaction changes nothing.

    Args:
        spark: the session to write with.
        lake: the lake that has the table.
        table: the table's two-level name.
        source: the rows to merge, at most one per key.
        upsert: says which columns are the key, and how a row changes the table's row with its key.
        txn: the transaction.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    inject_fault_if_requested(f"before:{table}")
    commit = lake.storage.merge_rows(spark, table, source, upsert, txn)
    inject_fault_if_requested(f"after:{table}")
    return commit


def combine_and_merge_rows(
    spark: SparkSession, lake: Lake, table: str, rows: pa.Table, combine: Combine, upsert: Upsert, txn: Txn
) -> TableCommit:
    """Combines rows with the table's rows of the same keys, such as sums, and MERGEs the results in one commit.

    A replay of the same transaction changes nothing.

    Args:
        spark: the session to write with.
        lake: the lake that has the table.
        table: the table's two-level name.
        rows: at most one row per key, with the table's columns.
        combine: computes the resulting rows from `rows` and the table's rows of the same keys.
        upsert: names the keys and all other columns. It must update and insert, and not delete.
        txn: the transaction.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    inject_fault_if_requested(f"before:{table}")
    commit = lake.storage.combine_and_merge_rows(spark, table, rows, combine, upsert, txn)
    inject_fault_if_requested(f"after:{table}")
    return commit
