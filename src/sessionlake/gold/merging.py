"""A batch merged into the products' tables: its part of each with the rows that it touches, in one commit a table.

Merging twice would count twice: as every commit, these bear the batch's transaction, and a batch that is done again
passes over the tables that have it. What fits into the driver is merged there, all else on the cluster; both by the
same pure function (`Product.merged`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.fold.outputs import read_rows, unpack
from sessionlake.gold.recompute import GROUPS
from sessionlake.lake.commit import append, merge
from sessionlake.lake.ledger import TableOutput
from sessionlake.lake.reading import Condition, TooLargeError, among
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import Upsert
from sessionlake.runtime.frames import as_frame
from sessionlake.streaming.folded import Folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Up to so many values are named to the files.
_NAMED = 1_000
# Of what the driver may read, the share that a batch's part may have: merging takes about four times as much.
_PART = 4
_FRESH = "_fresh"


@dataclass(frozen=True)
class ProductMerger:
    """Merges one folded batch.

    Attributes:
        folded: with a kind for each product that is made of changes.
    """

    spark: SparkSession
    lake: Lake
    folded: Folded
    txn: Txn

    def merge(self, products: Sequence[Product], written: Collection[Product]) -> Iterator[TableOutput]:
        """Merges the batch into the tables.

        Args:
            products: each behind the one that it is made from.
            written: those whose tables take the batch in.
        """
        parts: dict[str, pa.Table | DataFrame] = {}
        large = self._is_large(products)
        for product in products:
            part = _finer(product, parts[product.below.name]) if product.below else self._part(product, large=large)
            parts[product.name] = part
            if product in written and (found := self._merged(product, part)):
                yield found

    def _is_large(self, products: Sequence[Product]) -> bool:
        """Whether what the batch comes to is too much for the driver."""
        from pyspark.sql import functions as F

        kinds = [product.name for product in products]
        if self.folded.at_hand(kinds) is not None:
            return False
        sizes = self.folded.frame.where(F.col("kind").isin(kinds)).agg(F.sum(F.length("payload"))).first()
        return sizes is not None and (sizes[0] or 0) > self.lake.limits.driver_bytes // _PART

    def _part(self, product: Product, *, large: bool) -> pa.Table | DataFrame:
        """What the batch comes to in a product by itself; as a frame, in as many rows a key as there were tasks."""
        from pyspark.sql import functions as F

        payloads = self.folded.at_hand([product.name])
        if payloads is not None:
            return product.merged(read_rows(payloads)) if payloads else product.schema().empty_table()
        frame = self.folded.frame.where(F.col("kind") == product.name).select("payload")
        rows = frame.mapInArrow(unpack, product.ddl)
        return rows if large else product.merged(rows.toArrow().cast(product.schema()))

    def _merged(self, product: Product, part: pa.Table | DataFrame) -> TableOutput | None:
        if isinstance(part, pa.Table):
            if not part.num_rows:
                return None
            try:
                return self._in_driver(product, part)
            except TooLargeError:
                part = as_frame(self.spark, part)
        return self._on_cluster(product, part)

    def _in_driver(self, product: Product, part: pa.Table) -> TableOutput:
        """See `merge`.

        Raises:
            TooLargeError: the rows that may be touched do not fit into memory.
        """
        reader, table = self.lake.reader(self.spark), product.table
        held = reader.table(table, *_touched(product, part), at_most=self.lake.limits.driver_bytes)
        if held.num_rows:
            rows = product.merged(part, held)
            commit = merge(self.spark, self.lake, table, rows, _upsert(product), self.txn)
        else:
            rows = part
            append(self.spark, self.lake, table, rows, self.txn)
            commit = self.lake.last_commit(self.spark, table)
        return TableOutput(table, commit.version, rows.num_rows)

    def _on_cluster(self, product: Product, part: DataFrame) -> TableOutput | None:
        from pyspark.sql import functions as F

        keys = [*map(quote, product.row_keys)]
        held = self.lake.read(self.spark, product.table).join(part.select(*keys), list(product.row_keys), "left_semi")
        fresh = part.withColumn(_FRESH, F.lit(col=True))
        both = fresh.unionByName(held.withColumn(_FRESH, F.lit(col=False)))
        shard = F.pmod(F.xxhash64(*keys), F.lit(GROUPS))

        def merged(table: pa.Table) -> pa.Table:
            is_fresh = table[_FRESH]
            rows = table.drop_columns([_FRESH])
            return product.merged(rows.filter(is_fresh), rows.filter(pc.invert(is_fresh)))

        # Once, and before the MERGE: what it reads is not what it writes.
        rows = both.groupBy(shard.alias("shard")).applyInArrow(merged, product.ddl).localCheckpoint()
        count = rows.count()
        if not count:
            return None
        commit = merge(self.spark, self.lake, product.table, rows, _upsert(product), self.txn)
        return TableOutput(product.table, commit.version, count)


@dataclass(frozen=True)
class _Finer:
    """A `mapInArrow` function: rows of the product below to rows of this one."""

    product: Product

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.product.of_finer(pa.Table.from_batches([batch])).to_batches()


def _finer(product: Product, part: pa.Table | DataFrame) -> pa.Table | DataFrame:
    return product.of_finer(part) if isinstance(part, pa.Table) else part.mapInArrow(_Finer(product), product.ddl)


def _upsert(product: Product) -> Upsert:
    others = tuple(name for name, _ in product.columns if name not in product.row_keys)
    bounded = (START,) if START in product.row_keys else product.row_keys[-1:]
    return Upsert(product.row_keys, others, bounded=bounded)


def _touched(product: Product, part: pa.Table) -> list[Condition]:
    """Conditions that hold for all rows of the table with these keys, and for few others."""
    conditions: list[Condition] = []
    for name in product.row_keys:
        values = pc.unique(part[name])
        if len(values) <= _NAMED:
            conditions.append((name, among, values.to_pylist()))
        else:
            ends = pc.min_max(values).as_py()
            conditions += [(name, operator.ge, ends["min"]), (name, operator.le, ends["max"])]
    return conditions
