"""Reads many messages by a decoder class, fast. `feeds.decode` reads all messages in which anything is unusual.

A message is unusual if its events have a scope, a chain or a restart, or if anything in them may be wrong. Its decoder
is then called again, which gives the same events. A test compares both on events of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from types import GeneratorType
from typing import Any

from sessionlake.feeds.code import CACHED, MICROSECONDS, YEAR_1, YEAR_10000, UnusualError, is_decimal_text
from sessionlake.feeds.decode import MAX_EVENTS, MAX_ROWS, read_event_session, row_id_within_limit
from sessionlake.feeds.decoder import Delete, Event, Message, Put
from sessionlake.feeds.feed import DecoderUse, Feed, Kind, Ordering, Presence
from sessionlake.feeds.interpret import session_of
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.paths import MISSING
from sessionlake.feeds.reader import KafkaRecords
from sessionlake.feeds.values import Convert, FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.message import INT64_MAX, INT64_MIN

_WITH_ROWS: dict[Any, str] = {Kind.SNAPSHOT: Kind.SNAPSHOT.value, Kind.UPDATE: Kind.UPDATE.value}
_KINDS = _WITH_ROWS | {Kind.HEARTBEAT: Kind.HEARTBEAT.value, Kind.END: Kind.END.value}

_MANY = frozenset({list, tuple, GeneratorType})


class ManyReader:
    """Reads messages of one feed into lists.

    Args:
        feed: The feed.
        use: The feed's decoder.
        make_message: Returns the message that the decoder receives, from the fields of a Kafka record.
    """

    def __init__(self, feed: Feed, use: DecoderUse, make_message: Callable[..., Message]) -> None:
        self._feed, self._use, self._make_message = feed, use, make_message
        self._key_names = tuple(column.name for column in feed.key)
        self._is_arrival = feed.order.kind is Ordering.ARRIVAL
        self._sessions: dict[Any, str] = {}
        self._keys: dict[tuple[Any, ...], tuple[tuple[Any, ...], str]] = {}

    def __call__(
        self, records: KafkaRecords, max_bytes: int, out: EventLists, unusual: list[int], rules: list[int]
    ) -> None:
        """Adds the events of messages to `out`, and the indices of unusual messages to `unusual`.

        A decoder has no rules, so nothing is added to `rules`.

        Raises:
            ConfigError: The decoder cannot be loaded.
        """
        del rules
        decode, make_message = self._use.load().decode, self._make_message
        events: list[list[Any]] = [
            out.message,
            out.session,
            out.kind,
            out.ts,
            out.seq,
            out.after,
            out.is_link,
            out.sent,
            out.rows,
        ]
        per_row: list[list[Any]] = [out.deletes, out.row_id, out.expect, *out.values]
        if self._feed.has_chains:
            unusual += range(len(records.value))
            return
        add_rows = _RowAdder(self, self._feed, out, rescue=self._use.rescue)
        fields = (records.topic, records.partition, records.offset, records.timestamp, records.key, records.value)
        for number, record in enumerate(zip(*fields, records.headers, strict=True)):
            n_events, n_rows = len(out.rows), len(out.row_id)
            try:
                message = make_message(*record)
                if message.value is not None and len(message.value) > max_bytes:
                    raise UnusualError  # noqa: TRY301 - there is one place that removes what was added
                self._add(number, message, decode(message), out, add_rows)
            except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
                for one in events:
                    del one[n_events:]
                for one in per_row:
                    del one[n_rows:]
                unusual.append(number)
        out.restart += [False] * len(out.rows)

    def _add(self, number: int, message: Message, given: Any, out: EventLists, add_rows: _RowAdder) -> None:
        if type(given) not in _MANY:
            _require_many(given)
        first, most = len(out.session), len(out.row_id) + MAX_ROWS
        for event in given:
            if type(event) is not Event or event.chain is not None:
                raise UnusualError
            if event.scope or type(event.scope) is not dict or event.restart:
                raise UnusualError
            n_rows = len(out.row_id)
            add_rows(event.rows, most)
            self._add_interval(event, message, out)
            session = event.session
            out.session.append(self._sessions.get(session) or self._session(session, message))
            out.kind.append((_WITH_ROWS if len(out.row_id) > n_rows else _KINDS)[event.kind])
            out.message.append(number)
            out.sent.append(event.sent)
            out.rows.append(len(out.row_id) - n_rows)
            if self._feed.refuse_repeats and len(set(out.row_id[n_rows:])) < len(out.row_id) - n_rows:
                raise UnusualError
            if len(out.session) > first + MAX_EVENTS:
                raise UnusualError
        if len(out.session) > first + 1 and len(set(out.session[first:])) < len(out.session) - first:
            raise UnusualError

    def _add_interval(self, event: Event, message: Message, out: EventLists) -> None:
        ts = message.timestamp if event.ts is None else event.ts
        seq = message.offset if event.seq is None and self._is_arrival else event.seq
        after, is_link = event.after, event.is_link is True
        if type(ts) is not int or not INT64_MIN <= ts <= INT64_MAX:
            raise UnusualError
        if seq is not None and (type(seq) is not int or not 0 <= seq <= INT64_MAX):
            raise UnusualError
        if after is not None and (
            seq is None or type(after) is not int or not INT64_MIN < after <= (INT64_MAX if is_link else seq)
        ):
            raise UnusualError
        out.ts.append(ts)
        out.seq.append(seq)
        out.after.append(after)
        out.is_link.append(is_link)

    def _session(self, given: Any, message: Message) -> str:
        if given is None:
            return read_event_session(self._feed, message, None)
        texts = given if type(given) is tuple and given else (given,)
        found = session_of(texts) if all(type(text) is str for text in texts) else None
        if found is None:
            raise UnusualError
        if len(self._sessions) > CACHED:
            self._sessions.clear()
        self._sessions[given] = found
        return found

    def find_key(self, given: Any) -> tuple[tuple[Any, ...], str]:
        """Converts a row's key; returns it with its row id. Raises UnusualError if anything may be wrong."""
        if isinstance(given, dict):
            given = tuple(map(given.get, self._key_names))
        if type(given) is not tuple:
            raise UnusualError
        raw: tuple[Any, ...] = given
        if len(raw) != len(self._key_names) or None in raw:
            raise UnusualError
        key = tuple(column.convert_python(part) for column, part in zip(self._feed.key, raw, strict=True))
        if len(key) == 1 and type(key[0]) is int:
            return key, f"[{key[0]}]"
        found = key, row_id_within_limit(key)
        if all(type(part) is str for part in raw):
            if len(self._keys) > CACHED:
                self._keys.clear()
            self._keys[raw] = found
        return found

    @property
    def known_keys(self) -> dict[tuple[Any, ...], tuple[tuple[Any, ...], str]]:
        """Keys of texts with their row ids, by the key as the decoder gives it."""
        return self._keys


