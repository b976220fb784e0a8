"""Of random feeds, the generated code gives what the slow reader gives, whatever the messages."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import pytest
import yaml

from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.reader import KafkaRecord, KafkaRecordColumns
from support.event_lists import by_slow_reader, in_order
from support.feed_cases import feed
from support.random_feeds import random_feed, random_records
from support.seeds import seeds

FEEDS, MESSAGES = 60, 30


def compare_readers(seed: int) -> Counter[str]:
    """Compares both readers for many feeds, as far as they are valid; returns what they have read."""
    rnd, seen = random.Random(seed), Counter[str]()
    for _ in range(FEEDS):
        settings, records = random_feed(rnd), random_records(rnd, MESSAGES)
        try:
            valid = feed(yaml.safe_dump(settings))
        except ValueError:
            continue
        compiled, expected = CompiledFeedReader.compile_feed(valid), by_slow_reader(valid, records)
        found = compiled.read_records(KafkaRecordColumns.from_records(records))
        assert in_order(found, valid) == in_order(expected, valid), settings
        seen += Counter(feeds=1, code=bool(compiled.sources), events=len(expected.message))
        seen += Counter(joined=_count_joined_messages(valid, expected), slow=compiled.slow)
    return seen


def _count_joined_messages(valid: Feed, events: ColumnarEvents) -> int:
    """The number of messages of feeds with split rules that have several events."""
    splits = any(rule.split for rule in valid.rules)
    return sum(count > 1 for count in Counter(events.message).values()) if splits else 0


@pytest.mark.parametrize("seed", seeds(3, 600))
def test_both_readers_agree(seed: int) -> None:
    seen = compare_readers(seed)
    assert seen["feeds"] > FEEDS // 3
    assert seen["code"] > seen["feeds"] * 0.8
    assert seen["events"] > 50


def test_these_messages_have_several_events() -> None:
    assert compare_readers(0)["joined"] > 5


PART_TIMES = """
order: {seq: .n}
session: .id
time: {path: .t, from: iso}
messages: [{is: update, split: {each: "e[*]"}, rows: [{row: {k: .k}}]}]
"""
PART_ROWS = """
order: {seq: .n}
session: .id
messages:
  - {when: {.full: true}, is: snapshot, split: {each: "e[*]"}, rows: [{row: {k: .k, v: .v}}]}
  - {is: update, split: {each: "e[*]"}, rows: [{row: {k: .k, v: .v}}]}
"""
SECONDS = """
session: "=s"
time: {path: t, unit: s, else: kafka.timestamp}
messages:
  - {when: {n: 9007199254740992}, is: update, rows: [{row: {k: k, at: at, ns: ns}}]}
  - {when: {w: present}, is: snapshot, scope: {at: w}, rows: []}
  - {is: ignore}
"""
DEEP = """
session: "=s"
messages: [{is: update, rows: [{each: "e%s", row: {k: .k}}]}]
"""
CASES = {
    "a wrong time of a part that is joined": (
        PART_TIMES, '{"e": [{"id": "A", "n": 1, "k": "1", "t": "2026-01-31T00:00:00Z"}, %s]}', [
            '{"id": "A", "n": 1, "k": "2", "t": "soon"}', '{"id": "A", "n": 2, "k": "2", "t": "soon"}',
            '{"id": "A", "n": 1, "k": "2", "t": "2026-01-31T00:00:01Z"}',
        ],
    ),
    "a wrong time before a part without one": (
        PART_TIMES.replace("iso", "iso, else: kafka.timestamp"), '{"e": [%s, {"id": "A", "n": 2, "k": "2"}]}', [
            '{"id": "A", "n": 1, "k": "1", "t": "soon"}', '{"id": "A", "n": 1, "k": "1"}',
        ],
    ),
    "a wrong decimal of a part that a snapshot replaces": (
        PART_ROWS, '{"e": [%s, {"id": "A", "n": 2, "k": "2", "full": true}]}', [
            '{"id": "A", "n": 1, "k": "1", "v": "bad"}', '{"id": "A", "n": 1, "k": "1", "v": "1.5"}',
        ],
    ),
    "numbers that a double cannot have": (
        SECONDS, "{%s}", [
            '"n": 9007199254740993.0', '"n": 9007199254740992.0, "k": "1", "t": 1700000000.1229999999999',
            '"n": 9007199254740992, "k": "1", "at": 1700000000.12345600001', '"w": 1700000000.12345600001',
            '"n": 9007199254740992, "k": "1", "ns": [1700000000000000000.5]', '"w": 1700000000.5',
        ],
    ),
    "more loops than Python allows": (
        DEEP % ("[*]" * 19), '{"e": ' + "[" * 19 + '{"k": "1"}' + "]" * 19 + "}", [""],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_readers_agree_about(name: str) -> None:
    text, body, parts = CASES[name]
    columns = 'columns: {k: string, v: {type: "decimal(6,2)", from: text}, at: {type: timestamp, from: epoch_s}, '
    columns += "ns: {type: array<timestamp>, from: epoch_ns}}"
    valid = feed(f"name: f\ntopics: rows\nkey: [k]\n{columns}\n{text}")
    values = [(body % part if "%s" in body else body).encode() for part in parts]
    records = [KafkaRecord("rows", 0, number, 1_000, None, value, {}) for number, value in enumerate(values)]
    found = CompiledFeedReader.compile_feed(valid).read_records(KafkaRecordColumns.from_records(records))
    assert in_order(found, valid) == in_order(by_slow_reader(valid, records), valid)


def test_a_message_of_many_parts_is_read_in_time_that_grows_with_them() -> None:
    valid = feed(f"name: f\ntopics: rows\nkey: [k]\ncolumns: {{k: string}}\n{PART_TIMES}".replace("time:", "#"))
    body = {"e": [{"id": "A", "n": 1, "k": str(number)} for number in range(80_000)]}
    record = KafkaRecord("rows", 0, 0, 1_000, None, json.dumps(body).encode(), {})
    begun = time.process_time()
    found = CompiledFeedReader.compile_feed(valid).read_records(KafkaRecordColumns.from_records([record]))
    assert (found.rows, found.refused) == ([80_000], {})
    assert time.process_time() - begun < 10


def test_the_code_of_many_rules_for_parts_grows_with_them() -> None:
    def count_lines(rules: int) -> int:
        text = "\n".join(
            f'  - {{when: {{kind: "{number}"}}, is: update, split: {{each: "e[*]"}}, rows: [{{row: {{k: .k}}}}]}}'
            for number in range(rules)
        )
        valid = feed(f"name: f\ntopics: rows\nsession: .id\nkey: [k]\ncolumns: {{k: string}}\nmessages:\n{text}")
        [source] = CompiledFeedReader.compile_feed(valid).sources
        return source.count("\n")

    assert count_lines(40) < 5 * count_lines(10)
