"""Patterns of two events of a key: which moments they make alerts of.

Events are in order of event time, then as they were applied; each second one ends what was before it. So it matters to
an event only what came next to it: one that comes late changes nothing but what follows it, within the pattern's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.groups import Groups
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN, with_order
from sessionlake.gold.aggregate.sources import PARTITION, Declared, text_field, value_field
from sessionlake.gold.rules.alerts import KEY, RAISED, Alert, Grounds, key_in
from sessionlake.gold.rules.rule import SERIES, VALUE, Rule
from sessionlake.gold.rules.slices import each as _each
from sessionlake.gold.rules.tree import (
    OPERATORS,
    AllOf,
    AnyOf,
    Condition,
    Deleted,
    FieldIs,
    Not,
    Pattern,
    PatternKind,
    selection,
)
from sessionlake.protocol.arrow import codes
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.protocol.years import FIRST_MS, LAST_MS

# Of several sessions under `once`, each session's events of one time are together: their offsets say nothing.
_ORDER = ("ts", "across", "topic", "session_id", PARTITION, "life", "position", "ordinal", "row_id")
MATCH = pa.schema(
    [(name, pa.string()) for name in ("event", *SERIES)]
    + [
        (PARTITION, pa.int32()),
        ("ts", pa.int64()),
        ("life", pa.int64()),
        ("position", pa.int64()),
        ("ordinal", pa.int32()),
    ]
    + [(VALUE, pa.string())]
)
"""A change that is an event: which, of what, when, and the value of the column that is a part of its key."""
_LONG_AGO = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Event:
    """What rules look for in changes; those that look for the same share it.

    Attributes:
        column: the declared one that is a part of the key; None if there is none.
    """

    condition: Condition
    column: str | None

    @property
    def id(self) -> str:
        """Its name in the table of matches. A new field of the tree changes it: then matches are to be found again."""
        return sha256(repr(self).encode()).hexdigest()[:12]

    def matches(self, changes: pa.Table, declared: Declared) -> pa.Table:
        """The changes that are this event, as `MATCH`.

        Args:
            changes: `MARKS`, whether a row was `deleted`, and the declared columns (see `Declared`).
        """
        of, changes = selection(self.condition), with_order(changes)
        found = _each(changes["topic"], of.has_topic) & _met(self.condition, changes, declared)
        if of.rows:
            found &= _each(changes["row_id"], of.has_row)
        value = pa.nulls(changes.num_rows, pa.string())
        if self.column is not None:
            value = changes[text_field(declared.texts.index(self.column))]
            found &= value.is_valid().to_numpy()
        ts = changes["ts"].to_numpy()
        found &= (ts >= FIRST_MS) & (ts <= LAST_MS)
        event = pa.array([self.id]).take(pa.array(np.zeros(changes.num_rows, np.int32)))
        marks = [changes[name] for name in (*SERIES, PARTITION, "ts", LIFE, TURN, "ordinal")]
        return pa.table([event, *marks, value], schema=MATCH).filter(pa.array(found))


def events_of(rule: Rule) -> tuple[Event, Event]:
    """The two events of a pattern."""
    assert isinstance(rule.tree, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    return Event(rule.tree.first, rule.column), Event(rule.tree.second, rule.column)


def key_of(rule: Rule) -> tuple[str, ...]:
    """The columns of `MATCH` that make the rule's keys."""
    return tuple(VALUE if name == rule.column else name for name in rule.keys)


def narrowed(matches: pa.Table, keys: pa.Table) -> pa.Table:
    """Less the events that are of none of some keys for certain: a column has a value that none of them has."""
    for name in keys.column_names:
        matches = matches.filter(pc.is_in(matches[name], value_set=pc.unique(keys[name])))
    return matches


def sought(rules: Iterable[Rule]) -> dict[Event, int]:
    """The events that patterns among rules look for, and from which event time on, in ms: the earliest that one needs.

    What is before `since` matters as long as a pattern's time reaches back to it.
    """
    found: dict[Event, int] = {}
    for rule in rules:
        if isinstance(rule.tree, Pattern):
            since, within = rule.since_ms, rule.tree.within_ms
            first = FIRST_MS if since is None or within is None else max(FIRST_MS, since - within)
            found |= {event: min(first, found.get(event, first)) for event in events_of(rule)}
    return found


