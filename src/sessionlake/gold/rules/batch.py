"""What a batch changes in the log of alerts: only the keys and times that it can have changed are looked at again.

An alert follows from the set of all events up to stream time, and from nothing else. Stream time is the greatest event
time that was read of a topic, or, for keys across topics, of all topics that the rule reads. So a batch can change what
lies between the stream times before and after it, for every key, and what comes behind an event that came late, within
the rule's longest window, for that event's keys.
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
    Cause,
    Grounds,
    Key,
    Logged,
    StreamTimes,
    can_tell,
    difference,
    key_in,
    net,
    stream_time,
)
from sessionlake.gold.rules.asked import Asked, Stored
from sessionlake.gold.rules.rule import VALUE, Rule
from sessionlake.gold.rules.slices import columns_for
from sessionlake.gold.rules.tree import MINUTE_MS, Pattern, PatternKind

_DAY = 24 * 60
# About how many slices may be in memory at once, of 100 bytes each.
_SLICES = 10_000_000
# Minutes that are worked on at once, however many slices that takes.
_LEAST_STEP = 60
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Batch:
    """What a batch brought.

    Attributes:
        before: stream times before it.
        after: and after it.
        touched: its slices: topic, session_id, partition, row_id, metric, `end` in minutes, and `ts`, its first event
            time there.
        matches: its events, `patterns.MATCH`.
        begins: where the slices of topics begin of which some are gone: what rests on those stays as it was said.
    """

    before: StreamTimes
    after: StreamTimes
    touched: pa.Table
    matches: pa.Table
    begins: StreamTimes = field(default_factory=dict)


class Row(NamedTuple):
    """A row of the log to be, and why.

    Attributes:
        late: whether stream time had passed it.
        late_ts: the first event time that came late and that it rests on.
    """

    logged: Logged
    rule: Rule
    late: bool
    cause: Cause
    late_ts: int | None


@dataclass(frozen=True)
class _Span:
    """Rules, and stream time before and after the batch, in ms, of what they look at.

    Attributes:
        topics: None: keys are across topics.
        before: None: nothing was there yet.
    """

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    before: int | None
    after: int


@dataclass(frozen=True)
class _Task:
    """Times, in minutes, that some rules are evaluated for; `keys` is one row a key, None for all."""

    rules: tuple[Rule, ...]
    topics: frozenset[str] | None
    keys: pa.Table | None
    first: int
    last: int


def changed(known: Sequence[Rule], new: Sequence[Rule], batch: Batch, stored: Stored) -> list[Row]:
    """The rows that the log lacks once the batch is in the tables.

    Args:
        known: rules that have looked at all that came before.
        new: those that have not.
    """
    found: list[Row] = []
    for rules, fresh in ((known, False), (new, True)):
        flat = [rule for rule in rules if not isinstance(rule.tree, Pattern)]
        if fresh:
            found += _of_new_conditions(flat, batch, stored)
        else:
            for span in _spans(flat, batch):
                found += _of_conditions(span, batch, stored)
        found += _of_patterns([rule for rule in rules if isinstance(rule.tree, Pattern)], batch, stored, fresh=fresh)
    return found


def _spans(rules: Sequence[Rule], batch: Batch) -> Iterator[_Span]:
    single, across = ([rule for rule in rules if ("topic" in rule.by) == is_single] for is_single in (True, False))
    topics: dict[tuple[int | None, int], set[str]] = {}
    for topic, after in batch.after.items():
        if any(rule.reads(topic) for rule in single):
            topics.setdefault((_minute(batch.before.get(topic)), after // MINUTE_MS), set()).add(topic)
    for (before, after), names in topics.items():
        yield _Span(tuple(single), frozenset(names), before, after)
    groups: dict[tuple[int | None, int], list[Rule]] = {}
    for rule in across:
        after_ms = stream_time(rule, None, batch.after)
        if after_ms is not None:
            times = _minute(stream_time(rule, None, batch.before)), after_ms // MINUTE_MS
            groups.setdefault(times, []).append(rule)
    for (before, after), some in groups.items():
        yield _Span(tuple(some), None, before, after)


def _minute(ms: int | None) -> int | None:
    return None if ms is None else ms // MINUTE_MS


def _of_conditions(span: _Span, batch: Batch, stored: Stored) -> Iterator[Row]:
    for task in _tasks(span, batch.touched):
        names = {rule.name: rule for rule in task.rules}
        keys = (
            None if task.keys is None else {key_in(task.rules[0].keys, row | {VALUE: None}) for row in _rows(task.keys)}
        )

        def wanted(alert: Alert, task: _Task = task, keys: set[Key] | None = keys, names: Any = names) -> bool:
            inside = task.topics is None or alert.key[0] in task.topics
            asked = alert.rule in names and inside and (keys is None or alert.key in keys)
            return asked and can_tell(names[alert.rule], alert, batch.begins)

        truth = {alert: grounds for alert, grounds in _evaluated(task, stored) if wanted(alert)}
        rows = stored.log(sorted(names), max(task.first * MINUTE_MS, -_NEVER), task.last * MINUTE_MS)
        held = net(rows, wanted)
        for one in difference(truth, held):
            rule = names[one.alert.rule]
            yield _row(one, rule, batch, partial(_late_slice, one.alert, rule, batch.touched))


def _of_new_conditions(rules: Sequence[Rule], batch: Batch, stored: Stored) -> Iterator[Row]:
    """Held against the whole log of their names: a former version may have had other topics and keys."""
    truth: dict[Alert, Grounds] = {}
    for span in _spans(rules, batch):
        for task in _tasks(replace(span, before=None), batch.touched):
            found = _evaluated(task, stored)
            truth.update((alert, at) for alert, at in found if task.topics is None or alert.key[0] in task.topics)
    names = {rule.name: rule for rule in rules}

    def wanted(alert: Alert) -> bool:
        return alert.rule in names and can_tell(names[alert.rule], alert, batch.begins)

    truth = {alert: grounds for alert, grounds in truth.items() if wanted(alert)}
    held = net(stored.log(sorted(names), -_NEVER, _NEVER), wanted) if names else ()
    for one in difference(truth, held):
        yield _row(one, names[one.alert.rule], batch, None)


def _row(one: Logged, rule: Rule, batch: Batch, late_ts: Callable[[], int | None] | None) -> Row:
    """A row of the log, and why.

    Args:
        late_ts: what tells the late event's time; None: the rule is new.
    """
    passed = stream_time(rule, one.alert.key[0], batch.before)
    # What is taken back of a former version was passed, whatever the topics that this one reads.
    late = (late_ts is None and one.retracted) or (passed is not None and one.alert.at_ms <= passed)
    if not late:
        return Row(one, rule, late, Cause.ON_TIME, None)
    if late_ts is None:
        return Row(one, rule, late, Cause.OTHER_RULE, None)
    return Row(one, rule, late, Cause.LATE_DATA, late_ts())


def _tasks(span: _Span, touched: pa.Table) -> Iterator[_Task]:
    if span.before is None:
        since = min(-_NEVER if rule.since_ms is None else rule.since_ms // MINUTE_MS for rule in span.rules)
        yield _Task(span.rules, span.topics, None, since, span.after)
        return
    if span.before < span.after:
        yield _Task(span.rules, span.topics, None, span.before + 1, span.after)
    late = touched.filter(pa.array(touched["end"].to_numpy() <= span.before))
    if span.topics is not None:
        late = late.filter(pc.is_in(late["topic"], pa.array(sorted(span.topics), pa.string())))
    if not late.num_rows:
        return
    for by in dict.fromkeys(rule.keys for rule in span.rules):
        rules = tuple(rule for rule in span.rules if rule.keys == by)
        longest = max(rule.longest for rule in rules)
        keys = late.group_by(list(by)).aggregate([("end", "min"), ("end", "max")])
        # Put together by ages that differ by less than twice: who is a minute late is not held against a year.
        ages = np.log2(span.before - keys["end_min"].to_numpy() + 1).astype(np.int64)
        for age in np.unique(ages).tolist():
            some = keys.filter(pa.array(ages == age))
            first, last = pc.min(some["end_min"]).as_py(), pc.max(some["end_max"]).as_py() + longest
            yield _Task(rules, span.topics, some.select(list(by)), first, min(last, span.before))


def _evaluated(task: _Task, stored: Stored) -> Iterator[tuple[Alert, Grounds]]:
    lengths = [window.minutes for rule in task.rules for window in rule.windows]
    columns = columns_for({window.function for rule in task.rules for window in rule.windows})
    for first, last in _pieces(task, lengths, stored):
        ends = conditions.needed(lengths, first, last)
        slices = stored.slices(Asked(ends, task.topics, task.keys, columns))
        yield from conditions.alerts(task.rules, slices, first, last).items()


def _pieces(task: _Task, lengths: Sequence[int], stored: Stored) -> Iterator[tuple[int, int]]:
    """The times of a task at which a window can hold anything, in pieces that fit into memory."""
    if task.last - task.first < _LEAST_STEP:
        yield task.first, task.last
        return
    longest = max(rule.longest for rule in task.rules)
    days = stored.days(task.topics, task.keys)
    busy: list[list[int]] = []
    for day in sorted(days):
        first, last = max(day + 1, task.first), min(day + _DAY + longest, task.last)
        if busy and first <= busy[-1][1] + 1:
            busy[-1][1] = max(busy[-1][1], last)
        elif first <= last:
            busy.append([first, last])
    most = _SLICES // max(days.values(), default=1)
    for first, last in busy:
        step = last - first + 1
        while step > _LEAST_STEP and _each_holds(lengths, first, first + step - 1) > most:
            step = max(_LEAST_STEP, step // 2)
        yield from ((begin, min(begin + step - 1, last)) for begin in range(first, last + 1, step))


def _each_holds(lengths: Sequence[int], first: int, last: int) -> int:
    """How many slices of a series, at most, are in memory at once where windows end at these minutes."""
    ends = conditions.needed(lengths, first, last)
    return sum((high - low) // length for length, ranges in ends.items() for low, high in ranges)


def _late_slice(alert: Alert, rule: Rule, touched: pa.Table) -> int | None:
    at, end = alert.at_ms // MINUTE_MS, touched["end"].to_numpy()
    near = touched.filter(pa.array((end <= at) & (end >= at - rule.longest)))
    return _earliest(near, alert)


def _earliest(rows: pa.Table, alert: Alert) -> int | None:
    """The first event time of those of the alert's key."""
    for name, value in zip(KEY, alert.key, strict=True):
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], value))
    found: int | None = pc.min(rows["ts"]).as_py()
    return found


