"""Simulates order books in the message form of an exchange, with a checksum of the book in every update.

The form is that of Kraken's WebSocket API v1, channel `book`: arrays with texts for prices and quantities. A quantity
of zero deletes a level, and a book keeps its best levels only. One update of each book is lost on its way. Its next
checksum then does not fit, and a little later the exchange sends a snapshot, as after a new subscription.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from sessionlake_lab.simulate.scenario import KafkaRecord

BOOK_TOPIC = "exchange.book"
DEPTH = 25
"""Number of levels that each side of a book keeps."""
_CHECKED = 10
_SNAPSHOT_AFTER = 4
"""Number of updates from the lost one to the next snapshot."""
_TICKS = 10  # to a unit of the price
_LOTS = 10**8  # to a unit of the quantity
_DELETED, _ADDED = 0.2, 0.45  # upper ends of the random numbers that delete and add a level; the others change one
_LEVEL = {"book_price": ".[0]", "book_qty": ".[1]", "price_text": ".[0]", "qty_text": ".[1]"}
BOOK_FEED: dict[str, Any] = {
    "name": "book",
    "topics": BOOK_TOPIC.replace(".", r"\."),
    "session": "[-1]",
    "key": ["side", "book_price"],
    "columns": {
        "side": "string",
        "book_price": {"type": "decimal(20,10)", "from": "text"},
        "book_qty": {"type": "decimal(24,10)", "from": "text"},
        "price_text": "string",
        "qty_text": "string",
    },
    "keep": {"per": ["side"], "best": "book_price", "descending": ["bid"], "rows": DEPTH},
    "check": {
        "checksum": "[-3].c",
        "rows": _CHECKED,
        "crc32": {"groups": ["ask", "bid"], "columns": ["price_text", "qty_text"], "digits_only": True},
    },
    "messages": [
        {
            "when": {"[1].as": "present"},
            "is": "snapshot",
            "rows": [
                {"each": f"[1].{name}[*]", "row": {"side": f"={side}", **_LEVEL}}
                for name, side in (("as", "ask"), ("bs", "bid"))
            ],
        },
        {
            "is": "update",
            "rows": [
                {"each": f"[1:-2][*].{name}[*]", "row": {"side": f"={side}", **_LEVEL}, "delete": {"book_qty": 0}}
                for name, side in (("a", "ask"), ("b", "bid"))
            ],
        },
    ],
}  # fmt: skip
"""The feed that reads the books: an entry of `capture.feeds`."""


@dataclass
class OrderBook:
    """An order book, as the exchange has it.

    Attributes:
        product: Name of the product, which is the id of the book's session.
        asks: Quantity of each ask by its price, both as whole numbers: lots by ticks.
        bids: Quantity of each bid by its price, in lots by ticks.
    """

    product: str
    asks: dict[int, int] = field(default_factory=dict)
    bids: dict[int, int] = field(default_factory=dict)

    def fill_random_levels(self, rng: Random, middle_price: int) -> None:
        """Fills both sides with random quantities at the prices next to `middle_price`, a price in ticks."""
        self.asks = {middle_price + place: _draw_quantity(rng) for place in range(1, DEPTH + 1)}
        self.bids = {middle_price - place: _draw_quantity(rng) for place in range(1, DEPTH + 1)}

    def change_random_level(self, rng: Random) -> tuple[str, int, int]:
        """Changes, adds or deletes a random level; returns it.

        Returns:
            Its side (`a` for asks, `b` for bids), its price in ticks, and its new quantity in lots (0 if deleted).
        """
        name = rng.choice("ab")
        levels = self.asks if name == "a" else self.bids
        best = sorted(levels, reverse=name == "b")
        price, chance = best[min(int(rng.expovariate(0.3)), len(best) - 1)], rng.random()
        deletes = chance < _DELETED and len(best) > DEPTH // 2
        if _DELETED <= chance < _ADDED:
            price = self._draw_random_price(rng, name)
        quantity = 0 if deletes else _draw_quantity(rng)
        self.set_level(name, price, quantity)
        return name, price, quantity

    def set_level(self, side: str, price: int, quantity: int) -> None:
        """Sets the quantity of a level, or deletes it if the quantity is 0. Drops levels beyond the depth.

        Args:
            side: Side of the level: `a` for asks, `b` for bids.
            price: Price in ticks.
            quantity: Quantity in lots.
        """
        levels = self.asks if side == "a" else self.bids
        levels[price] = quantity
        if not quantity:
            del levels[price]
        for beyond in sorted(levels, reverse=side == "b")[DEPTH:]:
            del levels[beyond]

    def _draw_random_price(self, rng: Random, side: str) -> int:
        """Returns a random price in ticks for a side (`a` or `b`) that does not cross the other side's best price."""
        if side == "a":
            return max(self.bids, default=0) + 1 + rng.randrange(2 * DEPTH)
        return max(min(self.asks, default=2 * DEPTH) - 1 - rng.randrange(2 * DEPTH), 1)

    def compute_checksum(self) -> str:
        """Returns the CRC32 of the ten best levels of each side as a decimal number, as the exchange documents it."""
        sides = sorted(self.asks.items())[:_CHECKED], sorted(self.bids.items(), reverse=True)[:_CHECKED]
        digits = (
            int(text.replace(".", "")) for side in sides for level in side for text in _format_price_level(*level)
        )
        return str(zlib.crc32("".join(map(str, digits)).encode()))

    def list_expected_rows(self) -> set[tuple[str, Decimal, Decimal]]:
        """Returns side (`ask` or `bid`), price and quantity of all levels, with the decimals that messages have."""
        return {
            (side, Decimal(price) / _TICKS, Decimal(quantity) / _LOTS)
            for side, levels in (("ask", self.asks), ("bid", self.bids))
            for price, quantity in levels.items()
        }

    def encode_snapshot_message(self) -> bytes:
        """Returns the message with all levels of the book."""
        sides = {"as": sorted(self.asks.items()), "bs": sorted(self.bids.items(), reverse=True)}
        return self._encode_message(
            {name: [_format_price_level(*level) for level in levels] for name, levels in sides.items()}
        )

    def encode_update_message(self, side: str, price: int, quantity: int) -> bytes:
        """Returns the message of a changed level on side `side` (`a` or `b`), with the checksum of the whole book."""
        return self._encode_message({side: [_format_price_level(price, quantity)], "c": self.compute_checksum()})

    def _encode_message(self, content: dict[str, Any]) -> bytes:
        return json.dumps([336, content, f"book-{DEPTH}", self.product], separators=(",", ":")).encode()


