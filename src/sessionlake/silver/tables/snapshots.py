"""Computes whole tables from earlier tables and the changes since, for many sessions and many cuts at once.

Pure and columnar: the time grows with the changes and with the cuts per session, not with the number of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import (
    SESSION,
    SESSION_COLUMN_TYPES,
    build_session_key_of_each_row,
    concatenate_ranges,
    convert_to_contiguous_array,
    encode_values_as_codes,
    mask_rows_of_sessions,
)
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.names import DELETE, WRITTEN, add_internal_prefix
from sessionlake.protocol.types import Int64s
from sessionlake.silver.fold.schemas import TIMESTAMP_TYPE
from sessionlake.silver.tables.net_changes import CLEAR_MARKERS, compute_net_changes, compute_net_changes_in_seq_order
from sessionlake.silver.tables.weights import SnapshotStoragePolicy

ROW_KEY = (*SESSION, "row_id")
KIND, LATE_FILLED = add_internal_prefix("kind"), add_internal_prefix("late_filled")
WEIGHTS = ("changes", "rows", "since")
_PLACE = add_internal_prefix("place")
CUT_COLUMNS = (*SESSION, "snapshot_at", "reason", "position")


def build_rows_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the Arrow schema of sessions' tables. It has the columns of `session_rows`."""
    declared = [(column.name, column.arrow) for column in columns]
    keys = zip(ROW_KEY, (*SESSION_COLUMN_TYPES, pa.string()), strict=True)
    return pa.schema([*keys, *declared, (RESCUED, pa.string()), *((name, pa.int64()) for name in CLEAR_MARKERS)])


def build_snapshots_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the Arrow schema of `session_snapshots`."""
    cut = [*SESSION_COLUMN_TYPES, TIMESTAMP_TYPE, pa.string(), pa.int64()]
    return pa.schema([*zip(CUT_COLUMNS, cut, strict=True), *list(build_rows_schema(columns))[len(SESSION) :]])


def list_columns_of_session_changes(columns: tuple[Column, ...]) -> list[str]:
    """Returns the names of the columns of `session_changes` from which tables are computed."""
    own = ("change", "_set", "_position", "ordinal", "_life")
    return [*ROW_KEY, *(column.name for column in columns), RESCUED, *CLEAR_MARKERS, *own]


def apply_net_changes_to_session_tables(rows: pa.Table, net_changes: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Returns sessions' tables after net changes, as the MERGE into `session_rows` would leave them.

    Args:
        rows: The tables of any sessions, in any order, with the columns of `session_rows`.
        net_changes: The net changes.
        columns: The declared columns.
    """
    gone = pc.is_null(net_changes["row_id"])
    cleared, changed = net_changes.filter(gone), net_changes.filter(pc.invert(gone)).combine_chunks()
    before = rows.filter(
        pc.invert(pc.is_in(build_session_key_of_each_row(rows), value_set=build_session_key_of_each_row(cleared)))
    ).combine_chunks()
    known, keys = _build_row_keys(before), _build_row_keys(changed)
    kept = before.filter(pc.invert(pc.is_in(known, value_set=keys)))
    place = pc.index_in(keys, value_set=known)
    written = (
        convert_to_contiguous_array(changed[WRITTEN]).flatten().to_numpy(zero_copy_only=False).reshape(-1, len(columns))
    )
    values = {
        column.name: pc.if_else(pa.array(written[:, i]), changed[column.name], before[column.name].take(place))
        for i, column in enumerate(columns)
    }
    schema = build_rows_schema(columns)
    new = pa.table([values.get(name, changed[name]) for name in schema.names], schema=schema)
    return pa.concat_tables([kept, new.filter(pc.invert(changed[DELETE]))])


def _build_row_keys(rows: pa.Table) -> pa.Array:
    """Returns a text for each row that identifies it: its session key and row id."""
    return pc.binary_join_element_wise(
        build_session_key_of_each_row(rows), convert_to_contiguous_array(rows["row_id"]), "\0"
    )


