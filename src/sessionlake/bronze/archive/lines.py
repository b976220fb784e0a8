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


class MemberDamage(StrEnum):
    """Why a member of an archive file cannot be used."""

    UNREADABLE = "unreadable"
    """The member is not compressed as the file's name says, or it is cut short."""
    HEADER = "bad_header"
    MESSAGE = "bad_message"
    """A line is not a message or is too long, or offsets do not rise."""
    FOOTER = "bad_footer"
    """The last line is not a footer: the member is cut short, or something follows the footer."""
    COUNT = "wrong_count"
    CHECKSUM = "wrong_checksum"


class DamagedArchiveMemberError(Exception):
    """A member of an archive file is damaged and cannot be used.

    Args:
        damage: The kind of damage.
        why: Details; empty if there are none.
    """

    def __init__(self, damage: MemberDamage, why: str = "") -> None:
        super().__init__(f"{damage}: {why}" if why else str(damage))
        self.damage = damage


class Base64Content(msgspec.Struct):
    """A JSON object with bytes that are not UTF-8 text, in base64."""

    base64: str


Content = str | Base64Content | None


class MemberHeader(msgspec.Struct, frozen=True):
    """The first line of an archive's member, as parsed from JSON.

    Attributes:
        topic: Topic of the member's messages.
        partition: Partition of the member's messages.
        first_offset: Offset of the first message, if message lines have no offsets. None: the archive gives no offsets.
        format: Name of the archive format, which is always the same.
        version: Version of the archive format.
    """

    topic: str
    partition: int = 0
    first_offset: int | None = None
    format: str = ""
    version: int = 0


class MessageLine(msgspec.Struct, omit_defaults=True):
    """A message's line in an archive, as parsed from JSON.

    Attributes:
        timestamp: Kafka timestamp in milliseconds since 1970.
        key: The key as text, or in base64.
        value: The value as text, or in base64.
        offset: The offset; None if the member's header has `first_offset`, or the archive gives no offsets.
        timestamp_type: Kafka's: -1 without a timestamp, 0 set by the producer, 1 set by the broker.
        headers: Name and content of each Kafka header; None if there are none.
    """

    timestamp: int
    key: Content = None
    value: Content = None
    offset: int | None = None
    timestamp_type: int = 0
    headers: list[tuple[str, Content]] | None = None


class MemberFooter(msgspec.Struct):
    """The last line of an archive's member, as parsed from JSON.

    Attributes:
        messages: Number of messages in the member.
        crc32: CRC-32 of all message lines, as 8 hexadecimal digits.
    """

    messages: int
    crc32: str


@dataclass(frozen=True)
class ArchivedMessage:
    """A message in an archive, as Kafka had it.

    Attributes:
        offset: The offset; None if the message's line has none.
        timestamp: Kafka timestamp in milliseconds since 1970.
        key: The key; None if there is none.
        value: The value; None if there is none.
        timestamp_type: Kafka's: -1 without a timestamp, 0 set by the producer, 1 set by the broker.
        headers: Name and content of each Kafka header; None if there are none.
    """

    offset: int | None
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp_type: int = 0
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def encode_header_line(topic: str, partition: int) -> bytes:
    """Returns the first line of an archive's member, whose messages have their offsets in their own lines."""
    named = {"format": FORMAT, "version": VERSION, "topic": topic, "partition": partition}
    return msgspec.json.encode(named) + b"\n"


def encode_message_line(message: ArchivedMessage) -> bytes:
    """Returns the line of a message in an archive: a JSON object and a line end."""
    headers = message.headers
    line = MessageLine(
        timestamp=message.timestamp,
        key=_encode_content_as_json(message.key),
        value=_encode_content_as_json(message.value),
        offset=message.offset,
        timestamp_type=message.timestamp_type,
        headers=None if headers is None else [(name, _encode_content_as_json(value)) for name, value in headers],
    )
    return msgspec.json.encode(line) + b"\n"


def encode_footer_line(messages: int, checksum: int) -> bytes:
    """Returns the last line of an archive's member.

    Args:
        messages: Number of messages in the member.
        checksum: CRC-32 of all message lines.
    """
    return msgspec.json.encode(MemberFooter(messages, f"{checksum:08x}")) + b"\n"


def parse_header_line(line: bytes) -> MemberHeader:
    """Parses the first line of an archive's member.

    Raises:
        DamagedError: The line is not a header of this format and version.
    """
    header = _parse_json_line(line, MemberHeader, MemberDamage.HEADER)
    if header.format != FORMAT or header.version != VERSION:
        raise DamagedArchiveMemberError(
            MemberDamage.HEADER, f"it is of format {header.format!r}, version {header.version}"
        )
    if not header.topic or not header.topic.isprintable() or not 0 <= header.partition < 2**31:
        raise DamagedArchiveMemberError(MemberDamage.HEADER, "it names no topic and partition")
    return header


def parse_message_line(line: bytes) -> ArchivedMessage:
    """Parses the line of a message in an archive.

    Raises:
        DamagedError: The line is not a message.
    """
    found = _parse_json_line(line, MessageLine, MemberDamage.MESSAGE)
    if found.timestamp_type not in _TYPES or abs(found.timestamp) > _MAX_TIMESTAMP_MS:
        raise DamagedArchiveMemberError(
            MemberDamage.MESSAGE, f"timestamp {found.timestamp} of type {found.timestamp_type} is not a Kafka timestamp"
        )
    headers = (
        None
        if found.headers is None
        else tuple((name, _decode_content_from_json(value)) for name, value in found.headers)
    )
    key, value = _decode_content_from_json(found.key), _decode_content_from_json(found.value)
    return ArchivedMessage(found.offset, found.timestamp, key, value, found.timestamp_type, headers)


def parse_footer_line(line: bytes) -> MemberFooter:
    """Parses the last line of an archive's member.

    Raises:
        DamagedError: The line is not a footer.
    """
    return _parse_json_line(line, MemberFooter, MemberDamage.FOOTER)


_Read = TypeVar("_Read")


def _parse_json_line(line: bytes, kind: type[_Read], damage: MemberDamage) -> _Read:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedArchiveMemberError(damage, str(error)) from None


def _encode_content_as_json(content: bytes | None) -> Content:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return Base64Content(base64.b64encode(content).decode())


def _decode_content_from_json(content: Content) -> bytes | None:
    if isinstance(content, Base64Content):
        try:
            return base64.b64decode(content.base64, validate=True)
        except (binascii.Error, ValueError):
            raise DamagedArchiveMemberError(MemberDamage.MESSAGE, "the content of `base64` is not base64") from None
    return None if content is None else content.encode()
