"""`gold.late_points`: what came too late for a product with a lateness, told with the batch that brought it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import append, delete_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LATE_POINTS
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold.aggregate.late import LATE_COLUMNS
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import Declared
from sessionlake.gold.fold.outputs import LATE_POINTS as KIND
from sessionlake.gold.folded import Part, rows_of
from sessionlake.gold.recompute import EachBatch
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.names import quote
from sessionlake.spark.frames import as_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL = ", ".join(f"{quote(name)} {sql}" for name, sql in LATE_COLUMNS)


def write_late(
    spark: SparkSession, lake: Lake, part: Part, written: Sequence[Product], txn: Txn
) -> Iterator[TableOutput]:
    """Appends the batch's late points of these products."""
    tables = [product.table for product in written if product.lateness_ms is not None]
    if not tables or part.folded.at_hand([KIND]) == []:
        return
    rows = rows_of([part], [KIND], _DDL)
    if isinstance(rows, pa.Table):
        mine = rows.filter(pc.is_in(rows["table"], pa.array(tables)))
        batch = pa.array(np.full(mine.num_rows, txn.version))
        count, stamped = mine.num_rows, mine.append_column("_batch", batch)
    else:
        frame = _of(as_frame(spark, rows), tables, txn.version)
        count, stamped = frame.count(), frame
    if count:
        append(spark, lake, LATE_POINTS, stamped, txn)
        yield TableOutput(LATE_POINTS, lake.last_commit(spark, LATE_POINTS).version, count)


def make_late_anew(spark: SparkSession, lake: Lake, changes: DataFrame, product: Product, declared: Declared) -> None:
    """Tells the late points of a product that is made anew of all changes that gold has read, and forgets the former.

    Between the two, a death leaves a product that is not whole, and is made anew as gold starts next.
    """
    from pyspark.sql import functions as F

    txn, former = Txn(f"anew-{uuid4().hex[:12]}", 0), F.col("table") == product.table
    if not lake.read(spark, LATE_POINTS).where(former).isEmpty():
        delete_rows(spark, lake, LATE_POINTS, txn, former)
    if product.lateness_ms is None:
        return
    rows = changes.mapInArrow(EachBatch(product.late_of_changes, declared), _DDL)
    append(spark, lake, LATE_POINTS, _of(rows, [product.table], -1), txn.second)


def _of(rows: DataFrame, tables: Sequence[str], batch: int) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.col("table").isin(tables)).withColumn("_batch", F.lit(batch).cast("bigint"))
