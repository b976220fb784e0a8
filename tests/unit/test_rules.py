"""Rules: whatever the batches, however late, the log bears what plain Python makes of all events at once."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1D, METRICS_1H, METRICS_1M
from sessionlake.gold.rules import batch as batches
from sessionlake.gold.rules.alerts import KEY, Alert, AlertLogCause, find_logged_alerts
from sessionlake.gold.rules.condition_tree import (
    AllOf,
    AnyOf,
    Compared,
    Deleted,
    FieldIs,
    Not,
    Pattern,
    PatternKind,
    Selection,
    Window,
)
from sessionlake.gold.rules.log_rows import AlertLogRow, RuleBatchData
from sessionlake.gold.rules.metric_buckets import MetricBuckets, build_metric_buckets_from_rows
from sessionlake.gold.rules.patterns import MATCH, list_events_to_find, list_pattern_events
from sessionlake.gold.rules.rule import Rule, RuleSettings, compile_rule
from sessionlake.gold.rules.rule_inputs import BucketQuery, RuleInputs
from sessionlake.gold.rules.rules_file import RuleProblem, parse_rule_text, parse_rules_file
from sessionlake.protocol.years import FIRST_MS
from support.seeds import examples

MINUTE = 60_000
DECLARED = DeclaredColumns(("price", "qty"), ("status", "who"))
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    + [("ts", pa.int64()), ("position", pa.int64()), ("ordinal", pa.int32())]
    + [("value:0", pa.float64()), ("value:1", pa.float64()), ("text:0", pa.string()), ("text:1", pa.string())]
    + [("deleted", pa.bool_())]
    + [("partition", pa.int32())]
)
TIERS = {1: METRICS_1M, 60: METRICS_1H, 1440: METRICS_1D}
Change = dict[str, Any]
ORDER = ("ts", "position", "topic", "session_id", "partition", "ordinal", "row_id")


def rule(name: str, when: str, **others: Any) -> Rule:
    return compile_rule(RuleSettings.model_validate({"name": name, "when": when, **others}), DECLARED)


CONDITIONS = [
    rule("high", "max(price) over 1 min > 3"),
    rule("sums", "sum(price) over 3 min < 4 and every qty over 2 min > 0", by=["session_id"]),
    rule("silent", "count(price) over 5 min = 0 and count(price) over 3 h > 1", by=["topic", "row_id"]),
    rule("long", "avg(a.price) over 130 min >= 1.5 or not some qty over 70 min > 1",
         by=["topic"], sources={"a": {"topics": "a", "rows": ["r"]}}),
    rule("apart", "any(sum(a.price) over 4 h > sum(b.price) over 2 h, max(a.qty) over 3 min = 5)",
         by=["row_id"], sources={"a": {"topics": "a"}, "b": {"topics": "b"}}),
    rule("last", "last(price) over 6 min > first(price) over 6 min"
         " and all(min(qty) over 1 h < 3, 2 > count(qty) over 9 min)"),
    rule("days", "sum(price) over 4 days > 2 and max(qty) over 50 h > 1", by=["topic"]),
    rule("since", "count(qty) over 61 min > 1", by=["session_id"], since="1970-01-01T01:00:00Z"),
]  # fmt: skip
PATTERNS = [
    rule("in_out", "status = 'in' then status = 'out' within 7 min", by=["topic", "session_id"]),
    rule("out_only", "status = 'out' without status = 'in' before it", by=["who"]),
    rule("out_soon", "b.price > 2 without a.status = 'in' before within 5 min", by=["row_id"],
         sources={"a": {"topics": "a"}, "b": {"topics": "b"}}),
    rule("stuck", "status != 'out' and not price < 0 not followed by (status = 'out' or deleted) within 6 min"),
    rule("alone", "status = 'in' not followed by status = 'in' within 3 min", by=["who", "topic"]),
]  # fmt: skip
RULES = [*CONDITIONS, *PATTERNS]

VALUES = st.none() | st.integers(-2, 5).map(float) | st.sampled_from([0.1, 1e16, -1e16])
TIMES = st.integers(0, 40).map(lambda n: n * 37_000) | st.integers(-2, 9).map(lambda n: n * 41 * MINUTE)
TIMES |= st.integers(-3, 9).map(lambda n: n * 1017 * MINUTE)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from("st"), st.sampled_from("rq"), TIMES, VALUES, VALUES,
        st.none() | st.sampled_from(["in", "out"]), st.none() | st.sampled_from(["u", "v"]), st.booleans(),
    ),
    max_size=22,
)  # fmt: skip


def changes_of(drawn: Iterable[tuple[Any, ...]]) -> list[Change]:
    out = []
    for i, (topic, session, row, ts, price, qty, status, who, deletes) in enumerate(drawn):
        gone = deletes and price is qty is status is who is None
        values = (topic, session, row, ts, i // 2, 0, price, qty, status, who, gone, i % 2)
        out.append(dict(zip(SCHEMA.names, values, strict=True)))
    return out


class Memory(RuleInputs):
    """The tables in memory, kept up as gold's job does."""

    def __init__(self) -> None:
        self.tiers = {product.name: product.arrow_schema().empty_table() for product in TIERS.values()}
        self.changes = SCHEMA.empty_table()
        self.events = MATCH.empty_table()
        self.rows: list[AlertLogRow] = []
        self.times: dict[str, int] = {}
        self.known: list[Rule] = []
        self.reached_back: int | None = None

    def take_in(self, changes: list[Change], rules: Sequence[Rule]) -> list[AlertLogRow]:
        table = pa.Table.from_pylist(changes, SCHEMA)
        part = METRICS_1M.aggregate_changes(table, DECLARED)
        for product in TIERS.values():
            rows = part if product.below is None else product.aggregate_shorter_buckets(part)
            self.tiers[product.name] = merged(product, rows, self.tiers[product.name])
        events = {event for one in rules if isinstance(one.tree, Pattern) for event in list_pattern_events(one)}
        matches = pa.concat_tables([MATCH.empty_table(), *(e.find_event_matches(table, DECLARED) for e in events)])
        self.changes = pa.concat_tables([self.changes, table])
        # What a batch has read may come to the next one, too.
        self.events = pa.concat_tables(
            [MATCH.empty_table(), matches, *(e.find_event_matches(self.changes, DECLARED) for e in events)]
        )
        before, self.times = dict(self.times), dict(self.times)
        for change in changes:
            if any(change[name] is not None for name in SCHEMA.names[6:10]):
                self.times[change["topic"]] = max(change["ts"], self.times.get(change["topic"], -(10**15)))
        touched = part.select(["topic", "session_id", "row_id", "metric", "partition"])
        touched = touched.append_column("end", pa.array(ends(part, 1))).append_column("ts", part["_first_ts"])
        new = [one for one in rules if one not in self.known]
        known = [one for one in rules if one in self.known]
        rows = batches.compute_alert_log_rows(known, new, RuleBatchData(before, self.times, touched, matches), self)
        self.known = list(rules)
        self.rows += rows
        return rows

    def count_series_per_day(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
        del topics, keys
        days = (ends(self.tiers[METRICS_1M.name], 1) - 1) // 1440 * 1440
        return dict.fromkeys(days.tolist(), 9)

    def read_buckets(self, query: BucketQuery) -> MetricBuckets:
        def parts() -> Iterator[tuple[int, pa.Table]]:
            for length, product in TIERS.items():
                end = ends(self.tiers[product.name], length)
                for low, high in query.ends.get(length, ()):
                    yield length, self.tiers[product.name].filter(pa.array((end > low) & (end <= high)))

        return build_metric_buckets_from_rows(parts(), query.columns, query.keys)

    def read_pattern_matches(self, event_ids: Sequence[str], since_ms: int | None) -> pa.Table:
        self.reached_back = since_ms
        kept = [
            row
            for row in self.events.to_pylist()
            if row["event"] in event_ids and (since_ms is None or row["ts"] >= since_ms)
        ]
        return pa.Table.from_pylist(kept, MATCH)

    def read_alert_log(self, rule_names: Sequence[str], first_ms: int, last_ms: int) -> Iterator[tuple[Alert, bool]]:
        for row in self.rows:
            if row.change.alert.rule in rule_names and first_ms <= row.change.alert.at_ms <= last_ms:
                yield row.change.alert, row.change.retracted


def merged(product: Product, part: pa.Table, held: pa.Table) -> pa.Table:
    rows = product.merge_rows(part, held)
    keys = {tuple(row[name] for name in product.row_keys) for row in rows.to_pylist()}
    kept = [row for row in held.to_pylist() if tuple(row[name] for name in product.row_keys) not in keys]
    return pa.concat_tables([rows, pa.Table.from_pylist(kept, product.arrow_schema())])


def ends(rows: pa.Table, length: int) -> Any:
    return rows["window_start"].cast(pa.int64()).to_numpy() // (MINUTE * 1000) + length


# -- the same by plain Python, over all events at once


def by_hand(rule: Rule, changes: list[Change]) -> set[tuple[Any, ...]]:
    """Key, moment and event of every alert."""
    times: dict[str, int] = {}
    for change in changes:
        if any(change[name] is not None for name in SCHEMA.names[6:10]):
            times[change["topic"]] = max(change["ts"], times.get(change["topic"], change["ts"]))
    read = {t: time for t, time in times.items() if any(s.includes_topic(t) for s in rule.all_selections)}
    found = patterns_by_hand if isinstance(rule.tree, Pattern) else conditions_by_hand
    return {one for one in found(rule, changes, read) if rule.since_ms is None or one[1] >= rule.since_ms}


def key_of(rule: Rule, change: Change) -> tuple[Any, ...]:
    """An id in two partitions of a topic is two sessions: with both named, the partition is part of the key."""
    names = [name if name in SCHEMA.names else "text:1" for name in rule.by]
    names += ["partition"] if {"topic", "session_id"} <= {*rule.by} else []
    return tuple(change[name] for name in names)


def conditions_by_hand(rule: Rule, changes: list[Change], times: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for key in {key_of(rule, change) for change in changes}:
        mine = [change for change in changes if key_of(rule, change) == key]
        topics = [mine[0]["topic"]] if "topic" in rule.by else list(times)
        until = max((times[topic] for topic in topics if topic in times), default=None)
        if until is None:
            continue
        edges = {
            ended(change) + length for change in mine for length in (0, *(w.minutes for w in rule.distinct_windows))
        }
        edges |= set() if rule.since_ms is None else {rule.since_ms // MINUTE}
        before = False
        for at in sorted(edge for edge in edges if edge <= until // MINUTE):
            before_since = rule.since_ms is not None and at * MINUTE < rule.since_ms
            live = any(inside(window, mine, at) for window in rule.distinct_windows)
            holds = live and met(rule.tree, mine, at) and not before_since
            if holds != before:
                yield key, at * MINUTE, "raised" if holds else "cleared"
            before = holds


def ended(change: Change) -> int:
    return change["ts"] // MINUTE + 1


def inside(window: Window, changes: list[Change], at: int) -> list[float]:
    field = f"value:{DECLARED.numbers.index(window.metric)}"
    held = [
        change for change in changes
        if at - window.minutes < ended(change) <= at and change[field] is not None
        and window.of.includes_topic(change["topic"]) and window.of.includes_row(change["row_id"])
    ]  # fmt: skip
    return [change[field] for change in sorted(held, key=lambda change: (change["ts"], change["position"]))]


def met(tree: Any, changes: list[Change], at: int) -> bool:
    match tree:
        case AllOf(parts):
            return all(met(part, changes, at) for part in parts)
        case AnyOf(parts):
            return any(met(part, changes, at) for part in parts)
        case Not(part):
            return not met(part, changes, at)
        case Compared(left, compare, right):
            a, b = (
                side if isinstance(side, float) else number(side, inside(side, changes, at)) for side in (left, right)
            )
            return a is not None and b is not None and SIGNS[compare](a, b)
    raise AssertionError(tree)


SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne}


def number(window: Window, values: list[float]) -> float | None:
    if not values:
        return 0.0 if window.function in ("count", "sum") else None
    whole = math.fsum(values)
    return {"count": len(values), "sum": whole, "min": min(values), "max": max(values), "avg": whole / len(values),
            "first": values[0], "last": values[-1]}[window.function]  # fmt: skip


def patterns_by_hand(rule: Rule, changes: list[Change], times: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    pattern = rule.tree
    assert isinstance(pattern, Pattern)
    within = math.inf if pattern.within_ms is None else pattern.within_ms
    for key in {key_of(rule, change) for change in changes}:
        if None in key:
            continue
        mine = sorted((c for c in changes if key_of(rule, c) == key), key=lambda c: tuple(c[name] for name in ORDER))
        line = [(c, is_event(pattern.first, c), is_event(pattern.second, c)) for c in mine]
        line = [one for one in line if one[1] or one[2]]
        for i, (change, first, second) in enumerate(line):
            if pattern.kind is PatternKind.NOT_FOLLOWED:
                due = change["ts"] + within
                topics = [change["topic"]] if "topic" in rule.by else list(times)
                passed = due < max(times.get(topic, -math.inf) for topic in topics)
                if first and passed and not any(s and c["ts"] <= due for c, _, s in line[i + 1 :]):
                    yield key, due, "raised"
            elif second:
                before = line[i - 1] if i else None
                paired = before is not None and before[1] and change["ts"] - before[0]["ts"] <= within
                if paired == (pattern.kind is PatternKind.THEN):
                    yield key, change["ts"], "raised"


def is_event(tree: Any, change: Change) -> bool:
    match tree:
        case AllOf(parts):
            return all(is_event(part, change) for part in parts)
        case AnyOf(parts):
            return any(is_event(part, change) for part in parts)
        case Not(part):
            return about(part, change) and not is_event(part, change)
        case Deleted(of):
            return of.includes_topic(change["topic"]) and change["deleted"]
        case FieldIs(of, column, compare, value):
            field = dict(zip(("price", "qty", "status", "who"), SCHEMA.names[6:10], strict=True))[column]
            there = of.includes_topic(change["topic"]) and change[field] is not None
            return there and SIGNS[compare](change[field], value)
    raise AssertionError(tree)


def about(tree: Any, change: Change) -> bool:
    return tree.of.includes_topic(change["topic"])


def logged(rows: list[AlertLogRow], rule: Rule) -> set[tuple[Any, ...]]:
    alerts = find_logged_alerts(
        ((row.change.alert, row.change.retracted) for row in rows), lambda alert: alert.rule == rule.name
    )
    places = [KEY.index(name) if name in KEY else KEY.index("value") for name in rule.key_columns]
    return {(tuple(a.key[place] for place in places), a.at_ms, a.event) for a in alerts}


@examples(usual=30, in_all=500)
@given(CHANGES, st.lists(st.integers(0, 22), max_size=4), st.permutations(RULES), st.randoms(use_true_random=False))
def test_whatever_the_batches_the_log_bears_what_plain_python_makes_of_all_events(
    drawn: list[tuple[Any, ...]], cuts: list[int], rules: list[Rule], rnd: Any
) -> None:
    """Changes come in any order; one rule is new in the second batch."""
    changes, rules = changes_of(drawn), rules[:4]
    arriving = rnd.sample(changes, len(changes))
    memory = Memory()
    for number, (a, b) in enumerate(pairwise([0, *sorted(cuts), len(changes)])):
        memory.take_in(arriving[a:b], rules if number else rules[1:])
    for one in rules if cuts else rules[1:]:
        assert logged(memory.rows, one) == by_hand(one, changes), one


OF_SESSIONS = [
    rule("sums", "sum(price) over 3 min > 3"),
    rule("ends", "last(price) over 2 min > first(price) over 2 min"),
    rule("sessions", "max(price) over 2 min > 2 and count(price) over 4 min < 3", by=["topic", "session_id"]),
    rule("pair", "status = 'in' then status = 'out' within 2 min"),
    rule("first", "status = 'out' without status = 'in' before it"),
    rule("waits", "status = 'in' not followed by status = 'out' within 2 min", by=["topic", "session_id", "who"]),
]
TWO_SESSIONS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 4).map(lambda n: n * 45_000), st.none() | st.integers(0, 5).map(float),
              st.none() | st.sampled_from(["in", "out"])),
    max_size=14,
)  # fmt: skip


@examples(usual=30, in_all=500)
@given(TWO_SESSIONS, st.lists(st.integers(0, 14), max_size=3), st.randoms(use_true_random=False))
def test_two_sessions_of_one_id_in_two_partitions_are_judged_each_alone(
    drawn: list[tuple[Any, ...]], cuts: list[int], rnd: Any
) -> None:
    """Their points share event times, positions and ordinals; a third session moves the topic's stream time."""
    sessions: tuple[list[Change], list[Change]] = ([], [])
    for partition, ts, price, status in drawn:
        own = sessions[partition]
        values = ("a", "s", "r", ts, len(own), 0, price, None, status, "u", False, partition)
        own.append(dict(zip(SCHEMA.names, values, strict=True)))
    third = point(60 * MINUTE, 1.0) | {"session_id": "third"}
    both = [*sessions[0], *sessions[1]]
    arriving, memory = rnd.sample(both, len(both)), Memory()
    for a, b in pairwise([0, *sorted(cuts), len(both)]):
        memory.take_in(arriving[a:b], OF_SESSIONS)
    memory.take_in([third], OF_SESSIONS)
    alone = [Memory(), Memory()]
    for one, changes in zip(alone, sessions, strict=True):
        one.take_in([*changes, third], OF_SESSIONS)
    for rule in OF_SESSIONS:
        assert logged(memory.rows, rule) == logged([*alone[0].rows, *alone[1].rows], rule), rule


MALFORMED = """rules:
  - name: unknown
    when: sum(pricex) over 5 min > 3
  - name: inside
    when: |
      sum(price) over 5 min > 3
        and min(price) ovr 3 min < 3
  - {name: nowhen, by: [topic]}
  - {name: event, when: status = 'in'}
  - {name: column, by: [who], when: max(price) over 1 min > 1}
  - {name: mixed, when: "status = 'in' then max(price) over 1 min > 1 within 5 min"}
  - {name: short, when: max(price) over 30 s > 1}
  - {name: first, by: [topic], when: first(price) over 5 min > 1}
  - name: quoted
    when: status = "in" then status = 'out' within 1 h
  - {name: source, when: sum(a.price) over 1 h > 1}
  - {name: fine, when: sum(price) over 1 h > 1}
  - {name: fine, when: sum(price) over 2 h > 1}
"""


def test_what_is_no_rule_is_refused_with_its_place_and_what_could_stand_there() -> None:
    rules, problems = parse_rules_file(MALFORMED, DECLARED)
    assert [one.rule.name for one in rules] == ["fine", "fine"]
    expected = [
        "3:15: rule unknown: pricex is not a number column; available: price, qty",
        "7:24: rule inside: expected over, found ovr",
        "8:5: rule nowhen: when: the key is missing",
        "9:25: rule event: a column without an aggregate is an event",
        "10:37: rule column: a rule with aggregates can only be keyed by topic, session_id, row_id; found who",
        "11:45: rule mixed: an event describes one change of one source: it cannot have aggregates",
        "12:41: rule short: a window must be a whole number of minutes",
        "13:38: rule first: first(price) over 5 min: first and last need a rule with one series per key",
        "15:20: rule quoted: '\"' is not allowed here; write texts in single quotes",
        "16:30: rule source: a is not a source of the rule; available: none",
        "2:3: two rules have the name fine",
    ]
    assert [str(one)[: len(begin)] for one, begin in zip(problems, expected, strict=True)] == expected


@pytest.mark.parametrize(
    "text",
    ["", "5", "[" * 3_000, "when: " + "(" * 500, "when: " + "not " * 5_000 + "max(price) over 1 min > 1", "when: [1]",
     "{when: max(price) over 1 min > 1, topics: '('}", "{when: max(price) over 1 min > 1, since: 2026-99-01T00:00:00Z}",
     "when: max(price) over 9999999999999999 weeks > 1", "when: max(price) over 1 min > 1\nname: x\n-", "a: &a [*a]"],
)  # fmt: skip
def test_whatever_slips_into_the_table_is_a_problem_and_no_error(text: str) -> None:
    assert isinstance(parse_rule_text("a", text, DECLARED), RuleProblem)


def test_a_text_does_not_give_its_rule_another_name_than_its_row_has() -> None:
    refused = parse_rule_text("a", "when: max(price) over 1 min > 3\nname: b\n", DECLARED)
    assert str(refused) == "2:7: rule a: name: the row's name is a; leave this key out"
    kept = parse_rule_text("a", "when: max(price) over 1 min > 3\nname: a\n", DECLARED)
    assert isinstance(kept, Rule)
    assert kept.name == "a"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [("(?=a).*", "Invalid regular expression: invalid perl operator: (?="), ("a)|(b", "Invalid regular expression:"),
     (r"\Qa", "Invalid regular expression:"), ("a" * 1001, "String should have at most 1000 characters")],
)  # fmt: skip
def test_topics_are_an_expression_that_takes_linear_time(expression: str, reason: str) -> None:
    refused = parse_rule_text("a", f"when: max(price) over 1 min > 1\ntopics: '{expression}'", DECLARED)
    assert isinstance(refused, RuleProblem)
    assert refused.reason.startswith(f"topics: {reason}")
    hard = Selection("(([a-z]+[.]?)+)+!|b")
    assert [topic for topic in ("capture." * 999, "b", "ab", "b\n") if hard.includes_topic(topic)] == ["b"]


