"""Whether a stream can read its table on.

Delta reads none across columns that were taken away or have another type. Of a table that was put back from a backup, a
stream that has read further would say nothing until the table is there again, and never read what came in between.
"""

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


def is_ahead(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Whether a stream has read versions of the table that it does not have any more; of another table it has not."""
    last = last_planned(checkpoint)
    if last is None:
        return False
    try:
        place = read_to(checkpoint, last)
    except (OSError, ValueError):
        return False  # of a damaged checkpoint, its start says what is wrong
    if place.latest <= lake.last_commit(spark, table).version:
        return False
    present = lake.delta(spark, table).detail().select("id").first()
    return present is not None and present["id"] == place.table


def can_be_told(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Whether the version that a stream has read last can be read still: else what came behind it may be gone."""
    last = last_planned(checkpoint)
    try:
        return last is None or bool(lake.read(spark, table, read_to(checkpoint, last).latest).columns)
    except (OSError, ValueError, LakeError):
        return False
