r"""Top of book: the best bid and ask after every change of a depth table.

A row is a price level with the declared columns `side` (`bid` or `ask`), `price` and `qty`. A level without a quantity
is empty. In the configuration:

    capture: {columns: {side: string, price: double, qty: double}} processors:
      - {name: top_of_book, class: top-of-book, topics: 'capture\.depth.*', table: gold.top_of_book}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec import Struct

from sessionlake.processors import Emitted, Message, Processor


class PriceLevel(Struct, array_like=True):
    """A price level of an order book. Columns that were never set are None.

    Attributes:
        side: `bid` or `ask`.
    """

    side: str | None = None
    price: float | None = None
    qty: float | None = None


class OrderBook(Struct):
    """State of a session: all price levels of an order book, by row id."""

    levels: dict[str, PriceLevel] = {}

    def find_best_price_and_quantity(self, side: str) -> tuple[float | None, float | None]:
        """Returns the best price of a side (`bid` or `ask`) and the total quantity at this price.

        Both are None if the side is empty.
        """
        offers = [(level.price, level.qty) for level in self.levels.values() if level.side == side and level.qty]
        prices = [price for price, _ in offers if price is not None]
        if not prices:
            return None, None
        price = max(prices) if side == "bid" else min(prices)
        return price, sum(qty or 0 for at, qty in offers if at == price)


class TopOfBook(Processor[OrderBook]):
    """Emits a row with the best bid and the best ask after every snapshot and every update."""

    state = OrderBook
    output: ClassVar = {
        "event_time": "timestamp",
        "bid": "double",
        "bid_qty": "double",
        "ask": "double",
        "ask_qty": "double",
    }

    def on_message(self, state: OrderBook, message: Message) -> Iterable[Emitted]:
        """Applies a snapshot or update to the order book, and emits a row with the best bid and ask."""
        if message.type in {"heartbeat", "end"}:
            return
        if message.type == "snapshot":
            state.levels.clear()
        for row in message.rows:
            level = state.levels.setdefault(row.id, PriceLevel())
            for name in row.values.keys() & _COLUMNS:
                setattr(level, name, row.values[name])
        for row_id in message.deleted:
            state.levels.pop(row_id, None)
        yield self._build_top_of_book_row(state, message)

    def _build_top_of_book_row(self, book: OrderBook, message: Message) -> dict[str, Any]:
        (bid, bid_qty), (ask, ask_qty) = (
            book.find_best_price_and_quantity("bid"),
            book.find_best_price_and_quantity("ask"),
        )
        return {"event_time": message.ts, "bid": bid, "bid_qty": bid_qty, "ask": ask, "ask_qty": ask_qty}


_COLUMNS = {"side", "price", "qty"}
