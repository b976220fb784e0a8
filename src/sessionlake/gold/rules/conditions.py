"""Evaluates conditions over time windows: for each key, the minutes at which a condition becomes true or false."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from sessionlake.gold.aggregate.groups import Columns
from sessionlake.gold.rules.alerts import CLEARED, RAISED, Alert, AlertEvidence, read_rule_key_of_row
from sessionlake.gold.rules.buckets import (
    SlidingWindows,
    compute_window_values,
    do_windows_have_points,
    list_buckets_that_cover_windows,
    list_usable_bucket_lengths,
)
from sessionlake.gold.rules.condition_tree import (
    MINUTE_MS,
    OPERATORS,
    AllOf,
    AnyOf,
    Compared,
    Condition,
    Function,
    Not,
    Operand,
    Pattern,
    Selection,
    Window,
)
from sessionlake.gold.rules.metric_buckets import MetricBuckets, RuleKeys, select_series
from sessionlake.gold.rules.rule import Rule
from sessionlake.protocol.types import Bools, Int64s

# Keys times minutes that are evaluated at once, so that the arrays fit into a processor's cache.
_MAX_CELLS = 200_000


def evaluate_conditions(
    rules: Sequence[Rule], buckets: MetricBuckets, first_minute: int, last_minute: int
) -> dict[Alert, AlertEvidence]:
    """Returns the alerts of rules with time windows from `first_minute` to `last_minute`, each with its evidence.

    A rule is true for a key if its condition is true and at least one of its windows has points.

    Args:
        rules: the rules.
        buckets: all buckets in the ranges that `list_bucket_ranges_of_windows` returns for the rules' windows.
        first_minute: the first minute, counted since 1970.
        last_minute: the last minute, counted since 1970, included.
    """
    found: dict[Alert, AlertEvidence] = {}
    for by in dict.fromkeys(rule.key_columns for rule in rules):
        same_key = [rule for rule in rules if rule.key_columns == by]
        found.update(
            _evaluate_rules_of_same_key(
                same_key, buckets, RuleKeys.from_series(buckets.series, by), first_minute, last_minute
            )
        )
    return found


def list_bucket_ranges_of_windows(
    window_minutes: Sequence[int], first_window_end: int, last_window_end: int
) -> dict[int, list[tuple[int, int]]]:
    """Returns the buckets that are needed to evaluate rules with windows of these lengths at some minutes.

    Args:
        window_minutes: the windows' lengths, in minutes.
        first_window_end: the first minute at which a window ends.
        last_window_end: the last minute at which a window ends.

    Returns:
        For each bucket length in minutes, the ranges in which the needed buckets end. A range `(low, high)` stands for
        buckets that end after minute `low`, up to and including minute `high`.
    """
    parts: dict[int, list[tuple[int, int]]] = {}
    first_window_end -= 1
    for window in {*window_minutes}:
        begins = first_window_end - window, last_window_end - window
        for length, span in list_buckets_that_cover_windows(
            list_usable_bucket_lengths(window, first_window_end, last_window_end),
            begins,
            (first_window_end, last_window_end),
        ):
            parts.setdefault(length, []).append(span)
    return {length: _merge_overlapping_ranges(spans) for length, spans in parts.items()}


def _merge_overlapping_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _evaluate_rules_of_same_key(
    rules: Sequence[Rule], buckets: MetricBuckets, keys: RuleKeys, first: int, last: int
) -> Iterator[tuple[Alert, AlertEvidence]]:
    count = keys.table.num_rows
    if not count:
        return
    moving = _create_sliding_windows(rules, buckets, keys, first - 1, last)
    step = max(1, _MAX_CELLS // count)
    before: dict[str, Bools] = {}
    all_minutes = _find_minutes_of_possible_change(rules, buckets, first, last)
    for begin in range(0, len(all_minutes), step):
        moments = _RuleEvaluator(moving, all_minutes[begin : begin + step])
        for rule in rules:
            holds = moments.evaluate_rule(rule)
            former = before.get(rule.name, holds[:1])
            changed = np.concatenate([former, holds[:-1]]) != holds
            before[rule.name] = holds[-1:]
            for at, key in zip(*np.nonzero(changed), strict=True):
                event = RAISED if holds[at, key] else CLEARED
                minute = int(moments.minutes[at])
                alert = Alert(
                    rule.name,
                    read_rule_key_of_row(rule.key_columns, keys.table.slice(int(key), 1).to_pylist()[0]),
                    minute * MINUTE_MS,
                    event,
                )
                yield (
                    alert,
                    AlertEvidence(
                        (minute - rule.longest_window_minutes) * MINUTE_MS,
                        moments.find_window_values_at(rule, int(at), int(key)),
                    ),
                )


def _find_minutes_of_possible_change(rules: Sequence[Rule], buckets: MetricBuckets, first: int, last: int) -> Int64s:
    """Returns the minutes from `first` to `last` at which a rule can become true or false, ascending.

    At these minutes a bucket enters or leaves a window, or a rule's `since` is reached. The minute before `first` is
    included, to compare the first minute with it.
    """
    ends = np.unique(buckets.end[buckets.length == 1])
    lengths = {0, *(window.minutes for rule in rules for window in rule.distinct_windows)}
    since_minutes = [-(-rule.since_ms // MINUTE_MS) for rule in rules if rule.since_ms is not None]
    found = np.unique(
        np.concatenate([[first - 1], since_minutes, *(ends + length for length in lengths)]).astype(np.int64)
    )
    return found[(found >= first - 1) & (found <= last)]


_WindowKey = tuple[Selection, str, int]
"""Identifies the data in a window: the topics and rows that it reads, the metric, and the length in minutes."""


def _create_sliding_windows(
    rules: Sequence[Rule], buckets: MetricBuckets, keys: RuleKeys, first: int, last: int
) -> dict[_WindowKey, SlidingWindows]:
    """Returns the objects that compute the windows of rules: one for all windows with the same data and length.

    The key of the result says which data: topics and rows, metric, and length in minutes.
    """
    functions: dict[_WindowKey, set[Function]] = {}
    for rule in rules:
        for window in rule.distinct_windows:
            functions.setdefault(_get_window_key(window), set()).add(window.function)
    chosen = {(of, metric): select_series(buckets.series, of, metric) for of, metric, _ in functions}
    parts = {
        one: (buckets.select_buckets_of_series(mask), RuleKeys(keys.code[mask], keys.table))
        for one, mask in chosen.items()
    }
    return {
        (of, metric, minutes): SlidingWindows(
            *parts[of, metric], tuple(sorted(needed)), minutes, list_usable_bucket_lengths(minutes, first, last)
        )
        for (of, metric, minutes), needed in functions.items()
    }


def _get_window_key(window: Window) -> _WindowKey:
    return window.of, window.metric, window.minutes


@dataclass
class _RuleEvaluator:
    """Evaluates rules at some minutes. Aggregates in windows are computed once, and cached for all rules.

    Attributes:
        moving: computes the aggregates in windows, by the data that the windows read.
        minutes: the minutes since 1970 at which the windows end.
        aggregates: the cached aggregates in windows, by the data that the windows read.
        evaluated: the cached values of windows, by window, with True where there is a value.
    """

    moving: dict[_WindowKey, SlidingWindows]
    minutes: Int64s
    aggregates: dict[_WindowKey, Columns] = field(default_factory=dict)
    evaluated: dict[Window, tuple[Any, Bools]] = field(default_factory=dict)

    def evaluate_rule(self, rule: Rule) -> Bools:
        """Returns True where the rule is true, as an array of shape `(minutes, keys)`."""
        if isinstance(rule.tree, Pattern):
            raise TypeError(f"{rule.name} is a pattern, not a condition")
        found = self._evaluate_condition(rule.tree)
        found = found & reduce(
            np.logical_or,
            (
                do_windows_have_points(self._compute_window_aggregates(_get_window_key(one)))
                for one in rule.distinct_windows
            ),
        )
        if rule.since_ms is not None:
            found = found & (self.minutes * MINUTE_MS >= rule.since_ms)[:, None]
        return found

    def find_window_values_at(self, rule: Rule, minute_index: int, key_index: int) -> dict[str, float]:
        """Returns the values of a rule's aggregates for one minute and key, by their text in the rule.

        Aggregates without a value are left out.

        Args:
            rule: the rule.
            minute_index: index of the minute.
            key_index: index of the key.
        """
        found = {}
        for window in rule.distinct_windows:
            value, has_value = self._evaluate_window(window)
            if has_value[minute_index, key_index]:
                found[window.label] = float(value[minute_index, key_index])
        return found

    def _evaluate_condition(self, condition: Condition) -> Bools:
        match condition:
            case AllOf(parts):
                return reduce(np.logical_and, map(self._evaluate_condition, parts))
            case AnyOf(parts):
                return reduce(np.logical_or, map(self._evaluate_condition, parts))
            case Not(part):
                return ~self._evaluate_condition(part)
            case Compared(left, compare, right):
                (a, has_a), (b, has_b) = self._evaluate_operand(left), self._evaluate_operand(right)
                with np.errstate(invalid="ignore"):
                    found: Bools = OPERATORS[compare](a, b) & has_a & has_b
                return found
        raise TypeError(f"{condition} is an event, not a condition")

    def _evaluate_operand(self, operand: Operand) -> tuple[Any, Any]:
        return self._evaluate_window(operand) if isinstance(operand, Window) else (operand, True)

    def _evaluate_window(self, window: Window) -> tuple[Any, Bools]:
        if window not in self.evaluated:
            self.evaluated[window] = compute_window_values(
                window, self._compute_window_aggregates(_get_window_key(window))
            )
        return self.evaluated[window]

    def _compute_window_aggregates(self, window_key: _WindowKey) -> Columns:
        if window_key not in self.aggregates:
            self.aggregates[window_key] = self.moving[window_key].aggregate_windows_ending_at(self.minutes)
        return self.aggregates[window_key]
