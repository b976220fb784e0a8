"""Finds out whether feeds read messages as silver did before. The ledger has hashes of each feed's mapping."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.feeds import FeedSettings

_NOT_MAPPING = {"name", "uses", "topics", "integrity", "on_violation", "lateness", "gap_timeout", "session_timeout"}
_NOT_MAPPING |= {"starts_with", "check"}
"""Keys that do not decide how a message is read: names, and how sessions are judged, which may change at any time."""
_DIGITS = 12


class FeedMapping(NamedTuple):
    """How a feed reads messages, as a ledger entry of silver stores it.

    Attributes:
        name: The feed's name.
        topics: The pattern of its topics.
        columns: The names of its columns, separated by spaces, which no name has.
        hashes: For each key of the feed that decides how messages are read: `key=hash`, separated by spaces.
    """

    name: str
    topics: str
    columns: str
    hashes: str


class ChangedFeed(NamedTuple):
    """A topic whose messages are now read in another way than before.

    Attributes:
        topic: The topic.
        text: Says how it was read, and how it is read now.
    """

    topic: str
    text: str


def list_mappings(capture: CaptureSettings) -> list[FeedMapping]:
    """Returns how each feed reads messages; an empty list if all messages have the form of sessionlake."""
    return [
        FeedMapping(feed.name, feed.topics, " ".join(sorted(feed.columns)), hash_mapping(feed, feed.columns))
        for feed in capture.feeds
    ]


def hash_mapping(feed: FeedSettings, columns: Collection[str]) -> str:
    """Returns hashes of a feed's keys that decide how a message is read, as far as they are about some columns.

    Other columns are left out, so that a feed to which columns were added has the same hashes for its former columns.
    Keys with default values are left out, too.
    """
    found = feed.model_dump(mode="json", exclude=_NOT_MAPPING, exclude_defaults=True)
    found["columns"] = {name: column for name, column in found["columns"].items() if name in columns}
    if "messages" in found:
        found["messages"] = [_select_columns(rule, {*columns, "*"}) for rule in found["messages"]]
    return " ".join(f"{key}={_hash_value(found[key])}" for key in sorted(found))


def _select_columns(rule: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """Returns a rule in which `row` sets only some columns."""
    rows = rule.get("rows", ())
    return {**rule, "rows": [part | {"row": _select_keys(part.get("row"), columns)} for part in rows]}


def _select_keys(row: Any, columns: Collection[str]) -> Any:
    return {name: path for name, path in row.items() if name in columns} if isinstance(row, dict) else row


def _hash_value(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGITS]


def find_changed_feed(
    former: Sequence[FeedMapping], capture: CaptureSettings, topics: Iterable[str]
) -> ChangedFeed | None:
    """Returns the first topic that was read, and is now read in another way; None if there is none.

    A topic that no feed read before may get a feed at any time. A feed may be removed, or all of them: messages that
    nothing can read go to quarantine.

    Args:
        former: The feeds as the ledger has them; empty if all messages had the form of sessionlake.
        capture: The present settings.
        topics: The topics that silver has read.
    """
    for topic in sorted(topics):
        before = next((feed for feed in former if re.fullmatch(feed.topics, topic)), None)
        now = next((feed for feed in capture.feeds if re.fullmatch(feed.topics, topic)), None)
        if (text := _copy_with_changes(before, now, was_own=not former)) is not None:
            return ChangedFeed(topic, text)
    return None


def _copy_with_changes(before: FeedMapping | None, now: FeedSettings | None, *, was_own: bool) -> str | None:
    """Returns a text that says how the reading of a topic has changed; None if it has not."""
    if was_own and now is not None:
        return f"its messages had the form of sessionlake before, and feed {now.name!r} reads them now"
    if before is None or now is None:
        return None
    hashes = hash_mapping(now, before.columns.split())
    if hashes == before.hashes:
        return None
    keys = ", ".join(sorted({pair.partition("=")[0] for pair in {*hashes.split()} ^ {*before.hashes.split()}}))
    return f"feed {now.name!r} has changed in: {keys}"
