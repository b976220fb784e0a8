"""Reads a message by a feed's decoder class, and checks all that the class yields before any of it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sessionlake.feeds.decoder import NO_SCOPE, Delete, Event, Message, PayloadError, Put, decode_utf8_or_none
from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import DecoderClassSetting, EventKind, Feed, OrderMethod, PresentOrAbsent
from sessionlake.feeds.interpret import find_chain_with_several_seqs, refuse_repeated_row_keys
from sessionlake.feeds.message_fields import (
    RefusedMessageError,
    describe_value_for_error,
    format_session_id,
    read_session_id,
)
from sessionlake.feeds.paths import MISSING, PathContext
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.time_limit import DecoderTimeLimitError, limit_cpu_time
from sessionlake.feeds.values import format_json
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MAX_ID_BYTES, MAX_KEY_BYTES
from sessionlake.protocol.reasons import Reason

MAX_EVENTS = 10_000
"""Most events that a decoder may yield for one message."""
MAX_ROWS = 200_000
"""Most rows that a decoder may yield for one message, in all its events."""
_LONGEST_TEXT = 200
"""Most characters of an exception that the text of a refusal shows."""


def decode_by_decoder_class(
    feed: Feed, decoder_setting: DecoderClassSetting, message: Message
) -> DecodedMessage | MessageRefusal:
    """Reads a message by a decoder class.

    Args:
        feed: The feed of the message's topic.
        decoder_setting: The feed's decoder.
        message: The message.

    Returns:
        The events of the message. If the decoder fails or yields anything wrong, no events but the fault.

    Raises:
        ConfigError: The decoder cannot be loaded.
    """
    decoder = decoder_setting.load()
    try:
        with limit_cpu_time():
            return DecodedMessage(
                (), _convert_all_decoder_events(feed, decoder_setting, message, decoder.decode(message))
            )
    except DecoderTimeLimitError as error:
        return MessageRefusal(Reason.BAD_VALUE, "", str(error))
    except RefusedMessageError as refused:
        return refused.refusal
    except PayloadError as error:
        return MessageRefusal(error.reason, "", "the value is missing or is not of the feed's format")
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises concerns this message alone
        return MessageRefusal(
            Reason.BAD_VALUE, "", f"the decoder raised {type(error).__name__}: {_get_shortened_error_text(error)}"
        )


def _get_shortened_error_text(error: Exception) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - a user's exception may have no text
        return ""


def _build_error_of_bad_decoder_output(yielded_fault: str) -> RefusedMessageError:
    return RefusedMessageError(Reason.BAD_VALUE, "", f"the decoder yields {yielded_fault}")


def _convert_all_decoder_events(
    feed: Feed, decoder_setting: DecoderClassSetting, message: Message, yielded_events: Any
) -> tuple[SessionEvent, ...]:
    """Returns the converted events that a decoder yielded for a message. Raises RefusedMessageError if one is wrong."""
    events = tuple(_convert_each_decoder_event(feed, decoder_setting, message, yielded_events))
    if several := find_chain_with_several_seqs(events):
        raise _build_error_of_bad_decoder_output(f"several seqs of the chain {several}")
    return events


def _convert_each_decoder_event(
    feed: Feed, decoder_setting: DecoderClassSetting, message: Message, yielded_events: Any
) -> Iterator[SessionEvent]:
    if not isinstance(yielded_events, Iterable) or isinstance(yielded_events, str | bytes | dict):
        raise _build_error_of_bad_decoder_output(
            f"{_describe_yielded_value(yielded_events)}, where events are expected"
        )
    rows, sessions = _DecoderRowConverter(feed, decoder_setting), set()
    holds_rows = feed.needs_rows_in_memory
    for number, event in enumerate(yielded_events):
        if number == MAX_EVENTS:
            raise _build_error_of_bad_decoder_output(f"more than {MAX_EVENTS} events")
        if not isinstance(event, Event):
            raise _build_error_of_bad_decoder_output(f"{_describe_yielded_value(event)}, where an Event is expected")
        found = _convert_decoder_event(feed, message, event, rows)
        if not holds_rows and (found.scope or any(row.expect is not None for row in found.rows)):
            what = "a scope" if found.scope else "a row with expect"
            raise _build_error_of_bad_decoder_output(f"{what}, but the class does not say `needs_rows = True`")
        if (found.session, found.chain if found.kind is EventKind.IGNORE else None) in sessions:
            raise _build_error_of_bad_decoder_output(
                f"two events of session {found.session!r}; join their rows in one event"
            )
        sessions.add((found.session, found.chain if found.kind is EventKind.IGNORE else None))
        yield found


def _convert_decoder_event(
    feed: Feed, message: Message, event: Event, row_converter: _DecoderRowConverter
) -> SessionEvent:
    """Returns an event with converted fields and rows. Raises RefusedMessageError if anything in it is wrong."""
    kind = _parse_event_kind(event)
    seq = event.seq if event.seq is None else _require_integer_field(event.seq, "seq", 0)
    after = event.after if event.after is None else _require_integer_field(event.after, "after", INT64_MIN + 1)
    if seq is None and feed.order.kind is OrderMethod.ARRIVAL and kind is not EventKind.IGNORE:
        seq = message.offset
    if after is not None and (seq is None or (after > seq and not event.is_link)):
        raise _build_error_of_bad_decoder_output(f"after {after} with seq {seq}")
    chain = event.chain
    if chain is not None and (not isinstance(chain, str) or format_session_id((chain,)) is None):
        raise _build_error_of_bad_decoder_output(
            f"the chain {_describe_yielded_value(chain)}, which is no text of 1 to {MAX_KEY_BYTES} bytes"
        )
    if chain is not None and not feed.has_sessions_sharing_seqs:
        raise _build_error_of_bad_decoder_output(
            f"the chain {_describe_yielded_value(chain)}, but the class does not say `has_chains = True`"
        )
    if feed.has_sessions_sharing_seqs and (chain is None) != (seq is None):
        raise _build_error_of_bad_decoder_output(
            "a chain without seq, or a seq without chain; a decoder with chains gives both or none"
        )
    if kind is EventKind.IGNORE:
        if chain is None or seq is None:
            raise _build_error_of_bad_decoder_output(
                "an ignored message without chain and seq; yield nothing to ignore a message"
            )
        return SessionEvent("", kind, 0, seq, after, event.is_link is True, chain)
    restart = event.restart is True
    if kind is not EventKind.SNAPSHOT and (restart or event.scope):
        raise _build_error_of_bad_decoder_output(f"restart or scope with a message that is {kind.value}")
    found = SessionEvent(
        session=compute_session_id_of_event(feed, message, event.session),
        kind=kind,
        ts=message.timestamp if event.ts is None else _require_integer_field(event.ts, "ts", INT64_MIN),
        seq=seq,
        after=None if restart else after,
        is_link=event.is_link is True and not restart,
        chain=chain,
        restart=restart,
        rows=tuple(row_converter.convert_decoder_rows(event.rows)),
        scope=row_converter.convert_snapshot_scope(event.scope),
        sent=event.sent,
    )
    if found.rows and kind not in {EventKind.SNAPSHOT, EventKind.UPDATE}:
        raise _build_error_of_bad_decoder_output(f"rows with a message that is {kind.value}")
    refuse_repeated_row_keys(feed, found)
    return found


def _parse_event_kind(event: Event) -> EventKind:
    try:
        return EventKind(event.kind)
    except ValueError:
        raise _build_error_of_bad_decoder_output(
            f"the kind {_describe_yielded_value(event.kind)}, which is none of {', '.join(EventKind)}"
        ) from None


def _require_integer_field(value: Any, field_name: str, minimum: int) -> int:
    if type(value) is not int or not minimum <= value <= INT64_MAX:
        raise _build_error_of_bad_decoder_output(
            f"{field_name} {_describe_yielded_value(value)}, which is no whole number from {minimum} to {INT64_MAX}"
        )
    return value


def compute_session_id_of_event(feed: Feed, message: Message, yielded_session: Any) -> str:
    """Returns the session id of a decoder's event: what the decoder yields, or if that is None the feed's `session`.

    Raises:
        RefusedMessageError: There is no session, or it cannot be used.
    """
    if yielded_session is None:
        if not feed.session:
            raise _build_error_of_bad_decoder_output("an event without a session, and the feed has no `session`")
        headers = {
            name: text
            for name, sent in message.headers.items()
            if (text := decode_utf8_or_none(sent or b"")) is not None
        }
        of_record = message.topic, message.partition, message.offset, message.timestamp
        place = PathContext(MISSING, *of_record, decode_utf8_or_none(message.key), headers)
        return read_session_id(feed.session, place)
    texts = yielded_session if isinstance(yielded_session, tuple) and yielded_session else (yielded_session,)
    session = format_session_id(texts) if all(isinstance(text, str) for text in texts) else None
    if session is None:
        why = f"1 to {MAX_KEY_BYTES} bytes without control characters"
        raise _build_error_of_bad_decoder_output(
            f"the session {_describe_yielded_value(yielded_session)}, which is no text or tuple of texts of {why}"
        )
    return session


class _DecoderRowConverter:
    """Checks and converts the rows of one message.

    Args:
        feed: The feed.
        decoder_setting: The feed's decoder.
    """

    def __init__(self, feed: Feed, decoder_setting: DecoderClassSetting) -> None:
        self._columns, self._key, self._rescue = feed.columns, feed.key, decoder_setting.rescue
        self._count = 0

    def convert_decoder_rows(self, yielded_rows: Any) -> Iterator[RowUpsert | RowDelete]:
        """Yields the converted rows of an event. Raises RefusedMessageError at the first that is wrong."""
        if not isinstance(yielded_rows, Iterable) or isinstance(yielded_rows, str | bytes | dict):
            raise _build_error_of_bad_decoder_output(
                f"{_describe_yielded_value(yielded_rows)}, where rows are expected"
            )
        for row in yielded_rows:
            self._count += 1
            if self._count > MAX_ROWS:
                raise _build_error_of_bad_decoder_output(f"more than {MAX_ROWS} rows")
            if isinstance(row, Put):
                yield self._convert_put(row)
            elif isinstance(row, Delete):
                key = self._convert_row_key(row.key)
                yield RowDelete(key, create_row_id_within_length_limit(key), _parse_expected_presence(row.expect))
            else:
                raise _build_error_of_bad_decoder_output(
                    f"{_describe_yielded_value(row)}, where Put or Delete is expected"
                )

    def convert_snapshot_scope(self, yielded_scope: Any) -> dict[str, Any]:
        """Returns the converted values of a scope by column. Raises RefusedMessageError if one is wrong."""
        if yielded_scope is not NO_SCOPE and not isinstance(yielded_scope, dict):
            raise _build_error_of_bad_decoder_output(
                f"the scope {_describe_yielded_value(yielded_scope)}, where a dict is expected"
            )
        if unknown := [name for name in yielded_scope if name not in self._columns]:
            raise _build_error_of_bad_decoder_output(
                f"a scope of undeclared columns: {_describe_yielded_value(unknown)}"
            )
        return {name: self._convert_column_value(name, value) for name, value in yielded_scope.items()}

    def _convert_put(self, row: Put) -> RowUpsert:
        """Returns a `Put` with converted values. Raises RefusedMessageError if anything in it is wrong."""
        if not isinstance(row.values, dict):
            raise _build_error_of_bad_decoder_output(
                f"the values {_describe_yielded_value(row.values)}, where a dict is expected"
            )
        key = self._convert_row_key(row.key)
        values: dict[str, Any] = {}
        undeclared: set[str] = set()
        for name, value in row.values.items():
            if name in self._columns:
                values[name] = self._convert_column_value(name, value)
            elif isinstance(name, str):
                undeclared.add(name)
            else:
                raise _build_error_of_bad_decoder_output(
                    f"a value of the column {_describe_yielded_value(name)}, which is no text"
                )
        for column, own in zip(self._key, key, strict=True):
            if values.setdefault(column.name, own) != own:
                raise _build_error_of_bad_decoder_output(
                    f"{_describe_yielded_value(values[column.name])} in the key's column {column.name}, "
                    f"but the key {own!r}"
                )
        rescued = format_undeclared_columns_as_json(undeclared, row.values) if undeclared and self._rescue else None
        return RowUpsert(
            key, create_row_id_within_length_limit(key), values, rescued, _parse_expected_presence(row.expect)
        )

    def _convert_row_key(self, yielded_key: Any) -> tuple[Any, ...]:
        """Returns the converted values of a key: a tuple, or a dict by column. Raises RefusedMessageError if wrong."""
        names = [column.name for column in self._key]
        if isinstance(yielded_key, dict):
            raw = [yielded_key.get(name) for name in names]
        elif isinstance(yielded_key, tuple):
            raw = list(yielded_key)
        else:
            raise _build_error_of_bad_decoder_output(
                f"the key {_describe_yielded_value(yielded_key)}, where a tuple is expected"
            )
        if len(raw) != len(names):
            raise _build_error_of_bad_decoder_output(
                f"a key of {len(raw)} values, where {', '.join(names)} are expected"
            )
        key = tuple(map(self._convert_column_value, names, raw))
        if None in key:
            raise _build_error_of_bad_decoder_output(f"a key without a value for {names[key.index(None)]}")
        return key

    def _convert_column_value(self, column_name: str, value: Any) -> Any:
        if value is None:
            return None
        column = self._columns[column_name]
        try:
            return column.convert_python(value)
        except (ValueError, TypeError, RecursionError) as error:
            why = f"{_describe_yielded_value(value)} in column {column_name}, which is {column.sql}: {error}"
            raise _build_error_of_bad_decoder_output(why) from None


def format_undeclared_columns_as_json(column_names: Iterable[str], row_values: Mapping[Any, Any]) -> str:
    """Returns a row's values of undeclared columns as JSON text, with the names sorted.

    Raises:
        ValueError: A value is NaN or infinite.
        TypeError: JSON has no form for a value.
    """
    return format_json({name: row_values[name] for name in sorted(column_names)})


def create_row_id_within_length_limit(key: tuple[Any, ...]) -> str:
    """Returns the row id of a key. Raises RefusedMessageError if it is too long."""
    row_id = create_row_id(key)
    if not 1 <= len(row_id.encode()) <= MAX_ID_BYTES:
        why = f"the key has {len(row_id.encode())} bytes, 1 to {MAX_ID_BYTES} may be"
        raise RefusedMessageError(Reason.BAD_ROW_ID, "", why)
    return row_id


def _parse_expected_presence(yielded: Any) -> PresentOrAbsent | None:
    try:
        return None if yielded is None else PresentOrAbsent(yielded)
    except ValueError:
        raise _build_error_of_bad_decoder_output(
            f"expect {_describe_yielded_value(yielded)}, which is none of {', '.join(PresentOrAbsent)}"
        ) from None


def _describe_yielded_value(value: Any) -> str:
    """Returns a value as errors show it: as JSON, or by its type if it is none."""
    try:
        return describe_value_for_error(value)
    except Exception:  # noqa: BLE001 - a decoder may yield any object
        return f"a value of type {type(value).__name__}"
