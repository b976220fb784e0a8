"""Silver applies `keep`, `check`, `expect` and `scope` of a feed as the plain definition of its table does."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from sessionlake.feeds.events import DecodedMessage, RowUpsert
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.rows import MAX_ROWS, SessionRowsInMemory
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.feed_cases import BINANCE, COINBASE, HITBTC, KRAKEN
from support.folding import Folder, Silver, ViolationError
from support.seeds import seeds
from support.streams import cut
from unit.test_feed_table import frames, recorded

LEVELS = """
name: levels
topics: levels
session: s
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: bigint, note: string, device: string}
keep: {per: [side], best: qty, descending: [bid], rows: 3}
check: {checksum: sum, with: "unit.test_feed_rows:sums", rows: 2}
messages:
  - when: {type: snapshot}
    is: snapshot
    rows: [{each: "rows[*]", row: {side: .side, price: .price, qty: .qty, note: .note, device: .device}}]
  - when: {type: birth}
    is: snapshot
    scope: {device: device}
    rows: [{each: "rows[*]", row: {side: .side, price: .price, qty: .qty, note: .note, device: device}}]
  - when: {type: update}
    is: update
    rows: [{each: "rows[*]", row: {side: .side, price: .price, qty: .qty, note: .note, device: .device},
            delete: {qty: 0}},
           {each: "new[*]", row: {side: .side, price: .price, qty: .qty}, expect: absent},
           {each: "gone[*]", row: {side: .side, price: .price}, delete: true, expect: present}]
"""
Groups = Mapping[tuple[Any, ...], Sequence[dict[str, Any]]]


def sums(groups: Groups, sent: Any) -> bool:
    """The checksum of these feeds: the sum of the quantities at the top of each side, modulo 3."""
    return total(groups) % 3 == sent


def total(groups: Groups) -> int:
    return sum(row["qty"] or 0 for rows in groups.values() for row in rows)


def settings(text: str, policy: str = "record", **changed: Any) -> CaptureSettings:
    feed = FeedSettings.model_validate(yaml.safe_load(text) | changed)
    return CaptureSettings(feeds=(feed,), on_violation=policy, session_timeout="100 days")


def random_messages(rnd: random.Random, count: int) -> list[KafkaMessage]:
    """Messages of three sessions with few rows, so that rows recur, exceed the limit, and fail their expectations."""

    def row(qty: int | None = None) -> dict[str, Any]:
        found = {"side": rnd.choice(["bid", "ask"]), "price": rnd.choice(["1", "1.50", "2", "3", "4e0", "5"])}
        if qty is None or rnd.random() < 0.9:
            found["qty"] = rnd.randint(0, 5) if qty is None else qty
        return found | ({"note": rnd.choice(["x", None])} if rnd.random() < 0.3 else {}) | device()

    def device() -> dict[str, Any]:
        return {"device": rnd.choice(["d", "e"])} if rnd.random() < 0.8 else {}

    messages = []
    for offset in range(count):
        kind = "snapshot" if offset < 3 else rnd.choice(["snapshot", *["update"] * 8, "birth"])
        body: dict[str, Any] = {"type": kind, "s": "abc"[offset] if offset < 3 else rnd.choice("abc")}
        body["rows"] = [row() for _ in range(rnd.randint(0, 4))]
        if kind == "update" and rnd.random() < 0.5:
            body |= {"new": [row()], "gone": [row()]}
        if kind == "birth":
            body["device"] = rnd.choice(["d", "e"])
        if rnd.random() < 0.5:
            body["sum"] = rnd.randint(0, 2)
        messages.append(KafkaMessage("levels", 0, offset, 1_700_000_000_000 + offset, None, json.dumps(body).encode()))
    return messages


def plain_tables(feed: Feed, messages: Sequence[KafkaMessage], check: Any) -> dict[str, SessionTable]:
    tables: dict[str, SessionTable] = {}
    for message in messages:
        found = read_record(feed, KafkaRecord(*message[:6]))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            tables.setdefault(event.session, SessionTable(feed, check)).apply_event(event)
    return tables


def rows_of(silver: Silver, feed: Feed) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        session: {row_id: {name: row[name] for name in feed.columns} for row_id, row in rows.items()}
        for (_, _, session), rows in silver.rows.items()
    }


@pytest.mark.parametrize("seed", seeds(12, 60, 500))
def test_any_batches_give_the_rows_and_checks_of_the_plain_table(seed: int) -> None:
    rnd = random.Random(seed)
    rules = settings(LEVELS)
    feed = rules.feeds[0].convert_to_feed()
    messages = random_messages(rnd, rnd.choice([5, 40, 120]))
    tables = plain_tables(feed, messages, sums)
    folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        folder.batch(batch)
    silver = folder.silver
    assert rows_of(silver, feed) == {session: table.rows for session, table in tables.items()}
    counted = {key[2]: (row["checks_failed"], row["gaps"]) for key, row in silver.sessions.items()}
    assert counted == {name: (table.checks_failed + table.presence_failed, 0) for name, table in tables.items()}
    events = Counter(event["event"] for event in silver.events)
    assert events["presence"] == sum(table.presence_failed for table in tables.values())
    assert events["checksum"] == sum(table.checks_failed for table in tables.values())
    assert folded(silver, feed) == rows_of(silver, feed)
    other = Folder(rules, 1, rnd)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        other.batch(batch)
    assert by_position(other.silver) == by_position(silver)


def by_position(silver: Silver) -> list[dict[str, Any]]:
    """The changes in order, without the batch that wrote them."""
    return sorted(silver.changes, key=lambda row: (row["_position"], row["session_id"], row["ordinal"]))


def folded(silver: Silver, feed: Feed) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows that the changes give, one by one."""
    tables: dict[str, dict[str, dict[str, Any]]] = {session: {} for (_, _, session) in silver.rows}
    for change in sorted(silver.changes, key=lambda row: (row["_position"], row["ordinal"])):
        table = tables.setdefault(change["session_id"], {})
        if change["change"] == "clear":
            table.clear()
        elif change["change"] == "delete":
            table.pop(change["row_id"], None)
        else:
            row = table.setdefault(change["row_id"], dict.fromkeys(feed.columns))
            row.update({name: change[name] for name in change["_set"]})
    return tables


