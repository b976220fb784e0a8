"""Computes the rows to merge: the last row of each session, and the net change of each table row.

Small ranges are computed in the driver, which saves Spark jobs; large ones with Spark. Both run the same pure function,
`net_changes.compute_net_changes`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SESSIONS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TooLargeError
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.cluster import SparkMergeRowsComputer
from sessionlake.silver.merge.driver import DriverMergeRowsComputer
from sessionlake.silver.tables.net_changes import CLEAR_MARKERS
from sessionlake.silver.tables.snapshots import ROW_KEY
from sessionlake.spark.frames import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPSERT_SESSIONS = Upsert(
    SESSION, tuple(name for name, _ in TABLES[SESSIONS].column_types if name not in SESSION), pruned_by=SESSION
)


def build_row_upsert(columns: tuple[Column, ...]) -> Upsert:
    """Returns the rule by which net changes are merged into `session_rows`."""
    declared = tuple(column.name for column in columns)
    return Upsert(ROW_KEY, (RESCUED, *CLEAR_MARKERS), optional_columns=declared, pruned_by=SESSION, deletes=True)


@dataclass(frozen=True)
class RowsToMerge:
    """The rows to merge into silver's tables for a range of batches, as Arrow tables or Spark frames.

    Attributes:
        rows: Net changes for `session_rows`.
        sessions: Rows for `sessions`.
    """

    rows: Rows
    sessions: Rows


def compute_rows_to_merge(
    spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange, change_count: int
) -> RowsToMerge:
    """Computes the rows to merge for a range of batches: in the driver if they fit into its memory, else with Spark.

    Args:
        spark: The Spark session.
        lake: The lake.
        settings: The settings of the lake.
        batches: The range of batches.
        change_count: Number of rows of `session_changes` and `session_progress` in the range.
    """
    if change_count <= lake.driver_limits.driver_changes:
        with contextlib.suppress(TooLargeError):
            small = DriverMergeRowsComputer(spark, lake, settings, batches)
            return RowsToMerge(small.compute_net_changes_to_merge(), small.compute_session_rows_to_merge())
    large = SparkMergeRowsComputer(spark, lake, settings, batches, change_count)
    return RowsToMerge(large.compute_net_changes_to_merge(), large.compute_session_rows_to_merge())
