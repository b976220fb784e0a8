"""Whole tables out of a table before and the changes since: a session's, or those of many sessions at many cuts.

Pure and columnar: the work grows with the changes and with the cuts of one session, not with the number of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import (
    SESSION,
    SESSION_TYPES,
    concatenate_ranges,
    contiguous,
    dictionary_codes,
    is_of_sessions,
    session_keys,
)
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.names import DELETE, WRITTEN, internal
from sessionlake.protocol.types import Int64s
from sessionlake.silver.fold.schemas import TIMESTAMP
from sessionlake.silver.tables.net_changes import MARKS, net_changes, refolded
from sessionlake.silver.tables.weights import Weights

ROW_KEY = (*SESSION, "row_id")
KIND, ANEW = internal("kind"), internal("anew")
WEIGHTS = ("changes", "rows", "since")
_PLACE = internal("place")
CUT_COLUMNS = (*SESSION, "snapshot_at", "reason", "position")


def rows_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Rows of session tables: the columns of `session_rows`."""
    declared = [(column.name, column.arrow) for column in columns]
    keys = zip(ROW_KEY, (*SESSION_TYPES, pa.string()), strict=True)
    return pa.schema([*keys, *declared, (RESCUED, pa.string()), *((name, pa.int64()) for name in MARKS)])


def snapshots_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Rows of `session_snapshots`."""
    cut = [*SESSION_TYPES, TIMESTAMP, pa.string(), pa.int64()]
    return pa.schema([*zip(CUT_COLUMNS, cut, strict=True), *list(rows_schema(columns))[len(SESSION) :]])


def change_columns(columns: tuple[Column, ...]) -> list[str]:
    """The columns of `session_changes` that a fold takes."""
    own = ("change", "_set", "_position", "ordinal", "_life")
    return [*ROW_KEY, *(column.name for column in columns), RESCUED, *MARKS, *own]


def advanced(rows: pa.Table, net: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Session tables after net changes: what the MERGE into `session_rows` does, in Arrow.

    Args:
        rows: see `rows_schema`; of any sessions, in any order.
        net: see `net_changes.net_schema`.
    """
    gone = pc.is_null(net["row_id"])
    cleared, changed = net.filter(gone), net.filter(pc.invert(gone)).combine_chunks()
    before = rows.filter(pc.invert(pc.is_in(session_keys(rows), value_set=session_keys(cleared)))).combine_chunks()
    known, keys = _row_keys(before), _row_keys(changed)
    kept = before.filter(pc.invert(pc.is_in(known, value_set=keys)))
    place = pc.index_in(keys, value_set=known)
    written = contiguous(changed[WRITTEN]).flatten().to_numpy(zero_copy_only=False).reshape(-1, len(columns))
    values = {
        column.name: pc.if_else(pa.array(written[:, i]), changed[column.name], before[column.name].take(place))
        for i, column in enumerate(columns)
    }
    schema = rows_schema(columns)
    new = pa.table([values.get(name, changed[name]) for name in schema.names], schema=schema)
    return pa.concat_tables([kept, new.filter(pc.invert(changed[DELETE]))])


