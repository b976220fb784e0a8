"""The code made for a feed gives what the interpreter gives, on frames as they are and on frames bent at random."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from sessionlake.feeds.compiled import Compiled
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.reader import KafkaRecord, read
from support.event_lists import in_order
from support.feed_cases import BINANCE, BOOK, COINBASE, HITBTC, KRAKEN, feed
from support.preset_cases import CUSTOMERS, DEBEZIUM, MAXWELL, ORDERS, SETTINGS, UPSERT
from support.seeds import seeds

ROWS = """
name: rows
topics: rows
session: [kafka.topic, kafka.partition]
key: [id]
columns: {id: bigint, name: string, total: "decimal(10,2)", ratio: double, "on": boolean, small: smallint,
          at: {type: timestamp, from: epoch_us}, day: date}
time: {path: payload.ts, unit: us, else: kafka.timestamp}
unavailable: [__gone]
messages:
  - {when: {body: tombstone}, is: ignore}
  - {when: {payload.op: [c, u, r]}, is: update, rows: [{at: payload.after, row: all}]}
  - {when: {payload.op: d}, is: update, rows: [{at: payload.before, row: key, delete: true, expect: present}]}
  - {when: {payload.op: t}, is: snapshot, rows: []}
"""
MIXED = """
name: mixed
topics: mixed
session: 'parts(kafka.key, "/")[0] | s'
key: [id]
columns: {id: string, v: "decimal(6,3)", w: int}
order: {seq: n, rising: true}
repeats: refuse
messages:
  - {when: {n: [0.5, 7, true, null]}, is: heartbeat}
  - {when: {deep.list: present, gone: absent}, is: snapshot, rows: [
      {each: "deep.list[1:][*].in[*]", row: {id: .id, v: .v | .w, w: n}, delete: {w: null}}]}
  - {when: {end: true}, is: end}
