"""Reads a message by a feed's decoder class, and checks all that the class yields before any of it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sessionlake.feeds.decoder import NO_SCOPE, Delete, Event, Message, PayloadError, Put, decode_text
from sessionlake.feeds.events import Decoded, Refusal
from sessionlake.feeds.events import Delete as DeleteRow
from sessionlake.feeds.events import Event as FeedEvent
from sessionlake.feeds.events import Put as PutRow
from sessionlake.feeds.feed import DecoderUse, Feed, Kind, Ordering, Presence
from sessionlake.feeds.interpret import (
    RefusedError,
    describe_value,
    find_chain_of_several_seqs,
    format_session_id,
    read_session,
    refuse_repeats,
)
from sessionlake.feeds.paths import MISSING, Place
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.time_limit import TimeLimitError, limit_cpu_time
from sessionlake.feeds.values import format_json
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MAX_ID_BYTES, MAX_KEY_BYTES
from sessionlake.protocol.reasons import Reason

MAX_EVENTS = 10_000
"""Most events that a decoder may yield for one message."""
MAX_ROWS = 200_000
"""Most rows that a decoder may yield for one message, in all its events."""
_LONGEST_TEXT = 200
"""Most characters of an exception that the text of a refusal shows."""


def decode(feed: Feed, use: DecoderUse, message: Message) -> Decoded | Refusal:
    """Reads a message by a decoder class.

    Args:
        feed: The feed of the message's topic.
        use: The feed's decoder.
        message: The message.

    Returns:
        The events of the message. If the decoder fails or yields anything wrong, no events but the fault.

    Raises:
        ConfigError: The decoder cannot be loaded.
    """
    decoder = use.load()
    try:
        with limit_cpu_time():
            return Decoded((), _read_all_events(feed, use, message, decoder.decode(message)))
    except TimeLimitError as error:
        return Refusal(Reason.BAD_VALUE, "", str(error))
    except RefusedError as refused:
        return refused.refusal
    except PayloadError as error:
        return Refusal(error.reason, "", "the value is missing or is not of the feed's format")
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises concerns this message alone
        return Refusal(Reason.BAD_VALUE, "", f"the decoder raised {type(error).__name__}: {_read_error_text(error)}")


def _read_error_text(error: Exception) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - a user's exception may have no text
        return ""


def _make_refused_error(why: str) -> RefusedError:
    return RefusedError(Reason.BAD_VALUE, "", f"the decoder yields {why}")


def _read_all_events(feed: Feed, use: DecoderUse, message: Message, yielded: Any) -> tuple[FeedEvent, ...]:
    """Returns the converted events that a decoder yielded for a message. Raises RefusedError if one is wrong."""
    events = tuple(_read_events(feed, use, message, yielded))
    if several := find_chain_of_several_seqs(events):
        raise _make_refused_error(f"several seqs of the chain {several}")
    return events


def _read_events(feed: Feed, use: DecoderUse, message: Message, yielded: Any) -> Iterator[FeedEvent]:
    if not isinstance(yielded, Iterable) or isinstance(yielded, str | bytes | dict):
        raise _make_refused_error(f"{_show_value(yielded)}, where events are expected")
    rows, sessions = _RowReader(feed, use), set()
    holds_rows = feed.holds_rows
    for number, event in enumerate(yielded):
        if number == MAX_EVENTS:
            raise _make_refused_error(f"more than {MAX_EVENTS} events")
        if not isinstance(event, Event):
            raise _make_refused_error(f"{_show_value(event)}, where an Event is expected")
        found = _read_event(feed, message, event, rows)
        if not holds_rows and (found.scope or any(row.expect is not None for row in found.rows)):
            what = "a scope" if found.scope else "a row with expect"
            raise _make_refused_error(f"{what}, but the class does not say `needs_rows = True`")
        if (found.session, found.chain if found.kind is Kind.IGNORE else None) in sessions:
            raise _make_refused_error(f"two events of session {found.session!r}; join their rows in one event")
        sessions.add((found.session, found.chain if found.kind is Kind.IGNORE else None))
        yield found


def _read_event(feed: Feed, message: Message, event: Event, rows: _RowReader) -> FeedEvent:
    """Returns an event with converted fields and rows. Raises RefusedError if anything in it is wrong."""
    kind = _read_kind(event)
    seq = event.seq if event.seq is None else _require_integer(event.seq, "seq", 0)
    after = event.after if event.after is None else _require_integer(event.after, "after", INT64_MIN + 1)
    if seq is None and feed.order.kind is Ordering.ARRIVAL and kind is not Kind.IGNORE:
        seq = message.offset
    if after is not None and (seq is None or (after > seq and not event.is_link)):
        raise _make_refused_error(f"after {after} with seq {seq}")
    chain = event.chain
    if chain is not None and (not isinstance(chain, str) or format_session_id((chain,)) is None):
        raise _make_refused_error(f"the chain {_show_value(chain)}, which is no text of 1 to {MAX_KEY_BYTES} bytes")
    if chain is not None and not feed.has_chains:
        raise _make_refused_error(f"the chain {_show_value(chain)}, but the class does not say `has_chains = True`")
    if feed.has_chains and (chain is None) != (seq is None):
        raise _make_refused_error(
            "a chain without seq, or a seq without chain; a decoder with chains gives both or none"
        )
    if kind is Kind.IGNORE:
        if chain is None or seq is None:
            raise _make_refused_error("an ignored message without chain and seq; yield nothing to ignore a message")
        return FeedEvent("", kind, 0, seq, after, event.is_link is True, chain)
    restart = event.restart is True
    if kind is not Kind.SNAPSHOT and (restart or event.scope):
        raise _make_refused_error(f"restart or scope with a message that is {kind.value}")
    found = FeedEvent(
        session=read_event_session(feed, message, event.session),
        kind=kind,
        ts=message.timestamp if event.ts is None else _require_integer(event.ts, "ts", INT64_MIN),
        seq=seq,
        after=None if restart else after,
        is_link=event.is_link is True and not restart,
        chain=chain,
        restart=restart,
        rows=tuple(rows.read_rows(event.rows)),
        scope=rows.convert_scope(event.scope),
        sent=event.sent,
    )
    if found.rows and kind not in {Kind.SNAPSHOT, Kind.UPDATE}:
        raise _make_refused_error(f"rows with a message that is {kind.value}")
    refuse_repeats(feed, found)
    return found


def _read_kind(event: Event) -> Kind:
    try:
        return Kind(event.kind)
    except ValueError:
        raise _make_refused_error(f"the kind {_show_value(event.kind)}, which is none of {', '.join(Kind)}") from None


def _require_integer(value: Any, name: str, least: int) -> int:
    if type(value) is not int or not least <= value <= INT64_MAX:
        raise _make_refused_error(f"{name} {_show_value(value)}, which is no whole number from {least} to {INT64_MAX}")
    return value


def read_event_session(feed: Feed, message: Message, yielded_session: Any) -> str:
    """Returns the session id of a decoder's event: what the decoder yields, or if that is None the feed's `session`.

    Raises:
        RefusedError: There is no session, or it cannot be used.
    """
    if yielded_session is None:
        if not feed.session:
            raise _make_refused_error("an event without a session, and the feed has no `session`")
        headers = {
            name: text for name, sent in message.headers.items() if (text := decode_text(sent or b"")) is not None
        }
        of_record = message.topic, message.partition, message.offset, message.timestamp
        place = Place(MISSING, *of_record, decode_text(message.key), headers)
        return read_session(feed.session, place)
    texts = yielded_session if isinstance(yielded_session, tuple) and yielded_session else (yielded_session,)
    session = format_session_id(texts) if all(isinstance(text, str) for text in texts) else None
    if session is None:
        why = f"1 to {MAX_KEY_BYTES} bytes without control characters"
        raise _make_refused_error(
            f"the session {_show_value(yielded_session)}, which is no text or tuple of texts of {why}"
        )
    return session


class _RowReader:
    """Checks and converts the rows of one message.

    Args:
        feed: The feed.
        use: The feed's decoder.
    """

    def __init__(self, feed: Feed, use: DecoderUse) -> None:
        self._columns, self._key, self._rescue = feed.columns, feed.key, use.rescue
        self._count = 0

    def read_rows(self, yielded: Any) -> Iterator[PutRow | DeleteRow]:
        """Yields the converted rows of an event. Raises RefusedError at the first that is wrong."""
        if not isinstance(yielded, Iterable) or isinstance(yielded, str | bytes | dict):
            raise _make_refused_error(f"{_show_value(yielded)}, where rows are expected")
        for row in yielded:
            self._count += 1
            if self._count > MAX_ROWS:
                raise _make_refused_error(f"more than {MAX_ROWS} rows")
            if isinstance(row, Put):
                yield self._read_put(row)
            elif isinstance(row, Delete):
                key = self._convert_key(row.key)
                yield DeleteRow(key, create_checked_row_id(key), _read_expected(row.expect))
            else:
                raise _make_refused_error(f"{_show_value(row)}, where Put or Delete is expected")

    def convert_scope(self, yielded: Any) -> dict[str, Any]:
        """Returns the converted values of a scope by column. Raises RefusedError if one is wrong."""
        if yielded is not NO_SCOPE and not isinstance(yielded, dict):
            raise _make_refused_error(f"the scope {_show_value(yielded)}, where a dict is expected")
        if unknown := [name for name in yielded if name not in self._columns]:
            raise _make_refused_error(f"a scope of undeclared columns: {_show_value(unknown)}")
        return {name: self._convert_value(name, value) for name, value in yielded.items()}

    def _read_put(self, row: Put) -> PutRow:
        """Returns a `Put` with converted values. Raises RefusedError if anything in it is wrong."""
        if not isinstance(row.values, dict):
            raise _make_refused_error(f"the values {_show_value(row.values)}, where a dict is expected")
        key = self._convert_key(row.key)
        values: dict[str, Any] = {}
        undeclared: set[str] = set()
        for name, value in row.values.items():
            if name in self._columns:
                values[name] = self._convert_value(name, value)
            elif isinstance(name, str):
                undeclared.add(name)
            else:
                raise _make_refused_error(f"a value of the column {_show_value(name)}, which is no text")
        for column, own in zip(self._key, key, strict=True):
            if values.setdefault(column.name, own) != own:
                raise _make_refused_error(
                    f"{_show_value(values[column.name])} in the key's column {column.name}, but the key {own!r}"
                )
        rescued = format_undeclared(undeclared, row.values) if undeclared and self._rescue else None
        return PutRow(key, create_checked_row_id(key), values, rescued, _read_expected(row.expect))

    def _convert_key(self, yielded: Any) -> tuple[Any, ...]:
        """Returns the converted values of a key, a tuple or a dict by column. Raises RefusedError if it is wrong."""
        names = [column.name for column in self._key]
        if isinstance(yielded, dict):
            raw = [yielded.get(name) for name in names]
        elif isinstance(yielded, tuple):
            raw = list(yielded)
        else:
            raise _make_refused_error(f"the key {_show_value(yielded)}, where a tuple is expected")
        if len(raw) != len(names):
            raise _make_refused_error(f"a key of {len(raw)} values, where {', '.join(names)} are expected")
        key = tuple(map(self._convert_value, names, raw))
        if None in key:
            raise _make_refused_error(f"a key without a value for {names[key.index(None)]}")
        return key

    def _convert_value(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        column = self._columns[name]
        try:
            return column.convert_python(value)
        except (ValueError, TypeError, RecursionError) as error:
            why = f"{_show_value(value)} in column {name}, which is {column.sql}: {error}"
            raise _make_refused_error(why) from None


def format_undeclared(names: Iterable[str], values: Mapping[Any, Any]) -> str:
    """Returns a row's values of undeclared columns as JSON text, with the names sorted.

    Raises:
        ValueError: A value is NaN or infinite.
        TypeError: JSON has no form for a value.
    """
    return format_json({name: values[name] for name in sorted(names)})


def create_checked_row_id(key: tuple[Any, ...]) -> str:
    """Returns the row id of a key. Raises RefusedError if it is too long."""
    row_id = create_row_id(key)
    if not 1 <= len(row_id.encode()) <= MAX_ID_BYTES:
        why = f"the key has {len(row_id.encode())} bytes, 1 to {MAX_ID_BYTES} may be"
        raise RefusedError(Reason.BAD_ROW_ID, "", why)
    return row_id


def _read_expected(yielded: Any) -> Presence | None:
    try:
        return None if yielded is None else Presence(yielded)
    except ValueError:
        raise _make_refused_error(f"expect {_show_value(yielded)}, which is none of {', '.join(Presence)}") from None


def _show_value(value: Any) -> str:
    """Returns a value as errors show it: as JSON, or by its type if it is none."""
    try:
        return describe_value(value)
    except Exception:  # noqa: BLE001 - a decoder may yield any object
        return f"a value of type {type(value).__name__}"
