"""How averages came about, held against itself: `revision` and `pane` of a table, and its `gold.restatements`.

Which figures were published before they became others hangs on what gold's batches were. Whatever they were, a row's
restatements lead without a gap to the figure that it shows, it has as many as its revision says, each names messages
that brought points of its series, and panes go with event times. That is looked for here, not recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.gold.fold.outputs import MOST_CAUSES
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.making.states import made_behind
from sessionlake.protocol.names import quote
from sessionlake.spark.compare import Compared
from sessionlake.spark.frames import gathered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    Rule = tuple[Column, str, Sequence[Any]]
    """What must hold, and what is said where it does not: a format and its columns."""

_EARLY, _ON_TIME, _LATE = "early", "on_time", "late"
# Holds the sum of any two event times: what is compared here must not be beyond what numbers can be.
_WIDE = "decimal(21,0)"
_FIRST_TIME, _LAST_TIME = -(2**63), 2**63 - 1


def verify_restatements(
    spark: SparkSession, lake: Lake, averages: Sequence[RollingAverage], points: DataFrame
) -> Compared:
    """Holds tables of averages, the restatements since each was made, and silver's points against each other.

    Args:
        points: all numbers that were set, see `gold.changes.events_of`, with `partition` and `offset`.
    """
    from pyspark.sql import functions as F

    rows, different, first = 0, 0, None
    for series in averages:
        since = (F.col("table") == series.table) & (F.col("_batch") > made_behind(spark, lake, series))
        told = lake.read_small_in_memory(spark, RESTATEMENTS).where(since)
        found = breaches(series, lake.read_small_in_memory(spark, series.table), told, points)
        broken, one = found.agg(F.count("*"), F.min(F.struct(*map(quote, series.row_keys), "what"))).collect()[0]
        rows, different = rows + told.count(), different + broken
        if first is None and one is not None:
            named = ", ".join(f"{key}={one[key]}" for key in series.row_keys)
            first = f"{series.table}: {named}: {one['what']}"
    return Compared(RESTATEMENTS, rows, different, first)


def breaches(series: RollingAverage, table: DataFrame, told: DataFrame, points: DataFrame) -> DataFrame:
    """Where they do not go together.

    Args:
        table: the averages.
        told: their restatements, all since the table was made.
        points: as for `verify_restatements`.

    Returns:
        `row_keys`, and `what` is wrong with the row, in words: the first thing of each restatement, and of the row.
    """
    chain = gathered(_chain(series, told))
    found = [_broken(series, chain, _of_each(series)), *_strange(series, chain, points)]
    found.append(_broken(series, _with_rows(series, table, chain, points), _of_rows(series)))
    return reduce(lambda one, other: one.unionByName(other), found)


def _broken(series: RollingAverage, rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    from pyspark.sql import functions as F

    holds = [F.coalesce(rule, F.lit(col=False)) for rule, _, _ in rules]
    said = [F.format_string(text, *(F.col(name).cast("string") for name in names)) for _, text, names in rules]
    what = F.coalesce(*(F.when(~held, words) for held, words in zip(holds, said, strict=True)))
    return rows.select(*map(quote, series.row_keys), what.alias("what")).where("what IS NOT NULL")


def _chain(series: RollingAverage, told: DataFrame) -> DataFrame:
    """Restatements with those before them, and `newest`: the event time of what was their series' newest point."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy(*map(quote, series.row_keys)).orderBy("_batch", "revision")
    newest = F.array_min("because.ts").cast(_WIDE) + F.col("late_ms").cast(_WIDE)
    return told.select(
        "*",
        F.row_number().over(line).alias("number"),
        F.lead("_batch").over(line).isNull().alias("is_last"),
        F.struct("average", "points").alias("to"),
        F.struct(F.col("average_before").alias("average"), F.col("points_before").alias("points")).alias("from"),
        F.lag(F.struct("average", "points")).over(line).alias("to_before"),
        F.lag("pane").over(line).alias("pane_before"),
        F.when(F.col("late_ms") < _LAST_TIME, newest.cast(_WIDE)).alias("newest"),
    )


