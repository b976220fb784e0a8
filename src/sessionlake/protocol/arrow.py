"""Small things that Arrow lacks, used wherever columns are worked on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.names import internal
from sessionlake.protocol.types import Int64s

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
SESSION = ("topic", "partition", "session_id")
"""The columns that name a session: an id that occurs in two partitions of a topic names two."""
SESSION_TYPES = (pa.string(), pa.int32(), pa.string())
"""Their types."""
_SEPARATOR = "\0"
_WIDEST = 1 << 62


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece: `combine_chunks` gives a chunked array of one chunk for some types."""
    combined: Any = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def dictionary_codes(column: pa.ChunkedArray | pa.Array) -> tuple[Int64s, pa.Array]:
    """Dictionary codes, -1 for null, and the dictionary."""
    encoded = (contiguous(column) if isinstance(column, pa.ChunkedArray) else column).dictionary_encode()
    indices = pc.fill_null(encoded.indices, -1) if encoded.null_count else encoded.indices
    return indices.to_numpy().astype(np.int64), encoded.dictionary


def decode_dictionaries(rows: Rows) -> Rows:
    """With texts in the place of dictionaries."""
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(fields))


def add_constants(rows: pa.Table, stamps: Mapping[str, pa.Scalar]) -> pa.Table:
    """The rows with further columns, each of one value."""
    for name, stamp in stamps.items():
        rows = rows.append_column(name, pa.repeat(stamp, rows.num_rows))
    return rows


def number_combinations(*columns: pa.ChunkedArray) -> tuple[Int64s, list[pa.Array]]:
    """Numbers of the distinct combinations of columns without nulls, and each combination's value of each column."""
    coded = [dictionary_codes(column) for column in columns]
    distinct, number = np.unique(combine_codes(coded, len(columns[0])), return_inverse=True)
    number = number.reshape(-1)
    row = np.empty(len(distinct), np.int64)
    row[number] = np.arange(len(number))
    return number, [values.take(pa.array(code[row])) for code, values in coded]


def combine_codes(columns: Iterable[tuple[Int64s, Sized]], rows: int) -> Int64s:
    """One number a row out of its codes in several columns, in the order of these; as many numbers as combinations.

    Args:
        columns: codes from 0 on, and what they are of.
    """
    number, width = np.zeros(rows, np.int64), 1
    for code, values in columns:
        if width * max(len(values), 1) >= _WIDEST:
            _, number = np.unique(number, return_inverse=True)
            number, width = number.reshape(-1), rows
        number, width = number * max(len(values), 1) + code, width * max(len(values), 1)
    return number


def concatenate_ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Concatenation of `starts[i] … starts[i] + lengths[i] - 1`."""
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))


def session_keys(table: pa.Table) -> pa.Array:
    """The key of each row's session; see `session_key`."""
    return join_session_keys(*(contiguous(table[name]) for name in SESSION))


def join_session_keys(topics: pa.Array, partitions: pa.Array, sessions: pa.Array) -> pa.Array:
    """The keys of sessions, given their columns; see `session_key`."""
    return pc.binary_join_element_wise(topics, partitions.cast(pa.string()), sessions, _SEPARATOR)


def split_session_keys(keys: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The columns of `SESSION`, given keys."""
    if not len(keys):
        topics, partitions, sessions = (pa.array([], kind) for kind in SESSION_TYPES)
        return topics, partitions, sessions
    parts = pc.split_pattern(keys, _SEPARATOR, max_splits=2)
    topics, partitions, sessions = (pc.list_element(parts, place) for place in range(len(SESSION)))
    return topics, partitions.cast(pa.int32()), sessions


def session_key(topic: str, partition: int, session_id: str) -> str:
    """A session's key: `topic NUL partition NUL session_id`. None of the parts can contain a NUL."""
    return _SEPARATOR.join((topic, str(partition), session_id))


def split_session_key(key: str) -> tuple[str, int, str]:
    """Topic, partition and session id, given the key."""
    topic, partition, session = key.split(_SEPARATOR, 2)
    return topic, int(partition), session


def is_of_sessions(table: pa.Table, sessions: pa.Table) -> pa.Array:
    """Which rows are of one of these sessions."""
    return pc.is_in(session_keys(table), value_set=session_keys(sessions))


def semi_join(rows: pa.Table, by: Sequence[str], others: pa.Table) -> pa.Table:
    """The rows that have values in some columns which a row of another table has in them, too; none is null.

    Only these columns are joined: Arrow's join reads a name that begins with a dot as a path.
    """
    place = internal("place")
    wanted, there = _with_internal_names(rows, by), _with_internal_names(others, by)
    numbered = wanted.append_column(place, pa.array(np.arange(rows.num_rows)))
    found = numbered.join(there, there.column_names, join_type="left semi")[place]
    return rows.take(pa.array(np.sort(found.to_numpy())))


def sort_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """The rows by some columns, rising, nulls last. Arrow's sort reads a name that begins with a dot as a path."""
    keys = _with_internal_names(rows, by)
    return rows.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _with_internal_names(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Some columns, under names of ours."""
    return pa.table([rows[name] for name in names], [internal(str(place)) for place in range(len(names))])


def milliseconds_of(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Timestamps as milliseconds since the epoch, rounded down."""
    return pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def running_maximum(values: Int64s, group: Int64s) -> Int64s:
    """Highest value so far within each group; groups are ascending."""
    if not ((values[1:] < values[:-1]) & (group[1:] == group[:-1])).any():
        return values
    distinct, rank = np.unique(values, return_inverse=True)
    highest = np.maximum.accumulate(group * len(distinct) + rank.reshape(-1)) - group * len(distinct)
    return distinct[highest]