def message(offset: int, **body: Any) -> KafkaMessage:
    return KafkaMessage("levels", 0, offset, 1_700_000_000_000 + offset, None, json.dumps({"s": "a"} | body).encode())


LEVEL = {"side": "bid", "price": "1", "qty": 1}


@pytest.mark.parametrize("faulty", [{"sum": 2}, {"new": [LEVEL]}, {"gone": [{"side": "ask", "price": "7"}]}])
def test_a_failed_check_breaks_the_session_after_the_message_until_its_next_snapshot(faulty: dict[str, Any]) -> None:
    folder = Folder(settings(LEVELS, "isolate"), 1, random.Random(0))
    folder.batch([
        message(0, type="snapshot", rows=[LEVEL]),
        message(1, type="update", rows=[{**LEVEL, "note": "applied"}], **faulty),
        message(2, type="update", rows=[{**LEVEL, "note": "after"}]),
    ])  # fmt: skip
    session = folder.silver.sessions["levels", 0, "a"]
    assert (session["status"], session["messages"], session["checks_failed"]) == ("broken", 2, 1)
    assert [row["note"] for row in folder.silver.rows["levels", 0, "a"].values()][:1] == ["applied"]
    assert [(row["offset"], row["reason"]) for row in folder.silver.quarantine] == [(2, "session_broken")]
    folder.batch([message(3, type="snapshot", rows=[LEVEL])])
    assert folder.silver.sessions["levels", 0, "a"]["status"] == "open"


def test_a_failed_check_stops_the_job_under_fail() -> None:
    folder = Folder(settings(LEVELS, "fail"), 1, random.Random(0))
    with pytest.raises(ViolationError, match="checksum"):
        folder.batch([message(0, type="snapshot", rows=[LEVEL], sum=0)])


def test_rows_beyond_the_limit_of_memory_are_a_violation_and_the_next_snapshot_heals_it() -> None:
    rows = SessionRowsInMemory(settings(LEVELS, keep=None, check=None).feeds[0].convert_to_feed())
    many = [RowUpsert((), str(number), {"qty": number}) for number in range(MAX_ROWS + 1)]
    assert rows.apply_changes(many, clears=True).is_too_large
    assert not rows.rows
    assert not rows.apply_changes([RowUpsert((), "a", {"qty": 1})]).is_too_large
    rows.apply_changes([RowUpsert((), "a", {"qty": 1})], clears=True)
    assert {*rows.rows} == {"a"}


