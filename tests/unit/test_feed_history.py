"""A feed reads messages as before if its mapping is the same. Its name and new columns do not count."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.feed_history import find_topic_with_changed_feed, list_feed_mappings
from support.feed_lake import books, capture_of, orders

TOPICS = ["p.books.a", "p.shop.orders", "p.unread"]
FORMER = list_feed_mappings(capture_of(books("p"), orders("p")))


def change_of(*feeds: dict[str, Any]) -> str | None:
    found = find_topic_with_changed_feed(FORMER, capture_of(*feeds) if feeds else CaptureSettings(), TOPICS)
    return found and f"{found.topic}: {found.text}"


def with_fee(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule whose rows also set the column `fee`."""
    parts = [part | {"row": part["row"] | {"fee": ".[2]"}} for part in rule.get("rows", ())]
    return rule | ({"rows": parts} if parts else {})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"name": "renamed"},
        {"topics": r"p\.(books|more)\..+"},
        {"integrity": "order", "on_violation": "record", "session_timeout": "1 day", "starts_with": "anything"},
        {"repeats": "in_order"},  # the default, written out
        {
            "columns": books("p")["columns"] | {"fee": "double"},
            "messages": [with_fee(rule) for rule in books("p")["messages"]],
        },
    ],
)
def test_names_judging_and_new_columns_are_no_change(changed):
    assert change_of(books("p", **changed), orders("p")) is None


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"order": {"seq": "n", "rising": True}}, "order"),
        ({"session": ["kafka.topic", ".symbol"]}, "session"),
        ({"time": None}, "time"),
        ({"messages": books("p")["messages"][1:]}, "messages"),
        ({"repeats": "refuse", "key": ["side", "price", "qty"], "columns": books("p")["columns"] | {"qty": "bigint"}},
         "columns, key, repeats"),
    ],
)  # fmt: skip
def test_a_changed_mapping_is_named_by_its_keys(changed, keys):
    assert change_of(books("p", **changed), orders("p")) == f"p.books.a: feed 'books' has changed in: {keys}"


def test_another_feed_for_a_topic_is_a_change():
    greedy = orders("p", name="all", topics=".+")
    assert change_of(greedy, books("p")) is not None
    assert change_of(books("p"), greedy) is None  # `p.unread` was read by no feed


def test_a_feed_may_be_added_or_removed():
    assert change_of(books("p")) is None
    assert change_of(books("p"), orders("p"), orders("p", name="new", topics="p.unread")) is None


def test_a_feed_in_place_of_the_own_form_is_a_change():
    found = find_topic_with_changed_feed([], capture_of(books("p")), TOPICS)
    assert found is not None
    assert found.text == "its messages had the form of sessionlake before, and feed 'books' reads them now"
    assert find_topic_with_changed_feed([], CaptureSettings(), TOPICS) is None


def test_without_feeds_nothing_changes_because_other_messages_are_unreadable():
    assert change_of() is None
