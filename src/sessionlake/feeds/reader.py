"""Reads one Kafka message by a feed: parses the value, then applies the feed's rules or its decoder class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from sessionlake.feeds.decode import decode_by_decoder_class
from sessionlake.feeds.decoder import Message, PayloadError, decode_utf8_or_none
from sessionlake.feeds.events import DecodedMessage, MessageRefusal
from sessionlake.feeds.feed import Feed, KafkaKeyFormat
from sessionlake.feeds.interpret import read_message_by_rules
from sessionlake.feeds.numbers import NumberText
from sessionlake.feeds.paths import MISSING, PathContext
from sessionlake.feeds.payload import PayloadReader
from sessionlake.protocol.jsontext import InvalidJsonError, parse_json
from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.protocol.reasons import Reason

_EXACT = msgspec.json.Decoder(float_hook=Decimal)
MAX_BYTES = 10 * 1024 * 1024
"""Default of the longest value in bytes, also after decompression. A longer one goes to quarantine."""


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


@dataclass(frozen=True)
class KafkaRecordColumns:
    """Messages as Kafka has them, column by column.

    Attributes:
        topic, partition, offset, timestamp, key, value, headers: As in `KafkaRecord`, one for each message.
    """

    topic: list[str]
    partition: list[int]
    offset: list[int]
    timestamp: list[int]
    key: list[bytes | None]
    value: list[bytes | None]
    headers: list[Mapping[str, bytes | None]]

    @classmethod
    def from_records(cls, records: Iterable[KafkaRecord]) -> KafkaRecordColumns:
        """Returns messages column by column."""
        columns = [list(column) for column in zip(*records, strict=True)]
        return cls(*(columns or [[] for _ in KafkaRecord._fields]))

    def select_records(self, indices: Sequence[int]) -> KafkaRecordColumns:
        """Returns the messages at some indices."""
        return KafkaRecordColumns(
            *([getattr(self, name)[number] for number in indices] for name in KafkaRecord._fields)
        )

    def get_record(self, index: int) -> KafkaRecord:
        """Returns the message at an index."""
        return KafkaRecord(*(getattr(self, name)[index] for name in KafkaRecord._fields))


def find_feed_of_topic(feeds: Sequence[Feed], topic: str) -> Feed | None:
    """Returns the first feed whose pattern matches the topic's whole name; None if none does."""
    return next((feed for feed in feeds if feed.topics.fullmatch(topic)), None)


def read_record(
    feed: Feed, record: KafkaRecord, *, max_bytes: int = MAX_BYTES, payload: PayloadReader | None = None
) -> DecodedMessage | MessageRefusal:
    """Reads a message by a feed. The result depends only on the message, the feed and its schemas.

    Args:
        feed: The feed of the message's topic.
        record: The message.
        max_bytes: Longest value allowed.
        payload: Reads Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.

    Returns:
        The events of the message, or the fault for which it goes to quarantine.
    """
    if record.value is not None and len(record.value) > max_bytes:
        return MessageRefusal(Reason.TOO_LARGE, "", f"{len(record.value)} bytes, at most {max_bytes} may be")
    if feed.decoder is not None:
        return decode_by_decoder_class(
            feed, feed.decoder, Message(*record, *list_arguments_same_for_all_messages(feed, payload))
        )
    place = parse_record_for_paths(feed, record, payload)
    return place if isinstance(place, MessageRefusal) else read_message_by_rules(feed, place)


