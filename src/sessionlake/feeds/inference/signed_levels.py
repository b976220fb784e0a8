"""Recognizes books in messages that are arrays, `[session, levels]`, in which the sign of a level's amount is its side.

A snapshot has all levels, `[7, [[price, count, amount], …]]`, and an update one of them, `[7, [price, count, amount]]`.
Its count is 0 if the level is deleted. Other messages have a word instead, as in `[7, "hb"]` and `[7, "cs", checksum]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from sessionlake.feeds.inference.sample import SampledMessages
from sessionlake.feeds.inference.types import InferredColumnType, infer_column_type
from sessionlake.feeds.inference.words import CHECKSUMS, HEARTBEAT

_COLUMNS = ("price", "count", "amount")
_AMOUNT = _COLUMNS.index("amount")
ProposedFeedSettings = tuple[dict[str, Any], dict[str, str], list[str]]


def propose_signed_levels_feed(sample: SampledMessages) -> ProposedFeedSettings | None:
    """Proposes a feed for books whose levels have the side as the sign of the amount; None for other messages.

    Returns:
        The feed's settings, what the sample shows about each by its name, and notes for the user.
    """
    arrays = [one.value for one in sample.messages if isinstance(one.value, list)]
    if not arrays or not all(len(value) > 1 and type(value[0]) in (int, str) for value in arrays):
        return None
    snapshots = [value[1] for value in arrays if _is_list_of_signed_levels(value[1])]
    updates = [value[1] for value in arrays if _is_signed_level(value[1])]
    words = sorted({value[1] for value in arrays if isinstance(value[1], str)})
    others = len(arrays) - len(snapshots) - len(updates) - sum(isinstance(value[1], str) for value in arrays)
    if others or not updates or not snapshots or not all(map(_do_signs_tell_book_sides, snapshots)):
        return None
    levels = [*updates, *(level for levels in snapshots for level in levels)]
    columns = {"side": InferredColumnType("string")}
    columns |= {
        name: infer_column_type(name, [level[place] for level in levels], is_key=True, is_level=name != "count")
        for place, name in enumerate(_COLUMNS)
    }
    has_objects = len(arrays) < len(sample.messages)
    rules: list[dict[str, Any]] = [{"when": {"body": "tombstone"}, "is": "ignore"}] if sample.tombstones else []
    rules += [{"when": {"body": "object"}, "is": "ignore"}] if has_objects else []
    rules += [{"when": {"[1]": word}, "is": _choose_rule_kind_by_word(word)} for word in words]
    settings = {
        "session": "[0]",
        "key": ["side", "price"],
        "columns": {name: column.column_setting for name, column in columns.items()},
        "messages": [*rules, *_build_rules_of_signed_levels()],
    }
    seen = {f"columns.{name}": column.seen for name, column in columns.items() if column.seen}
    notes = ["positive amounts are bids, and negative ones asks; a count of 0 deletes a level"]
    return settings, seen, notes


def _is_signed_level(value: Any) -> bool:
    """Returns True for a price above 0, a count and an amount that is not 0."""
    if not isinstance(value, list) or len(value) != len(_COLUMNS):
        return False
    price, count, amount = value
    is_number = type(price) in (int, Decimal) and type(count) is int and type(amount) in (int, Decimal)
    return is_number and price > 0 and count >= 0 and amount != 0


def _is_list_of_signed_levels(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_signed_level, value))


def _do_signs_tell_book_sides(levels: Sequence[Sequence[Any]]) -> bool:
    """Returns True if all prices with a positive amount are below those with a negative one, and both occur."""
    bids, asks = ([level[0] for level in levels if (level[_AMOUNT] > 0) is is_bid] for is_bid in (True, False))
    return bool(bids) and bool(asks) and max(bids) < min(asks)


def _choose_rule_kind_by_word(word: str) -> str:
    """Returns the `is` of a rule for messages with a word: `update` if the word is that of a checksum."""
    if word.lower() in CHECKSUMS:
        return "update"
    return "heartbeat" if HEARTBEAT.search(word) else "ignore"


def _build_rules_of_signed_levels() -> list[dict[str, Any]]:
    """Returns the rules for snapshots and updates, one of each for bids and for asks."""
    sides = (("bid", {"above": 0}), ("ask", {"below": 0}))
    row = {name: f".[{place}]" for place, name in enumerate(_COLUMNS)}
    snapshots = [
        {
            "when": {"[1][0][0]": "present", f".[{_AMOUNT}]": dict(sign)},
            "is": "snapshot",
            "split": {"each": "[1][*]"},
            "rows": [{"row": {"side": f"={side}", **row}}],
        }
        for side, sign in sides
    ]
    updates = [
        {
            "when": {f"[1][{_AMOUNT}]": dict(sign)},
            "is": "update",
            "rows": [{"at": "[1]", "row": {"side": f"={side}", **row}, "delete": {"count": 0}}],
        }
        for side, sign in sides
    ]
    return [*snapshots, *updates]
