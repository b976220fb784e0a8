"""Evaluates patterns: rules about two events with the same key, such as a login that no logout follows.

Events are ordered by event time. Events of the same time are in the order in which they were applied. A pattern
compares an event with the event directly before it, or with the events after it. A late event can therefore change only
alerts that come after it, within the time that the pattern allows between its events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.groups import RowGroups
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN, add_missing_change_order_columns
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    DeclaredColumns,
    build_number_column_name,
    build_text_column_name,
)
from sessionlake.gold.rules.alerts import KEY, RAISED, Alert, AlertEvidence, read_rule_key_of_row
from sessionlake.gold.rules.condition_tree import (
    OPERATORS,
    AllOf,
    AnyOf,
    Condition,
    Deleted,
    FieldIs,
    Not,
    Pattern,
    PatternKind,
    find_selection,
)
from sessionlake.gold.rules.metric_buckets import map_distinct_texts
from sessionlake.gold.rules.rule import SERIES_KEY, VALUE, Rule
from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.protocol.years import FIRST_MS, LAST_MS

# Under `once`, offsets do not order events of different sessions: each session's events of one time stay together.
_ORDER = ("ts", "across", "topic", "session_id", PARTITION, "life", "position", "ordinal", "row_id")
MATCH = pa.schema(
    [(name, pa.string()) for name in ("event", *SERIES_KEY)]
    + [
        (PARTITION, pa.int32()),
        ("ts", pa.int64()),
        ("life", pa.int64()),
        ("position", pa.int64()),
        ("ordinal", pa.int32()),
    ]
    + [(VALUE, pa.string())]
)
"""Columns of a match, which is a change that is an event of a pattern.

`event` is the event's id, `ts` the event time in ms. `life`, `position` and `ordinal` order changes of the same time.
`value` is the value of the declared column in the rule's key.
"""
_MIN_INT64 = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Event:
    """One of the two events of a pattern: a condition that a change can meet.

    Patterns with the same condition and key column share one event. Stored event ids depend on the `repr` of this
    class. So if the class or a field is renamed, gold searches all changes for matches again.

    Attributes:
        condition: the condition.
        column: the declared column in the rule's key; None if the key has none.
    """

    condition: Condition
    column: str | None

    @property
    def event_id(self) -> str:
        """The event's id in `gold.rule_matches`: a hash of its condition and column."""
        return sha256(repr(self).encode()).hexdigest()[:12]

    def find_event_matches(self, changes: pa.Table, declared: DeclaredColumns) -> pa.Table:
        """Returns the changes that meet the condition of this event, with the columns of `MATCH`.

        Args:
            changes: the columns of `sources.MARKS`, `deleted` (True if the change deleted its row), and the declared
                columns, named `value:<i>` for numbers and `text:<i>` for texts.
            declared: the declared columns.
        """
        of, changes = find_selection(self.condition), add_missing_change_order_columns(changes)
        found = map_distinct_texts(changes["topic"], of.includes_topic) & _do_changes_meet_condition(
            self.condition, changes, declared
        )
        if of.rows:
            found &= map_distinct_texts(changes["row_id"], of.includes_row)
        value = pa.nulls(changes.num_rows, pa.string())
        if self.column is not None:
            value = changes[build_text_column_name(declared.texts.index(self.column))]
            found &= value.is_valid().to_numpy()
        ts = changes["ts"].to_numpy()
        found &= (ts >= FIRST_MS) & (ts <= LAST_MS)
        event = pa.array([self.event_id]).take(pa.array(np.zeros(changes.num_rows, np.int32)))
        marks = [changes[name] for name in (*SERIES_KEY, PARTITION, "ts", LIFE, TURN, "ordinal")]
        return pa.table([event, *marks, value], schema=MATCH).filter(pa.array(found))