# Each takes a backtracking engine longer than the age of the world.
@pytest.mark.parametrize("expression", [
    "(a+)+$", "(a*)*b", "(a|a)*b", "(a|aa)+$", "([a-z]+)*$", "(.*a){20}$", "((a*)*)*b", "(a?){200}a{200}",
    "(x+x+)+y|(a+)+b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*(.*)*(.*)*y", "a{0,900}a{0,900}b",
])  # fmt: skip
def test_no_expression_of_topics_takes_more_than_linear_time(expression: str) -> None:
    began = time.process_time()
    found = parse_rule_text("a", f"{{when: 'max(price) over 1 min > 1', topics: '{expression}'}}", DECLARED)
    if not isinstance(found, RuleProblem):  # else it takes RE2 too much memory
        assert not any(found.reads_topic("a" * length + "!") for length in range(30, 249))
    assert time.process_time() - began < 20


def test_an_expression_that_takes_too_much_memory_is_refused() -> None:
    refused = parse_rule_text("a", "{when: 'max(price) over 1 min > 1', topics: '((a{100}){100}){100}'}", DECLARED)
    assert isinstance(refused, RuleProblem)
    assert "Invalid regular expression" in refused.reason


@pytest.mark.parametrize("when", [
    "(" * 5_000 + "price > 1", "not " * 2_400 + "price > 1", "'" * 9_999, "1" * 9_999, "price > 1 and " * 714,
    " or ".join(["(price > 1)"] * 500), "max(price) over 1 min > 1 and " * 300 + "max(price) over 2 min > 1",
    "-" * 9_999, "=" * 9_999,
])  # fmt: skip
def test_any_condition_is_read_or_refused_in_little_time(when: str) -> None:
    began = time.process_time()
    parse_rule_text("a", f'{{when: "{when}"}}', DECLARED)
    assert time.process_time() - began < 2