def _of_patterns(rules: Sequence[Rule], batch: Batch, stored: Stored, *, fresh: bool) -> Iterator[Row]:
    """By groups of rules: of those that say nothing of keys without an event in the batch, only these keys are read."""
    groups: dict[tuple[str, ...] | None, dict[Rule, _Scope]] = {}
    for rule in rules:
        scope = _scope(rule, batch, fresh=fresh)
        if scope is not None:
            groups.setdefault(None if fresh or _waits(rule) else patterns.key_of(rule), {})[rule] = scope
    for by, scopes in groups.items():
        yield from _of_group(by, scopes, batch, stored, fresh=fresh)


def _of_group(
    by: tuple[str, ...] | None, scopes: Mapping[Rule, _Scope], batch: Batch, stored: Stored, *, fresh: bool
) -> Iterator[Row]:
    """Rules of one key.

    Args:
        by: the key's columns in `patterns.MATCH`; None: keys without an event in the batch matter, too.
    """
    since = min(scope.first_ms for scope in scopes.values())
    ids = sorted({event.id for rule in scopes for event in patterns.events_of(rule)})
    back = max((_within(rule) for rule in scopes), default=0)
    begin = None if since - back <= -_NEVER // 2 else since - back
    if by is None:
        matches = stored.matches(ids, begin)
    else:
        own = batch.matches.filter(pc.is_in(batch.matches["event"], pa.array(ids)))
        matches = stored.matches_of(ids, begin, own.select(list(by)))
    rows: dict[str, list[tuple[Alert, bool]]] = {}
    for alert, retracted in stored.log(sorted(rule.name for rule in scopes), -_NEVER if fresh else since, _NEVER):
        rows.setdefault(alert.rule, []).append((alert, retracted))
    for rule, scope in scopes.items():
        single = "topic" in rule.by
        until = dict(batch.after) if single else stream_time(rule, None, batch.after) or 0
        truth = patterns.alerts(rule, matches, scope.first_ms, until)
        truth = {alert: grounds for alert, grounds in truth.items() if scope.wanted(alert)}
        held = net(rows.get(rule.name, []), scope.wanted)
        for one in difference(truth, held):
            yield _row(one, rule, batch, None if fresh else partial(_late_event, one.alert, rule, batch.matches))


