"""Rebuilds tables of gold from all changes that gold has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from sessionlake.delta.commit import append_rows, create_txn_outside_queries, delete_rows, make_delta_skip_transaction
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import build_feed_topics_condition
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, GOLD, LATE_POINTS, LEASES, RESTATEMENTS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.aggregate.late import find_latest_time_by_topic
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import CHANGE_KEY_AND_ORDER, DeclaredColumns, build_decimal_column_name
from sessionlake.gold.batch.averages import combine_new_and_stored_points
from sessionlake.gold.batch.final import find_latest_stream_times, rebuild_final_rows
from sessionlake.gold.batch.products import GROUPS, LATE_DDL
from sessionlake.gold.changes import (
    add_seq_order,
    find_last_read_changes_version,
    get_value_columns,
    read_changes,
    select_events,
)
from sessionlake.gold.declared.tables import GoldTable, add_final_tables_of_products, find_final_tables
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import recompute_averages
from sessionlake.gold.fold.unscaled_decimals import replace_decimal_columns_by_unscaled
from sessionlake.gold.rebuilding.states import reset_states_after_rebuild
from sessionlake.gold.references.applied import join_changes_with_references_on_cluster
from sessionlake.gold.tables.expiry import compute_expiry_times, drop_expired_spark_rows, store_expiry_times
from sessionlake.gold.tables.table_properties import LOGIC, set_change_feeds
from sessionlake.protocol.arrow import add_constant_columns, decode_dictionaries
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.compare import compare_rows
from sessionlake.spark.frames import FunctionPerArrowBatch, apply_to_groups
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.handover import read_next_batch_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Application id of commits that replace all rows of a table.
_MADE = "made"


def replace_all_rows(spark: SparkSession, lake: Lake, table: str, rows: DataFrame) -> None:
    """Replaces all rows of a table of gold. From then on, writes of earlier holders of gold's lease have no effect.

    Raises:
        LakeError: A later holder of gold's lease has written the table, so that Delta skipped these rows.
    """
    token = lake.storage.get_fencing_token(GOLD)
    if token:
        make_delta_skip_transaction(spark, lake, [table], Txn.build_txn_before_lease_holder(_MADE, token))
    txn = create_txn_outside_queries(spark, lake, table, _MADE).add_fencing_token(token)
    before = lake.latest_version(spark, table)
    lake.storage.require_claims_before_commit(table)
    lake.storage.replace_rows_with_spark(rows, table, txn.build_writer_options(table))
    if lake.latest_version(spark, table) == before:
        raise LakeError(
            f"Delta skipped the new rows of {table}, because a process with a higher lease number "
            "than this process has written to it",
            why=f"This process holds the lease, so {LEASES} was dropped at some time, and its numbers "
            "started again at 1",
            fix=f"Drop the table {table}: the next start of gold creates it again and fills it",
        )
    lake.set_clustering_keys(spark, table)


def rebuild_late_points(
    spark: SparkSession, lake: Lake, changes: DataFrame, product: Product, declared: DeclaredColumns
) -> None:
    """Replaces the rows that `gold.late_points` has for a product.

    The replacement takes two commits. If the process dies between them, the product is still marked as incomplete, and
    gold's next start rebuilds it.

    Args:
        changes: All changes that gold has read, from which the new rows are computed.
        product: The product.
        declared: The declared columns that the changes have.
    """
    from pyspark.sql import functions as F

    txn, former = Txn(f"anew-{uuid4().hex[:12]}", 0), F.col("table") == product.table_name
    if not lake.read(spark, LATE_POINTS).where(former).isEmpty():
        delete_rows(spark, lake, LATE_POINTS, txn, former)
    if product.lateness_ms is None:
        return
    stamps = {"_batch": pa.scalar(-1, pa.int64())}
    late = FunctionPerArrowBatch(lambda some: add_constant_columns(product.select_late_rows(some, declared), stamps))
    append_rows(spark, lake, LATE_POINTS, changes.mapInArrow(late, LATE_DDL), txn.txn_of_second_write)


@dataclass(frozen=True)
class RebuiltTable:
    """The result of rebuilding one table.

    Attributes:
        rows: Number of rows after the rebuild.
        first_difference: Text that describes the first row that differs from the table before the rebuild. None if no
            row differs, or the table was empty or did not exist.
    """

    rows: int
    first_difference: str | None


def rebuild_table(spark: SparkSession, lake: Lake, settings: Settings, product: GoldTable) -> RebuiltTable:
    """Replaces a table's rows with rows computed from all changes that gold has read, in one commit.

    If the table's columns are not the declared ones, the table is dropped first.

    Args:
        product: The table to rebuild.

    Raises:
        LakeError: Gold has read only a part of a version of `silver.session_changes`.
    """
    changes, table = read_changes(spark, lake, settings), product.table_name
    for one in add_final_tables_of_products([product]):
        _ensure_table_with_declared_columns(spark, lake, one, empty=changes is None)
    set_change_feeds(spark, lake, settings, [product])
    rebuilt = RebuiltTable(0, None)
    if changes is not None:
        rows = _compute_all_rows(spark, lake, settings, product, changes)
        times = find_latest_stream_times(changes) if isinstance(product, Product) else {}
        if isinstance(product, Product):
            floors = compute_expiry_times(product, find_latest_time_by_topic(times))
            store_expiry_times(spark, lake, [one.table_name for one in add_final_tables_of_products([product])], floors)
            rows = drop_expired_spark_rows(rows, floors)
        rows = rows.localCheckpoint()
        rebuilt = RebuiltTable(
            rows.count(), _describe_first_difference(lake.read_small_table_into_memory(spark, table), rows, product)
        )
        replace_all_rows(spark, lake, table, rows)
        _make_delta_skip_last_batch(spark, lake, settings, table)
        for final in find_final_tables([product]):
            rebuild_final_rows(spark, lake, final, rows, times, read_next_batch_number(settings, GOLD) - 1)
            _make_delta_skip_last_batch(spark, lake, settings, final.table_name)
        if isinstance(product, RollingAverage):
            reset_states_after_rebuild(spark, lake, settings, product, rows)
            _make_delta_skip_last_batch(spark, lake, settings, RESTATEMENTS)
        elif isinstance(product, Product):
            rebuild_late_points(spark, lake, changes, product, get_value_columns(settings))
            if product.lateness_ms is not None:
                _make_delta_skip_last_batch(spark, lake, settings, LATE_POINTS)
    # Set last: until then the table counts as incomplete.
    lake.storage.require_claims_before_commit(table)
    lake.set_property(spark, table, LOGIC, product.logic_hash)
    return rebuilt


def _ensure_table_with_declared_columns(
    spark: SparkSession, lake: Lake, table: GoldTable | FinalTable, *, empty: bool
) -> None:
    """Creates a table if it does not exist. A table with other columns than the declared ones is dropped first.

    Args:
        table: The table.
        empty: True to drop an existing table even if its columns are right, because gold has no rows for it.
    """
    present = lake.storage.read_column_types(spark, table.table_name) if lake.exists(spark, table.table_name) else None
    # AVERAGES is never dropped: its properties store, for example, which tables gold maintains. Its keys never change.
    if present is not None and table.table_name != AVERAGES and (empty or present != dict(table.column_types)):
        # File statistics and clustering depend on the table's definition, so the table is created again.
        lake.drop_table(spark, table.table_name)
    lake.create_or_update_tables(spark, [table.table_name])


def _make_delta_skip_last_batch(spark: SparkSession, lake: Lake, settings: Settings, table: str) -> None:
    """Makes Delta ignore writes of gold's last batch to a table, because the table's rows already include the batch.

    Spark repeats a batch if it has lost the record of its commit.
    """
    app_id = CheckpointGenerations(settings.checkpoint_path(GOLD), GOLD).current_generation.app_id
    if app_id is not None:
        last = Txn(app_id, read_next_batch_number(settings, GOLD) - 1)
        for txn in (last, last.txn_of_second_write):
            make_delta_skip_transaction(spark, lake, [table], txn)


def _compute_all_rows(
    spark: SparkSession, lake: Lake, settings: Settings, product: GoldTable, changes: DataFrame
) -> DataFrame:
    if isinstance(product, EnrichedTable):
        return join_changes_with_references_on_cluster(
            spark, lake, lake.read(spark, CHANGES, find_last_read_changes_version(settings)), product
        )
    return recompute_rows(changes, product, get_value_columns(settings))


def _describe_first_difference(live: DataFrame, rows: DataFrame, product: GoldTable) -> str | None:
    """Returns a text that describes the first row that differs between a table and its new rows.

    None if no row differs, or the table is empty.

    Args:
        live: The table's rows before the rebuild.
        rows: The new rows.
        product: The table.
    """
    if live.isEmpty():
        return None
    return compare_rows(product.table_name, product.row_keys, product.result_columns, live, rows).first_difference


def recompute_rows(changes: DataFrame, table: Product | RollingAverage, declared: DeclaredColumns) -> DataFrame:
    """Returns the rows that a table has after some changes, computed by the same code as in the stream.

    Args:
        changes: Changes from `gold.changes.select_changes`.
        table: The table.
        declared: The declared columns that the changes have.
    """
    if isinstance(table, RollingAverage):
        return _compute_averages(changes, table, declared)
    return _compute_product_rows(changes, table, declared)


def _compute_averages(changes: DataFrame, series: RollingAverage, declared: DeclaredColumns) -> DataFrame:
    """Returns the rows of a table of averages, computed as if all points had come in one batch."""
    events = select_events(
        changes, declared, (*CHANGE_KEY_AND_ORDER, "position", "offset"), numbers=True, with_decimals=True
    )
    decimals = [build_decimal_column_name(i) for i in range(len(declared.decimals))]
    columns = [
        *series.text_keys,
        "ts",
        "ordinal",
        "value",
        "position",
        "partition",
        "offset",
        *series.seq_order_columns,
        *decimals,
    ]
    points = add_seq_order(events.where(build_feed_topics_condition(series.topics))).select(*map(quote, columns))

    def recompute_averages_of_group(rows: pa.Table) -> pa.Table:
        rows = replace_decimal_columns_by_unscaled(rows, decimals)
        return pa.concat_tables(
            decode_dictionaries(emitted.rows)
            for emitted in recompute_averages(combine_new_and_stored_points(series, rows), series)
        )

    return apply_to_groups(points, series.keys, GROUPS, recompute_averages_of_group, series.columns_ddl)


def _compute_product_rows(changes: DataFrame, product: Product, declared: DeclaredColumns) -> DataFrame:
    parts = changes.mapInArrow(
        FunctionPerArrowBatch(lambda some: product.aggregate_changes(some, declared)), product.columns_ddl
    )
    return apply_to_groups(parts, product.row_keys, GROUPS, product.merge_rows, product.columns_ddl)