def test_a_condition_has_ten_thousand_characters_at_most() -> None:
    longest = "price > 1 then deleted within 1 h".ljust(10_000)
    assert not isinstance(parse_rule_text("a", f'{{when: "{longest}"}}', DECLARED), RuleProblem)
    refused = parse_rule_text("a", f'{{when: "{longest} "}}', DECLARED)
    assert isinstance(refused, RuleProblem)
    assert refused.reason == "when: String should have at most 10000 characters"


def test_a_text_that_is_kept_is_the_rule_that_was_written() -> None:
    text = "rules: [{name: a, by: [who], when: 'price > 1\n\n then deleted within 1 h'}]"
    [written], _ = parse_rules_file(text, DECLARED)
    assert parse_rule_text("a", written.text, DECLARED) == written.rule


def test_the_version_changes_with_what_a_rule_says_and_not_with_how() -> None:
    one = rule("a", "max(price) over 60 min > 3")
    assert one.version == rule("b", "max( price )  over 60 min > 3.0", description="why").version
    others = [rule("a", "max(price) over 61 min > 3"), rule("a", "max(price) over 60 min > 3", by=["topic"])]
    assert len({one.version, *(other.version for other in others)}) == 3


def point(ts: int, price: float, position: int = 0) -> Change:
    return dict(zip(SCHEMA.names, ("a", "s", "r", ts, position, 0, price, None, None, None, False, 0), strict=True))


