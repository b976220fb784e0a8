"""Reads many messages by a decoder class, fast. `feeds.decode` reads all messages in which anything is unusual.

A message is unusual if its events have a scope, a chain or a restart, or if anything in them may be wrong. Its decoder
is then called again, which gives the same events. A test compares both on events of all kinds.

First the events and rows of all messages are collected. Then their fields are checked and converted column by column.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from types import GeneratorType
from typing import Any

from sessionlake.feeds.code import CACHED, UnusualError
from sessionlake.feeds.decode import MAX_EVENTS, MAX_ROWS, create_checked_row_id, format_undeclared, read_event_session
from sessionlake.feeds.decoder import NO_SCOPE, Delete, Event, Message, Put
from sessionlake.feeds.feed import DecoderUse, Feed, Kind, Ordering, Presence
from sessionlake.feeds.interpret import format_session_id
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.paths import MISSING
from sessionlake.feeds.python_values import (
    convert_cells,
    convert_each,
    find_bad_integers,
    find_different,
    look_up_each,
)
from sessionlake.feeds.reader import KafkaRecords
from sessionlake.feeds.time_limit import TimeLimitError, limit_cpu_time
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.message import INT64_MAX, INT64_MIN

_KINDS: dict[Any, str] = {kind: kind.value for kind in (Kind.SNAPSHOT, Kind.UPDATE, Kind.HEARTBEAT, Kind.END)}
_WITHOUT_ROWS = frozenset({Kind.HEARTBEAT, Kind.END})
_EXPECTED: dict[str, str] = {one.value: one.value for one in Presence}
_MANY = frozenset({list, tuple, GeneratorType})
_AT_ONCE = ("array", "variant", "binary")
_BLOCK = 2000
"""Messages that are collected before their fields are converted. With more, new memory costs more than the calls."""


class ManyReader:
    """Reads messages of one feed by its decoder class into lists.

    Args:
        feed: The feed.
        use: The feed's decoder.
        constants: The last arguments of `Message`, which are the same for all messages of the feed.
    """

    def __init__(self, feed: Feed, use: DecoderUse, constants: tuple[Any, ...]) -> None:
        self._feed, self._use, self._constants = feed, use, constants
        self._sessions: dict[Any, str] = {}
        self._keys: dict[Any, tuple[tuple[Any, ...], str]] = {}

    def __call__(
        self,
        numbers: Sequence[int],
        records: KafkaRecords,
        max_bytes: int,
        out: EventLists,
        unusual: list[int],
        rules: list[int],
    ) -> None:
        """Adds the events of messages to lists.

        Args:
            numbers: Indices of the messages, from 0.
            records: The messages.
            max_bytes: Longest value allowed.
            out: Gets the events; empty before.
            unusual: Gets the indices of messages that `feeds.decode` must read.
            rules: Gets nothing, because a decoder has no rules.

        Raises:
            ConfigError: The decoder cannot be loaded.
        """
        del rules
        decode = self._use.load().decode
        if self._feed.has_chains:
            unusual += numbers
            return
        fields = (records.topic, records.partition, records.offset, records.timestamp, records.key, records.value)
        messages = enumerate(map(Message, *fields, records.headers, *map(repeat, self._constants)))
        for first in range(0, len(numbers), _BLOCK):
            block, some = EventLists.of(self._feed), islice(messages, _BLOCK)
            try:
                unusual += self._read_block(some, decode, records, max_bytes, block)
            except TimeLimitError:  # `feeds.decode` finds out for which message
                deque(some, maxlen=0)
                unusual += range(first, min(first + _BLOCK, len(numbers)))
            else:
                out.extend(block)

    def _read_block(
        self,
        messages: Iterable[tuple[int, Message]],
        decode: Callable[[Message], Any],
        records: KafkaRecords,
        max_bytes: int,
        out: EventLists,
    ) -> list[int]:
        """Adds the events of messages to `out`, which is empty; returns the indices of messages that may be bad.

        The caller leaves those to the slow reader. Messages of more than `max_bytes` are among them.

        Raises:
            TimeLimitError: The decoder uses too much time for a message.
        """
        unusual, found = list[int](), _Collector(self._feed, rescue=self._use.rescue)
        events, keys, add_events = found.events, found.keys, found.add_events
        number = -1
        with limit_cpu_time(lambda: number):
            for number, message in messages:
                n_events, n_rows = len(events), len(keys)
                try:
                    if message.value is not None and len(message.value) > max_bytes:
                        raise UnusualError  # noqa: TRY301 - there is one place that removes what was added
                    add_events(number, decode(message))
                except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
                    found.remove_after(n_events, n_rows)
                    unusual.append(number)
        bad_events, bad_rows = self._add_events(found, records, out), self._add_rows(found, out)
        bad = {out.message[number] for number in bad_events} | out.find_messages_of_rows(bad_rows)
        bad |= _find_repeats(out, refuse_repeats=self._feed.refuse_repeats)
        out.remove_messages(bad)
        return unusual + sorted(bad)

    def _add_events(self, collected: _Collector, records: KafkaRecords, out: EventLists) -> list[int]:
        """Adds the fields of the collected events to `out`. Returns the indices of events that may be wrong."""
        bad = list[int]()
        columns = map(list, zip(*collected.events, strict=True)) if collected.events else ([] for _ in range(9))
        out.message, out.rows, sessions, kinds, out.ts, out.seq, out.after, out.is_link, out.sent = columns
        messages = out.message

        def find_session(number: int) -> str:
            return self._compute_session_id(sessions[number], records, messages[number])

        out.session = look_up_each(self._sessions, find_session, sessions, bad)
        out.kind = convert_each(_KINDS.__getitem__, kinds, bad)
        if not _WITHOUT_ROWS.isdisjoint(out.kind):
            bad += [
                number for number, (kind, rows) in enumerate(zip(out.kind, out.rows, strict=True))
                if rows and kind in _WITHOUT_ROWS
            ]  # fmt: skip
        bad += find_bad_integers(out.ts, INT64_MIN, INT64_MAX) + find_bad_integers(out.seq, 0, INT64_MAX)
        out.ts = _replace_none(out.ts, messages, records.timestamp)
        if self._feed.order.kind is Ordering.ARRIVAL:
            out.seq = _replace_none(out.seq, messages, records.offset)
        out.restart = [False] * len(messages)
        if out.after.count(None) < len(messages):
            intervals = enumerate(zip(out.after, out.seq, out.is_link, strict=True))
            bad += [number for number, interval in intervals if not _is_valid_after(*interval)]
        return bad

    def _add_rows(self, collected: _Collector, out: EventLists) -> list[int]:
        """Adds the fields of the collected rows to `out`. Returns the indices of rows that may be wrong."""
        bad = list[int]()
        out.deletes, out.expect, out.rescued = (
            collected.deletes,
            [None] * len(collected.keys),
            [None] * len(collected.keys),
        )
        for row, expected in collected.expects.items():
            out.expect[row] = _EXPECTED.get(expected) if isinstance(expected, str) else None
            if out.expect[row] is None or not self._feed.holds_rows:
                bad.append(row)
        for row, text in collected.rescued.items():
            out.rescued[row] = text
        keys, out.row_id = self._convert_keys(collected.keys, bad)
        key_names = [column.name for column in self._feed.key]
        of_keys = list(map(list, zip(*keys, strict=True))) or [[] for _ in key_names]
        for place, (name, column) in enumerate(self._feed.columns.items()):
            cells = collected.values[place :: len(self._feed.columns)]
            if name in key_names:
                given, cells = cells, of_keys[key_names.index(name)]
                bad += find_different(given, cells)
            elif not column.sql.startswith(_AT_ONCE):
                cells = convert_cells(cells, column, bad)
            out.values[place] = cells
        return bad

    def _convert_keys(self, raw_keys: list[tuple[Any, ...]], bad: list[int]) -> tuple[list[tuple[Any, ...]], list[str]]:
        """Returns the converted keys of rows, and their row ids. `bad` gets the indices of keys that may be wrong."""
        column = self._feed.key[0]
        if len(self._feed.key) == 1 and column.sql in INTEGER_BITS and set(map(len, raw_keys)) == {1}:
            numbers, top = [key[0] for key in raw_keys], 2 ** (INTEGER_BITS[column.sql] - 1)
            if set(map(type, numbers)) == {int} and not find_bad_integers(numbers, -top, top - 1):
                return raw_keys, [f"[{number}]" for number in numbers]
        n_bad, no_key = len(bad), ((None,) * len(self._feed.key), "")
        found = look_up_each(self._keys, lambda number: self._convert_key(raw_keys[number]), raw_keys, bad)
        if len(bad) > n_bad:
            found = [one or no_key for one in found]
        keys, row_ids = zip(*found, strict=True) if found else ((), ())
        return list(keys), list(row_ids)

    def _compute_session_id(self, yielded: Any, records: KafkaRecords, message_index: int) -> str:
        """Returns the session id for what a decoder yielded as an event's session; None is the feed's `session`.

        Raises an exception if anything may be wrong.
        """
        if yielded is None:
            return read_event_session(self._feed, Message(*records.record(message_index), *self._constants), None)
        texts = yielded if type(yielded) is tuple and yielded else (yielded,)
        found = format_session_id(texts) if all(type(text) is str for text in texts) else None
        if found is None:
            raise UnusualError
        if len(self._sessions) > CACHED:
            self._sessions.clear()
        self._sessions[yielded] = found
        return found

    def _convert_key(self, raw_key: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
        """Returns a row's key with converted values, and its row id.

        Raises:
            Exception: A value may be converted wrongly; the slow reader must read this message.
        """
        if None in raw_key:
            raise UnusualError
        key = tuple(column.convert_python(part) for column, part in zip(self._feed.key, raw_key, strict=True))
        found = key, create_checked_row_id(key)
        if all(type(part) is str for part in raw_key):
            if len(self._keys) > CACHED:
                self._keys.clear()
            self._keys[raw_key] = found
        return found


class _Collector:
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
            (place, column) for place, column in enumerate(feed.columns.values()) if column.sql.startswith(_AT_ONCE)
        ]

    def add_events(self, message_index: int, yielded: Any) -> None:
        """Adds the events that a decoder yielded for a message. Raises an exception if anything may be wrong."""
        if type(yielded) not in _MANY:
            _require_iterable(yielded)
        events, keys, before = self.events, self.keys, len(self.keys)
        most_events, most_rows = len(events) + MAX_EVENTS, before + MAX_ROWS
        for event in yielded:
            if type(event) is not Event or event.restart or event.chain is not None:
                raise UnusualError
            if (scope := event.scope) is not NO_SCOPE and (type(scope) is not dict or scope):
                raise UnusualError
            rows: Any = event.rows
            if type(rows) not in _MANY:
                _require_iterable(rows)
            for row in rows:
                self._add_row(row)
                if len(keys) > most_rows:
                    raise UnusualError
            events.append((
                message_index, len(keys) - before, event.session, event.kind, event.ts, event.seq, event.after,
                event.is_link is True, event.sent,
            ))  # fmt: skip
            before = len(keys)
            if len(events) > most_events:
                raise UnusualError

    def _add_row(self, row: Any) -> None:
        """Adds a `Put` or `Delete` that a decoder yielded. Raises an exception if anything may be wrong."""
        if type(row) is Put:
            values: Any = row.values
            if type(values) is not dict:
                raise UnusualError
            if not self._has_names(values):
                self._add_undeclared(values)
            self.values.extend(map(values.get, self._names, self._unset))
            if self._at_once:
                self._convert_last_row()
            self.deletes.append(False)
        elif type(row) is Delete:
            self.values.extend(self._unset)
            self.deletes.append(True)
        else:
            raise UnusualError
        if row.expect is not None:
            self.expects[len(self.keys)] = row.expect
        key: Any = row.key
        self.keys.append(key if type(key) is tuple else self._list_key_values(key))

    def remove_after(self, events: int, rows: int) -> None:
        """Removes all events and rows but the first ones.

        Args:
            events: The number of events to keep.
            rows: The number of rows to keep.
        """
        del self.events[events:], self.keys[rows:], self.deletes[rows:], self.values[rows * len(self._names) :]
        some: dict[int, Any]
        for some in (self.expects, self.rescued):
            while some and next(reversed(some)) >= rows:
                some.popitem()

    def _convert_last_row(self) -> None:
        """Converts the arrays, variants and binaries of the last row, which a decoder may change later."""
        first = len(self.values) - len(self._names)
        for place, column in self._at_once:
            value = self.values[first + place]
            if value is not MISSING and value is not None:
                self.values[first + place] = column.convert_python(value)

    def _list_key_values(self, key: Any) -> tuple[Any, ...]:
        """Returns the values of a key that is a dict, in the order of the feed's key columns."""
        if not isinstance(key, dict):
            raise UnusualError
        return tuple(map(key.get, self._key_names))

    def _add_undeclared(self, values: dict[Any, Any]) -> None:
        """Stores those of the next row's values that have no column, if the feed stores them."""
        if not all(isinstance(name, str) for name in values):
            raise UnusualError
        if self._rescue:
            self.rescued[len(self.keys)] = format_undeclared(values.keys() - {*self._names}, values)


