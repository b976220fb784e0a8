"""Which whole tables are kept: at a session's end and expiry, and where the changes since the last outweigh that.

A table that is cut at an interval is kept if more changes were applied since its session's last kept table than that
one has rows. So all those kept have together less than two rows for each change: a table has at most the rows of the
one before and one for each change since. And any table of a session's history is told from one table and no more
changes than that has rows, and one interval's. What decides are the cuts and the sizes of kept tables alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import SESSION, dictionary_codes, session_keys
from sessionlake.protocol.types import Bools, Int64s


class Weights:
    """The sizes of sessions' last kept tables, and how many changes were applied since.

    Args:
        sessions: keys; each is known here by its place.
        kept: `SESSION`, `rows` and `since` of those that had a table kept. One kept by a version that did not
            count its rows has null: the changes since outweigh it, as they do for a session that has none.

    Attributes:
        rows: of each session's last kept table.
        since: changes applied after that.
    """

    def __init__(self, sessions: pa.Array, kept: pa.Table) -> None:
        place = pc.index_in(sessions, value_set=session_keys(kept))
        self.rows, self.since = (_numbers(kept[name].take(place)) for name in ("rows", "since"))

    def outweigh(self, cuts: pa.Table, session: Int64s) -> Bools:
        """Goes on to the next cuts (`reason, changes`), at most one a session; says whose tables are to be kept."""
        self.since[session] += _numbers(cuts["changes"])
        return _always(cuts) | (self.since[session] > self.rows[session])

    def keep(self, session: Int64s, rows: Int64s) -> None:
        """Notes the sizes of tables that were kept there."""
        self.rows[session], self.since[session] = rows, 0


def of_kept(cuts: pa.Table, kept: pa.Table) -> pa.Array:
    """Which of some cuts are of sessions that have a table kept at one of these.

    Args:
        cuts: any number a session.
        kept: see `Weights`.
    """
    session, names = dictionary_codes(session_keys(cuts))
    weights = Weights(names, kept)
    np.add.at(weights.since, session, _numbers(cuts["changes"]))
    found = weights.since > weights.rows
    found[session[_always(cuts)]] = True
    return pa.array(found[session])


def since_kept(last: pa.Table, passed: pa.Table) -> pa.Table:
    """What `Weights` begins from.

    Args:
        last: each session's last cut of which the table was kept, with `rows`.
        passed: `SESSION`, `position` and `changes` of cuts since then, and maybe of others.
    """
    place = pc.index_in(session_keys(passed), value_set=session_keys(last))
    later = pc.fill_null(pc.greater(passed["position"], last["position"].take(place)), pa.scalar(value=False))
    since = np.zeros(last.num_rows, np.int64)
    np.add.at(since, _numbers(place.filter(later)), _numbers(passed["changes"].filter(later)))
    return last.select([*SESSION, "rows"]).append_column("since", pa.array(since))


def _always(cuts: pa.Table) -> Bools:
    """Cuts of which the table is kept whatever it weighs. Those of a version that did not count changes are, too."""
    always = pc.or_(pc.not_equal(cuts["reason"], "interval"), pc.is_null(cuts["changes"]))
    found: Bools = always.to_numpy().astype(np.bool_)
    return found


def _numbers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    found: Int64s = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