def said(rows: list[AlertLogRow]) -> list[tuple[Any, ...]]:
    return [
        (
            row.change.alert.at_ms // MINUTE,
            row.change.alert.event,
            row.change.retracted,
            row.late,
            row.cause,
            row.late_ts,
        )
        for row in rows
    ]


def test_a_late_point_raises_and_retracts_and_says_which_it_was() -> None:
    memory, low = Memory(), [rule("low", "sum(price) over 3 min < 5")]
    assert said(memory.take_in([point(0, 9.0)], low)) == []  # its minute is not over
    assert said(memory.take_in([point(4 * MINUTE, 1.0)], low)) == []  # the window is empty at once: nothing holds
    assert said(memory.take_in([point(6 * MINUTE, 1.0)], low)) == [
        (5, "raised", False, False, AlertLogCause.ON_TIME, None)
    ]
    late = AlertLogCause.LATE_DATA
    assert said(memory.take_in([point(150_000, 1.0)], low)) == [
        (4, "raised", False, True, late, 150_000),
        (5, "raised", True, True, late, 150_000),
    ]
    assert said(memory.take_in([point(170_000, 9.0, 7)], low)) == [
        (4, "raised", True, True, late, 170_000),
        (6, "raised", False, True, late, 170_000),
    ]


def test_a_changed_rule_keeps_the_alerts_that_both_bear() -> None:
    memory = Memory()
    memory.take_in([point(i * MINUTE, float(i)) for i in range(6)], [rule("high", "max(price) over 1 min > 1")])
    rows = memory.take_in([], [rule("high", "max(price) over 1 min > 3")])
    assert said(rows) == [
        (3, "raised", True, True, AlertLogCause.RULE_CHANGE, None),
        (5, "raised", False, True, AlertLogCause.RULE_CHANGE, None),
    ]


