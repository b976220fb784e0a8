"""The step of gold's batch that evaluates rules. It runs after the batch is committed to the tables of aggregates.

Changed rules do not wait for the next batch, which may never come: `RuleEvaluationStep.apply_changed_rules` applies
them between two batches, to all that gold has read.

The step computes the alerts that follow from the tables, and writes only the difference to the log of alerts. A
replayed batch therefore finds nothing left to log. Stream times are written last. They record up to which time all keys
are evaluated.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append_rows, create_txn_outside_queries, merge_rows, replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULE_EVENTS, RULE_MATCHES, RULE_RESULTS, RULE_TIMES
from sessionlake.delta.storage.far_times import find_nearest_datetime
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.aggregate.order import OnceTopics
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import PARTITION, POINT_KEY
from sessionlake.gold.aggregate.standard import DISTINCT_VALUES, METRICS_1M
from sessionlake.gold.alerts.lake_rule_inputs import (
    LakeRuleInputs,
    find_pattern_matches,
    read_stream_times,
    update_stream_times,
    update_stream_times_from_distinct_values,
)
from sessionlake.gold.alerts.rule_loading import TIMES, RuleLoader, select_new_or_changed_rules
from sessionlake.gold.batch.rows import BatchProductRows
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.fold.pack import ReadChangesSummary
from sessionlake.gold.rules.alerts import KEY, RETRACTED, StreamTimes
from sessionlake.gold.rules.batch import compute_alert_log_rows
from sessionlake.gold.rules.condition_tree import MINUTE_MS
from sessionlake.gold.rules.log_rows import AlertLogRow, RuleBatchData
from sessionlake.gold.rules.patterns import MATCH, Event, list_events_to_find
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.tables.expiry import BucketExpiry
from sessionlake.ledger.entries import TableOutput
from sessionlake.ledger.progress import read_change_progress
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MATCH_UPSERT = Upsert((*MATCH.names[:-1],), ("value",), pruned_by=("event", "ts"))
_BETWEEN = "rules"
"""Application id of writes between batches."""
_TIME = pa.timestamp("us", "UTC")
_LOG_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("rule", "rule_version")]
    + [(name, pa.int32() if name == PARTITION else pa.string()) for name in KEY]
    + [
        ("event", pa.string()),
        ("retracts", pa.string()),
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("values", pa.map_(pa.string(), pa.float64())),
    ]
    + [("late", pa.bool_()), ("late_ts", _TIME), ("cause", pa.string()), ("_batch", pa.int64())]
)


class RuleEvaluationStep:
    """Evaluates alert rules in each gold batch, and changed rules between batches.

    Attributes:
        lock: Held by the caller during a batch, from its first write on, and while changed rules are applied.
    """

    def __init__(self, lake: Lake, settings: Settings, expiry: BucketExpiry) -> None:
        self._lake, self._declared, self._expiry = lake, get_value_columns(settings), expiry
        self.lock = threading.Lock()
        self._once = OnceTopics(settings.capture)
        self._loader = RuleLoader(lake, self._declared, settings.gold.retention.shortest_retention)

    def __call__(self, spark: SparkSession, rows: BatchProductRows, txn: Txn) -> list[TableOutput]:
        """Writes the alerts that the batch raises, clears and retracts to the log.

        The tables of aggregates must already include the batch.

        Returns:
            Version and number of added rows of the log, for each commit to it.
        """
        loaded = self._loader.load_rules(spark, txn)
        if not loaded:
            return []
        rules = [one.rule for one in loaded if one.rule is not None]
        before = {row["topic"]: row["ts"] for row in self._lake.reader(spark).read_rows(RULE_TIMES)}
        # Without stored stream times no rule was evaluated yet: the batch that recorded the rules died too early.
        fresh = {one.name for one in loaded if one.batch == txn.version or not before}
        known, new = ([rule for rule in rules if (rule.name in fresh) == is_new] for is_new in (False, True))
        matches = self._find_and_store_pattern_matches(spark, known, new, rows.fold_result.report.read, txn)
        batch = self._collect_rule_batch_data(spark, rows, matches, before, has_evaluated_rules=bool(known))
        logged = compute_alert_log_rows(known, new, batch, LakeRuleInputs(self._lake.reader(spark)))
        found = [
            *self._append_alert_log_rows(
                spark, [row for row in logged if row.rule.name not in fresh], txn, txn.version
            ),
            *self._append_alert_log_rows(
                spark, [row for row in logged if row.rule.name in fresh], txn.txn_of_second_write, txn.version
            ),
        ]
        self._store_stream_times(spark, batch.times_after, txn)
        return found

    def _store_stream_times(self, spark: SparkSession, times: StreamTimes, txn: Txn | None) -> None:
        rows = pa.Table.from_pylist([{"topic": topic, "ts": ts} for topic, ts in sorted(times.items())], TIMES)
        replace_rows(spark, self._lake, RULE_TIMES, rows, txn)

    def apply_changed_rules(self, spark: SparkSession, batch: int) -> bool:
        """Evaluates new and changed rules of `gold.rules` over everything that gold has read, and logs their alerts.

        The tables must be as the last batch left them. The rules are recorded last. So if the process dies before, the
        next call or batch evaluates them again, and logs only the alerts that the log lacks.

        Args:
            batch: number of the last gold batch.

        Returns:
            True if rules were added, changed or removed since the last call or batch.
        """
        changed = self._loader.find_changed_rules(spark, batch)
        if changed is None:
            return False
        before, now = changed
        self._lake.create_or_update_tables(spark, RULE_RESULTS)
        reader = self._lake.reader(spark)
        stored = {row["topic"]: row["ts"] for row in reader.read_rows(RULE_TIMES)}
        fresh = (
            select_new_or_changed_rules(before, now) if stored else now
        )  # without stored times no rule was evaluated yet
        times = stored or read_stream_times(reader, self._declared)
        known, new = ([one.rule for one in some if one.rule is not None] for some in (before, fresh))
        wider = _find_events_to_search_in_history(known if stored else [], new)
        matches = self._find_and_store_matches_of_new_rules(spark, reader, wider)
        data = RuleBatchData(times, times, pa.table({}), matches, self._expiry.first_bucket_times)
        rows = compute_alert_log_rows([], new, data, LakeRuleInputs(self._lake.reader(spark)))
        self._append_alert_log_rows(
            spark, rows, create_txn_outside_queries(spark, self._lake, RULE_EVENTS, _BETWEEN), batch
        )
        self._loader.record_applied_rules(spark, now)
        if now and not stored:
            self._store_stream_times(spark, times, None)
        return True

    def _find_and_store_matches_of_new_rules(
        self, spark: SparkSession, reader: TableReader, first_event_times: Mapping[Event, int]
    ) -> pa.Table:
        """Searches all changes that gold has read for events, and stores the matches in `gold.rule_matches`.

        Args:
            first_event_times: the events to search for, each with the earliest event time in ms that is needed.

        Returns:
            The matches, with the columns of `patterns.MATCH`.
        """
        progress = read_change_progress(reader) if first_event_times else None
        if progress is None:
            return MATCH.empty_table()
        conditions = ("_ts", operator.ge, min(first_event_times.values())), ("_batch", operator.le, progress.batch)
        rows = find_pattern_matches(reader, list(first_event_times), self._declared, self._once, *conditions)
        if rows.num_rows:
            txn = create_txn_outside_queries(spark, self._lake, RULE_MATCHES, _BETWEEN)
            merge_rows(spark, self._lake, RULE_MATCHES, rows, _MATCH_UPSERT, txn)
        return rows

    def _collect_rule_batch_data(
        self,
        spark: SparkSession,
        rows: BatchProductRows,
        matches: pa.Table,
        times_before: StreamTimes,
        *,
        has_evaluated_rules: bool,
    ) -> RuleBatchData:
        """Returns the data of the batch that can change alerts.

        Args:
            rows: the rows that the batch adds to products.
            matches: the batch's changes that are events of patterns.
            times_before: by topic, the stream time in ms up to which earlier batches have evaluated all rules.
            has_evaluated_rules: True if earlier batches have evaluated some of the rules.
        """
        reader = self._lake.reader(spark)
        points = _read_batch_rows_of_product(rows, METRICS_1M, (*POINT_KEY, PARTITION, START, "_first_ts", "_last_ts"))
        after = (
            self._compute_stream_times(reader, times_before, rows, points)
            if times_before
            else read_stream_times(reader, self._declared)
        )
        ends = pa.array(points[START].cast(pa.int64()).to_numpy() // (MINUTE_MS * 1000) + 1)
        touched = (
            points.select([*POINT_KEY, PARTITION]).append_column("end", ends).append_column("ts", points["_first_ts"])
        )
        return RuleBatchData(
            times_before if has_evaluated_rules else times_before or after,
            after,
            touched,
            matches,
            self._expiry.first_bucket_times,
        )

    def _compute_stream_times(
        self, reader: TableReader, times_before: StreamTimes, rows: BatchProductRows, points: pa.Table
    ) -> StreamTimes:
        after = dict(times_before)
        update_stream_times(after, points, "_last_ts")
        texts = _read_batch_rows_of_product(rows, DISTINCT_VALUES, ("topic", "first_ts", "last_ts"))
        if texts.num_rows:
            update_stream_times_from_distinct_values(
                after, [texts], reader, self._declared, *_build_silver_batch_conditions(rows.fold_result.report.read)
            )
        return after

    def _find_and_store_pattern_matches(
        self,
        spark: SparkSession,
        known_rules: Iterable[Rule],
        new_rules: Iterable[Rule],
        read_changes: ReadChangesSummary,
        txn: Txn,
    ) -> pa.Table:
        """Finds changes that are events of patterns, and stores them in `gold.rule_matches`. Returns the matches.

        For events of known rules only the batch's changes are searched. For events that new rules need from an earlier
        time on, all older changes are searched, too. If gold's batch read only a part of a silver batch, all changes of
        that silver batch are searched. Each match is stored once.

        Args:
            known_rules: rules that earlier batches have evaluated.
            new_rules: rules that no batch has evaluated yet.
            read_changes: the silver batches that gold's batch has read.
        """
        if read_changes.last_batch is None or read_changes.first_batch is None:
            return MATCH.empty_table()
        reader, (begin, until) = self._lake.reader(spark), _build_silver_batch_conditions(read_changes)
        had, wider = list_events_to_find(known_rules), _find_events_to_search_in_history(known_rules, new_rules)
        back_to = ("_ts", operator.ge, min(wider.values(), default=0))
        found = []
        for events, conditions, append_txn in (
            (had, (begin, until), txn),
            (wider, (back_to, until), txn.txn_of_second_write),
        ):
            if events:
                rows = find_pattern_matches(reader, list(events), self._declared, self._once, *conditions)
                if rows.num_rows:
                    merge_rows(spark, self._lake, RULE_MATCHES, rows, _MATCH_UPSERT, append_txn)
                found.append(rows)
        return pa.concat_tables([MATCH.empty_table(), *found])

    def _append_alert_log_rows(
        self, spark: SparkSession, rows: Sequence[AlertLogRow], append_txn: Txn, batch: int
    ) -> list[TableOutput]:
        if not rows:
            return []
        commit = append_rows(spark, self._lake, RULE_EVENTS, _create_alert_log_table(rows, batch), append_txn)
        return [TableOutput(RULE_EVENTS, commit.version, len(rows))]


def _find_events_to_search_in_history(known_rules: Iterable[Rule], new_rules: Iterable[Rule]) -> dict[Event, int]:
    """Returns the events that new rules need, and known rules do not need, or only from a later event time on.

    The value of each event is the event time in ms from which new rules need it.
    """
    had = list_events_to_find(known_rules)
    return {
        event: since
        for event, since in list_events_to_find(new_rules).items()
        if event not in had or since < had[event]
    }


def _build_silver_batch_conditions(read_changes: ReadChangesSummary) -> tuple[Condition, Condition]:
    """Returns two conditions that select all changes of the silver batches in `read_changes`."""
    return ("_batch", operator.ge, read_changes.first_batch), ("_batch", operator.le, read_changes.last_batch)


def _read_batch_rows_of_product(rows: BatchProductRows, product: Product, columns: Sequence[str]) -> pa.Table:
    """Returns some columns of the rows that a batch adds to a product, before merging. A key can have several rows."""
    found = rows.find_product_rows(product)
    if isinstance(found, pa.Table):
        return found.cast(product.arrow_schema()).select(list(columns))
    return convert_to_spark_frame(rows.spark, found).select(*columns).toArrow()


def _create_alert_log_table(rows: Sequence[AlertLogRow], batch: int) -> pa.Table:
    """Returns log rows as a table with the columns of `gold.rule_events`.

    Args:
        batch: number of the gold batch.
    """
    return pa.Table.from_pylist([_create_alert_log_row(row, batch) for row in rows], _LOG_SCHEMA)


def _create_alert_log_row(row: AlertLogRow, batch: int) -> dict[str, object]:
    alert, evidence = row.change.alert, row.change.evidence
    start = None if evidence is None or evidence.start_ms is None else find_nearest_datetime(evidence.start_ms)
    return {
        "rule": alert.rule,
        "rule_version": row.rule.version,
        **dict(zip(KEY, alert.key, strict=True)),
        "event": RETRACTED if row.change.retracted else alert.event,
        "retracts": alert.event if row.change.retracted else None,
        "window_start": start,
        "window_end": find_nearest_datetime(alert.at_ms),
        "values": None if evidence is None else list(evidence.values.items()),
        "late": row.late,
        "late_ts": None if row.late_ts is None else find_nearest_datetime(row.late_ts),
        "cause": str(row.cause),
        "_batch": batch,
    }
