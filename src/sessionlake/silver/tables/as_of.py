"""A session's table as of a moment: which stored table to start from, and which changes were applied by then. Pure.

A moment is given in one of three ways:
- `ts`: stream time of the topic-partition in ms. The table contains everything applied until then.
- `offset`: an offset of the topic-partition. The table contains what was applied once the messages up to this offset
  had arrived. This includes held messages that they released, and expiries that their stream time caused.
- `seq`: a seq of the session's latest life. The table contains everything applied up to the last message with a seq of
  at most this one. With late fills (class `once`), it is the fold in seq order of the messages up to this seq.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import convert_to_int64_array
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.silver.tables.net_changes import compute_net_changes, replace_positions_by_seq_rank
from sessionlake.silver.tables.snapshots import apply_net_changes_to_session_tables


@dataclass(frozen=True)
class SessionHistory:
    """The facts about a session that, with its cuts and changes, decide its table as of a moment.

    Attributes:
        life: The first offset of the session's latest life.
        in_seq_order: True if the session ever had a late fill, so that its changes are ordered by seq (class `once`).
        has_seqs: False if messages may lack a seq (class `none`). Then its cuts have no seqs to compare with.
        reached: Returns True if stream time had reached a time (ms) at the offset of the moment.
    """

    life: int
    in_seq_order: bool
    has_seqs: bool
    reached: Callable[[int], bool]


@dataclass(frozen=True)
class SessionMoment:
    """A moment in a session's history, given by one of three values. The other two are None.

    Attributes:
        ts: A stream time, ms.
        offset: A Kafka offset in the session's topic-partition.
        seq: A seq of the session's messages.
    """

    ts: int | None = None
    offset: int | None = None
    seq: int | None = None

    @property
    def _required_seq(self) -> int:
        return -1 if self.seq is None else self.seq

    def select_cuts(self, cuts: pa.Table, history: SessionHistory) -> pa.Table:
        """Returns the cuts that contain nothing applied after the moment, the latest first.

        Args:
            cuts: The session's cuts whose tables are stored.
            history: The facts about the session.
        """
        at, reason = to_epoch_ms(cuts["snapshot_at"]), cuts["reason"].to_numpy(zero_copy_only=False)
        if self.ts is not None:
            # A cut at expiry has the time of the expiry, but its table is complete only when stream time is past it.
            fits = np.where(reason == "expiry", at < self.ts, at <= self.ts)
        elif self.offset is not None:
            by_message = _mark_non_null(cuts["offset"])
            fits = by_message & (convert_to_int64_array(cuts["offset"]) <= self.offset)
            fits |= ~by_message & (at < _find_first_time_not_passed(at[~by_message], history))
        else:
            following = convert_to_int64_array(cuts["next_seq"])
            fits = _mark_non_null(cuts["next_seq"]) & (following - 1 <= self._required_seq) & history.has_seqs
            fits &= (following < INT64_MAX) | (
                self._required_seq == INT64_MAX
            )  # the highest possible seq is its own successor
            fits = np.where(cuts["life"].to_numpy() == history.life, fits, history.has_seqs)
        return cuts.filter(pa.array(fits)).sort_by([("position", "descending"), ("snapshot_at", "descending")])

    def select_changes(self, changes: pa.Table, history: SessionHistory) -> pa.Table:
        """Returns the changes that were applied by the moment.

        Args:
            changes: All changes of the session since the cut to start from.
            history: The facts about the session.
        """
        if self.ts is not None:
            return changes.filter(pa.array(to_epoch_ms(changes["_applied_at"]) <= self.ts))
        if self.offset is not None:
            by, at = changes["_applied_by"], to_epoch_ms(changes["_applied_at"])
            known, position = _mark_non_null(by), changes["_position"].to_numpy()
            came = known & (convert_to_int64_array(by) <= self.offset)
            # Changes apply in order: what precedes an applied change was applied, what follows a missing one was not.
            last, first = position[came].max(initial=-1), position[known & ~came].min(initial=INT64_MAX)
            came |= ~known & (position < last)
            expired = ~known & (position >= last) & (position <= first)
            for time in np.unique(at[expired]).tolist():
                came |= expired & (at == time) & history.reached(time)
            return changes.filter(pa.array(came))
        seqs, position = changes["_seq"], changes["_position"].to_numpy()
        before = (changes["_life"].to_numpy() != history.life) | (
            _mark_non_null(seqs) & (convert_to_int64_array(seqs) <= self._required_seq)
        )
        if history.in_seq_order:
            return changes.filter(pa.array(before))
        return changes.filter(pa.array(position <= position[before].max(initial=-1)))


def _find_first_time_not_passed(times: Int64s, history: SessionHistory) -> int:
    """Returns the first of these times (ms) that stream time had not passed at the moment.

    If it had passed all of them, returns the highest int64.
    """
    ordered = np.unique(times).tolist()
    passed = bisect_left(ordered, True, key=lambda time: not history.reached(time + 1))
    return ordered[passed] if passed < len(ordered) else INT64_MAX


def to_epoch_ms(times: pa.ChunkedArray) -> Int64s:
    """Converts Arrow timestamps without nulls to integers: ms since 1970."""
    micros: Int64s = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return micros // 1000


def _mark_non_null(column: pa.ChunkedArray) -> Bools:
    """Returns a boolean for each value: True if it is not null."""
    found: Bools = pc.is_valid(column).to_numpy().astype(np.bool_)
    return found


def are_seqs_past_cut(cut: pa.Table, changes: pa.Table) -> bool:
    """Returns True if all changes have higher seqs than everything that a cut contains.

    Args:
        cut: The cut, as a table of one row.
        changes: The changes applied after the cut.
    """
    life, seq = changes["_life"].to_numpy(), convert_to_int64_array(changes["_seq"])
    first, following = cut["life"][0].as_py(), cut["next_seq"][0].as_py() or 0
    return not ((life < first) | ((life == first) & (seq < following))).any()


def compute_table(rows: pa.Table, changes: pa.Table, columns: tuple[Column, ...], history: SessionHistory) -> pa.Table:
    """Returns a session's table after some changes, computed from its table before them.

    Args:
        rows: The table before the changes, with the columns of `session_rows`.
        changes: The changes.
        columns: The declared columns.
        history: The facts about the session.
    """
    if not changes.num_rows:
        return rows
    ordered = replace_positions_by_seq_rank(changes) if history.in_seq_order else changes
    return apply_net_changes_to_session_tables(rows, compute_net_changes(ordered, columns), columns)
