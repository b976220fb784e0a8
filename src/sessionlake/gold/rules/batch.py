"""Finds what a batch changes in the log of alerts. Only keys and times that the batch can affect are evaluated.

Alerts are a function of all events up to stream time. Stream time is the largest event time read from a topic; for keys
that span topics, the largest of all topics that the rule reads. A batch can therefore change alerts in two ranges only:
between the old and the new stream time, for every key; and after a late event, up to the rule's longest window, for the
keys of that event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.rules import conditions, patterns
from sessionlake.gold.rules.alerts import (
    KEY,
    Alert,
    AlertEvidence,
    Key,
    LogChange,
    LogRowCause,
    StreamTimes,
    compute_log_changes,
    find_logged_alerts,
    find_stream_time,
    is_decidable,
    read_key_of_row,
)
from sessionlake.gold.rules.buckets import list_columns_of_functions
from sessionlake.gold.rules.rule import VALUE, Rule
from sessionlake.gold.rules.stored_data import BucketQuery, RuleInputs
from sessionlake.gold.rules.tree import MINUTE_MS, Pattern, PatternKind

_DAY = 24 * 60
# About how many buckets may be in memory at once. One takes 100 bytes.
_MAX_SLICES = 10_000_000
# A step covers at least this many minutes, even if its buckets exceed the limit.
_MIN_STEP = 60
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class RuleBatch:
    """The data of one gold batch that can change alerts.

    Attributes:
        times_before: stream time of each topic before the batch, in ms.
        times_after: stream time of each topic after the batch, in ms.
        touched_buckets: the one-minute buckets with new points: topic, session_id, partition, row_id, metric, `end` in
            minutes since 1970, and `ts`, the earliest event time in ms that the batch added to the bucket.
        matches: the batch's changes that are events of patterns, with the columns of `patterns.MATCH`.
        bucket_starts: for topics with expired buckets, the event time in ms from which buckets exist. Alerts that
            depend on expired buckets are not changed in the log.
    """

    times_before: StreamTimes
    times_after: StreamTimes
    touched_buckets: pa.Table
    matches: pa.Table
    bucket_starts: StreamTimes = field(default_factory=dict)


class LogRow(NamedTuple):
    """A row to write to the log of alerts, and its cause.

    Attributes:
        change: the alert that the row adds or retracts.
        late: True if stream time had already passed the alert's time before this batch.
        late_ts: earliest event time in ms of the late events that caused the row; None if no late event did.
    """

    change: LogChange
    rule: Rule
    late: bool
    cause: LogRowCause
    late_ts: int | None


@dataclass(frozen=True)
class _TimeSpan:
    """Stream time before and after a batch, in minutes since 1970, for rules and the topics of their keys.

    `topics` is None if the rules' keys have no topic, `minute_before` if nothing was read before.
    """

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    minute_before: int | None
    minute_after: int


@dataclass(frozen=True)
class _RuleTask:
    """Rules to evaluate at minutes `first` to `last` since 1970, for `keys` in `topics`; None means all."""

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    keys: pa.Table | None
    first: int
    last: int


def compute_log_rows(
    known_rules: Sequence[Rule], new_rules: Sequence[Rule], batch: RuleBatch, stored: RuleInputs
) -> list[LogRow]:
    """Returns the rows that a batch adds to the log of alerts. Gold's tables must already include the batch.

    Args:
        known_rules: rules that earlier batches have evaluated.
        new_rules: rules that no batch has evaluated yet. They are evaluated over all stored history.
        batch: the data of the batch that can change alerts.
        stored: reads gold's tables.
    """
    found: list[LogRow] = []
    for rules, is_new in ((known_rules, False), (new_rules, True)):
        flat = [rule for rule in rules if not isinstance(rule.tree, Pattern)]
        if is_new:
            found += _compute_log_rows_of_new_rules(flat, batch, stored)
        else:
            for span in _find_time_spans(flat, batch):
                found += _compute_log_rows_of_known_rules(span, batch, stored)
        of_patterns = [rule for rule in rules if isinstance(rule.tree, Pattern)]
        found += _list_pattern_rows(of_patterns, batch, stored, is_new=is_new)
    return found


def _find_time_spans(rules: Sequence[Rule], batch: RuleBatch) -> Iterator[_TimeSpan]:
    single, across = ([rule for rule in rules if ("topic" in rule.by) == is_single] for is_single in (True, False))
    topics: dict[tuple[int | None, int], set[str]] = {}
    for topic, after in batch.times_after.items():
        if any(rule.reads_topic(topic) for rule in single):
            topics.setdefault((_to_minute(batch.times_before.get(topic)), after // MINUTE_MS), set()).add(topic)
    for (before, after), names in topics.items():
        yield _TimeSpan(tuple(single), frozenset(names), before, after)
    groups: dict[tuple[int | None, int], list[Rule]] = {}
    for rule in across:
        after_ms = find_stream_time(rule, None, batch.times_after)
        if after_ms is not None:
            times = _to_minute(find_stream_time(rule, None, batch.times_before)), after_ms // MINUTE_MS
            groups.setdefault(times, []).append(rule)
    for (before, after), some in groups.items():
        yield _TimeSpan(tuple(some), None, before, after)


def _to_minute(ms: int | None) -> int | None:
    return None if ms is None else ms // MINUTE_MS


def _compute_log_rows_of_known_rules(span: _TimeSpan, batch: RuleBatch, stored: RuleInputs) -> Iterator[LogRow]:
    for task in _create_rule_tasks(span, batch.touched_buckets):
        names = {rule.name: rule for rule in task.rules}
        by = task.rules[0].key_columns
        keys: set[Key] | None = None
        if task.keys is not None:
            keys = {read_key_of_row(by, row | {VALUE: None}) for row in task.keys.to_pylist()}

        def belongs_to_task(alert: Alert, task: _RuleTask = task, keys: Any = keys, names: Any = names) -> bool:
            inside = task.topics is None or alert.key[0] in task.topics
            asked = alert.rule in names and inside and (keys is None or alert.key in keys)
            return asked and is_decidable(names[alert.rule], alert, batch.bucket_starts)

        truth = {alert: evidence for alert, evidence in _evaluate_rule_task(task, stored) if belongs_to_task(alert)}
        rows = stored.read_log(sorted(names), max(task.first * MINUTE_MS, -_NEVER), task.last * MINUTE_MS)
        logged = find_logged_alerts(rows, belongs_to_task)
        for one in compute_log_changes(truth, logged):
            rule = names[one.alert.rule]
            late_ts = partial(_find_time_of_late_bucket, one.alert, rule, batch.touched_buckets)
            yield _create_log_row(one, rule, batch, late_ts)


def _compute_log_rows_of_new_rules(rules: Sequence[Rule], batch: RuleBatch, stored: RuleInputs) -> Iterator[LogRow]:
    """Yields log rows for new rules.

    All alerts in the log under the names of these rules are compared, since older versions may have had other keys.
    """
    truth: dict[Alert, AlertEvidence] = {}
    for span in _find_time_spans(rules, batch):
        for task in _create_rule_tasks(replace(span, minute_before=None), batch.touched_buckets):
            found = _evaluate_rule_task(task, stored)
            truth.update((alert, at) for alert, at in found if task.topics is None or alert.key[0] in task.topics)
    names = {rule.name: rule for rule in rules}

    def belongs_to_new_rule(alert: Alert) -> bool:
        return alert.rule in names and is_decidable(names[alert.rule], alert, batch.bucket_starts)

    truth = {alert: evidence for alert, evidence in truth.items() if belongs_to_new_rule(alert)}
    logged = find_logged_alerts(stored.read_log(sorted(names), -_NEVER, _NEVER), belongs_to_new_rule) if names else ()
    for one in compute_log_changes(truth, logged):
        yield _create_log_row(one, names[one.alert.rule], batch, None)


def _create_log_row(
    change: LogChange, rule: Rule, batch: RuleBatch, late_ts: Callable[[], int | None] | None
) -> LogRow:
    """Returns the log row for an alert to add or retract, with its cause.

    Args:
        late_ts: returns the event time (ms) of the late event that changed the alert, or None if there is none.
            None instead of the function if the rule is new, so that no late event can be the cause.
    """
    passed = find_stream_time(rule, change.alert.key[0], batch.times_before)
    # A retracted alert of an older version is late, whatever topics the new version reads.
    late = (late_ts is None and change.retracted) or (passed is not None and change.alert.at_ms <= passed)
    if not late:
        return LogRow(change, rule, late, LogRowCause.ON_TIME, None)
    if late_ts is None:
        return LogRow(change, rule, late, LogRowCause.RULE_CHANGE, None)
    return LogRow(change, rule, late, LogRowCause.LATE_DATA, late_ts())


def _create_rule_tasks(span: _TimeSpan, touched: pa.Table) -> Iterator[_RuleTask]:
    if span.minute_before is None:
        since = min(-_NEVER if rule.since_ms is None else rule.since_ms // MINUTE_MS for rule in span.rules)
        yield _RuleTask(span.rules, span.topics, None, since, span.minute_after)
        return
    if span.minute_before < span.minute_after:
        yield _RuleTask(span.rules, span.topics, None, span.minute_before + 1, span.minute_after)
    late = touched.filter(pa.array(touched["end"].to_numpy() <= span.minute_before))
    if span.topics is not None:
        late = late.filter(pc.is_in(late["topic"], pa.array(sorted(span.topics), pa.string())))
    if not late.num_rows:
        return
    for by in dict.fromkeys(rule.key_columns for rule in span.rules):
        rules = tuple(rule for rule in span.rules if rule.key_columns == by)
        longest = max(rule.longest_minutes for rule in rules)
        keys = late.group_by(list(by)).aggregate([("end", "min"), ("end", "max")])
        # Grouped by age in powers of two: a key that is a minute late is not evaluated over a year.
        ages = np.log2(span.minute_before - keys["end_min"].to_numpy() + 1).astype(np.int64)
        for age in np.unique(ages).tolist():
            some = keys.filter(pa.array(ages == age))
            first, last = pc.min(some["end_min"]).as_py(), pc.max(some["end_max"]).as_py() + longest
            yield _RuleTask(rules, span.topics, some.select(list(by)), first, min(last, span.minute_before))


def _evaluate_rule_task(task: _RuleTask, stored: RuleInputs) -> Iterator[tuple[Alert, AlertEvidence]]:
    lengths = [window.minutes for rule in task.rules for window in rule.distinct_windows]
    columns = list_columns_of_functions({window.function for rule in task.rules for window in rule.distinct_windows})
    for first, last in _split_minutes_of_task(task, lengths, stored):
        ends = conditions.list_needed_buckets(lengths, first, last)
        buckets = stored.read_buckets(BucketQuery(ends, task.topics, task.keys, columns))
        yield from conditions.evaluate_conditions(task.rules, buckets, first, last).items()


def _split_minutes_of_task(task: _RuleTask, lengths: Sequence[int], stored: RuleInputs) -> Iterator[tuple[int, int]]:
    """Splits a task's minutes into ranges `(first, last)` whose buckets fit into memory. Skips minutes without data."""
    if task.last - task.first < _MIN_STEP:
        yield task.first, task.last
        return
    longest = max(rule.longest_minutes for rule in task.rules)
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
        while step > _MIN_STEP and _count_buckets_per_series(lengths, first, first + step - 1) > most:
            step = max(_MIN_STEP, step // 2)
        yield from ((begin, min(begin + step - 1, last)) for begin in range(first, last + 1, step))


def _count_buckets_per_series(lengths: Sequence[int], first: int, last: int) -> int:
    """Returns how many buckets one series needs at most, for windows that end at minutes `first` to `last`."""
    ends = conditions.list_needed_buckets(lengths, first, last)
    return sum((high - low) // length for length, ranges in ends.items() for low, high in ranges)


def _find_time_of_late_bucket(alert: Alert, rule: Rule, touched: pa.Table) -> int | None:
    at, end = alert.at_ms // MINUTE_MS, touched["end"].to_numpy()
    near = touched.filter(pa.array((end <= at) & (end >= at - rule.longest_minutes)))
    return _find_first_event_time(near, alert)


def _find_first_event_time(rows: pa.Table, alert: Alert) -> int | None:
    """Returns the earliest event time (`ts`, ms) of the rows with an alert's key; None if no row has the key."""
    for name, value in zip(KEY, alert.key, strict=True):
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], value))
    found: int | None = pc.min(rows["ts"]).as_py()
    return found


