"""What a session (class `once`) is told from in seq order: the nearest snapshot that serves, and the changes since."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import CHANGES, SNAPSHOTS
from sessionlake.delta.storage.reading import Condition, is_in
from sessionlake.delta.storage.values import values_of
from sessionlake.protocol.arrow import is_of_sessions, semi_join, session_keys
from sessionlake.protocol.columns import Column
from sessionlake.silver.merge.kept_cuts import ReadTable
from sessionlake.silver.tables.seq_order import latest_cuts, usable
from sessionlake.silver.tables.snapshots import CUT_COLUMNS, change_columns, last_cuts, rows_schema

# The last cuts of a session that are tried.
_TRIED = 4


def history_of(
    read: ReadTable,
    sessions: pa.Table,
    cuts: pa.Table,
    last_batch: int,
    columns: tuple[Column, ...],
    named: Sequence[Condition] = (),
) -> tuple[pa.Table, pa.Table]:
    """What the tables of sessions after a batch are told from, in seq order.

    Args:
        sessions: `SESSION` of each.
        cuts: those whose tables are kept (see `kept_cuts`), of any sessions.
        named: what else is known of the sessions' rows.

    Returns:
        Tables to begin from (see `rows_schema`; none of a session that is told from its beginning), and the changes
        since, with `change_columns`.
    """
    tried = latest_cuts(cuts.filter(is_of_sessions(cuts, sessions)), _TRIED)
    until: list[Condition] = [*named, ("_batch", operator.le, last_batch)]
    low = pc.min(tried["_batch"]).as_py()
    recent: list[Condition] = [] if low is None else [("_batch", operator.ge, low)]
    changes = read(CHANGES, *until, *recent, columns=change_columns(columns), sessions=sessions)
    base = last_cuts(usable(tried, changes))
    others = sessions.filter(pc.invert(is_of_sessions(sessions, base)))
    if others.num_rows and recent:
        whole = read(CHANGES, *until, columns=change_columns(columns), sessions=others)
        changes = pa.concat_tables([changes.filter(is_of_sessions(changes, base)), whole])
    position = base["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(base)))
    since = pc.fill_null(pc.greater(changes["_position"], position), pa.scalar(value=True))
    schema = rows_schema(columns)
    if not base.num_rows:
        return schema.empty_table(), changes
    held = read(SNAPSHOTS, ("snapshot_at", is_in, values_of(pc.unique(base["snapshot_at"]))), *named, sessions=base)
    rows = semi_join(held, CUT_COLUMNS, base).select(schema.names).cast(schema)
    return rows, changes.filter(since)
