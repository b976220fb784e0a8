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
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sessionlake.integrity.cursor import NEVER, NO_TIME, Cursors, Status
from sessionlake.protocol.arrow import running_maximum
from sessionlake.protocol.message import MessageType
from sessionlake.protocol.types import Bools, Int8s, Int64s

NO_OFFSET = -1
Cuts = npt.NDArray[np.void]


class CutReason(IntEnum):
    """Why a table is cut. Numbers are places in the list of names in `silver.fold.emit`."""

    INTERVAL = 0
    END = 1
    EXPIRY = 2


CUT_DTYPE = np.dtype(
    [
        ("session", np.int64),
        ("at", np.int64),  # stream time, ms
        ("reason", np.int8),
        ("position", np.int64),  # it holds all that was applied up to here
        ("life", np.int64),
        ("last_seq", np.int64),  # highest applied in this life
        ("changed_at", np.int64),  # stream time of the first change since the cut before; `NEVER`: there is none
        ("offset", np.int64),  # of the session's last message then; `NO_OFFSET`: time led to it
        ("changes", np.int64),  # applied since the cut before
    ]
)


T = TypeVar("T", int, Int64s)


def cut_after(now: T, interval: int) -> T:
    """The multiple of the interval at which what changes at `now` is cut: the first after it."""
    return (now // interval + 1) * interval


def cuts_due(changed_at: Int64s, interval: int) -> Int64s:
    """Stream time (ms) of the next cut of tables, by when each first changed since its last; `NEVER` if it has not."""
    waits = changed_at != NEVER
    return np.where(waits, cut_after(np.where(waits, changed_at, 0), interval), NEVER)


def no_cuts(count: int = 0) -> Cuts:
    """An array of `count` cuts that are yet to be filled in."""
    return np.zeros(count, CUT_DTYPE)


def changes_table(kind: Int8s) -> Bools:
    """Which types of message may change a table."""
    return (kind == MessageType.SNAPSHOT) | (kind == MessageType.UPDATE)


class Arrived(NamedTuple):
    """Messages session after session, in the order in which they came.

    Attributes:
        session: place in the cursors; every one of these has a message.
        now: stream time then.
    """

    session: Int64s
    now: Int64s
    offset: Int64s


class Applied(NamedTuple):
    """Messages session after session, in the order in which they are applied; of no session after its end.

    Attributes:
        at: stream time then.
        by: offset of the message that led to it.
    """

    session: Int64s
    type: Int8s
    seq: Int64s
    at: Int64s
    by: Int64s
    position: Int64s
    changes: Int64s


class SinceCut(NamedTuple):
    """What has happened to tables since their last cuts, session by session: see the fields of `CURSOR`."""

    changed_at: Int64s
    changes: Int64s

    def note(self, cursors: Cursors, which: Bools) -> None:
        """Puts it into the cursors of these sessions."""
        cursors["changed_at"][which], cursors["changes"][which] = self


def cuts_by_the_way(arrived: Arrived, applied: Applied, before: Cursors, interval: int) -> tuple[Cuts, SinceCut]:
    """The cuts of sessions none of whose messages comes after an expiry.

    Args:
        before: the cursors before the batch.

    Returns:
        The cuts (`session` is the place in `before`), and what has happened since to each session's table.
    """
    clock = _LastOffsets(arrived, before)
    starts = np.flatnonzero(_changes(applied.session) | _changes(applied.at // interval))
    last = np.append(starts[1:], len(applied.session))[: len(starts)] - 1
    session, at = applied.session[starts], applied.at[starts]
    is_first, is_last = _changes(session), np.append(_changes(session)[1:], True)[: len(session)]
    changed_at = (
        np.minimum.reduceat(np.where(changes_table(applied.type), applied.at, NEVER), starts) if len(at) else at
    )
    waits = cuts_due(before["changed_at"], interval)
    goes_on = np.zeros(len(before), np.bool_)
    goes_on[session[is_first]] = waits[session[is_first]] > at[is_first]
    goes_on &= waits != NEVER
    still = is_first & goes_on[session]
    changed_at[still] = np.minimum(changed_at, before["changed_at"][session])[still]
    changes = np.add.reduceat(applied.changes, starts) if len(at) else at
    changes += np.where(still, before["changes"][session], 0)
    due, ended = cuts_due(changed_at, interval), is_last & (applied.type[last] == MessageType.END)
    here = ended | (due <= clock.now[session])
    cuts = no_cuts(int(here.sum()))
    cuts["session"], cuts["life"] = session[here], clock.life[session[here]]
    cuts["at"] = np.where(ended, applied.at[last], due)[here]
    cuts["reason"] = np.where(ended, CutReason.END, CutReason.INTERVAL)[here]
    cuts["position"], cuts["changed_at"] = applied.position[last][here], changed_at[here]
    cuts["changes"] = changes[here]
    highest = np.maximum.reduceat(applied.seq, starts) if len(at) else at
    cuts["last_seq"] = np.maximum(running_maximum(highest, np.cumsum(is_first)), before["last_seq"][session])[here]
    cuts["offset"] = np.where(ended, applied.by[last], clock.before(session, due))[here]
    earlier = np.flatnonzero((waits <= clock.now) & ~goes_on)
    waiting = _waiting(before, earlier, interval)
    waiting["offset"] = clock.before(earlier, waiting["at"])
    after = np.where(waits > clock.now, before["changed_at"], NEVER)
    after[session[is_last]] = np.where(here, NEVER, changed_at)[is_last]
    count = before["changes"].copy()
    count[session[is_last]] = changes[is_last]
    return np.concatenate([waiting, cuts]), SinceCut(after, np.where(after == NEVER, 0, count))


def _changes(values: Int64s) -> Bools:
    """True at each value that is another than the one before it."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


class _LastOffsets:
    """The sessions' messages by stream time.

    Attributes:
        now: stream time at each session's last message.
        life: the offset that names each session's life: a new session's is its first message's.
    """

    def __init__(self, arrived: Arrived, before: Cursors) -> None:
        starts = np.flatnonzero(_changes(arrived.session))
        self._arrived, self._last = arrived, before["last_offset"]
        self._times = np.unique(arrived.now)
        self._keys = arrived.session * (len(self._times) + 1) + np.searchsorted(self._times, arrived.now)
        self.now = arrived.now[np.append(starts[1:], len(arrived.now))[: len(starts)] - 1]
        known = before["first_offset"]
        self.life = np.where(known == NO_TIME, arrived.offset[starts], known)

    def before(self, session: Int64s, at: Int64s) -> Int64s:
        """Offset of the last message that each session had before this stream time."""
        keys = session * (len(self._times) + 1) + np.searchsorted(self._times, at)
        place = np.searchsorted(self._keys, keys) - 1
        found = (place >= 0) & (self._arrived.session[place] == session)
        return np.where(found, self._arrived.offset[place], self._last[session])


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
    cursors["changed_at"][at_interval], cursors["changes"][at_interval] = NEVER, 0
    at_expiry = over & (cursors["position"] > cursors["cut_position"])
    at_expiry &= (cursors["status"] != Status.ENDED) | (cursors["changed_at"] != NEVER)
    expired = _waiting(cursors, np.flatnonzero(at_expiry), interval)
    expired["at"], expired["reason"], expired["offset"] = expiry[at_expiry], CutReason.EXPIRY, NO_OFFSET
    cursors["changed_at"][at_expiry], cursors["changes"][at_expiry] = NEVER, 0
    cursors["cut_position"][at_expiry] = cursors["position"][at_expiry]
    return np.concatenate([cuts, expired])


def _waiting(cursors: Cursors, places: Int64s, interval: int) -> Cuts:
    """The cuts at an interval that wait in these cursors."""
    cuts, found = no_cuts(len(places)), cursors[places]
    cuts["session"], cuts["at"] = places, cuts_due(found["changed_at"], interval)
    for name in ("position", "last_seq", "changed_at", "changes"):
        cuts[name] = found[name]
    cuts["life"], cuts["offset"] = found["first_offset"], found["last_offset"]
    return cuts
