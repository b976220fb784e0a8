"""Decides which topics a feed reads: those that its pattern matches and no earlier feed's pattern does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class FeedTopics:
    """The topics that one feed reads.

    Attributes:
        pattern: Regular expression that must match a topic's whole name.
        earlier: The patterns of the feeds before it. A topic that one of them matches is read by that feed.
    """

    pattern: str
    earlier: tuple[str, ...] = ()

    def includes_topic(self, topic: str) -> bool:
        """Returns True if the feed reads this topic."""
        return _matches_topic(self.pattern, topic) and not any(_matches_topic(one, topic) for one in self.earlier)


def describe_unknown_feed(name: str, known_names: Collection[str]) -> str:
    """Returns a text that says that no feed has this name, with the feed of the most similar name.

    Args:
        name: The name that no feed has.
        known_names: The names of all feeds.
    """
    if not known_names:
        return f"there is no feed {name!r}, because capture.feeds is empty"
    nearest = next(iter(get_close_matches(name, known_names, 1, 0)))
    others = ", ".join(known_names)
    return f"there is no feed {name!r}; did you mean {nearest!r}? The feeds are {others}"


def _matches_topic(pattern: str, topic: str) -> bool:
    return re.fullmatch(pattern, topic) is not None
