"""Computes, per session, the limit up to which old rows may be removed. There is one rule per table.

Spark evaluates the rules, because all sessions that ever existed can be too many for the driver's memory. Only sessions
of which more rows can be removed than before are collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.delta.storage.expired import LIMIT
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.retained import read_removal_limits_as_frame
from sessionlake.operations.retention.rules import convert_rows_to_limits_table
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.section import Integrity
from sessionlake.silver.merge.kept_cuts import read_frame_of_cuts_with_stored_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POSITION = "position"


def compute_removal_limits_of_changes(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """Computes the last position that may be removed from `session_changes`, by session.

    It is the position of the session's last old enough snapshot in `session_snapshots`. The table at every later moment
    can still be computed from this snapshot and the changes after it. A session that has had a late fill, or may still
    get one, keeps all changes, because its table is computed in seq order from its first change.

    Args:
        batch: Silver's last batch that is old enough, is merged, and was read by gold.

    Returns:
        The limits that are higher than those recorded in `ops.retained`, as rows `topic, partition, session_id, limit`.
    """
    from pyspark.sql import functions as F

    rule, kept = JudgingRuleLookup(lake.settings.capture), _read_cuts_with_stored_snapshots(spark, lake, batch)
    topics = [row["topic"] for row in kept.select("topic").distinct().collect()]
    once = [topic for topic in topics if rule.find_judging_rules(topic).integrity is Integrity.ONCE]
    filled_late = lake.read(spark, PROGRESS).where("beneath").select(*SESSION)
    last = kept.where(~F.col("topic").isin(once)).groupBy(*SESSION).agg(F.max(_POSITION).alias(LIMIT))
    return _select_increased_limits(spark, lake, CHANGES, last.join(filled_late, [*SESSION], "left_anti"))


def compute_removal_limits_of_snapshots(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """Computes the last position that may be removed from `session_cuts` and `session_snapshots`, by session.

    It is lower than the position of the session's last old enough snapshot, and than that of the snapshot from which
    its remaining changes start.

    Args:
        batch: Silver's last batch that is old enough and is merged.

    Returns:
        The limits that are higher than those recorded in `ops.retained`, as rows `topic, partition, session_id, limit`.
    """
    from pyspark.sql import functions as F

    last = _read_cuts_with_stored_snapshots(spark, lake, batch).groupBy(*SESSION).agg(F.max(_POSITION).alias("last"))
    floors = read_removal_limits_as_frame(spark, lake, CHANGES).select(*SESSION, F.col(LIMIT).alias("floor"))
    first = lake.read(spark, CUTS).groupBy(*SESSION).agg(F.min(_POSITION).alias("first"))
    least = F.least("last", "floor") - 1  # ignores null: no changes of the session were removed
    due = last.join(floors, [*SESSION], "left").select(*SESSION, least.alias(LIMIT))
    # Most sessions have only one snapshot, which is kept.
    due = due.join(first, [*SESSION]).where(F.col("first") <= F.col(LIMIT)).drop("first")
    return _select_increased_limits(spark, lake, SNAPSHOTS, due)


def compute_removal_limits_of_progress(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """Computes the last batch that may be removed from `session_progress`, for each life of a session.

    It is the batch before that of the life's last old enough row, which is kept. Rows with a late fill are never
    removed.

    Args:
        batch: Silver's last batch that is old enough and is merged.

    Returns:
        The rows `topic, partition, session_id, first_offset, limit`, one per life of which a row may be removed.
    """
    from pyspark.sql import functions as F

    old = lake.read(spark, PROGRESS).where((F.col("_batch") <= batch) & F.col("first_offset").isNotNull())
    limit = (F.max("_batch") - 1).alias(LIMIT)
    first = F.min(F.when(~F.coalesce("beneath", F.lit(False)), F.col("_batch"))).alias("first")
    lives = old.groupBy(*SESSION, "first_offset").agg(limit, first)
    return lives.where(F.col("first") <= F.col(LIMIT)).drop("first").toArrow()


def _read_cuts_with_stored_snapshots(spark: SparkSession, lake: Lake, batch: int) -> DataFrame:
    """Returns the cuts whose snapshots are stored, of silver's batches up to this one."""
    from pyspark.sql import functions as F

    return read_frame_of_cuts_with_stored_tables(spark, lake).where(F.col("_batch") <= batch)


def _select_increased_limits(spark: SparkSession, lake: Lake, table: str, limits: DataFrame) -> pa.Table:
    """Selects the limits that are higher than those recorded for the table in `ops.retained`.

    Args:
        table: The table whose rows may be removed.
        limits: Rows `topic, partition, session_id, limit`.
    """
    from pyspark.sql import functions as F

    recorded = read_removal_limits_as_frame(spark, lake, table).select(*SESSION, F.col(LIMIT).alias("recorded"))
    beyond = limits.join(recorded, [*SESSION], "left").where(F.col(LIMIT) > F.coalesce("recorded", F.lit(-1)))
    return convert_rows_to_limits_table(beyond.drop("recorded").toArrow())
