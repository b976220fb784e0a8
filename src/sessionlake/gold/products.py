"""Products kept up in their tables: a batch's part of each merged with the rows that it touches, in one commit.

Merging twice would count twice: as every commit, these bear the batch's transaction, and a batch that is done again
passes over the tables that have it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.changes import declared_in
from sessionlake.gold.compare import compared
from sessionlake.gold.fold.outputs import read_rows, unpack
from sessionlake.gold.recompute import changes_read, recomputed
from sessionlake.lake.commit import append, merge
from sessionlake.lake.ledger import TableOutput
from sessionlake.lake.reading import Condition, among
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import Upsert
from sessionlake.runtime.frames import Mapped
from sessionlake.streaming.folded import Folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGIC = "sessionlake.logic"
"""Property of a product's table: what its rows rest on. It is set once the table has all that gold has read."""
# Up to so many values are named to the files.
_NAMED = 1_000


def merge_products(
    spark: SparkSession,
    lake: Lake,
    products: Sequence[Product],
    folded: Folded,
    txn: Txn,
    written: Collection[Product],
) -> Iterator[TableOutput]:
    """Merges a folded batch into the products' tables.

    Args:
        products: each behind the one that it is made from.
        folded: with a kind for each product that is made of changes.
        written: those whose tables take the batch in.
    """
    parts: dict[str, pa.Table] = {}
    for product in products:
        found = product.of_finer(parts[product.below.name]) if product.below else _part(product, folded)
        parts[product.name] = found
        if found.num_rows and product in written:
            yield _merge(spark, lake, product, found, txn)


def _part(product: Product, folded: Folded) -> pa.Table:
    """What the batch comes to in a product by itself."""
    from pyspark.sql import functions as F

    payloads = folded.at_hand([product.name])
    if payloads:
        return product.merged(read_rows(payloads))
    if payloads is not None:
        return product.schema().empty_table()
    ddl = ", ".join(f"`{name}` {sql}" for name, sql in product.columns)
    large = Mapped(folded.frame.where(F.col("kind") == product.name).select("payload"), unpack, ddl)
    return product.merged(large.frame.mapInArrow(large.function, large.ddl).toArrow().cast(product.schema()))


def _merge(spark: SparkSession, lake: Lake, product: Product, part: pa.Table, txn: Txn) -> TableOutput:
    held = lake.reader(spark).table(product.table, *_touched(product, part))
    rows = product.merged(part, held) if held.num_rows else part
    if held.num_rows:
        others = tuple(name for name, _ in product.columns if name not in product.row_keys)
        bounded = (START,) if START in product.row_keys else product.row_keys[-1:]
        commit = merge(spark, lake, product.table, rows, Upsert(product.row_keys, others, bounded=bounded), txn)
    else:
        append(spark, lake, product.table, rows, txn)
        commit = lake.last_commit(spark, product.table)
    return TableOutput(product.table, commit.version, rows.num_rows)


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


def refuse_other_logic(spark: SparkSession, lake: Lake, products: Sequence[Product]) -> None:
    """Returns if no product's table rests on other logic than the product's present one.

    Raises:
        LakeError: naming one that does, and what to do.
    """
    for product in products:
        found = _logic(spark, lake, product)
        if found not in (None, product.logic):
            raise LakeError(
                f"{product.table} was made by other logic ({found}, now {product.logic}): "
                f"`sessionlake rebuild {product.table}` makes it anew"
            )


def to_begin(spark: SparkSession, lake: Lake, products: Sequence[Product]) -> list[Product]:
    """Products whose tables are not there, or not whole: of an earlier version, or of one that died beginning it."""
    return [product for product in products if _logic(spark, lake, product) is None]


def mark_incomplete(spark: SparkSession, lake: Lake, product: Product) -> None:
    """Sees to it that a product that is being made anew is made anew if that does not come to its end."""
    if _logic(spark, lake, product) is not None:
        lake.set_property(spark, product.table, LOGIC, "")


@dataclass(frozen=True)
class Made:
    """A product's table that was made anew.

    Attributes:
        before: the first row that was other before, as text; None if there was none, or no such table.
    """

    rows: int
    before: str | None


def make_anew(spark: SparkSession, lake: Lake, settings: Settings, product: Product) -> Made:
    """Puts all that gold has read into the product's table, in one commit.

    Raises:
        LakeError: gold has stopped within a version of silver's table.
    """
    changes = changes_read(spark, lake, settings)
    if changes is None:
        lake.ensure(spark, [product.table])
        made = Made(0, None)
    else:
        if not lake.exists(spark, product.table):
            lake.ensure(spark, [product.table])
        whole = recomputed(changes, product, declared_in(settings)).localCheckpoint()
        made = Made(whole.count(), _first_other(lake.read(spark, product.table), whole, product))
        lake.storage.make_sure(product.table)
        writer = whole.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        lake.storage.save(writer, product.table)
        lake.ensure(spark, [product.table])
    # Last: without it the table is taken for one that is not whole.
    lake.set_property(spark, product.table, LOGIC, product.logic)
    return made


def _first_other(live: DataFrame, whole: DataFrame, product: Product) -> str | None:
    """The first row that is other than in the live table; None, too, where its columns are."""
    if not {*product.row_keys, *product.results} <= {*live.columns}:
        return None
    return compared(product.table, product.row_keys, product.results, live, whole).first


def _logic(spark: SparkSession, lake: Lake, product: Product) -> str | None:
    if not lake.exists(spark, product.table):
        return None
    return lake.storage.properties(spark, product.table).get(LOGIC) or None
