"""`feed infer` proposes splits, orders and checksums of messages with several tables, each proven by the recording."""

from __future__ import annotations

from typing import Any

import pytest

from support import inferred_parts as messages
from support.inferred import chained_book, records
from unit.test_feed_inference import proposal, rules


def parts_of(feed: dict[str, Any]) -> set[str]:
    return {rule["split"]["each"] for rule in feed["messages"] if "split" in rule}


def test_events_of_several_sessions_are_read_one_by_one_and_the_number_of_messages_is_a_chain() -> None:
    feed, comments = proposal(records(messages.events()))
    assert comments[:2] == [
        "Proposed from 40 messages of t.jsonl: 40 read, 0 ignored, 0 refused.",
        "Tables: sessions 3, rows 30, gaps 0, duplicates 0.",
    ]
    assert comments[2] == "A message can hold several sessions, so it is read part by part: events[*]."
    assert (parts_of(feed), feed["session"], feed["key"]) == ({"events[*]"}, ".product_id", ["side", "price"])
    assert feed["order"] == {"seq": "message_id", "chain": "kafka.topic"}
    assert rules(feed) == [({".type": "snapshot"}, "snapshot"), ({".type": "update"}, "update")]
    assert [part["each"] for part in feed["messages"][1]["rows"]] == [".bids[*]", ".asks[*]"]


def test_a_message_that_is_missing_in_the_chain_is_a_gap_of_the_proposed_feed() -> None:
    values = messages.events()
    del values[20]
    feed, comments = proposal(records(values))
    assert "order" not in feed  # not every number is one above the one before, and its name is not usual
    for value in values:
        value["sequence_num"] = value.pop("message_id")
    feed, comments = proposal(records(values))
    assert feed["order"] == {"seq": "sequence_num", "chain": "kafka.topic"}
    assert "gaps 1" in comments[1]


@pytest.mark.parametrize("values", [messages.events(), chained_book()], ids=["split", "whole"])
def test_replies_without_a_number_are_no_part_of_the_chain_and_ignored_messages_with_one_are(values: list[Any]) -> None:
    replies: list[Any] = [{"reply": "subscribed", "names": ["a"]}, {"reply": "subscribed", "names": []}]
    number = "message_id" if "message_id" in values[0] else "sequence_num"
    for n, value in enumerate(values):
        value[number] = 500 + n + (n > 20)
    numbered = {"channel": "heartbeats", number: 521}
    feed, comments = proposal(records([*replies, *values[:21], numbered, *values[21:]]))
    assert feed["order"] == {"seq": number, "chain": "kafka.topic"}
    assert "0 refused" in comments[0]
    assert "gaps 0, duplicates 0" in comments[1]
    assert {rule["is"] for rule in feed["messages"] if rule.get("order") == "none"} == {"ignore"}


def test_there_is_no_chain_if_messages_of_one_kind_have_a_number_or_none() -> None:
    values = chained_book()
    without = {name: value for name, value in values[9].items() if name != "sequence_num"}
    feed, comments = proposal(records([*values, without]))
    assert "order" not in feed
    assert "gaps 0" in comments[1]


def test_parts_that_name_the_number_before_are_linked_and_replies_are_ignored() -> None:
    feed, comments = proposal(records(messages.linked_events()))
    assert comments[:2] == [
        "Proposed from 41 messages of t.jsonl: 40 read, 1 ignored, 0 refused.",
        "Tables: sessions 3, rows 30, gaps 0, duplicates 0.",
    ]
    assert (feed["session"], feed["order"], feed["time"]) == (".s", {"seq": ".u", "after": ".pu"}, {"path": ".E"})
    assert rules(feed) == [({"data": "present"}, "update"), ({"data": "absent"}, "ignore")]


def test_parts_without_a_link_cover_a_range_of_numbers() -> None:
    values = messages.linked_events()
    for value in values:
        for part in value.get("data", []):
            del part["pu"]
    feed, comments = proposal(records(values))
    assert feed["order"] == {"seq": ".u", "first": ".U"}
    assert "refused" in comments[0]
    assert "gaps 0, duplicates 0" in comments[1]


def test_fields_of_an_object_that_are_named_as_tables_are_read_one_by_one() -> None:
    feed, comments = proposal(records(messages.named_books()))
    assert comments[1] == "Tables: sessions 3, rows 34, gaps 0, duplicates 0."
    assert (parts_of(feed), feed["session"], feed["time"]) == ({"entries(result)"}, ".key", {"path": "ts"})
    assert [part["each"] for part in feed["messages"][0]["rows"]] == [".value.bids[*]", ".value.asks[*]"]
    assert "order" not in feed


