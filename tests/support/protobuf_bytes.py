"""Writes Protobuf messages byte by byte, without a schema, so that tests do not share the reader's idea of one."""

from __future__ import annotations

import struct
from typing import Any


class Float(float):
    """A number of 32 bits; plain floats have 64."""


def protobuf(*fields: tuple[int, Any]) -> bytes:
    """A message with these fields: pairs of a number and an int, float, text, bytes, or a message as bytes."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, bool | int):
        return _varint(number << 3) + _varint(int(value) & (2**64 - 1))
    if isinstance(value, Float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
