r"""Reads and writes the lines of an archive's member: a header, one line per message, and a footer with a checksum.

    {"format":"sessionlake-archive","version":1,"topic":"capture.a","partition":0}
    {"timestamp":1700000000000,"key":"s","value":"{\"type\":…}","offset":17}
    {"messages":1,"crc32":"1c291ca3"}

A key or value is text, null, or `{"base64":"…"}` if its bytes are not UTF-8. The checksum covers all bytes between the
first and the last line.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec

FORMAT = "sessionlake-archive"
VERSION = 1
MAX_LINE_BYTES = 64 * 1024 * 1024
# The highest timestamp in ms that bronze can store. Years outside 1 to 9999 are stored too, and judged later.
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
_TYPES = frozenset({-1, 0, 1})  # -1: a message in an old format that has no timestamp


class Damage(StrEnum):
    """Why a member cannot be used."""

    UNREADABLE = "unreadable"
    """The member is not compressed as the file's name says, or it is cut short."""
    HEADER = "bad_header"
    MESSAGE = "bad_message"
    """A line is not a message or is too long, or offsets do not rise."""
    FOOTER = "bad_footer"
    """The last line is not a footer: the member is cut short, or something follows the footer."""
    COUNT = "wrong_count"
    CHECKSUM = "wrong_checksum"


class DamagedError(Exception):
    """A member is damaged and cannot be used.

    Attributes:
        damage: The kind of damage.
    """

    def __init__(self, damage: Damage, why: str = "") -> None:
        super().__init__(f"{damage}: {why}" if why else str(damage))
        self.damage = damage


class Base64(msgspec.Struct):
    """Bytes that are not UTF-8 text, in base64."""

    base64: str


Content = str | Base64 | None


class Header(msgspec.Struct, frozen=True):
    """The first line of a member.

    Attributes:
        topic: Topic of its messages.
        partition: Partition of its messages.
        first_offset: Offset of the first message, if message lines have no offsets. None: the archive gives none.
        format: Must be `FORMAT`.
        version: Must be `VERSION`.
    """

    topic: str
    partition: int = 0
    first_offset: int | None = None
    format: str = ""
    version: int = 0


class Line(msgspec.Struct, omit_defaults=True):
    """The JSON object in the line of a message. The timestamp is in ms since 1970.

    `offset` is None if the member's header has `first_offset`, or the archive has no offsets.
    """

    timestamp: int
    key: Content = None
    value: Content = None
    offset: int | None = None
    timestamp_type: int = 0
    headers: list[tuple[str, Content]] | None = None


class Footer(msgspec.Struct):
    """The last line of a member.

    Attributes:
        messages: Number of messages in the member.
        crc32: CRC-32 of all message lines, as 8 hexadecimal digits.
    """

    messages: int
    crc32: str


@dataclass(frozen=True)
class Message:
    """A message in an archive, as Kafka had it.

    The timestamp is in ms since 1970; `timestamp_type` is Kafka's (-1 without a timestamp, 0 set by the producer, 1 by
    the broker). `offset` is None if the message's line has none.
    """

    offset: int | None
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp_type: int = 0
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def encode_header_line(topic: str, partition: int) -> bytes:
    """Returns the header line of a member whose message lines have offsets."""
    named = {"format": FORMAT, "version": VERSION, "topic": topic, "partition": partition}
    return msgspec.json.encode(named) + b"\n"


def encode_message_line(message: Message) -> bytes:
    """Returns the line of a message."""
    headers = message.headers
    line = Line(
        timestamp=message.timestamp,
        key=_to_content(message.key),
        value=_to_content(message.value),
        offset=message.offset,
        timestamp_type=message.timestamp_type,
        headers=None if headers is None else [(name, _to_content(value)) for name, value in headers],
    )
    return msgspec.json.encode(line) + b"\n"


def encode_footer_line(messages: int, checksum: int) -> bytes:
    """Returns the footer line of a member.

    Args:
        messages: Number of messages in the member.
        checksum: CRC-32 of all message lines.
    """
    return msgspec.json.encode(Footer(messages, f"{checksum:08x}")) + b"\n"


def read_header(line: bytes) -> Header:
    """Parses a header line.

    Raises:
        DamagedError: The line is not a header of this format and version.
    """
    header = _decode_line(line, Header, Damage.HEADER)
    if header.format != FORMAT or header.version != VERSION:
        raise DamagedError(Damage.HEADER, f"it is of format {header.format!r}, version {header.version}")
    if not header.topic or not header.topic.isprintable() or not 0 <= header.partition < 2**31:
        raise DamagedError(Damage.HEADER, "it names no topic and partition")
    return header


def read_message(line: bytes) -> Message:
    """Parses the line of a message.

    Raises:
        DamagedError: The line is not a message.
    """
    found = _decode_line(line, Line, Damage.MESSAGE)
    if found.timestamp_type not in _TYPES or abs(found.timestamp) > _MAX_TIMESTAMP_MS:
        raise DamagedError(
            Damage.MESSAGE, f"timestamp {found.timestamp} of type {found.timestamp_type} is not a Kafka timestamp"
        )
    headers = None if found.headers is None else tuple((name, _to_bytes(value)) for name, value in found.headers)
    key, value = _to_bytes(found.key), _to_bytes(found.value)
    return Message(found.offset, found.timestamp, key, value, found.timestamp_type, headers)


def read_footer(line: bytes) -> Footer:
    """Parses a footer line.

    Raises:
        DamagedError: The line is not a footer.
    """
    return _decode_line(line, Footer, Damage.FOOTER)


_Read = TypeVar("_Read")


def _decode_line(line: bytes, kind: type[_Read], damage: Damage) -> _Read:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(damage, str(error)) from None


def _to_content(data: bytes | None) -> Content:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Base64(base64.b64encode(data).decode())


def _to_bytes(content: Content) -> bytes | None:
    if isinstance(content, Base64):
        try:
            return base64.b64decode(content.base64, validate=True)
        except (binascii.Error, ValueError):
            raise DamagedError(Damage.MESSAGE, "the content of `base64` is not base64") from None
    return None if content is None else content.encode()
