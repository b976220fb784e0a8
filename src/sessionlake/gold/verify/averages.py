"""Checks `revision` and `pane` of each average against its restatements, which are its rows in `gold.restatements`.

A restatement records that a late point has changed a published average. Which averages were published first depends on
gold's batches, so restatements cannot be recomputed. The following can be checked:

- A row's restatements lead from one average to the next without a gap, and the last one leads to the current average.
- The row's `revision` is the number of its restatements.
- Each restatement names messages that really have points of the row's series.
- `pane` (early, on time or late) agrees with the event times.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.gold.fold.outputs import MOST_CAUSES
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.rebuilding.states import read_last_batch_of_rebuild
from sessionlake.protocol.names import quote
from sessionlake.spark.compare import TableComparison
from sessionlake.spark.frames import keep_small_frame_in_one_task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    Check = tuple[Column, str, Sequence[Any]]
    """A condition that must be true for each row, a format string for rows where it is false, and its columns."""

_EARLY, _ON_TIME, _LATE = "early", "on_time", "late"
# Wide enough for the sum of any two event times, so that comparisons never overflow.
_WIDE = "decimal(21,0)"
_FIRST_TIME, _LAST_TIME = -(2**63), 2**63 - 1


def verify_restatements(
    spark: SparkSession, lake: Lake, averages: Sequence[RollingAverage], points: DataFrame
) -> TableComparison:
    """Checks tables of averages against `gold.restatements` and against the numbers in silver's changes.

    Only restatements since a table's last rebuild are checked.

    Args:
        averages: the tables of averages.
        points: all numbers that changes set, as `gold.changes.select_events` returns them, with `partition` and
            `offset`.

    Returns:
        The number of checked restatements, the number of contradictions, and a text about the first one.
    """
    from pyspark.sql import functions as F

    rows, different, first = 0, 0, None
    for series in averages:
        since = (F.col("table") == series.table_name) & (
            F.col("_batch") > read_last_batch_of_rebuild(spark, lake, series)
        )
        restatements = lake.read_small_table_into_memory(spark, RESTATEMENTS).where(since)
        found = find_inconsistent_restatements(
            series, lake.read_small_table_into_memory(spark, series.table_name), restatements, points
        )
        broken, one = found.agg(F.count("*"), F.min(F.struct(*map(quote, series.row_keys), "what"))).collect()[0]
        rows, different = rows + restatements.count(), different + broken
        if first is None and one is not None:
            named = ", ".join(f"{key}={one[key]}" for key in series.row_keys)
            first = f"{series.table_name}: {named}: {one['what']}"
    return TableComparison(RESTATEMENTS, rows, different, first)


def find_inconsistent_restatements(
    series: RollingAverage, table: DataFrame, restatements: DataFrame, points: DataFrame
) -> DataFrame:
    """Returns the rows of a table of averages whose average and restatements contradict each other.

    Args:
        series: the table of averages.
        table: the rows of the table.
        restatements: the table's restatements since its last rebuild.
        points: all numbers that changes set, with `partition` and `offset`.

    Returns:
        The columns in `row_keys`, and `what`, a text that describes the problem. If a restatement or an average fails
        several conditions, the text describes the first one.
    """
    chain = keep_small_frame_in_one_task(_add_previous_restatements(series, restatements))
    found = [
        _find_rows_that_fail_checks(series, chain, _build_restatement_checks(series)),
        *_find_restatements_without_cause(series, chain, points),
    ]
    found.append(
        _find_rows_that_fail_checks(
            series, _join_last_restatement(series, table, chain, points), _build_average_row_checks(series)
        )
    )
    return reduce(lambda one, other: one.unionByName(other), found)


def _find_rows_that_fail_checks(series: RollingAverage, rows: DataFrame, rules: Sequence[Check]) -> DataFrame:
    from pyspark.sql import functions as F

    holds = [F.coalesce(rule, F.lit(col=False)) for rule, _, _ in rules]
    texts = [F.format_string(text, *(F.col(name).cast("string") for name in names)) for _, text, names in rules]
    what = F.coalesce(*(F.when(~held, words) for held, words in zip(holds, texts, strict=True)))
    return rows.select(*map(quote, series.row_keys), what.alias("what")).where("what IS NOT NULL")


def _add_previous_restatements(series: RollingAverage, restatements: DataFrame) -> DataFrame:
    """Returns restatements with further columns about the previous restatement of the same row, and with `newest`.

    `newest` is the highest event time, in ms, that the row's series had when the row was restated.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy(*map(quote, series.row_keys)).orderBy("_batch", "revision")
    newest = F.array_min("because.ts").cast(_WIDE) + F.col("late_ms").cast(_WIDE)
    return restatements.select(
        "*",
        F.row_number().over(line).alias("number"),
        F.lead("_batch").over(line).isNull().alias("is_last"),
        F.struct("average", "points").alias("to"),
        F.struct(F.col("average_before").alias("average"), F.col("points_before").alias("points")).alias("from"),
        F.lag(F.struct("average", "points")).over(line).alias("to_before"),
        F.lag("pane").over(line).alias("pane_before"),
        F.when(F.col("late_ms") < _LAST_TIME, newest.cast(_WIDE)).alias("newest"),
    )