def alerts(rule: Rule, matches: pa.Table, first_ms: int, until: dict[str, int] | int) -> dict[Alert, Grounds]:
    """The alerts of a pattern that are at `first_ms` or later.

    Args:
        matches: `MATCH`, of its events, with all that is within the pattern's time before `first_ms`; any number of
            times the same.
        until: stream time of each topic, or one for all: what was not to follow has not by then.
    """
    pattern, (one, other) = rule.tree, events_of(rule)
    assert isinstance(pattern, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    by = key_of(rule)
    flagged = matches.filter(pc.is_in(matches["event"], pa.array([one.id, other.id])))
    if not flagged.num_rows:
        return {}
    events = _Events.of(flagged, one.id, other.id, by)
    since = max(first_ms, _LONG_AGO if rule.since_ms is None else rule.since_ms)
    found = [one for one in _found(pattern, events, until) if one[1] >= since]
    named = events.rows.take(pa.array([at for at, _, _ in found], pa.int64())).select([*KEY]).to_pylist()
    keys = (key_in(by, row) for row in named)
    return {
        Alert(rule.name, key, moment, RAISED): Grounds(start, {})
        for key, (_, moment, start) in zip(keys, found, strict=True)
    }


@dataclass(frozen=True)
class _Events:
    """Events of two kinds in order, key by key; one can be of both.

    Attributes:
        rows: one a distinct event.
        key: number of its key.
    """

    rows: pa.Table
    key: Int64s
    ts: Int64s
    is_first: Bools
    is_second: Bools

    @staticmethod
    def of(matches: pa.Table, first: str, second: str, by: tuple[str, ...]) -> _Events:
        texts = pc.fill_null(matches[VALUE], "")
        key = Groups.of(matches.set_column(matches.column_names.index(VALUE), VALUE, texts), by).codes
        marks = [_across(matches) if name == "across" else _ranks(matches[name]) for name in reversed(_ORDER)]
        order = np.lexsort((*marks, key))
        same = np.ones(len(order), np.bool_)
        for mark in (*marks, key):
            same &= np.diff(mark[order], prepend=_LONG_AGO) == 0
        starts = np.flatnonzero(~same)
        kinds = [_each(matches["event"], kind.__eq__)[order] for kind in (first, second)]
        is_first, is_second = (np.logical_or.reduceat(kind, starts) for kind in kinds)
        rows = matches.take(pa.array(order[starts]))
        return _Events(rows, key[order][starts], rows["ts"].to_numpy(), is_first, is_second)


def _across(matches: pa.Table) -> Int64s:
    """What orders events of one time of several sessions."""
    life, position = (matches[name].to_numpy() for name in ("life", "position"))
    return np.where(life == NO_LIFE, position, -1)


def _found(pattern: Pattern, events: _Events, until: dict[str, int] | int) -> Iterator[tuple[int, int, int | None]]:
    """Of each alert: the event, the moment, and where its window begins."""
    within, ts = pattern.within_ms, events.ts
    if pattern.kind is PatternKind.NOT_FOLLOWED:
        assert within is not None  # noqa: S101  (NOT FOLLOWED is parsed with WITHIN only)
        time = _each_int(events.rows["topic"], until) if isinstance(until, dict) else np.full(len(ts), until)
        alone = events.is_first & ~_followed(events, within) & (ts + within < time)
        for at in np.flatnonzero(alone).tolist():
            yield at, int(ts[at]) + within, int(ts[at])
        return
    before = np.roll(ts, 1)
    paired = np.roll(events.is_first, 1) & (np.diff(events.key, prepend=-1) == 0)
    if within is not None:
        paired &= ts - before <= within
    if pattern.kind is PatternKind.THEN:
        for at in np.flatnonzero(events.is_second & paired).tolist():
            yield at, int(ts[at]), int(before[at])
    else:
        for at in np.flatnonzero(events.is_second & ~paired).tolist():
            yield at, int(ts[at]), None if within is None else int(ts[at]) - within


def _followed(events: _Events, within: int) -> Bools:
    """Whether a second event comes behind, of the same key and within the time."""
    count = len(events.ts)
    place = np.where(events.is_second, np.arange(count), count)
    following = np.append(np.minimum.accumulate(place[::-1])[::-1][1:], count)
    there = following < count
    at = np.where(there, following, 0)
    found: Bools = there & (events.key[at] == events.key) & (events.ts[at] - events.ts <= within)
    return found


def _met(condition: Condition, changes: pa.Table, declared: Declared) -> Bools:
    """Which changes meet it; a column that one did not set meets no comparison."""
    match condition:
        case AllOf(parts):
            return np.logical_and.reduce([_met(part, changes, declared) for part in parts])
        case AnyOf(parts):
            return np.logical_or.reduce([_met(part, changes, declared) for part in parts])
        case Not(part):
            return ~_met(part, changes, declared)
        case Deleted():
            deleted: Bools = changes["deleted"].to_numpy()
            return deleted
        case FieldIs(_, column, compare, float(value)):
            number = changes[value_field(declared.numbers.index(column))].to_numpy()
            with np.errstate(invalid="ignore"):
                met: Bools = OPERATORS[compare](number, value) & ~np.isnan(number)
            return met
        case FieldIs(_, column, compare, str(value)):
            text = changes[text_field(declared.texts.index(column))]
            same: Bools = pc.fill_null(pc.equal(text, value), fill_value=False).to_numpy()
            return same if compare == "=" else text.is_valid().to_numpy() & ~same
    raise TypeError(f"{condition} is no event")


def _ranks(column: pa.ChunkedArray) -> Int64s:
    """Numbers in the order of the values."""
    if pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64)
    code, distinct = codes(column)
    rank = np.empty(len(distinct), np.int64)
    rank[pc.sort_indices(distinct).to_numpy()] = np.arange(len(distinct))
    return rank[code]


def _each_int(column: pa.ChunkedArray, numbers: dict[str, int]) -> Int64s:
    code, distinct = codes(column)
    return np.array([numbers.get(value, _LONG_AGO) for value in distinct.to_pylist()], np.int64)[code]
