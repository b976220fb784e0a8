"""Where to begin when a session is told in seq order (class `once`), other than at its beginning.

A message applied beneath newer ones changes what came after it, so the table before is no base for the one after. A
snapshot is, if all that was applied since has seqs beyond all that it holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import running_maximum
from sessionlake.lake.reading import Condition, among
from sessionlake.protocol.arrow import are_of, codes, session_keys
from sessionlake.protocol.columns import Column
from sessionlake.silver.snapshots import CUT, change_columns, last_cuts, rows_schema

Int64s = npt.NDArray[np.int64]
Read = Callable[..., pa.Table]
"""Reads a table: its name, conditions, and `columns=`."""
_CHANGES = "silver.session_changes"
_SNAPSHOTS = "silver.session_snapshots"
# The last cuts of a session that are tried.
_TRIED = 4


def history_of(
    read: Read,
    sessions: pa.Table,
    cuts: pa.Table,
    last_batch: int,
    columns: tuple[Column, ...],
    named: Sequence[Condition] = (),
) -> tuple[pa.Table, pa.Table]:
    """What the tables of sessions after a batch are told from, in seq order.

    Args:
        sessions: `topic, session_id`.
        cuts: rows of `session_cuts` whose snapshots are there, of any sessions.
        named: what else is known of the sessions' rows.

    Returns:
        Tables to begin from (see `rows_schema`; none of a session that is told from its beginning), and the changes
        since, with `change_columns`.
    """
    tried = _last(cuts.filter(are_of(cuts, sessions)))
    until: list[Condition] = [*named, ("_batch", operator.le, last_batch)]
    low = pc.min(tried["_batch"]).as_py()
    recent: list[Condition] = [] if low is None else [("_batch", operator.ge, low)]
    changes = read(_CHANGES, *until, *recent, columns=change_columns(columns))
    changes = changes.filter(are_of(changes, sessions))
    base = last_cuts(usable(tried, changes))
    others = sessions.filter(pc.invert(are_of(sessions, base)))
    if others.num_rows and recent:
        whole = read(_CHANGES, *until, columns=change_columns(columns))
        changes = pa.concat_tables([changes.filter(are_of(changes, base)), whole.filter(are_of(whole, others))])
    position = base["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(base)))
    since = pc.fill_null(pc.greater(changes["_position"], position), pa.scalar(value=True))
    schema = rows_schema(columns)
    if not base.num_rows:
        return schema.empty_table(), changes
    held = read(_SNAPSHOTS, ("snapshot_at", among, pc.unique(base["snapshot_at"]).to_pylist()), *named)
    rows = held.join(base.select(CUT), list(CUT), join_type="left semi").select(schema.names).cast(schema)
    return rows, changes.filter(since)


def usable(cuts: pa.Table, changes: pa.Table) -> pa.Table:
    """Those of the cuts that everything applied since follows in seq order, too.

    Args:
        cuts: with `position`, `life` and `next_seq`.
        changes: all of the cuts' sessions that were applied since the first cut, at least.
    """
    owner, names = codes(session_keys(cuts))
    changes = changes.filter(pc.is_in(session_keys(changes), value_set=names))
    changed = pc.index_in(session_keys(changes), value_set=names).to_numpy().astype(np.int64)
    count = len(changed)
    place = _ranks(np.append(changed, owner), np.append(_numbers(changes["_position"]), _numbers(cuts["position"])))
    seq = _ranks(
        np.append(_numbers(changes["_life"]), _numbers(cuts["life"])),
        np.append(_numbers(changes["_seq"]), _numbers(cuts["next_seq"])),
    )
    order = np.argsort(place[:count], kind="stable")
    whose = changed[order]
    # Of each change and all later ones of its session, the lowest seq.
    lowest = -running_maximum(-seq[order][::-1], whose.max(initial=0) - whose[::-1])[::-1]
    following = np.searchsorted(place[order], place[count:], side="right")
    fits = following == count
    at = following[~fits]
    fits[~fits] = (whose[at] != owner[~fits]) | (lowest[at] >= seq[count:][~fits])
    return cuts.filter(pa.array(fits))


def _last(cuts: pa.Table) -> pa.Table:
    """The last cuts of each session."""
    session, _ = codes(session_keys(cuts))
    order = np.lexsort((-_numbers(cuts["position"]), session))
    starts = np.flatnonzero(np.diff(session[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return cuts.take(pa.array(order[rank < _TRIED]))


def _ranks(first: Int64s, second: Int64s) -> Int64s:
    """Place of each pair among all, in order; equal pairs share one."""
    order = np.lexsort((second, first))
    steps = (np.diff(first[order], prepend=0) != 0) | (np.diff(second[order], prepend=0) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(steps)
    return ranks


def _numbers(column: pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(column, 0).to_numpy().astype(np.int64)
    return found
