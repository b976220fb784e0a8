"""What a feed makes of a message: events with exact rows, or a reason with path and value. Nothing is read in part."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import EventKind, PresentOrAbsent
from sessionlake.feeds.reader import find_feed_of_topic, read_record
from support.feed_cases import BOOK, KRAKEN, feed, record

CHANGE = {"type": "change", "s": "A/B", "t": 5, "u": 9, "pu": 8, "bids": [["1.50", "2"]], "asks": [["1.70", "0.0"]]}
CONNECTION = {"connection": b"c1"}
UPSERT = """
name: things
topics: things
session: kafka.topic
key: [id]
columns: {id: bigint, name: string, tags: "array<string>"}
messages:
  - {when: {body: tombstone}, is: update, rows: [{at: kafka.key, row: {id: =1}, delete: true}]}
  - {when: {op: del}, is: update, rows: [{at: row, row: key, delete: true, expect: present}]}
  - {when: {op: [ins, 3, true]}, is: update, rows: [{at: row, row: all}]}
"""
PARTS = """
name: parts
topics: parts
session: .device
key: [id]
columns: {id: string, v: bigint}
order: {seq: n}
messages:
  - {when: {list: present, .gone: true}, is: update, split: {each: "list[*]"}, rows: [{row: key, delete: true}]}
  - {when: {list: present}, is: update, split: {each: "list[*]"}, rows: [{row: {id: .id, v: .v | n}}]}
