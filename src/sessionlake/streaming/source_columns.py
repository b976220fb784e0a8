"""Whether a stream can read its table on: Delta reads none across columns that were taken away or have another type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.errors import LakeError
from sessionlake.lake.tables import Lake
from sessionlake.streaming.checkpoint import last_planned, read_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def other_column(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> str | None:
    """A column that the table had in the version that a stream has read last, and has not, or not so, any more.

    Returns:
        Its name and type; None if there is none, or that version cannot be told: of it, Delta says what is wrong.
    """
    last = last_planned(checkpoint)
    if last is None:
        return None
    try:
        before = lake.read(spark, table, read_to(checkpoint, last).latest).dtypes
    except (OSError, ValueError, LakeError):
        return None
    now = set(lake.read(spark, table).dtypes)
    return next((f"{name} ({sql})" for name, sql in before if (name, sql) not in now), None)
