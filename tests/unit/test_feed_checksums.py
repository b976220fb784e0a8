"""A CRC32 that a feed describes has the text that its settings say, in the plain table, in silver and in `feed try`."""

from __future__ import annotations

import json
import pickle
import random
import zlib
from decimal import Decimal
from typing import Any

import pytest
import yaml

from sessionlake.feeds.checksums import Crc32Checksum
from sessionlake.feeds.kraken import checksum as kraken_checksum
from sessionlake.feeds.numbers import NumberRange, NumberText
from sessionlake.settings.feeds import FeedSettings
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder
from support.seeds import seeds
from support.streams import cut
from unit.test_feed_rows import plain_tables, settings

BID = [{"p": "10.50", "q": "2"}, {"p": "10.4", "q": "0.070"}, {"p": "9", "q": "1"}]
ASK = [{"p": "11", "q": "0.5"}]
GROUPS = {("bid",): BID, ("ask",): ASK}
BOOK = """
name: book
topics: levels
session: s
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)"}, price_text: {type: string, from: digits},
          qty: {type: "decimal(20,10)"}, qty_text: {type: string, from: digits}}
keep: {per: [side], best: price, descending: [bid], rows: 4}
check: {checksum: sum, rows: 2, crc32: {groups: [bid, ask], columns: [price_text, qty_text], separator: ":",
                                        interleaved: true}}
messages:
  - when: {type: snapshot}
    is: snapshot
    rows:
      - {each: "b[*]", row: {side: =bid, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"}}
      - {each: "a[*]", row: {side: =ask, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"}}
  - is: update
    rows:
      - {each: "b[*]", row: {side: =bid, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"},
         delete: {qty: 0}}
      - {each: "a[*]", row: {side: =ask, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"},
         delete: {qty: 0}}
"""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "10.50210.40.07091110.5"),
        ({"between_values": ":", "between_rows": ":"}, "10.50:2:10.4:0.070:9:1:11:0.5"),
        ({"between_values": ":", "between_rows": ":", "interleaved": True}, "10.50:2:11:0.5:10.4:0.070:9:1"),
        ({"between_values": ":", "between_rows": ",", "between_groups": "|"}, "10.50:2,10.4:0.070,9:1|11:0.5"),
        ({"digits_only": True}, "1050210470911151"[:-1]),
        ({"groups": ("ask", "bid"), "columns": ("q", "p"), "between_values": " "}, "0.5 112 10.500.070 10.41 9"),
        ({"groups": ("ask", "none"), "between_groups": "|"}, "110.5|"),
    ],
)
def test_the_text_of_a_checksum_joins_values_rows_and_groups(given: dict[str, Any], text: str) -> None:
    check = Crc32Checksum(**({"groups": ("bid", "ask"), "columns": ("p", "q")} | given))
    assert check.build_checksum_text(GROUPS) == text
    number = zlib.crc32(text.encode())
    assert all(
        check.matches_sent_checksum(GROUPS, sent)
        for sent in (number, str(number), NumberText(number), number - 2**32 * (number >= 2**31))
    )
    assert not check.matches_sent_checksum(GROUPS, number ^ 1)


@pytest.mark.parametrize("sent", [None, True, 1.5, Decimal("1.5"), "x", "", "9" * 5000, 2**32, -(2**31) - 1, [1], {}])
def test_anything_but_a_number_of_32_bits_fits_no_rows(sent: Any) -> None:
    assert not Crc32Checksum(("bid",), ("p",)).matches_sent_checksum(GROUPS, sent)


def test_a_null_fits_no_checksum() -> None:
    check = Crc32Checksum(("bid",), ("p",))
    assert check.matches_sent_checksum({}, 0)
    assert not check.matches_sent_checksum({("bid",): [{"p": None}]}, 0)


def test_the_function_of_one_exchange_and_its_description_agree() -> None:
    rnd = random.Random(7)
    check = Crc32Checksum(("ask", "bid"), ("price_text", "qty_text"), digits_only=True)
    for _ in range(50):
        groups = {
            (side,): [{"price_text": f"{rnd.random():.5f}", "qty_text": f"{rnd.random() * 9:.8f}"} for _ in range(3)]
            for side in ("ask", "bid")
        }
        sent = str(zlib.crc32((check.build_checksum_text(groups) or "").encode()))
        assert kraken_checksum(groups, sent)
        restored = pickle.loads(pickle.dumps(check.get_checksum_function()))  # noqa: S301 - bytes that this test wrote
        assert restored(groups, sent)


def text_of(book: dict[str, dict[str, str]]) -> str:
    """The text of the checksum, written for this test alone: the two best bids and asks in turn."""
    best = {"b": sorted(book["b"], key=Decimal, reverse=True), "a": sorted(book["a"], key=Decimal)}
    turns = [(side, best[side][turn]) for turn in range(2) for side in "ba" if turn < len(best[side])]
    return ":".join(f"{price}:{book[side][price]}" for side, price in turns)