@pytest.mark.parametrize("form", messages.books_of_one_table())
def test_parts_of_one_table_are_not_read_as_several(form: str) -> None:
    feed, comments = proposal(records(messages.books_of_one_table()[form]))
    assert parts_of(feed) == set()
    assert comments[0].endswith("30 read, 0 ignored, 0 refused.")


def test_messages_with_rows_beside_their_parts_are_not_split() -> None:
    values = [value | {"trades": [{"trade_id": n, "size": 1}]} for n, value in enumerate(messages.events())]
    assert parts_of(proposal(records(values))[0]) == set()


def test_parts_whose_numbers_a_feed_would_refuse_are_read_without_them() -> None:
    values = messages.events()
    for n, value in enumerate(values):
        del value["message_id"]
        value["events"] = [
            part | {"seq": 10 * n + place, **messages.sides(messages.random.Random(n))}
            for place, part in enumerate([*value["events"], value["events"][0]])
        ]
    feed, comments = proposal(records(values))
    assert parts_of(feed) == {"events[*]"}
    assert "0 refused" in comments[0]
    assert "order" not in feed


def test_numbers_of_messages_are_a_chain_by_links_too() -> None:
    values = [value | {"msg": 7 * n, "prev": 7 * (n - 1)} for n, value in enumerate(chained_book())]
    for value in values:
        del value["sequence_num"]
    feed, comments = proposal(records(values))
    assert feed["order"] == {"seq": "msg", "after": "prev", "chain": "kafka.topic"}
    assert "gaps 0" in comments[1]


def test_a_number_that_identifies_rows_is_no_chain() -> None:
    values = [
        {"device": f"d{n % 3}", "id": n, "points": [{"name": "a", "v": n}, {"name": "b", "v": 1}]} for n in range(40)
    ]
    assert "order" not in proposal(records(values))[0]


def test_a_checksum_in_the_last_object_of_an_array_is_found_from_the_end_of_the_message() -> None:
    feed, comments = proposal(records(messages.checked_tuples()))
    crc32 = {"groups": ["ask", "bid"], "columns": ["price_text", "qty_text"], "digits_only": True}
    assert feed["check"] == {"checksum": "[-3].c", "rows": 5, "crc32": crc32}
    assert comments[1].endswith("Checksums: right 52, wrong 0.")


def test_a_field_without_the_name_of_a_checksum_that_does_not_fit_is_not_spoken_of() -> None:
    values = messages.checked_tuples()
    for value in values[2:]:
        value[-3]["c"] = str(int(value[-3]["c"]) ^ 1)
    feed, comments = proposal(records(values))
    assert "check" not in feed
    assert not any("checksum" in comment.lower() for comment in comments)


def test_a_book_whose_amounts_say_the_side_is_proposed_with_the_checksum_of_separate_messages() -> None:
    values = messages.signed_tuples()
    feed, comments = proposal(records(values))
    assert (
        comments[0] == f"Proposed from {len(values)} messages of t.jsonl: {len(values) - 1} read, 1 ignored, 0 refused."
    )
    assert comments[1].endswith("Checksums: right 12, wrong 0.")
    assert (feed["session"], feed["key"]) == ("[0]", ["side", "price"])
    crc32 = {"groups": ["bid", "ask"], "columns": ["price_text", "amount_text"], "separator": ":", "interleaved": True}
    assert feed["check"] == {"checksum": "[2]", "rows": 25, "crc32": crc32}
    assert rules(feed)[:3] == [({"body": "object"}, "ignore"), ({"[1]": "cs"}, "update"), ({"[1]": "hb"}, "heartbeat")]


def test_numbers_of_rows_that_the_recording_does_not_tell_apart_are_a_note() -> None:
    feed, comments = proposal(records(messages.signed_tuples(depth=6)))
    assert (feed["check"]["rows"], comments[1].partition("Checksums: ")[2]) == (10, "right 12, wrong 0.")
    assert any("The checksums fit with check.rows 10, 20, 25, 50, 100, 200, 400 alike" in text for text in comments)


@pytest.mark.parametrize(
    "wrong",
    [
        [9, [[100.0, 1, 2.0], [90.0, 1, -2.0]]],  # the bid is above the ask
        [9, [100.0, 1, 0]],  # an amount without a side
        [9, [100.0, 1]],
        ["x"],
    ],
)
def test_arrays_that_do_not_prove_that_the_sign_is_the_side_are_no_such_book(wrong: Any) -> None:
    feed, _ = proposal(records([*messages.signed_tuples(), wrong]))
    assert feed.get("session") != "[0]" or feed["key"] != ["side", "price"]
