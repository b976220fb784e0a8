"""Writes to tables with Spark.

Used for tables in catalogs, for folders to which only Spark may write, and for MERGEs whose source is a Spark frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.commits import LAST_COMMIT, TableCommit
from sessionlake.delta.storage.conflicts import retry_on_conflict
from sessionlake.delta.storage.expired import RowSelection
from sessionlake.delta.storage.interface import TableStorage
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE, WRITTEN, quote
from sessionlake.spark.frames import Rows, convert_to_spark_frame, store_frame_on_disk
from sessionlake.spark.interpreted import use_temporary_spark_conf

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession

# A condition lists up to this many values. For more values it has only a lower and an upper bound, since each value
# costs the driver about 0.1 ms.
_MAX_NAMED_VALUES = 1_000
_LOCAL_TIME = pa.timestamp("us")


class StagedFrame:
    """Rows that Spark has computed and stored on disk, and which become part of a table with `commit_rows`.

    Args:
        storage: the storage of the table.
        table: two-level name of the table.
        rows: the rows, as a Spark frame.
        row_count: number of rows in the frame; None if unknown.
    """

    def __init__(self, storage: TableStorage, table: str, rows: DataFrame, row_count: int | None = None) -> None:
        self._storage, self._table, self._rows, self._row_count = storage, table, rows, row_count

    def count_rows(self) -> int:
        """Returns the number of stored rows. The first call runs a Spark job if the number is unknown."""
        if self._row_count is None:
            self._row_count = self._rows.count()
        return self._row_count

    def read_columns(self, *names: str) -> pa.Table:
        """Reads these columns of all stored rows into the driver's memory."""
        return self._rows.select(*names).toArrow()

    def commit_rows(self, txn: Txn) -> TableCommit:
        """Appends the rows to the table in one commit, and returns it. No Spark job runs after the commit.

        Delta skips the append if the transaction is already committed; then the table's latest commit is returned.
        After a conflict with another commit it tries again, five times in all; then it raises Delta's error.
        """
        options = txn.build_writer_options(self._table)
        return retry_on_conflict(lambda: self._append(options))

    def _append(self, options: Mapping[str, Any]) -> TableCommit:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        spark, observation = self._rows.sparkSession, Observation()
        counted = self._rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        spark.conf.unset(LAST_COMMIT)
        self._storage.append_rows_with_spark(counted, self._table, options)
        return _get_commit_of_last_write(self._storage, spark, self._table, lambda: observation.get["rows"])


@contextmanager
def stage_rows_with_spark(storage: TableStorage, spark: SparkSession, table: str, rows: Rows) -> Iterator[StagedFrame]:
    """Computes rows once with Spark, and keeps them on disk until the block ends, so that the block can commit them."""
    with store_frame_on_disk(convert_to_spark_frame(spark, rows)) as kept:
        yield StagedFrame(storage, table, kept, rows.num_rows if isinstance(rows, pa.Table) else None)


def merge_rows_with_spark(
    storage: TableStorage,
    spark: SparkSession,
    table: str,
    source: Rows,
    upsert: Upsert,
    txn: Txn,
    settings: Mapping[str, str] | None = None,
) -> TableCommit:
    """MERGEs rows into a table with Spark, and tries again if another commit conflicts.

    A replay of the same transaction changes nothing.

    Args:
        storage: the storage of the table.
        spark: a session in which no other write runs at the same time, since the transaction is set in its settings.
        table: the table's two-level name.
        source: the rows to merge, at most one per key.
        upsert: says which columns are the key, and how a source row changes the table's row with its key.
        txn: the transaction.
        settings: further Spark settings during the MERGE.

    Returns:
        The commit; after a replay, the table's latest one.
    """
    frame = convert_to_spark_frame(spark, source)
    known = source if isinstance(source, pa.Table) else frame
    same = reduce(
        and_, (_build_pruning_bounds(known, name) for name in upsert.pruned_by), _build_same_keys_condition(upsert)
    )

    def execute_merge() -> TableCommit:
        storage.require_claims_before_commit(table)
        with storage.hold_commit_lock(table):
            builder = storage.open_delta_table(spark, table).alias("t").merge(frame.alias("s"), same)
            spark.conf.unset(LAST_COMMIT)
            done = _add_merge_clauses(builder, upsert).execute().collect()
            return _get_commit_of_last_write(storage, spark, table, lambda: done[0]["num_affected_rows"])

    with use_temporary_spark_conf(spark, txn.build_session_conf(table) | dict(settings or {})):
        return retry_on_conflict(execute_merge)


