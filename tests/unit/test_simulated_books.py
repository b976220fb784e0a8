"""Simulated order books: read by their feed, they are the exchange's books, and every checksum fits."""

from __future__ import annotations

import random

import pytest

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.kraken import checksum
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.simulate.books import BOOK_FEED, OrderBook, generate_order_book_messages, make_order_books
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder
from support.streams import cut

PRODUCTS = ("XBT/USD", "ETH/USD")
FEED = FeedSettings.model_validate(BOOK_FEED)


def generate(books: list[OrderBook], seed: int) -> list[KafkaMessage]:
    sent = generate_order_book_messages(books, start_ms=1_700_000_000_000, duration_s=40, rate=5, seed=seed)
    return [KafkaMessage(one.topic, 0, offset, one.timestamp, one.key, one.value) for offset, one in enumerate(sent)]


@pytest.mark.parametrize("seed", range(3))
def test_only_the_lost_update_makes_checksums_fail(seed: int) -> None:
    books = make_order_books(PRODUCTS, seed)
    made = FEED.convert_to_feed()
    tables = {product: SessionTable(made, checksum) for product in PRODUCTS}
    for message in generate(books, seed):
        found = read_record(made, KafkaRecord(*message[:6]))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            tables[event.session].apply_event(event)
    for book in books:
        table = tables[book.product]
        rows = {(row["side"], row["book_price"], row["book_qty"]) for row in table.rows.values()}
        assert rows == book.list_expected_rows()
        # The lost update is missing until the snapshot, three updates later.
        assert 1 <= table.checks_failed <= 3
        assert table.checks == 200 - 3


@pytest.mark.parametrize("seed", range(2))
def test_silver_isolates_a_book_with_a_wrong_checksum_until_its_next_snapshot(seed: int) -> None:
    books, rnd = make_order_books(PRODUCTS, seed), random.Random(seed)
    rules = CaptureSettings(feeds=(FEED,), integrity="strict", on_violation="isolate")
    folder = Folder(rules, 2, rnd)
    for batch in cut(rnd, generate(books, seed), 4):
        folder.batch(batch)
    for book in books:
        session = ("exchange.book", 0, book.product)
        rows = folder.silver.rows[session].values()
        assert {(row["side"], row["book_price"], row["book_qty"]) for row in rows} == book.list_expected_rows()
        progress = folder.silver.sessions[session]
        assert (progress["status"], progress["checks_failed"]) == ("open", 1)
        assert progress["checks"] == 200 - 5
