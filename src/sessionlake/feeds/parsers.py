"""Creates the functions with which generated code parses values and keys of messages."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from sessionlake.feeds.code import UnusualMessageError
from sessionlake.feeds.feed import Feed, KafkaKeyFormat
from sessionlake.feeds.numbers import NumberRange
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import get_value_parser, parse_kafka_key
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.jsontext import is_json_nested_too_deep
from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.payload import PayloadFormat

Parse = Callable[[bytes], Any]
MOST_DIGITS = 4300
"""Most digits of an integer in JSON. The slow reader `feeds.interpret` refuses longer ones, even in unused fields."""
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def has_too_long_integer(value: bytes) -> bool:
    """Returns True if a JSON text may have an integer of more than 4,300 digits, which the slow reader refuses."""
    return b"0" * (MOST_DIGITS + 1) in value.translate(_DIGITS)


_EXACT_JSON = msgspec.json.Encoder(order="sorted", decimal_format="number")


def format_json_with_sorted_names(value: Any) -> str:
    """Returns a JSON value without doubles as JSON text with sorted names. Faster than `values.format_json`."""
    return _EXACT_JSON.encode(value).decode()


def create_value_and_key_parsers(
    feed: Feed, payload: PayloadReader | None, value_type: Any, *, keeps_digits: bool
) -> tuple[Parse, Parse]:
    """Returns the functions that parse values and keys.

    They raise an exception, such as UnusualError, for a message that they cannot read. The slow reader
    `feeds.interpret` then reads it.

    Args:
        feed: The feed.
        payload: Reads Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.
        value_type: The Python type into which JSON values are decoded, such as a msgspec struct; Any for plain objects.
        keeps_digits: True if all numbers with a point must become decimals. False if only those that the feed needs.
    """
    json = _create_json_parser(feed, Any, keeps_digits)

    def parse_key_of_feed(key: bytes) -> Any:
        """Returns a Kafka key as paths read it. Raises an exception for a key that only the slow reader can read."""
        if feed.key_format is not KafkaKeyFormat.JSON:
            return parse_kafka_key(feed, key, payload)
        if len(key) > MAX_DEPTH and is_json_nested_too_deep(key.decode()):
            raise UnusualMessageError
        return json(key)

    parse = get_value_parser(feed, payload)
    return _create_json_parser(
        feed, value_type, keeps_digits
    ) if feed.format is PayloadFormat.JSON else parse, parse_key_of_feed


def _create_json_parser(feed: Feed, value_type: Any, keeps_digits: bool) -> Parse:
    """Returns a parser of JSON. It reads numbers with a point as doubles if that loses nothing for this feed."""
    exact = keeps_digits or any(_needs_exact_numbers(column) for column in feed.columns.values())
    exact |= feed.check is not None or any(isinstance(one, Decimal) for one in _list_configured_values(feed))
    exact |= any(isinstance(one.wanted, NumberRange) for rule in feed.rules for one in rule.when)
    times = [feed.time, *(rule.time for rule in feed.rules if rule.time is not None)]
    exact |= any(time.how in {"epoch_s", "epoch_ns"} and not time.from_text for time in times)
    return msgspec.json.Decoder(value_type, float_hook=Decimal if exact else None).decode


def _list_configured_values(feed: Feed) -> list[Any]:
    """Returns all values of the configuration with which values of messages are compared."""
    conditions = [one.wanted for rule in feed.rules for one in rule.when if isinstance(one.wanted, tuple)]
    return [*feed.unavailable, *(value for wanted in conditions for value in wanted)]


def _needs_exact_numbers(column: FeedColumn) -> bool:
    """Returns True if the column needs exact decimal numbers, because a double would lose digits."""
    return column.sql.startswith(("decimal", "variant", "array", "timestamp")) and column.how is None
