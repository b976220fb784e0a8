"""Messages of made-up producers, for tests of inference. Each form is one that producers of its kind really have."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable
from typing import Any

from sessionlake.feeds.reader import KafkaRecord

LEVELS = [["16493.50", "0.006"], ["16493.00", "0"]]


def records(values: Iterable[Any], topic: str = "t", keys: Iterable[bytes | None] | None = None) -> list[KafkaRecord]:
    """Messages with these values as JSON; None is a tombstone."""
    given = [*values]
    of = [*keys] if keys is not None else [None] * len(given)
    return [
        KafkaRecord(topic, 0, offset, 1_000, key, None if value is None else json.dumps(value).encode())
        for offset, (value, key) in enumerate(zip(given, of, strict=True))
    ]


def linked_book() -> list[Any]:
    """A book in which an update names the seq before it, and a snapshot does not."""
    found, last = [], dict[str, int]()
    for n in range(40):
        name = ("BTC", "ETH")[n % 2]
        data = {"type": "change", "timestamp": 1_700_000_000_000 + n, "instrument_name": name, "change_id": 100 + 7 * n}
        data |= {"bids": [["new", 100.25, 2.0]], "asks": [["change", 110.5, 1.0]]}
        data |= {"prev_change_id": last[name]} if name in last else {"type": "snapshot"}
        last[name] = 100 + 7 * n
        found.append({"jsonrpc": "2.0", "method": "subscription", "params": {"data": data}})
    return found


def wrapped_book() -> list[Any]:
    """A book in an array of one object."""
    found: list[Any] = [{"event": "subscribe", "arg": {"channel": "books", "instId": "BTC"}}]
    last = dict[str, int]()
    for n in range(40):
        name = ("BTC", "ETH")[n % 2]
        data = {
            "asks": LEVELS,
            "bids": LEVELS,
            "ts": str(1_700_000_000_000 + n),
            "seqId": n,
            "prevSeqId": last.get(name, -1),
        }
        action = "update" if name in last else "snapshot"
        found.append({"arg": {"channel": "books", "instId": name}, "action": action, "data": [data]})
        last[name] = n
    return found


def rows_by_action() -> list[Any]:
    """Rows in an array, of which the message's action says what happens to them."""
    found = []
    for n, action in enumerate(["partial", *["insert", "update", "delete"] * 8]):
        row = {"symbol": "XBT", "id": n, "side": "Sell"} | ({} if action == "delete" else {"size": n, "price": 67000.5})
        found.append({"table": "book", "action": action, "data": [row, row | {"id": n + 100}]})
    return found


def chained_book() -> list[Any]:
    """A book whose number rises over all messages of the connection, also those without rows."""
    found: list[Any] = []
    for n in range(40):
        head = {"channel": "l2_data", "timestamp": "2026-01-31T12:00:00.1Z", "sequence_num": n}
        if n % 10 == 9:
            found.append(head | {"channel": "heartbeats", "events": [{"heartbeat_counter": n}]})
            continue
        updates = [{"side": side, "price_level": "21921.73", "new_quantity": "0.06"} for side in ("bid", "offer")]
        event = {"type": "snapshot" if n < 2 else "update", "product_id": ("B", "E")[n % 2], "updates": updates}
        found.append(head | {"events": [event]})
    return found