@pytest.mark.parametrize(
    "other",
    [{"topics": "b"}, {"topics": "neither"}, {"by": ["topic"], "topics": "b"}, {"by": ["session_id"]},
     {"when": "price > 3 then price < 2 within 1 h"}],
)  # fmt: skip
def test_what_a_former_version_said_of_other_topics_and_keys_is_retracted(other: dict[str, Any]) -> None:
    memory, when = Memory(), "max(price) over 1 min > 3"
    former = rule("high", when, topics="a")
    changes = [point(0, 9.0), point(10 * MINUTE, 1.0, 1), point(0, 9.0, 2) | {"topic": "b"}]
    memory.take_in(changes, [former])
    assert len(logged(memory.rows, former)) == 2
    later = [point(11 * MINUTE, 1.0, 3), point(11 * MINUTE, 1.0, 4) | {"topic": "b"}]
    present = rule("high", **({"when": when} | other))
    memory.take_in(later, [present])
    assert logged(memory.rows, present) == by_hand(present, changes + later)
    retracted = [row for row in memory.rows if row.change.retracted]
    assert {(row.late, row.cause) for row in retracted} == {(True, AlertLogCause.RULE_CHANGE)}
    assert len(retracted) == 2


def test_what_patterns_look_for_reaches_back_as_far_as_the_one_that_reaches_furthest() -> None:
    day = 24 * 60 * MINUTE
    soon = rule("soon", "price > 3 then status = 'out' within 1 h", since="1970-01-02T00:00:00Z")
    slow = rule("slow", "status = 'out' not followed by deleted within 2 h", since="1970-01-02T00:00:00Z")
    ever = rule("ever", "deleted without price > 3 before it", since="1970-01-02T00:00:00Z")
    (price, out), gone = list_pattern_events(soon), list_pattern_events(slow)[1]
    assert list_events_to_find([soon, slow]) == {
        price: day - 60 * MINUTE,
        out: day - 120 * MINUTE,
        gone: day - 120 * MINUTE,
    }
    assert list_events_to_find([soon, slow, ever]) == {price: FIRST_MS, out: day - 120 * MINUTE, gone: FIRST_MS}
    memory = Memory()
    memory.take_in([point(2 * day, 9.0), point(3 * day, 9.0)], [soon])
    assert memory.reached_back == day - 60 * MINUTE


