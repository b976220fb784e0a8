"""Finds feeds that read messages otherwise than before. Silver's ledger entries have hashes of each feed's settings."""

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


class TopicWithChangedFeed(NamedTuple):
    """A topic whose messages are now read in another way than before.

    Attributes:
        topic: The topic.
        text: Says what has changed in how its messages are read.
    """

    topic: str
    text: str


def list_feed_mappings(capture: CaptureSettings) -> list[FeedMapping]:
    """Returns how each feed reads messages, for silver's ledger entry; empty if there are no feeds."""
    return [
        FeedMapping(feed.name, feed.topics, " ".join(sorted(feed.columns)), hash_feed_mapping(feed, feed.columns))
        for feed in capture.feeds
    ]


def hash_feed_mapping(feed: FeedSettings, columns: Collection[str]) -> str:
    """Returns hashes of the feed's keys that decide how messages are read, as `key=hash` texts separated by spaces.

    Keys with default values have no hash.

    Args:
        feed: The feed.
        columns: The columns to consider. With a feed's former columns, adding further ones does not change the hashes.
    """
    found = feed.model_dump(mode="json", exclude=_NOT_MAPPING, exclude_defaults=True)
    found["columns"] = {name: column for name, column in found["columns"].items() if name in columns}
    if "messages" in found:
        found["messages"] = [_select_rule_columns(rule, {*columns, "*"}) for rule in found["messages"]]
    return " ".join(f"{key}={_hash_setting_value(found[key])}" for key in sorted(found))


def _select_rule_columns(rule: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """Returns a copy of a feed's rule in which `row` sets only the named columns."""
    rows = rule.get("rows", ())
    return {**rule, "rows": [part | {"row": _select_row_columns(part.get("row"), columns)} for part in rows]}


def _select_row_columns(row: Any, columns: Collection[str]) -> Any:
    return {name: path for name, path in row.items() if name in columns} if isinstance(row, dict) else row


def _hash_setting_value(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGITS]


def find_topic_with_changed_feed(
    former: Sequence[FeedMapping], capture: CaptureSettings, topics: Iterable[str]
) -> TopicWithChangedFeed | None:
    """Returns the first topic, in alphabetical order, that a feed reads otherwise than before; None if there is none.

    A topic that no feed read before may get a feed at any time. Feeds may be removed: messages that no feed can read go
    to quarantine.

    Args:
        former: The feeds in the last ledger entry; empty if all messages had the form of sessionlake.
        capture: The present settings.
        topics: The topics that silver has read.
    """
    for topic in sorted(topics):
        before = next((feed for feed in former if re.fullmatch(feed.topics, topic)), None)
        now = next((feed for feed in capture.feeds if re.fullmatch(feed.topics, topic)), None)
        if (text := _describe_feed_change(before, now, was_own=not former)) is not None:
            return TopicWithChangedFeed(topic, text)
    return None


def _describe_feed_change(before: FeedMapping | None, now: FeedSettings | None, *, was_own: bool) -> str | None:
    """Returns a text that says how the reading of a topic has changed; None if it has not.

    Args:
        before: The feed that read the topic before; None if no feed did.
        now: The feed that reads it now; None if no feed does.
        was_own: True if all messages had the form of sessionlake before.
    """
    if was_own and now is not None:
        return f"its messages had the form of sessionlake before, and feed {now.name!r} reads them now"
    if before is None or now is None:
        return None
    hashes = hash_feed_mapping(now, before.columns.split())
    if hashes == before.hashes:
        return None
    keys = ", ".join(sorted({pair.partition("=")[0] for pair in {*hashes.split()} ^ {*before.hashes.split()}}))
    return f"feed {now.name!r} has changed in: {keys}"
