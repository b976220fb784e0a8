"""A session's table as of a moment: which snapshot to begin from, and which changes had been applied by then. Pure.

A moment is given in one of three ways:

- `ts`: stream time of the topic-partition (ms), which is what its Kafka timestamps have come to. All that was applied
  until then.
- `offset`: after the messages of the topic-partition up to this offset had come, with what their arrival released and
  what the time that they brought let expire.
- `seq`: after the last message with a seq of at most this had been applied, in the session's latest life. Where newer
  messages were applied before older ones (class `once`) the table of a moment is in seq order, and so is this: the
  fold of the messages up to this seq.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.silver.tables.net_changes import in_seq_order, net_changes
from sessionlake.silver.tables.snapshots import advanced


@dataclass(frozen=True)
class SessionHistory:
    """What must be known of a session to tell its table as of a moment.

    Attributes:
        life: the offset that names its latest life.
        in_seq_order: whether it ever had a late fill, so that its changes are told by seq (class `once`).
        has_seqs: False if messages may lack a seq (class `none`): its cuts then say nothing about seqs.
        reached: whether stream time had come to this (ms) when the offset asked for had.
    """

    life: int
    in_seq_order: bool
    has_seqs: bool
    reached: Callable[[int], bool]


@dataclass(frozen=True)
class AsOf:
    """The moment of a session's history that is asked for, given as exactly one of three.

    Attributes:
        ts: stream time, ms.
        offset: Kafka offset in the session's topic-partition.
        seq: of the session's own messages.
    """

    ts: int | None = None
    offset: int | None = None
    seq: int | None = None

    @property
    def _seq(self) -> int:
        return -1 if self.seq is None else self.seq

    def cuts_before(self, cuts: pa.Table, history: SessionHistory) -> pa.Table:
        """The cuts that hold nothing applied after the moment, the nearest first."""
        at, reason = milliseconds(cuts["snapshot_at"]), cuts["reason"].to_numpy(zero_copy_only=False)
        if self.ts is not None:
            # Expiry is cut at its time, but stream time must be past that for it to be.
            fits = np.where(reason == "expiry", at < self.ts, at <= self.ts)
        elif self.offset is not None:
            by_message = _known(cuts["offset"])
            fits = by_message & (_numbers(cuts["offset"]) <= self.offset)
            fits |= ~by_message & (at < _end_of_reached(at[~by_message], history))
        else:
            following = _numbers(cuts["next_seq"])
            fits = _known(cuts["next_seq"]) & (following - 1 <= self._seq) & history.has_seqs
            fits &= (following < INT64_MAX) | (self._seq == INT64_MAX)  # the last possible seq is its own successor
            fits = np.where(cuts["life"].to_numpy() == history.life, fits, history.has_seqs)
        return cuts.filter(pa.array(fits)).sort_by([("position", "descending"), ("snapshot_at", "descending")])

    def seen(self, changes: pa.Table, history: SessionHistory) -> pa.Table:
        """Those of the changes since a cut that had been applied by the moment."""
        if self.ts is not None:
            return changes.filter(pa.array(milliseconds(changes["_applied_at"]) <= self.ts))
        if self.offset is not None:
            by, at = changes["_applied_by"], milliseconds(changes["_applied_at"])
            known, position = _known(by), changes["_position"].to_numpy()
            came = known & (_numbers(by) <= self.offset)
            # What comes before something that had come, had come; what comes behind something that had not, had not.
            last, first = position[came].max(initial=-1), position[known & ~came].min(initial=INT64_MAX)
            came |= ~known & (position < last)
            expired = ~known & (position >= last) & (position <= first)
            for time in np.unique(at[expired]).tolist():
                came |= expired & (at == time) & history.reached(time)
            return changes.filter(pa.array(came))
        seqs, position = changes["_seq"], changes["_position"].to_numpy()
        before = (changes["_life"].to_numpy() != history.life) | (_known(seqs) & (_numbers(seqs) <= self._seq))
        if history.in_seq_order:
            return changes.filter(pa.array(before))
        return changes.filter(pa.array(position <= position[before].max(initial=-1)))


def _end_of_reached(times: Int64s, history: SessionHistory) -> int:
    """The first of the times that stream time had not passed; one behind all of them if it had."""
    ordered = np.unique(times).tolist()
    passed = bisect_left(ordered, True, key=lambda time: not history.reached(time + 1))
    return ordered[passed] if passed < len(ordered) else INT64_MAX


def milliseconds(times: pa.ChunkedArray) -> Int64s:
    """Timestamps as ms since the epoch, none of them null."""
    micros: Int64s = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return micros // 1000


def _known(column: pa.ChunkedArray) -> Bools:
    found: Bools = pc.is_valid(column).to_numpy().astype(np.bool_)
    return found


def _numbers(column: pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(column, 0).to_numpy()
    return found


def can_follow(base: pa.Table, changes: pa.Table) -> bool:
    """Whether changes come after a cut (one row) in seq order as well."""
    life, seq = changes["_life"].to_numpy(), _numbers(changes["_seq"])
    first, following = base["life"][0].as_py(), base["next_seq"][0].as_py() or 0
    return not ((life < first) | ((life == first) & (seq < following))).any()


def table_after(rows: pa.Table, changes: pa.Table, columns: tuple[Column, ...], history: SessionHistory) -> pa.Table:
    """A session's table: the one before, and the changes since."""
    if not changes.num_rows:
        return rows
    ordered = in_seq_order(changes) if history.in_seq_order else changes
    return advanced(rows, net_changes(ordered, columns), columns)