def _is_valid_after(after: Any, seq: int | None, is_link: bool) -> bool:
    """Returns True if `after`, the seq of the message before, is allowed: None, or an integer up to the seq.

    Where messages are linked by other numbers than their own seqs (`is_link`), any int64 but the lowest is allowed.
    """
    if after is None:
        return True
    if type(seq) is not int or type(after) is not int:
        return False
    return INT64_MIN < after <= (INT64_MAX if is_link else seq)


def _replace_none(event_values: list[Any], messages: list[int], message_values: list[int]) -> list[Any]:
    """Returns the values of events, with the value of the event's message in place of None.

    Args:
        event_values: A value per event, or None.
        messages: Index of each event's message.
        message_values: A value per message.
    """
    if event_values.count(None) == len(event_values):
        return list(map(message_values.__getitem__, messages))
    return [message_values[at] if one is None else one for one, at in zip(event_values, messages, strict=True)]


def _find_repeats(out: EventLists, *, refuse_repeats: bool) -> set[int]:
    """Returns the indices of messages with several events of the same session.

    With `refuse_repeats`, also of those that have several rows with the same id in an event.
    """
    found = set[int]()
    if len(set(out.message)) < len(out.message):
        events = Counter(zip(out.message, out.session, strict=True))
        found |= {message for (message, _), count in events.items() if count > 1}
    if refuse_repeats and max(out.rows, default=0) > 1:
        numbers = [number for number, count in enumerate(out.rows) for _ in range(count)]
        rows = Counter(zip(numbers, out.row_id, strict=True))
        found |= {out.message[number] for (number, _), count in rows.items() if count > 1}
    return found


def _require_iterable(value: Any) -> None:
    """Raises UnusualError for a value that cannot be events or rows: a text, bytes, a dict, or not iterable."""
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise UnusualError
