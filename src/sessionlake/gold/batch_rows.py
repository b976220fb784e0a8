"""What a batch comes to in each product, by itself: in the driver, or where the fold has left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import Declared
from sessionlake.gold.fold.outputs import CHANGES, RowRange, encoded, product_tables, span_of
from sessionlake.gold.fold.series import OF_SESSION
from sessionlake.gold.folded import Part, read_rows
from sessionlake.protocol.chunk import write_ipc
from sessionlake.spark.frames import Mapped
from sessionlake.streaming.carried import unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BatchRows:
    """The rows of one folded batch.

    Attributes:
        products: each behind the one that it is made from.
    """

    spark: SparkSession
    part: Part
    declared: Declared
    products: Sequence[Product]

    def of(self, product: Product) -> pa.Table | Mapped:
        """One row a key; from where the fold has left them, as many as there were shards."""
        few, payloads = self._few[product.name], self.part.folded.at_hand([product.name])
        if payloads is not None:
            return _together(product, few, payloads)
        frame = self._left(product.name)
        if few.num_rows:
            frame = frame.union(self.spark.createDataFrame([(write_ipc(encoded(product, few)),)], frame.schema))
        return Mapped(frame, unpack, product.ddl)

    def brought(self, product: Product) -> pa.Table:
        """One row a key, brought to the driver whatever their size."""
        return _together(product, self._few[product.name], self._payloads(product.name))

    def span(self, product: Product) -> RowRange:
        """How many rows there are, one a shard where they were left, and of what time; see `RowRange`."""
        few, left = self._few[product.name], self.part.report.spans.get(product.name)
        if not few.num_rows:
            return left or RowRange(0, 0, 0)
        span = span_of(few, START if product.bucket_ms else None)
        return span if left is None else span + left

    @cached_property
    def _few(self) -> dict[str, pa.Table]:
        """Of the shards with few changes."""
        changes = self._payloads(CHANGES)
        if not changes:
            return {product.name: product.schema().empty_table() for product in self.products}
        together = read_rows(changes, encoded=True).unify_dictionaries()
        return product_tables(together, self.declared, self.products)

    def _payloads(self, kind: str) -> list[bytes]:
        at_hand = self.part.folded.at_hand([kind])
        if at_hand is not None:
            return at_hand
        return [payload.as_buffer().to_pybytes() for payload in self._left(kind).toArrow()["payload"]]

    def _left(self, kind: str) -> DataFrame:
        from pyspark.sql import functions as F

        return self.part.folded.frame.where(F.col("kind") == kind).select("payload")


def is_of_session(product: Product) -> bool:
    """Whether all that becomes one of its rows is in one shard."""
    return set(OF_SESSION) <= {*product.row_keys}


def _together(product: Product, few: pa.Table, payloads: Sequence[bytes]) -> pa.Table:
    if not payloads:
        return few
    rows = read_rows(payloads, encoded=True)
    if few.num_rows:
        rows = pa.concat_tables([rows, few.cast(rows.schema)])
    rows = rows.unify_dictionaries()
    return rows if is_of_session(product) else product.merged(rows)
