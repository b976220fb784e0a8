"""Reads many messages by a decoder class, fast. `feeds.decode` reads all messages in which anything is unusual.

A message is unusual if its events have a scope, a chain or a restart, or if anything in them may be wrong. Its decoder
is then called again, which gives the same events. A test compares both on events of all kinds.

First the events and rows of all messages are collected. Then their fields are checked and converted column by column.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Any

from sessionlake.feeds.code import CACHED, UnusualMessageError
from sessionlake.feeds.decode import (
    compute_session_id_of_event,
    create_row_id_within_length_limit,
)
from sessionlake.feeds.decoder import Message
from sessionlake.feeds.decoder_events import MUTABLE_TYPES, DecoderEventCollector
from sessionlake.feeds.feed import DecoderClassSetting, EventKind, Feed, OrderMethod, PresentOrAbsent
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.message_fields import format_session_id
from sessionlake.feeds.python_values import (
    convert_column_values,
    convert_each_value,
    find_indices_of_bad_integers,
    find_indices_of_differences,
    look_up_or_compute_each,
)
from sessionlake.feeds.reader import KafkaRecordColumns
from sessionlake.feeds.time_limit import DecoderTimeLimitError, limit_cpu_time
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.message import INT64_MAX, INT64_MIN

_KINDS: dict[Any, str] = {
    kind: kind.value for kind in (EventKind.SNAPSHOT, EventKind.UPDATE, EventKind.HEARTBEAT, EventKind.END)
}
_WITHOUT_ROWS = frozenset({EventKind.HEARTBEAT, EventKind.END})
_EXPECTED: dict[str, str] = {one.value: one.value for one in PresentOrAbsent}
_BLOCK = 2000
"""Messages that are collected before their fields are converted. With more, new memory costs more than the calls."""


class DecoderBatchReader:
    """Reads messages of one feed by its decoder class into lists.

    Args:
        feed: The feed.
        decoder_setting: The feed's decoder.
        shared_message_arguments: The last arguments of `Message`, which are the same for all messages of the feed.
    """

    def __init__(
        self, feed: Feed, decoder_setting: DecoderClassSetting, shared_message_arguments: tuple[Any, ...]
    ) -> None:
        self._feed, self._use, self._constants = feed, decoder_setting, shared_message_arguments
        self._sessions: dict[Any, str] = {}
        self._keys: dict[Any, tuple[tuple[Any, ...], str]] = {}

    def __call__(
        self,
        numbers: Sequence[int],
        records: KafkaRecordColumns,
        max_bytes: int,
        out: ColumnarEvents,
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
        if self._feed.has_sessions_sharing_seqs:
            unusual += numbers
            return
        fields = (records.topic, records.partition, records.offset, records.timestamp, records.key, records.value)
        messages = enumerate(map(Message, *fields, records.headers, *map(repeat, self._constants)))
        for first in range(0, len(numbers), _BLOCK):
            block, some = ColumnarEvents.create_empty(self._feed), islice(messages, _BLOCK)
            try:
                unusual += self._decode_block_of_messages(some, decode, records, max_bytes, block)
            except DecoderTimeLimitError:  # `feeds.decode` finds out for which message
                deque(some, maxlen=0)
                unusual += range(first, min(first + _BLOCK, len(numbers)))
            else:
                out.append_events(block)

    def _decode_block_of_messages(
        self,
        messages: Iterable[tuple[int, Message]],
        decode: Callable[[Message], Any],
        records: KafkaRecordColumns,
        max_bytes: int,
        out: ColumnarEvents,
    ) -> list[int]:
        """Adds the events of messages to `out`, which is empty; returns the indices of messages that may be bad.

        The caller leaves those to the slow reader. Messages of more than `max_bytes` are among them.

        Raises:
            TimeLimitError: The decoder uses too much time for a message.
        """
        unusual, found = list[int](), DecoderEventCollector(self._feed, rescue=self._use.rescue)
        events, keys, add_events = found.events, found.keys, found.collect_events_of_message
        number = -1
        with limit_cpu_time(lambda: number):
            for number, message in messages:
                n_events, n_rows = len(events), len(keys)
                try:
                    if message.value is not None and len(message.value) > max_bytes:
                        raise UnusualMessageError  # noqa: TRY301 - there is one place that removes what was added
                    add_events(number, decode(message))
                except Exception:  # noqa: BLE001 - `feeds.decode` finds the fault again and describes it
                    found.keep_first_events_and_rows(n_events, n_rows)
                    unusual.append(number)
        bad_events, bad_rows = (
            self._add_events_and_list_doubtful(found, records, out),
            self._add_rows_and_list_doubtful(found, out),
        )
        bad = {out.message[number] for number in bad_events} | out.find_message_indices_of_rows(bad_rows)
        bad |= _find_messages_with_repeats(out, refuse_repeated_rows=self._feed.refuse_repeats)
        out.remove_events_of_messages(bad)
        return unusual + sorted(bad)

    def _add_events_and_list_doubtful(
        self, collected: DecoderEventCollector, records: KafkaRecordColumns, out: ColumnarEvents
    ) -> list[int]:
        """Adds the fields of the collected events to `out`. Returns the indices of events that may be wrong."""
        bad = list[int]()
        columns = map(list, zip(*collected.events, strict=True)) if collected.events else ([] for _ in range(9))
        out.message, out.rows, sessions, kinds, out.ts, out.seq, out.after, out.is_link, out.sent = columns
        messages = out.message

        def compute_session_id_at(event_index: int) -> str:
            return self._compute_session_id(sessions[event_index], records, messages[event_index])

        out.session = look_up_or_compute_each(self._sessions, compute_session_id_at, sessions, bad)
        out.kind = convert_each_value(_KINDS.__getitem__, kinds, bad)
        if not _WITHOUT_ROWS.isdisjoint(out.kind):
            bad += [
                number for number, (kind, rows) in enumerate(zip(out.kind, out.rows, strict=True))
                if rows and kind in _WITHOUT_ROWS
            ]  # fmt: skip
        bad += find_indices_of_bad_integers(out.ts, INT64_MIN, INT64_MAX) + find_indices_of_bad_integers(
            out.seq, 0, INT64_MAX
        )
        out.ts = _fill_none_from_message_values(out.ts, messages, records.timestamp)
        if self._feed.order.kind is OrderMethod.ARRIVAL:
            out.seq = _fill_none_from_message_values(out.seq, messages, records.offset)
        out.restart = [False] * len(messages)
        if out.after.count(None) < len(messages):
            intervals = enumerate(zip(out.after, out.seq, out.is_link, strict=True))
            bad += [number for number, interval in intervals if not _is_valid_previous_seq(*interval)]
        return bad

    def _add_rows_and_list_doubtful(self, collected: DecoderEventCollector, out: ColumnarEvents) -> list[int]:
        """Adds the fields of the collected rows to `out`. Returns the indices of rows that may be wrong."""
        bad = list[int]()
        out.deletes, out.expect, out.rescued = (
            collected.deletes,
            [None] * len(collected.keys),
            [None] * len(collected.keys),
        )
        for row, expected in collected.expects.items():
            out.expect[row] = _EXPECTED.get(expected) if isinstance(expected, str) else None
            if out.expect[row] is None or not self._feed.needs_rows_in_memory:
                bad.append(row)
        for row, text in collected.rescued.items():
            out.rescued[row] = text
        keys, out.row_id = self._convert_keys_and_create_row_ids(collected.keys, bad)
        key_names = [column.name for column in self._feed.key]
        of_keys = list(map(list, zip(*keys, strict=True))) or [[] for _ in key_names]
        for place, (name, column) in enumerate(self._feed.columns.items()):
            cells = collected.values[place :: len(self._feed.columns)]
            if name in key_names:
                given, cells = cells, of_keys[key_names.index(name)]
                bad += find_indices_of_differences(given, cells)
            elif not column.sql.startswith(MUTABLE_TYPES):
                cells = convert_column_values(cells, column, bad)
            out.values[place] = cells
        return bad

    def _convert_keys_and_create_row_ids(
        self, raw_keys: list[tuple[Any, ...]], doubtful_indices: list[int]
    ) -> tuple[list[tuple[Any, ...]], list[str]]:
        """Returns the converted keys of rows, and their row ids.

        `doubtful_indices` gets the indices of keys that may be wrong.
        """
        column = self._feed.key[0]
        if len(self._feed.key) == 1 and column.sql in INTEGER_BITS and set(map(len, raw_keys)) == {1}:
            numbers, top = [key[0] for key in raw_keys], 2 ** (INTEGER_BITS[column.sql] - 1)
            if set(map(type, numbers)) == {int} and not find_indices_of_bad_integers(numbers, -top, top - 1):
                return raw_keys, [f"[{number}]" for number in numbers]
        n_bad, no_key = len(doubtful_indices), ((None,) * len(self._feed.key), "")
        found = look_up_or_compute_each(
            self._keys, lambda number: self._convert_key_and_create_row_id(raw_keys[number]), raw_keys, doubtful_indices
        )
        if len(doubtful_indices) > n_bad:
            found = [one or no_key for one in found]
        keys, row_ids = zip(*found, strict=True) if found else ((), ())
        return list(keys), list(row_ids)

    def _compute_session_id(self, yielded_session: Any, records: KafkaRecordColumns, message_index: int) -> str:
        """Returns the session id for what a decoder yielded as an event's session; None is the feed's `session`.

        Raises an exception if anything may be wrong.
        """
        if yielded_session is None:
            return compute_session_id_of_event(
                self._feed, Message(*records.get_record(message_index), *self._constants), None
            )
        texts = yielded_session if type(yielded_session) is tuple and yielded_session else (yielded_session,)
        found = format_session_id(texts) if all(type(text) is str for text in texts) else None
        if found is None:
            raise UnusualMessageError
        if len(self._sessions) > CACHED:
            self._sessions.clear()
        self._sessions[yielded_session] = found
        return found

    def _convert_key_and_create_row_id(self, raw_key: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
        """Returns a row's key with converted values, and its row id.

        Raises:
            Exception: A value may be converted wrongly; the slow reader must read this message.
        """
        if None in raw_key:
            raise UnusualMessageError
        key = tuple(column.convert_python(part) for column, part in zip(self._feed.key, raw_key, strict=True))
        found = key, create_row_id_within_length_limit(key)
        if all(type(part) is str for part in raw_key):
            if len(self._keys) > CACHED:
                self._keys.clear()
            self._keys[raw_key] = found
        return found


def _is_valid_previous_seq(previous_seq: Any, seq: int | None, is_link: bool) -> bool:
    """Returns True if `previous_seq`, the seq of the message before, is allowed: None, or an integer up to the seq.

    Where messages are linked by other numbers than their own seqs (`is_link`), any int64 but the lowest is allowed.
    """
    if previous_seq is None:
        return True
    if type(seq) is not int or type(previous_seq) is not int:
        return False
    return INT64_MIN < previous_seq <= (INT64_MAX if is_link else seq)


def _fill_none_from_message_values(
    event_values: list[Any], message_indices: list[int], message_values: list[int]
) -> list[Any]:
    """Returns the values of events, with the value of the event's message in place of None.

    Args:
        event_values: A value per event, or None.
        message_indices: Index of each event's message.
        message_values: A value per message.
    """
    if event_values.count(None) == len(event_values):
        return list(map(message_values.__getitem__, message_indices))
    return [message_values[at] if one is None else one for one, at in zip(event_values, message_indices, strict=True)]


def _find_messages_with_repeats(out: ColumnarEvents, *, refuse_repeated_rows: bool) -> set[int]:
    """Returns the indices of messages with several events of the same session.

    With `refuse_repeated_row_keys`, also of those that have several rows with the same id in an event.
    """
    found = set[int]()
    if len(set(out.message)) < len(out.message):
        events = Counter(zip(out.message, out.session, strict=True))
        found |= {message for (message, _), count in events.items() if count > 1}
    if refuse_repeated_rows and max(out.rows, default=0) > 1:
        numbers = [number for number, count in enumerate(out.rows) for _ in range(count)]
        rows = Counter(zip(numbers, out.row_id, strict=True))
        found |= {out.message[number] for (number, _), count in rows.items() if count > 1}
    return found
