"""Decides which whole tables are stored: those at a session's end and expiry, and some of those at an interval.

A table that is cut at an interval is stored if more changes were applied since the session's last stored table than
that stored table has rows. This limits two costs:

- Storage: all stored tables of a session together have fewer than two rows per change. A table has at most the rows of
  the one before, plus one per change since.
- Reading: any earlier table can be computed from one stored table and few changes. There are at most as many changes as
  that table has rows, plus those of one interval.

The decision depends only on the cuts and the sizes of stored tables.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import SESSION, build_session_keys, encode_as_codes
from sessionlake.protocol.types import Bools, Int64s


class SnapshotWeights:
    """The number of rows in each session's last stored table, and of changes applied since it was stored.

    Args:
        sessions: Session keys; the methods name a session by its index in this array.
        kept: Columns `SESSION`, `rows` and `since` of the sessions that have a stored table. `rows` is null if an older
            version stored the table without counting. Then any change causes a new table, as for sessions without a
            table.

    Attributes:
        rows: Number of rows in each session's last stored table.
        since: Number of changes applied after each session's last stored table.
    """

    def __init__(self, sessions: pa.Array, kept: pa.Table) -> None:
        place = pc.index_in(sessions, value_set=build_session_keys(kept))
        self.rows, self.since = (_to_numbers(kept[name].take(place)) for name in ("rows", "since"))

    def find_cuts_to_store(self, cuts: pa.Table, session: Int64s) -> Bools:
        """Adds the changes of the next cuts, at most one cut per session.

        Returns:
            A boolean for each cut: True if its table is to be stored.
        """
        self.since[session] += _to_numbers(cuts["changes"])
        return _must_be_stored(cuts) | (self.since[session] > self.rows[session])

    def record_stored(self, session: Int64s, rows: Int64s) -> None:
        """Records the sizes of the tables that are stored at the current cuts, as the sessions' last stored tables."""
        self.rows[session], self.since[session] = rows, 0


def select_cuts_of_kept_sessions(cuts: pa.Table, kept: pa.Table) -> pa.Array:
    """Returns a boolean for each cut: True if its session gets a table stored at one or more of these cuts.

    Args:
        cuts: The cuts; a session can have several.
        kept: Sizes of the sessions' last stored tables and numbers of changes since, as the argument `kept` of
            `SnapshotWeights`.
    """
    session, names = encode_as_codes(build_session_keys(cuts))
    weights = SnapshotWeights(names, kept)
    np.add.at(weights.since, session, _to_numbers(cuts["changes"]))
    found = weights.since > weights.rows
    found[session[_must_be_stored(cuts)]] = True
    return pa.array(found[session])


def summarize_kept_tables(last: pa.Table, passed: pa.Table) -> pa.Table:
    """Returns the argument `kept` of `SnapshotWeights`: columns `SESSION`, `rows` and `since`.

    Args:
        last: Each session's last cut whose table is stored, with `rows`.
        passed: Columns `SESSION`, `position` and `changes` of cuts; those that are not after the last one are ignored.
    """
    place = pc.index_in(build_session_keys(passed), value_set=build_session_keys(last))
    later = pc.fill_null(pc.greater(passed["position"], last["position"].take(place)), pa.scalar(value=False))
    since = np.zeros(last.num_rows, np.int64)
    np.add.at(since, _to_numbers(place.filter(later)), _to_numbers(passed["changes"].filter(later)))
    return last.select([*SESSION, "rows"]).append_column("since", pa.array(since))


def _must_be_stored(cuts: pa.Table) -> Bools:
    """Returns a boolean for each cut: True if its table is always stored.

    This is so for a cut at an end or expiry, and for one without a count of changes, which an older version made.
    """
    always = pc.or_(pc.not_equal(cuts["reason"], "interval"), pc.is_null(cuts["changes"]))
    found: Bools = always.to_numpy().astype(np.bool_)
    return found


def _to_numbers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