def _of_each(series: RollingAverage) -> list[Rule]:
    """What holds of each restatement."""
    from pyspark.sql import functions as F

    number, causes, pane = F.col("number"), F.col("because.ts"), F.col("pane")
    shown = F.col("average").isNotNull() & F.col("average_before").isNotNull() & ~F.col("from").eqNullSafe(F.col("to"))
    sizes = F.col("points_before").between(1, F.col("points")) & (F.col("points") <= series.last)
    named = F.size("because") == F.least("late_points", F.lit(MOST_CAUSES))
    in_order = (causes == F.array_sort(causes)) & (F.array_max(causes) <= F.col("ts")) & (F.col("late_ms") >= 0)
    passed = F.col("newest").isNull() | ((pane == _LATE) == (F.col("ts") <= _watermark(series, "newest")))
    goes_on = F.col("pane_before").isNull() | (F.col("pane_before") == _EARLY) | (pane == _LATE)
    nth = "restatement %s of it "
    return [
        (F.col("revision") == number, f"{nth}has revision %s", ["number", "revision"]),
        (F.col("logic") == series.logic, f"{nth}is by logic %s", ["number", "logic"]),
        (
            (number == 1) | F.col("from").eqNullSafe(F.col("to_before")),
            f"{nth}goes on from %s, and the one before it has led to %s",
            ["number", "from", "to_before"],
        ),
        (shown & sizes, f"{nth}leads from %s to %s", ["number", "from", "to"]),
        (
            F.col("late_points").between(1, series.last) & named & in_order,
            f"{nth}has %s late points, %s ms late, because of %s",
            ["number", "late_points", "late_ms", "because"],
        ),
        (
            pane.isin(_EARLY, _ON_TIME, _LATE) & passed & goes_on,
            f"{nth}is %s: the newest point was of %s, and the one before it is %s",
            ["number", "pane", "newest", "pane_before"],
        ),
    ]


def _strange(series: RollingAverage, chain: DataFrame, points: DataFrame) -> list[DataFrame]:
    """Restatements because of messages that brought no point of their series, or that are late behind none."""
    from pyspark.sql import functions as F

    row, keys, parts = [*map(quote, series.row_keys)], [*map(quote, series.keys)], ("partition", "offset", "ts")
    causes = chain.select(*row, F.explode("because").alias("cause"))
    causes = causes.select(*row, *(F.col(f"cause.{part}").alias(f"cause_{part}") for part in parts))
    brought = points.select(*keys, *(F.col(part).alias(f"cause_{part}") for part in parts))
    unknown = causes.join(brought, [*series.keys, *(f"cause_{part}" for part in parts)], "left_anti")
    named = F.format_string(
        "is restated because of partition %s, offset %s, which brought no point of its series of %s",
        *(F.col(f"cause_{part}").cast("string") for part in parts),
    )
    there = points.select(*keys, F.col("ts").cast(_WIDE).alias("newest"))
    behind = chain.where("newest IS NOT NULL").join(there, [*series.keys, "newest"], "left_anti")
    late = F.format_string(
        "is restated by what was late behind a point of %s: there is none", F.col("newest").cast("string")
    )
    return [unknown.select(*row, named.alias("what")), behind.select(*row, late.alias("what"))]


def _with_rows(series: RollingAverage, table: DataFrame, chain: DataFrame, points: DataFrame) -> DataFrame:
    """Each row, its series' newest point, and its last restatement."""
    from pyspark.sql import functions as F

    row, keys = [*map(quote, series.row_keys)], [*map(quote, series.keys)]
    newest = points.groupBy(*keys).agg(F.max("ts").cast(_WIDE).alias("newest"))
    held = table.select(
        *row, F.struct("average", "points").alias("figure"), "revision", "pane", F.lit(1).alias("there")
    )
    last = chain.where("is_last").select(*row, "number", "to", F.col("pane").alias("pane_told"))
    return held.join(newest, [*series.keys], "left").join(last, [*series.row_keys], "full").fillna(0, "number")


def _of_rows(series: RollingAverage) -> list[Rule]:
    """What holds of each row of the table."""
    from pyspark.sql import functions as F

    pane, told, ts = F.col("pane"), F.col("pane_told"), F.col("ts")
    watermark, alone = _watermark(series, "newest"), F.col("number") == 0
    # A row that was to be seen from the first on is written again where its figure changes, and restated then. Being
    # late from the first on takes a point whose watermark is past it; one at it was on time.
    seen = series.early and series.least == 1
    late = ts < watermark if seen else ts <= watermark
    return [
        (F.col("there").isNotNull(), "is restated, and not in the table", []),
        (
            F.col("revision") == F.col("number"),
            "has revision %s, and %s restatements",
            ["revision", "number"],
        ),
        (
            alone | F.col("figure").eqNullSafe(F.col("to")),
            "is %s, and its last restatement has led to %s",
            ["figure", "to"],
        ),
        (
            pane.isin(_EARLY, _ON_TIME, _LATE) & ((pane == _EARLY) == (ts > watermark)),
            "is %s, and its series' newest point is of %s",
            ["pane", "newest"],
        ),
        (
            F.when(alone, (pane != _LATE) | late).otherwise((pane == told) | ((told == _EARLY) & (pane == _ON_TIME))),
            "is %s, its last restatement %s, and its series' newest point is of %s",
            ["pane", "pane_told", "newest"],
        ),
    ]


def _watermark(series: RollingAverage, newest: str) -> Column:
    """No earlier than time begins."""
    from pyspark.sql import functions as F

    behind = F.col(newest) - F.lit(series.watermark_ms).cast(_WIDE)
    return F.greatest(behind, F.lit(_FIRST_TIME).cast(_WIDE))
