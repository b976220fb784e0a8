"""Conditions over windows: at which minutes they begin and cease to hold, for each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from sessionlake.gold.aggregate.groups import Columns
from sessionlake.gold.rules.alerts import CLEARED, RAISED, Alert, Grounds, key_in
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.slices import (
    Keys,
    Moving,
    Slices,
    cover,
    holds_any,
    lengths_for,
    members,
    value_of,
)
from sessionlake.gold.rules.tree import (
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
from sessionlake.protocol.types import Bools, Int64s

# Keys times moments that are worked on at once: what fits into a processor's cache.
_CELLS = 200_000


def alerts(rules: Sequence[Rule], slices: Slices, first: int, last: int) -> dict[Alert, Grounds]:
    """Where conditions begin and cease to hold at the minutes from `first` to `last`.

    A rule holds for a key where its condition is met and one of its windows holds anything: what has been silent for
    longer than the longest window is not looked at any more.

    Args:
        slices: all that the windows may hold, see `needed`.
    """
    found: dict[Alert, Grounds] = {}
    for by in dict.fromkeys(rule.keys for rule in rules):
        mine = [rule for rule in rules if rule.keys == by]
        found.update(_alerts(mine, slices, Keys.of(slices.series, by), first, last))
    return found


def needed(minutes: Sequence[int], first: int, last: int) -> dict[int, list[tuple[int, int]]]:
    """Which slices `alerts` reads of windows of so many minutes.

    Returns:
        By their length, ranges of ends, in minutes: behind the first number, and up to the second.
    """
    parts: dict[int, list[tuple[int, int]]] = {}
    first -= 1
    for window in {*minutes}:
        begins = first - window, last - window
        for length, span in cover(lengths_for(window, first, last), begins, (first, last)):
            parts.setdefault(length, []).append(span)
    return {length: _merged(spans) for length, spans in parts.items()}


def _merged(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _alerts(
    rules: Sequence[Rule], slices: Slices, keys: Keys, first: int, last: int
) -> Iterator[tuple[Alert, Grounds]]:
    count = keys.table.num_rows
    if not count:
        return
    moving = _moving(rules, slices, keys, first - 1, last)
    step = max(1, _CELLS // count)
    before: dict[str, Bools] = {}
    all_moments = _moments(rules, slices, first, last)
    for begin in range(0, len(all_moments), step):
        moments = _Moments(moving, all_moments[begin : begin + step])
        for rule in rules:
            holds = moments.holding(rule)
            former = before.get(rule.name, holds[:1])
            changed = np.concatenate([former, holds[:-1]]) != holds
            before[rule.name] = holds[-1:]
            for at, key in zip(*np.nonzero(changed), strict=True):
                event = RAISED if holds[at, key] else CLEARED
                minute = int(moments.minutes[at])
                alert = Alert(
                    rule.name,
                    key_in(rule.keys, keys.table.slice(int(key), 1).to_pylist()[0]),
                    minute * MINUTE_MS,
                    event,
                )
                yield alert, Grounds((minute - rule.longest) * MINUTE_MS, moments.values(rule, int(at), int(key)))


def _moments(rules: Sequence[Rule], slices: Slices, first: int, last: int) -> Int64s:
    """The minutes at which something comes into a window or leaves one, and the one before the first."""
    ends = np.unique(slices.end[slices.length == 1])
    lengths = {0, *(window.minutes for rule in rules for window in rule.windows)}
    begun = [-(-rule.since_ms // MINUTE_MS) for rule in rules if rule.since_ms is not None]
    found = np.unique(np.concatenate([[first - 1], begun, *(ends + length for length in lengths)]).astype(np.int64))
    return found[(found >= first - 1) & (found <= last)]


_Series = tuple[Selection, str, int]
"""Of a window: which topics and rows, which metric, how many minutes."""


def _moving(rules: Sequence[Rule], slices: Slices, keys: Keys, first: int, last: int) -> dict[_Series, Moving]:
    """The distinct windows of the rules, whatever is computed of them."""
    functions: dict[_Series, set[Function]] = {}
    for rule in rules:
        for window in rule.windows:
            functions.setdefault(_series(window), set()).add(window.function)
    chosen = {(of, metric): members(slices.series, of, metric) for of, metric, _ in functions}
    parts = {one: (slices.of(mask), Keys(keys.code[mask], keys.table)) for one, mask in chosen.items()}
    return {
        (of, metric, minutes): Moving(
            *parts[of, metric], tuple(sorted(wanted)), minutes, lengths_for(minutes, first, last)
        )
        for (of, metric, minutes), wanted in functions.items()
    }


def _series(window: Window) -> _Series:
    return window.of, window.metric, window.minutes


@dataclass
class _Moments:
    """What the windows hold at some minutes, worked out once for all rules."""

    moving: dict[_Series, Moving]
    minutes: Int64s
    held: dict[_Series, Columns] = field(default_factory=dict)
    known: dict[Window, tuple[Any, Bools]] = field(default_factory=dict)

    def holding(self, rule: Rule) -> Bools:
        """Where the rule holds, `(minutes, keys)`."""
        if isinstance(rule.tree, Pattern):
            raise TypeError(f"{rule.name} is a pattern, no condition")
        found = self._met(rule.tree)
        found = found & reduce(np.logical_or, (holds_any(self._held(_series(one))) for one in rule.windows))
        if rule.since_ms is not None:
            found = found & (self.minutes * MINUTE_MS >= rule.since_ms)[:, None]
        return found

    def values(self, rule: Rule, at: int, key: int) -> dict[str, float]:
        """The rule's aggregates that have a value, by how it writes them."""
        found = {}
        for window in rule.windows:
            value, there = self._value(window)
            if there[at, key]:
                found[window.label] = float(value[at, key])
        return found

    def _met(self, condition: Condition) -> Bools:
        match condition:
            case AllOf(parts):
                return reduce(np.logical_and, map(self._met, parts))
            case AnyOf(parts):
                return reduce(np.logical_or, map(self._met, parts))
            case Not(part):
                return ~self._met(part)
            case Compared(left, compare, right):
                (a, has_a), (b, has_b) = self._operand(left), self._operand(right)
                with np.errstate(invalid="ignore"):
                    found: Bools = OPERATORS[compare](a, b) & has_a & has_b
                return found
        raise TypeError(f"{condition} is an event, no condition")

    def _operand(self, operand: Operand) -> tuple[Any, Any]:
        return self._value(operand) if isinstance(operand, Window) else (operand, True)

    def _value(self, window: Window) -> tuple[Any, Bools]:
        if window not in self.known:
            self.known[window] = value_of(window, self._held(_series(window)))
        return self.known[window]

    def _held(self, series: _Series) -> Columns:
        if series not in self.held:
            self.held[series] = self.moving[series].over(self.minutes)
        return self.held[series]