def test_events_keep_the_names_under_which_they_are_stored() -> None:
    """Whatever becomes of the classes: matches under another name would not be found."""
    first, second = list_pattern_events(
        rule("a", "not (price > 3 and qty != 1) then any(deleted, status = 'it''s') within 1 h")
    )
    assert (first.event_id, second.event_id) == ("4753873cceb7", "a764cd5effd6")
    third, fourth = list_pattern_events(rule("b", "all(a.price > -1e300) then a.deleted within 1 h", by=["who"],
                                   sources={"a": {"topics": r"a\\.*", "rows": ["r", "q"]}}))  # fmt: skip
    assert (third.event_id, fourth.event_id) == ("96d9be3a9a7c", "6f8e69bee159")


@pytest.mark.soak
def test_a_year_of_many_series_is_worked_on_in_pieces_that_fit_into_memory() -> None:
    """Of ten thousand dense series, a thousand buckets each are read at once, days in the middle."""
    long, read = rule("long", "avg(price) over 366 d > 1"), []

    class Dense(Memory):
        def count_series_per_day(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
            del topics, keys
            return {day * 1440: 10_000 for day in range(370)}

        def read_buckets(self, query: BucketQuery) -> MetricBuckets:
            read.append(sum((high - low) // n for n, spans in query.ends.items() for low, high in spans))
            return super().read_buckets(query)

    memory, until = Dense(), 370 * 1440 * MINUTE
    memory.take_in([point(until, 1.0)], [long])
    memory.take_in([point(until + MINUTE, 1.0)], [long])
    assert len(read) > 100
    assert max(read) <= 1000
