"""Recomputes all alerts by plain Spark SQL and compares them with the log. Only the parser is shared with gold.

The last digits of a sum of doubles depend on the order in which they are added. If they could decide whether an alert
is raised, the alert is called doubtful and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, RULE_EVENTS, RULE_STATUS
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN
from sessionlake.gold.aggregate.sources import CHANGE_KEY_AND_ORDER, PARTITION, DeclaredColumns, build_text_column_name
from sessionlake.gold.alerts.rule_loading import read_rules_from_status_table
from sessionlake.gold.changes import find_last_read_changes_version, get_value_columns, select_changes, select_events
from sessionlake.gold.rules.alerts import CLEARED, KEY, RAISED, RETRACTED, StreamTimes, find_stream_time_of_rule
from sessionlake.gold.rules.condition_tree import MINUTE_MS, Pattern, PatternKind
from sessionlake.gold.rules.rule import SERIES_KEY, VALUE, Rule
from sessionlake.gold.tables.expiry import read_first_bucket_times
from sessionlake.gold.verify.rule_columns import (
    build_condition_columns,
    build_event_column,
    build_has_points_column,
    build_minute_aggregate_columns,
    build_sliding_window_columns,
)
from sessionlake.protocol.names import quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.model import Settings
from sessionlake.spark.compare import TableComparison, compare_rows
from sessionlake.spark.frames import keep_small_frame_in_one_task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# How many rules one Spark job recomputes.
_RULES_PER_JOB = 16
_IDENTITY = ("rule", *KEY, "at", "what")


def verify_rules(spark: SparkSession, settings: Settings) -> TableComparison | None:
    """Compares the log of alerts with alerts that are recomputed from all changes that gold has read.

    Returns:
        The number of expected alerts and of differences, with the first difference. None if gold evaluates no rule.
    """
    lake, declared = Lake(settings), get_value_columns(settings)
    reader = lake.reader(spark)
    recorded = read_rules_from_status_table(reader, declared) if reader.exists(RULE_STATUS) else []
    rules = [one.rule for one in recorded if one.rule is not None]
    if not rules:
        return None
    from pyspark.sql import functions as F

    raw = lake.read(spark, CHANGES, find_last_read_changes_version(settings)).where("change != 'clear'")
    changes = keep_small_frame_in_one_task(
        select_changes(raw, settings, (F.col("change") == "delete").alias("deleted"))
    )
    numbers = select_events(changes, declared, CHANGE_KEY_AND_ORDER, numbers=True)
    texts = select_events(changes, declared, CHANGE_KEY_AND_ORDER, numbers=False)
    in_range = F.col("ts").between(FIRST_MS, LAST_MS)
    both = numbers.select("topic", "ts").unionByName(texts.select("topic", "ts")).where(in_range)
    times = {row[0]: row[1] for row in both.groupBy("topic").agg(F.max("ts")).collect()}
    topics = [row[0] for row in changes.select("topic").distinct().collect()]
    truth = _ExpectedAlerts(numbers.where(in_range), changes.where(in_range), times, topics, declared)
    log, begins = (
        _read_logged_alerts(lake.read_small_table_into_memory(spark, RULE_EVENTS)),
        read_first_bucket_times(reader),
    )
    parts = [rules[begin : begin + _RULES_PER_JOB] for begin in range(0, len(rules), _RULES_PER_JOB)]
    found = [_compare_logged_with_expected_alerts(log, truth, part, begins) for part in parts]
    first = next((one.first_difference for one in found if one.first_difference is not None), None)
    return TableComparison(
        RULE_EVENTS, sum(one.expected_rows for one in found), sum(one.different_rows for one in found), first
    )


def _compare_logged_with_expected_alerts(
    log: DataFrame, expected_alerts: _ExpectedAlerts, rules: Sequence[Rule], first_bucket_times: StreamTimes
) -> TableComparison:
    from pyspark.sql import functions as F

    are_stored = reduce(and_, (_build_are_buckets_stored_column(rule, first_bucket_times) for rule in rules))
    rows = (
        reduce(lambda one, other: one.unionByName(other), map(expected_alerts.compute_alerts, rules))
        .where(are_stored)
        .persist()
    )
    try:
        doubtful = rows.where("doubtful").select("rule", *KEY, "at").distinct()
        logged = log.where(F.col("rule").isin([rule.name for rule in rules])).where(are_stored)
        certain = logged.join(doubtful, ["rule", *KEY, "at"], "left_anti")
        expected = rows.where("NOT doubtful").select(*_IDENTITY, "times").distinct()
        return compare_rows(RULE_EVENTS, _IDENTITY, ["times"], certain, expected)
    finally:
        rows.unpersist()


def _build_are_buckets_stored_column(rule: Rule, first_bucket_times: StreamTimes) -> Column:
    """Returns a Spark column that is false for alerts of a rule that cannot be recomputed, as buckets have expired.

    The column is true for alerts of other rules.

    Args:
        rule: the rule.
        first_bucket_times: for topics with expired buckets, the event time in ms from which buckets exist.
    """
    from pyspark.sql import functions as F

    if isinstance(rule.tree, Pattern) or not first_bucket_times:
        return F.lit(col=True)
    is_other_rule, at = F.col("rule") != rule.name, F.col("at") - rule.longest_window_minutes * MINUTE_MS
    if "topic" in rule.by:
        gone = (((F.col("topic") == topic) & (at <= begin)) for topic, begin in first_bucket_times.items())
        return is_other_rule | ~reduce(or_, gone)
    begin = find_stream_time_of_rule(rule, None, first_bucket_times)
    return is_other_rule | (F.lit(col=True) if begin is None else at > begin)


def _read_logged_alerts(events: DataFrame) -> DataFrame:
    """Returns the alerts in the log that are not retracted. The column `times` says how often the log has an alert.

    Args:
        events: the rows of `gold.rule_events`.
    """
    from pyspark.sql import functions as F

    once = F.when(F.col("event") == RETRACTED, -1).otherwise(1)
    what = F.coalesce("retracts", "event").alias("what")
    at = F.unix_millis("window_end").alias("at")
    rows = events.select("rule", *_build_text_columns_without_nulls(KEY), at, what, once.alias("once"))
    return rows.groupBy(*_IDENTITY).agg(F.sum("once").alias("times")).where("times != 0")


def _build_text_columns_without_nulls(columns: Sequence[str]) -> list[Column]:
    """Returns Spark columns of texts with an empty text instead of null, because nulls do not match in a join."""
    from pyspark.sql import functions as F

    return [F.coalesce(F.col(quote(name)).cast("string"), F.lit("")).alias(name) for name in columns]


@dataclass(frozen=True)
class _ExpectedAlerts:
    """Computes the alerts that the log should have, from all changes that gold has read.

    Attributes:
        numbers: the numbers that changes set, as `gold.changes.select_events` returns them.
        changes: the changes themselves, for patterns.
        times: stream time of each topic, in ms.
        topics: all topics with changes.
        declared: the declared columns.
    """

    numbers: DataFrame
    changes: DataFrame
    times: Mapping[str, int]
    topics: Sequence[str]
    declared: DeclaredColumns

    def compute_alerts(self, rule: Rule) -> DataFrame:
        """Returns the alerts that one rule should have.

        Returns:
            `rule`, the columns of `KEY`, `at` (event time in ms), `what` (raised or cleared), `doubtful` (true if
            rounding could decide the alert), and `times`, which is always 1.
        """
        from pyspark.sql import functions as F

        rows = (
            self._compute_pattern_alerts(rule)
            if isinstance(rule.tree, Pattern)
            else self._compute_condition_alerts(rule)
        )
        if rule.since_ms is not None:
            rows = rows.where(F.col("at") >= rule.since_ms)
        keys = [F.col(name) if name in rows.columns else F.lit(None).cast("string").alias(name) for name in KEY]
        rows = rows.select(F.lit(rule.name).alias("rule"), *keys, "at", "what", "doubtful", F.lit(1).alias("times"))
        return rows.select("rule", *_build_text_columns_without_nulls(KEY), "at", "what", "doubtful", "times")

    def _build_evaluated_until_column(self, rule: Rule) -> Column:
        """Returns a Spark column with the stream time in ms up to which a rule is evaluated for a row's key."""
        from pyspark.sql import functions as F

        if "topic" not in rule.by:
            return F.lit(find_stream_time_of_rule(rule, None, self.times)).cast("bigint")
        pairs = [part for topic, time in self.times.items() for part in (F.lit(topic), F.lit(time).cast("bigint"))]
        return F.element_at(F.create_map(*pairs), F.col("topic"))

    def _compute_condition_alerts(self, rule: Rule) -> DataFrame:
        """Returns the alerts of a rule with time windows: the minutes at which it becomes true or false, for each key.

        The rule is evaluated at each minute at which a point enters or leaves a window. The columns are the rule's key,
        `at`, `what` and `doubtful`.
        """
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F

        end = (F.col("ts") - F.pmod("ts", F.lit(MINUTE_MS))) / MINUTE_MS + 1
        read = [topic for topic in self.times if rule.reads_topic(topic)]
        numbers = self.numbers.where(F.col("topic").isin(read)).withColumn("end", end.cast("bigint"))
        minutes = numbers.groupBy(*rule.key_columns, "end").agg(
            *build_minute_aggregate_columns(rule.distinct_windows, self.topics)
        )
        edges = [F.col("end") + length for length in (0, *(window.minutes for window in rule.distinct_windows))]
        if rule.since_ms is not None:
            edges.append(F.lit(-(-rule.since_ms // MINUTE_MS)))
        moments = minutes.select(*rule.key_columns, F.explode(F.array(*edges)).alias("end")).distinct()
        moments = moments.where(F.col("end") <= F.floor(self._build_evaluated_until_column(rule) / MINUTE_MS))
        line = Over.partitionBy(*rule.key_columns).orderBy("end")
        moving = moments.join(minutes, [*rule.key_columns, "end"], "left").select(
            *rule.key_columns, "end", *build_sliding_window_columns(rule.distinct_windows, line)
        )
        met, near = build_condition_columns(rule.tree)
        since = F.lit(True) if rule.since_ms is None else F.col("end") * MINUTE_MS >= rule.since_ms
        states = moving.select(
            *rule.key_columns,
            "end",
            (build_has_points_column(rule.distinct_windows) & met & since).alias("holds"),
            near.alias("near"),
        )
        before = [F.lag(name, default=False).over(line).alias(f"{name}_before") for name in ("holds", "near")]
        changed = states.select("*", *before).where("holds != holds_before OR near OR near_before")
        what = F.when(F.col("holds"), RAISED).otherwise(CLEARED).alias("what")
        doubtful = F.expr("near OR near_before").alias("doubtful")
        return changed.select(*rule.key_columns, (F.col("end") * MINUTE_MS).alias("at"), what, doubtful)

    def _compute_pattern_alerts(self, rule: Rule) -> DataFrame:
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F

        pattern = rule.tree
        assert isinstance(pattern, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
        by = [VALUE if name == rule.declared_key_column else name for name in rule.key_columns]
        topics, declared = self.topics, self.declared
        first, second = (build_event_column(part, topics, declared) for part in (pattern.first, pattern.second))
        value = (
            F.lit(None)
            if rule.declared_key_column is None
            else F.col(quote(build_text_column_name(declared.texts.index(rule.declared_key_column))))
        )
        order = [*map(quote, (LIFE, TURN))]
        events = self.changes.select(*SERIES_KEY, PARTITION, "ts", *order, "ordinal", value.cast("string").alias(VALUE),
                                     first.alias("first"), second.alias("second"))  # fmt: skip
        events = events.where("first OR second").where(
            "true" if rule.declared_key_column is None else f"{VALUE} IS NOT NULL"
        )
        # Under `once`, offsets do not order events of different sessions: each session's events of one time stay
        # together.
        across = F.when(F.col(order[0]) == NO_LIFE, F.col(order[1]))
        line = Over.partitionBy(*by).orderBy(
            "ts", across, "topic", "session_id", PARTITION, *order, "ordinal", "row_id"
        )
        within = F.lit(LAST_MS - FIRST_MS if pattern.within_ms is None else pattern.within_ms)
        if pattern.kind is PatternKind.NOT_FOLLOWED:
            behind = line.rowsBetween(1, Over.unboundedFollowing)
            following = events.withColumn("next", F.min(F.when(F.col("second"), F.col("ts"))).over(behind))
            due = F.col("ts") + within
            alone = F.col("next").isNull() | (F.col("next") > due)
            found = following.where(F.col("first") & alone & (due < self._build_evaluated_until_column(rule))).select(
                *by, due.alias("at")
            )
        else:
            before = [F.lag(name).over(line).alias(f"{name}_before") for name in ("first", "ts")]
            near = F.col("first_before") & (F.col("ts") - F.col("ts_before") <= within)
            paired = F.coalesce(near, F.lit(False))
            wanted = paired if pattern.kind is PatternKind.THEN else ~paired
            found = events.select("*", *before).where(F.col("second") & wanted).select(*by, F.col("ts").alias("at"))
        return found.select("*", F.lit(RAISED).alias("what"), F.lit(False).alias("doubtful"))
