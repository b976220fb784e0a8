"""Whether a stream can read its table on.

Delta reads none across columns that were taken away or have another type. Of a table that was put back from a backup, a
stream that has read further would say nothing until the table is there again, and never read what came in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.streaming.checkpoint import TablePlace, last_planned, read_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def other_column(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> str | None:
    """A column that the table had in the version that a stream has read last, and has not, or not so, any more.

    Returns:
        Its name and type; None if there is none, or that version cannot be told: of it, Delta says what is wrong.
    """
    place = place_read(checkpoint)
    if place is None:
        return None
    try:
        before = lake.read(spark, table, place.latest).dtypes
    except LakeError:
        return None
    now = set(lake.read(spark, table).dtypes)
    return next((f"{name} ({sql})" for name, sql in before if (name, sql) not in now), None)


def is_ahead(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Whether a stream has read versions of the table that it does not have any more; of another table it has not."""
    place = place_read(checkpoint)
    if place is None or place.latest <= lake.latest_version(spark, table):
        return False
    return table_id(spark, lake, table) == place.table


def can_be_told(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Whether the version that a stream has read last can be read still: else what came behind it may be gone."""
    place = place_read(checkpoint)
    if place is None:
        return last_planned(checkpoint) is None
    try:
        return bool(lake.read(spark, table, place.latest).columns)
    except LakeError:
        return False


def place_read(checkpoint: str) -> TablePlace | None:
    """Where the last batch that a stream has planned ends; None before the first, or of a damaged checkpoint.

    What is wrong with that one, its start says.
    """
    last = last_planned(checkpoint)
    try:
        return None if last is None else read_to(checkpoint, last)
    except (OSError, ValueError):
        return None


def table_id(spark: SparkSession, lake: Lake, table: str) -> str | None:
    """What Delta calls the table, and no table that was there before it."""
    found = lake.delta(spark, table).detail().select("id").first()
    return None if found is None else str(found["id"])
