"""The code made for a feed gives what the interpreter gives, on frames as they are and on frames bent at random."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from sessionlake.feeds.bulk import convert_times_and_find_invalid
from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.reader import KafkaRecord, KafkaRecordColumns
from sessionlake.feeds.times import convert_time_to_milliseconds
from support.event_lists import by_slow_reader, in_order
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
SIGNED = """
name: signed
topics: signed
session: "[0]"
key: [side, price]
columns: {side: string, price: "decimal(20,10)", amount: "decimal(20,10)"}
keep: {per: [side], best: price, descending: [bid], rows: 3}
check: {rows: 2, crc32: {groups: [bid, ask], columns: [side]}}
messages:
  - {when: {"[1]": sum}, is: update, checksum: "[2]"}
  - {when: {"[1][1]": {above: 0}}, is: update, rows: [{row: {side: =bid, price: "[1][0]", amount: "[1][1]"}}]}
  - {when: {"[1][1]": {above: -5.5, below: 0}}, is: update, rows: [{row: {side: =ask, price: "[1][0]",
      amount: "[1][1]"}}]}
  - {when: {"[1]": {below: 100}}, is: heartbeat}
"""
GATEWAY = """
name: gateway
topics: gateway
session: [.device, site]
key: [sensor]
columns: {sensor: string, v: double, unit: string, w: "decimal(6,3)"}
time: {path: .at, unit: ms, else: kafka.timestamp}
messages:
  - {when: {kind: readings, .drop: absent}, is: update, split: {each: "data[*]"},
     rows: [{row: {sensor: .sensor | =none, v: .v, unit: .unit | =C, w: .w | =1.5}, delete: {v: null}}]}
  - {when: {kind: readings}, is: ignore, split: {each: "data[*]"}}
  - {when: {kind: groups}, is: update, split: {each: "groups[*].data[*]"}, session: [.device, ^.site],
     rows: [{each: ".list[*]", row: {sensor: .s, v: .v, unit: ^.unit}}, {at: .more, row: {sensor: .s, v: .v}}]}
  - {is: heartbeat, session: ["=all", number], time: {path: t, unit: ms, else: kafka.timestamp}}
"""
CHANNEL = """
name: channel
topics: channel
session: .id
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: "decimal(20,10)"}
order: {seq: n, chain: conn}
repeats: refuse
messages:
  - {when: {.type: snapshot}, is: snapshot, split: {each: "events[*]"}, scope: {side: .side | =bid},
     rows: [{each: ".levels[*]", row: {side: .side | ^.side | =bid, price: ".[0]", qty: ".[1]"}}]}
  - {when: {.type: update}, is: update, split: {each: "events[*]"},
     rows: [{each: ".levels[*]", row: {side: ^.side, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}}]}
  - {when: {.type: beat}, is: ignore, split: {each: "events[*]"}}
  - {when: {events: absent}, is: ignore}
"""
LINKED = """
name: linked
topics: linked
session: .id
key: [k]
columns: {k: int, v: string}
order: {seq: .n, after: .p}
messages:
  - {when: {.full: true}, is: snapshot, restart: true, split: {each: "entries(by.id)"}, rows: [],
     session: .key, order: {seq: .value.n, after: .value.p}}
  - {when: {.value: present}, is: update, split: {each: "entries(by.id)"}, session: .key,
     order: {seq: .value.n, after: .value.p}, rows: [{each: ".value.rows[*]", row: {k: .k, v: .v}}]}
  - {when: {.full: true}, is: snapshot, restart: true, split: {each: "list[*]"}, rows: [{row: {k: .k, v: "=x y"}}]}
  - {is: update, split: {each: "list[*]"}, rows: [{each: entries(.rows), row: {k: .value, v: .key}}]}
