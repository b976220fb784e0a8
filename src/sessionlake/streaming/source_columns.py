"""Whether a stream can read its table on: Delta reads none across columns that were taken away or have another type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.errors import LakeError
from sessionlake.lake.tables import Lake
from sessionlake.streaming.checkpoint import last_planned, planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BOUNDARY = -1
"""As the index of an offset of Spark's Delta source: all before the version is read, and nothing of it."""


def other_column(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> str | None:
    """A column that the table had in the version that a stream has read last, and has not, or not so, any more.

    Returns:
        Its name and type; None if there is none, or that version cannot be told: of it, Delta says what is wrong.
    """
    last = last_planned(checkpoint)
    if last is None:
        return None
    try:
        _, offset = planned(checkpoint, last)
        version = int(offset["reservoirVersion"]) - (int(offset["index"]) == _BOUNDARY)
        before = lake.read(spark, table, version).dtypes
    except (OSError, ValueError, KeyError, TypeError, LakeError):
        return None
    now = set(lake.read(spark, table).dtypes)
    return next((f"{name} ({sql})" for name, sql in before if (name, sql) not in now), None)