def list_pattern_events(rule: Rule) -> tuple[Event, Event]:
    """Returns the first and the second event of a pattern."""
    assert isinstance(rule.tree, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    return Event(rule.tree.first, rule.declared_key_column), Event(rule.tree.second, rule.declared_key_column)


def list_match_columns_of_key(rule: Rule) -> tuple[str, ...]:
    """Returns the names that the rule's key columns have in `MATCH`."""
    return tuple(VALUE if name == rule.declared_key_column else name for name in rule.key_columns)


def filter_matches_by_keys(matches: pa.Table, keys: pa.Table) -> pa.Table:
    """Returns the matches that can belong to some keys. Leaves out a match if no key has its value in one column.

    Each column is compared by itself, so some of the returned matches may still belong to none of the keys.

    Args:
        matches: rows with the columns of `MATCH`.
        keys: one row per key.
    """
    for name in keys.column_names:
        matches = matches.filter(pc.is_in(matches[name], value_set=pc.unique(keys[name])))
    return matches


def list_events_to_find(rules: Iterable[Rule]) -> dict[Event, int]:
    """Returns the events of all patterns of the rules, each with the event time in ms from which matches are needed.

    For a rule with `since`, this is `since` minus the time that the pattern allows between its events. For a rule
    without `since`, or whose pattern allows any time between its events, it is the earliest time of a timestamp. If
    several rules have the same event, the earliest of their times counts.
    """
    found: dict[Event, int] = {}
    for rule in rules:
        if isinstance(rule.tree, Pattern):
            since, within = rule.since_ms, rule.tree.within_ms
            first = FIRST_MS if since is None or within is None else max(FIRST_MS, since - within)
            found |= {event: min(first, found.get(event, first)) for event in list_pattern_events(rule)}
    return found


def evaluate_pattern(
    rule: Rule, matches: pa.Table, first_ms: int, evaluated_until: dict[str, int] | int
) -> dict[Alert, AlertEvidence]:
    """Returns the alerts of a pattern whose event time is `first_ms` or later, each with its evidence.

    Args:
        rule: a rule with a pattern.
        matches: matches of the pattern's two events, with the columns of `MATCH`. They must start as long before
            `first_ms` as the pattern allows between its events. Repeated rows are allowed.
        first_ms: earliest event time of an alert, in ms.
        evaluated_until: stream time in ms, either by topic or one number for all topics. A `not followed by` alert is
            raised once stream time has passed its time limit.
    """
    pattern, (one, other) = rule.tree, list_pattern_events(rule)
    assert isinstance(pattern, Pattern)  # noqa: S101  (callers pass rules with a pattern only)
    by = list_match_columns_of_key(rule)
    flagged = matches.filter(pc.is_in(matches["event"], pa.array([one.event_id, other.event_id])))
    if not flagged.num_rows:
        return {}
    events = _MatchedEvents.from_matches(flagged, one.event_id, other.event_id, by)
    since = max(first_ms, _MIN_INT64 if rule.since_ms is None else rule.since_ms)
    found = [one for one in _find_alert_times_of_pattern(pattern, events, evaluated_until) if one[1] >= since]
    named = events.rows.take(pa.array([at for at, _, _ in found], pa.int64())).select([*KEY]).to_pylist()
    keys = (read_rule_key_of_row(by, row) for row in named)
    return {
        Alert(rule.name, key, moment, RAISED): AlertEvidence(start, {})
        for key, (_, moment, start) in zip(keys, found, strict=True)
    }


@dataclass(frozen=True)
class _MatchedEvents:
    """Matches of a pattern's two events, ordered by key and time. All arrays have one item per row.

    Attributes:
        rows: one row per distinct change, with the columns of `MATCH`.
        key: a number for the key of each row.
        ts: event times in ms.
        is_first: True if the change is the pattern's first event.
        is_second: True if the change is the pattern's second event. One change can be both.
    """

    rows: pa.Table
    key: Int64s
    ts: Int64s
    is_first: Bools
    is_second: Bools

    @staticmethod
    def from_matches(
        matches: pa.Table, first_event_id: str, second_event_id: str, key_columns: tuple[str, ...]
    ) -> _MatchedEvents:
        texts = pc.fill_null(matches[VALUE], "")
        key = RowGroups.group_rows(
            matches.set_column(matches.column_names.index(VALUE), VALUE, texts), key_columns
        ).group_number_of_each_row
        marks = [
            _sort_matches_across_sessions(matches) if name == "across" else _rank_values(matches[name])
            for name in reversed(_ORDER)
        ]
        order = np.lexsort((*marks, key))
        same = np.ones(len(order), np.bool_)
        for mark in (*marks, key):
            same &= np.diff(mark[order], prepend=_MIN_INT64) == 0
        starts = np.flatnonzero(~same)
        kinds = [map_distinct_texts(matches["event"], kind.__eq__)[order] for kind in (first_event_id, second_event_id)]
        is_first, is_second = (np.logical_or.reduceat(kind, starts) for kind in kinds)
        rows = matches.take(pa.array(order[starts]))
        return _MatchedEvents(rows, key[order][starts], rows["ts"].to_numpy(), is_first, is_second)


def _sort_matches_across_sessions(matches: pa.Table) -> Int64s:
    """Returns, for each match, a number that orders matches of different sessions with the same event time.

    It is the position, but -1 for topics of class `once`.
    """
    life, position = (matches[name].to_numpy() for name in ("life", "position"))
    return np.where(life == NO_LIFE, position, -1)


def _find_alert_times_of_pattern(
    pattern: Pattern, events: _MatchedEvents, evaluated_until: dict[str, int] | int
) -> Iterator[tuple[int, int, int | None]]:
    """Finds the alerts of a pattern.

    Args:
        pattern: the pattern.
        events: the matches of its two events.
        evaluated_until: stream time in ms, either by topic or one number for all topics.

    Yields:
        For each alert: the index in `events` of a row with its key, its time in ms, and the event time in ms from which
        its events were searched. The last is None if the pattern has no time limit.
    """
    within, ts = pattern.within_ms, events.ts
    if pattern.kind is PatternKind.NOT_FOLLOWED:
        assert within is not None  # noqa: S101  (NOT FOLLOWED is parsed with WITHIN only)
        time = (
            _look_up_number_of_each_text(events.rows["topic"], evaluated_until)
            if isinstance(evaluated_until, dict)
            else np.full(len(ts), evaluated_until)
        )
        alone = events.is_first & ~_are_first_events_followed_by_second(events, within) & (ts + within < time)
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


def _are_first_events_followed_by_second(events: _MatchedEvents, within: int) -> Bools:
    """Returns True for each row after which the pattern's second event occurs with the same key, within `within` ms."""
    count = len(events.ts)
    place = np.where(events.is_second, np.arange(count), count)
    following = np.append(np.minimum.accumulate(place[::-1])[::-1][1:], count)
    has_next = following < count
    at = np.where(has_next, following, 0)
    found: Bools = has_next & (events.key[at] == events.key) & (events.ts[at] - events.ts <= within)
    return found


def _do_changes_meet_condition(condition: Condition, changes: pa.Table, declared: DeclaredColumns) -> Bools:
    """Returns True for each change that meets the condition. A comparison with a column it did not set is false."""
    match condition:
        case AllOf(parts):
            return np.logical_and.reduce([_do_changes_meet_condition(part, changes, declared) for part in parts])
        case AnyOf(parts):
            return np.logical_or.reduce([_do_changes_meet_condition(part, changes, declared) for part in parts])
        case Not(part):
            return ~_do_changes_meet_condition(part, changes, declared)
        case Deleted():
            deleted: Bools = changes["deleted"].to_numpy()
            return deleted
        case FieldIs(_, column, compare, float(value)):
            number = changes[build_number_column_name(declared.numbers.index(column))].to_numpy()
            with np.errstate(invalid="ignore"):
                met: Bools = OPERATORS[compare](number, value) & ~np.isnan(number)
            return met
        case FieldIs(_, column, compare, str(value)):
            text = changes[build_text_column_name(declared.texts.index(column))]
            same: Bools = pc.fill_null(pc.equal(text, value), fill_value=False).to_numpy()
            return same if compare == "=" else text.is_valid().to_numpy() & ~same
    raise TypeError(f"{condition} is not an event")


def _rank_values(column: pa.ChunkedArray) -> Int64s:
    """Returns integers that have the same order as the column's values."""
    if pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64)
    code, distinct = encode_values_as_codes(column)
    rank = np.empty(len(distinct), np.int64)
    rank[pc.sort_indices(distinct).to_numpy()] = np.arange(len(distinct))
    return rank[code]


def _look_up_number_of_each_text(texts: pa.ChunkedArray, numbers: dict[str, int]) -> Int64s:
    code, distinct = encode_values_as_codes(texts)
    return np.array([numbers.get(value, _MIN_INT64) for value in distinct.to_pylist()], np.int64)[code]
