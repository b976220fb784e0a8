"""Kraken's checksum of an order book: CRC32 over the ten best asks and bids, digit by digit as they were sent."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any


def checksum(groups: Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]], sent: Any) -> bool:
    """Returns True if the order book has the checksum that was sent.

    The texts of price and quantity are joined without points and leading zeros, first of the asks from the lowest price
    up, then of the bids from the highest down. Source: Kraken's WebSocket API v1, "Book checksum".

    Args:
        groups: The best rows of the groups `("ask",)` and `("bid",)`, with columns `price_text` and `qty_text`.
        sent: The checksum as an unsigned decimal number in a text.
    """
    rows = [row for side in ("ask", "bid") for row in groups.get((side,), ())]
    text = "".join(row[name].replace(".", "").lstrip("0") for row in rows for name in ("price_text", "qty_text"))
    return str(zlib.crc32(text.encode())) == str(sent)
