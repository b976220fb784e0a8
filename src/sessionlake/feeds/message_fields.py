"""Reads single fields of a message at paths of a feed: session id, event time and seq. A fault refuses the message."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.feed import EventTimeSetting, MessageOrderSetting, OrderMethod
from sessionlake.feeds.numbers import convert_number_text
from sessionlake.feeds.paths import MISSING, FeedPath, PathConstant, PathContext, find_value_at_path
from sessionlake.feeds.times import convert_time_to_milliseconds
from sessionlake.feeds.values import format_json
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MAX_KEY_BYTES
from sessionlake.protocol.reasons import Reason

_INTEGER = re.compile(r"-?\d{1,19}")


_SHOWN = 60
"""Number of characters of a faulty value that the text of a refusal shows."""


class RefusedMessageError(Exception):
    """The message goes to quarantine. The readers of a feed catch the error and return its `refusal`."""

    def __init__(self, reason: Reason, path: str, why: str) -> None:
        super().__init__(why)
        self.refusal = MessageRefusal(reason, path, why)


def format_session_id(texts: Sequence[str]) -> str | None:
    """Returns the session id made of one or several texts; None if it is too long or has control characters.

    One text is the id itself. Several texts give a JSON array.
    """
    session = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    fits = 1 <= len(session.encode()) <= MAX_KEY_BYTES and not any(unicodedata.category(c) == "Cc" for c in session)
    return session if fits else None


def read_session_id(paths: tuple[FeedPath, ...], context: PathContext) -> str:
    """Returns the session id made of the texts at some paths. Raises RefusedMessageError if there is no valid one."""
    texts = [read_text_at_path(path, context) for path in paths]
    session = format_session_id(texts)
    if session is None:
        found = describe_value_for_error(texts)
        why = f"a session's id has 1 to {MAX_KEY_BYTES} bytes and no control characters, found {found}"
        raise RefusedMessageError(Reason.BAD_VALUE, ", ".join(path.text for path in paths), why)
    return session


def read_text_at_path(path: FeedPath, context: PathContext) -> str:
    """Returns the value at a path as text. Only texts, whole numbers, true and false are accepted."""
    value = find_value_at_path(path, context)
    if value is MISSING or value is None:
        raise RefusedMessageError(Reason.BAD_PATH, path.text, "it is missing or null")
    if isinstance(value, PathConstant):
        return value.text
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int):
        return format_json(value)
    raise RefusedMessageError(
        Reason.BAD_VALUE, path.text, f"{describe_value_for_error(value)} is no text or whole number"
    )


def read_event_time_ms(time: EventTimeSetting, context: PathContext) -> int:
    """Returns the event time in ms since 1970, rounded down."""
    if time.path is None:
        return context.timestamp
    value = find_value_at_path(time.path, context)
    if value is MISSING or value is None:
        if time.or_kafka:
            return context.timestamp
        raise RefusedMessageError(Reason.BAD_PATH, time.path.text, "the time is missing or null")
    try:
        found = convert_time_to_milliseconds(value, time.how, from_text=time.from_text)
    except (ValueError, OverflowError) as error:
        raise RefusedMessageError(
            Reason.BAD_VALUE, time.path.text, f"the time is {describe_value_for_error(value)}: {error}"
        ) from None
    if not INT64_MIN <= found <= INT64_MAX:
        raise RefusedMessageError(
            Reason.BAD_VALUE, time.path.text, f"the time {describe_value_for_error(value)} is beyond 64 bits"
        )
    return found


def read_seq_interval(order: MessageOrderSetting, context: PathContext) -> tuple[int | None, int | None]:
    """Returns seq and after. The seq is None if the message has none, and after if it may follow any seq."""
    if order.kind is OrderMethod.NONE:
        return None, None
    if order.kind is OrderMethod.ARRIVAL or order.seq is None:
        return context.offset, None
    seq = _read_integer_at_path(order.seq, context)
    if seq < 0:
        raise RefusedMessageError(Reason.BAD_VALUE, order.seq.text, f"{seq} is no seq, which is 0 or more")
    match order.kind:
        case OrderMethod.STEP:
            return seq, seq - 1
        case OrderMethod.LINK if order.other is not None:
            return seq, _read_integer_at_path(order.other, context)
        case OrderMethod.RANGE if order.other is not None:
            return seq, _read_integer_at_path(order.other, context) - 1
        case _:
            return seq, None


def _read_integer_at_path(path: FeedPath, context: PathContext) -> int:
    """Returns the signed 64-bit integer at a path, which may be written as a text."""
    value = convert_number_text(find_value_at_path(path, context))
    if value is MISSING or value is None:
        raise RefusedMessageError(Reason.BAD_PATH, path.text, "the order's number is missing or null")
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not INT64_MIN < value <= INT64_MAX:
        raise RefusedMessageError(
            Reason.BAD_VALUE, path.text, f"{describe_value_for_error(value)} is no whole number of 64 bits"
        )
    return value


def describe_value_for_error(value: Any) -> str:
    """Returns a value as it is shown in an error, cut to 60 characters."""
    if value is MISSING:
        return "a tombstone"
    text = value.text if isinstance(value, PathConstant) else format_json(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
