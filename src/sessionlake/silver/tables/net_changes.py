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
    convert_to_contiguous_array,
    encode_values_as_codes,
    number_distinct_combinations,
)
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.names import DELETE, WRITTEN, quote
from sessionlake.protocol.types import Bools, Int64s

CLEAR_MARKERS = ("_epoch", "_seq", "_ts", "_offset")
_NEVER = np.iinfo(np.int64).min


def build_net_changes_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the Arrow schema of net changes. A net change has the effect of all changes of one row of `session_rows`.

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


def build_net_changes_ddl(columns: tuple[Column, ...]) -> str:
    """Returns the columns of net changes as Spark DDL."""
    declared = ", ".join(f"{quote(column.name)} {column.sql}" for column in columns)
    marks = ", ".join(f"{name} bigint" for name in CLEAR_MARKERS)
    return (
        f"topic string, partition int, session_id string, row_id string, {declared}, {RESCUED} string, {marks}, "
        f"{DELETE} boolean, {WRITTEN} array<boolean>"
    )


@dataclass(frozen=True)
class NetChangesMapper:
    """A function for `mapInArrow` that reduces rows of `session_changes` to net changes.

    All changes of a session must be in one Spark partition.

    Attributes:
        columns: The declared columns.
        in_seq_order: True to apply all changes of the sessions in the order of their seqs, as late fills require.
    """

    columns: tuple[Column, ...]
    in_seq_order: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the net changes of a Spark partition."""
        received = list(batches)
        if received:
            compute = compute_net_changes_in_seq_order if self.in_seq_order else compute_net_changes
            yield from compute(pa.Table.from_batches(received), self.columns).to_batches()


def compute_net_changes(changes: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Reduces changes, in any order, to net changes.

    There is one net change for each changed row, and one without `row_id` for each cleared session.

    Args:
        changes: Rows of `session_changes`.
        columns: The declared columns.
    """
    changes = changes.combine_chunks()
    session, names = number_distinct_combinations(*(changes[name] for name in SESSION))
    sessions = pa.StructArray.from_arrays(names, SESSION)
    position = changes["_position"].to_numpy()
    kind, kinds = encode_values_as_codes(changes["change"])
    clear = kind == _find_code(kinds, "clear")
    cleared = np.full(len(sessions), _NEVER)
    np.maximum.at(cleared, session[clear], position[clear])
    kept = np.flatnonzero(~clear & (position >= cleared[session]))
    row, _ = encode_values_as_codes(changes["row_id"])
    key = session[kept] * (int(row.max(initial=0)) + 1) + row[kept]
    order = kept[np.lexsort((changes["ordinal"].to_numpy()[kept], position[kept], key))]
    key = np.sort(key)
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    last = order[np.append(starts[1:], len(order)) - 1] if len(order) else order
    delete = kind == _find_code(kinds, "delete")
    emptied = cleared[session[last]] != _NEVER
    rows = _build_net_change_rows(changes, columns, _NetRows(order, starts, last, delete, emptied))
    marks = sessions.filter(pa.array(cleared != _NEVER))
    return pa.concat_tables([rows, _build_clear_rows(marks, columns)])


def compute_net_changes_in_seq_order(
    changes: pa.Table, columns: tuple[Column, ...], rows: pa.Table | None = None
) -> pa.Table:
    """Computes the whole tables of sessions (class `once`) in seq order.

    Returns them as net changes that replace the tables.

    Args:
        changes: All changes ever applied, in any order. If `rows` is given, only the changes after it.
        columns: The declared columns.
        rows: Earlier tables of the sessions to start from, with the columns of `session_rows`; None to start from empty
            tables.
    """
    parts = [replace_positions_by_seq_rank(changes)]
    schema, affected = parts[0].schema, changes.select(SESSION)
    if rows is not None:
        names = pa.array([[column.name for column in columns]] * rows.num_rows, pa.list_(pa.string()))
        row_columns = {name: convert_to_contiguous_array(rows[name]) for name in rows.column_names} | {"_set": names}
        parts.append(_convert_rows_to_changes(row_columns, "upsert", -1, schema))
        affected = pa.concat_tables([affected, rows.select(SESSION)])
    sessions = affected.group_by(list(SESSION), use_threads=False).aggregate([])
    parts.append(
        _convert_rows_to_changes(
            {name: convert_to_contiguous_array(sessions[name]) for name in sessions.column_names}, "clear", -2, schema
        )
    )
    return compute_net_changes(pa.concat_tables(parts), columns)


