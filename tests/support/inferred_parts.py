"""Messages of made-up producers that hold several tables, or are arrays with a checksum, for tests of inference."""

from __future__ import annotations

import random
import zlib
from itertools import zip_longest
from typing import Any

NAMES = ("BTC-USD", "ETH-USD", "SOL-USD")


def levels(rnd: random.Random, first: int, count: int) -> list[list[str]]:
    """Levels of one side of a book: price and quantity."""
    return [[f"{first + rnd.randrange(9)}.50", rnd.choice(["0", "1.5", "2.25"])] for _ in range(count)]


def sides(rnd: random.Random, count: int = 1) -> dict[str, Any]:
    """Both sides of a book."""
    return {"bids": levels(rnd, 90, count), "asks": levels(rnd, 100, count)}


def events() -> list[Any]:
    """Books of several products in the events of a message, which are numbered over the whole connection."""
    rnd, found = random.Random(1), list[Any]()
    for n in range(40):
        chosen = NAMES if n == 0 else rnd.sample(NAMES, rnd.choice([1, 1, 2]))
        parts = [{"type": "snapshot" if n == 0 else "update", "product_id": name, **sides(rnd)} for name in chosen]
        found.append({"channel": "l2", "time": "2026-01-31T12:00:00Z", "message_id": 500 + n, "events": parts})
    return found


def linked_events() -> list[Any]:
    """Changes of several books in an array; each change names the last number of the one before it. With replies."""
    rnd, found, last = random.Random(2), list[Any]([{"result": None, "id": 1}]), dict.fromkeys(NAMES, 100)
    for n in range(40):
        parts = []
        for name in rnd.sample(NAMES, rnd.choice([1, 2, 3])):
            before, last[name] = last[name], last[name] + rnd.choice([2, 5, 9])
            part = {"s": name, "U": before + 1, "u": last[name], "pu": before, "E": 1_700_000_000_000 + n}
            parts.append(part | {"b": levels(rnd, 90, 1), "a": levels(rnd, 100, 1)})
        found.append({"stream": "depth", "data": parts})
    return found


def named_books() -> list[Any]:
    """Books by name in an object of the message."""
    rnd, found = random.Random(3), list[Any]()
    for n in range(40):
        chosen = NAMES if n == 0 else rnd.sample(NAMES, rnd.choice([1, 2]))
        head = {"type": "snapshot" if n == 0 else "update", "ts": 1_700_000_000_000 + n}
        found.append({**head, "result": {name: sides(rnd) for name in chosen}})
    return found


def books_of_one_table() -> dict[str, list[Any]]:
    """Messages that look as if they held several tables, but whose parts belong to one."""
    rnd = random.Random(4)
    every = range(30)
    return {
        "before and after": [{"id": n, "before": sides(rnd), "after": sides(rnd)} for n in every],
        "what happens": [
            {"symbol": "BTC", "insert": {"rows": [{"id": n, "qty": 1}]}, "delete": {"rows": [{"id": n, "qty": 2}]}}
            for n in every
        ],
        "sides": [
            {"symbol": "BTC", "seq": n, "bid": {"levels": levels(rnd, 90, 2)}, "ask": {"levels": levels(rnd, 100, 2)}}
            for n in every
        ],
        "one element": [{"symbol": "BTC", "seq": n, "data": [sides(rnd)]} for n in every],
        "names that do not repeat": [
            {f"o{n}": {"lines": [{"sku": "a", "n": n}]}, f"p{n}": {"lines": [{"sku": "b", "n": n}]}} for n in every
        ],
    }


def checked_tuples() -> list[Any]:
    """Books in messages that are arrays, with a CRC32 in the last of one or two objects, under a short name."""
    rnd, book, found = random.Random(5), {"a": dict[str, str](), "b": dict[str, str]()}, list[Any]()
    found.append({"event": "systemStatus", "status": "online"})
    for n in range(60):
        parts = []
        for side, first in (("a", 100), ("b", 90)):
            rows = [[f"{first + k}.50", "3.00"] for k in range(9)] if n == 0 else levels(rnd, first, 1)
            if n and rnd.random() < 0.3:
                continue
            for price, qty in rows:
                book[side].pop(price, None)
                book[side] |= {price: qty} if qty != "0" else {}
            parts.append({f"{side}s" if n == 0 else side: [[*row, f"17000000{n:02}.5"] for row in rows]})
        if not parts:
            continue
        if n == 0:
            parts = [parts[0] | parts[1]]
        else:
            best = [sorted(book[side].items(), key=lambda one: float(one[0]), reverse=side == "b")[:5] for side in "ab"]
            text = "".join(value.replace(".", "").lstrip("0") for rows in best for level in rows for value in level)
            parts[-1]["c"] = str(zlib.crc32(text.encode()))
        found.append([7, *parts, "book-10", "XBT/USD"])
    return found


def signed_tuples(depth: int = 30) -> list[Any]:
    """A book in messages that are arrays: the sign of an amount is the side, and a CRC32 comes in separate messages.

    `depth` is the number of levels of each side in the snapshot.
    """
    rnd, found = random.Random(6), list[Any]([{"event": "subscribed", "channel": "book", "chanId": 9}])
    book = {float(100 - depth + k): ("2.5" if k < depth else "-1.25") for k in range(2 * depth)}
    found.append([9, [[price, 1, float(amount)] for price, amount in book.items()]])
    for n in range(60):
        price = float(rnd.randrange(90, 110))
        sign = "" if price < 100 else "-"
        if rnd.random() < 0.4:
            book.pop(price, None)
            found.append([9, [price, 0, -1 if sign else 1]])
        else:
            book[price] = sign + rnd.choice(["0.5", "3.25"])
            found.append([9, [price, rnd.randrange(1, 5), float(book[price])]])
        if n % 5 == 4:
            bids, asks = (
                sorted((p for p in book if (p < 100) is is_bid), reverse=is_bid)[:25] for is_bid in (True, False)
            )
            turns = [p for pair in zip_longest(bids, asks) for p in pair if p is not None]
            crc32 = zlib.crc32(":".join(f"{p}:{book[p]}" for p in turns).encode())
            found.append([9, "cs", crc32 - 2**32 if crc32 >= 2**31 else crc32])
        if n % 7 == 0:
            found.append([9, "hb"])
    return found