def parse_record_for_paths(
    feed: Feed, record: KafkaRecord, payload: PayloadReader | None
) -> PathContext | MessageRefusal:
    """Returns a message with its parsed value, in which paths are looked up; its fault if it cannot be parsed."""
    try:
        value = MISSING if record.value is None else get_value_parser(feed, payload)(record.value)
    except (InvalidJsonError, PayloadError) as error:
        return MessageRefusal(error.reason, "", f"the value is no {feed.format.value} that can be used")
    try:
        key = None if record.key is None else parse_kafka_key(feed, record.key, payload)
    except (InvalidJsonError, PayloadError):
        return MessageRefusal(Reason.BAD_KEY, "kafka.key", f"the key is no {feed.key_format.value} that can be used")
    headers = {
        name: text for name, value in record.headers.items() if (text := decode_utf8_or_none(value or b"")) is not None
    }
    return PathContext(value, record.topic, record.partition, record.offset, record.timestamp, key, headers)


def get_value_parser(feed: Feed, payload: PayloadReader | None) -> Callable[[bytes], Any]:
    """Returns the function that parses values of a feed's messages.

    It raises InvalidJsonError or PayloadError for a value that it cannot parse.
    """
    if feed.format is not PayloadFormat.JSON:
        return _require_payload_reader(feed, payload).read_payload
    return load_json_with_number_texts if feed.needs_digits else load_json


def parse_kafka_key(feed: Feed, key: bytes, payload: PayloadReader | None) -> Any:
    """Returns a Kafka key as paths read it: as text, or parsed if the feed has a `key_format`.

    Raises:
        InvalidJsonError: The key is not JSON although the feed says so.
        PayloadError: The key is not Avro although the feed says so, or its schema is unknown.
    """
    if feed.key_format is KafkaKeyFormat.AVRO:
        return _require_payload_reader(feed, payload).read_payload(key)
    if feed.key_format is KafkaKeyFormat.JSON:
        return load_json(key, numbers_as_text=feed.needs_digits)
    return decode_utf8_or_none(key)


def _require_payload_reader(feed: Feed, payload: PayloadReader | None) -> PayloadReader:
    if payload is None:
        raise TypeError(f"feed {feed.name} has Avro or Protobuf, so it needs the schemas of capture.payload")
    return payload


def list_arguments_same_for_all_messages(feed: Feed, payload: PayloadReader | None) -> tuple[Any, ...]:
    """Returns the arguments of `Message` after the fields of a Kafka record. They are the same for all messages."""
    parse_json = load_json_with_number_texts if feed.needs_digits else load_json_fast
    parse = parse_json if feed.format is PayloadFormat.JSON else _require_payload_reader(feed, payload).read_payload
    return tuple(column.name for column in feed.key), tuple(feed.columns), parse_json, parse


def load_json_with_number_texts(value: bytes) -> Any:
    """Parses JSON into Python values in which each number is a `NumberText`. Raises the errors of `load_json`."""
    return load_json(value, numbers_as_text=True)


def load_json_fast(value: bytes) -> Any:
    """Parses JSON to the same values as `load_json`, several times faster. Unusual text is left to `load_json`."""
    is_flat = len(value) <= 2 * MAX_DEPTH or value.count(b"[") + value.count(b"{") <= MAX_DEPTH
    if is_flat and b"\\u" not in value:
        try:
            return _EXACT.decode(value)
        except (msgspec.DecodeError, ValueError, InvalidOperation):
            pass
    return load_json(value)


def load_json(value: bytes, *, numbers_as_text: bool = False) -> Any:
    """Parses JSON. Numbers with a point or an exponent become exact decimals, or `NumberText` if none can hold them.

    Args:
        value: The JSON text in UTF-8.
        numbers_as_text: True to return all numbers as `NumberText`, texts with exactly the digits that were sent.

    Raises:
        InvalidJsonError: The text is not UTF-8, is not JSON, or nests too deep; `reason` says which.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidJsonError(Reason.NOT_UTF8) from None
    return (
        parse_json(text, NumberText, NumberText) if numbers_as_text else parse_json(text, _parse_decimal_or_number_text)
    )


def _parse_decimal_or_number_text(text: str) -> Decimal | NumberText:
    try:
        return Decimal(text)
    except InvalidOperation:  # the exponent has too many digits
        return NumberText(text)
