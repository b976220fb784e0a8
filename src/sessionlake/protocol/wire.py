"""Splits off the wire header of schema registries: a zero byte, the schema's id, and for Protobuf the type's path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.types import Bools, Int64s

TypePath = tuple[int, ...]
WireHeader = tuple[int, TypePath]
_INVALID_PATH: TypePath = (-1,)
_NO_HEADER: WireHeader = (-1, _INVALID_PATH)
_FIXED = 5
# Real schemas do not nest types deeper or have longer headers. The limits bound the search for a header's end.
_MAX_PATH = 8
_MAX_HEADER_BYTES = 24
_CONTINUES = 0x80
_MAX_VARINT = 5


@dataclass(frozen=True)
class SplitWireHeaders:
    """The wire headers of many payloads.

    Attributes:
        which: For each payload, the index of its header in `found`; -1 if it has no valid header.
        found: The distinct headers, each a schema id and the path of the message type in its file. The path is `()` if
            headers have none.
        bodies: The payloads without their headers; null for a payload without a valid header.
    """

    which: Int64s
    found: list[WireHeader]
    bodies: pa.Array


def split_off_wire_headers(values: pa.Array, *, with_path: bool) -> SplitWireHeaders:
    """Splits payloads into headers and bodies. Each distinct header is parsed once.

    Args:
        values: The payloads.
        with_path: True if headers have the path of a Protobuf message type.
    """
    which = np.full(len(values), -1, np.int64)
    sizes = np.zeros(len(values), np.int64)
    found: dict[WireHeader, int] = {}
    pending, width = np.arange(len(values)), _FIXED
    while len(pending) and width <= _MAX_HEADER_BYTES:
        heads = pc.binary_slice(values.take(pa.array(pending)), 0, width).dictionary_encode()
        read = [_parse_wire_header(head, width, with_path=with_path) for head in heads.dictionary.to_pylist()]
        places = [-1 if head in {None, _NO_HEADER} else found.setdefault(head, len(found)) for head in read]
        of_value = pc.fill_null(heads.indices, len(read)).to_numpy()
        which[pending] = np.array([*places, -1])[of_value]
        sizes[pending] = width
        pending = pending[np.array([*(head is None for head in read), False])[of_value]]
        width += 1
    return SplitWireHeaders(which, list(found), _remove_wire_headers(values, np.where(which < 0, 0, sizes), which < 0))


def read_wire_header(value: bytes, *, with_path: bool) -> tuple[WireHeader, int] | None:
    """Returns the header of one payload and its size in bytes; None if it has no valid header.

    Args:
        value: The payload.
        with_path: True if headers have the path of a Protobuf message type.
    """
    for width in range(_FIXED, _MAX_HEADER_BYTES + 1):
        found = _parse_wire_header(value[:width], width, with_path=with_path)
        if found is not None:
            return None if found == _NO_HEADER else (found, width)
    return None


def _parse_wire_header(first_bytes: bytes, width: int, *, with_path: bool) -> WireHeader | None:
    """Parses the first `width` bytes of a payload as a wire header.

    Returns the header; `_NO_HEADER` if it is not valid; None if the header may be longer.
    """
    if len(first_bytes) < width or first_bytes[0] != 0:
        return _NO_HEADER
    path = _parse_message_type_path(first_bytes[_FIXED:]) if with_path else ()
    if path is None:
        return None
    return _NO_HEADER if path == _INVALID_PATH else (int.from_bytes(first_bytes[1:_FIXED], "big"), path)


def _parse_message_type_path(path_bytes: bytes) -> TypePath | None:
    """Parses the path of a Protobuf message type, as zigzag varints: the number of indices, then the indices.

    A single 0 is short for the path `[0]`, the first type in the file. Returns None if the path may be longer, and
    `_INVALID_PATH` if it is not valid.
    """
    numbers, value, shift = [], 0, 0
    for byte in path_bytes:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & _CONTINUES and shift < 7 * _MAX_VARINT:
            continue
        if byte & _CONTINUES or value & 1:  # too long, or negative
            return _INVALID_PATH
        numbers.append(value >> 1)
        value = shift = 0
    if not numbers or shift:
        return None
    if numbers[0] == 0:
        return (0,)
    if numbers[0] > _MAX_PATH:
        return _INVALID_PATH
    return tuple(numbers[1:]) if len(numbers) == numbers[0] + 1 else None


def _remove_wire_headers(values: pa.Array, header_sizes: Int64s, has_no_header: Bools) -> pa.Array:
    """Returns the payloads without their headers; null for those that have no valid header."""
    bodies: pa.Array = pa.nulls(len(values), pa.binary())
    end = pc.max(pc.binary_length(values)).as_py() or 0  # must be given: slices without an end fail on short values
    for width in np.unique(header_sizes[~has_no_header]).tolist():
        of_width = pa.array(~has_no_header & (header_sizes == width))
        bodies = pc.if_else(of_width, pc.binary_slice(values, width, max(width, end)), bodies)
    return bodies
