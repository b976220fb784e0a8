"""Merges a batch into the products' tables, in one commit per table.

Merging a batch twice would count its events twice. So every commit has the batch's transaction, and a repeated batch
skips the tables that already have it. Rows that fit into the driver are merged there, all others on the cluster. Both
use the same pure function, `Product.merged`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import append_rows, combine_and_merge_rows, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LATE_POINTS
from sessionlake.delta.storage.far_times import find_nearest_datetime
from sessionlake.delta.storage.reading import Condition, TooLargeError, is_in
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.aggregate.late import LATE_COLUMNS, NEVER
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.batch.final import FinalRowAppender
from sessionlake.gold.batch.rows import BatchProductRows, GoldFoldResult, is_keyed_by_session, read_payload_rows
from sessionlake.gold.fold.product_payloads import LATE_POINTS as KIND
from sessionlake.gold.tables.expiry import BucketExpiry, drop_expired_arrow_rows
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.arrow import add_constant_columns
from sessionlake.protocol.names import add_internal_prefix, build_ddl, quote
from sessionlake.spark.frames import DeferredArrowMap, Rows, apply_to_groups, apply_to_rows, convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FRESH = add_internal_prefix("fresh")
GROUPS = 256
"""Number of groups in which rows are merged on the cluster. The rows of one group must fit into a worker's memory."""
_LATE = build_ddl(LATE_COLUMNS)
LATE_DDL = build_ddl((*LATE_COLUMNS, ("_batch", "bigint")))


