"""Reads one Kafka message by a feed: parses the value as JSON, then applies the feed's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from sessionlake.feeds.events import Decoded, Refusal
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.interpret import interpret
from sessionlake.feeds.paths import MISSING, Place
from sessionlake.feeds.values import Digits
from sessionlake.protocol.jsontext import InvalidJsonError, parse_json
from sessionlake.protocol.reasons import Reason

MAX_BYTES = 10 * 1024 * 1024
"""Default of the longest value in bytes. A longer one goes to quarantine."""


class KafkaRecord(NamedTuple):
    """A message as Kafka has it, before it is decoded.

    Attributes:
        topic: Topic of the message.
        partition: Number of the partition.
        offset: Kafka offset.
        timestamp: Kafka timestamp in ms since 1970; -1 if the producer set none.
        key: Key; None if the message has none.
        value: Value; None for a tombstone.
        headers: Values by name. If a name occurs several times, the last value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = MappingProxyType({})


def feed_of(feeds: Sequence[Feed], topic: str) -> Feed | None:
    """Returns the first feed whose pattern matches the topic's whole name; None if none does."""
    return next((feed for feed in feeds if feed.topics.fullmatch(topic)), None)


def read(feed: Feed, record: KafkaRecord, *, max_bytes: int = MAX_BYTES) -> Decoded | Refusal:
    """Reads a message by a feed. The result depends only on the message and the feed.

    Args:
        feed: The feed of the message's topic.
        record: The message.
        max_bytes: Longest value allowed.

    Returns:
        The events of the message, or the fault for which it goes to quarantine.
    """
    if record.value is not None and len(record.value) > max_bytes:
        return Refusal(Reason.TOO_LARGE, "", f"{len(record.value)} bytes, at most {max_bytes} may be")
    try:
        value = MISSING if record.value is None else load_json(record.value, digits=feed.needs_digits)
    except InvalidJsonError as error:
        return Refusal(error.reason, "", "the value is no JSON that can be used")
    key = _decode_text(record.key)
    headers = {name: text for name, value in record.headers.items() if (text := _decode_text(value or b"")) is not None}
    place = Place(value, record.topic, record.partition, record.offset, record.timestamp, key, headers)
    return interpret(feed, place)


def _decode_text(value: bytes | None) -> str | None:
    """Returns a key or header as text; None if there is none, or if it is not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def load_json(value: bytes, *, digits: bool = False) -> Any:
    """Parses JSON. Numbers with a point or an exponent become exact decimals.

    Args:
        value: The JSON text in UTF-8.
        digits: True to return all numbers as `Digits`, texts with exactly the digits that were sent.

    Raises:
        InvalidJsonError: The text is not UTF-8, is not JSON, or nests too deep; `reason` says which.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidJsonError(Reason.NOT_UTF8) from None
    return parse_json(text, Digits, Digits) if digits else parse_json(text, Decimal)
