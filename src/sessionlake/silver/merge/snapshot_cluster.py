"""Computes with Spark the whole tables to store at the cuts of a range of batches, for ranges of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.names import add_internal_prefix, quote
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.kept_cuts import read_frame_of_cuts_with_stored_tables
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    KIND,
    LATE_FILLED,
    WEIGHTS,
    SnapshotTablesMapper,
    build_snapshots_schema,
    list_columns_of_session_changes,
)
from sessionlake.spark.frames import apply_to_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAMED_SESSIONS = 500
"""Up to this number, sessions are looked up by their names, which lets Delta skip files."""
_AT, _LAST, _LAST_AT = add_internal_prefix("at"), add_internal_prefix("last"), add_internal_prefix("last_at")
# The approximate number of cuts that one Spark task handles.
_CUTS_A_TASK = 2_000


@dataclass(frozen=True)
class SnapshotsToStore:
    """The whole tables of sessions to store: Arrow tables if the driver computed them, else Spark frames.

    Attributes:
        rows: Rows for `session_snapshots`.
        index: Rows for `session_snapshot_index`: one for each stored table, even an empty one.
    """

    rows: DataFrame | pa.Table
    index: DataFrame | pa.Table


class SparkSnapshotComputer:
    """Computes with Spark the whole tables of sessions to store at the cuts of a range of batches."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._columns = settings.capture.declared_columns

    def compute_snapshots_to_store(
        self, batches: BatchRange, cut_count: int, min_task_count: int = 1
    ) -> SnapshotsToStore:
        """Returns the rows to add to `session_snapshots` and `session_snapshot_index`.

        Args:
            batches: The range of batches.
            cut_count: Number of cuts in the batches.
            min_task_count: The lowest number of Spark tasks to use.
        """
        from pyspark.sql import functions as F

        due, last = self._select_cuts_to_store(batches)
        since = self._read_changes_since(due, last, batches.last)
        late_filled = self._find_late_filled_sessions(since, last, batches.last)
        weight_names = {name: add_internal_prefix(name) for name in WEIGHTS}
        weights = last.select(*SESSION, "rows", "since")
        heads = (
            due.select(*CUT_COLUMNS, "changes")
            .join(weights, list(SESSION), "left")
            .join(late_filled, list(SESSION), "left")
        )
        heads = heads.withColumn(LATE_FILLED, F.coalesce(LATE_FILLED, F.lit(col=False))).withColumnsRenamed(
            weight_names
        )
        oldest = F.timestamp_micros(_compute_lowest_value(last.select(F.unix_micros("snapshot_at").alias("at")), "at"))
        held = self._read_frame(SNAPSHOTS).where(_build_session_condition(last) & (F.col("snapshot_at") >= oldest))
        held = held.join(last.select(*CUT_COLUMNS), list(CUT_COLUMNS), "left_semi")
        parts = self._replace_changes_of_late_filled_sessions(since, late_filled, batches.last).withColumn(
            KIND, F.lit("change")
        )
        for kind, part in (("cut", heads), ("row", held.drop("snapshot_at", "reason", "position"))):
            parts = parts.unionByName(part.withColumn(KIND, F.lit(kind)), allowMissingColumns=True)
        task_count = max(self._spark.sparkContext.defaultParallelism, cut_count // _CUTS_A_TASK, min_task_count)
        # Spark matches the function's columns by position, and their order differs from that of the table.
        made_of = self._read_frame(SNAPSHOTS).select(*map(quote, build_snapshots_schema(self._columns).names))
        function, schema = SnapshotTablesMapper(self._columns), made_of.schema
        made = apply_to_batches(parts.repartition(task_count, *SESSION), function, schema).localCheckpoint()
        counted = made.groupBy(*CUT_COLUMNS).agg(F.count("row_id").alias("rows"))
        return SnapshotsToStore(made.where(F.col("row_id").isNotNull()), due.join(counted, list(CUT_COLUMNS)))

    def _select_cuts_to_store(self, batches: BatchRange) -> tuple[DataFrame, DataFrame]:
        """Decides for which sessions at least one table in the range is stored.

        Returns:
            The cuts of these sessions in the range, and each session's last stored cut before the range. The latter
            have the number of `rows` of the stored table, and of changes `since`.
        """
        from pyspark.sql import functions as F

        due = self._read_frame(CUTS).where(F.col("_batch").between(batches.first, batches.last))
        before = (F.col("_batch") < batches.first) & _build_session_condition(due)
        kept = (
            read_frame_of_cuts_with_stored_tables(self._spark, self._lake)
            .where(before)
            .join(due, list(SESSION), "left_semi")
        )
        newest = F.max(F.struct("position", "snapshot_at", "reason", "_batch", "rows")).alias("last")
        last = kept.groupBy(*SESSION).agg(newest).select(*SESSION, "last.*").localCheckpoint()
        passed = self._read_frame(CUTS).where(before & (F.col("_batch") >= _compute_lowest_value(last, "_batch")))
        passed = passed.select(*SESSION, F.col("position").alias(_AT), "changes")
        since = passed.join(last.select(*SESSION, "position"), list(SESSION)).where(F.col(_AT) > F.col("position"))
        since = since.groupBy(*SESSION).agg(F.sum("changes").alias("since"))
        last = last.join(since, list(SESSION), "left").localCheckpoint()
        always = (F.col("reason") != "interval") | F.col("changes").isNull()
        totals = due.groupBy(*SESSION).agg(F.sum("changes").alias("changes"), F.max(always).alias("always"))
        weighed = totals.join(last.select(*SESSION, "rows", "since"), list(SESSION), "left").na.fill(0)
        outweighed = F.col("changes") + F.col("since") > F.col("rows")
        kept_now = weighed.where(F.col("always") | outweighed).select(*SESSION).localCheckpoint()
        return due.join(kept_now, list(SESSION), "left_semi"), last.join(kept_now, list(SESSION), "left_semi")

    def _read_changes_since(self, due: DataFrame, last: DataFrame, last_batch: int) -> DataFrame:
        """Returns the changes of sessions after their last stored tables; all changes of a session without one.

        Args:
            due: The cuts of these sessions in the range.
            last: The last cut of each session whose table is stored.
            last_batch: The last batch of the range.
        """
        from pyspark.sql import functions as F

        begun = last.select(*SESSION, F.col("position").alias(_LAST), F.col("snapshot_at").alias(_LAST_AT))
        # Changes after a cut have at least the cut's time. Without a cut, they have at least that of the first change.
        times = F.unix_micros(F.coalesce(_LAST_AT, "changed_at")).alias("at")
        oldest = _compute_lowest_value(due.join(begun, list(SESSION), "left").select(times), "at")
        late = F.col("_applied_at") >= F.timestamp_micros(oldest)
        history = self._read_frame(CHANGES).where(
            (F.col("_batch") <= last_batch) & late & _build_session_condition(due)
        )
        return (
            history.select(*map(quote, list_columns_of_session_changes(self._columns)), "_batch")
            .join(due, list(SESSION), "left_semi")
            .join(begun.drop(_LAST_AT), list(SESSION), "left")
            .where(F.col(_LAST).isNull() | (F.col("_position") > F.col(_LAST)))
            .drop(_LAST)
        )

    def _find_late_filled_sessions(self, changes: DataFrame, last_kept: DataFrame, last_batch: int) -> DataFrame:
        """Returns the sessions that had a late fill since their last stored tables. `LATE_FILLED` is True for them.

        Args:
            changes: The changes since these tables were stored, including the late fills.
            last_kept: The last cut of each session whose table is stored.
            last_batch: The last batch of the range.
        """
        from pyspark.sql import functions as F

        within = F.col("_batch").between(_compute_lowest_value(changes, "_batch"), F.lit(last_batch))
        return (
            self._read_frame(PROGRESS)
            .where(F.col("beneath") & within)
            .join(changes, list(SESSION), "left_semi")
            .join(last_kept.select(*SESSION, F.col("_batch").alias(_LAST)), list(SESSION), "left")
            .where(F.col(_LAST).isNull() | (F.col("_batch") >= F.col(_LAST)))
            .select(*SESSION)
            .distinct()
            .withColumn(LATE_FILLED, F.lit(col=True))
            .localCheckpoint()
        )

    def _replace_changes_of_late_filled_sessions(
        self, changes: DataFrame, late_filled: DataFrame, last_batch: int
    ) -> DataFrame:
        """Replaces the changes of sessions with a late fill by all changes that they ever had.

        Args:
            changes: The changes since the last stored tables.
            late_filled: The sessions with a late fill.
            last_batch: The last batch of the range.
        """
        from pyspark.sql import functions as F

        columns = [*map(quote, list_columns_of_session_changes(self._columns))]
        if late_filled.isEmpty():
            return changes.select(*columns)
        history = (
            self._read_frame(CHANGES)
            .where((F.col("_batch") <= last_batch) & _build_session_condition(late_filled))
            .select(*columns)
        )
        all_changes = history.join(late_filled, list(SESSION), "left_semi")
        return changes.select(*columns).join(late_filled, list(SESSION), "left_anti").unionByName(all_changes)

    def _read_frame(self, table: str) -> DataFrame:
        return self._lake.read(self._spark, table)


def _build_session_condition(rows: DataFrame) -> Column:
    """Returns a condition that selects the session ids in these rows, so that Delta can skip files.

    If there are too many ids, returns a condition that is always true.
    """
    from pyspark.sql import functions as F

    found = rows.select("session_id").distinct().limit(NAMED_SESSIONS + 1).collect()
    return F.col("session_id").isin([row[0] for row in found]) if len(found) <= NAMED_SESSIONS else F.lit(col=True)


def _compute_lowest_value(rows: DataFrame, column: str) -> Column:
    """Computes the lowest value of a column, and returns it as a literal; null if there are no rows."""
    from pyspark.sql import functions as F

    return F.lit(rows.agg(F.min(column)).collect()[0][0]).cast("bigint")