@dataclass(frozen=True)
class _Scope:
    """Which alerts of a pattern a batch can have changed: none before `first_ms`."""

    first_ms: int
    wanted: Callable[[Alert], bool]


def _scope(rule: Rule, batch: Batch, *, fresh: bool) -> _Scope | None:
    if fresh:
        return _Scope(-_NEVER // 2 if rule.since_ms is None else rule.since_ms, lambda _: True)
    by = patterns.key_of(rule)
    spans: dict[Key, tuple[int, int]] = {}
    for row in _rows(_matches_of(rule, batch.matches)):
        key = key_in(by, row)
        low, high = spans.get(key, (row["ts"], row["ts"]))
        spans[key] = min(low, row["ts"]), max(high, row["ts"])
    waits = _waits(rule)
    lows = [low for low, _ in spans.values()] + (_moved(rule, batch) if waits else [])
    if not lows:
        return None
    within = _within(rule)

    def wanted(alert: Alert) -> bool:
        low, high = spans.get(alert.key, (_NEVER, 0))
        if low <= alert.at_ms and alert.at_ms - high <= within:
            return True
        time = stream_time(rule, alert.key[0], batch.before)
        return waits and (time is None or alert.at_ms >= time)

    return _Scope(min(lows), wanted)


def _waits(rule: Rule) -> bool:
    """Whether time alone can raise an alert of the pattern."""
    return isinstance(rule.tree, Pattern) and rule.tree.kind is PatternKind.NOT_FOLLOWED


def _moved(rule: Rule, batch: Batch) -> list[int]:
    """Stream times of the rule that the batch has left behind."""
    topics = [topic for topic in batch.before if rule.reads(topic)] if "topic" in rule.by else [None]
    times = [(stream_time(rule, topic, batch.before), stream_time(rule, topic, batch.after)) for topic in topics]
    return [before for before, after in times if before is not None and before != after]


def _within(rule: Rule) -> int:
    assert isinstance(rule.tree, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    return _NEVER if rule.tree.within_ms is None else rule.tree.within_ms


def _late_event(alert: Alert, rule: Rule, matches: pa.Table) -> int | None:
    near = _matches_of(rule, matches)
    back = alert.at_ms - near["ts"].to_numpy()
    return _earliest(near.filter(pa.array((back >= 0) & (back <= _within(rule)))), alert)


def _matches_of(rule: Rule, matches: pa.Table) -> pa.Table:
    ids = pa.array([event.id for event in patterns.events_of(rule)])
    return matches.filter(pc.is_in(matches["event"], ids))


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()