def _build_restatement_checks(series: RollingAverage) -> list[Check]:
    """Returns the conditions that must be true for each restatement, each with a text for when it is false."""
    from pyspark.sql import functions as F

    number, causes, pane = F.col("number"), F.col("because.ts"), F.col("pane")
    shown = F.col("average").isNotNull() & F.col("average_before").isNotNull() & ~F.col("from").eqNullSafe(F.col("to"))
    sizes = F.col("points_before").between(1, F.col("points")) & (F.col("points") <= series.window_points)
    named = F.size("because") == F.least("late_points", F.lit(MOST_CAUSES))
    in_order = (causes == F.array_sort(causes)) & (F.array_max(causes) <= F.col("ts")) & (F.col("late_ms") >= 0)
    passed = F.col("newest").isNull() | ((pane == _LATE) == (F.col("ts") <= _build_watermark_column(series, "newest")))
    goes_on = F.col("pane_before").isNull() | (F.col("pane_before") == _EARLY) | (pane == _LATE)
    nth = "restatement %s of this row "
    return [
        (F.col("revision") == number, f"{nth}has revision %s", ["number", "revision"]),
        (F.col("logic") == series.logic_hash, f"{nth}was made by logic %s", ["number", "logic"]),
        (
            (number == 1) | F.col("from").eqNullSafe(F.col("to_before")),
            f"{nth}starts from %s, but the one before it led to %s",
            ["number", "from", "to_before"],
        ),
        (shown & sizes, f"{nth}leads from %s to %s", ["number", "from", "to"]),
        (
            F.col("late_points").between(1, series.window_points) & named & in_order,
            f"{nth}has %s late points, %s ms late, because of %s",
            ["number", "late_points", "late_ms", "because"],
        ),
        (
            pane.isin(_EARLY, _ON_TIME, _LATE) & passed & goes_on,
            f"{nth}is %s, but the newest point was at %s and the restatement before it is %s",
            ["number", "pane", "newest", "pane_before"],
        ),
    ]


