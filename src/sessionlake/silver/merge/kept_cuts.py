"""Reads the cuts whose whole tables are stored in `session_snapshots`. Earlier tables of a session start from one."""

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
"""Reads a table, given its name, conditions, and the keywords `columns` and `sessions`."""


def read_cuts_with_stored_tables(
    read_table: ReadTable, *conditions: Condition, sessions: pa.Table | None = None
) -> pa.Table:
    """Returns the cuts whose whole tables are stored, with each table's number of `rows`.

    An older version stored the table at every cut without counting its rows: `rows` is null for these.

    Args:
        read_table: Reads a table.
        conditions: Conditions on the cuts.
        sessions: The sessions whose cuts are read; None means all.
    """
    index = read_table(SNAPSHOT_INDEX, *conditions, sessions=sessions)
    before = read_table(CUTS, *conditions, ("changes", is_null, None), sessions=sessions)
    before = before.append_column("rows", pa.nulls(before.num_rows, pa.int64()))
    return pa.concat_tables([index, before.select(index.column_names).cast(index.schema)])


def read_frame_of_cuts_with_stored_tables(spark: SparkSession, lake: Lake) -> DataFrame:
    """Returns all cuts whose whole tables are stored, as a Spark frame. `rows` is null if the rows were not counted."""
    before = lake.read(spark, CUTS).where("changes IS NULL")
    return lake.read(spark, SNAPSHOT_INDEX).unionByName(before, allowMissingColumns=True)
