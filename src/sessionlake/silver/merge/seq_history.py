"""Reads the stored table and later changes from which a session's table in seq order (class `once`) is computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import CHANGES, SNAPSHOTS
from sessionlake.delta.storage.reading import Condition, is_in
from sessionlake.delta.storage.values import convert_to_python_values
from sessionlake.protocol.arrow import build_session_key_of_each_row, mask_rows_of_sessions, select_matching_rows
from sessionlake.protocol.columns import Column
from sessionlake.silver.merge.kept_cuts import ReadTable
from sessionlake.silver.tables.seq_order import select_latest_cuts_of_each_session, select_resumable_cuts
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    build_rows_schema,
    list_columns_of_session_changes,
    select_last_cut_of_each_session,
)

# For each session, at most this many of its last stored tables are tried.
_TRIED = 4


def read_stored_rows_and_later_changes(
    read_table: ReadTable,
    sessions: pa.Table,
    cuts: pa.Table,
    last_batch: int,
    columns: tuple[Column, ...],
    conditions: Sequence[Condition] = (),
) -> tuple[pa.Table, pa.Table]:
    """Reads what is needed to compute the tables of sessions, in the order of seqs, as they are after a batch.

    Args:
        read_table: Reads a table.
        sessions: The sessions, as `topic, partition, session_id`.
        cuts: Cuts whose tables are stored, of these and any other sessions.
        last_batch: The number of the batch.
        columns: The declared columns.
        conditions: More conditions on the rows of these sessions, which let Delta skip files.

    Returns:
        Two tables for all sessions:

        - Rows of `session_rows`: each session's stored table to start from. None for sessions without a usable one.
        - Rows of `session_changes`: the changes after these stored tables; all changes of the other sessions.
    """
    tried = select_latest_cuts_of_each_session(cuts.filter(mask_rows_of_sessions(cuts, sessions)), _TRIED)
    until: list[Condition] = [*conditions, ("_batch", operator.le, last_batch)]
    low = pc.min(tried["_batch"]).as_py()
    recent: list[Condition] = [] if low is None else [("_batch", operator.ge, low)]
    changes = read_table(CHANGES, *until, *recent, columns=list_columns_of_session_changes(columns), sessions=sessions)
    base = select_last_cut_of_each_session(select_resumable_cuts(tried, changes))
    without_base = sessions.filter(pc.invert(mask_rows_of_sessions(sessions, base)))
    if without_base.num_rows and recent:
        all_changes = read_table(
            CHANGES, *until, columns=list_columns_of_session_changes(columns), sessions=without_base
        )
        changes = pa.concat_tables([changes.filter(mask_rows_of_sessions(changes, base)), all_changes])
    position = base["position"].take(
        pc.index_in(build_session_key_of_each_row(changes), value_set=build_session_key_of_each_row(base))
    )
    since = pc.fill_null(pc.greater(changes["_position"], position), pa.scalar(value=True))
    schema = build_rows_schema(columns)
    if not base.num_rows:
        return schema.empty_table(), changes
    at: Condition = ("snapshot_at", is_in, convert_to_python_values(pc.unique(base["snapshot_at"])))
    held = read_table(SNAPSHOTS, at, *conditions, sessions=base)
    rows = select_matching_rows(held, CUT_COLUMNS, base).select(schema.names).cast(schema)
    return rows, changes.filter(since)