def _list_pattern_rows(
    rules: Sequence[Rule], batch: RuleBatch, stored: RuleInputs, *, is_new: bool
) -> Iterator[LogRow]:
    """Yields log rows for rules with a pattern. Only stored matches of keys that the batch can change are read."""
    groups: dict[tuple[str, ...] | None, dict[Rule, _AlertScope]] = {}
    for rule in rules:
        scope = _find_affected_alerts(rule, batch, is_new=is_new)
        if scope is not None:
            groups.setdefault(None if is_new or _can_time_out(rule) else patterns.list_match_columns_of_key(rule), {})[
                rule
            ] = scope
    for by, scopes in groups.items():
        yield from _list_pattern_group_rows(by, scopes, batch, stored, is_new=is_new)


def _list_pattern_group_rows(
    by: tuple[str, ...] | None,
    scopes: Mapping[Rule, _AlertScope],
    batch: RuleBatch,
    stored: RuleInputs,
    *,
    is_new: bool,
) -> Iterator[LogRow]:
    """Yields log rows for patterns with the same key columns `by`; None if keys without new events can change, too."""
    since = min(scope.first_ms for scope in scopes.values())
    ids = sorted({event.event_id for rule in scopes for event in patterns.list_pattern_events(rule)})
    back = max((_get_time_limit_ms(rule) for rule in scopes), default=0)
    begin = None if since - back <= -_NEVER // 2 else since - back
    if by is None:
        matches = stored.read_matches(ids, begin)
    else:
        own = batch.matches.filter(pc.is_in(batch.matches["event"], pa.array(ids)))
        matches = stored.read_matches_of_keys(ids, begin, own.select(list(by)))
    rows: dict[str, list[tuple[Alert, bool]]] = {}
    for alert, retracted in stored.read_log(sorted(rule.name for rule in scopes), -_NEVER if is_new else since, _NEVER):
        rows.setdefault(alert.rule, []).append((alert, retracted))
    for rule, scope in scopes.items():
        single = "topic" in rule.by
        until = dict(batch.times_after) if single else find_stream_time(rule, None, batch.times_after) or 0
        truth = patterns.evaluate_pattern(rule, matches, scope.first_ms, until)
        truth = {alert: evidence for alert, evidence in truth.items() if scope.is_wanted(alert)}
        logged = find_logged_alerts(rows.get(rule.name, []), scope.is_wanted)
        for one in compute_log_changes(truth, logged):
            late_ts = None if is_new else partial(_find_time_of_late_event, one.alert, rule, batch.matches)
            yield _create_log_row(one, rule, batch, late_ts)


