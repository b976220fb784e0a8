"""Decides where a session's whole table is cut: at its end, at its expiry, and at multiples of the snapshot interval.

A cut is a place in the session's history at which its whole table may be stored. Cuts depend only on stream time, which
means on the session's messages and the clock of its topic-partition:

- `interval`: a table that changed is cut at the next multiple of the interval. The cut contains everything applied
  before that time. A table that does not change is not cut again.
- `end`: the table is cut when the `end` is applied. This cut also contains the changes before the `end`.
- `expiry`: the table is cut when stream time passes last message + session timeout. The cut contains the messages that
  the expiry releases. It is left out if the session has ended and did not change since its last cut. A message that
  reverts the expiry does not revert the cut.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sessionlake.integrity.cursor import NEVER, NO_TIME, SessionCursors, SessionStatus
from sessionlake.protocol.arrow import compute_running_maximum
from sessionlake.protocol.message import MessageType
from sessionlake.protocol.types import Bools, Int8s, Int64s

NO_OFFSET = -1
Cuts = npt.NDArray[np.void]


class CutReason(IntEnum):
    """The reason why a table is cut. The integer values are indices into the list of names in `silver.fold.emit`."""

    INTERVAL = 0
    END = 1
    EXPIRY = 2


CUT_DTYPE = np.dtype(
    [
        ("session", np.int64),  # index of the session in the batch, or of its cursor
        ("at", np.int64),  # stream time of the cut, ms
        ("reason", np.int8),
        ("position", np.int64),  # the cut contains everything applied up to this position
        ("life", np.int64),  # first offset of the session's life
        ("last_seq", np.int64),  # highest seq applied in this life
        ("changed_at", np.int64),  # stream time of the first change since the last cut; `NEVER` if there is none
        ("offset", np.int64),  # of the session's last message before the cut; `NO_OFFSET` if time alone caused the cut
        ("changes", np.int64),  # changes applied since the last cut
    ]
)


T = TypeVar("T", int, Int64s)


def compute_next_cut_time(changed_at: T, interval: int) -> T:
    """Returns the stream time (ms) of the next cut: the first multiple of `interval` after `changed_at`."""
    return (changed_at // interval + 1) * interval


def compute_next_cut_times(changed_at: Int64s, interval: int) -> Int64s:
    """Returns the stream time (ms) of each table's next cut, given that of its first change; `NEVER` if it has none."""
    waits = changed_at != NEVER
    return np.where(waits, compute_next_cut_time(np.where(waits, changed_at, 0), interval), NEVER)


def create_zeroed_cuts(count: int = 0) -> Cuts:
    """Returns an array of `count` cuts with zeros, for the caller to fill in."""
    return np.zeros(count, CUT_DTYPE)


def mark_table_changing_messages(message_types: Int8s) -> Bools:
    """Returns a boolean for each message: True if its type can change a table (a snapshot or an update)."""
    return (message_types == MessageType.SNAPSHOT) | (message_types == MessageType.UPDATE)


class ArrivedMessages(NamedTuple):
    """The messages that arrived in a batch, ordered by session and then by arrival.

    Attributes:
        session: Index of the session's cursor. Every cursor must have at least one message.
        now: Stream time at arrival, ms.
        offset: Kafka offset.
    """

    session: Int64s
    now: Int64s
    offset: Int64s


class AppliedMessages(NamedTuple):
    """The messages that were applied in a batch, ordered by session and then by application. None follows an `end`.

    Attributes:
        session: Index of the session's cursor.
        type: Message type, a `MessageType`.
        seq: Seq of the message.
        at: Stream time at application, ms.
        by: Offset of the message whose arrival had this one applied.
        position: Place in the session's order of application.
        changes: Number of table changes that the message makes.
    """

    session: Int64s
    type: Int8s
    seq: Int64s
    at: Int64s
    by: Int64s
    position: Int64s
    changes: Int64s