def _find_restatements_without_cause(
    series: RollingAverage, numbered_restatements: DataFrame, points: DataFrame
) -> list[DataFrame]:
    """Finds restatements that refer to points that silver's changes do not have.

    Returns:
        Two frames. The first has restatements that name a message without a point of the series. The second has
        restatements for which no point of the series has the event time in `newest`.
    """
    from pyspark.sql import functions as F

    row, keys, parts = [*map(quote, series.row_keys)], [*map(quote, series.keys)], ("partition", "offset", "ts")
    causes = numbered_restatements.select(*row, F.explode("because").alias("cause"))
    causes = causes.select(*row, *(F.col(f"cause.{part}").alias(f"cause_{part}") for part in parts))
    possible_causes = points.select(*keys, *(F.col(part).alias(f"cause_{part}") for part in parts))
    unknown = causes.join(possible_causes, [*series.keys, *(f"cause_{part}" for part in parts)], "left_anti")
    named = F.format_string(
        "is restated because of partition %s, offset %s, which has no point of its series at %s",
        *(F.col(f"cause_{part}").cast("string") for part in parts),
    )
    newest_points = points.select(*keys, F.col("ts").cast(_WIDE).alias("newest"))
    unknown_newest = numbered_restatements.where("newest IS NOT NULL").join(
        newest_points, [*series.keys, "newest"], "left_anti"
    )
    late = F.format_string(
        "is restated by a point that was late after one at %s, but there is none", F.col("newest").cast("string")
    )
    return [unknown.select(*row, named.alias("what")), unknown_newest.select(*row, late.alias("what"))]


def _join_last_restatement(
    series: RollingAverage, table: DataFrame, numbered_restatements: DataFrame, points: DataFrame
) -> DataFrame:
    """Joins each average with its last restatement, and with the highest event time of its series (`newest`, ms).

    A restatement whose row is not in the table is included, with null in `in_table`.

    Args:
        series: the table of averages.
        table: the rows of the table.
        numbered_restatements: the restatements, from `_add_previous_restatements`.
        points: all numbers that changes set.
    """
    from pyspark.sql import functions as F

    row, keys = [*map(quote, series.row_keys)], [*map(quote, series.keys)]
    newest = points.groupBy(*keys).agg(F.max("ts").cast(_WIDE).alias("newest"))
    figures = table.select(
        *row, F.struct("average", "points").alias("figure"), "revision", "pane", F.lit(1).alias("in_table")
    )
    last = numbered_restatements.where("is_last").select(*row, "number", "to", F.col("pane").alias("last_pane"))
    return figures.join(newest, [*series.keys], "left").join(last, [*series.row_keys], "full").fillna(0, "number")


def _build_average_row_checks(series: RollingAverage) -> list[Check]:
    """Returns the conditions that must be true for each row of a table of averages, each with a text for failures."""
    from pyspark.sql import functions as F

    pane, last_pane, ts = F.col("pane"), F.col("last_pane"), F.col("ts")
    watermark, alone = _build_watermark_column(series, "newest"), F.col("number") == 0
    # If averages are published at once, every later change of one is a restatement. A row without restatements is then
    # late only if the watermark was after its event time. If it was equal, the row was on time.
    seen = series.publishes_early and series.minimum_points == 1
    late = ts < watermark if seen else ts <= watermark
    return [
        (F.col("in_table").isNotNull(), "has restatements, but is not in the table", []),
        (
            F.col("revision") == F.col("number"),
            "has revision %s, and %s restatements",
            ["revision", "number"],
        ),
        (
            alone | F.col("figure").eqNullSafe(F.col("to")),
            "is %s, but its last restatement led to %s",
            ["figure", "to"],
        ),
        (
            pane.isin(_EARLY, _ON_TIME, _LATE) & ((pane == _EARLY) == (ts > watermark)),
            "is %s, but its series' newest point is at %s",
            ["pane", "newest"],
        ),
        (
            F.when(alone, (pane != _LATE) | late).otherwise(
                (pane == last_pane) | ((last_pane == _EARLY) & (pane == _ON_TIME))
            ),
            "is %s, but its last restatement is %s and its series' newest point is at %s",
            ["pane", "last_pane", "newest"],
        ),
    ]


def _build_watermark_column(series: RollingAverage, newest: str) -> Column:
    """Returns a Spark column with the watermark of a series, in ms; at least the lowest possible event time.

    Args:
        series: the table of averages.
        newest: name of the column with the highest event time of the series, in ms.
    """
    from pyspark.sql import functions as F

    behind = F.col(newest) - F.lit(series.watermark_ms).cast(_WIDE)
    return F.greatest(behind, F.lit(_FIRST_TIME).cast(_WIDE))