def captured_changes() -> list[KafkaRecord]:
    """Change data capture in the form of Debezium, with a tombstone."""
    row = {"id": 1, "customer": "a", "total": "12.50", "paid": False, "changed": 1_700_000_000_000_000, "note": None}
    values: list[Any] = [
        {"before": None, "after": row, "op": "c", "ts_ms": 1_700_000_000_000, "source": {"lsn": 3}},
        {"before": row, "after": row | {"paid": True}, "op": "u", "ts_ms": 1_700_000_000_001, "source": {"lsn": 2}},
        {"before": None, "after": row | {"id": 2}, "op": "r", "ts_ms": 1_700_000_000_002, "source": {"lsn": 5}},
        {"before": {"id": 1}, "after": None, "op": "d", "ts_ms": 1_700_000_000_003, "source": {"lsn": 9}},
        None,
    ]
    return records(values, "shop.public.orders", [b'{"id":1}', b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":1}'])


def readings() -> list[Any]:
    """Readings of sensors, each a message."""
    rnd = random.Random(1)
    return [
        {"device_id": f"d{n % 4}", "metric": ("temp", "hum")[n % 8 // 4], "value": rnd.uniform(1, 40), "ok": True,
         "ts": 1_700_000_000_000 + n, "loc": {"lat": 1.5, "lon": 2.25}, "tags": ["a"]}
        for n in range(40)
    ]  # fmt: skip


def points() -> list[Any]:
    """Tables of points of a plant, with snapshots and a seq."""
    return [
        {"plant": "p1", "seq": n, "ts": 1_700_000_000 + n, "type": "update" if n else "snapshot",
         "points": [{"id": f"x{i}", "value": n + 0.5, "quality": "good"} for i in range(3)]}
        for n in range(10)
    ]  # fmt: skip


def upserts() -> list[KafkaRecord]:
    """Rows by key, in which a tombstone deletes a row, and a row has an array."""
    names = [f"o{n % 7}" for n in range(40)]
    values = [
        None if n % 9 == 8 else {"order_id": name, "status": "new", "total": 9.99, "lines": [{"sku": "a"}]}
        for n, name in enumerate(names)
    ]
    return records(values, "orders", [name.encode() for name in names])


_NAMES = [
    "type", "op", "e", "s", "symbol", "bids", "a", "asks", "b", "changes", "data", "payload", "before", "after", "ts",
    "time", "id", "key", "seq", "u", "U", "price", "qty", "size", "topic", "offset", "body", "kafka", "x.y", "a b", "",
    "1", "on", "n", "=x", "|", "a | b", "é", "row_id", "_seq", "Price", "PRICE", "action", "lines", "x" * 120, '"',
]  # fmt: skip
_SINGLE = [
    None, True, False, 0, 1, 7, -3, 1.5, 1e300, 10**30, "", "a", "snapshot", "update", "c", "d", "1.50", "007",
    "2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00", 1_700_000_000_000, "1700000000.5", "bid", "ä\n",
    "\u202e", "=x", "# c", ": ", "y", "\x1b[2J", "a: b", "- x", "'", "{", "%",
]  # fmt: skip
_CELLS = ["1.5", "2", 3, "buy", None, 1.25, True]


def random_records(rnd: random.Random) -> list[KafkaRecord]:
    """Messages of a few random forms, with names and values that are hard to write or read."""
    forms = [_random_value(rnd, 0) for _ in range(rnd.randrange(1, 4))]
    values = []
    for n in range(rnd.randrange(1, 20)):
        value = _random_value(rnd, 0) if rnd.random() < 0.3 else rnd.choice(forms)
        if isinstance(value, dict) and rnd.random() < 0.5:
            value = value | {"seq": n, "symbol": rnd.choice("AB")}
        values.append(None if rnd.random() < 0.05 else value)
    keys = [rnd.choice([None, b"k", b"\xff", b'{"id":1}']) for _ in values]
    return records(values, rnd.choice(["t", "a-b.c'd"]), keys)


def _random_value(rnd: random.Random, depth: int) -> Any:
    chance = rnd.random() if depth < 4 else 1
    if chance < 0.25:
        return {rnd.choice(_NAMES): _random_value(rnd, depth + 1) for _ in range(rnd.randrange(6))}
    if chance < 0.33:
        return [[rnd.choice(_CELLS) for _ in range(rnd.choice([2, 2, 3, 4]))] for _ in range(rnd.randrange(4))]
    if chance < 0.41:
        return [
            {name: _random_value(rnd, depth + 2) for name in rnd.sample(_NAMES, 3)} for _ in range(rnd.randrange(4))
        ]
    if chance < 0.45:
        return [_random_value(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    return rnd.choice(_SINGLE)


def channels() -> list[Any]:
    """Books, trades and tickers in one topic: the action and the channel together say what kind a message is."""
    found: list[Any] = [{"event": "ok", "arg": {"channel": name, "instId": "BTC"}} for name in ("books", "trade")]
    for n in range(60):
        arg = {"instId": ("BTC", "ETH", "SOL")[n % 3]}
        book = {"asks": [["16493.50", f"0.{n + 1}"]], "bids": LEVELS[: n % 2], "ts": str(1_700_000_000_000 + n)}
        found.append({"action": "update" if n > 2 else "snapshot", "arg": {**arg, "channel": "books"}, "data": [book]})
        trades = [[str(1_700_000_000_000 + n), "16493.50", "0.1", "buy"], [str(n), "16493.50", "0.2", "sell"]]
        found.append({"action": "update" if n > 2 else "snapshot", "arg": {**arg, "channel": "trade"}, "data": trades})
        ticker = {"last": "1.5", "open": "1.2"}
        found.append({"action": "snapshot", "arg": {**arg, "channel": "ticker"}, "data": [ticker]})
    return found


def checked_book(form: str = "mixed") -> list[Any]:
    """A book with a CRC32: the three best bids and asks in turn, or the digits of all asks and then of all bids."""
    rnd, found = random.Random(3), []
    book: dict[str, dict[str, str]] = {"bids": {}, "asks": {}}
    for n in range(40):
        changes: dict[str, list[list[str]]] = {"bids": [], "asks": []}
        for side, first in (("bids", 90), ("asks", 100)):
            for price in [f"{first + k}.50" for k in range(8)] if n == 0 else [f"{first + rnd.randrange(8)}.50"]:
                qty = rnd.choice(["0", "0.070", "1.0", "2"]) if n else "3"
                changes[side].append([price, qty])
                book[side].pop(price, None)
                book[side] |= {price: qty} if qty != "0" else {}
        best = {
            side: sorted(book[side].items(), key=lambda one: float(one[0]), reverse=side == "bids") for side in book
        }
        if form == "mixed":
            turns = [best[side][k] for k in range(5) for side in ("bids", "asks") if k < len(best[side])]
            text = ":".join(f"{price}:{qty}" for price, qty in turns)
        else:
            values = [value for side in ("asks", "bids") for level in best[side][:5] for value in level]
            text = "".join(value.replace(".", "").lstrip("0") for value in values)
        kind = {"type": "delta" if n else "snapshot", "symbol": "BTC"}
        found.append({**kind, **changes, "checksum": zlib.crc32(text.encode())})
    return found


def book_of_rows() -> list[Any]:
    """A book whose snapshots have arrays, and whose updates are one level each; and trades that look alike."""
    found: list[Any] = [{"event": "subscribed", "feed": "book", "product_ids": [name]} for name in "AB"]
    for n, name in enumerate("AB"):
        levels = {"bids": [{"price": 9.5, "qty": 1.0}] * (n + 2), "asks": [{"price": 10.5, "qty": 2.0}]}
        found.append({"feed": "book_snapshot", "product_id": name, "timestamp": 1_700_000_000_000, "seq": 10, **levels})
    for n in range(40):
        level = {"side": ("buy", "sell")[n % 2], "price": 9.5, "qty": float(n % 3), "timestamp": 1_700_000_000_000 + n}
        found.append({"feed": "book", "product_id": "AB"[n % 2], "seq": 11 + n // 2, **level})
        trade = {"feed": "trade", "product_id": "AB"[n % 2], "uid": str(n), "seq": n, "price": 9.5, "qty": 1.0}
        found += [{**trade, "side": "buy", "time": 1_700_000_000_000}] * (n % 5 == 0)
    return found


def named_rows() -> list[Any]:
    """Rows in arrays that are named by what happens to them. The topic of the message names the table."""
    found = []
    for n in range(20):
        row = {"id": 100 + n % 7, "price": "9.5", "size": 3 + n}
        data = {"delete": [{"id": 100, "price": "9.5"}] * (n % 3 == 0), "update": [row], "insert": []}
        whole = [{"id": 100 + k, "price": "9.5", "size": k} for k in range(20)]
        kind = {"topic": f"levels.{'AB'[n % 2]}", "type": "delta" if n > 1 else "snapshot"}
        found.append({**kind, "data": data if n > 1 else whole})
    return found
