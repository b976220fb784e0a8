"""Finds the row of a reference table that is valid for a key at a time, by binary search in sorted time spans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import combine_column_codes, encode_values_as_codes
from sessionlake.protocol.types import Int64s

OPEN_END = (1 << 63) - 1
"""Stands for the end of a time span that has no end."""


def number_equal_rows_across_tables(
    tables: Sequence[Sequence[pa.ChunkedArray]], *, nulls_are_equal: bool
) -> list[Int64s]:
    """Returns a number for each row of each table. Equal rows get equal numbers, also in different tables.

    NaN equals NaN.

    Args:
        tables: the columns of each table, with the same types in the same order.
        nulls_are_equal: True if null equals null. Otherwise rows with a null get the number -1.

    Returns:
        One array per table, with one number per row.
    """
    lengths = [len(columns[0]) for columns in tables]
    coded = []
    for columns in zip(*tables, strict=True):
        chunks = [chunk for column in columns for chunk in column.chunks]
        code, values = encode_values_as_codes(_normalize_nan(pa.chunked_array(chunks, columns[0].type)))
        coded.append((code + 1, range(len(values) + 1)))
    rows = combine_column_codes(coded, sum(lengths))
    if not nulls_are_equal:
        rows = np.where(np.any([code == 0 for code, _ in coded], axis=0), -1, rows)
    return np.split(rows, np.cumsum(lengths)[:-1])


def _normalize_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the column with identical bits in all NaN values, because Arrow compares NaN by its bits."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def find_time_spans_containing(
    key_codes: Int64s, ts: Int64s, span_key_codes: Int64s, span_begins: Int64s, span_ends: Int64s
) -> Int64s:
    """Returns, for each row, the index of the time span that has the row's key and contains the row's time.

    The result is -1 for a row without such a span.

    Args:
        key_codes: for each row, the number of its key; -1 if it has no key.
        ts: for each row, its time in ms.
        span_key_codes: for each span, the number of its key.
        span_begins: for each span, its start in ms. Spans of one key do not overlap.
        span_ends: for each span, its end in ms, which is not part of the span.
    """
    if not len(span_key_codes) or not len(key_codes):
        return np.full(len(key_codes), -1, np.int64)
    times = np.unique(span_begins)
    order = np.lexsort((span_ends, span_begins, span_key_codes))
    width = len(times) + 1
    # Key and start are combined into one number, so that a single search finds both.
    keys, spans = np.unique(span_key_codes[order], return_inverse=True)
    place = spans.reshape(-1) * width + np.searchsorted(times, span_begins[order]) + 1
    at = np.searchsorted(keys, key_codes)
    same = (at < len(keys)) & (keys[np.minimum(at, len(keys) - 1)] == key_codes) & (key_codes >= 0)
    wanted = at * width + np.searchsorted(times, ts, side="right")
    last = np.searchsorted(place, wanted, side="right") - 1
    found = order[np.maximum(last, 0)]
    inside = same & (last >= 0) & (span_key_codes[found] == key_codes) & (ts < span_ends[found])
    return np.where(inside, found, -1)


def convert_span_starts_to_ms(span_starts: pa.ChunkedArray) -> Int64s:
    """Converts the starts of time spans to ms since 1970, rounded up.

    Args:
        span_starts: timestamps without nulls.
    """
    return -np.floor_divide(-convert_times_to_micros(span_starts, 0), 1000)


def convert_span_ends_to_ms(span_ends: pa.ChunkedArray) -> Int64s:
    """Converts the ends of time spans to ms since 1970, rounded up; null becomes `OPEN_END`, the highest bigint."""
    return np.where(span_ends.is_null().to_numpy(), OPEN_END, convert_span_starts_to_ms(span_ends))


def convert_times_to_micros(times: pa.ChunkedArray, micros_of_null: int) -> Int64s:
    """Converts timestamps to microseconds since 1970.

    Args:
        times: the timestamps.
        micros_of_null: the result for null.
    """
    return pc.fill_null(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), micros_of_null).to_numpy()
