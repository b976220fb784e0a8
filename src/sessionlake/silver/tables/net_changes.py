"""Net changes: reduces all changes of a table row to one change with the same effect, as the source of the MERGE.

For each column the last change that sets it counts. A delete or a clear unsets every column. Pure and columnar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import (
    SESSION,
    SESSION_COLUMN_TYPES,
    encode_as_codes,
    number_distinct_combinations,
    to_contiguous,
)
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.names import DELETE, WRITTEN, quote
from sessionlake.protocol.types import Bools, Int64s

CLEAR_MARKERS = ("_epoch", "_seq", "_ts", "_offset")
_NEVER = np.iinfo(np.int64).min


def build_net_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the schema of net changes: one row for each row of `session_rows` that changes.

    The column `WRITTEN` has a boolean for each declared column: True if it is to be overwritten. A net change without
    `row_id` says that its session was cleared: all rows of the session that have no net change are removed.
    """
    return pa.schema(
        [
            *zip(SESSION, SESSION_COLUMN_TYPES, strict=True),
            ("row_id", pa.string()),
            *((column.name, column.arrow) for column in columns),
            (RESCUED, pa.string()),
            *((name, pa.int64()) for name in CLEAR_MARKERS),
            (DELETE, pa.bool_()),
            (WRITTEN, pa.list_(pa.bool_())),
        ]
    )


def build_net_ddl(columns: tuple[Column, ...]) -> str:
    """Returns the columns of `build_net_schema` as Spark DDL."""
    declared = ", ".join(f"{quote(column.name)} {column.sql}" for column in columns)
    marks = ", ".join(f"{name} bigint" for name in CLEAR_MARKERS)
    return (
        f"topic string, partition int, session_id string, row_id string, {declared}, {RESCUED} string, {marks}, "
        f"{DELETE} boolean, {WRITTEN} array<boolean>"
    )


@dataclass(frozen=True)
class NetChangesMapper:
    """A `mapInArrow` function that reduces `session_changes` rows to net changes.

    All changes of a session must be in one Spark partition.
    """

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the net changes of a Spark partition."""
        received = list(batches)
        if received:
            yield from compute_net_changes(pa.Table.from_batches(received), self.columns).to_batches()


def compute_net_changes(changes: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Returns net changes, columns as `build_net_schema`, for changes in any order.

    There is one net change for each changed row, and one without `row_id` for each cleared session.
    """
    changes = changes.combine_chunks()
    session, names = number_distinct_combinations(*(changes[name] for name in SESSION))
    sessions = pa.StructArray.from_arrays(names, SESSION)
    position = changes["_position"].to_numpy()
    kind, kinds = encode_as_codes(changes["change"])
    clear = kind == _find_index(kinds, "clear")
    cleared = np.full(len(sessions), _NEVER)
    np.maximum.at(cleared, session[clear], position[clear])
    kept = np.flatnonzero(~clear & (position >= cleared[session]))
    row, _ = encode_as_codes(changes["row_id"])
    key = session[kept] * (int(row.max(initial=0)) + 1) + row[kept]
    order = kept[np.lexsort((changes["ordinal"].to_numpy()[kept], position[kept], key))]
    key = np.sort(key)
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    last = order[np.append(starts[1:], len(order)) - 1] if len(order) else order
    delete = kind == _find_index(kinds, "delete")
    emptied = cleared[session[last]] != _NEVER
    rows = _build_rows(changes, columns, _NetRows(order, starts, last, delete, emptied))
    marks = sessions.filter(pa.array(cleared != _NEVER))
    return pa.concat_tables([rows, _build_clear_rows(marks, columns)])


