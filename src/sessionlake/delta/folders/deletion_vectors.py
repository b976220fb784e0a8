"""Reads and writes deletion vectors: the numbers of deleted rows of a data file (Delta's protocol, "Deletion Vectors").

A file of vectors starts with one byte for the format. Each vector is stored as its length, its content and the
content's CRC-32. The content is a magic number and a "RoaringBitmapArray": 32-bit roaring bitmaps in the portable
format, ordered by the upper 32 bits of the row number. https://github.com/delta-io/delta/blob/master/PROTOCOL.md,
https://github.com/RoaringBitmap/RoaringFormatSpec
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from sessionlake.local.paths import convert_uri_to_path
from sessionlake.protocol.types import Int64s

_VERSION = b"\x01"
_MAGIC = 1681511377
_NO_RUNS = 12346
_ARRAY = 4096  # a container with up to this many values lists them; a larger one has a bit for each possible value
_CONTAINER = 1 << 16
_NAME = 20  # characters of an encoded file name; characters before them are the name of a folder


def write_deletion_vectors(folder: Path, vectors: Sequence[Int64s]) -> tuple[list[dict[str, Any]], Path]:
    """Writes several deletion vectors (numbers of deleted rows) to one new file in a table's folder.

    Args:
        folder: the table's folder.
        vectors: for each data file, the numbers of its deleted rows, ascending and distinct.

    Returns:
        For each vector, the fields of `deletionVector` in an `add` action of Delta's log; and the path of the new file.
    """
    name, stored, named = uuid.uuid4(), bytearray(_VERSION), list[dict[str, Any]]()
    for rows in vectors:
        content = struct.pack("<i", _MAGIC) + _encode_roaring_bitmap_array(rows)
        place = {"storageType": "u", "pathOrInlineDv": _encode_z85(name.bytes), "offset": len(stored)}
        named.append(place | {"sizeInBytes": len(content), "cardinality": len(rows)})
        stored += struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    path = folder / f"deletion_vector_{name}.bin"
    path.write_bytes(stored)
    return named, path


def read_deletion_vector(folder: Path, descriptor: Mapping[str, Any]) -> Int64s | None:
    """Returns the numbers of deleted rows in a deletion vector, ascending.

    Returns None if the vector is damaged, or if another program wrote it in another form. delta-rs can then read it.

    Args:
        folder: the table's folder.
        descriptor: the field `deletionVector` of an `add` action of Delta's log.
    """
    path = build_deletion_vector_path(folder, descriptor)
    if path is None:
        return None
    with path.open("rb") as file:
        file.seek(descriptor.get("offset") or 0)
        length, content = file.read(4), file.read(descriptor["sizeInBytes"])
        check = file.read(4)
    is_intact = length == struct.pack(">i", len(content)) and check == struct.pack(">I", zlib.crc32(content))
    return (
        _decode_roaring_bitmap_array(content)
        if is_intact and content.startswith(struct.pack("<iq", _MAGIC, 1))
        else None
    )


def build_deletion_vector_path(folder: Path, descriptor: Mapping[str, Any]) -> Path | None:
    """Returns the path of the file that has a deletion vector; None if the vector is stored in Delta's log itself.

    Args:
        folder: the table's folder.
        descriptor: the field `deletionVector` of an action of Delta's log.
    """
    kind, encoded = descriptor["storageType"], descriptor["pathOrInlineDv"]
    if kind == "p":
        return convert_uri_to_path(encoded)
    if kind != "u":
        return None
    below, name = encoded[:-_NAME], encoded[-_NAME:]
    own = uuid.UUID(bytes=base64.b85decode(name.encode().translate(_FROM_Z85)))
    return folder / below / f"deletion_vector_{own}.bin"


def _decode_roaring_bitmap_array(content: bytes) -> Int64s | None:
    """Returns the row numbers in the only bitmap of a deletion vector; None if it has run-length encoded parts."""
    high, cookie, count = struct.unpack_from("<iII", content, 12)
    if cookie != _NO_RUNS:
        return None
    sizes = np.frombuffer(content, "<u2", 2 * count, 24).astype(np.int64)
    keys, sizes = sizes[::2] << 16 | high << 32, sizes[1::2] + 1
    found, place = [np.empty(0, np.int64)], 24 + 8 * count
    if np.all(sizes <= _ARRAY):
        return np.frombuffer(content, "<u2", sizes.sum(), place) + np.repeat(keys, sizes)
    for key, size in zip(keys.tolist(), sizes.tolist(), strict=True):
        if size <= _ARRAY:
            low = np.frombuffer(content, "<u2", size, place).astype(np.int64)
            place += 2 * size
        else:
            bits = np.frombuffer(content, np.uint8, _CONTAINER // 8, place)
            low = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            place += _CONTAINER // 8
        found.append(low + key)
    return np.concatenate(found)


def _encode_roaring_bitmap_array(rows: Int64s) -> bytes:
    high = rows >> 32
    groups = np.unique(high)
    parts = [struct.pack("<q", len(groups))]
    for group in groups.tolist():
        parts += [struct.pack("<i", group), _encode_roaring_bitmap(rows[high == group] & 0xFFFFFFFF)]
    return b"".join(parts)


def _encode_roaring_bitmap(values: Int64s) -> bytes:
    """Returns numbers below 2^32 as a roaring bitmap, the form that Delta uses. No part is run-length encoded.

    It consists of the containers' keys and sizes, then their offsets, then their values.
    """
    keys, low = values // _CONTAINER, (values % _CONTAINER).astype("<u2")
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    ends = [*starts[1:].tolist(), len(low)]
    pieces = [low[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
    containers = [piece.tobytes() if len(piece) <= _ARRAY else _encode_bitmap_container(piece) for piece in pieces]
    sizes = np.stack([keys[starts], np.subtract(ends, starts) - 1], axis=1).astype("<u2").tobytes()
    header = struct.pack("<II", _NO_RUNS, len(starts)) + sizes
    places = accumulate(map(len, containers[:-1]), initial=len(header) + 4 * len(containers))
    return header + struct.pack(f"<{len(containers)}I", *places) + b"".join(containers)


def _encode_bitmap_container(values: Any) -> bytes:
    found = np.zeros(_CONTAINER, np.uint8)
    found[values] = 1
    return np.packbits(found, bitorder="little").tobytes()


def _encode_z85(content: bytes) -> str:
    """Returns bytes as Z85 text (a variant of Base85), in which five characters stand for four bytes."""
    return base64.b85encode(content).translate(_TO_Z85).decode()


_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
