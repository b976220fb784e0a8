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

from sessionlake.protocol.arrow import (
    SESSION,
    build_session_key_of_each_row,
    convert_to_int64_array,
    encode_values_as_codes,
)
from sessionlake.protocol.types import Bools, Int64s


class SnapshotStoragePolicy:
    """Decides which cuts get their tables stored.

    It compares the number of rows in each session's last stored table with that of the changes applied since.

    Args:
        sessions: Session keys. Methods name a session by its index in them.
        kept: Rows `topic, partition, session_id, rows, since` of the sessions that have a stored table. `rows` is null
            if an older version stored the table without counting. Then any change causes a new table, as for sessions
            without a table.

    Attributes:
        rows: The number of rows in each session's last stored table.
        since: The number of changes applied after each session's last stored table.
    """

    def __init__(self, sessions: pa.Array, kept: pa.Table) -> None:
        place = pc.index_in(sessions, value_set=build_session_key_of_each_row(kept))
        self.rows, self.since = (convert_to_int64_array(kept[name].take(place)) for name in ("rows", "since"))

    def choose_cuts_to_store(self, cuts: pa.Table, session_numbers: Int64s) -> Bools:
        """Adds the changes of the next cuts, and returns a boolean for each cut: True if its table is to be stored.

        Args:
            cuts: The next cuts, at most one per session.
            session_numbers: The index of each cut's session.
        """
        self.since[session_numbers] += convert_to_int64_array(cuts["changes"])
        return _is_always_stored(cuts) | (self.since[session_numbers] > self.rows[session_numbers])

    def record_stored_tables(self, session_numbers: Int64s, rows: Int64s) -> None:
        """Records that tables with these numbers of rows are now the last stored tables of these sessions."""
        self.rows[session_numbers], self.since[session_numbers] = rows, 0


def mark_cuts_of_storing_sessions(cuts: pa.Table, kept: pa.Table) -> pa.Array:
    """Returns a boolean for each cut: True if at least one of these cuts of its session gets its table stored.

    Args:
        cuts: The cuts; a session can have several.
        kept: For each session, the number of `rows` of its last stored table, and of changes `since`.
    """
    session, names = encode_values_as_codes(build_session_key_of_each_row(cuts))
    weights = SnapshotStoragePolicy(names, kept)
    np.add.at(weights.since, session, convert_to_int64_array(cuts["changes"]))
    found = weights.since > weights.rows
    found[session[_is_always_stored(cuts)]] = True
    return pa.array(found[session])


def build_snapshot_weights(last_cuts: pa.Table, cuts: pa.Table) -> pa.Table:
    """Returns, for each session, the number of `rows` of its last stored table, and of changes `since`.

    Args:
        last_cuts: Each session's last cut whose table is stored, with its number of `rows`.
        cuts: Cuts with the number of `changes` before each. Those that are not after the last stored one are ignored.
    """
    place = pc.index_in(build_session_key_of_each_row(cuts), value_set=build_session_key_of_each_row(last_cuts))
    later = pc.fill_null(pc.greater(cuts["position"], last_cuts["position"].take(place)), pa.scalar(value=False))
    since = np.zeros(last_cuts.num_rows, np.int64)
    np.add.at(since, convert_to_int64_array(place.filter(later)), convert_to_int64_array(cuts["changes"].filter(later)))
    return last_cuts.select([*SESSION, "rows"]).append_column("since", pa.array(since))


def _is_always_stored(cuts: pa.Table) -> Bools:
    """Returns a boolean for each cut: True if its table is stored in any case.

    That is so for a cut at an end or expiry, and for one without a count of changes, which an older version made.
    """
    always = pc.or_(pc.not_equal(cuts["reason"], "interval"), pc.is_null(cuts["changes"]))
    found: Bools = always.to_numpy().astype(np.bool_)
    return found
