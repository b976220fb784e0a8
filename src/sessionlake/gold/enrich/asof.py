"""Which version of a key holds at a time: columns of keys looked up in sorted spans, by binary search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import combine_codes, dictionary_codes
from sessionlake.protocol.types import Int64s

OPEN = (1 << 63) - 1
"""The end of a span that has none, in ms."""


def number_combinations(tables: Sequence[Sequence[pa.ChunkedArray]], *, nulls: bool) -> list[Int64s]:
    """Numbers of rows, the same for equal rows of any of the tables; one NaN equals another.

    Args:
        tables: the columns of each, of the same types in the same order.
        nulls: whether a null equals another; else rows with one have the number -1.
    """
    lengths = [len(columns[0]) for columns in tables]
    coded = []
    for columns in zip(*tables, strict=True):
        chunks = [chunk for column in columns for chunk in column.chunks]
        code, values = dictionary_codes(_one_nan(pa.chunked_array(chunks, columns[0].type)))
        coded.append((code + 1, range(len(values) + 1)))
    whole = combine_codes(coded, sum(lengths))
    if not nulls:
        whole = np.where(np.any([code == 0 for code, _ in coded], axis=0), -1, whole)
    return np.split(whole, np.cumsum(lengths)[:-1])


def _one_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats with one kind of NaN: Arrow tells them apart by their bits, which a writer of Parquet may change."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def as_of(code: Int64s, ts: Int64s, known: Int64s, begin: Int64s, end: Int64s) -> Int64s:
    """For each row the place of the span that it lies in, -1 if there is none.

    Args:
        code: numbers of the rows' keys, -1: none.
        ts: the rows' times, in ms.
        known: numbers of the spans' keys.
        begin: of the spans, in ms; those of one key do not overlap.
        end: of the spans, not included.
    """
    if not len(known) or not len(code):
        return np.full(len(code), -1, np.int64)
    times = np.unique(begin)
    order = np.lexsort((end, begin, known))
    width = len(times) + 1
    # Equal keys' spans in the order of their begins, as one number.
    keys, spans = np.unique(known[order], return_inverse=True)
    place = spans.reshape(-1) * width + np.searchsorted(times, begin[order]) + 1
    at = np.searchsorted(keys, code)
    same = (at < len(keys)) & (keys[np.minimum(at, len(keys) - 1)] == code) & (code >= 0)
    wanted = at * width + np.searchsorted(times, ts, side="right")
    last = np.searchsorted(place, wanted, side="right") - 1
    found = order[np.maximum(last, 0)]
    inside = same & (last >= 0) & (known[found] == code) & (ts < end[found])
    return np.where(inside, found, -1)


def begins(moments: pa.ChunkedArray) -> Int64s:
    """The first millisecond at or behind each moment.

    Args:
        moments: timestamps, none of them null.
    """
    return -np.floor_divide(-micros(moments, 0), 1000)


def ends(moments: pa.ChunkedArray) -> Int64s:
    """The first millisecond at or behind each moment; `OPEN` in the place of null."""
    return np.where(moments.is_null().to_numpy(), OPEN, begins(moments))


def micros(moments: pa.ChunkedArray, null: int) -> Int64s:
    """Microseconds since the epoch.

    Args:
        null: what stands for null.
    """
    return pc.fill_null(moments.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), null).to_numpy()