@dataclass(frozen=True)
class ProductMerger:
    """Merges one batch into the tables of products.

    Attributes:
        rows: The rows that the batch adds to each product.
        txn: The batch's transaction.
        expiry: Knows which buckets have expired.
        final_rows: Knows which buckets are final.
    """

    spark: SparkSession
    lake: Lake
    rows: BatchProductRows
    txn: Txn
    expiry: BucketExpiry
    final_rows: FinalRowAppender

    def merge_batch_into_products(self, products: Iterable[Product]) -> Iterator[TableOutput]:
        """Merges the batch into these products' tables. Products without rows in the batch are left out.

        Yields the new version and the number of merged rows of each table.
        """
        for product in products:
            if self.rows.compute_row_count_and_time_range(product).rows:
                part = self._drop_expired_rows(product, self.rows.find_product_rows(product))
                self.final_rows.require_open_buckets(
                    self.spark, product, part, self.rows.compute_row_count_and_time_range(product).low
                )
                yield self._merge_product_rows(product, part)

    def _drop_expired_rows(self, product: Product, batch_rows: pa.Table | DeferredArrowMap) -> Rows:
        """Returns the batch's rows of a product without those whose bucket has expired."""
        floors = self.expiry.get_expiry_times(product.table_name)
        if self.rows.compute_row_count_and_time_range(product).low >= max(floors.values(), default=NEVER) * 1000:
            return batch_rows
        return apply_to_rows(batch_rows, lambda rows: drop_expired_arrow_rows(rows, floors), product.columns_ddl)

    def _merge_product_rows(self, product: Product, batch_rows: Rows) -> TableOutput:
        rows = self.rows.compute_row_count_and_time_range(product).rows
        if not isinstance(batch_rows, pa.Table):
            if self._has_only_new_keys(product):
                done = append_rows(self.spark, self.lake, product.table_name, batch_rows, self.txn)
                return TableOutput(product.table_name, done.version, done.rows)
            if rows > self.lake.driver_limits.driver_changes:
                return self._merge_rows_on_cluster(product, convert_to_spark_frame(self.spark, batch_rows))
            batch_rows = drop_expired_arrow_rows(
                self.rows.collect_product_rows(product), self.expiry.get_expiry_times(product.table_name)
            )
        try:
            return self._merge_rows_in_driver(product, batch_rows)
        except TooLargeError:
            return self._merge_rows_on_cluster(
                product, convert_to_spark_frame(self.spark, batch_rows.cast(product.arrow_schema()))
            )

    def _has_only_new_keys(self, product: Product) -> bool:
        """Returns True if all rows of the batch have keys that the product's table does not have.

        That is known if the table has no rows of the batch's topics in the batch's range of time.
        """
        if not is_keyed_by_session(product):
            return False
        conditions: list[Condition] = [("topic", is_in, sorted(self.rows.fold_result.report.times_by_topic))]
        if product.bucket_ms is not None:
            span = self.rows.compute_row_count_and_time_range(product)
            ends = (find_nearest_datetime(end // 1000) for end in (span.low, span.high))
            conditions += [(START, compare, end) for compare, end in zip((operator.ge, operator.le), ends, strict=True)]
        return not self.lake.reader(self.spark).has_rows(product.table_name, *conditions)

    def _merge_rows_in_driver(self, product: Product, batch_rows: pa.Table) -> TableOutput:
        """Merges the batch's rows of a product in the driver's memory.

        Raises:
            TooLargeError: The table's rows with the same keys do not fit into the driver's memory.
        """

        def merge_stored_rows(new_rows: pa.Table, stored_rows: pa.Table) -> pa.Table:
            return product.merge_rows(new_rows, stored_rows).cast(product.arrow_schema())

        commit = combine_and_merge_rows(
            self.spark,
            self.lake,
            product.table_name,
            batch_rows,
            merge_stored_rows,
            _build_product_upsert(product),
            self.txn,
        )
        return TableOutput(product.table_name, commit.version, batch_rows.num_rows)

    def _merge_rows_on_cluster(self, product: Product, batch_rows: DataFrame) -> TableOutput:
        from pyspark.sql import functions as F

        keys = [*map(quote, product.row_keys)]
        held = self._select_stored_rows_in_time_range(product).join(
            batch_rows.select(*keys), list(product.row_keys), "left_semi"
        )
        fresh = batch_rows.withColumn(_FRESH, F.lit(col=True))
        both = fresh.unionByName(held.withColumn(_FRESH, F.lit(col=False)))

        def merge_rows_of_same_keys(new_and_stored_rows: pa.Table) -> pa.Table:
            is_fresh = new_and_stored_rows[_FRESH]
            rows = new_and_stored_rows.drop_columns([_FRESH])
            return product.merge_rows(rows.filter(is_fresh), rows.filter(pc.invert(is_fresh)))

        # A checkpoint computes the rows once, before the MERGE changes the table that they are read from.
        rows = apply_to_groups(
            both, product.row_keys, GROUPS, merge_rows_of_same_keys, product.columns_ddl
        ).localCheckpoint()
        commit = merge_rows(self.spark, self.lake, product.table_name, rows, _build_product_upsert(product), self.txn)
        return TableOutput(product.table_name, commit.version, rows.count())

    def _select_stored_rows_in_time_range(self, product: Product) -> DataFrame:
        """Returns the rows of a product's table in the batch's range of time, so that Delta reads fewer files."""
        from pyspark.sql import functions as F

        rows, span = self.lake.read(self.spark, product.table_name), self.rows.compute_row_count_and_time_range(product)
        if START not in product.row_keys:
            return rows
        return rows.where(F.col(START).between(*(F.timestamp_micros(F.lit(end)) for end in (span.low, span.high))))


def _build_product_upsert(product: Product) -> Upsert:
    others = tuple(name for name, _ in product.column_types if name not in product.row_keys)
    bounded = (START,) if START in product.row_keys else product.row_keys
    return Upsert(product.row_keys, others, pruned_by=bounded)


def append_late_points(
    spark: SparkSession, lake: Lake, fold_result: GoldFoldResult, products: Sequence[Product], txn: Txn
) -> Iterator[TableOutput]:
    """Appends a batch's events that were too late for these products to `gold.late_points`.

    Yields the table's new version and the number of rows; nothing if there were no such events.
    """
    tables = [product.table_name for product in products if product.lateness_ms is not None]
    if not tables or fold_result.folded.get_payloads_if_all_collected([KIND]) == []:
        return

    def select_late_rows(rows: pa.Table) -> pa.Table:
        mine = rows.filter(pc.is_in(rows["table"], pa.array(tables)))
        return add_constant_columns(mine, {"_batch": pa.scalar(txn.version, pa.int64())})

    rows = apply_to_rows(read_payload_rows([fold_result], [KIND], _LATE), select_late_rows, LATE_DDL)
    count = rows.num_rows if isinstance(rows, pa.Table) else convert_to_spark_frame(spark, rows).count()
    if count:
        yield TableOutput(LATE_POINTS, append_rows(spark, lake, LATE_POINTS, rows, txn).version, count)
