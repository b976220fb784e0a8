"""Where whole tables are cut: at the end of a session, at its expiry, and at multiples of the snapshot interval.

All in stream time, and a function of the session's messages and its topic-partition's clock alone:

- `interval`: a table that changed is cut at the next multiple of the interval, with all that was applied before it. A
  quiet table is not cut again.
- `end`: when the `end` is applied. That is the cut of what changed before, too.
- `expiry`: when stream time passes last message + session timeout, with what that releases, if the session has not
  ended or has changed since its last cut. A message that takes the expiry back does not take back the cut.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sessionlake.integrity.cursor import NEVER, NO_TIME, Cursors, Status
from sessionlake.protocol.message import MessageType

NO_OFFSET = -1
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Cuts = npt.NDArray[np.void]


class CutReason(IntEnum):
    """Why a table is cut. Numbers are places in `sent.py`'s list of names."""

    INTERVAL = 0
    END = 1
    EXPIRY = 2


CUT = np.dtype(
    [
        ("session", np.int64),
        ("at", np.int64),  # stream time, ms
        ("reason", np.int8),
        ("position", np.int64),  # it holds all that was applied up to here
        ("life", np.int64),
        ("last_seq", np.int64),  # highest applied in this life
        ("changed_at", np.int64),  # stream time of the first change since the cut before; `NEVER`: there is none
        ("offset", np.int64),  # of the session's last message then; `NO_OFFSET`: time led to it
    ]
)


T = TypeVar("T", int, Int64s)


def cut_after(now: T, interval: int) -> T:
    """The multiple of the interval at which what changes at `now` is cut: the first after it."""
    return (now // interval + 1) * interval


def cuts_due(changed_at: Int64s, interval: int) -> Int64s:
    """When tables that have not been cut since these times are; `NEVER` for those that have."""
    waits = changed_at != NEVER
    return np.where(waits, cut_after(np.where(waits, changed_at, 0), interval), NEVER)


def no_cuts(count: int = 0) -> Cuts:
    """An array to fill."""
    return np.zeros(count, CUT)


def changes_table(kind: npt.NDArray[np.int8]) -> Bools:
    """Which types of message may change a table."""
    return (kind == MessageType.SNAPSHOT) | (kind == MessageType.UPDATE)


def cuts_by_the_way(
    stream: tuple[Int64s, npt.NDArray[np.int8], Int64s, Int64s, Int64s], before: Cursors, interval: int
) -> tuple[Cuts, Int64s]:
    """The cuts of sessions all of whose messages are applied as they come, none after an expiry.

    Args:
        stream: of their messages, session after session: the session's place in `before`, type, stream time, offset
            and seq. Every session has one.
        before: the cursors before the batch.

    Returns:
        The cuts (`session` is the place in `before`), and each session's new `changed_at`.
    """
    owner, kind, now, offset, seq = stream
    bucket = now // interval
    starts = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(bucket) != 0)))
    last = np.append(starts[1:], len(owner)) - 1
    session = owner[starts]
    is_first = np.append(True, np.diff(session) != 0)
    is_last = np.append(is_first[1:], True)
    changed_at = np.minimum.reduceat(np.where(changes_table(kind), now, NEVER), starts)
    waits = cuts_due(before["changed_at"], interval)
    still = is_first & (waits[session] > now[starts])
    changed_at[still] = np.minimum(changed_at, before["changed_at"][session])[still]
    changed = changed_at != NEVER
    ended = is_last & (kind[last] == MessageType.END)
    highest = _highest_so_far(np.maximum.reduceat(seq, starts), is_first, before["last_seq"])
    here = ended | (changed & ~is_last)
    cuts = no_cuts(int(here.sum()))
    cuts["session"], cuts["life"] = session[here], _life(before, session, offset[starts], is_first)[here]
    cuts["at"] = np.where(ended, now[last], cut_after(now[starts], interval))[here]
    cuts["reason"] = np.where(ended, CutReason.END, CutReason.INTERVAL)[here]
    cuts["position"] = cuts["offset"] = offset[last][here]
    cuts["last_seq"], cuts["changed_at"] = highest[here], changed_at[here]
    earlier = _waiting(before, np.flatnonzero(waits <= now[starts][is_first]), interval)
    return np.concatenate([earlier, cuts]), np.where(ended, NEVER, changed_at)[is_last]


def cuts_by_time(cursors: Cursors, times: Int64s, timeouts: Int64s, interval: int) -> Cuts:
    """The cuts that stream time brings to sessions that hold nothing back; notes them in the cursors.

    Args:
        times: stream time of each session's topic-partition.
        timeouts: their session timeouts.

    Returns:
        The cuts; `session` is the cursor's place.
    """
    seen = cursors["last_kafka_ts"] != NO_TIME
    expiry = np.where(seen, cursors["last_kafka_ts"], 0) + timeouts
    over = seen & (expiry < times)
    at_interval = cuts_due(cursors["changed_at"], interval) <= np.where(over, expiry, times)
    cuts = _waiting(cursors, np.flatnonzero(at_interval), interval)
    cursors["changed_at"][at_interval] = NEVER
    at_expiry = over & (cursors["position"] > cursors["cut_position"])
    at_expiry &= (cursors["status"] != Status.ENDED) | (cursors["changed_at"] != NEVER)
    expired = _waiting(cursors, np.flatnonzero(at_expiry), interval)
    expired["at"], expired["reason"], expired["offset"] = expiry[at_expiry], CutReason.EXPIRY, NO_OFFSET
    cursors["changed_at"][at_expiry] = NEVER
    cursors["cut_position"][at_expiry] = cursors["position"][at_expiry]
    return np.concatenate([cuts, expired])


def _waiting(cursors: Cursors, places: Int64s, interval: int) -> Cuts:
    """The cuts at an interval that wait in these cursors."""
    cuts, found = no_cuts(len(places)), cursors[places]
    cuts["session"], cuts["at"] = places, cuts_due(found["changed_at"], interval)
    for name in ("position", "last_seq", "changed_at"):
        cuts[name] = found[name]
    cuts["life"], cuts["offset"] = found["first_offset"], found["last_offset"]
    return cuts


def _life(before: Cursors, session: Int64s, offset: Int64s, is_first: Bools) -> Int64s:
    """The offset that names each stretch's life: a new session's is its first message's."""
    known = before["first_offset"][session]
    return np.where(known == NO_TIME, offset[is_first][np.cumsum(is_first) - 1], known)


def _highest_so_far(values: Int64s, is_first: Bools, before: Int64s) -> Int64s:
    """Running maximum over the stretches of each session, and what was before."""
    number = np.cumsum(is_first) - 1
    distinct, rank = np.unique(values, return_inverse=True)
    running = np.maximum.accumulate(number * len(distinct) + rank.reshape(-1)) - number * len(distinct)
    return np.maximum(distinct[running], before[number])
