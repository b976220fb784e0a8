"""A table's rows out of all changes that gold has read, beside the table that was kept up batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import MARKS, Declared
from sessionlake.gold.changes import changes_of, events_of, with_seq_order
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import recompute
from sessionlake.gold.slow import new_points
from sessionlake.ledger.retained import heads
from sessionlake.protocol.arrow import dense
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import gathered, map_groups
from sessionlake.streaming import handover

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPS = 256
"""In so many groups rows are merged on the cluster: each must fit into a worker's memory."""


def changes_read(spark: SparkSession, lake: Lake, settings: Settings) -> DataFrame | None:
    """All changes that gold has read, as `gold.changes.changes_of` has them; None before its first batch.

    Raises:
        LakeError: gold has stopped within a version of the table.
    """
    version = version_read(settings)
    if version is None:
        return None
    return gathered(changes_of(lake.read(spark, CHANGES, version), settings))


def refuse_removed(lake: Lake, spark: SparkSession) -> None:
    """Returns if every change that gold has read is still there.

    Raises:
        LakeError: retention has removed some.
    """
    found = heads(lake.reader(spark)).get(CHANGES)
    if found is not None and found.gone:
        raise LakeError(f"{found.since}: what gold made of them cannot be computed once more")


def refuse_shorter(lake: Lake, spark: SparkSession) -> None:
    """Returns if what is computed anew begins where it did.

    Raises:
        LakeError: retention has removed changes that it was made of; naming how to have it so all the same.
    """
    try:
        refuse_removed(lake, spark)
    except LakeError as error:
        raise LakeError(
            f"{error}. --shorten-gold has it computed from what is left, so that it begins later"
        ) from error


def version_read(settings: Settings) -> int | None:
    """The version of `silver.session_changes` up to which gold has read; None before its first batch.

    Raises:
        LakeError: it has stopped within a version, or within a batch.
    """
    return handover.taken_in(settings, GOLD)


@dataclass(frozen=True)
class EachBatch:
    """A `mapInArrow` function: what a function makes of changes, of each batch by itself.

    Attributes:
        function: as `Product.of_changes`.
    """

    function: Callable[[pa.Table, Declared], pa.Table]
    declared: Declared

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What comes of each."""
        for batch in batches:
            yield from self.function(pa.Table.from_batches([batch]), self.declared).to_batches()


def recomputed(changes: DataFrame, table: Product | RollingAverage, declared: Declared) -> DataFrame:
    """The table's rows for these changes, as gold itself computes them."""
    return _averages(changes, table, declared) if isinstance(table, RollingAverage) else _rows(changes, table, declared)


def _averages(changes: DataFrame, series: RollingAverage, declared: Declared) -> DataFrame:
    """As if all points had come in one batch."""
    from pyspark.sql import functions as F

    events = events_of(changes, declared, (*MARKS, "position", "offset"), numbers=True)
    points = new_points(with_seq_order(events), series)

    def call(rows: pa.Table) -> pa.Table:
        return pa.concat_tables(dense(emitted.rows) for emitted in recompute(rows, series))

    shard = F.pmod(F.xxhash64(*map(quote, series.keys)), F.lit(GROUPS))
    return map_groups(points, shard, call, series.ddl)


def _rows(changes: DataFrame, product: Product, declared: Declared) -> DataFrame:
    from pyspark.sql import functions as F

    parts = changes.mapInArrow(EachBatch(product.of_changes, declared), product.ddl)
    shard = F.pmod(F.xxhash64(*map(quote, product.row_keys)), F.lit(GROUPS))

    def merged(table: pa.Table) -> pa.Table:
        return product.merged(table)

    return map_groups(parts, shard, merged, product.ddl)