def _convert_rows_to_changes(
    row_columns: dict[str, pa.Array], change_kind: str, position: int, schema: pa.Schema
) -> pa.Table:
    """Converts rows to changes that all have the same kind and position.

    Args:
        row_columns: The columns of the rows, by name.
        change_kind: The kind of change, such as "upsert".
        position: The position.
        schema: The schema of the result.
    """
    count = len(row_columns["topic"])
    row_columns |= {
        "change": pa.array([change_kind] * count, pa.string()),
        "_position": pa.array(np.full(count, position)),
    }
    row_columns["ordinal"] = pa.array(np.zeros(count, np.int32))
    arrays = [
        row_columns[field.name].cast(field.type) if field.name in row_columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def replace_positions_by_seq_rank(changes: pa.Table) -> pa.Table:
    """Returns the changes with new values of `_position`: their rank in the order of life and seq."""
    life, seq = changes["_life"].to_numpy(), changes["_seq"].to_numpy()
    order = np.lexsort((seq, life))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(np.append(False, (np.diff(seq[order]) != 0) | (np.diff(life[order]) != 0)))
    place = changes.schema.get_field_index("_position")
    return changes.set_column(place, changes.schema.field(place), pa.array(rank))


@dataclass(frozen=True)
class _NetRows:
    """The changes of a batch, grouped by the table row that they change.

    Attributes:
        order: The indices of the changes, sorted by row and then by application.
        starts: The index in `order` of each row's first change.
        last: The index of each row's last change.
        delete: True for each change that is a delete.
        emptied: True for each row whose session was cleared.
    """

    order: Int64s
    starts: Int64s
    last: Int64s
    delete: Bools
    emptied: Bools


def _build_net_change_rows(changes: pa.Table, columns: tuple[Column, ...], groups: _NetRows) -> pa.Table:
    """Returns the net change of each table row: for each column, the value of the last change that sets it."""
    place = np.arange(len(groups.order))
    flags = _find_changes_that_set_columns(changes["_set"], columns)
    values, written = [], []
    for column, flag in zip(columns, flags, strict=True):
        writes = (flag | groups.delete)[groups.order]
        winner = np.maximum.reduceat(np.where(writes, place, -1), groups.starts) if len(place) else place
        source = pa.array(groups.order[winner] if len(place) else place, mask=winner < 0)
        values.append(convert_to_contiguous_array(changes[column.name]).take(source))
        written.append((winner >= 0) | groups.emptied)
    matrix = np.stack(written, axis=1) if written else np.zeros((len(groups.last), 0), np.bool_)
    last = pa.array(groups.last)
    heads = [convert_to_contiguous_array(changes[name]).take(last) for name in (*SESSION, "row_id")]
    marks = [convert_to_contiguous_array(changes[name]).take(last) for name in (RESCUED, *CLEAR_MARKERS)]
    ends = pa.array(np.arange(len(groups.last) + 1, dtype=np.int32) * len(columns))
    lists = pa.ListArray.from_arrays(ends, pa.array(matrix.reshape(-1)))
    arrays = [*heads, *values, *marks, pa.array(groups.delete[groups.last]), lists]
    return pa.Table.from_arrays(arrays, schema=build_net_changes_schema(columns))


def _build_clear_rows(sessions: pa.StructArray, columns: tuple[Column, ...]) -> pa.Table:
    """Returns a net change without `row_id` for each session that was cleared."""
    schema = build_net_changes_schema(columns)
    given = {name: sessions.field(name) for name in SESSION}
    arrays = [given.get(field.name, pa.nulls(len(sessions), field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _find_code(dictionary: pa.Array, value: str) -> int:
    """Returns the index of a value in a dictionary's values; -2, which equals no code, if the value is not in it."""
    found: Any = pc.index(dictionary, value).as_py()
    return -2 if found < 0 else int(found)


def _find_changes_that_set_columns(set_lists: pa.ChunkedArray, columns: tuple[Column, ...]) -> list[Bools]:
    """Returns, for each declared column, a boolean for each change: True if the change sets the column.

    Args:
        set_lists: For each change, the list of column names that it sets.
        columns: The declared columns.
    """
    lists = convert_to_contiguous_array(set_lists)
    owner = np.repeat(np.arange(len(lists)), pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    code, names = encode_values_as_codes(lists.flatten())
    flags = []
    for column in columns:
        flag = np.zeros(len(lists), np.bool_)
        flag[owner[code == _find_code(names, column.name)]] = True
        flags.append(flag)
    return flags
