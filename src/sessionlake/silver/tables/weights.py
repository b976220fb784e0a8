"""Decides which whole tables are stored: those at a session's end and expiry, and some of those at an interval.

A table that is cut at an interval is stored if more changes were applied since the session's last stored table than
that table has rows. This limits both costs. All stored tables of a session together have fewer than two rows per
change: a table has at most the rows of the one before, plus one per change since. And any earlier table can be computed
from one stored table and few changes. Those are at most as many as that table has rows, and those of one interval. The
decision depends only on the cuts and the sizes of stored tables.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import SESSION, dictionary_codes, session_keys
from sessionlake.protocol.types import Bools, Int64s


class Weights:
    """The sizes of the sessions' last stored tables, and the number of changes since.

    Args:
        sessions: Session keys; below, a session is its index here.
        kept: Columns `SESSION`, `rows` and `since` of the sessions that have a stored table. `rows` is null if an older
            version stored it without counting: then, as for sessions without a table, any change outweighs it.

    Attributes:
        rows: Number of rows in each session's last stored table.
        since: Number of changes applied since.
    """

    def __init__(self, sessions: pa.Array, kept: pa.Table) -> None:
        place = pc.index_in(sessions, value_set=session_keys(kept))
        self.rows, self.since = (_numbers(kept[name].take(place)) for name in ("rows", "since"))

    def advance(self, cuts: pa.Table, session: Int64s) -> Bools:
        """Moves to the next cuts, at most one per session; returns True where the table is to be stored."""
        self.since[session] += _numbers(cuts["changes"])
        return _always(cuts) | (self.since[session] > self.rows[session])

    def keep(self, session: Int64s, rows: Int64s) -> None:
        """Notes the sizes of tables that are stored at the current cuts."""
        self.rows[session], self.since[session] = rows, 0


def cuts_of_kept_sessions(cuts: pa.Table, kept: pa.Table) -> pa.Array:
    """Returns True for the cuts of sessions that get a table stored at one or more of these cuts.

    Args:
        cuts: The cuts; a session can have several.
        kept: The last stored tables, as for `Weights`.
    """
    session, names = dictionary_codes(session_keys(cuts))
    weights = Weights(names, kept)
    np.add.at(weights.since, session, _numbers(cuts["changes"]))
    found = weights.since > weights.rows
    found[session[_always(cuts)]] = True
    return pa.array(found[session])


def weights_input(last: pa.Table, passed: pa.Table) -> pa.Table:
    """Returns the input `kept` of `Weights`.

    Args:
        last: Each session's last cut whose table is stored, with `rows`.
        passed: Columns `SESSION`, `position` and `changes` of the cuts since; other cuts are ignored.
    """
    place = pc.index_in(session_keys(passed), value_set=session_keys(last))
    later = pc.fill_null(pc.greater(passed["position"], last["position"].take(place)), pa.scalar(value=False))
    since = np.zeros(last.num_rows, np.int64)
    np.add.at(since, _numbers(place.filter(later)), _numbers(passed["changes"].filter(later)))
    return last.select([*SESSION, "rows"]).append_column("since", pa.array(since))


def _always(cuts: pa.Table) -> Bools:
    """Returns True for cuts whose table is always stored: not at an interval, or without a count of changes."""
    always = pc.or_(pc.not_equal(cuts["reason"], "interval"), pc.is_null(cuts["changes"]))
    found: Bools = always.to_numpy().astype(np.bool_)
    return found


def _numbers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
