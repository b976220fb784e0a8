"""The sources of the two MERGEs: the latest row of each session, and the net change of each table row.

Small ranges are worked out in the driver, which saves Spark jobs; large ones on the cluster. Both run the same pure
function (`net_changes.net_changes`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.lake.reading import TooLargeError
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.cluster import ClusterSource
from sessionlake.silver.merge.driver import DriverSource
from sessionlake.silver.merge.key_bounds import KeyBounds


@dataclass(frozen=True)
class MergeSources:
    """What is merged.

    Attributes:
        rows: into `session_rows`.
        sessions: into `sessions`.
        bounds: of the keys of both.
    """

    rows: DataFrame
    sessions: DataFrame
    bounds: KeyBounds


def sources(spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, changes: int) -> MergeSources:
    """What a range of batches comes to.

    Args:
        changes: how many rows of changes and progress it has.
    """
    if changes <= lake.limits.driver_changes:
        with contextlib.suppress(TooLargeError):
            small = DriverSource(spark, lake, settings, batches)
            return MergeSources(small.rows(), small.sessions(), small.bounds())
    large = ClusterSource(spark, lake, settings, batches)
    sessions = large.sessions()
    return MergeSources(large.rows(), sessions, KeyBounds.of(sessions))