def _get_commit_of_last_write(
    storage: TableStorage, spark: SparkSession, table: str, count_rows: Callable[[], int]
) -> TableCommit:
    """Returns the commit of the session's last write, before which `LAST_COMMIT` was unset, without a Spark job.

    If Delta has skipped the write, because its transaction was already committed, returns the table's latest commit.

    Args:
        storage: the storage of the table.
        spark: the session that has written.
        table: the table's two-level name.
        count_rows: returns the number of rows that were written. Not called if Delta has skipped the write.
    """
    version = spark.conf.get(LAST_COMMIT, None)
    return storage.last_commit(spark, table) if version is None else TableCommit(int(version), count_rows())


def overwrite_rows(rows: DataFrame, table: str, options: Mapping[str, Any]) -> None:
    """Replaces all rows of a table in a catalog.

    It overwrites the table's data. `saveAsTable` would replace the table itself: a Hive metastore then stores its
    columns, and streams refuse the table after a column is added.

    Args:
        rows: the new rows.
        table: three-level name of the table.
        options: options of Spark's Delta writer.
    """
    from pyspark.sql import functions as F

    rows.writeTo(table).options(**options).overwrite(F.lit(True))


def count_rows_with_spark(storage: TableStorage, spark: SparkSession, table: str, selection: RowSelection) -> int:
    """Returns how many rows of a table the selection contains."""
    rows = storage.read(spark, table, {}).alias("t")
    return rows.join(selection.build_merge_source(spark), selection.build_merge_condition(), "left_semi").count()


def remove_rows_with_spark(storage: TableStorage, spark: SparkSession, table: str, selection: RowSelection) -> None:
    """Removes the selected rows of a table in one commit."""
    rewrite_rows_with_spark(storage, spark, table, selection, lambda merge: merge.whenMatchedDelete())


def erase_messages_with_spark(
    storage: TableStorage, spark: SparkSession, table: str, rows: SessionRowSelection
) -> None:
    """Erases a session's messages, or its parts of messages. Each message keeps its offset and Kafka timestamp."""
    source, values = rows.build_source_and_erased_values(spark, storage.read(spark, table, {}))
    rewrite_rows_with_spark(
        storage, spark, table, rows, lambda merge: merge.whenMatchedUpdate(set=dict(values)), source=source
    )


def rewrite_rows_with_spark(
    storage: TableStorage,
    spark: SparkSession,
    table: str,
    selection: RowSelection,
    change: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    source: DataFrame | None = None,
) -> None:
    """Deletes or changes the selected rows of a table, so that their old content is in no file of the new version.

    For this, all rows marked as deleted are first removed from files, and the MERGE adds no new deletion vectors.

    Args:
        storage: the storage of the table.
        spark: the session to write with.
        table: the table's two-level name.
        selection: selects the rows.
        change: adds a clause for matched rows to a MERGE. Its source is the selection, so all selected rows match.
        source: source of the MERGE (alias `s`); None if the frame of the selection is the source.
    """

    def purge_and_merge() -> None:
        storage.require_claims_before_commit(table)
        with storage.hold_commit_lock(table):
            if storage.read_properties(spark, table).get(DELETION_VECTORS) == "true":
                spark.sql(f"REORG TABLE {storage.to_sql_identifier(table)} APPLY (PURGE)").collect()
            merge = (
                storage.open_delta_table(spark, table)
                .alias("t")
                .merge(source or selection.build_merge_source(spark), selection.build_merge_condition())
            )
            change(merge).execute()

    with use_temporary_spark_conf(spark, {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}):
        retry_on_conflict(purge_and_merge)


