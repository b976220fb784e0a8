"""Helpers for Arrow columns and tables: dictionary codes, session keys, joins, sorting and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.names import add_internal_prefix
from sessionlake.protocol.types import Int64s

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
SESSION = ("topic", "partition", "session_id")
"""The columns that identify a session. The same session id in two partitions of a topic means two sessions."""
SESSION_COLUMN_TYPES = (pa.string(), pa.int32(), pa.string())
"""The Arrow types of the columns in `SESSION`."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The Arrow type of the headers of Kafka messages."""
_SEPARATOR = "\0"
_WIDEST = 1 << 62


def convert_to_contiguous_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a chunked column as one array. Arrow's `combine_chunks` does that only for some types."""
    combined: Any = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def convert_to_int64_array(column: pa.ChunkedArray | pa.Array) -> Int64s:
    """Returns a column of integers as a new array, with nulls as 0."""
    found: Int64s = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def convert_to_double_column(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Returns a column of numbers as doubles. A decimal becomes the nearest double, as with Spark.

    Arrow's own cast multiplies by a power of ten, so that 834.56 becomes 834.5600000000001.
    """
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(pa.float64())
    return column.cast(pa.float64(), safe=False)


def encode_values_as_codes(column: pa.ChunkedArray | pa.Array) -> tuple[Int64s, pa.Array]:
    """Returns a code for each row (-1 for null), and the distinct values.

    A code is the index of the row's value in them.
    """
    encoded = (
        convert_to_contiguous_array(column) if isinstance(column, pa.ChunkedArray) else column
    ).dictionary_encode()
    indices = pc.fill_null(encoded.indices, -1) if encoded.null_count else encoded.indices
    return indices.to_numpy().astype(np.int64), encoded.dictionary


def decode_dictionaries(rows: Rows) -> Rows:
    """Returns the rows with plain columns instead of dictionary-encoded ones."""
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(fields))


def add_constant_columns(rows: pa.Table, values: Mapping[str, pa.Scalar]) -> pa.Table:
    """Returns the rows with added columns, each of which has the same value in every row.

    Args:
        rows: The rows.
        values: The value of each added column, by column name.
    """
    for name, stamp in values.items():
        rows = rows.append_column(name, pa.repeat(stamp, rows.num_rows))
    return rows


def number_distinct_combinations(*columns: pa.ChunkedArray) -> tuple[Int64s, list[pa.Array]]:
    """Numbers the distinct combinations of values that rows have in these columns, which must have no nulls.

    Returns:
        First, the number of each row's combination, from 0. Second, for each column, its value in each combination.
    """
    coded = [encode_values_as_codes(column) for column in columns]
    distinct, number = np.unique(combine_column_codes(coded, len(columns[0])), return_inverse=True)
    number = number.reshape(-1)
    row = np.empty(len(distinct), np.int64)
    row[number] = np.arange(len(number))
    return number, [values.take(pa.array(code[row])) for code, values in coded]


def combine_column_codes(columns: Iterable[tuple[Int64s, Sized]], row_count: int) -> Int64s:
    """Combines the codes of several columns into one number per row.

    Rows have the same number if they have the same codes in all columns. Numbers sort like the codes, column by column.

    Args:
        columns: For each column: the code of each row, from 0, and the list of distinct values, of which only the
            length is used.
        row_count: The number of rows.
    """
    number, width = np.zeros(row_count, np.int64), 1
    for code, values in columns:
        if width * max(len(values), 1) >= _WIDEST:
            _, number = np.unique(number, return_inverse=True)
            number, width = number.reshape(-1), row_count
        number, width = number * max(len(values), 1) + code, width * max(len(values), 1)
    return number


def concatenate_ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Returns the integers of several ranges, one range after the other.

    Range `i` has `lengths[i]` integers, starting with `starts[i]`.
    """
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))


def build_session_key_of_each_row(table: pa.Table) -> pa.Array:
    """Returns the session key of each row: a text made of its columns `topic`, `partition` and `session_id`."""
    return join_session_keys(*(convert_to_contiguous_array(table[name]) for name in SESSION))


def join_session_keys(topics: pa.Array, partitions: pa.Array, sessions: pa.Array) -> pa.Array:
    """Returns session keys, each made of a topic, a partition and a session id.

    The arrays have one value per session.
    """
    return pc.binary_join_element_wise(topics, partitions.cast(pa.string()), sessions, _SEPARATOR)


def split_session_keys(keys: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Returns the topics, partitions and session ids from which the session keys were made, as three arrays."""
    if not len(keys):
        topics, partitions, sessions = (pa.array([], kind) for kind in SESSION_COLUMN_TYPES)
        return topics, partitions, sessions
    parts = pc.split_pattern(keys, _SEPARATOR, max_splits=2)
    topics, partitions, sessions = (pc.list_element(parts, place) for place in range(len(SESSION)))
    return topics, partitions.cast(pa.int32()), sessions


def build_session_key(topic: str, partition: int, session_id: str) -> str:
    """Returns a session's key: topic, partition and session id, separated by a NUL. None of them can contain a NUL."""
    return _SEPARATOR.join((topic, str(partition), session_id))


def split_session_key(key: str) -> tuple[str, int, str]:
    """Returns the topic, partition and session id from which a session key was made."""
    topic, partition, session = key.split(_SEPARATOR, 2)
    return topic, int(partition), session


def mask_rows_of_sessions(table: pa.Table, sessions: pa.Table) -> pa.Array:
    """Returns a boolean for each row of `table`: true if its session is the session of a row in `sessions`."""
    return pc.is_in(build_session_key_of_each_row(table), value_set=build_session_key_of_each_row(sessions))


def select_matching_rows(rows: pa.Table, column_names: Sequence[str], matching_rows: pa.Table) -> pa.Table:
    """Returns the rows whose values in these columns occur together in a row of `matching_rows`, too.

    The rows keep their order. No value in these columns may be null.
    """
    # Only these columns are joined, under other names: Arrow's join reads a name that begins with a dot as a path.
    place = add_internal_prefix("place")
    left, right = _rename_to_internal(rows, column_names), _rename_to_internal(matching_rows, column_names)
    numbered = left.append_column(place, pa.array(np.arange(rows.num_rows)))
    matches = numbered.join(right, right.column_names, join_type="left semi")[place]
    return rows.take(pa.array(np.sort(matches.to_numpy())))


def sort_rows(rows: pa.Table, sort_columns: Sequence[str]) -> pa.Table:
    """Returns the rows in ascending order of these columns, nulls last. Column names may begin with a dot."""
    keys = _rename_to_internal(rows, sort_columns)
    return rows.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _rename_to_internal(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns only these columns, under names without dots: Arrow reads a name that begins with a dot as a path."""
    return pa.table([rows[name] for name in names], [add_internal_prefix(str(place)) for place in range(len(names))])


def convert_timestamps_to_milliseconds(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns timestamps as milliseconds since the Unix epoch, rounded down."""
    return pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def compute_running_maximum(values: Int64s, group_numbers: Int64s) -> Int64s:
    """Returns, for each row, the highest value among it and the earlier rows of its group.

    Args:
        values: The value of each row.
        group_numbers: The number of each row's group. It must not fall from row to row.
    """
    if not ((values[1:] < values[:-1]) & (group_numbers[1:] == group_numbers[:-1])).any():
        return values
    distinct, rank = np.unique(values, return_inverse=True)
    highest = np.maximum.accumulate(group_numbers * len(distinct) + rank.reshape(-1)) - group_numbers * len(distinct)
    return distinct[highest]
