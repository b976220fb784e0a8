"""Collects the rows that a batch adds to each product, before they are merged into the tables.

The rows are in the driver's memory if they are small enough, else on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.fold.outputs import (
    AveragesPayloadKind,
    GoldFoldReport,
    RowCountAndTimeRange,
    count_rows_and_find_time_range,
    sum_encoded_reports,
)
from sessionlake.gold.fold.product_payloads import CHANGES, compute_product_rows, dictionary_encode_keys
from sessionlake.gold.fold.series import OF_SESSION
from sessionlake.protocol.arrow import decode_dictionaries
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import DeferredArrowMap, Rows, convert_to_spark_frame
from sessionlake.streaming.folded import FoldedBatch, collect_fold_reports, separate_reports_from_payloads
from sessionlake.streaming.payload_files import read_payload, unpack_payloads
from sessionlake.streaming.sharded import convert_payloads_to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BatchProductRows:
    """The rows that one batch adds to each product, before they are merged with the rows of the product's table.

    Attributes:
        fold_result: The encoded rows that the shards computed for the batch.
        declared: The declared columns of the changes.
        products: All products, each after the product from which it is computed.
    """

    spark: SparkSession
    fold_result: GoldFoldResult
    declared: DeclaredColumns
    products: Sequence[Product]

    def find_product_rows(self, product: Product) -> pa.Table | DeferredArrowMap:
        """Returns the rows that the batch adds to a product.

        They are an Arrow table with one row per key, if they are small enough for the driver. Otherwise they stay on
        the cluster, with one row per key and shard.
        """
        few, payloads = (
            self._merged_rows_of_small_shards[product.name],
            self.fold_result.folded.get_payloads_if_all_collected([product.name]),
        )
        if payloads is not None:
            return _merge_payload_rows(product, few, payloads)
        frame = self._compute_payloads_on_cluster(product.name)
        if few.num_rows:
            frame = frame.union(
                self.spark.createDataFrame([(encode_ipc(dictionary_encode_keys(product, few)),)], frame.schema)
            )
        return DeferredArrowMap(frame, unpack_payloads, product.columns_ddl)

    def collect_product_rows(self, product: Product) -> pa.Table:
        """Returns the rows that the batch adds to a product as an Arrow table, one row per key, even if it is large."""
        return _merge_payload_rows(
            product, self._merged_rows_of_small_shards[product.name], self._collect_payloads(product.name)
        )

    def compute_row_count_and_time_range(self, product: Product) -> RowCountAndTimeRange:
        """Returns the number of rows that the batch adds to a product, and their range of `window_start` in µs.

        A row that several shards have counts once for each shard.
        """
        few, left = self._merged_rows_of_small_shards[product.name], self.fold_result.report.spans.get(product.name)
        if not few.num_rows:
            return left or RowCountAndTimeRange(0, 0, 0)
        span = count_rows_and_find_time_range(few, START if product.bucket_ms else None)
        return span if left is None else span + left

    @cached_property
    def _merged_rows_of_small_shards(self) -> dict[str, pa.Table]:
        """By product, the rows of shards that emitted their few changes instead of rows, merged by key."""
        changes = self._collect_payloads(CHANGES)
        if not changes:
            return {product.name: product.arrow_schema().empty_table() for product in self.products}
        together = decode_payload_rows(changes, keeps_encoding=True).unify_dictionaries()
        return compute_product_rows(together, self.declared, self.products)

    def _collect_payloads(self, payload_kind: str) -> list[bytes]:
        in_memory = self.fold_result.folded.get_payloads_if_all_collected([payload_kind])
        if in_memory is not None:
            return in_memory
        return [
            payload.as_buffer().to_pybytes()
            for payload in self._compute_payloads_on_cluster(payload_kind).toArrow()["payload"]
        ]

    def _compute_payloads_on_cluster(self, payload_kind: str) -> DataFrame:
        from pyspark.sql import functions as F

        return self.fold_result.folded.frame.where(F.col("kind") == payload_kind).select("payload")


def is_keyed_by_session(product: Product) -> bool:
    """Returns True if a product's keys include the session. All changes of a row are then in one shard."""
    return set(OF_SESSION) <= {*product.row_keys}


def _merge_payload_rows(product: Product, rows: pa.Table, payloads: Sequence[bytes]) -> pa.Table:
    if not payloads:
        return rows
    merged = decode_payload_rows(payloads, keeps_encoding=True)
    if rows.num_rows:
        merged = pa.concat_tables([merged, rows.cast(merged.schema)])
    merged = merged.unify_dictionaries()
    return merged if is_keyed_by_session(product) else product.merge_rows(merged)


@dataclass(frozen=True)
class GoldFoldResult:
    """What the shards emitted for one batch.

    Attributes:
        folded: The payloads, which are encoded rows. Small ones are in memory, large ones on the cluster.
        report: The sum of the shards' reports.
    """

    folded: FoldedBatch
    report: GoldFoldReport

    @staticmethod
    def collect_payloads(frame: DataFrame, inline_bytes: int) -> GoldFoldResult:
        """Runs one Spark job that computes the payloads of all shards, and reads the shards' reports.

        Args:
            frame: The payloads, `kind string, payload binary`, not computed yet.
            inline_bytes: The most bytes of payloads to keep in the driver's memory.
        """
        folded, reports = collect_fold_reports(frame, AveragesPayloadKind.REPORT, inline_bytes)
        return GoldFoldResult(folded, sum_encoded_reports(reports))

    @staticmethod
    def from_payloads(spark: SparkSession, payloads: Payloads) -> GoldFoldResult:
        """Returns the result for payloads that the driver itself computed."""
        frame = convert_to_spark_frame(spark, convert_payloads_to_table(payloads))
        folded, reports = separate_reports_from_payloads(frame, payloads, AveragesPayloadKind.REPORT)
        return GoldFoldResult(folded, sum_encoded_reports(reports))


def read_payload_rows(fold_results: Sequence[GoldFoldResult], payload_kinds: Sequence[str], ddl: str) -> Rows:
    """Returns the rows that payloads of some kinds contain.

    They are an Arrow table if all these payloads are in memory. Else the cluster decodes them when they are used.

    Args:
        fold_results: What the shards emitted; several results are concatenated.
        payload_kinds: The kinds of payload. All have rows with the same columns.
        ddl: Spark DDL of these columns.
    """
    from pyspark.sql import functions as F

    found = [part.folded.get_payloads_if_all_collected(payload_kinds) for part in fold_results]
    in_memory = [content for contents in found for content in contents or ()]
    if in_memory and None not in found:
        return decode_payload_rows(in_memory)
    payloads = [part.folded.frame.where(F.col("kind").isin(*payload_kinds)).select("payload") for part in fold_results]
    return DeferredArrowMap(reduce(lambda a, b: a.union(b), payloads), unpack_payloads, ddl)


def decode_payload_rows(payloads: Iterable[bytes], *, keeps_encoding: bool = False) -> pa.Table:
    """Decodes payloads whose rows have the same columns, and returns all rows in one table.

    Args:
        payloads: The encoded rows.
        keeps_encoding: True to leave texts dictionary-encoded, False to decode them.
    """
    tables = map(read_payload, payloads)
    return pa.concat_tables(tables if keeps_encoding else map(decode_dictionaries, tables))