"""


def put(side: str, price: str, qty: str) -> RowUpsert:
    values = {"side": side, "price": Decimal(price), "qty": Decimal(qty)}
    return RowUpsert((side, Decimal(price)), f'["{side}",{price}]', values)


def events(text: str, value: Any, **given: Any) -> tuple[SessionEvent, ...]:
    found = read_record(feed(text), record(value, **given))
    assert isinstance(found, DecodedMessage), found
    return found.events


def refusal(text: str, value: Any, **given: Any) -> MessageRefusal:
    found = read_record(feed(text), record(value, **given))
    assert isinstance(found, MessageRefusal), found
    return found


def test_an_update_sets_and_deletes_rows_in_order_and_names_its_predecessor():
    (event,) = events(BOOK, CHANGE)
    assert (event.session, event.kind, event.ts) == ("A/B", EventKind.UPDATE, 5)
    assert (event.seq, event.after, event.is_link) == (9, 8, True)
    assert event.rows == (put("bid", "1.5", "2"), RowDelete(("ask", Decimal("1.7")), '["ask",1.7]'))


def test_a_snapshot_may_restart_the_order():
    (event,) = events(BOOK, CHANGE | {"type": "snapshot", "pu": -1})
    assert (event.kind, event.restart, event.after, event.is_link) == (EventKind.SNAPSHOT, True, None, False)
    assert event.rows[1] == put("ask", "1.7", "0.0")  # only its updates delete by quantity


def test_heartbeats_ends_and_ignored_messages_have_no_rows():
    for kind, word in ((EventKind.HEARTBEAT, "beat"), (EventKind.END, "bye")):
        (event,) = events(BOOK, CHANGE | {"type": word})
        assert (event.kind, event.rows) == (kind, ())
    assert events(BOOK, {"type": "info"}) == ()


def test_arrays_are_read_by_position_and_the_session_is_a_json_array():
    frame = [1, {"a": [["1.0", "2.0", "t"], ["3.0", "0.00"]]}, {"b": [["0.5", "1"]], "c": "77"}, "book-10", "X/Y"]
    (event,) = events(KRAKEN, frame, headers=CONNECTION)
    assert (event.session, event.seq, event.after, event.ts, event.sent) == ('["c1","X/Y"]', 7, None, 1_000, "77")
    assert [(type(row), row.row_id) for row in event.rows] == [
        (RowUpsert, '["ask",1]'),
        (RowDelete, '["ask",3]'),
        (RowUpsert, '["bid",0.5]'),
    ]
    assert events(KRAKEN, {"event": "heartbeat"}, headers=CONNECTION) == ()


def test_a_tombstone_a_row_by_name_and_a_delete_by_key():
    (event,) = events(UPSERT, None, key=b"k", topic="things")
    assert event.rows == (RowDelete((1,), "[1]"),)
    (event,) = events(UPSERT, {"op": "ins", "row": {"id": 2, "tags": ["a", None], "z": 1, "b": {"c": 1.10}}})
    values = {"id": 2, "tags": ["a", None]}  # the name is absent, and keeps its value
    assert event.rows == (RowUpsert((2,), "[2]", values, '{"b":{"c":1.1},"z":1}'),)
    (event,) = events(UPSERT, {"op": "del", "row": {"id": 2, "name": "x"}})
    assert event.rows == (RowDelete((2,), "[2]", PresentOrAbsent.PRESENT),)


def test_values_of_a_condition_are_compared_with_their_type():
    assert events(UPSERT, {"op": 3.0, "row": {"id": 1}})
    assert events(UPSERT, {"op": True, "row": {"id": 1}})
    for op in (1, "3", None, "true", ["ins"]):
        assert refusal(UPSERT, {"op": op, "row": {"id": 1}}).reason == "no_rule"


def test_parts_go_to_their_sessions_and_are_joined_in_order():
    parts = [{"device": "a", "id": "x"}, {"device": "b", "id": "y", "v": 2}, {"device": "a", "id": "x", "gone": True}]
    first, second = events(PARTS, {"n": 4, "list": parts})
    assert (first.session, first.seq, first.after) == ("a", 4, 3)
    assert first.rows == (RowUpsert(("x",), "x", {"id": "x", "v": 4}), RowDelete(("x",), "x"))
    assert (second.session, len(second.rows)) == ("b", 1)
    assert refusal(PARTS, {"n": 4, "list": [*parts, {"device": "c"}]}).reason == "bad_path"
    assert events(PARTS, {"n": 4, "list": []}) == ()


def test_unavailable_values_are_as_if_not_sent():
    given = feed(UPSERT, unavailable=["__unavailable", None])
    found = read_record(given, record({"op": "ins", "row": {"id": 1, "name": "__unavailable", "tags": None}}))
    assert isinstance(found, DecodedMessage)
    assert found.events[0].rows == (RowUpsert((1,), "[1]", {"id": 1}),)


def test_a_snapshot_sets_what_is_absent_to_null_and_absent_says_otherwise():
    snapshot = UPSERT.replace("op: [ins, 3, true]}, is: update", "op: [ins]}, is: snapshot")
    (event,) = events(snapshot, {"op": "ins", "row": {"id": 1}})
    assert event.rows == (RowUpsert((1,), "[1]", {"id": 1, "name": None, "tags": None}),)
    (event,) = events(snapshot.replace("row: all}", "row: all, absent: keep}"), {"op": "ins", "row": {"id": 1}})
    assert event.rows == (RowUpsert((1,), "[1]", {"id": 1}),)


@pytest.mark.parametrize(
    ("order", "value", "interval"),
    [
        ("arrival", {}, (7, None)),
        ({"seq": "u"}, {"u": 5}, (5, 4)),
        ({"seq": "u"}, {"u": "5"}, (5, 4)),
        ({"seq": "u", "first": "U"}, {"u": 9, "U": 6}, (9, 5)),
        ({"seq": "u", "rising": True}, {"u": 9}, (9, None)),
        ({"seq": "u", "after": "pu"}, {"u": 9, "pu": 9}, (9, 9)),
    ],
)
def test_every_order_is_an_interval(order, value, interval):
    found = read_record(feed(BOOK, order=order), record(CHANGE | {"u": None, "pu": None} | value))
    assert isinstance(found, DecodedMessage)
    assert (found.events[0].seq, found.events[0].after) == interval


def test_an_ignored_message_of_a_chain_has_its_place_in_the_order():
    given = feed(BOOK, order={"seq": "u", "chain": "kafka.headers.connection"})
    found = read_record(given, record({"type": "info", "u": 3}, headers=CONNECTION))
    assert isinstance(found, DecodedMessage)
    (event,) = found.events
    assert (event.kind, event.session, event.seq, event.after, event.chain) == (EventKind.IGNORE, "", 3, 2, "c1")


@pytest.mark.parametrize(
    ("value", "reason", "path", "why"),
    [
        (b"\xff", "not_utf8", "", ""),
        (b"{", "not_json", "", ""),
        (b"[" * 65 + b"]" * 65, "too_deep", "", ""),
        (b"NaN", "not_json", "", ""),
        (None, "tombstone", "", "no rule"),
        ({"type": "other"}, "no_rule", "", "other"),
        (CHANGE | {"s": None}, "bad_path", "s", "missing or null"),
        (CHANGE | {"s": ["x"]}, "bad_value", "s", r'\["x"\] is no text'),
        (CHANGE | {"s": "x" * 257}, "bad_value", "s", "256 bytes"),
        (CHANGE | {"s": "a\nb"}, "bad_value", "s", "control"),
        (CHANGE | {"t": "5"}, "bad_value", "t", "no number"),
        (CHANGE | {"t": 2**63}, "bad_value", "t", "64 bits"),
        ({key: one for key, one in CHANGE.items() if key != "t"}, "bad_path", "t", "missing"),
        (CHANGE | {"u": 1.5}, "bad_value", "u", "whole number"),
        (CHANGE | {"u": 2**63}, "bad_value", "u", "64 bits"),
        (CHANGE | {"pu": None}, "bad_path", "pu", "missing"),
        (CHANGE | {"bids": {}}, "bad_value", r"bids\[\*\]", "no array"),
        (CHANGE | {"bids": [[1.5, "2"]]}, "bad_value", r"\.\[0\]", "price is decimal"),
        (CHANGE | {"bids": [["1.5"]]}, None, "", ""),  # the quantity keeps its value
        (CHANGE | {"bids": [[]]}, "bad_path", r"\.\[0\]", "key's column price"),
        (CHANGE | {"bids": [[None, "2"]]}, "bad_path", r"\.\[0\]", "key's column price"),
        (CHANGE | {"bids": [["1.5", "x"]]}, "bad_value", r"\.\[1\]", "qty"),
    ],
)
def test_a_refused_message_says_where_and_why(value, reason, path, why):
    found = read_record(feed(BOOK), record(value))
    if reason is None:
        assert isinstance(found, DecodedMessage)
        return
    assert isinstance(found, MessageRefusal)
    assert found.reason == reason
    assert re.search(path, found.path)
    assert re.search(why, found.why)


def test_a_long_value_is_shown_in_part_and_a_long_message_is_refused():
    assert len(refusal(BOOK, CHANGE | {"s": ["x" * 10_000]}).why) < 200
    found = read_record(feed(BOOK), record(CHANGE), max_bytes=10)
    assert isinstance(found, MessageRefusal)
    assert found.reason == "too_large"


def test_the_same_key_twice_is_in_order_unless_it_is_refused():
    twice = CHANGE | {"bids": [["1", "1"], ["1.0", "0"]], "asks": []}
    (event,) = events(BOOK, twice)
    assert event.rows == (put("bid", "1", "1"), RowDelete(("bid", Decimal(1)), '["bid",1]'))
    found = read_record(feed(BOOK, repeats="refuse"), record(twice))
    assert isinstance(found, MessageRefusal)
    assert (found.reason, found.why) == ("duplicate_row_id", 'the key ["bid",1] is there twice')


def test_the_first_feed_whose_pattern_matches_the_whole_topic_reads_it():
    feeds = [feed(BOOK), feed(KRAKEN, topics="feed.*")]
    found = [find_feed_of_topic(feeds, topic) for topic in ("feed.book.a", "feed.x", "a.feed.x")]
    assert [getattr(one, "name", None) for one in found] == ["book", "kraken", None]


def test_digits_keep_the_text_of_numbers():
    digits = BOOK.replace('qty: {type: "decimal(24,10)", from: text}', "qty: {type: string, from: digits}")
    digits = digits.replace('price: {type: "decimal(20,10)", from: text}', 'price: "decimal(20,10)"')
    value = b'{"type":"delta","s":"x","t":1,"u":2,"pu":1,"bids":[[1.50,2.00],[3,1e2]]}'
    (event,) = events(digits.replace("delete: {qty: 0}", "absent: keep"), value)
    assert [row.values["qty"] for row in event.rows if isinstance(row, RowUpsert)] == ["2.00", "1e2"]
    assert [row.key[1] for row in event.rows] == [Decimal("1.5"), Decimal(3)]


HUGE = "-1.5e-99999999999999999999"
TYPES = ["bigint", "double", "decimal(38,9)", "string", "date", "timestamp", "boolean", "array<double>", "variant"]


@pytest.mark.parametrize("digits", [False, True])
@pytest.mark.parametrize("sql", TYPES)
def test_a_number_that_no_decimal_can_hold_fits_no_column_and_harms_no_other(sql, digits):
    columns: dict[str, Any] = {"id": "string", "v": sql} | (
        {"d": {"type": "string", "from": "digits"}} if digits else {}
    )
    rules = [{"is": "update", "rows": [{"row": "all"}]}]
    changed = {"session": "s", "key": ["id"], "columns": columns, "order": "arrival", "time": {"path": "t"}}
    given = feed(BOOK, **changed, messages=rules)
    text = f'{{"s": "a", "t": 1, "id": "i", "v": {HUGE}}}'
    found = read_record(given, record(text.encode()))
    if sql == "variant":
        assert isinstance(found, DecodedMessage)
        assert [row.values["v"] for row in found.events[0].rows if isinstance(row, RowUpsert)] == [HUGE]
    else:
        assert isinstance(found, MessageRefusal)
        assert (found.reason, found.path) == ("bad_value", ".v")
    found = read_record(given, record(text.replace('"v"', '"other"').encode()))
    assert isinstance(found, DecodedMessage)
    assert [row.rescued for row in found.events[0].rows if isinstance(row, RowUpsert)] == [
        f'{{"other":{HUGE},"s":"a","t":1}}'
    ]
    found = read_record(given, record(text.replace('"t": ', f'"t": {HUGE}, "x": ').encode()))
    assert isinstance(found, MessageRefusal)
    assert (found.reason, found.path) == ("bad_value", "t")