def book_messages(rnd: random.Random, count: int) -> tuple[list[KafkaMessage], int]:
    """Messages of a book whose numbers are JSON numbers, and how many of their checksums are wrong."""
    book: dict[str, dict[str, str]] = {"b": {}, "a": {}}
    messages, wrong = [], 0
    for offset in range(count):
        parts = []
        for side, prices in (("b", ("9.50", "9.0", "8.250", "8")), ("a", ("10", "10.10", "11.0", "12"))):
            changes = [
                (rnd.choice(prices), rnd.choice(["1.0", "1.50", "2", "0"][: 4 if offset else 3]))
                for _ in range(rnd.randint(0, 2))
            ]
            for price, qty in changes:
                book[side].pop(price, None)
                if qty != "0":
                    book[side][price] = qty
            parts.append(f'"{side}": [{", ".join(f"[{price}, {qty}]" for price, qty in changes)}]')
        is_wrong = rnd.random() < 0.2
        number = zlib.crc32(text_of(book).encode()) ^ is_wrong
        sent = rnd.choice([number, number - 2**32 if number >= 2**31 else number])
        sent_text = rnd.choice([str(sent), json.dumps(str(sent))])
        has_sum = rnd.random() < 0.8
        wrong += is_wrong and has_sum
        kind = "update" if offset else "snapshot"
        parts += [f'"sum": {sent_text}'] * has_sum
        body = f'{{"type": "{kind}", "s": "x", {", ".join(parts)}}}'
        messages.append(KafkaMessage("levels", 0, offset, 1_700_000_000_000 + offset, None, body.encode()))
    return messages, wrong


@pytest.mark.parametrize("seed", seeds(6, 40, 300))
def test_silver_and_the_plain_table_count_the_same_checksums_as_the_sender(seed: int) -> None:
    rnd = random.Random(seed)
    rules = settings(BOOK)
    feed = rules.feeds[0].build()
    messages, wrong = book_messages(rnd, rnd.choice([3, 30, 90]))
    assert feed.check is not None
    assert feed.check.load is not None
    assert plain_tables(feed, messages, feed.check.load())["x"].checks_failed == wrong
    folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        folder.batch(batch)
    assert folder.silver.sessions["levels", 0, "x"]["checks_failed"] == wrong


OWN_MESSAGES = """
name: signed
topics: levels
session: "[0]"
key: [side, price]
columns: {side: string, price: "decimal(20,10)", amount: "decimal(20,10)",
          price_text: {type: string, from: digits}, amount_text: {type: string, from: digits}}
keep: {per: [side], best: price, descending: [bid], rows: 4}
check: {crc32: {groups: [bid, ask], columns: [price_text, amount_text], separator: ":", interleaved: true}}
messages:
  - {when: {"[1]": sum}, is: update, checksum: "[2]"}
  - when: {"[1]": all, ".[1]": {above: 0}}
    is: snapshot
    split: {each: "[2][*]"}
    rows: [{row: {side: =bid, price: ".[0]", amount: ".[1]", price_text: ".[0]", amount_text: ".[1]"}}]
  - when: {"[1]": all, ".[1]": {below: 0}}
    is: snapshot
    split: {each: "[2][*]"}
    rows: [{row: {side: =ask, price: ".[0]", amount: ".[1]", price_text: ".[0]", amount_text: ".[1]"}}]
"""


def test_signed_amounts_choose_the_side_and_a_checksum_may_have_a_message_of_its_own() -> None:
    right = zlib.crc32(b"9.50:2:10.0:-1.5:9:0.10")
    snapshot = '[7, "all", [[10.0, -1.5], [9.50, 2], [9, 0.10]], 55]'
    bodies = [snapshot, f'[7, "sum", {right}]', f'[7, "sum", {right + 1}]']
    messages = [
        KafkaMessage("levels", 0, offset, 1_700_000_000_000, None, body.encode()) for offset, body in enumerate(bodies)
    ]
    rules = settings(OWN_MESSAGES)
    feed = rules.feeds[0].build()
    assert feed.check is not None
    assert feed.check.load is not None
    table = plain_tables(feed, messages, feed.check.load())["7"]
    assert (table.checks, table.checks_failed) == (2, 1)
    assert sorted((row["side"], row["amount_text"]) for row in table.rows.values()) == [
        ("ask", "-1.5"),
        ("bid", "0.10"),
        ("bid", "2"),
    ]
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(messages)
    session = folder.silver.sessions["levels", 0, "7"]
    assert (session["checks"], session["checks_failed"], session["messages"]) == (2, 1, 3)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"above": 0}, [1, 0.5, "0.1", Decimal("1e-400"), NumberText("2")], [0, -1, "x", None, True, [], "nan", "-1"]),
        ({"below": 0}, [-1, "-0.1", Decimal("-1e400")], [0, 1, Decimal("NaN"), "", "-", {}]),
        ({"above": -1, "below": 1}, [0, "0.99", -0.5], [1, -1, "1"]),
    ],
)
def test_a_range_has_numbers_and_texts_of_numbers_but_not_its_ends(
    bounds: dict[str, Any], inside: list[Any], outside: list[Any]
) -> None:
    assert all(map(NumberRange(**bounds).contains_number, inside))
    assert not any(map(NumberRange(**bounds).contains_number, outside))


