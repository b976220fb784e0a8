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
    CHANGES,
    AveragesOutput,
    GoldReport,
    RowRange,
    compute_product_rows,
    encode_keys,
    measure_row_range,
    sum_reports,
)
from sessionlake.gold.fold.series import OF_SESSION
from sessionlake.protocol.arrow import decode_dictionaries
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import Rows, UnappliedMap, to_spark_frame
from sessionlake.streaming.folded import FoldedBatch, collect_reports, split_reports
from sessionlake.streaming.payload_files import read_payload, unpack_payloads
from sessionlake.streaming.sharded import build_payload_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BatchRows:
    """The rows that one folded batch adds to each product.

    Attributes:
        fold_result: The payloads that the fold emitted.
        declared: The declared columns of the changes.
        products: All products, each after the product that it is computed from.
    """

    spark: SparkSession
    fold_result: FoldResult
    declared: DeclaredColumns
    products: Sequence[Product]

    def product_rows(self, product: Product) -> pa.Table | UnappliedMap:
        """Returns a product's rows.

        In memory there is one row per key, on the cluster there is one row per key and shard.
        """
        few, payloads = (
            self._merged_rows_of_small_shards[product.name],
            self.fold_result.folded.find_collected_payloads([product.name]),
        )
        if payloads is not None:
            return _merge_payloads(product, few, payloads)
        frame = self._compute_payloads_on_cluster(product.name)
        if few.num_rows:
            frame = frame.union(self.spark.createDataFrame([(encode_ipc(encode_keys(product, few)),)], frame.schema))
        return UnappliedMap(frame, unpack_payloads, product.columns_ddl)

    def collect_rows(self, product: Product) -> pa.Table:
        """Returns a product's rows in the driver's memory, one row per key, even if they are many."""
        return _merge_payloads(
            product, self._merged_rows_of_small_shards[product.name], self._collect_payloads(product.name)
        )

    def row_range(self, product: Product) -> RowRange:
        """Returns the number of a product's rows, and the range of their `window_start` in microseconds.

        On the cluster, a row that several shards have counts once for each shard.
        """
        few, left = self._merged_rows_of_small_shards[product.name], self.fold_result.report.spans.get(product.name)
        if not few.num_rows:
            return left or RowRange(0, 0, 0)
        span = measure_row_range(few, START if product.bucket_ms else None)
        return span if left is None else span + left

    @cached_property
    def _merged_rows_of_small_shards(self) -> dict[str, pa.Table]:
        """By product, the rows computed from the changes of shards with few changes. These shards emitted no rows."""
        changes = self._collect_payloads(CHANGES)
        if not changes:
            return {product.name: product.arrow_schema().empty_table() for product in self.products}
        together = decode_rows(changes, encode_keys=True).unify_dictionaries()
        return compute_product_rows(together, self.declared, self.products)

    def _collect_payloads(self, kind: str) -> list[bytes]:
        in_memory = self.fold_result.folded.find_collected_payloads([kind])
        if in_memory is not None:
            return in_memory
        return [
            payload.as_buffer().to_pybytes() for payload in self._compute_payloads_on_cluster(kind).toArrow()["payload"]
        ]

    def _compute_payloads_on_cluster(self, kind: str) -> DataFrame:
        from pyspark.sql import functions as F

        return self.fold_result.folded.frame.where(F.col("kind") == kind).select("payload")


def has_session_key(product: Product) -> bool:
    """Returns True if the product's keys include the session. Then one shard has all changes of a row."""
    return set(OF_SESSION) <= {*product.row_keys}


def _merge_payloads(product: Product, rows: pa.Table, payloads: Sequence[bytes]) -> pa.Table:
    if not payloads:
        return rows
    merged = decode_rows(payloads, encode_keys=True)
    if rows.num_rows:
        merged = pa.concat_tables([merged, rows.cast(merged.schema)])
    merged = merged.unify_dictionaries()
    return merged if has_session_key(product) else product.merge_rows(merged)


@dataclass(frozen=True)
class FoldResult:
    """The payloads that the fold emitted for one batch, and the sum of the shards' reports."""

    folded: FoldedBatch
    report: GoldReport

    @staticmethod
    def collect_payloads(frame: DataFrame, inline_bytes: int) -> FoldResult:
        """Runs the fold in one Spark job, reads its reports, and keeps payloads of up to `inline_bytes` in memory."""
        folded, reports = collect_reports(frame, AveragesOutput.REPORT, inline_bytes)
        return FoldResult(folded, sum_reports(reports))

    @staticmethod
    def from_payloads(spark: SparkSession, payloads: Payloads) -> FoldResult:
        """Returns the result of a fold that ran in the driver, given its payloads."""
        frame = to_spark_frame(spark, build_payload_table(payloads))
        folded, reports = split_reports(frame, payloads, AveragesOutput.REPORT)
        return FoldResult(folded, sum_reports(reports))


def read_payload_rows(fold_results: Sequence[FoldResult], kinds: Sequence[str], ddl: str) -> Rows:
    """Returns the rows in the payloads of these kinds.

    They are a table if all payloads are in memory. Else they are decoded on the cluster when needed.

    Args:
        fold_results: The results of several folds.
        kinds: Kinds of payload.
        ddl: DDL of the rows.
    """
    from pyspark.sql import functions as F

    found = [part.folded.find_collected_payloads(kinds) for part in fold_results]
    in_memory = [content for contents in found for content in contents or ()]
    if in_memory and None not in found:
        return decode_rows(in_memory)
    payloads = [part.folded.frame.where(F.col("kind").isin(*kinds)).select("payload") for part in fold_results]
    return UnappliedMap(reduce(lambda a, b: a.union(b), payloads), unpack_payloads, ddl)


def decode_rows(payloads: Iterable[bytes], *, encode_keys: bool = False) -> pa.Table:
    """Decodes payloads of one kind, and returns all rows in one table.

    Args:
        encode_keys: True to leave texts dictionary-encoded, False to decode them.
    """
    tables = map(read_payload, payloads)
    return pa.concat_tables(tables if encode_keys else map(decode_dictionaries, tables))
