"""From a Kafka message to the events of its sessions: the value is decoded, then read by the feed's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sessionlake.feeds.events import Decoded, Refusal
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.interpret import interpret
from sessionlake.feeds.paths import MISSING, Place
from sessionlake.feeds.values import Digits
from sessionlake.protocol.jsontext import InvalidJsonError, parse_json
from sessionlake.protocol.reasons import Reason

MAX_BYTES = 10 * 1024 * 1024
"""Longest value that is read unless `capture.max_message_bytes` says otherwise."""


@dataclass(frozen=True)
class KafkaRecord:
    """A message as Kafka has it.

    Attributes:
        timestamp: Milliseconds since 1970; -1 if the producer gave none.
        headers: The last value of each name.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)


def feed_of(feeds: Sequence[Feed], topic: str) -> Feed | None:
    """The feed that reads a topic: the first whose pattern matches the whole name."""
    return next((feed for feed in feeds if feed.topics.fullmatch(topic)), None)


def read(feed: Feed, record: KafkaRecord, *, max_bytes: int = MAX_BYTES) -> Decoded | Refusal:
    """Reads a message by a feed.

    Returns:
        The events of the sessions that it concerns, or why it goes to quarantine. The same for the same message.
    """
    if record.value is not None and len(record.value) > max_bytes:
        return Refusal(Reason.TOO_LARGE, "", f"{len(record.value)} bytes, at most {max_bytes} may be")
    try:
        value = MISSING if record.value is None else load_json(record.value, digits=feed.needs_digits)
    except InvalidJsonError as error:
        return Refusal(error.reason, "", "the value is no JSON that can be used")
    key = None if record.key is None else record.key.decode(errors="replace")
    headers = {name: (text or b"").decode(errors="replace") for name, text in record.headers.items()}
    place = Place(value, record.topic, record.partition, record.offset, record.timestamp, key, headers)
    return interpret(feed, place)


def load_json(value: bytes, *, digits: bool = False) -> Any:
    """The value of a JSON text. Numbers with a point or an exponent are exact.

    Args:
        digits: True to get numbers as `Digits`, which have their text.

    Raises:
        InvalidJsonError: NOT_UTF8, TOO_DEEP or NOT_JSON.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidJsonError(Reason.NOT_UTF8) from None
    return parse_json(text, Digits, Digits) if digits else parse_json(text, Decimal)
