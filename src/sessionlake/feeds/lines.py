"""Reads messages from the lines of a file: JSON lines with Kafka's fields, bare values, or a recording.

- `{"topic": "t", "key": "k", "value": {"a": 1}, "headers": {"h": "x"}, "timestamp": 1700000000000}`: a message. `topic`
  and `value` are required. A `value` that is a text is the text of the Kafka value; any other is sent as its JSON.
- `1618678132.927716: {"a": 1}`: a message of a recording, with its time in seconds since 1970.
- `1618678132.927716: b'{"a": 1}'`: the same, with the value as Python writes bytes.
- `wss://ws.example.com <- 1618678132.9: {"subscribe": 1}`: what a recording's client did; the line is skipped.
- Any other line: the value of a message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from sessionlake.feeds.reader import KafkaRecord

MAX_LINE = 32 * 1024 * 1024
"""Longest line in bytes. The rest of a longer line is skipped, and its message is refused because it is too large."""
_RECORDED = re.compile(rb"(\d{1,15}(?:\.\d{1,9})?): ")
_OF_CLIENT = re.compile(rb"[a-z]{2,10}://")
_LITERAL = re.compile(rb"b['\"]")
_SECOND_MS = 1000


class MessageOfLine(NamedTuple):
    """A message of a file.

    Attributes:
        number: Number of its line, from 1.
        record: The message. Its offset is the number of messages before it in the file.
        is_bare: True if the line does not name a topic.
    """

    number: int
    record: KafkaRecord
    is_bare: bool


class _MessageFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a message in a JSON line."""

    topic: str
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")
    headers: dict[str, str | None] = {}
    timestamp: int = -1
    partition: int = 0
    offset: int = -1


_FIELDS = msgspec.json.Decoder(_MessageFields)


def parse_message_lines(lines: Iterable[bytes], topic: str) -> Iterator[MessageOfLine]:
    """Yields the messages of a file, in order. Empty lines are skipped.

    Args:
        lines: The lines, with or without line breaks.
        topic: Topic of messages whose line does not name one.
    """
    offset = 0
    for number, text in enumerate(lines, 1):
        content = text.strip(b" \t\r\n")
        if not content or _OF_CLIENT.match(content):
            continue
        found = _parse_json_message_line(content, offset)
        if found is None:
            found = _parse_bare_value_line(content, topic, offset)
            yield MessageOfLine(number, found, is_bare=True)
        else:
            yield MessageOfLine(number, found, is_bare=False)
        offset += 1


def read_lines(file: BinaryIO, longest: int = MAX_LINE) -> Iterator[bytes]:
    """Yields the lines of a file, with at most `longest` bytes of each in memory."""
    while line := file.readline(longest):
        yield line
        while len(line) == longest and not line.endswith(b"\n"):
            line = file.readline(longest)


def build_kafka_record(fields: dict[str, Any], offset: int) -> KafkaRecord:
    """Returns a message whose fields are Python values, as in a JSON line.

    Args:
        fields: `topic`, and optionally `key`, `headers`, `timestamp` and `partition`. `value` is a text or bytes that
            is sent as it is, or None for a tombstone.
        offset: Kafka offset of the message.
    """
    headers = {str(name): _encode_text_as_utf8(value) for name, value in (fields.get("headers") or {}).items()}
    return KafkaRecord(
        topic=fields["topic"],
        partition=fields.get("partition", 0),
        offset=offset,
        timestamp=fields.get("timestamp", -1),
        key=_encode_text_as_utf8(fields.get("key")),
        value=_encode_text_as_utf8(fields["value"]),
        headers=headers,
    )


def _parse_json_message_line(content: bytes, offset: int) -> KafkaRecord | None:
    """Returns the message of a line that has Kafka's fields; None if the line has other content."""
    if not content.startswith(b"{") or b'"topic"' not in content:
        return None
    try:
        found = _FIELDS.decode(content)
        value, key = _convert_json_value_to_bytes(found.value), _convert_json_value_to_bytes(found.key)
    except (msgspec.DecodeError, RecursionError):
        return None
    headers = {name: _encode_text_as_utf8(text) for name, text in found.headers.items()}
    place = offset if found.offset < 0 else found.offset
    return KafkaRecord(found.topic, found.partition, place, found.timestamp, key, value, headers)


def _parse_bare_value_line(content: bytes, topic: str, offset: int) -> KafkaRecord:
    """Returns the message of a line that is a bare value, or a time and a value of a recording."""
    recorded = _RECORDED.match(content)
    if recorded is None:
        return KafkaRecord(topic, 0, offset, -1, None, content)
    time = int(float(recorded[1]) * _SECOND_MS)
    value = content[recorded.end() :]
    return KafkaRecord(
        topic, 0, offset, time, None, _parse_python_bytes_literal(value) if _LITERAL.match(value) else value
    )


def _parse_python_bytes_literal(text: bytes) -> bytes:
    """Returns the bytes of a Python literal such as `b'{"a": 1}'`; the text itself if it is none."""
    try:
        found = ast.literal_eval(text.decode())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return found if isinstance(found, bytes) else text


def _convert_json_value_to_bytes(raw: msgspec.Raw) -> bytes | None:
    """Returns the bytes that a JSON value in a line stands for: the text, None for null, otherwise the JSON."""
    content = bytes(raw)
    if content.startswith(b'"'):
        return msgspec.json.decode(content, type=str).encode(errors="surrogatepass")
    return None if content == b"null" else content


def _encode_text_as_utf8(value: str | bytes | None) -> bytes | None:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else value