def test_rows_of_many_groups_are_limited_and_two_full_groups_fit() -> None:
    def puts(sides: int, count: int) -> list[RowUpsert]:
        return [
            RowUpsert((), f"{side} {n}", {"side": str(side), "qty": n}) for side in range(sides) for n in range(count)
        ]

    keep = {"per": ["side"], "best": "qty", "rows": 60_000}
    many = settings(LEVELS, keep=keep, check=None).feeds[0].convert_to_feed()
    rows = SessionRowsInMemory(many)
    assert not rows.apply_changes(puts(2, 60_000), clears=True).is_too_large
    assert rows.apply_changes([RowUpsert((), "c", {"side": "c", "qty": 1})]).is_too_large
    few = settings(LEVELS, keep=keep | {"rows": 1}, check=None).feeds[0].convert_to_feed()
    rows = SessionRowsInMemory(few)
    assert rows.apply_changes(puts(MAX_ROWS + 1, 1), clears=True).is_too_large
    assert not rows.rows


BOUNDARY = [
    {"type": "snapshot", "rows": [{"side": "bid", "price": "1", "qty": 5}, {"side": "ask", "price": "2", "qty": 5}]},
    {"type": "update", "rows": [{"side": "bid", "price": "1", "qty": 4}]},
    {"type": "update", "rows": [{"side": "bid", "price": "3", "qty": 6}, {"side": "ask", "price": "1", "qty": 1}]},
]


def names_first_group(groups: Groups, sent: Any) -> bool:
    """A checksum that depends on the order of the groups."""
    return bool(next(iter(groups)) == (sent,))


@pytest.mark.parametrize("bounds", [[3], [1, 2], [2, 1], [1, 1, 1]])
def test_a_check_gets_the_groups_in_the_same_order_whatever_the_batches(bounds: list[int]) -> None:
    rules = settings(LEVELS, check={"checksum": "sum", "with": "unit.test_feed_rows:names_first_group"})
    folder = Folder(rules, 1, random.Random(0))
    sent = [message(n, **body, sum="ask") for n, body in enumerate(BOUNDARY)]
    tables = plain_tables(rules.feeds[0].convert_to_feed(), sent, names_first_group)
    for size in bounds:
        folder.batch(sent[:size])
        sent = sent[size:]
    (session,) = folder.silver.sessions.values()
    assert (session["checks"], session["checks_failed"]) == (3, 0)
    assert (tables["a"].checks, tables["a"].checks_failed) == (3, 0)


@pytest.mark.parametrize("bounds", [[3], [1, 2], [2, 1], [1, 1, 1]])
def test_rows_beyond_the_limit_are_deleted_in_the_same_order_whatever_the_batches(bounds: list[int]) -> None:
    keep = {"per": ["side"], "best": "qty", "descending": ["bid"], "rows": 1}
    folder = Folder(settings(LEVELS, keep=keep, check=None), 1, random.Random(0))
    sent = [message(n, **body) for n, body in enumerate(BOUNDARY)]
    for size in bounds:
        folder.batch(sent[:size])
        sent = sent[size:]
    deletes = [row for row in folder.silver.changes if row["change"] == "delete"]
    assert [(row["row_id"], row["ordinal"]) for row in deletes] == [('["ask",2]', 2), ('["bid",1]', 3)]


COUNTED = """
name: counted
topics: levels
session: s
key: [id]
columns: {id: string, v: bigint}
order: {seq: n, modulo: 8}
messages:
  - {when: {type: birth}, is: snapshot, restart: true, rows: [{each: "rows[*]", row: all}]}
  - {when: {type: data}, is: update, rows: [{each: "rows[*]", row: all}]}
"""


@pytest.mark.parametrize(
    ("numbers", "seqs", "gaps", "duplicates"),
    [
        ([6, 7, 0, 1], [6, 7, 8, 9], 0, 0),
        ([6, 0], [6, 8], 1, 0),
        ([6, 7, 7, 6, 0], [6, 7, 8], 0, 2),
        ([6, 2], [6, 10], 1, 0),
        ([6, 3], [6], 0, 1),
    ],
)
@pytest.mark.parametrize("batches", [1, 9])
def test_a_counter_that_starts_again_at_0_is_unwrapped(
    numbers: list[int], seqs: list[int], gaps: int, duplicates: int, batches: int
) -> None:
    folder = Folder(settings(COUNTED), 1, random.Random(1))
    messages = [
        message(at, type="data" if at else "birth", n=number, rows=[{"id": "a", "v": at}])
        for at, number in enumerate(numbers)
    ]
    for batch in cut(random.Random(1), messages, batches):
        folder.batch(batch)
    session = folder.silver.sessions["levels", 0, "a"]
    assert (session["gaps"], session["duplicates"]) == (gaps, duplicates)
    assert [row["_seq"] for row in folder.silver.changes if row["change"] == "upsert"] == seqs
    folder.batch([message(99, type="birth", n=3, rows=[])])
    assert folder.silver.sessions["levels", 0, "a"]["next_seq"] == 4


