"""The two processors that ship: logins put together, and the top of an order book."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.examples.logins import LOGOUT_WITHOUT_LOGIN, NEVER_CLOSED, Logins
from sessionlake.examples.top_of_book import TopOfBook
from sessionlake.processors.testing import Sent, run

HOUR = 3_600_000


def auth(*steps: tuple[str, int, dict[str, str]], session: str = "gate") -> list[Sent]:
    """Messages of a gate: type, time, and the event of each user."""
    return [
        Sent(session, message(kind, seq, time, [{"id": user, "event": event} for user, event in said.items()]), time)
        for seq, (kind, time, said) in enumerate(steps)
    ]


def message(kind: str, seq: int, time: int, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"type": kind, "seq": seq, "ts": time}
    return body | ({"rows": rows} | more if kind in {"snapshot", "update"} else {})


def stays(*messages: Sent, **options: Any) -> list[tuple[Any, ...]]:
    found = run(Logins(**options), messages, columns={"event": "string"})
    return [tuple(record.values()) for record in found.records]


def test_a_login_and_its_logout_are_one_stay():
    told = auth(("snapshot", 0, {}), ("update", 10, {"ann": "login"}), ("update", 50, {"ann": "logout"}))
    assert stays(*told) == [("ann", 10, 50, None)]


def test_a_logout_without_a_login_is_a_fault():
    told = auth(("snapshot", 0, {}), ("update", 10, {"ann": "logout"}))
    assert stays(*told) == [("ann", None, 10, LOGOUT_WITHOUT_LOGIN)]


def test_a_second_login_shows_that_the_first_was_never_closed():
    told = auth(("snapshot", 0, {}), ("update", 1, {"ann": "login"}), ("update", 2, {"ann": "login"}))
    assert stays(*told) == [("ann", 1, None, NEVER_CLOSED)]


@pytest.mark.parametrize(("at", "closed"), [(60_001, True), (60_000, False)])
def test_a_login_is_given_up_once_it_is_open_for_longer_than_allowed(at, closed):
    told = auth(("snapshot", 0, {}), ("update", 0, {"ann": "login", "bob": "login"}), ("update", 5, {"bob": "logout"}))
    found = stays(*told, *auth(("snapshot", at, {}), session="other"), longest_hours=1 / 60)
    assert found == [("bob", 0, 5, None), *([("ann", 0, None, NEVER_CLOSED)] if closed else [])]


def test_what_is_open_at_the_end_was_never_closed():
    told = auth(("snapshot", 0, {}), ("update", 1, {"ann": "login"}), ("end", 9, {}))
    assert stays(*told) == [("ann", 1, None, NEVER_CLOSED)]


def test_what_is_open_when_the_session_expires_was_never_closed():
    told = auth(("snapshot", 0, {}), ("update", 1, {"ann": "login"}))
    assert stays(*told, *auth(("snapshot", 3 * HOUR, {}), session="other")) == [("ann", 1, None, NEVER_CLOSED)]


def test_a_snapshot_says_who_is_in():
    told = auth(
        ("snapshot", 0, {"ann": "login", "bob": "login", "cy": "logout"}),
        ("snapshot", 5, {"ann": "login"}),
        ("update", 9, {"ann": "logout"}),
    )
    assert stays(*told) == [("bob", 0, None, NEVER_CLOSED), ("ann", 0, 9, None)]


DEPTH = {"side": "string", "price": "double", "qty": "double"}


def level(row_id: str, *values: Any) -> dict[str, Any]:
    return {"id": row_id, **dict(zip(DEPTH, values, strict=False))}


def tops(*bodies: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = run(TopOfBook(), [Sent("book", body, body["ts"]) for body in bodies], columns=DEPTH)
    return [tuple(record.values()) for record in found.records]


BOOK = message("snapshot", 0, 0, [level("b1", "bid", 99, 5), level("b2", "bid", 98, 7), level("a1", "ask", 101, 2)])


def test_the_top_is_the_highest_bid_and_the_lowest_ask():
    assert tops(BOOK) == [(0, 99, 5, 101, 2)]


def test_a_better_level_becomes_the_top_and_an_empty_or_deleted_one_gives_way():
    better = message("update", 1, 1, [level("a2", "ask", 100, 1)])
    empty = message("update", 2, 2, [{"id": "b1", "qty": 0}])
    gone = message("update", 3, 3, [], deleted=["a2"])
    assert tops(BOOK, better, empty, gone)[1:] == [
        (1, 99, 5, 100, 1),
        (2, 98, 7, 100, 1),
        (3, 98, 7, 101, 2),
    ]


def test_levels_of_one_price_add_up():
    assert tops(BOOK, message("update", 1, 1, [level("b3", "bid", 99, 4)]))[1] == (1, 99, 9, 101, 2)


def test_an_update_that_changes_nothing_is_reported_too_and_a_heartbeat_is_not():
    assert tops(BOOK, message("update", 1, 1, []), message("heartbeat", 2, 2, [])) == [
        (0, 99, 5, 101, 2),
        (1, 99, 5, 101, 2),
    ]


def test_a_snapshot_replaces_the_book_and_an_empty_side_has_no_top():
    only = message("snapshot", 1, 1, [level("a9", "ask", 50, 1), level("b9", "bid", None, 3)])
    assert tops(BOOK, only)[1] == (1, None, None, 50, 1)
