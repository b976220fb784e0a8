"""What a stretch of changes comes to, row by row: the source of the MERGE into `session_rows`.

For each column the last writer counts; a delete, and a clear before all that follows it, write absence to
every column. Pure and columnar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.columns import RESCUED, Column

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MARKS = ("_epoch", "_seq", "_ts", "_offset")
_NEVER = np.iinfo(np.int64).min


def net_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """One row a changed row; `_written` tells which declared columns to take over.

    A row without `row_id` says that its session was cleared: rows of it that are not here are gone.
    """
    return pa.schema(
        [
            *((name, pa.string()) for name in ("topic", "session_id", "row_id")),
            *((column.name, column.arrow) for column in columns),
            (RESCUED, pa.string()),
            *((name, pa.int64()) for name in MARKS),
            ("_delete", pa.bool_()),
            ("_written", pa.list_(pa.bool_())),
        ]
    )


def net_ddl(columns: tuple[Column, ...]) -> str:
    """The same as Spark DDL."""
    declared = ", ".join(f"`{column.name}` {column.sql}" for column in columns)
    marks = ", ".join(f"{name} bigint" for name in MARKS)
    return (
        f"topic string, session_id string, row_id string, {declared}, {RESCUED} string, {marks}, "
        "_delete boolean, _written array<boolean>"
    )


@dataclass(frozen=True)
class NetChanges:
    """A `mapInArrow` function over `session_changes` rows; all changes of a session must be in one partition."""

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reduces the partition's changes."""
        taken = list(batches)
        if taken:
            yield from net_changes(pa.Table.from_batches(taken), self.columns).to_batches()


def net_changes(changes: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Reduces changes, in any order, to one row for each row they concern, and one for each cleared session."""
    changes = changes.combine_chunks()
    session, sessions = _session_codes(changes)
    position = changes["_position"].to_numpy()
    kind, kinds = _codes(changes["change"])
    clear = kind == _index(kinds, "clear")
    cleared = np.full(len(sessions), _NEVER)
    np.maximum.at(cleared, session[clear], position[clear])
    kept = np.flatnonzero(~clear & (position >= cleared[session]))
    row, _ = _codes(changes["row_id"])
    key = session[kept] * (int(row.max(initial=0)) + 1) + row[kept]
    order = kept[np.lexsort((changes["ordinal"].to_numpy()[kept], position[kept], key))]
    key = np.sort(key)
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    last = order[np.append(starts[1:], len(order)) - 1] if len(order) else order
    delete = kind == _index(kinds, "delete")
    emptied = cleared[session[last]] != _NEVER
    rows = _rows(changes, columns, _Net(order, starts, last, delete, emptied))
    marks = sessions.filter(pa.array(cleared != _NEVER))
    return pa.concat_tables([rows, _clear_marks(marks, columns)])


@dataclass(frozen=True)
class _Net:
    """Indices into the changes: `order` sorts them by row and time, `starts` are the rows' first places in it."""

    order: Int64s
    starts: Int64s
    last: Int64s
    delete: Bools
    emptied: Bools


def _rows(changes: pa.Table, columns: tuple[Column, ...], net: _Net) -> pa.Table:
    place = np.arange(len(net.order))
    flags = _set_flags(changes["_set"], columns)
    values, written = [], []
    for column, flag in zip(columns, flags, strict=True):
        writes = (flag | net.delete)[net.order]
        winner = np.maximum.reduceat(np.where(writes, place, -1), net.starts) if len(place) else place
        source = pa.array(net.order[winner] if len(place) else place, mask=winner < 0)
        values.append(_one(changes[column.name]).take(source))
        written.append((winner >= 0) | net.emptied)
    matrix = np.stack(written, axis=1) if written else np.zeros((len(net.last), 0), np.bool_)
    last = pa.array(net.last)
    heads = [_one(changes[name]).take(last) for name in ("topic", "session_id", "row_id")]
    marks = [_one(changes[name]).take(last) for name in (RESCUED, *MARKS)]
    ends = pa.array(np.arange(len(net.last) + 1, dtype=np.int32) * len(columns))
    lists = pa.ListArray.from_arrays(ends, pa.array(matrix.reshape(-1)))
    arrays = [*heads, *values, *marks, pa.array(net.delete[net.last]), lists]
    return pa.Table.from_arrays(arrays, schema=net_schema(columns))


def _clear_marks(sessions: pa.StructArray, columns: tuple[Column, ...]) -> pa.Table:
    schema = net_schema(columns)
    given = {"topic": sessions.field("topic"), "session_id": sessions.field("session_id")}
    arrays = [given.get(field.name, pa.nulls(len(sessions), field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _session_codes(changes: pa.Table) -> tuple[Int64s, pa.StructArray]:
    topic, topics = _codes(changes["topic"])
    session, sessions = _codes(changes["session_id"])
    distinct, owner = np.unique(topic * len(sessions) + session, return_inverse=True)
    t, s = np.divmod(distinct, max(len(sessions), 1))
    names = [topics.take(pa.array(t)), sessions.take(pa.array(s))]
    return owner.reshape(-1), pa.StructArray.from_arrays(names, ["topic", "session_id"])


def _codes(column: pa.ChunkedArray) -> tuple[Int64s, pa.Array]:
    """Dictionary codes, -1 for null."""
    encoded = _one(column).dictionary_encode()
    return pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64), encoded.dictionary


def _index(values: pa.Array, value: str) -> int:
    """The value's code; -2, which matches nothing, where it does not occur."""
    found: Any = pc.index(values, value).as_py()
    return -2 if found < 0 else int(found)


def _set_flags(sets: pa.ChunkedArray, columns: tuple[Column, ...]) -> list[Bools]:
    """For each declared column, which changes set it."""
    lists = _one(sets)
    owner = np.repeat(np.arange(len(lists)), pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    code, names = _codes(pa.chunked_array([lists.flatten()]))
    flags = []
    for column in columns:
        flag = np.zeros(len(lists), np.bool_)
        flag[owner[code == _index(names, column.name)]] = True
        flags.append(flag)
    return flags


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined: Any = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
