"""Erases a session in quarantined messages of other sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.commit import replace_column
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, QUARANTINE
from sessionlake.delta.storage.session_rows import OffsetRowSelection
from sessionlake.operations.forgetting.rows import TopicSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def erase_session_in_quarantine(spark: SparkSession, lake: Lake, session: TopicSession) -> None:
    """Erases the session in quarantined messages of other sessions, which then are as bronze has them now."""
    from pyspark.sql import functions as F

    if not lake.settings.capture.feeds or not lake.exists(spark, QUARANTINE):
        return
    place = ["topic", "partition", "offset"]
    quarantined = (
        lake.read(spark, QUARANTINE).where(F.col("topic") == session[0]).select(*place, F.col("value").alias("old"))
    )
    bronze = lake.read(spark, MESSAGES).where(F.col("topic") == session[0]).select(*place, "value")
    is_changed = ~F.col("old").eqNullSafe(F.col("value"))
    changed = bronze.join(quarantined, place).where(is_changed).select(*place).distinct().toArrow()
    if not changed.num_rows:
        return
    chosen = OffsetRowSelection(*session, places=changed.select(place[1:]).combine_chunks())
    values = bronze.join(chosen.build_merge_source(spark), place, "left_semi").alias("s")
    replace_column(spark, lake, QUARANTINE, chosen, "value", values)