def test_a_chain_of_some_rules_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"some rules have a `chain` and others do not"):
        settings(COUNTED, messages=[{"is": "snapshot", "order": {"seq": "n", "chain": "c"}}, {"is": "update"}])


def played(text: str, name: str, **changed: Any) -> tuple[Silver, Feed]:
    """Silver's tables of a recording in random batches. The class is strict, and violations are recorded."""
    rules = settings(text, topics=".*", **changed)
    rnd = random.Random(7)
    folder = Folder(rules, 3, rnd, headers={"connection": b"c"})
    messages = [KafkaMessage("feed.a.b", 0, n, time, None, body) for n, (time, body) in enumerate(frames(name))]
    for batch in cut(rnd, messages, 9):
        folder.batch(batch)
    return folder.silver, rules.feeds[0].convert_to_feed()


@recorded
def test_every_checksum_of_kraken_fits_silvers_rows() -> None:
    silver, _ = played(KRAKEN, "KRAKEN.ws.50.0")
    sessions = silver.sessions.values()
    assert (sum(row["checks"] for row in sessions), sum(row["checks_failed"] for row in sessions)) == (4269, 0)
    assert not silver.quarantine
    assert not silver.events


@recorded
@pytest.mark.parametrize(("text", "name"), [(COINBASE, "COINBASE.ws.28.0"), (HITBTC, "HITBTC.ws.1.0")])
def test_recorded_books_are_those_of_the_plain_table(text: str, name: str) -> None:
    silver, feed = played(text, name)
    tables: dict[str, SessionTable] = {}
    for offset, (time, body) in enumerate(frames(name)):
        found = read_record(feed, KafkaRecord("feed.a.b", 0, offset, time, None, body, {"connection": b"c"}))
        assert isinstance(found, DecodedMessage)
        for event in found.events:
            tables.setdefault(event.session, SessionTable(feed)).apply_event(event)
    assert rows_of(silver, feed) == {session: table.rows for session, table in tables.items() if table.rows}
    assert not [event for event in silver.events if event["event"] != "duplicate"]


@recorded
def test_every_range_of_binance_continues_the_one_before_in_silver() -> None:
    silver, _ = played(BINANCE, "BINANCE.ws.1.0", starts_with="anything")
    assert sum(row["messages"] for row in silver.sessions.values()) == 177
    assert not silver.events


TYPED_SIDES = """
name: sides
topics: levels
session: s
key: [is_bid, price]
columns: {is_bid: boolean, level: int, price: int}
keep: {per: [level, is_bid], best: price, descending: [true], rows: 1}
messages:
  - {is: snapshot, rows: [{each: "rows[*]", row: {is_bid: .b, level: .l, price: .p}}]}
"""


@pytest.mark.parametrize("descending", [True, "true"])
def test_groups_are_found_by_values_of_the_type_of_their_column(descending: Any) -> None:
    rules = settings(TYPED_SIDES.replace("[true]", json.dumps([descending])))
    rows = [{"b": is_bid, "l": 1, "p": price} for is_bid in (True, False) for price in (10, 20)]
    messages = [KafkaMessage("levels", 0, 0, 1_700_000_000_000, None, json.dumps({"s": "x", "rows": rows}).encode())]
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(messages)
    best = [(True, 20), (False, 10)]  # level 1 equals True in Python, but is no value of is_bid
    plain = plain_tables(rules.feeds[0].convert_to_feed(), messages, None)["x"].rows.values()
    assert [(row["is_bid"], row["price"]) for row in plain] == best
    in_silver = rows_of(folder.silver, rules.feeds[0].convert_to_feed())["x"].values()
    assert sorted(((row["is_bid"], row["price"]) for row in in_silver), reverse=True) == best
