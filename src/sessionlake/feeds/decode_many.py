"""Reads many messages by a decoder class, fast. `feeds.decode` reads all messages in which anything is unusual.

A message is unusual if its events have a scope, a chain or a restart, or if anything in them may be wrong. Its decoder
is then called again, which gives the same events. A test compares both on events of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sessionlake.feeds.code import CACHED, UnusualError
from sessionlake.feeds.decode import MAX_EVENTS, MAX_ROWS, read_event_session, row_id_within_limit
from sessionlake.feeds.decoder import Delete, Event, Message, Put
from sessionlake.feeds.feed import DecoderUse, Feed, Kind, Ordering, Presence
from sessionlake.feeds.interpret import session_of
from sessionlake.feeds.lists import FIELDS_OF_EVENT, FIELDS_OF_ROW, EventLists
from sessionlake.feeds.paths import MISSING
from sessionlake.feeds.reader import KafkaRecord, KafkaRecords
from sessionlake.protocol.message import INT64_MAX, INT64_MIN

_WITH_ROWS: dict[Any, str] = {Kind.SNAPSHOT: Kind.SNAPSHOT.value, Kind.UPDATE: Kind.UPDATE.value}
_KINDS = _WITH_ROWS | {Kind.HEARTBEAT: Kind.HEARTBEAT.value, Kind.END: Kind.END.value}


class ManyReader:
    """Reads messages of one feed into lists.

    Args:
        feed: The feed.
        use: The feed's decoder.
        make_message: Returns the message that the decoder receives.
    """

    def __init__(self, feed: Feed, use: DecoderUse, make_message: Callable[[KafkaRecord], Message]) -> None:
        self._feed, self._use, self._make_message = feed, use, make_message
        self._key_names = tuple(column.name for column in feed.key)
        self._columns = tuple((column.name, column.convert_python) for column in feed.columns.values())
        self._is_arrival = feed.order.kind is Ordering.ARRIVAL
        self._sessions: dict[Any, str] = {}
        self._keys: dict[tuple[str, ...], tuple[tuple[Any, ...], str]] = {}

    def __call__(
        self, records: KafkaRecords, max_bytes: int, out: EventLists, unusual: list[int], rules: list[int]
    ) -> None:
        """Adds the events of messages to `out`, and the indices of unusual messages to `unusual`.

        A decoder has no rules, so nothing is added to `rules`.

        Raises:
            ConfigError: The decoder cannot be loaded.
        """
        del rules
        decode = self._use.load().decode
        events = [getattr(out, name) for name in FIELDS_OF_EVENT]
        per_row = [*(getattr(out, name) for name in FIELDS_OF_ROW), *out.values]
        for number in range(len(records.value)):
            record = records.record(number)
            n_events, n_rows = len(out.rows), len(out.row_id)
            try:
                if record.value is not None and len(record.value) > max_bytes:
                    raise UnusualError  # noqa: TRY301 - there is one place that removes what was added
                message = self._make_message(record)
                self._add(number, message, decode(message), out)
            except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
                for one in events:
                    del one[n_events:]
                for one in per_row:
                    del one[n_rows:]
                unusual.append(number)

    def _add(self, number: int, message: Message, given: Any, out: EventLists) -> None:
        _require_many(given)
        first, first_row = len(out.session), len(out.row_id)
        for event in given:
            if type(event) is not Event or event.chain is not None or event.scope != {} or event.restart:
                raise UnusualError
            n_rows = len(out.row_id)
            self._add_rows(event, out, first_row + MAX_ROWS)
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
        new = out.session[first:]
        if len(new) > 1 and len(set(new)) < len(new):
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
        out.restart.append(False)
        out.chain.append(None)
        out.scope.append({})

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

    def _add_rows(self, event: Event, out: EventLists, most: int) -> None:
        _require_many(event.rows)
        for row in event.rows:
            is_put = type(row) is Put
            if not is_put and type(row) is not Delete:
                raise UnusualError
            key, row_id = self._key(row.key)
            own = dict(zip(self._key_names, key, strict=True))
            values: Any = row.values if isinstance(row, Put) else own
            if type(values) is not dict:
                raise UnusualError
            for (name, convert), cells in zip(self._columns, out.values, strict=True):
                value = values.get(name, MISSING)
                if name in own:
                    self._require_same(value, own[name])
                    cells.append(own[name])
                elif value is MISSING or value is None:
                    cells.append(value)
                else:
                    cells.append(convert(value))
            if not values.keys() <= self._feed.columns.keys() and (self._use.rescue or not _are_texts(values)):
                raise UnusualError
            out.deletes.append(not is_put)
            out.row_id.append(row_id)
            out.rescued.append(None)
            out.expect.append(None if row.expect is None else Presence(row.expect).value)
            if len(out.row_id) > most:
                raise UnusualError

    def _require_same(self, value: Any, own: Any) -> None:
        """Raises UnusualError unless a row's value in a key column is missing, or the key's in the same type."""
        if value is not MISSING and (type(value) is not type(own) or value != own):
            raise UnusualError

    def _key(self, given: Any) -> tuple[tuple[Any, ...], str]:
        if isinstance(given, dict):
            given = tuple(map(given.get, self._key_names))
        if type(given) is not tuple:
            raise UnusualError
        raw: tuple[Any, ...] = given
        is_text = all(type(part) is str for part in raw)
        found = self._keys.get(raw) if is_text else None
        if found is not None:
            return found
        if len(raw) != len(self._key_names) or None in raw:
            raise UnusualError
        key = tuple(column.convert_python(part) for column, part in zip(self._feed.key, raw, strict=True))
        found = key, row_id_within_limit(key)
        if is_text:
            if len(self._keys) > CACHED:
                self._keys.clear()
            self._keys[raw] = found
        return found


def _require_many(given: Any) -> None:
    """Raises UnusualError unless a decoder may yield this for events or rows."""
    if type(given) is not list and (isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__")):
        raise UnusualError


def _are_texts(names: Any) -> bool:
    return all(isinstance(name, str) for name in names)