"""
DEPTHS = [["1.50", 2], ["1.7", 0]]
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
    "signed": (SIGNED, [["a", [1.5, 2.25]], ["a", [1.5, -2]], ["a", "sum", 77], ["a", -3], ["a", "99.5"]]),
    "gateway": (GATEWAY, [
        {"kind": "readings", "site": 7, "data": [
            {"device": "a", "sensor": "x", "v": 1.5, "at": 1_000}, {"device": "b", "sensor": "x", "v": 2.5, "w": 2},
            {"device": "a", "sensor": "y", "v": None, "unit": "F"}, {"device": "c", "drop": 1}]},
        {"kind": "groups", "groups": [
            {"site": site, "data": [{"device": site, "unit": "F", "list": [{"s": "x", "v": 0.5}, {"s": "y"}],
                                     "more": {"s": "z", "v": 3}}] * site}
            for site in (1, 2)]},
        {"number": 3, "t": 5}, {"number": True},
    ]),
    "channel": (CHANNEL, [
        {"conn": 5, "n": 2, "events": [
            {"type": "snapshot", "id": "A", "side": "ask", "levels": DEPTHS[:2]}, {"type": "beat"},
            {"type": "snapshot", "id": "B", "levels": DEPTHS[:1]}]},
        {"conn": 5, "n": 3, "events": [
            {"type": "update", "id": "A", "side": "ask", "levels": DEPTHS[:1]}, {"type": "beat"},
            {"type": "update", "id": "A", "side": "bid", "levels": DEPTHS[:1]}]},
        {"conn": 6, "n": 4, "events": [{"type": "beat"}, {"type": "beat"}]},
        {"conn": 6, "n": 5},
    ]),
    "linked": (LINKED, [
        {"by": {"id": {
            "A": {"n": 3, "p": 2, "rows": [{"k": 1, "v": "a"}]}, "B": {"n": 5, "p": 4, "rows": [{"k": 1}]}}}},
        {"list": [{"id": 7, "full": True, "n": 3, "p": -1, "k": 2}, {"id": "A", "n": 9, "p": 8, "rows": {"u": 1}}]},
        {"list": [{"id": 7, "n": n, "p": n - 1, "rows": {"u": n, "w": 2}} for n in (3, 4, 5)]},
    ]),
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
    assert in_order(
        CompiledFeedReader.compile_feed(given).read_records(KafkaRecordColumns.from_records(records)), given
    ) == in_order(by_slow_reader(given, records), given)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_as_they_are_need_no_interpreter(name):
    text, frames = FRAMES[name]
    compiled = CompiledFeedReader.compile_feed(feed(text))
    assert compiled.sources
    records = messages(random.Random(1), frames, 100, 0)
    assert in_order(compiled.read_records(KafkaRecordColumns.from_records(records)), compiled.feed) == in_order(
        by_slow_reader(feed(text), records), compiled.feed
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
    compiled = CompiledFeedReader.compile_feed(given)
    assert compiled.sources
    values = [{"kind": hostile, "x';raise SystemExit#": "s", "id": "1", "a\"b'c": "v"}, {"kind": "x"}]
    records = [KafkaRecord("h", 0, n, 0, None, json.dumps(value).encode()) for n, value in enumerate(values)]
    found = compiled.read_records(KafkaRecordColumns.from_records(records))
    assert (found.session, found.row_id, found.values, compiled.slow) == (["s"], ["1"], [["1"], ["v"]], 0)


UNREAD = """
name: unread
topics: u
session: s
key: [id]
columns: {id: string, v: double, n: bigint}
messages:
  - {when: {deep.kind: [a, 1]}, is: update, rows: [{each: "list[*]", row: {id: ".[0]", v: ".[1]", n: ".[2].n"}}]}
  - {is: ignore}
"""
HOSTILE = [
    b"1", b"1e400", b"-1e-400", b"1e99999999999999999999", b"9" * 4300, b"9" * 4301, b"[" + b"8" * 5000 + b"]",
    b'"\xff"', b'{"\xc3(": 1}', b'"\xc3\xa4"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\x"', b'"\n"', b"01", b"1.",
    b"NaN", b"[1,]",
    b"[" * 61 + b"]" * 61, b"[" * 65 + b"]" * 65, b'"' + b"[" * 99 + b'"', b'{"kind": "a"}', b'{"kind": "b"}',
    b"null", b"-0.0", b"0.0", b"true", b'"a"',
]  # fmt: skip


@pytest.mark.parametrize("name", ["unread", "s", "deep", "list", "kind", "item", "place", "deep\\u0065"])
def test_hostile_values_also_in_unread_and_repeated_fields_are_read_as_the_interpreter_does(name):
    given, records = feed(UNREAD), []
    for value in HOSTILE:
        field = b'"%s": %s, ' % (name.encode(), value)
        first, second = (value if name == part else b"0.5" for part in ("item", "place"))
        inner = b'{%s"kind": "a"}' % (field if name == "kind" else b"")
        items = b'[["i", %s, {"n": 1}, 5, %s]]' % (first, second)
        fields = b'"s": "a", "deep": %s, "list": %s' % (inner, items)
        for text in (b"{" + field + fields + b"}", b"{" + fields + b", " + field[:-2] + b"}"):
            records.append(KafkaRecord("u", 0, len(records), 0, None, text))
    compiled = CompiledFeedReader.compile_feed(given)
    assert in_order(compiled.read_records(KafkaRecordColumns.from_records(records)), given) == in_order(
        by_slow_reader(given, records), given
    )
    assert 0 < compiled.slow < len(records)


RESCUED = """
name: rescued
topics: u
session: s
key: [id]
columns: {id: string, v: double, n: bigint}
messages:
  - {when: {is: all}, is: update, rows: [{at: row, row: all}]}
  - when: {is: each}
    is: snapshot
    rows: [{each: "rows[*]", row: all, delete: {n: null}}, {at: row, row: key, delete: true}]
  - {is: ignore}