CRC32 = {"groups": ["bid", "ask"], "columns": ["price_text", "qty_text"]}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"check": {"checksum": "sum"}}, "check needs exactly one of `crc32`"),
        ({"check": {"checksum": "sum", "with": "a:b", "crc32": CRC32}}, "check needs exactly one of `crc32`"),
        ({"check": {"checksum": "sum", "crc32": CRC32}, "keep": None}, "needs `keep` with one column in `per`"),
        (
            {"check": {"checksum": "sum", "crc32": CRC32 | {"groups": ["bids"]}}},
            "no row can have 'bids' in side; did you mean",
        ),
        (
            {"check": {"checksum": "sum", "crc32": CRC32 | {"columns": ["prise"]}}},
            "the feed declares no column 'prise'",
        ),
        (
            {"check": {"checksum": "sum", "crc32": CRC32 | {"columns": ["price"]}}},
            "price_text: {type: string, from: dig",
        ),
        ({"check": {"crc32": CRC32}}, "check: the feed has a check, but no path to the checksum"),
        (
            {"check": {"checksum": ".sum", "crc32": CRC32, "rows": 2}},
            r"rule 1: check.checksum: the path '.sum' begins with a dot, which is only possible after `split`",
        ),
        (
            {"messages": [{"is": "update", "checksum": ".sum"}]},
            r"rule 1: checksum: the path '.sum' begins with a dot, which is only possible after `split`",
        ),
        (
            {"messages": [{"is": "snapshot", "scope": {"side": ".side"}}]},
            r"rule 1: scope: the path '.side' begins with a dot, which is only possible after `split`",
        ),
        (
            {"check": {"checksum": "sum", "crc32": CRC32, "rows": 10}},
            r"check.rows is 10, but the table keeps at most keep.rows = 4 rows of a group",
        ),
        (
            {"check": {"checksum": "sum", "crc32": CRC32 | {"interleaved": True, "separator": {"groups": "|"}}}},
            r"check.crc32\n.*separator.groups has no effect if interleaved is true.*leave out one of the two",
        ),
        (
            {"check": None, "messages": [{"is": "update", "checksum": "x"}]},
            "rule 1: `checksum` has no effect, because the feed has no `check`",
        ),
        ({"messages": [{"when": {"a": {}}, "is": "update"}]}, "needs `above`, `below` or both"),
        (
            {"messages": [{"when": {"body": {"above": 1}}, "is": "update"}]},
            "`body` can only be compared with a type of values",
        ),
        (
            {"keep": {"per": ["side"], "best": "price", "descending": ["Bid"], "rows": 3}},
            "no row can have 'Bid' in side; did you mean 'bid'",
        ),
        (
            {"keep": {"per": ["side"], "best": "price", "descending": ["xyz"], "rows": 3}},
            "no row can have 'xyz' in side. Rows have ask, bid",
        ),
        (
            {"keep": {"per": ["price"], "best": "qty", "descending": ["high"], "rows": 3}},
            r"keep.descending: 'high' cannot be a value of .*keep.per.*a value of type price \(decimal\(20,10\)\)",
        ),
        (
            {"keep": {"best": "price", "descending": ["bid"], "rows": 3}},
            "'bid' should name a group, but keep.per names no columns",
        ),
    ],
)
def test_a_check_that_cannot_be_made_is_refused_with_its_key(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FeedSettings.model_validate(yaml.safe_load(BOOK) | changed)


def test_groups_of_a_checksum_have_the_type_of_their_column() -> None:
    typed = yaml.safe_load(BOOK.replace("=bid", "=true").replace("=ask", "=false"))
    typed["columns"]["side"] = "boolean"
    typed["keep"]["descending"] = [True]
    typed["check"]["crc32"]["groups"] = [True, "false"]
    check = FeedSettings.model_validate(typed).build().check
    assert check is not None
    assert check.load is not None
    groups = {(True,): [{"price_text": "9", "qty_text": "1"}], (False,): [{"price_text": "10", "qty_text": "2"}]}
    assert check.load()(groups, zlib.crc32(b"9:1:10:2"))
    assert not check.load()(groups, zlib.crc32(b""))


def test_without_a_number_all_rows_that_keep_leaves_are_compared_up_to_ten() -> None:
    for kept, compared in ((4, 4), (400, 10)):
        book = yaml.safe_load(BOOK.replace("rows: 4", f"rows: {kept}").replace("rows: 2, ", ""))
        check = FeedSettings.model_validate(book).build().check
        assert check is not None
        assert check.rows == compared


def test_a_checksum_of_a_part_is_read_if_the_rule_has_a_split() -> None:
    book = yaml.safe_load(BOOK)
    book["check"]["checksum"] = ".sum"
    book["session"] = "s"
    for rule in book["messages"]:
        rule["split"] = {"each": "parts[*]"}
    assert FeedSettings.model_validate(book).build().check is not None