@dataclass(frozen=True)
class _AlertScope:
    """The alerts of a pattern that a batch can change. `is_wanted` selects them. `first_ms` is their earliest time."""

    first_ms: int
    is_wanted: Callable[[Alert], bool]


def _find_affected_alerts(rule: Rule, batch: RuleBatch, *, is_new: bool) -> _AlertScope | None:
    if is_new:
        return _AlertScope(-_NEVER // 2 if rule.since_ms is None else rule.since_ms, lambda _: True)
    by = patterns.list_match_columns_of_key(rule)
    spans: dict[Key, tuple[int, int]] = {}
    for row in _select_matches(rule, batch.matches).to_pylist():
        key = read_key_of_row(by, row)
        low, high = spans.get(key, (row["ts"], row["ts"]))
        spans[key] = min(low, row["ts"]), max(high, row["ts"])
    waits = _can_time_out(rule)
    lows = [low for low, _ in spans.values()] + (_list_changed_stream_times(rule, batch) if waits else [])
    if not lows:
        return None
    within = _get_time_limit_ms(rule)

    def is_wanted(alert: Alert) -> bool:
        low, high = spans.get(alert.key, (_NEVER, 0))
        if low <= alert.at_ms and alert.at_ms - high <= within:
            return True
        time = find_stream_time(rule, alert.key[0], batch.times_before)
        return waits and (time is None or alert.at_ms >= time)

    return _AlertScope(min(lows), is_wanted)


def _can_time_out(rule: Rule) -> bool:
    """Returns True for a pattern `not followed by`, whose alerts are raised when stream time passes a time limit."""
    return isinstance(rule.tree, Pattern) and rule.tree.kind is PatternKind.NOT_FOLLOWED


def _list_changed_stream_times(rule: Rule, batch: RuleBatch) -> list[int]:
    """Returns the former stream times (ms) of those topics of a rule whose stream time the batch has changed."""
    topics = [topic for topic in batch.times_before if rule.reads_topic(topic)] if "topic" in rule.by else [None]
    sides = (batch.times_before, batch.times_after)
    times = ([find_stream_time(rule, one, side) for side in sides] for one in topics)
    return [before for before, after in times if before is not None and before != after]


def _get_time_limit_ms(rule: Rule) -> int:
    assert isinstance(rule.tree, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    return _NEVER if rule.tree.within_ms is None else rule.tree.within_ms


def _find_time_of_late_event(alert: Alert, rule: Rule, matches: pa.Table) -> int | None:
    near = _select_matches(rule, matches)
    back = alert.at_ms - near["ts"].to_numpy()
    return _find_first_event_time(near.filter(pa.array((back >= 0) & (back <= _get_time_limit_ms(rule)))), alert)


def _select_matches(rule: Rule, matches: pa.Table) -> pa.Table:
    ids = pa.array([event.event_id for event in patterns.list_pattern_events(rule)])
    return matches.filter(pc.is_in(matches["event"], ids))
