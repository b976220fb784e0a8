"""Checks whether a stream can continue to read its table: are the columns and the versions it has read still there?

Delta cannot continue a stream if columns of its table were dropped or changed their type. And if a table is restored
from a backup, a stream that has already read newer versions waits silently until the table reaches them again. It then
never reads the commits in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.streaming.checkpoint import DeltaOffset, read_delta_offset, read_last_planned_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_changed_source_column(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> str | None:
    """Returns a column that was removed or has another type since a stream last read the table.

    Returns:
        The column's name and its former type, such as `qty (bigint)`. None if there is none, or if the version that the
        stream last read cannot be read any more: then Delta reports why.
    """
    topic_partition = read_last_planned_offset(checkpoint)
    if topic_partition is None:
        return None
    try:
        before = lake.read(spark, table, topic_partition.last_read_version).dtypes
    except LakeError:
        return None
    now = set(lake.read(spark, table).dtypes)
    return next((f"{name} ({sql})" for name, sql in before if (name, sql) not in now), None)


def is_checkpoint_ahead_of_table(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Returns True if a stream has read a higher version of its table than the table has now.

    Returns False if the table was dropped and created again, or if no batch was planned yet.
    """
    topic_partition = read_last_planned_offset(checkpoint)
    if topic_partition is None or topic_partition.last_read_version <= lake.latest_version(spark, table):
        return False
    return read_delta_table_id(spark, lake, table) == topic_partition.table


def can_read_version_at_checkpoint(spark: SparkSession, lake: Lake, table: str, checkpoint: str) -> bool:
    """Returns True if a stream's last read version of its table still exists, or if it has read nothing yet.

    If it cannot be read, VACUUM may have removed later commits too.
    """
    topic_partition = read_last_planned_offset(checkpoint)
    if topic_partition is None:
        return read_last_planned_batch(checkpoint) is None
    try:
        return bool(lake.read(spark, table, topic_partition.last_read_version).columns)
    except LakeError:
        return False


def read_last_planned_offset(checkpoint: str) -> DeltaOffset | None:
    """Returns the point in its source table up to which the last planned batch of a stream reads.

    Returns None if no batch was planned, or if the checkpoint is damaged: the start of the stream reports that.
    """
    last = read_last_planned_batch(checkpoint)
    try:
        return None if last is None else read_delta_offset(checkpoint, last)
    except (OSError, ValueError):
        return None


def read_delta_table_id(spark: SparkSession, lake: Lake, table: str) -> str | None:
    """Returns Delta's id of the table; None if it has none.

    A table created later under the same name has another id.
    """
    found = lake.open_delta_table(spark, table).detail().select("id").first()
    return None if found is None else str(found["id"])
