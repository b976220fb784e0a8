"""The plain fold of events: snapshots replace, updates change, bounded depth deletes, checksums prove the table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.kraken import checksum
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable, build_row_groups_for_checksum
from support.feed_cases import BINANCE, BOOK, COINBASE, HITBTC, KRAKEN, feed, record

BASE = {"type": "change", "s": "x", "t": 1, "bids": [], "asks": []}


def applied(given: Feed, *values: dict[str, Any], check: Any = None) -> SessionTable:
    table = SessionTable(given, check)
    for number, value in enumerate(values):
        found = read_record(given, record(BASE | {"u": number, "pu": number - 1} | value, offset=number))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            table.apply_event(event)
    return table


def quantities(table: SessionTable) -> dict[str, float]:
    return {name: float(row["qty"]) for name, row in table.rows.items()}


def test_a_snapshot_replaces_an_update_changes_and_a_quantity_of_nothing_deletes():
    table = applied(
        feed(BOOK),
        {"bids": [["9", "9"]]},
        {"type": "snapshot", "bids": [["1", "1"], ["2", "2"]]},
        {"bids": [["1.0", "5"], ["2", "0"], ["3", "3"]]},
    )
    assert quantities(table) == {'["bid",1]': 5, '["bid",3]': 3}
    assert (table.messages, table.gaps, table.duplicates) == (3, 0, 0)


@pytest.mark.parametrize(
    ("intervals", "gaps", "duplicates", "messages"),
    [
        ([(1, 0), (2, 1), (2, 1), (3, 2)], 0, 1, 3),
        ([(1, 0), (3, 2)], 1, 0, 2),  # 2 is missing
        ([(5, 0), (6, 5)], 0, 0, 2),  # the first has no gap
        ([(3, 0), (5, 2)], 1, 0, 2),  # a link must be exactly the last
        ([(3, 0), (3, 3)], 0, 1, 1),
    ],
)
def test_links_show_gaps_and_duplicates(intervals, gaps, duplicates, messages):
    table = applied(feed(BOOK), *({"u": seq, "pu": after} for seq, after in intervals))
    assert (table.gaps, table.duplicates, table.messages) == (gaps, duplicates, messages)


def test_a_range_may_overlap_and_a_restart_begins_again():
    ranges = feed(BOOK, order={"seq": "u", "first": "U"})
    table = applied(ranges, {"u": 5, "U": 1}, {"u": 8, "U": 4}, {"u": 12, "U": 10})
    assert (table.gaps, table.duplicates) == (1, 0)
    table = applied(feed(BOOK), {"u": 50}, {"type": "snapshot", "u": 3, "pu": -1}, {"u": 4, "pu": 3})
    assert (table.gaps, table.duplicates, table.last_seq) == (0, 0, 4)


def test_depth_keeps_the_best_of_each_group():
    deep = feed(BOOK, keep={"per": ["side"], "best": "price", "descending": ["bid"], "rows": 2})
    levels = [[str(price), "1"] for price in (3, 1, 2, 4)]
    table = applied(deep, {"type": "snapshot", "bids": levels, "asks": levels})
    assert sorted(table.rows) == ['["ask",1]', '["ask",2]', '["bid",3]', '["bid",4]']
    table = applied(deep, {"bids": levels}, {"bids": [["4", "0"]]})
    assert sorted(table.rows) == ['["bid",3]']  # what left does not come back


def test_a_scope_replaces_some_rows_alone():
    scoped = BOOK.replace("is: snapshot, restart: true", "is: snapshot, scope: {side: side}")
    table = applied(
        feed(scoped),
        {"bids": [["1", "1"]], "asks": [["1", "1"], ["2", "1"]]},
        {"type": "snapshot", "side": "ask", "asks": [["3", "1"]]},
    )
    assert sorted(table.rows) == ['["ask",3]', '["bid",1]']


def test_rows_against_what_is_expected_are_counted():
    text = BOOK.replace('price: ".[0]", qty: ".[1]"}, delete', 'price: ".[0]", qty: ".[1]"}, expect: present, delete')
    table = applied(feed(text), {"type": "snapshot", "bids": [["1", "1"]]}, {"bids": [["1", "2"], ["5", "5"]]})
    assert table.presence_failed == 1


def test_a_checksum_is_compared_after_every_message_that_says_one():
    frame = [0, {"a": [["1.10", "2.0"]]}, {"b": [["0.90", "3.5"]], "c": "3712277254"}, "book-10", "X/Y"]
    given, table = feed(KRAKEN), SessionTable(feed(KRAKEN), checksum)
    for offset, value in enumerate([frame, [0, {"a": [["1.20", "0.5"]], "c": "1"}, "book-10", "X/Y"]]):
        found = read_record(given, record(value, offset=offset, headers={"connection": b"c"}))
        assert isinstance(found, DecodedMessage)
        for event in found.events:
            table.apply_event(event)
    assert list(build_row_groups_for_checksum(given, table.rows)) == [("ask",), ("bid",)]
    assert (table.checks, table.checks_failed) == (2, 1)


RECORDINGS = os.environ.get("SESSIONLAKE_RECORDINGS")


def frames(name: str) -> Iterator[tuple[int, bytes]]:
    """What a recording's server has sent, with the time in ms."""
    for line in (Path(RECORDINGS or "") / name).read_text().splitlines():
        head, colon, body = line.partition(": ")
        if colon and head.replace(".", "").isdigit():
            yield int(float(head) * 1000), body.strip().encode()