class _RowAdder:
    """Adds rows of events to lists.

    Args:
        reader: The reader of the feed.
        feed: The feed.
        out: The lists.
        rescue: True if undeclared columns are stored.
    """

    def __init__(self, reader: ManyReader, feed: Feed, out: EventLists, *, rescue: bool) -> None:
        self._reader, self._out, self._known_keys, self._rescue = reader, out, reader.known_keys, rescue
        self._has_names = frozenset(feed.columns).issuperset
        cells = dict(zip(feed.columns, out.values, strict=True))
        self._key = [(column.name, cells[column.name].append) for column in feed.key]
        self._others = [
            (column.name, *fast_convert(column), cells[column.name].append)
            for column in feed.columns.values()
            if column not in feed.key
        ]

    def __call__(self, rows: Any, most: int) -> None:
        """Adds rows. Raises UnusualError if anything may be wrong, or if there are then more than `most` rows."""
        if type(rows) not in _MANY:
            _require_many(rows)
        out = self._out
        for row in rows:
            key = row.key
            key, row_id = (self._known_keys.get(key) if type(key) is tuple else None) or self._reader.find_key(key)
            if type(row) is Put:
                values: Any = row.values
                if type(values) is not dict or (not self._has_names(values) and self._refuses(values)):
                    raise UnusualError
                self._add_key(key, values)
                for name, kind, convert, add in self._others:
                    value = values.get(name, MISSING)
                    add(value if type(value) is kind or value is MISSING or value is None else convert(value))
            elif type(row) is Delete:
                self._add_key(key, {})
                for _, _, _, add in self._others:
                    add(MISSING)
            else:
                raise UnusualError
            out.deletes.append(type(row) is Delete)
            out.row_id.append(row_id)
            out.expect.append(None if row.expect is None else Presence(row.expect).value)
            if len(out.row_id) > most:
                raise UnusualError

    def _refuses(self, values: dict[Any, Any]) -> bool:
        """Returns True if undeclared columns of a row must be stored, or if their names are no texts."""
        return self._rescue or not _are_texts(values)

    def _add_key(self, key: tuple[Any, ...], values: dict[Any, Any]) -> None:
        """Adds a row's key. Raises UnusualError unless the row's values of key columns are missing or the same."""
        for (name, add), own in zip(self._key, key, strict=True):
            value = values.get(name, MISSING)
            if value is not MISSING and (type(value) is not type(own) or value != own):
                raise UnusualError
            add(own)


def fast_convert(column: FeedColumn) -> tuple[type, Convert]:
    """Returns the type of values that are kept as they are, and the function that converts others.

    Texts of decimals are kept, and checked later. Times may become microseconds, which `EventLists` allows.
    """
    convert, factor = column.convert_python, MICROSECONDS.get(column.how or "")
    if column.sql == "boolean":
        return bool, convert
    if column.sql == "string" or is_decimal_text(column):
        return str, convert
    if column.sql in INTEGER_BITS:
        top = 2 ** (INTEGER_BITS[column.sql] - 1)
        return Unused, lambda value: value if type(value) is int and -top <= value < top else convert(value)
    if column.sql == "double":
        return Unused, lambda value: _double(value) if type(value) is Decimal else convert(value)
    if factor is not None and column.sql.startswith("timestamp"):
        first, end = YEAR_1 // factor, YEAR_10000 // factor
        return Unused, lambda value: value * factor if type(value) is int and first <= value < end else convert(value)
    return Unused, convert


class Unused:
    """No value is of this type."""


def _double(value: Decimal) -> float:
    found = float(value)
    if not isfinite(found):
        raise UnusualError
    return found


def _require_many(given: Any) -> None:
    """Raises UnusualError unless a decoder may yield this for events or rows."""
    if isinstance(given, (str, bytes, dict)) or not hasattr(given, "__iter__"):
        raise UnusualError


def _are_texts(names: Any) -> bool:
    return all(isinstance(name, str) for name in names)
