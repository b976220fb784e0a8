"""Finds what a batch changes in the log of alerts. Only keys and times that the batch can affect are evaluated.

Alerts are a function of all events up to stream time. Stream time is the largest event time read from a topic; for keys
that span topics, the largest of all topics that the rule reads. A batch can therefore change alerts in two ranges only:
between the old and the new stream time, for every key; and after a late event, up to the rule's longest window, for the
keys of that event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.rules import conditions
from sessionlake.gold.rules.alerts import (
    Alert,
    AlertEvidence,
    Key,
    are_buckets_of_alert_stored,
    compute_alert_log_changes,
    find_logged_alerts,
    find_stream_time_of_rule,
    read_rule_key_of_row,
)
from sessionlake.gold.rules.buckets import list_columns_of_functions
from sessionlake.gold.rules.condition_tree import MINUTE_MS, Pattern
from sessionlake.gold.rules.log_rows import (
    NEVER,
    AlertLogRow,
    RuleBatchData,
    create_alert_log_row,
    find_first_event_time,
)
from sessionlake.gold.rules.pattern_log_rows import list_pattern_log_rows
from sessionlake.gold.rules.rule import VALUE, Rule
from sessionlake.gold.rules.rule_inputs import BucketQuery, RuleInputs

_DAY = 24 * 60
# About how many buckets may be in memory at once. One takes 100 bytes.
_MAX_SLICES = 10_000_000
# A step covers at least this many minutes, even if its buckets exceed the limit.
_MIN_STEP = 60


@dataclass(frozen=True)
class _EvaluationTimeSpan:
    """Stream time before and after a batch, in minutes since 1970, for rules and the topics of their keys.

    `topics` is None if the rules' keys have no topic, `minute_before` if nothing was read before.
    """

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    minute_before: int | None
    minute_after: int


@dataclass(frozen=True)
class _RuleEvaluationTask:
    """Rules to evaluate at minutes `first` to `last` since 1970, for `keys` in `topics`; None means all."""

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    keys: pa.Table | None
    first: int
    last: int


def compute_alert_log_rows(
    known_rules: Sequence[Rule], new_rules: Sequence[Rule], batch: RuleBatchData, inputs: RuleInputs
) -> list[AlertLogRow]:
    """Returns the rows that a batch adds to the log of alerts. Gold's tables must already include the batch.

    Args:
        known_rules: rules that earlier batches have evaluated.
        new_rules: rules that no batch has evaluated yet. They are evaluated over all stored history.
        batch: the data of the batch that can change alerts.
        inputs: reads gold's tables.
    """
    found: list[AlertLogRow] = []
    for rules, is_new in ((known_rules, False), (new_rules, True)):
        flat = [rule for rule in rules if not isinstance(rule.tree, Pattern)]
        if is_new:
            found += _compute_alert_log_rows_of_new_rules(flat, batch, inputs)
        else:
            for span in _find_evaluation_time_spans(flat, batch):
                found += _compute_alert_log_rows_of_known_rules(span, batch, inputs)
        of_patterns = [rule for rule in rules if isinstance(rule.tree, Pattern)]
        found += list_pattern_log_rows(of_patterns, batch, inputs, is_new=is_new)
    return found


def _find_evaluation_time_spans(rules: Sequence[Rule], batch: RuleBatchData) -> Iterator[_EvaluationTimeSpan]:
    single, across = ([rule for rule in rules if ("topic" in rule.by) == is_single] for is_single in (True, False))
    topics: dict[tuple[int | None, int], set[str]] = {}
    for topic, after in batch.times_after.items():
        if any(rule.reads_topic(topic) for rule in single):
            topics.setdefault((_convert_ms_to_minute(batch.times_before.get(topic)), after // MINUTE_MS), set()).add(
                topic
            )
    for (before, after), names in topics.items():
        yield _EvaluationTimeSpan(tuple(single), frozenset(names), before, after)
    groups: dict[tuple[int | None, int], list[Rule]] = {}
    for rule in across:
        after_ms = find_stream_time_of_rule(rule, None, batch.times_after)
        if after_ms is not None:
            times = (
                _convert_ms_to_minute(find_stream_time_of_rule(rule, None, batch.times_before)),
                after_ms // MINUTE_MS,
            )
            groups.setdefault(times, []).append(rule)
    for (before, after), some in groups.items():
        yield _EvaluationTimeSpan(tuple(some), None, before, after)


def _convert_ms_to_minute(ms: int | None) -> int | None:
    return None if ms is None else ms // MINUTE_MS


def _compute_alert_log_rows_of_known_rules(
    time_span: _EvaluationTimeSpan, batch: RuleBatchData, stored: RuleInputs
) -> Iterator[AlertLogRow]:
    for task in _create_rule_tasks(time_span, batch.touched_buckets):
        names = {rule.name: rule for rule in task.rules}
        by = task.rules[0].key_columns
        keys: set[Key] | None = None
        if task.keys is not None:
            keys = {read_rule_key_of_row(by, row | {VALUE: None}) for row in task.keys.to_pylist()}

        def belongs_to_task(
            alert: Alert, task: _RuleEvaluationTask = task, keys: Any = keys, names: Any = names
        ) -> bool:
            inside = task.topics is None or alert.key[0] in task.topics
            asked = alert.rule in names and inside and (keys is None or alert.key in keys)
            return asked and are_buckets_of_alert_stored(names[alert.rule], alert, batch.bucket_starts)

        truth = {alert: evidence for alert, evidence in _evaluate_rules_of_task(task, stored) if belongs_to_task(alert)}
        rows = stored.read_alert_log(sorted(names), max(task.first * MINUTE_MS, -NEVER), task.last * MINUTE_MS)
        logged = find_logged_alerts(rows, belongs_to_task)
        for one in compute_alert_log_changes(truth, logged):
            rule = names[one.alert.rule]
            late_ts = partial(_find_time_of_late_bucket, one.alert, rule, batch.touched_buckets)
            yield create_alert_log_row(one, rule, batch, late_ts)


def _compute_alert_log_rows_of_new_rules(
    rules: Sequence[Rule], batch: RuleBatchData, stored: RuleInputs
) -> Iterator[AlertLogRow]:
    """Yields log rows for new rules.

    All alerts in the log under the names of these rules are compared, since older versions may have had other keys.
    """
    truth: dict[Alert, AlertEvidence] = {}
    for span in _find_evaluation_time_spans(rules, batch):
        for task in _create_rule_tasks(replace(span, minute_before=None), batch.touched_buckets):
            found = _evaluate_rules_of_task(task, stored)
            truth.update((alert, at) for alert, at in found if task.topics is None or alert.key[0] in task.topics)
    names = {rule.name: rule for rule in rules}

    def belongs_to_new_rule(alert: Alert) -> bool:
        return alert.rule in names and are_buckets_of_alert_stored(names[alert.rule], alert, batch.bucket_starts)

    truth = {alert: evidence for alert, evidence in truth.items() if belongs_to_new_rule(alert)}
    logged = (
        find_logged_alerts(stored.read_alert_log(sorted(names), -NEVER, NEVER), belongs_to_new_rule) if names else ()
    )
    for one in compute_alert_log_changes(truth, logged):
        yield create_alert_log_row(one, names[one.alert.rule], batch, None)


def _create_rule_tasks(time_span: _EvaluationTimeSpan, touched_buckets: pa.Table) -> Iterator[_RuleEvaluationTask]:
    if time_span.minute_before is None:
        since = min(-NEVER if rule.since_ms is None else rule.since_ms // MINUTE_MS for rule in time_span.rules)
        yield _RuleEvaluationTask(time_span.rules, time_span.topics, None, since, time_span.minute_after)
        return
    if time_span.minute_before < time_span.minute_after:
        yield _RuleEvaluationTask(
            time_span.rules, time_span.topics, None, time_span.minute_before + 1, time_span.minute_after
        )
    late = touched_buckets.filter(pa.array(touched_buckets["end"].to_numpy() <= time_span.minute_before))
    if time_span.topics is not None:
        late = late.filter(pc.is_in(late["topic"], pa.array(sorted(time_span.topics), pa.string())))
    if not late.num_rows:
        return
    for by in dict.fromkeys(rule.key_columns for rule in time_span.rules):
        rules = tuple(rule for rule in time_span.rules if rule.key_columns == by)
        longest = max(rule.longest_window_minutes for rule in rules)
        keys = late.group_by(list(by)).aggregate([("end", "min"), ("end", "max")])
        # Grouped by age in powers of two: a key that is a minute late is not evaluated over a year.
        ages = np.log2(time_span.minute_before - keys["end_min"].to_numpy() + 1).astype(np.int64)
        for age in np.unique(ages).tolist():
            some = keys.filter(pa.array(ages == age))
            first, last = pc.min(some["end_min"]).as_py(), pc.max(some["end_max"]).as_py() + longest
            yield _RuleEvaluationTask(
                rules, time_span.topics, some.select(list(by)), first, min(last, time_span.minute_before)
            )


def _evaluate_rules_of_task(task: _RuleEvaluationTask, stored: RuleInputs) -> Iterator[tuple[Alert, AlertEvidence]]:
    lengths = [window.minutes for rule in task.rules for window in rule.distinct_windows]
    columns = list_columns_of_functions({window.function for rule in task.rules for window in rule.distinct_windows})
    for first, last in _split_minutes_to_fit_memory(task, lengths, stored):
        ends = conditions.list_bucket_ranges_of_windows(lengths, first, last)
        buckets = stored.read_buckets(BucketQuery(ends, task.topics, task.keys, columns))
        yield from conditions.evaluate_conditions(task.rules, buckets, first, last).items()


def _split_minutes_to_fit_memory(
    task: _RuleEvaluationTask, window_minutes: Sequence[int], stored: RuleInputs
) -> Iterator[tuple[int, int]]:
    """Splits a task's minutes into ranges `(first, last)` whose buckets fit into memory. Skips minutes without data."""
    if task.last - task.first < _MIN_STEP:
        yield task.first, task.last
        return
    longest = max(rule.longest_window_minutes for rule in task.rules)
    days = stored.count_series_per_day(task.topics, task.keys)
    busy: list[list[int]] = []
    for day in sorted(days):
        first, last = max(day + 1, task.first), min(day + _DAY + longest, task.last)
        if busy and first <= busy[-1][1] + 1:
            busy[-1][1] = max(busy[-1][1], last)
        elif first <= last:
            busy.append([first, last])
    most = _MAX_SLICES // max(days.values(), default=1)
    for first, last in busy:
        step = last - first + 1
        while step > _MIN_STEP and _count_buckets_per_series(window_minutes, first, first + step - 1) > most:
            step = max(_MIN_STEP, step // 2)
        yield from ((begin, min(begin + step - 1, last)) for begin in range(first, last + 1, step))


def _count_buckets_per_series(window_minutes: Sequence[int], first: int, last: int) -> int:
    """Returns how many buckets one series needs at most, for windows that end at minutes `first` to `last`."""
    ends = conditions.list_bucket_ranges_of_windows(window_minutes, first, last)
    return sum((high - low) // length for length, ranges in ends.items() for low, high in ranges)


def _find_time_of_late_bucket(alert: Alert, rule: Rule, touched_buckets: pa.Table) -> int | None:
    at, end = alert.at_ms // MINUTE_MS, touched_buckets["end"].to_numpy()
    near = touched_buckets.filter(pa.array((end <= at) & (end >= at - rule.longest_window_minutes)))
    return find_first_event_time(near, alert)
