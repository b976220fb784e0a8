"""The cuts whose whole tables are in `session_snapshots`, which is where any table of a session's history begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CUTS, SNAPSHOT_INDEX
from sessionlake.delta.storage.reading import Condition, is_null

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadTable = Callable[..., pa.Table]
"""Reads a table: its name, conditions, `columns=` and `sessions=`."""


def kept_cuts(read: ReadTable, *conditions: Condition, of: pa.Table | None = None) -> pa.Table:
    """The rows of the index that meet the conditions, and the cuts of before there was one.

    A version that counted no changes kept the table at every cut, and did not say how many `rows` it has.
    """
    index = read(SNAPSHOT_INDEX, *conditions, sessions=of)
    before = read(CUTS, *conditions, ("changes", is_null, None), sessions=of)
    before = before.append_column("rows", pa.nulls(before.num_rows, pa.int64()))
    return pa.concat_tables([index, before.select(index.column_names).cast(index.schema)])


def kept_frame(spark: SparkSession, lake: Lake) -> DataFrame:
    """As `kept_cuts`, all of them, found by Spark."""
    before = lake.read(spark, CUTS).where("changes IS NULL")
    return lake.read(spark, SNAPSHOT_INDEX).unionByName(before, allowMissingColumns=True)
