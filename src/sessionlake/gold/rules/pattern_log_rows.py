"""Finds what a batch changes in the log of alerts of rules with a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.rules import patterns
from sessionlake.gold.rules.alerts import (
    Alert,
    Key,
    compute_alert_log_changes,
    find_logged_alerts,
    find_stream_time_of_rule,
    read_rule_key_of_row,
)
from sessionlake.gold.rules.condition_tree import Pattern, PatternKind
from sessionlake.gold.rules.log_rows import (
    NEVER,
    AlertLogRow,
    RuleBatchData,
    create_alert_log_row,
    find_first_event_time,
)
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.rule_inputs import RuleInputs


def list_pattern_log_rows(
    rules: Sequence[Rule], batch: RuleBatchData, stored: RuleInputs, *, is_new: bool
) -> Iterator[AlertLogRow]:
    """Yields log rows for rules with a pattern. Only stored matches of keys that the batch can change are read."""
    groups: dict[tuple[str, ...] | None, dict[Rule, _AffectedAlerts]] = {}
    for rule in rules:
        scope = _find_affected_alerts(rule, batch, is_new=is_new)
        if scope is not None:
            groups.setdefault(None if is_new or _can_time_out(rule) else patterns.list_match_columns_of_key(rule), {})[
                rule
            ] = scope
    for by, scopes in groups.items():
        yield from _list_log_rows_of_pattern_group(by, scopes, batch, stored, is_new=is_new)


def _list_log_rows_of_pattern_group(
    by: tuple[str, ...] | None,
    scopes: Mapping[Rule, _AffectedAlerts],
    batch: RuleBatchData,
    stored: RuleInputs,
    *,
    is_new: bool,
) -> Iterator[AlertLogRow]:
    """Yields log rows for patterns with the same key columns `by`; None if keys without new events can change, too."""
    since = min(scope.first_ms for scope in scopes.values())
    ids = sorted({event.event_id for rule in scopes for event in patterns.list_pattern_events(rule)})
    back = max((_get_time_limit_ms(rule) for rule in scopes), default=0)
    begin = None if since - back <= -NEVER // 2 else since - back
    if by is None:
        matches = stored.read_pattern_matches(ids, begin)
    else:
        own = batch.matches.filter(pc.is_in(batch.matches["event"], pa.array(ids)))
        matches = stored.read_pattern_matches_of_keys(ids, begin, own.select(list(by)))
    rows: dict[str, list[tuple[Alert, bool]]] = {}
    for alert, retracted in stored.read_alert_log(
        sorted(rule.name for rule in scopes), -NEVER if is_new else since, NEVER
    ):
        rows.setdefault(alert.rule, []).append((alert, retracted))
    for rule, scope in scopes.items():
        single = "topic" in rule.by
        until = dict(batch.times_after) if single else find_stream_time_of_rule(rule, None, batch.times_after) or 0
        truth = patterns.evaluate_pattern(rule, matches, scope.first_ms, until)
        truth = {alert: evidence for alert, evidence in truth.items() if scope.is_affected(alert)}
        logged = find_logged_alerts(rows.get(rule.name, []), scope.is_affected)
        for one in compute_alert_log_changes(truth, logged):
            late_ts = None if is_new else partial(_find_time_of_late_event, one.alert, rule, batch.matches)
            yield create_alert_log_row(one, rule, batch, late_ts)


@dataclass(frozen=True)
class _AffectedAlerts:
    """The alerts of a pattern that a batch can change. `is_affected` selects them, `first_ms` is the earliest time."""

    first_ms: int
    is_affected: Callable[[Alert], bool]


def _find_affected_alerts(rule: Rule, batch: RuleBatchData, *, is_new: bool) -> _AffectedAlerts | None:
    if is_new:
        return _AffectedAlerts(-NEVER // 2 if rule.since_ms is None else rule.since_ms, lambda _: True)
    by = patterns.list_match_columns_of_key(rule)
    spans: dict[Key, tuple[int, int]] = {}
    for row in _select_matches_of_rule(rule, batch.matches).to_pylist():
        key = read_rule_key_of_row(by, row)
        low, high = spans.get(key, (row["ts"], row["ts"]))
        spans[key] = min(low, row["ts"]), max(high, row["ts"])
    waits = _can_time_out(rule)
    lows = [low for low, _ in spans.values()] + (_list_changed_stream_times(rule, batch) if waits else [])
    if not lows:
        return None
    within = _get_time_limit_ms(rule)

    def is_affected(alert: Alert) -> bool:
        low, high = spans.get(alert.key, (NEVER, 0))
        if low <= alert.at_ms and alert.at_ms - high <= within:
            return True
        time = find_stream_time_of_rule(rule, alert.key[0], batch.times_before)
        return waits and (time is None or alert.at_ms >= time)

    return _AffectedAlerts(min(lows), is_affected)


def _can_time_out(rule: Rule) -> bool:
    """Returns True for a pattern `not followed by`, whose alerts are raised when stream time passes a time limit."""
    return isinstance(rule.tree, Pattern) and rule.tree.kind is PatternKind.NOT_FOLLOWED


def _list_changed_stream_times(rule: Rule, batch: RuleBatchData) -> list[int]:
    """Returns the former stream times (ms) of those topics of a rule whose stream time the batch has changed."""
    topics = [topic for topic in batch.times_before if rule.reads_topic(topic)] if "topic" in rule.by else [None]
    sides = (batch.times_before, batch.times_after)
    times = ([find_stream_time_of_rule(rule, one, side) for side in sides] for one in topics)
    return [before for before, after in times if before is not None and before != after]


def _get_time_limit_ms(rule: Rule) -> int:
    assert isinstance(rule.tree, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    return NEVER if rule.tree.within_ms is None else rule.tree.within_ms


def _find_time_of_late_event(alert: Alert, rule: Rule, matches: pa.Table) -> int | None:
    near = _select_matches_of_rule(rule, matches)
    back = alert.at_ms - near["ts"].to_numpy()
    return find_first_event_time(near.filter(pa.array((back >= 0) & (back <= _get_time_limit_ms(rule)))), alert)


def _select_matches_of_rule(rule: Rule, matches: pa.Table) -> pa.Table:
    ids = pa.array([event.event_id for event in patterns.list_pattern_events(rule)])
    return matches.filter(pc.is_in(matches["event"], ids))