def _build_same_keys_condition(upsert: Upsert) -> Column:
    from pyspark.sql import functions as F

    return reduce(and_, (F.col(f"t.{quote(name)}") == F.col(f"s.{quote(name)}") for name in upsert.keys))


def _add_merge_clauses(builder: DeltaMergeBuilder, upsert: Upsert) -> DeltaMergeBuilder:
    always: dict[str, str | Column] = {quote(name): f"s.{quote(name)}" for name in upsert.columns}
    if_set: dict[str, str | Column] = {
        quote(name): f"CASE WHEN s.{WRITTEN}[{i}] THEN s.{quote(name)} ELSE t.{quote(name)} END"
        for i, name in enumerate(upsert.optional_columns)
    }
    if upsert.deletes:
        builder = builder.whenMatchedDelete(f"s.{DELETE}")
    if upsert.updates:
        builder = builder.whenMatchedUpdate(set=always | if_set)
    if upsert.inserts:
        new_row: dict[str, str | Column] = {
            quote(name): f"s.{quote(name)}" for name in (*upsert.keys, *upsert.optional_columns)
        }
        is_wanted = f"NOT s.{DELETE}" if upsert.deletes else None
        builder = builder.whenNotMatchedInsert(is_wanted, values=new_row | always)
    return builder


def _build_pruning_bounds(source: DataFrame | pa.Table, name: str) -> Column:
    """Returns a condition that limits a column of the table to the values in the source, so that MERGE skips files.

    Without such a condition, MERGE would read the keys in all files of the table. The condition is always true for
    bytes, for which files have no bounds, and for times without zone, whose literal would depend on the session's time
    zone.

    Args:
        source: the rows to merge.
        name: the column.
    """
    from pyspark.sql import functions as F

    column, distinct = F.col(f"t.{quote(name)}"), _read_distinct_values(source, name)
    if pa.types.is_binary(distinct.type) or distinct.type == _LOCAL_TIME:
        return F.lit(col=True)
    if len(distinct) <= _MAX_NAMED_VALUES:
        return column.isin(*_create_spark_literals(distinct))
    if isinstance(source, pa.Table):
        ends = pc.min_max(distinct)
        return column.between(*_create_spark_literals(pa.array([ends["min"], ends["max"]], distinct.type)))
    found = source.agg(F.min(quote(name)), F.max(quote(name))).toArrow()
    return column.between(*_create_spark_literals(pa.chunked_array([*found[0].chunks, *found[1].chunks])))


def _create_spark_literals(values: pa.Array | pa.ChunkedArray) -> list[Column]:
    """Returns Spark literals with exactly these values.

    Spark converts a Python time by the process's time zone and, before 1582, by the Julian calendar. So times are
    passed as microseconds, and dates as days.
    """
    from pyspark.sql import functions as F

    if pa.types.is_timestamp(values.type):
        micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
        return [F.timestamp_micros(F.lit(value)) for value in micros.to_pylist()]
    if pa.types.is_date32(values.type):
        return [F.date_from_unix_date(F.lit(value)) for value in values.cast(pa.int32()).to_pylist()]
    return [F.lit(value) for value in values.to_pylist()]


def _read_distinct_values(source: DataFrame | pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    """Returns the distinct values of a column.

    From a Spark frame, reads only one value more than can be listed in a condition: that shows that there are too many.
    """
    if isinstance(source, pa.Table):
        found = pc.unique(source[name])
        return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found
    return source.select(quote(name)).distinct().limit(_MAX_NAMED_VALUES + 1).toArrow()[0]
