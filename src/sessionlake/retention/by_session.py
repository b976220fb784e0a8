"""Up to where rows of sessions may go, whatever the settings say: one rule a table, by Spark.

There are as many sessions as ever were. Only those come into the driver of which more is to go than has been noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.config import Integrity
from sessionlake.integrity.rules import RuleBook
from sessionlake.lake.expired import LIMIT
from sessionlake.lake.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.lake.retained import limits_frame
from sessionlake.lake.tables import Lake
from sessionlake.protocol.arrow import SESSION
from sessionlake.retention.rules import as_limits
from sessionlake.silver.merge.kept_cuts import kept_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POSITION = "position"


class BySession:
    """The rules, on what a lake's tables hold now."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake

    def of_changes(self, batch: int) -> pa.Table:
        """The last position that may go from `session_changes`: that of each session's last whole table that is old.

        So each later moment is told from that table and the changes since. A session that has had a late fill, or may
        ever get one, keeps all: its tables are folded in seq order, from its first change on, where no whole table will
        do.

        Args:
            batch: the last one that is old enough, is merged, and that gold has read.

        Returns:
            Limits that are further than those noted, as `retained.LIMITS`.
        """
        from pyspark.sql import functions as F

        rule = RuleBook(self._lake.settings.capture)
        kept = self._kept(batch)
        topics = [row["topic"] for row in kept.select("topic").distinct().collect()]
        once = [topic for topic in topics if rule.of(topic).integrity is Integrity.ONCE]
        filled_late = self._lake.read(self._spark, PROGRESS).where("beneath").select(*SESSION)
        last = kept.where(~F.col("topic").isin(once)).groupBy(*SESSION).agg(F.max(_POSITION).alias(LIMIT))
        return self._moved(last.join(filled_late, [*SESSION], "left_anti"), CHANGES)

    def of_snapshots(self, batch: int) -> pa.Table:
        """The last position up to which cuts and whole tables may go: before each session's last one that is old.

        That which its changes go on from stays as well.

        Args, Returns: as of `of_changes`.
        """
        from pyspark.sql import functions as F

        last = self._kept(batch).groupBy(*SESSION).agg(F.max(_POSITION).alias("last"))
        floors = limits_frame(self._spark, self._lake, CHANGES).select(*SESSION, F.col(LIMIT).alias("floor"))
        first = self._lake.read(self._spark, CUTS).groupBy(*SESSION).agg(F.min(_POSITION).alias("first"))
        least = F.least("last", "floor") - 1  # of nulls the other
        due = last.join(floors, [*SESSION], "left").select(*SESSION, least.alias(LIMIT))
        # Most sessions have but one whole table.
        return self._moved(due.join(first, [*SESSION]).where(F.col("first") <= F.col(LIMIT)).drop("first"), SNAPSHOTS)

    def of_progress(self, batch: int) -> pa.Table:
        """The last batch that may go from `session_progress`, of each life of a session: the one before its last.

        Args:
            batch: the last one that is old enough, and merged.

        Returns:
            `topic, session_id, first_offset, limit`, of lives that have more than one row.
        """
        from pyspark.sql import functions as F

        old = self._lake.read(self._spark, PROGRESS).where(F.col("_batch") <= batch)
        limit, rows = (F.max("_batch") - 1).alias(LIMIT), F.count("*").alias("rows")
        lives = old.groupBy(*SESSION, "first_offset").agg(limit, rows)
        return lives.where("rows > 1").drop("rows").toArrow()

    def _kept(self, batch: int) -> DataFrame:
        from pyspark.sql import functions as F

        return kept_frame(self._spark, self._lake).where(F.col("_batch") <= batch)

    def _moved(self, limits: DataFrame, table: str) -> pa.Table:
        """Those that are further than what is noted."""
        from pyspark.sql import functions as F

        noted = limits_frame(self._spark, self._lake, table).select(*SESSION, F.col(LIMIT).alias("noted"))
        moved = limits.join(noted, [*SESSION], "left").where(F.col(LIMIT) > F.coalesce("noted", F.lit(-1)))
        return as_limits(moved.drop("noted").toArrow())