def compute_snapshots(
    cuts: pa.Table, sizes: pa.Table, rows: pa.Table, changes: pa.Table, late: pa.Table, columns: tuple[Column, ...]
) -> Iterator[pa.Table]:
    """Computes the whole tables of sessions at cuts, and yields those to store; an empty one as a row without `row_id`.

    Args:
        cuts: The cuts, with the number of `changes` since the cut before; a session can have several.
        sizes: For each session, the number of `rows` of its last stored table, and of changes `since`.
        rows: The last stored table of each session.
        changes: The changes since these tables.
        late: The sessions with a late fill since. They have rows and changes as `seq_history` reads them, or all.
        columns: The declared columns.
    """
    cuts = cuts.sort_by([(name, "ascending") for name in (*SESSION, "position", "snapshot_at")])
    session, names = encode_values_as_codes(build_session_key_of_each_row(cuts))
    starts = np.flatnonzero(np.diff(session, prepend=-1))
    counts = np.diff(np.append(starts, len(session)))
    rank = np.arange(len(session)) - np.repeat(starts, counts)
    first_in = _ChangesByCut(_find_first_cuts(cuts, session, names, changes), len(session))
    is_late_filled = pc.is_in(names, value_set=build_session_key_of_each_row(late)).to_numpy(zero_copy_only=False)
    rows = rows.select(build_rows_schema(columns).names).cast(build_rows_schema(columns))
    base_rows = rows.filter(mask_rows_of_sessions(rows, late))
    policy, weighed, following = SnapshotStoragePolicy(names, sizes), cuts.select(["reason", "changes"]), starts.copy()
    for number in range(int(counts.max(initial=0))):
        due = np.flatnonzero(rank == number)
        due = due[policy.choose_cuts_to_store(weighed.take(pa.array(due)), session[due])]
        if not len(due):
            continue
        due_sessions = session[due]
        # The cuts of a session are adjacent. Those after its last stored table contain all changes since that table.
        since = concatenate_ranges(following[due_sessions], due + 1 - following[due_sessions])
        fresh = is_late_filled[session[since]]
        present = names.take(pa.array(due_sessions))
        nets = [
            compute_net_changes(changes.take(first_in.select_changes(since[~fresh])), columns),
            compute_net_changes_in_seq_order(
                changes.take(first_in.select_changes(since[fresh])),
                columns,
                base_rows.filter(pc.is_in(build_session_key_of_each_row(base_rows), present)),
            ),
        ]
        is_due_row = pc.is_in(build_session_key_of_each_row(rows), value_set=present)
        made = apply_net_changes_to_session_tables(rows.filter(is_due_row), pa.concat_tables(nets), columns)
        heads = cuts.select(CUT_COLUMNS).take(pa.array(due))
        yield _build_snapshot_rows(heads, made, columns)
        policy.record_stored_tables(due_sessions, _count_rows_by_session(made, present))
        following[due_sessions] = np.where(is_late_filled[due_sessions], following[due_sessions], due + 1)
        unfinished = names.take(pa.array(np.flatnonzero(counts > number + 1)))
        rows = pa.concat_tables([rows.filter(pc.invert(is_due_row)), made])
        rows = rows.filter(pc.is_in(build_session_key_of_each_row(rows), value_set=unfinished))


