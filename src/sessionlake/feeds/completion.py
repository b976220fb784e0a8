"""Completes what a decoder class has yielded for a message, with the rows that the session has before the message.

Only decoder classes with `needs_rows` and a method `complete` or `narrow` need it; `feeds.decoder` describes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.feed import Feed
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.time_limit import DecoderTimeLimitError, limit_cpu_time

Row = dict[str, Any]


@dataclass(frozen=True)
class DecoderRowCompleter:
    """Calls the decoder of a feed.

    Attributes:
        feed: The feed.
        decoder: An instance of its decoder class; None if rules read the messages.
    """

    feed: Feed
    decoder: Any

    @classmethod
    def create_for_feed(cls, feed: Feed) -> DecoderRowCompleter:
        """Returns the completer of a feed, whose decoder class is loaded."""
        return cls(feed, None if feed.decoder is None else feed.decoder.load())

    def _create_row_finder(self, rows: Mapping[str, Row]) -> Callable[[Mapping[str, Any]], Row | None]:
        """Returns the function `find` for decoder classes.

        It returns the row with the values of a key, which may have other columns too; None if there is none.
        """
        names = [column.name for column in self.feed.key]
        return lambda key: rows.get(create_row_id(tuple(key.get(name) for name in names)))

    def complete_row_values(self, values: Row, session_rows: Mapping[str, Row]) -> tuple[Row, bool]:
        """Returns the values that replace some of those that a message sets in a row; empty if none are replaced.

        Args:
            values: The values that the message sets, by column.
            session_rows: The rows of the session before this change, by row id.

        Returns:
            The values, and False. If the decoder raises an exception, does not end, or returns a value that does not
            fit its column, that the message does not set, or that changes the key: no values, and True.
        """
        complete = getattr(self.decoder, "complete", None)
        if complete is None:
            return {}, False
        try:
            with limit_cpu_time():
                found = self._convert_replacement_values(dict(complete(values, self._create_row_finder(session_rows))))
            is_allowed = found.keys() <= values.keys() and self._keeps_row_key(values, found)
        except (Exception, DecoderTimeLimitError):  # noqa: BLE001 - the method is the user's, and concerns this row alone
            return {}, True
        return (found, False) if is_allowed else ({}, True)

    def narrow_snapshot_scope(self, scope: Row, session_rows: Mapping[str, Row]) -> tuple[Row | None, bool]:
        """Returns the scope with which a snapshot is applied: `{}` for all rows, None for none of them.

        Args:
            scope: The scope that the decoder gave the snapshot, which is not empty.
            session_rows: The rows of the session before the snapshot, by row id.

        Returns:
            The scope, and False. If the decoder raises an exception, does not end, or returns an undeclared column or a
            value that does not fit its column: None, and True.
        """
        narrow = getattr(self.decoder, "narrow", None)
        if narrow is None:
            return scope, False
        try:
            with limit_cpu_time():
                found = narrow(scope.copy(), self._create_row_finder(session_rows))
            if found is None or found == scope:
                return (None if found is None else scope), False
            return self._convert_replacement_values(dict(found)), False
        except (Exception, DecoderTimeLimitError):  # noqa: BLE001 - the method is the user's, and concerns this snapshot alone
            return None, True

    def _keeps_row_key(self, values: Row, replacements: Row) -> bool:
        """Returns True if the replacements do not change the key of a row with these values."""
        return all(
            replacements.get(column.name, values[column.name]) == values[column.name] for column in self.feed.key
        )

    def _convert_replacement_values(self, replacements: Row) -> Row:
        """Returns values by column, converted to the types of their columns."""
        columns = self.feed.columns
        return {
            name: None if value is None else columns[name].convert_python(value) for name, value in replacements.items()
        }
