"""The sources of the two MERGEs: the latest row of each session, and the net change of each table row.

Small ranges are worked out in the driver, which saves Spark jobs; large ones on the cluster. Both run the same pure
function (`net_changes.net_changes`). On a laptop the cluster is the driver's own machine, where Arrow alone takes a
fifth of the CPU time that Spark's shuffle and Python workers add: there, what fits into memory is small.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.lake.reading import TooLargeError
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.cluster import ClusterSource
from sessionlake.silver.merge.driver import DriverSource

# Up to this many rows of changes the driver does the work: a few tens of megabytes.
SMALL_CHANGES = 100_000
# The same on a laptop.
_LOCAL_CHANGES = 2_000_000


def sources(
    spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, changes: int
) -> tuple[DataFrame, DataFrame]:
    """What a range of batches comes to, for `session_rows` and for `sessions`.

    Args:
        changes: how many rows of changes and progress it has.
    """
    if changes <= (_LOCAL_CHANGES if lake.local else SMALL_CHANGES):
        with contextlib.suppress(TooLargeError):
            small = DriverSource(spark, lake, settings, batches)
            return small.rows(), small.sessions()
    large = ClusterSource(spark, lake, settings, batches)
    return large.rows(), large.sessions()
