"""The log of alerts compared with what plain Spark SQL makes of all changes, which shares with rules only their trees.

A sum of doubles depends on the order of adding in its last digits: where two sides of a comparison are as near as that,
SQL does not decide, and what changes there is not compared.
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
from sessionlake.gold.aggregate.sources import MARKS, PARTITION, Declared, text_field
from sessionlake.gold.alerts.book import recorded_rules
from sessionlake.gold.changes import changes_of, declared_in, events_of, version_read
from sessionlake.gold.rules.alerts import CLEARED, KEY, RAISED, RETRACTED, StreamTimes, stream_time
from sessionlake.gold.rules.rule import SERIES_KEY, VALUE, Rule
from sessionlake.gold.rules.tree import MINUTE_MS, Pattern, PatternKind
from sessionlake.gold.tables.expiry import slices_begin
from sessionlake.gold.verify.rule_columns import condition, event, has_points, minute_columns, moving_columns
from sessionlake.protocol.names import quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.model import Settings
from sessionlake.spark.compare import Compared, compared
from sessionlake.spark.frames import gathered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Rules whose truth is worked out by one job.
_AT_ONCE = 16
_IDENTITY = ("rule", *KEY, "at", "what")


def verify_rules(spark: SparkSession, settings: Settings) -> Compared | None:
    """Compares the log with what the changes that gold has read come to; None if no rule is evaluated."""
    lake, declared = Lake(settings), declared_in(settings)
    reader = lake.reader(spark)
    taken = recorded_rules(reader, declared) if reader.exists(RULE_STATUS) else []
    rules = [one.rule for one in taken if one.rule is not None]
    if not rules:
        return None
    from pyspark.sql import functions as F

    raw = lake.read(spark, CHANGES, version_read(settings)).where("change != 'clear'")
    changes = gathered(changes_of(raw, settings, (F.col("change") == "delete").alias("deleted")))
    numbers = events_of(changes, declared, MARKS, numbers=True)
    texts = events_of(changes, declared, MARKS, numbers=False)
    told = F.col("ts").between(FIRST_MS, LAST_MS)
    both = numbers.select("topic", "ts").unionByName(texts.select("topic", "ts")).where(told)
    times = {row[0]: row[1] for row in both.groupBy("topic").agg(F.max("ts")).collect()}
    topics = [row[0] for row in changes.select("topic").distinct().collect()]
    truth = _Truth(numbers.where(told), changes.where(told), times, topics, declared)
    log, begins = _log(lake.read_small_in_memory(spark, RULE_EVENTS)), slices_begin(reader)
    parts = [rules[begin : begin + _AT_ONCE] for begin in range(0, len(rules), _AT_ONCE)]
    found = [_compared(log, truth, part, begins) for part in parts]
    first = next((one.first for one in found if one.first is not None), None)
    return Compared(RULE_EVENTS, sum(one.rows for one in found), sum(one.different for one in found), first)


def _compared(log: DataFrame, truth: _Truth, rules: Sequence[Rule], begins: StreamTimes) -> Compared:
    from pyspark.sql import functions as F

    is_decidable = reduce(and_, (_is_decidable(rule, begins) for rule in rules))
    rows = reduce(lambda one, other: one.unionByName(other), map(truth.alerts, rules)).where(is_decidable).persist()
    try:
        doubtful = rows.where("doubtful").select("rule", *KEY, "at").distinct()
        mine = log.where(F.col("rule").isin([rule.name for rule in rules])).where(is_decidable)
        held = mine.join(doubtful, ["rule", *KEY, "at"], "left_anti")
        borne = rows.where("NOT doubtful").select(*_IDENTITY, "times").distinct()
        return compared(RULE_EVENTS, _IDENTITY, ["times"], held, borne)
    finally:
        rows.unpersist()


def _is_decidable(rule: Rule, begins: StreamTimes) -> Column:
    """`rules.alerts.is_decidable` as SQL; true for other rules' alerts, and for a pattern's."""
    from pyspark.sql import functions as F

    if isinstance(rule.tree, Pattern) or not begins:
        return F.lit(col=True)
    told, at = F.col("rule") != rule.name, F.col("at") - rule.longest_minutes * MINUTE_MS
    if "topic" in rule.by:
        gone = (((F.col("topic") == topic) & (at <= begin)) for topic, begin in begins.items())
        return told | ~reduce(or_, gone)
    begin = stream_time(rule, None, begins)
    return told | (F.lit(col=True) if begin is None else at > begin)


def _log(events: DataFrame) -> DataFrame:
    """The alerts that the log holds, and how often."""
    from pyspark.sql import functions as F

    once = F.when(F.col("event") == RETRACTED, -1).otherwise(1)
    what = F.coalesce("retracts", "event").alias("what")
    at = F.unix_millis("window_end").alias("at")
    rows = events.select("rule", *_present(KEY), at, what, once.alias("once"))
    return rows.groupBy(*_IDENTITY).agg(F.sum("once").alias("times")).where("times != 0")


def _present(columns: Sequence[str]) -> list[Column]:
    """As texts that are never null: nulls would not meet in a join."""
    from pyspark.sql import functions as F

    return [F.coalesce(F.col(quote(name)).cast("string"), F.lit("")).alias(name) for name in columns]


@dataclass(frozen=True)
class _Truth:
    """What all changes come to.

    Attributes:
        numbers: what changes set, see `events_of`.
        times: stream time of each topic.
    """

    numbers: DataFrame
    changes: DataFrame
    times: Mapping[str, int]
    topics: Sequence[str]
    declared: Declared

    def alerts(self, rule: Rule) -> DataFrame:
        """Those of one rule: `rule`, `KEY`, `at`, `what`, `doubtful`, `times`."""
        from pyspark.sql import functions as F

        rows = self._pattern(rule) if isinstance(rule.tree, Pattern) else self._condition(rule)
        if rule.since_ms is not None:
            rows = rows.where(F.col("at") >= rule.since_ms)
        keys = [F.col(name) if name in rows.columns else F.lit(None).cast("string").alias(name) for name in KEY]
        rows = rows.select(F.lit(rule.name).alias("rule"), *keys, "at", "what", "doubtful", F.lit(1).alias("times"))
        return rows.select("rule", *_present(KEY), "at", "what", "doubtful", "times")

    def _until(self, rule: Rule) -> Column:
        """Stream time of a row's key, in ms."""
        from pyspark.sql import functions as F

        if "topic" not in rule.by:
            return F.lit(stream_time(rule, None, self.times)).cast("bigint")
        pairs = [part for topic, time in self.times.items() for part in (F.lit(topic), F.lit(time).cast("bigint"))]
        return F.element_at(F.create_map(*pairs), F.col("topic"))

    def _condition(self, rule: Rule) -> DataFrame:
        """Where it begins and ceases to hold: looked at wherever something comes into a window or leaves one."""
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F

        end = (F.col("ts") - F.pmod("ts", F.lit(MINUTE_MS))) / MINUTE_MS + 1
        read = [topic for topic in self.times if rule.reads_topic(topic)]
        numbers = self.numbers.where(F.col("topic").isin(read)).withColumn("end", end.cast("bigint"))
        minutes = numbers.groupBy(*rule.key_columns, "end").agg(*minute_columns(rule.windows, self.topics))
        edges = [F.col("end") + length for length in (0, *(window.minutes for window in rule.windows))]
        if rule.since_ms is not None:
            edges.append(F.lit(-(-rule.since_ms // MINUTE_MS)))
        moments = minutes.select(*rule.key_columns, F.explode(F.array(*edges)).alias("end")).distinct()
        moments = moments.where(F.col("end") <= F.floor(self._until(rule) / MINUTE_MS))
        line = Over.partitionBy(*rule.key_columns).orderBy("end")
        moving = moments.join(minutes, [*rule.key_columns, "end"], "left").select(
            *rule.key_columns, "end", *moving_columns(rule.windows, line)
        )
        met, near = condition(rule.tree)
        since = F.lit(True) if rule.since_ms is None else F.col("end") * MINUTE_MS >= rule.since_ms
        states = moving.select(
            *rule.key_columns, "end", (has_points(rule.windows) & met & since).alias("holds"), near.alias("near")
        )
        before = [F.lag(name, default=False).over(line).alias(f"{name}_before") for name in ("holds", "near")]
        changed = states.select("*", *before).where("holds != holds_before OR near OR near_before")
        what = F.when(F.col("holds"), RAISED).otherwise(CLEARED).alias("what")
        doubtful = F.expr("near OR near_before").alias("doubtful")
        return changed.select(*rule.key_columns, (F.col("end") * MINUTE_MS).alias("at"), what, doubtful)

    def _pattern(self, rule: Rule) -> DataFrame:
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F

        pattern = rule.tree
        assert isinstance(pattern, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
        by = [VALUE if name == rule.key_column else name for name in rule.key_columns]
        topics, declared = self.topics, self.declared
        first, second = (event(part, topics, declared) for part in (pattern.first, pattern.second))
        value = (
            F.lit(None) if rule.key_column is None else F.col(quote(text_field(declared.texts.index(rule.key_column))))
        )
        order = [*map(quote, (LIFE, TURN))]
        events = self.changes.select(*SERIES_KEY, PARTITION, "ts", *order, "ordinal", value.cast("string").alias(VALUE),
                                     first.alias("first"), second.alias("second"))  # fmt: skip
        events = events.where("first OR second").where("true" if rule.key_column is None else f"{VALUE} IS NOT NULL")
        # Of several sessions under `once`, each session's events of one time are together.
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
            found = following.where(F.col("first") & alone & (due < self._until(rule))).select(*by, due.alias("at"))
        else:
            before = [F.lag(name).over(line).alias(f"{name}_before") for name in ("first", "ts")]
            near = F.col("first_before") & (F.col("ts") - F.col("ts_before") <= within)
            paired = F.coalesce(near, F.lit(False))
            wanted = paired if pattern.kind is PatternKind.THEN else ~paired
            found = events.select("*", *before).where(F.col("second") & wanted).select(*by, F.col("ts").alias("at"))
        return found.select("*", F.lit(RAISED).alias("what"), F.lit(False).alias("doubtful"))
