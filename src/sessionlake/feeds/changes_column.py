"""Builds a chunk's column of changes, as silver applies them, from the events that a feed has read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.paths import MISSING
from sessionlake.protocol.arrow import concatenate_ranges
from sessionlake.protocol.chunk import ExpectedRowPresence, RowChangeKind, build_change_fields
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import MessageType
from sessionlake.protocol.types import Bools, Int8s, Int64s

_EXPECTED = {None: None, "present": ExpectedRowPresence.PRESENT, "absent": ExpectedRowPresence.ABSENT}


def build_changes_column(message_types: Int8s, events: ColumnarEvents, columns: tuple[Column, ...]) -> pa.ListArray:
    """Returns the list column of changes: for each event a clear (snapshots only), then its rows in order.

    The clear of a snapshot with a scope has the values of the scope.
    """
    scopes = [scope for scope in events.scope if scope]
    scoped = np.array(list(map(bool, events.scope)), np.bool_)
    cleared = ((message_types == MessageType.SNAPSHOT) | scoped).astype(np.int64)
    n_rows = np.array(events.rows, np.int64)
    sizes = cleared + n_rows
    starts = np.cumsum(sizes) - sizes
    total, of_rows = int(sizes.sum()), concatenate_ranges(starts + cleared, n_rows)
    deletes = np.array([*events.deletes, *[False] * len(scopes)], np.bool_)
    kind = np.full(total, RowChangeKind.CLEAR, np.int8)
    kind[of_rows] = np.where(deletes[: len(of_rows)], RowChangeKind.DELETE, RowChangeKind.UPSERT)
    # Index of each change among the rows, behind which the scopes follow; -1 for a clear without a scope.
    source = np.full(total, -1, np.int64)
    source[of_rows] = np.arange(len(of_rows))
    source[starts[scoped]] = len(of_rows) + np.arange(len(scopes))
    place = pa.array(source, mask=source < 0)
    sets_all = np.append(
        np.repeat(cleared == 1, n_rows) & ~_find_repeated_or_deleted_rows(events, n_rows),
        np.zeros(len(scopes), np.bool_),
    )
    values, flags = [], []
    of_column = dict(zip(events.columns, events.values, strict=True))
    for column in columns:
        cells = of_column.get(column.name)
        if cells is not None and scopes:
            cells = [*cells, *(scope.get(column.name, MISSING) for scope in scopes)]
        taken, flag = _build_value_and_is_set_columns(cells, column, deletes, sets_all)
        values.append(taken.take(place))
        flags.append(pa.array(np.append(flag, False)[source]))
    none = [None] * len(scopes)
    fields = [
        pa.array(kind),
        pa.array((np.arange(total) - np.repeat(starts, sizes)).astype(np.int32)),
        pa.array([*events.row_id, *none], pa.string()).take(place),
        pa.array([*events.rescued, *none], pa.string()).take(place),
        pa.nulls(total, pa.int8())
        if is_all_null(events.expect)
        else pa.array([*(_EXPECTED[one] for one in events.expect), *none], pa.int8()).take(place),
        *values,
        *flags,
    ]
    struct = pa.StructArray.from_arrays(fields, fields=list(build_change_fields(columns)))
    return pa.ListArray.from_arrays(pa.array(np.append(starts, total).astype(np.int32)), struct)


def _find_repeated_or_deleted_rows(events: ColumnarEvents, row_counts: Int64s) -> Bools:
    """Returns a boolean for each row: True if an earlier row of its event has the same id, or if the row is deleted."""
    codes = pa.array(events.row_id, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64)
    keys = np.repeat(np.arange(len(row_counts)), row_counts) * (int(codes.max(initial=0)) + 1) + codes
    _, first = np.unique(keys, return_index=True)
    found = np.ones(len(keys), np.bool_)
    found[first] = False
    return found | np.array(events.deletes, np.bool_)


def _build_value_and_is_set_columns(
    cells: list[Any] | None, column: Column, is_deleted: Bools, sets_all_columns: Bools
) -> tuple[pa.Array, Bools]:
    """Returns a column's values in all rows, and for each row whether the message set it.

    A snapshot sets every column: an absent one is null. A deleted row sets none.

    Args:
        cells: The values, `MISSING` in rows without the column; None if the feed does not have the column.
        column: The column.
        is_deleted: True for deleted rows.
        sets_all_columns: True for rows of snapshots that are the first with their id.
    """
    if cells is None:
        return pa.nulls(len(is_deleted), column.arrow), sets_all_columns
    flag = ~is_deleted
    if MISSING in cells or is_deleted.any():
        flag &= np.fromiter((cell is not MISSING for cell in cells), np.bool_, len(cells))
        cells = [
            None if gone or cell is MISSING else cell for cell, gone in zip(cells, is_deleted.tolist(), strict=True)
        ]
    if pa.types.is_decimal(column.arrow) and any(type(cell) is str for cell in cells):
        texts = [cell if cell is None or type(cell) is str else str(cell) for cell in cells]
        return pa.array(texts, pa.string()).cast(column.arrow), flag | sets_all_columns
    if pa.types.is_timestamp(column.arrow) and any(type(cell) is int for cell in cells):
        micros = pa.array([_convert_timestamp_to_microseconds(cell) for cell in cells], pa.int64())
        return micros.cast(column.arrow), flag | sets_all_columns
    if column.sql == "float":
        return pa.array(cells, pa.float64()).cast(pa.float32(), safe=False), flag | sets_all_columns
    return pa.array(cells, column.arrow), flag | sets_all_columns


def is_all_null(values: list[Any]) -> bool:
    """Returns True if all values are None."""
    return values.count(None) == len(values)


def _convert_timestamp_to_microseconds(timestamp: Any) -> int | None:
    """Returns a timestamp as microseconds since 1970; a number is that already."""
    if timestamp is None or type(timestamp) is int:
        return timestamp
    return (timestamp.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
