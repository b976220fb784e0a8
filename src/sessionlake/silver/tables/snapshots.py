"""Whole tables out of a table before and the changes since: a session's, or those of many sessions at many cuts.

Pure and columnar: the work grows with the changes and with the cuts of one session, not with the number of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import are_of, codes, one, ranges, session_keys
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Int64s
from sessionlake.silver.fold.schemas import TIMESTAMP
from sessionlake.silver.tables.net_changes import MARKS, net_changes, refolded

ROW_KEY = ("topic", "session_id", "row_id")
CUT_COLUMNS = ("topic", "session_id", "snapshot_at", "reason", "position")


def rows_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Rows of session tables: the columns of `session_rows`."""
    declared = [(column.name, column.arrow) for column in columns]
    texts = [(name, pa.string()) for name in ROW_KEY]
    return pa.schema([*texts, *declared, (RESCUED, pa.string()), *((name, pa.int64()) for name in MARKS)])


def snapshots_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Rows of `session_snapshots`."""
    cut = [pa.string(), pa.string(), TIMESTAMP, pa.string(), pa.int64()]
    return pa.schema([*zip(CUT_COLUMNS, cut, strict=True), *list(rows_schema(columns))[2:]])


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
    written = one(changed["_written"]).flatten().to_numpy(zero_copy_only=False).reshape(-1, len(columns))
    values = {
        column.name: pc.if_else(pa.array(written[:, i]), changed[column.name], before[column.name].take(place))
        for i, column in enumerate(columns)
    }
    schema = rows_schema(columns)
    new = pa.table([values.get(name, changed[name]) for name in schema.names], schema=schema)
    return pa.concat_tables([kept, new.filter(pc.invert(changed["_delete"]))])


def _row_keys(rows: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(session_keys(rows), one(rows["row_id"]), "\0")


def snapshots(
    cuts: pa.Table, rows: pa.Table, changes: pa.Table, anew: pa.Table, columns: tuple[Column, ...]
) -> Iterator[pa.Table]:
    """The tables at cuts, as rows of `session_snapshots`; a cut of an empty table has none.

    Args:
        cuts: columns `CUT_COLUMNS`, each once; any number a session.
        rows: the sessions' tables at their last cuts before.
        changes: what was applied since, with `change_columns`.
        anew: topic and id of the sessions (class `once`) with a late fill since:
            their tables and changes are what `seq_history.history_of` gives, or all their changes from the beginning.
    """
    cuts = cuts.sort_by([(name, "ascending") for name in ("topic", "session_id", "position", "snapshot_at")])
    session, names = codes(session_keys(cuts))
    starts = np.flatnonzero(np.diff(session, prepend=-1))
    rank = np.arange(len(session)) - np.repeat(starts, np.diff(np.append(starts, len(session))))
    first_in = _Shares(_first_cuts(cuts, session, names, changes), len(session))
    is_anew = pc.is_in(names, value_set=session_keys(anew)).to_numpy(zero_copy_only=False)[session]
    rows = rows.select(rows_schema(columns).names).cast(rows_schema(columns))
    begun = rows.filter(are_of(rows, anew))
    for number in range(int(rank.max(initial=-1)) + 1):
        here = np.flatnonzero(rank == number)
        usual, fresh = here[~is_anew[here]], here[is_anew[here]]
        # A session's cuts stand one behind the other: those up to this one have the changes that it holds.
        until = (fresh[:, None] - np.arange(number + 1)).reshape(-1)
        nets = [
            net_changes(changes.take(first_in.of(usual)), columns),
            refolded(
                changes.take(first_in.of(until)), columns, begun.filter(are_of(begun, cuts.take(pa.array(fresh))))
            ),
        ]
        present = names.take(pa.array(session[here]))
        rows = advanced(rows.filter(pc.is_in(session_keys(rows), value_set=present)), pa.concat_tables(nets), columns)
        heads = cuts.select(CUT_COLUMNS).take(pa.array(here)).take(pc.index_in(session_keys(rows), value_set=present))
        body = rows.select(rows.column_names[2:])
        whole = pa.table([*heads.columns, *body.columns], names=[*heads.column_names, *body.column_names])
        yield whole.cast(snapshots_schema(columns))


def last_cuts(cuts: pa.Table) -> pa.Table:
    """The last cut of each session; of those that hold the same, the latest in time."""
    order = [("position", "descending"), ("snapshot_at", "descending"), ("reason", "descending")]
    ordered = cuts.sort_by(order).combine_chunks()
    places = pa.array(range(ordered.num_rows), pa.int64())
    first = ordered.append_column("_place", places).group_by(["topic", "session_id"]).aggregate([("_place", "min")])
    return ordered.take(first["_place_min"])


class _Shares:
    """Which changes each cut is the first to hold."""

    def __init__(self, cut: Int64s, cuts: int) -> None:
        self._order = np.argsort(cut, kind="stable")
        self._bounds = np.searchsorted(cut[self._order], np.arange(cuts + 1))

    def of(self, cuts: Int64s) -> pa.Array:
        """Indices of the changes of these cuts."""
        lengths = self._bounds[cuts + 1] - self._bounds[cuts]
        return pa.array(self._order[ranges(self._bounds[cuts], lengths)])


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
    """A `mapInArrow` function over cuts, rows and changes, told apart by `_kind`; all of a session in one partition.

    A cut of a session that is folded anew has `_life`.
    """

    columns: tuple[Column, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives the partition's snapshots."""
        taken = list(batches)
        if not taken:
            return
        whole = pa.Table.from_batches(taken)
        kind = {name: whole.filter(pc.equal(whole["_kind"], name)) for name in ("cut", "row", "change")}
        cuts = kind["cut"].append_column("position", kind["cut"]["_position"])
        anew = cuts.filter(pc.is_valid(cuts["_life"]))
        for table in snapshots(cuts, kind["row"], kind["change"], anew, self.columns):
            yield from table.to_batches()