"""
EXTRA = [1, -0.0, 1.50, 2**70, 'ä"\\\u2028\x7f\n', None, True, [1, {"z": 0.1, "a": [None]}], {}, "", "\U0001f600"]


def records_with_undeclared_fields(rnd: random.Random, count: int) -> list[KafkaRecord]:
    def row() -> dict[str, Any]:
        extra = {rnd.choice(["x", "y", "ä", "", "N", "Id"]): rnd.choice(EXTRA) for _ in range(rnd.randrange(4))}
        one = {"id": f"r{rnd.randrange(5)}", "v": rnd.random(), "n": rnd.choice([1, None])} | extra
        return dict(rnd.sample([*one.items()], len(one)))

    found = []
    for number in range(count):
        body = {"s": "a", "is": rnd.choice(["all", "each", "none"]), "row": row(), "rows": [row(), row()]}
        found.append(KafkaRecord("u", 0, number, 0, None, json.dumps(body, ensure_ascii=rnd.random() < 0.5).encode()))
    return found


@pytest.mark.parametrize("seed", seeds(3, 100))
def test_rows_with_undeclared_fields_need_no_interpreter(seed):
    given = feed(RESCUED)
    records = records_with_undeclared_fields(random.Random(seed), 200)
    compiled = CompiledFeedReader.compile_feed(given)
    found = compiled.read_records(KafkaRecordColumns.from_records(records))
    assert in_order(found, given) == in_order(by_slow_reader(given, records), given)
    assert compiled.slow == 0
    assert sum(one is not None for one in found.rescued) > 50


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_of_undeclared_fields_are_read_as_the_interpreter_does(value):
    texts = [
        b'{"s": "a", "is": "all", "row": {"id": "1", "x": %s}}' % value,
        b'{"s": "a", "is": "all", "row": %s}' % value,
    ]
    given, records = feed(RESCUED), [KafkaRecord("u", 0, n, 0, None, text) for n, text in enumerate(texts)]
    assert in_order(
        CompiledFeedReader.compile_feed(given).read_records(KafkaRecordColumns.from_records(records)), given
    ) == in_order(by_slow_reader(given, records), given)


DELETES = """
name: deletes
topics: d
session: s
key: [id]
columns: {id: {type: "decimal(4,1)", from: text}, v: {type: "decimal(4,1)", from: text}}
messages:
  - {when: {op: d}, is: update, rows: [{row: {id: id, v: v}, delete: true}]}
  - {is: update, rows: [{row: {id: id, v: v}, delete: {v: 0}}]}
"""


def test_decimals_of_deleted_rows_are_checked():
    texts = [
        "0",
        "-0",
        "0.0",
        "0.00",
        "00",
        "0e5",
        "0e-5",
        "",
        "-",
        ".",
        "--0",
        "0.0.0",
        ".0",
        "+0",
        "1e2",
        "1e9",
        "1.5",
    ]
    texts += ["99999", "٣", None]
    pairs = [(id_, v) for id_ in ["7", *texts] for v in texts]
    values = [json.dumps({"op": op, "s": "s", "id": id_, "v": v}).encode() for op in "du" for id_, v in pairs]
    given = feed(DELETES)
    records = [KafkaRecord("d", 0, number, 0, None, value) for number, value in enumerate(values)]
    compiled = CompiledFeedReader.compile_feed(given)
    assert in_order(compiled.read_records(KafkaRecordColumns.from_records(records)), given) == in_order(
        by_slow_reader(given, records), given
    )
    assert compiled.slow < len(records)


@pytest.mark.parametrize("most", [10, 60, 1000])
def test_a_value_that_is_too_long_is_refused(most):
    given = feed(UNREAD)
    text = b'{"s": "a", "deep": {"kind": "a"}, "list": []}'
    records = [KafkaRecord("u", 0, n, 0, None, text + b" " * (20 * n)) for n in range(60)]
    found = CompiledFeedReader.compile_feed(given).read_records(
        KafkaRecordColumns.from_records(records), max_bytes=most
    )
    assert [*found.refused] == [n for n, one in enumerate(records) if len(one.value or b"") > most]


def test_times_of_many_messages_are_those_of_single_ones():
    rnd, plain = random.Random(5), ["2021-07-15T03:06:43.095Z", "2021-04-17T16:43:37.075687Z", "0001-01-01T00:00:00Z"]
    for _ in range(300):
        times: list[Any] = [7, *plain] if rnd.random() < 0.2 else list(plain)
        for _ in range(rnd.randrange(3)):
            text = rnd.choice(plain)
            place = rnd.randrange(len(text))
            times.append(
                text[:place] + rnd.choice(["", "0", "2", "6", "9", "Z", " ", "T", "+", "٣", "-"]) + text[place + 1 :]
            )
        exact, wrong = [], []
        for number, time in enumerate(times):
            try:
                exact.append(time if isinstance(time, int) else convert_time_to_milliseconds(time, "iso"))
            except ValueError:
                exact.append(0)
                wrong.append(number)
        assert convert_times_and_find_invalid(times) == (exact, wrong), times