def _build_snapshot_rows(cuts: pa.Table, rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Adds the columns of its session's cut to each row. A cut whose table is empty becomes one row without values.

    Args:
        cuts: The cuts, one per session.
        rows: The tables of these sessions.
        columns: The declared columns.
    """
    schema = build_snapshots_schema(columns)
    head = cuts.take(pc.index_in(build_session_key_of_each_row(rows), value_set=build_session_key_of_each_row(cuts)))
    body = rows.select(rows.column_names[len(SESSION) :])
    table = pa.table([*head.columns, *body.columns], names=[*head.column_names, *body.column_names]).cast(schema)
    empty = cuts.filter(pc.invert(mask_rows_of_sessions(cuts, rows))).cast(pa.schema(list(schema)[: len(CUT_COLUMNS)]))
    return pa.concat_tables([table, empty], promote_options="default")


def count_rows_of_each_snapshot(snapshot_rows: pa.Table) -> pa.Table:
    """Returns a row for each of these tables: the columns that identify its cut, and its number of rows (`rows`).

    Args:
        snapshot_rows: Rows of `session_snapshots`, as `compute_snapshots` yields them.
    """
    counted = snapshot_rows.group_by(list(CUT_COLUMNS)).aggregate([("row_id", "count")])
    return counted.rename_columns({"row_id_count": "rows"})


def _count_rows_by_session(rows: pa.Table, sessions: pa.Array) -> Int64s:
    """Returns the number of rows of each session. `sessions` has the session keys, in the order of the result."""
    place = pc.index_in(build_session_key_of_each_row(rows), value_set=sessions).to_numpy()
    return np.bincount(place, minlength=len(sessions))


def select_last_cut_of_each_session(cuts: pa.Table) -> pa.Table:
    """Returns the last cut of each session: that with the highest position, and of equal positions the latest time."""
    order = [("position", "descending"), ("snapshot_at", "descending"), ("reason", "descending")]
    ordered = cuts.sort_by(order).combine_chunks()
    places = pa.array(range(ordered.num_rows), pa.int64())
    first = ordered.append_column(_PLACE, places).group_by(list(SESSION)).aggregate([(_PLACE, "min")])
    return ordered.take(first[f"{_PLACE}_min"])


class _ChangesByCut:
    """Finds the changes that a cut contains and earlier cuts of its session do not."""

    def __init__(self, cut: Int64s, cuts: int) -> None:
        self._order = np.argsort(cut, kind="stable")
        self._bounds = np.searchsorted(cut[self._order], np.arange(cuts + 1))

    def select_changes(self, cuts: Int64s) -> pa.Array:
        """Returns indices of changes: those that one of these cuts, given by their indices, is the first to contain."""
        lengths = self._bounds[cuts + 1] - self._bounds[cuts]
        return pa.array(self._order[concatenate_ranges(self._bounds[cuts], lengths)])


def _find_first_cuts(cuts: pa.Table, session_numbers: Int64s, session_keys: pa.Array, changes: pa.Table) -> Int64s:
    """Returns for each change the index of the first cut of its session that contains it; -1 if there is none.

    Args:
        cuts: The cuts, sorted by session and position.
        session_numbers: For each cut, the index of its session in `session_keys`.
        session_keys: Session keys.
        changes: The changes.
    """
    owner = (
        pc.fill_null(pc.index_in(build_session_key_of_each_row(changes), value_set=session_keys), -1)
        .to_numpy()
        .astype(np.int64)
    )
    position, at = changes["_position"].to_numpy(), cuts["position"].to_numpy()
    distinct, order = np.unique(np.concatenate([at, position]), return_inverse=True)
    order = order.reshape(-1)
    keys = session_numbers * len(distinct) + order[: len(at)]
    found = np.searchsorted(keys, owner * len(distinct) + order[len(at) :])
    inside = (owner >= 0) & (found < len(keys))
    inside[inside] = session_numbers[found[inside]] == owner[inside]
    return np.where(inside, found, -1)


@dataclass(frozen=True)
class SnapshotTablesMapper:
    """A function for `mapInArrow` that computes the whole tables to store.

    Its input has three kinds of rows, as the column `KIND` says: cuts, rows of the last stored tables, and changes. All
    input of a session must be in one Spark partition. Cuts also have the columns `WEIGHTS` under internal names, and
    `LATE_FILLED`: True if the session had a late fill.

    Attributes:
        columns: The declared columns.
    """

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the tables to store for the sessions of a Spark partition."""
        received = list(batches)
        if not received:
            return
        rows = pa.Table.from_batches(received)
        kind = {name: rows.filter(pc.equal(rows[KIND], name)) for name in ("cut", "row", "change")}
        cuts = kind["cut"]
        weighed = cuts.select([*CUT_COLUMNS, *map(add_internal_prefix, WEIGHTS)]).rename_columns(
            [*CUT_COLUMNS, *WEIGHTS]
        )
        late_filled = cuts.filter(cuts[LATE_FILLED])
        for table in compute_snapshots(weighed, weighed, kind["row"], kind["change"], late_filled, self.columns):
            yield from table.to_batches()