class ChangesSinceCut(NamedTuple):
    """What changed in each session's table since its last cut, in the order of the cursors.

    Attributes:
        changed_at: Stream time (ms) of the first change; `NEVER` if there is none.
        changes: Number of changes.
    """

    changed_at: Int64s
    changes: Int64s

    def write_to_cursors(self, cursors: SessionCursors, is_selected: Bools) -> None:
        """Writes `changed_at` and `changes` into those cursors for which `is_selected` is True, in the same order."""
        cursors["changed_at"][is_selected], cursors["changes"][is_selected] = self


def find_cuts_in_batch(
    arrived: ArrivedMessages, applied: AppliedMessages, cursors_before: SessionCursors, interval: int
) -> tuple[Cuts, ChangesSinceCut]:
    """Returns the cuts of tables that are due within a batch. No session may expire before one of its messages.

    Args:
        arrived: The messages that arrived.
        applied: The messages that were applied.
        cursors_before: The cursors of these sessions before the batch.
        interval: The snapshot interval, ms.

    Returns:
        The cuts, with the session's index in `cursors_before`; and what changed in each table since its last cut.
    """
    clock = _LastMessageOffsets(arrived, cursors_before)
    starts = np.flatnonzero(_mark_value_changes(applied.session) | _mark_value_changes(applied.at // interval))
    last = np.append(starts[1:], len(applied.session))[: len(starts)] - 1
    session, at = applied.session[starts], applied.at[starts]
    is_first = _mark_value_changes(session)
    is_last = np.append(is_first[1:], True)[: len(session)]
    change_times = np.where(mark_table_changing_messages(applied.type), applied.at, NEVER)
    changed_at = np.minimum.reduceat(change_times, starts) if len(at) else at
    waits = compute_next_cut_times(cursors_before["changed_at"], interval)
    goes_on = np.zeros(len(cursors_before), np.bool_)
    goes_on[session[is_first]] = waits[session[is_first]] > at[is_first]
    goes_on &= waits != NEVER
    still = is_first & goes_on[session]
    changed_at[still] = np.minimum(changed_at, cursors_before["changed_at"][session])[still]
    changes = np.add.reduceat(applied.changes, starts) if len(at) else at
    changes += np.where(still, cursors_before["changes"][session], 0)
    due, ended = compute_next_cut_times(changed_at, interval), is_last & (applied.type[last] == MessageType.END)
    here = ended | (due <= clock.now[session])
    cuts = create_zeroed_cuts(int(here.sum()))
    cuts["session"], cuts["life"] = session[here], clock.life[session[here]]
    cuts["at"] = np.where(ended, applied.at[last], due)[here]
    cuts["reason"] = np.where(ended, CutReason.END, CutReason.INTERVAL)[here]
    cuts["position"], cuts["changed_at"] = applied.position[last][here], changed_at[here]
    cuts["changes"] = changes[here]
    highest = np.maximum.reduceat(applied.seq, starts) if len(at) else at
    highest = compute_running_maximum(highest, np.cumsum(is_first))
    cuts["last_seq"] = np.maximum(highest, cursors_before["last_seq"][session])[here]
    cuts["offset"] = np.where(ended, applied.by[last], clock.find_last_offsets_before_stream_times(session, due))[here]
    earlier = np.flatnonzero((waits <= clock.now) & ~goes_on)
    waiting = _create_next_interval_cuts(cursors_before, earlier, interval)
    waiting["offset"] = clock.find_last_offsets_before_stream_times(earlier, waiting["at"])
    after = np.where(waits > clock.now, cursors_before["changed_at"], NEVER)
    after[session[is_last]] = np.where(here, NEVER, changed_at)[is_last]
    count = cursors_before["changes"].copy()
    count[session[is_last]] = changes[is_last]
    return np.concatenate([waiting, cuts]), ChangesSinceCut(after, np.where(after == NEVER, 0, count))


def _mark_value_changes(values: Int64s) -> Bools:
    """Returns a boolean for each value: True if it differs from the value before it."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


class _LastMessageOffsets:
    """Finds a session's last message before a stream time.

    Attributes:
        now: The stream time at each session's last message, ms.
        life: The first offset of each session's life. For a new session that is the offset of its first message.
    """

    def __init__(self, arrived: ArrivedMessages, before: SessionCursors) -> None:
        starts = np.flatnonzero(_mark_value_changes(arrived.session))
        self._arrived, self._last = arrived, before["last_offset"]
        self._times = np.unique(arrived.now)
        self._keys = arrived.session * (len(self._times) + 1) + np.searchsorted(self._times, arrived.now)
        self.now = arrived.now[np.append(starts[1:], len(arrived.now))[: len(starts)] - 1]
        known = before["first_offset"]
        self.life = np.where(known == NO_TIME, arrived.offset[starts], known)

    def find_last_offsets_before_stream_times(self, session: Int64s, stream_times: Int64s) -> Int64s:
        """Returns the offset of each session's last message whose Kafka time is before a limit.

        If there is none in the batch, it is the offset of the session's last message in earlier batches.

        Args:
            session: The indices of the sessions' cursors.
            stream_times: The limit for each of these sessions: a stream time in ms.
        """
        keys = session * (len(self._times) + 1) + np.searchsorted(self._times, stream_times)
        place = np.searchsorted(self._keys, keys) - 1
        found = (place >= 0) & (self._arrived.session[place] == session)
        return np.where(found, self._arrived.offset[place], self._last[session])


def create_cuts_due_by_time(cursors: SessionCursors, stream_times: Int64s, timeouts: Int64s, interval: int) -> Cuts:
    """Returns the cuts that are due by these stream times, and records them in the cursors.

    The sessions must have no messages held back.

    Args:
        cursors: The cursors, updated in place.
        stream_times: Stream time of each session's topic-partition, ms.
        timeouts: Session timeout of each session, ms.
        interval: The snapshot interval, ms.

    Returns:
        The cuts, whose `session` is the index of the cursor.
    """
    seen = cursors["last_kafka_ts"] != NO_TIME
    expiry = np.where(seen, cursors["last_kafka_ts"], 0) + timeouts
    over = seen & (expiry < stream_times)
    at_interval = compute_next_cut_times(cursors["changed_at"], interval) <= np.where(over, expiry, stream_times)
    cuts = _create_next_interval_cuts(cursors, np.flatnonzero(at_interval), interval)
    cursors["changed_at"][at_interval], cursors["changes"][at_interval] = NEVER, 0
    at_expiry = over & (cursors["position"] > cursors["cut_position"])
    at_expiry &= (cursors["status"] != SessionStatus.ENDED) | (cursors["changed_at"] != NEVER)
    expired = _create_next_interval_cuts(cursors, np.flatnonzero(at_expiry), interval)
    expired["at"], expired["reason"], expired["offset"] = expiry[at_expiry], CutReason.EXPIRY, NO_OFFSET
    cursors["changed_at"][at_expiry], cursors["changes"][at_expiry] = NEVER, 0
    cursors["cut_position"][at_expiry] = cursors["position"][at_expiry]
    return np.concatenate([cuts, expired])


def _create_next_interval_cuts(cursors: SessionCursors, cursor_indices: Int64s, interval: int) -> Cuts:
    """Returns the next interval cut of each cursor at these indices."""
    cuts, found = create_zeroed_cuts(len(cursor_indices)), cursors[cursor_indices]
    cuts["session"], cuts["at"] = cursor_indices, compute_next_cut_times(found["changed_at"], interval)
    for name in ("position", "last_seq", "changed_at", "changes"):
        cuts[name] = found[name]
    cuts["life"], cuts["offset"] = found["first_offset"], found["last_offset"]
    return cuts