recorded = pytest.mark.skipif(RECORDINGS is None, reason="SESSIONLAKE_RECORDINGS names no folder")


def played(given: Feed, name: str, check: Any = None) -> dict[str, SessionTable]:
    """The tables of a recording, by session. No message may be refused."""
    tables: dict[str, SessionTable] = {}
    for offset, (time, body) in enumerate(frames(name)):
        found = read_record(given, KafkaRecord("feed.a.b", 0, offset, time, None, body, {"connection": b"c"}))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            tables.setdefault(event.session, SessionTable(given, check)).apply_event(event)
    return tables


@recorded
def test_every_checksum_that_kraken_has_sent_is_that_of_the_table():
    tables = played(feed(KRAKEN), "KRAKEN.ws.50.0", checksum).values()
    assert (sum(table.checks for table in tables), sum(table.checks_failed for table in tables)) == (4269, 0)


Books = dict[str, dict[tuple[str, Decimal], Decimal]]


def books(tables: dict[str, SessionTable], quantity: str) -> Books:
    return {
        session: {(row["side"], row["price"]): row[quantity] for row in table.rows.values()}
        for session, table in tables.items()
    }


def set_level(book: dict[tuple[str, Decimal], Decimal], side: str, price: str, quantity: str) -> None:
    """Changes a level as every exchange of these does: nothing left of it deletes it."""
    book[side, Decimal(price)] = Decimal(quantity)
    if not Decimal(quantity):
        del book[side, Decimal(price)]


@recorded
def test_coinbase_s_books_are_those_of_a_plain_fold():
    plain: Books = {}
    for _, body in frames("COINBASE.ws.28.0"):
        frame = json.loads(body)
        if frame["type"] == "snapshot":
            plain[frame["product_id"]] = {}
            changes = [(side, *level) for side, name in (("buy", "bids"), ("sell", "asks")) for level in frame[name]]
        else:
            changes = frame["changes"] if frame["type"] == "l2update" else []
        for side, price, quantity in changes:
            set_level(plain[frame["product_id"]], side, price, quantity)
    tables = played(feed(COINBASE), "COINBASE.ws.28.0")
    assert books(tables, "qty") == plain
    assert len(plain) == 10


@recorded
def test_hitbtc_s_books_are_those_of_a_plain_fold_without_a_gap():
    plain: Books = {}
    for _, body in frames("HITBTC.ws.1.0"):
        frame = json.loads(body)
        if frame.get("method") in {"snapshotOrderbook", "updateOrderbook"}:
            said = frame["params"]
            book = plain.setdefault(said["symbol"], {})
            if frame["method"] == "snapshotOrderbook":
                book.clear()
            for side in ("bid", "ask"):
                for level in said[side]:
                    set_level(book, side, level["price"], level["size"])
    tables = played(feed(HITBTC), "HITBTC.ws.1.0")
    assert books(tables, "size") == plain
    assert sum(table.gaps + table.duplicates for table in tables.values()) == 0


@recorded
def test_every_range_of_binance_continues_the_one_before():
    tables = played(feed(BINANCE), "BINANCE.ws.1.0")
    assert sum(table.messages for table in tables.values()) == 177
    assert sum(table.gaps + table.duplicates for table in tables.values()) == 0
