"""Random streams of feeds whose messages have several sessions, in several forms of JSON and with faults."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import yaml

from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.feeds import FeedSettings
from sessionlake_lab.truth import KafkaMessage

TOPIC = "split"
START = 1_700_000_000_000
NAMES = ("secret", 'a"b', "é/ü", "meter-7")
"""Ids of the sessions. Some have characters that JSON escapes."""
_COMMON = """
name: split
topics: split
columns: {price: bigint, qty: bigint, note: string}
key: [price]
"""
FEEDS = {
    "objects": """
session: .symbol
order: {seq: .u}
messages:
  - {when: {.kind: status}, is: ignore, split: {each: "books[*]"}}
  - {when: {.kind: snapshot}, is: snapshot, split: {each: "books[*]"}, rows: [{each: ".rows[*]", row: all}]}
  - {when: {.kind: end}, is: end, split: {each: "books[*]"}}
  - {is: update, split: {each: "books[*]"}, rows: [{each: ".rows[*]", row: all, delete: {qty: 0}}]}
""",
    "entries": """
session: .key
order: {seq: .value.u}
messages:
  - {when: {.value.kind: status}, is: ignore, split: {each: entries(state.now)}}
  - when: {.value.kind: snapshot}
    is: snapshot
    split: {each: entries(state.now)}
    rows: [{each: ".value.rows[*]", row: all}]
  - {when: {.value.kind: end}, is: end, split: {each: entries(state.now)}}
  - {is: update, split: {each: entries(state.now)}, rows: [{each: ".value.rows[*]", row: all, delete: {qty: 0}}]}
""",
    "links": """
session: .symbol
order: {seq: .u, after: .before}
messages:
  - {when: {.kind: status}, is: ignore, split: {each: "[1:][*]"}}
  - when: {.kind: snapshot}
    is: snapshot
    split: {each: "[1:][*]"}
    rows: [{each: ".rows[*]", row: all}]
  - {when: {.kind: end}, is: end, split: {each: "[1:][*]"}}
  - {is: update, split: {each: "[1:][*]"}, rows: [{each: ".rows[*]", row: all, delete: {qty: 0}}]}
""",
    "chain": """
session: ^.symbol
order: {seq: n, chain: connection}
messages:
  - {when: {^.kind: status}, is: ignore, split: {each: "events[*].rows[*]"}}
  - {when: {^.kind: snapshot}, is: snapshot, split: {each: "events[*].rows[*]"}, rows: [{row: all}]}
  - {when: {^.kind: end}, is: end, split: {each: "events[*].rows[*]"}}
  - {is: update, split: {each: "events[*].rows[*]"}, rows: [{row: all, delete: {qty: 0}}]}
""",
}
Part = dict[str, Any]


def capture_of_split(form: str, **changed: Any) -> CaptureSettings:
    """Capture settings with the feed of a form."""
    feed = FeedSettings.model_validate(yaml.safe_load(_COMMON + FEEDS[form]))
    given = {"integrity": "strict", "on_violation": "isolate", "session_timeout": "1 hour", "feeds": (feed,)} | changed
    return CaptureSettings(**given)


def split_messages(form: str, rnd: random.Random, count: int) -> list[KafkaMessage]:
    """Messages of a form with up to four parts, of which some are lost, repeated or malformed."""
    wrap, seqs, number = _WRAPPED[form], dict.fromkeys(NAMES, 0), 0
    found: list[KafkaMessage] = []
    ends = [0, 0]
    for index in range(count):
        some = [_random_part(rnd, name, seqs) for name in rnd.sample(NAMES, rnd.randrange(5))]
        if some and form != "entries" and rnd.random() < 0.2:
            some.append(some[-1] | {"rows": [_random_row(rnd)], "kind": some[-1]["kind"]})
        number += rnd.choices([1, 2, 0], [90, 5, 5])[0]
        body = wrap(some, number, rnd)
        value = json.dumps(body, indent=rnd.choice([None, None, 1]), ensure_ascii=rnd.random() < 0.5)
        if rnd.random() < 0.03:
            value = value[:-1]
        time, partition = START + index * 60_000, rnd.choice([0, 0, 1])
        found.append(KafkaMessage(TOPIC, partition, ends[partition], time, rnd.choice([None, b"k"]), value.encode()))
        ends[partition] += 1
    return found


def _random_row(rnd: random.Random) -> Part:
    qty = "x" if rnd.random() < 0.005 else rnd.randrange(4)
    return {"price": rnd.randrange(5), "qty": qty, "note": rnd.choice(["", '}],"', "\\", "ü\u2028", "[{"])}


def _random_part(rnd: random.Random, name: str, seqs: dict[str, int]) -> Part:
    kind = rnd.choices(["update", "snapshot", "status", "end"], [75, 15, 7, 3])[0]
    if not seqs[name]:
        kind = "snapshot"
    before = seqs[name]
    seqs[name] += rnd.choices([1, 2, 0], [92, 4, 4])[0]
    rows = [_random_row(rnd) for _ in range(rnd.randrange(1, 4))]
    return {"symbol": name, "u": seqs[name], "before": before, "kind": kind, "rows": rows}


def _in_entries(parts: list[Part], _: int, rnd: random.Random) -> Any:
    entries = {part["symbol"]: {key: part[key] for key in ("u", "kind", "rows")} for part in parts}
    return {"state": {"now": entries or rnd.choice([{}, None])}, "x": [1, {"y": None}]}


_WRAPPED: dict[str, Callable[[list[Part], int, random.Random], Any]] = {
    "objects": lambda parts, number, _: {"number": number, "books": parts, "after": {"books": []}},
    "entries": _in_entries,
    "links": lambda parts, number, _: [{"number": number}, *parts],
    "chain": lambda parts, number, rnd: {"n": number, "connection": rnd.choices("xy", [9, 1])[0], "events": parts},
}