def make_order_books(products: Sequence[str], seed: int) -> list[OrderBook]:
    """Returns a filled book for each product. The same seed gives the same books."""
    books = [OrderBook(product) for product in products]
    for number, book in enumerate(books):
        book.fill_random_levels(Random(f"{seed}:{number}"), 10_000 * (number + 1))  # noqa: S311 - a simulation needs no secret numbers
    return books


def generate_order_book_messages(
    books: Sequence[OrderBook], *, start_ms: int, duration_s: float, rate: float, seed: int
) -> Iterator[KafkaRecord]:
    """Yields the messages of books in order of time, and changes the books accordingly.

    Args:
        books: The books, which must be filled.
        start_ms: Time of the first message, ms.
        duration_s: Time until the last message, seconds.
        rate: Messages per second of each book.
        seed: Seed of the random changes.
    """
    rng, count = Random(seed), int(duration_s * rate)  # noqa: S311 - a simulation needs no secret numbers
    lost = max(count // 3, 1)
    for number in range(count):
        for book in books:
            if number in {0, lost + _SNAPSHOT_AFTER}:
                value: bytes | None = book.encode_snapshot_message()
            elif number == lost:
                book.set_level("b", max(book.bids), _draw_quantity(rng))
                value = None
            elif number == lost + 1:  # of the other side, so that the lost level is still wrong
                change = "a", min(book.asks), _draw_quantity(rng)
                book.set_level(*change)
                value = book.encode_update_message(*change)
            else:
                value = book.encode_update_message(*book.change_random_level(rng))
            if value is not None:
                yield KafkaRecord(BOOK_TOPIC, 0, book.product.encode(), value, start_ms + int(number * 1000 / rate))


def _draw_quantity(rng: Random) -> int:
    """Returns a random quantity in lots."""
    return rng.randrange(1, 50 * _LOTS)


def _format_price_level(price: int, quantity: int) -> list[str]:
    """Returns the price in ticks and the quantity in lots as decimal texts, as messages have them."""
    return [f"{price // _TICKS}.{price % _TICKS}0000", f"{quantity // _LOTS}.{quantity % _LOTS:08d}"]