"""
LEVELS = [["1.50", "2"], ["1.7", "0.000"], ["1e1", "3", "x"]]
ROW = {
    "id": 1,
    "name": "a",
    "total": 1.5,
    "ratio": 0.25,
    "on": True,
    "small": 7,
    "at": 1_700_000_000_000_001,
    "day": "2026-01-31",
}
FRAMES: dict[str, tuple[str, list[Any]]] = {
    "book": (BOOK, [
        {"type": "snapshot", "s": "A", "t": 1, "u": 1, "pu": -1, "bids": LEVELS, "asks": []},
        {"type": "delta", "s": "A", "t": 2, "u": 2, "pu": 1, "bids": [], "asks": LEVELS},
        {"type": "beat", "s": "A", "t": 3, "u": 2, "pu": 2},
        {"type": "info"},
    ]),
    "kraken": (KRAKEN, [
        [1, {"as": LEVELS, "bs": LEVELS[:1]}, "book-10", "X/Y"],
        [1, {"a": LEVELS}, {"b": LEVELS, "c": "9"}, "book-10", "X/Y"],
        {"event": "heartbeat"},
    ]),
    "coinbase": (COINBASE, [
        {"type": "snapshot", "product_id": "A-B", "bids": LEVELS, "asks": LEVELS},
        {"type": "l2update", "product_id": "A-B", "changes": [["buy", "1", "2"]],
         "time": "2021-04-17T16:43:37.075687Z"},
        {"type": "ticker"},
    ]),
    "hitbtc": (HITBTC, [
        {"method": name, "params": {"ask": [{"price": "1.5", "size": "0.00"}], "bid": [], "sequence": 3, "symbol": "A",
                                    "timestamp": "2021-07-15T03:06:43.095Z"}}
        for name in ("snapshotOrderbook", "updateOrderbook", "ticker")
    ]),
    "binance": (BINANCE, [
        {"stream": "x", "data": {"e": "depthUpdate", "E": 5, "s": "A", "U": 3, "u": 4, "b": LEVELS, "a": []}},
    ]),
    "rows": (ROWS, [
        {"payload": {"op": op, "before": {"id": 1}, "after": ROW, "ts": 1_700_000_000_000_123}} for op in "cudt"
    ]),
    "debezium": (ORDERS, DEBEZIUM),
    "maxwell": (CUSTOMERS, MAXWELL),
    "upsert": (SETTINGS, UPSERT),
    "upsert_json": (SETTINGS.replace("uses:", "key_format: json\nuses:"), UPSERT[:1]),
    "mixed": (MIXED, [
        {"n": 3, "s": "q", "deep": {"list": [0, {"in": [{"id": "a", "v": 1.5}, {"id": "b", "w": 2}]}, {"in": []}]}},
        {"n": 7, "s": "q"},
        {"n": 8, "s": "q", "end": True},
    ]),
}  # fmt: skip
ODD = [
    None, True, False, 0, 1, -1, 7, 0.5, 1.0, 1e400, 2**31, 2**63, 10**30, "", "a", "1", "1.50", "-0", "1e3", "nan",
    "ä\n", "__gone", [], {}, [None], [[]], {"id": "a"}, "x" * 300, "2026-01-31", "2021-07-15T03:06:43.095Z",
]  # fmt: skip


def bent(rnd: random.Random, value: Any) -> Any:
    """The value with something in it changed, taken away, repeated or put somewhere else."""
    value = copy.deepcopy(value)
    places = [*_places(value)]
    if not places or rnd.random() < 0.05:
        return rnd.choice(ODD)
    holder, place = rnd.choice(places)
    action = rnd.random()
    if action < 0.5:
        holder[place] = copy.deepcopy(rnd.choice(ODD))
    elif action < 0.7:
        del holder[place]
    elif isinstance(holder, list):
        holder.insert(place, copy.deepcopy(holder[place]))
    else:
        holder[rnd.choice([*ODD[13:19], place])] = holder[place]
    return value


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, inner in items:
        yield value, place
        yield from _places(inner)


def by_interpreter(given: Feed, records: list[KafkaRecord]) -> EventLists:
    out = EventLists.of(given)
    for number, one in enumerate(records):
        out.add(given, number, read(given, one))
    return out


KEY = b'"k/1"'


def messages(rnd: random.Random, frames: list[Any], count: int, bend: float) -> list[KafkaRecord]:
    found = []
    for offset in range(count):
        value = rnd.choice(frames)
        while rnd.random() < bend:
            value = bent(rnd, value)
        text = json.dumps(value).encode().replace(b"Infinity", b"1e400")
        content = rnd.choice([text, text, text, text, text, text[:-1], None, b"[" * 70 + b"]" * 70])
        key = rnd.choice([None, b"k/1", b"\xff", b"/", b'{"id":"k"}', b'"k"', b"[7]"]) if bend else KEY
        found.append(KafkaRecord("rows", 3, offset, 1_000, key, content if bend else text, {"connection": b"c"}))
    return found


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("seed", seeds(3, 200))
def test_the_made_code_gives_what_the_interpreter_gives(name, seed):
    text, frames = FRAMES[name]
    given, rnd = feed(text), random.Random(seed)
    records = messages(rnd, frames, 60, 0.5)
    assert in_order(Compiled.of(given).read(records), given) == in_order(by_interpreter(given, records), given)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_as_they_are_need_no_interpreter(name):
    text, frames = FRAMES[name]
    compiled = Compiled.of(feed(text))
    assert compiled.source is not None
    records = messages(random.Random(1), frames, 100, 0)
    assert in_order(compiled.read(records), compiled.feed) == in_order(
        by_interpreter(feed(text), records), compiled.feed
    )
    assert compiled.slow == 0


def test_texts_of_the_configuration_never_become_code():
    hostile = "x'];import os;os.abort()#\"\\\n"
    named, column = json.dumps(hostile), json.dumps("x'+__import__\"#\\\\")
    text = f"""
name: hostile
topics: h
session: '"x'';raise SystemExit#"'
key: [id]
columns: {{id: string, {column}: string}}
messages:
  - {{when: {{kind: {named}}}, is: update, rows: [{{row: {{id: id, {column}: '"a\\"b''c"'}}}}]}}
  - {{is: ignore}}
"""
    given = feed(text)
    compiled = Compiled.of(given)
    assert compiled.source is not None
    values = [{"kind": hostile, "x';raise SystemExit#": "s", "id": "1", "a\"b'c": "v"}, {"kind": "x"}]
    records = [KafkaRecord("h", 0, n, 0, None, json.dumps(value).encode()) for n, value in enumerate(values)]
    found = compiled.read(records)
    assert (found.session, found.row_id, found.values, compiled.slow) == (["s"], ["1"], [["1"], ["v"]], 0)