@dataclass(frozen=True)
class SeqRefoldMapper:
    """A `mapInArrow` function that reduces all changes of sessions with late fills to net changes, in seq order.

    All changes of a session must be in one Spark partition.
    """

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the net changes of a Spark partition."""
        received = list(batches)
        if received:
            yield from refold_by_seq(pa.Table.from_batches(received), self.columns).to_batches()


def refold_by_seq(changes: pa.Table, columns: tuple[Column, ...], rows: pa.Table | None = None) -> pa.Table:
    """Returns the whole tables of sessions (class `once`) in seq order, as net changes that replace the present tables.

    Args:
        changes: All changes ever applied, in any order, with `_life`. If `rows` is given, only the changes after it.
        columns: The declared columns.
        rows: Earlier tables of the sessions to start from, columns of `session_rows`; None starts from empty tables.
    """
    parts = [order_by_seq(changes)]
    schema, affected = parts[0].schema, changes.select(SESSION)
    if rows is not None:
        names = pa.array([[column.name for column in columns]] * rows.num_rows, pa.list_(pa.string()))
        row_columns = {name: to_contiguous(rows[name]) for name in rows.column_names} | {"_set": names}
        parts.append(_to_changes(row_columns, "upsert", -1, schema))
        affected = pa.concat_tables([affected, rows.select(SESSION)])
    sessions = affected.group_by(list(SESSION), use_threads=False).aggregate([])
    parts.append(
        _to_changes({name: to_contiguous(sessions[name]) for name in sessions.column_names}, "clear", -2, schema)
    )
    return compute_net_changes(pa.concat_tables(parts), columns)


def _to_changes(values: dict[str, pa.Array], change: str, position: int, schema: pa.Schema) -> pa.Table:
    """Returns rows as changes that all have the same kind and position.

    Args:
        values: The columns of the rows.
        change: The kind of change.
        position: The position.
        schema: The schema of the result.
    """
    count = len(values["topic"])
    values |= {"change": pa.array([change] * count, pa.string()), "_position": pa.array(np.full(count, position))}
    values["ordinal"] = pa.array(np.zeros(count, np.int32))
    arrays = [
        values[field.name].cast(field.type) if field.name in values else pa.nulls(count, field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def order_by_seq(changes: pa.Table) -> pa.Table:
    """Returns the changes with `_position` replaced by their rank in the order of life and seq."""
    life, seq = changes["_life"].to_numpy(), changes["_seq"].to_numpy()
    order = np.lexsort((seq, life))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(np.append(False, (np.diff(seq[order]) != 0) | (np.diff(life[order]) != 0)))
    place = changes.schema.get_field_index("_position")
    return changes.set_column(place, changes.schema.field(place), pa.array(rank))


@dataclass(frozen=True)
class _NetRows:
    """Indices that group the changes by table row.

    Attributes:
        order: Indices of the changes, sorted by row and then by application.
        starts: Index in `order` of each row's first change.
        last: Index of each row's last change.
        delete: True for each change that is a delete.
        emptied: True for each row whose session was cleared.
    """

    order: Int64s
    starts: Int64s
    last: Int64s
    delete: Bools
    emptied: Bools


def _build_rows(changes: pa.Table, columns: tuple[Column, ...], net: _NetRows) -> pa.Table:
    place = np.arange(len(net.order))
    flags = _find_set_columns(changes["_set"], columns)
    values, written = [], []
    for column, flag in zip(columns, flags, strict=True):
        writes = (flag | net.delete)[net.order]
        winner = np.maximum.reduceat(np.where(writes, place, -1), net.starts) if len(place) else place
        source = pa.array(net.order[winner] if len(place) else place, mask=winner < 0)
        values.append(to_contiguous(changes[column.name]).take(source))
        written.append((winner >= 0) | net.emptied)
    matrix = np.stack(written, axis=1) if written else np.zeros((len(net.last), 0), np.bool_)
    last = pa.array(net.last)
    heads = [to_contiguous(changes[name]).take(last) for name in (*SESSION, "row_id")]
    marks = [to_contiguous(changes[name]).take(last) for name in (RESCUED, *CLEAR_MARKERS)]
    ends = pa.array(np.arange(len(net.last) + 1, dtype=np.int32) * len(columns))
    lists = pa.ListArray.from_arrays(ends, pa.array(matrix.reshape(-1)))
    arrays = [*heads, *values, *marks, pa.array(net.delete[net.last]), lists]
    return pa.Table.from_arrays(arrays, schema=build_net_schema(columns))


def _build_clear_rows(sessions: pa.StructArray, columns: tuple[Column, ...]) -> pa.Table:
    schema = build_net_schema(columns)
    given = {name: sessions.field(name) for name in SESSION}
    arrays = [given.get(field.name, pa.nulls(len(sessions), field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _find_index(values: pa.Array, value: str) -> int:
    """Returns the index of a value in a dictionary; -2, which equals no code, if the value is not in it."""
    found: Any = pc.index(values, value).as_py()
    return -2 if found < 0 else int(found)


def _find_set_columns(sets: pa.ChunkedArray, columns: tuple[Column, ...]) -> list[Bools]:
    """Returns for each declared column a boolean array over the changes: True where a change sets the column."""
    lists = to_contiguous(sets)
    owner = np.repeat(np.arange(len(lists)), pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    code, names = encode_as_codes(lists.flatten())
    flags = []
    for column in columns:
        flag = np.zeros(len(lists), np.bool_)
        flag[owner[code == _find_index(names, column.name)]] = True
        flags.append(flag)
    return flags
