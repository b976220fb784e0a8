"""Computes XXH64 hashes as Spark's function `xxhash64` does, for many byte strings at once.

Source: the XXH64 algorithm, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sessionlake.protocol.types import Int64s

_Words = npt.NDArray[np.uint64]
_SEED = 42
"""The seed with which Spark starts."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
_STRIPE = 32
_WORD = 8
_HALF_WORD = 4


def compute_spark_xxhash64(*columns: Sequence[bytes]) -> Int64s:
    """Returns, for each row, what Spark's function `xxhash64(column, …)` returns.

    Args:
        columns: Byte strings, or the UTF-8 bytes of texts. All columns have the same length, and no nulls.
    """
    hashes = np.full(len(columns[0]), _SEED, np.uint64)
    for column in columns:
        lengths = np.fromiter(map(len, column), np.int64, len(column))
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            content = np.frombuffer(b"".join([column[row] for row in rows.tolist()]), np.uint8)
            hashes[rows] = _hash_rows_of_bytes(content.reshape(len(rows), length), hashes[rows])
    return hashes.view(np.int64)


def _hash_rows_of_bytes(content: npt.NDArray[np.uint8], seeds: _Words) -> _Words:
    """Returns the hash of each row of a matrix of bytes. Each row has its own seed."""
    length, place = content.shape[1], 0
    with np.errstate(over="ignore"):  # XXH64 calculates modulo 2**64
        if length >= _STRIPE:
            lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
            while place + _STRIPE <= length:
                for number in range(4):
                    lanes[number] = _mix_words_into_lane(
                        lanes[number], _read_little_endian_words(content, place + _WORD * number, _WORD)
                    )
                place += _STRIPE
            result = np.zeros_like(seeds)
            for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
                result += _rotate_bits_left(lane, bits)
            for lane in lanes:
                result = (result ^ _mix_words_into_lane(np.zeros_like(lane), lane)) * _P1 + _P4
        else:
            result = seeds + _P5
        result = result + np.uint64(length)
        while place + _WORD <= length:
            word = _mix_words_into_lane(np.zeros_like(result), _read_little_endian_words(content, place, _WORD))
            result = _rotate_bits_left(result ^ word, 27) * _P1 + _P4
            place += _WORD
        if place + _HALF_WORD <= length:
            result = (
                _rotate_bits_left(result ^ _read_little_endian_words(content, place, _HALF_WORD) * _P1, 23) * _P2 + _P3
            )
            place += _HALF_WORD
        for number in range(place, length):
            result = _rotate_bits_left(result ^ content[:, number].astype(np.uint64) * _P5, 11) * _P1
        for shift, prime in ((33, _P2), (29, _P3)):
            result = (result ^ (result >> np.uint64(shift))) * prime
        mixed: _Words = result ^ (result >> np.uint64(32))
    return mixed


def _mix_words_into_lane(lane: _Words, words: _Words) -> _Words:
    return _rotate_bits_left(lane + words * _P2, 31) * _P1


def _rotate_bits_left(values: _Words, bits: int) -> _Words:
    rotated: _Words = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated


def _read_little_endian_words(content: npt.NDArray[np.uint8], start: int, size: int) -> _Words:
    """Returns, for each row of a matrix of bytes, the little-endian number in `size` bytes from index `start`."""
    cut = np.ascontiguousarray(content[:, start : start + size])
    return cut.view(np.dtype(f"<u{size}")).reshape(-1).astype(np.uint64)
