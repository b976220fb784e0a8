"""From which cuts a session's table can be folded in seq order (class `once`), so that not all its changes are read.

A late fill, a message applied after some with higher seqs, has its effect in the middle of what was applied: the table
as it was is no base to go on from. A cut is one if all that was applied since has higher seqs than all that it holds.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import dictionary_codes, running_maximum, session_keys
from sessionlake.protocol.types import Int64s


def usable(cuts: pa.Table, changes: pa.Table) -> pa.Table:
    """The cuts from which a table can be folded on: all that was applied since has higher seqs.

    Args:
        cuts: with `position`, `life` and `next_seq`.
        changes: all of the cuts' sessions that were applied since the first cut, at least.
    """
    owner, names = dictionary_codes(session_keys(cuts))
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


def latest_cuts(cuts: pa.Table, count: int) -> pa.Table:
    """The last cuts of each session, up to so many."""
    session, _ = dictionary_codes(session_keys(cuts))
    order = np.lexsort((-_numbers(cuts["position"]), session))
    starts = np.flatnonzero(np.diff(session[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return cuts.take(pa.array(order[rank < count]))


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
