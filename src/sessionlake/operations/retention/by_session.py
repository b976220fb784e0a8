"""Up to where rows of sessions may go, whatever the settings say: one rule a table, by Spark.

There are as many sessions as ever were. Only those come into the driver of which more is to go than has been noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.delta.storage.expired import LIMIT
from sessionlake.integrity.rules import RuleBook
from sessionlake.ledger.retained import limits_frame
from sessionlake.operations.retention.rules import as_limits
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Integrity
from sessionlake.silver.merge.kept_cuts import kept_cuts_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POSITION = "position"


def of_changes(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """The last position that may go from `session_changes`: that of each session's last whole table that is old.

    So each later moment is told from that table and the changes since. A session that has had a late fill, or may ever
    get one, keeps all: its tables are folded in seq order, from its first change on, where no whole table will do.

    Args:
        batch: the last one that is old enough, is merged, and that gold has read.

    Returns:
        Limits that are further than those noted, as `retained.LIMITS`.
    """
    from pyspark.sql import functions as F

    rule, kept = RuleBook(lake.settings.capture), _kept(spark, lake, batch)
    topics = [row["topic"] for row in kept.select("topic").distinct().collect()]
    once = [topic for topic in topics if rule.of(topic).integrity is Integrity.ONCE]
    filled_late = lake.read(spark, PROGRESS).where("beneath").select(*SESSION)
    last = kept.where(~F.col("topic").isin(once)).groupBy(*SESSION).agg(F.max(_POSITION).alias(LIMIT))
    return _moved(spark, lake, CHANGES, last.join(filled_late, [*SESSION], "left_anti"))


def of_snapshots(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """The last position up to which cuts and whole tables may go: before each session's last one that is old.

    That which its changes go on from stays as well.

    Args, Returns: as of `of_changes`.
    """
    from pyspark.sql import functions as F

    last = _kept(spark, lake, batch).groupBy(*SESSION).agg(F.max(_POSITION).alias("last"))
    floors = limits_frame(spark, lake, CHANGES).select(*SESSION, F.col(LIMIT).alias("floor"))
    first = lake.read(spark, CUTS).groupBy(*SESSION).agg(F.min(_POSITION).alias("first"))
    least = F.least("last", "floor") - 1  # of nulls the other
    due = last.join(floors, [*SESSION], "left").select(*SESSION, least.alias(LIMIT))
    # Most sessions have but one whole table.
    due = due.join(first, [*SESSION]).where(F.col("first") <= F.col(LIMIT)).drop("first")
    return _moved(spark, lake, SNAPSHOTS, due)


def of_progress(spark: SparkSession, lake: Lake, batch: int) -> pa.Table:
    """The last batch that may go from `session_progress`, of each life of a session: the one before its last.

    Args:
        batch: the last one that is old enough, and merged.

    Returns:
        `SESSION`, `first_offset` and `limit`, of lives of which a row is to go: none with a late fill does.
    """
    from pyspark.sql import functions as F

    old = lake.read(spark, PROGRESS).where((F.col("_batch") <= batch) & F.col("first_offset").isNotNull())
    limit = (F.max("_batch") - 1).alias(LIMIT)
    first = F.min(F.when(~F.coalesce("beneath", F.lit(False)), F.col("_batch"))).alias("first")
    lives = old.groupBy(*SESSION, "first_offset").agg(limit, first)
    return lives.where(F.col("first") <= F.col(LIMIT)).drop("first").toArrow()


def _kept(spark: SparkSession, lake: Lake, batch: int) -> DataFrame:
    from pyspark.sql import functions as F

    return kept_cuts_frame(spark, lake).where(F.col("_batch") <= batch)


def _moved(spark: SparkSession, lake: Lake, table: str, limits: DataFrame) -> pa.Table:
    """Those that are further than what is noted."""
    from pyspark.sql import functions as F

    noted = limits_frame(spark, lake, table).select(*SESSION, F.col(LIMIT).alias("noted"))
    moved = limits.join(noted, [*SESSION], "left").where(F.col(LIMIT) > F.coalesce("noted", F.lit(-1)))
    return as_limits(moved.drop("noted").toArrow())