def _row_keys(rows: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(session_keys(rows), contiguous(rows["row_id"]), "\0")


def snapshots(
    cuts: pa.Table, kept: pa.Table, rows: pa.Table, changes: pa.Table, anew: pa.Table, columns: tuple[Column, ...]
) -> Iterator[pa.Table]:
    """The tables that are kept at cuts, as rows of `session_snapshots`; an empty one as one row without a `row_id`.

    Args:
        cuts: `CUT_COLUMNS` and `changes`, each once; any number a session.
        kept: what is known of the sessions' last kept tables: see `Weights`.
        rows: these tables.
        changes: what was applied since, with `change_columns`.
        anew: `SESSION` of the sessions (class `once`) with a late fill since:
            their tables and changes are what `seq_history.history_of` gives, or all their changes from the beginning.
    """
    cuts = cuts.sort_by([(name, "ascending") for name in (*SESSION, "position", "snapshot_at")])
    session, names = dictionary_codes(session_keys(cuts))
    starts = np.flatnonzero(np.diff(session, prepend=-1))
    counts = np.diff(np.append(starts, len(session)))
    rank = np.arange(len(session)) - np.repeat(starts, counts)
    first_in = _Shares(_first_cuts(cuts, session, names, changes), len(session))
    is_anew = pc.is_in(names, value_set=session_keys(anew)).to_numpy(zero_copy_only=False)
    rows = rows.select(rows_schema(columns).names).cast(rows_schema(columns))
    begun = rows.filter(is_of_sessions(rows, anew))
    weights, weighed, following = Weights(names, kept), cuts.select(["reason", "changes"]), starts.copy()
    for number in range(int(counts.max(initial=0))):
        here = np.flatnonzero(rank == number)
        here = here[weights.outweigh(weighed.take(pa.array(here)), session[here])]
        if not len(here):
            continue
        mine = session[here]
        # A session's cuts stand one behind the other: those since its last kept table have the changes since that.
        since = concatenate_ranges(following[mine], here + 1 - following[mine])
        fresh = is_anew[session[since]]
        present = names.take(pa.array(mine))
        nets = [
            net_changes(changes.take(first_in.of(since[~fresh])), columns),
            refolded(
                changes.take(first_in.of(since[fresh])), columns, begun.filter(pc.is_in(session_keys(begun), present))
            ),
        ]
        mine_rows = pc.is_in(session_keys(rows), value_set=present)
        made = advanced(rows.filter(mine_rows), pa.concat_tables(nets), columns)
        heads = cuts.select(CUT_COLUMNS).take(pa.array(here))
        yield _snapshot_rows(heads, made, columns)
        weights.keep(mine, _rows_of_each(made, present))
        following[mine] = np.where(is_anew[mine], following[mine], here + 1)
        unfinished = names.take(pa.array(np.flatnonzero(counts > number + 1)))
        rows = pa.concat_tables([rows.filter(pc.invert(mine_rows)), made])
        rows = rows.filter(pc.is_in(session_keys(rows), value_set=unfinished))


def _snapshot_rows(heads: pa.Table, rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Rows behind the cuts of their sessions, which are one a session; of an empty table, the cut alone."""
    schema = snapshots_schema(columns)
    head = heads.take(pc.index_in(session_keys(rows), value_set=session_keys(heads)))
    body = rows.select(rows.column_names[len(SESSION) :])
    whole = pa.table([*head.columns, *body.columns], names=[*head.column_names, *body.column_names]).cast(schema)
    empty = heads.filter(pc.invert(is_of_sessions(heads, rows))).cast(pa.schema(list(schema)[: len(CUT_COLUMNS)]))
    return pa.concat_tables([whole, empty], promote_options="default")


def sizes(made: pa.Table) -> pa.Table:
    """`CUT_COLUMNS` and `rows` of the tables that `snapshots` gives."""
    counted = made.group_by(list(CUT_COLUMNS)).aggregate([("row_id", "count")])
    return counted.rename_columns({"row_id_count": "rows"})


def _rows_of_each(rows: pa.Table, sessions: pa.Array) -> Int64s:
    """How many rows each session has, in the order of their keys."""
    place = pc.index_in(session_keys(rows), value_set=sessions).to_numpy()
    return np.bincount(place, minlength=len(sessions))


def last_cuts(cuts: pa.Table) -> pa.Table:
    """The last cut of each session; of those that hold the same, the latest in time."""
    order = [("position", "descending"), ("snapshot_at", "descending"), ("reason", "descending")]
    ordered = cuts.sort_by(order).combine_chunks()
    places = pa.array(range(ordered.num_rows), pa.int64())
    first = ordered.append_column(_PLACE, places).group_by(list(SESSION)).aggregate([(_PLACE, "min")])
    return ordered.take(first[f"{_PLACE}_min"])


class _Shares:
    """Which changes each cut is the first to hold."""

    def __init__(self, cut: Int64s, cuts: int) -> None:
        self._order = np.argsort(cut, kind="stable")
        self._bounds = np.searchsorted(cut[self._order], np.arange(cuts + 1))

    def of(self, cuts: Int64s) -> pa.Array:
        """Indices of the changes of these cuts."""
        lengths = self._bounds[cuts + 1] - self._bounds[cuts]
        return pa.array(self._order[concatenate_ranges(self._bounds[cuts], lengths)])


def _first_cuts(cuts: pa.Table, session: Int64s, names: pa.Array, changes: pa.Table) -> Int64s:
    """For each change the first cut of its session that holds it; -1 where there is none."""
    owner = pc.fill_null(pc.index_in(session_keys(changes), value_set=names), -1).to_numpy().astype(np.int64)
    position, at = changes["_position"].to_numpy(), cuts["position"].to_numpy()
    distinct, order = np.unique(np.concatenate([at, position]), return_inverse=True)
    order = order.reshape(-1)
    keys = session * len(distinct) + order[: len(at)]
    found = np.searchsorted(keys, owner * len(distinct) + order[len(at) :])
    inside = (owner >= 0) & (found < len(keys))
    inside[inside] = session[found[inside]] == owner[inside]
    return np.where(inside, found, -1)


@dataclass(frozen=True)
class SnapshotTables:
    """A `mapInArrow` function over cuts, rows and changes, told apart by `KIND`; all of a session in one partition.

    A cut has `WEIGHTS` (see `Weights`), as `internal` names, and whether its session is folded `ANEW`.
    """

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives the partition's snapshots."""
        taken = list(batches)
        if not taken:
            return
        whole = pa.Table.from_batches(taken)
        kind = {name: whole.filter(pc.equal(whole[KIND], name)) for name in ("cut", "row", "change")}
        cuts = kind["cut"]
        weighed = cuts.select([*CUT_COLUMNS, *map(internal, WEIGHTS)]).rename_columns([*CUT_COLUMNS, *WEIGHTS])
        anew = cuts.filter(cuts[ANEW])
        for table in snapshots(weighed, weighed, kind["row"], kind["change"], anew, self.columns):
            yield from table.to_batches()
