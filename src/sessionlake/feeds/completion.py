"""Completes what a decoder class has yielded for a message, with the rows that the session has before the message.

Only decoder classes with `needs_rows` and a method `complete` or `narrow` need it; `feeds.decoder` describes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.feed import Feed
from sessionlake.feeds.row_ids import create_row_id

Row = dict[str, Any]


@dataclass(frozen=True)
class Completer:
    """Calls the decoder of a feed.

    Attributes:
        feed: The feed.
        decoder: An instance of its decoder class; None if rules read the messages.
    """

    feed: Feed
    decoder: Any

    @classmethod
    def of(cls, feed: Feed) -> Completer:
        """Returns the completer of a feed."""
        return cls(feed, None if feed.decoder is None else feed.decoder.load())

    def _create_finder(self, rows: Mapping[str, Row]) -> Callable[[Mapping[str, Any]], Row | None]:
        """Returns a function that finds a row by the values of its key, among others."""
        names = [column.name for column in self.feed.key]
        return lambda key: rows.get(create_row_id(tuple(key.get(name) for name in names)))

    def complete(self, values: Row, rows: Mapping[str, Row]) -> Row:
        """Returns the values that replace some of those that a message sets in a row; empty if none are replaced.

        Args:
            values: The values that the message sets, by column.
            rows: The rows of the session before this change, by row id.

        Raises:
            ValueError: The decoder returned a value that does not fit its column, or that the message does not set.
        """
        complete = getattr(self.decoder, "complete", None)
        if complete is None:
            return {}
        found: Row = {}
        for name, value in complete(values, self._create_finder(rows)).items():
            if name not in values:
                raise ValueError(
                    f"feed {self.feed.name}: complete() returned column {name}, which the message leaves out"
                )
            found[name] = None if value is None else self.feed.columns[name].convert_python(value)
        return found

    def narrow(self, scope: Row, rows: Mapping[str, Row]) -> Row | None:
        """Returns the scope with which a snapshot is applied: `{}` for all rows, None for none of them.

        Args:
            scope: The scope that the decoder gave the snapshot, which is not empty.
            rows: The rows of the session before the snapshot, by row id.
        """
        narrow = getattr(self.decoder, "narrow", None)
        return scope if narrow is None else narrow(scope, self._create_finder(rows))
