"""Collects what a decoder class yields for many messages, before it is checked and converted column by column."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from sessionlake.feeds.code import UnusualMessageError
from sessionlake.feeds.decode import MAX_EVENTS, MAX_ROWS, format_undeclared_columns_as_json
from sessionlake.feeds.decoder import NO_SCOPE, Delete, Event, Put
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.paths import MISSING

MUTABLE_TYPES = ("array", "variant", "binary")
"""Types of columns whose values a decoder may change after it has yielded them."""
_MANY = frozenset({list, tuple, GeneratorType})


class DecoderEventCollector:
    """Collects the events and rows of messages.

    Args:
        feed: The feed.
        rescue: True if undeclared columns are stored.

    Attributes:
        events: For each event, its message's index, number of rows, session, kind, ts, seq, after, is_link and sent.
        keys: For each row of all events, the values of its key.
        deletes: For each row, true if it is deleted.
        expects: The field `expect` of rows that have one, by the row's index.
        values: For each row, its values in all columns of the feed, one row after the other. `MISSING` if it has none.
        rescued: The undeclared values of rows that have some, as JSON text, by the row's index.
    """

    def __init__(self, feed: Feed, *, rescue: bool) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.keys: list[tuple[Any, ...]] = []
        self.deletes: list[bool] = []
        self.expects: dict[int, Any] = {}
        self.values: list[Any] = []
        self.rescued: dict[int, str] = {}
        self._rescue, self._names = rescue, tuple(feed.columns)
        self._unset = (MISSING,) * len(self._names)
        self._key_names = tuple(column.name for column in feed.key)
        self._has_names = frozenset(feed.columns).issuperset
        # A decoder may change a list or dict after it has yielded it, so these are converted at once.
        self._at_once = [
            (place, column)
            for place, column in enumerate(feed.columns.values())
            if column.sql.startswith(MUTABLE_TYPES)
        ]

    def collect_events_of_message(self, message_index: int, yielded_events: Any) -> None:
        """Adds the events that a decoder yielded for a message. Raises an exception if anything may be wrong."""
        if type(yielded_events) not in _MANY:
            _require_iterable(yielded_events)
        events, keys, before = self.events, self.keys, len(self.keys)
        most_events, most_rows = len(events) + MAX_EVENTS, before + MAX_ROWS
        for event in yielded_events:
            if type(event) is not Event or event.restart or event.chain is not None:
                raise UnusualMessageError
            if (scope := event.scope) is not NO_SCOPE and (type(scope) is not dict or scope):
                raise UnusualMessageError
            rows: Any = event.rows
            if type(rows) not in _MANY:
                _require_iterable(rows)
            for row in rows:
                self._collect_row(row)
                if len(keys) > most_rows:
                    raise UnusualMessageError
            events.append((
                message_index, len(keys) - before, event.session, event.kind, event.ts, event.seq, event.after,
                event.is_link is True, event.sent,
            ))  # fmt: skip
            before = len(keys)
            if len(events) > most_events:
                raise UnusualMessageError

    def _collect_row(self, row: Any) -> None:
        """Adds a `Put` or `Delete` that a decoder yielded. Raises an exception if anything may be wrong."""
        if type(row) is Put:
            values: Any = row.values
            if type(values) is not dict:
                raise UnusualMessageError
            if not self._has_names(values):
                self._collect_undeclared_columns(values)
            self.values.extend(map(values.get, self._names, self._unset))
            if self._at_once:
                self._convert_mutable_values_of_last_row()
            self.deletes.append(False)
        elif type(row) is Delete:
            self.values.extend(self._unset)
            self.deletes.append(True)
        else:
            raise UnusualMessageError
        if row.expect is not None:
            self.expects[len(self.keys)] = row.expect
        key: Any = row.key
        self.keys.append(key if type(key) is tuple else self._list_values_of_key_dict(key))

    def keep_first_events_and_rows(self, event_count: int, row_count: int) -> None:
        """Removes all events and rows but the first ones.

        Args:
            event_count: The number of events to keep.
            row_count: The number of rows to keep.
        """
        del (
            self.events[event_count:],
            self.keys[row_count:],
            self.deletes[row_count:],
            self.values[row_count * len(self._names) :],
        )
        some: dict[int, Any]
        for some in (self.expects, self.rescued):
            while some and next(reversed(some)) >= row_count:
                some.popitem()

    def _convert_mutable_values_of_last_row(self) -> None:
        """Converts the arrays, variants and binaries of the last row, which a decoder may change later."""
        first = len(self.values) - len(self._names)
        for place, column in self._at_once:
            value = self.values[first + place]
            if value is not MISSING and value is not None:
                self.values[first + place] = column.convert_python(value)

    def _list_values_of_key_dict(self, key: Any) -> tuple[Any, ...]:
        """Returns the values of a key that is a dict, in the order of the feed's key columns."""
        if not isinstance(key, dict):
            raise UnusualMessageError
        return tuple(map(key.get, self._key_names))

    def _collect_undeclared_columns(self, row_values: dict[Any, Any]) -> None:
        """Stores those of the next row's values that have no column, if the feed stores them."""
        if not all(isinstance(name, str) for name in row_values):
            raise UnusualMessageError
        if self._rescue:
            self.rescued[len(self.keys)] = format_undeclared_columns_as_json(
                row_values.keys() - {*self._names}, row_values
            )


def _require_iterable(value: Any) -> None:
    """Raises UnusualError for a value that cannot be events or rows: a text, bytes, a dict, or not iterable."""
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise UnusualMessageError
