"""Finds the stored tables from which a session's table in seq order can be computed without all its changes.

This is for class `once`. A late fill takes effect before messages that were already applied. So a stored table that
contains such messages is no start. A cut is suitable if all changes applied after it have higher seqs than all that it
contains.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import (
    build_session_key_of_each_row,
    compute_running_maximum,
    convert_to_int64_array,
    encode_values_as_codes,
)
from sessionlake.protocol.types import Int64s


def select_resumable_cuts(cuts: pa.Table, changes: pa.Table) -> pa.Table:
    """Returns the cuts from whose tables a table in seq order can be computed: all changes after them have higher seqs.

    Args:
        cuts: Cuts with `position`, `life` and `next_seq`.
        changes: The changes of the cuts' sessions, at least all that were applied after each session's first cut.
    """
    owner, names = encode_values_as_codes(build_session_key_of_each_row(cuts))
    changes = changes.filter(pc.is_in(build_session_key_of_each_row(changes), value_set=names))
    changed = pc.index_in(build_session_key_of_each_row(changes), value_set=names).to_numpy().astype(np.int64)
    count = len(changed)
    place = _rank_value_pairs(
        np.append(changed, owner),
        np.append(convert_to_int64_array(changes["_position"]), convert_to_int64_array(cuts["position"])),
    )
    seq = _rank_value_pairs(
        np.append(convert_to_int64_array(changes["_life"]), convert_to_int64_array(cuts["life"])),
        np.append(convert_to_int64_array(changes["_seq"]), convert_to_int64_array(cuts["next_seq"])),
    )
    order = np.argsort(place[:count], kind="stable")
    whose = changed[order]
    # For each change, the lowest seq among this change and all later ones of its session.
    lowest = -compute_running_maximum(-seq[order][::-1], whose.max(initial=0) - whose[::-1])[::-1]
    following = np.searchsorted(place[order], place[count:], side="right")
    fits = following == count
    at = following[~fits]
    fits[~fits] = (whose[at] != owner[~fits]) | (lowest[at] >= seq[count:][~fits])
    return cuts.filter(pa.array(fits))


def select_latest_cuts_of_each_session(cuts: pa.Table, count: int) -> pa.Table:
    """Returns the last `count` cuts of each session, by position."""
    session, _ = encode_values_as_codes(build_session_key_of_each_row(cuts))
    order = np.lexsort((-convert_to_int64_array(cuts["position"]), session))
    starts = np.flatnonzero(np.diff(session[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return cuts.take(pa.array(order[rank < count]))


def _rank_value_pairs(first_values: Int64s, second_values: Int64s) -> Int64s:
    """Returns the rank of each pair `(first, second)` in ascending order; equal pairs have the same rank."""
    order = np.lexsort((second_values, first_values))
    steps = (np.diff(first_values[order], prepend=0) != 0) | (np.diff(second_values[order], prepend=0) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(steps)
    return ranks
