"""Whole tables, cut at a session's end, at its expiry, and at multiples of the snapshot interval, in stream time.

Not every table that is cut is kept. One cut at an interval is if, since a table of its session was kept last, more
changes were applied than that one had rows; at an end and at expiry it always is.

Where the protocol leaves a choice, these hold:

- A table that changed is cut at the next multiple of the interval, with all that was applied before. A table that has
  not changed since its last cut is not cut at an interval. Only a snapshot or an update changes a table.
- Expiry is cut when stream time passes it, even if a message takes it back afterwards, and with what it releases;
  unless the session has ended and not changed since, or nothing was applied since its last expiry was cut.
- What is released by expiry counts as applied one millisecond after it: the first moment that is past it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sessionlake_lab.truth.model import Row, Tables
from sessionlake_lab.truth.outcomes import PartitionState
from sessionlake_lab.truth.session import ENDED, Cause, Session, fold
from sessionlake_lab.truth.verdict import TopicRules

Release = Callable[[TopicRules, Session, Cause], None]


class Snapshots:
    """Cuts tables as time passes.

    Args:
        release: judges all that a session holds back.
        keep: False forgets what is cut.
    """

    def __init__(self, tables: Tables, release: Release, *, keep: bool) -> None:
        self._tables, self._release, self._keep = tables, release, keep
        self._wakes = 0

    def pass_time(self, partition: PartitionState, terms: TopicRules) -> None:
        """Looks after the sessions whose time has come."""
        while partition.wakes and partition.wakes[0][0] <= partition.stream_time:
            time, _, session = heapq.heappop(partition.wakes)
            if time == session.wake:
                session.wake = None
            self._look_after(partition, terms, session)

    def after(self, partition: PartitionState, terms: TopicRules, session: Session) -> None:
        """Takes note of what a message has just done."""
        expiry = session.expiry(terms.rules.session_timeout_ms)
        if expiry < partition.stream_time:  # by its own, old timestamp
            last = session.life.last_offset
            self._expire(terms, session, partition.stream_time, Cause(last, partition.stream_time, last))
        self.wake_for(partition, terms, session)

    def _look_after(self, partition: PartitionState, terms: TopicRules, session: Session) -> None:
        expiry = session.expiry(terms.rules.session_timeout_ms)
        due = session.cut_due(terms.rules.snapshot_interval_ms)
        if due is not None and due <= min(expiry, partition.stream_time):
            self.cut(terms, session, "interval", due, session.life.last_offset)
        if expiry < partition.stream_time:
            self._expire(terms, session, expiry, Cause(session.life.last_offset, expiry + 1, None))
        else:
            self.wake_for(partition, terms, session)

    def wake_for(self, partition: PartitionState, terms: TopicRules, session: Session) -> None:
        """Sets when to look after the session next."""
        expiry, due = session.expiry(terms.rules.session_timeout_ms), session.cut_due(terms.rules.snapshot_interval_ms)
        time = expiry + 1 if due is None else min(expiry + 1, due)
        if session.wake is None or time < session.wake:
            self._wakes += 1
            session.wake = time
            heapq.heappush(partition.wakes, (time, self._wakes, session))

    def _expire(self, terms: TopicRules, session: Session, at: int, cause: Cause) -> None:
        self._release(terms, session, cause)
        settled = session.life.status == ENDED and session.changed_at is None
        if session.position > session.expired_at and not settled:
            self.cut(terms, session, "expiry", at, None)
            session.expired_at = session.position

    def cut(self, terms: TopicRules, session: Session, reason: str, at: int, offset: int | None) -> None:
        """Notes that the session's table is cut, and writes it down as it is, if it is worth it."""
        found = {
            "topic": session.topic,
            "session_id": session.session_id,
            "partition": session.partition,
            "snapshot_at": at,
            "reason": reason,
            "changed_at": session.changed_at,
            "position": session.position,
            "life": session.life.first_offset,
            "next_seq": session.life.next_seq,
            "offset": offset,
            "changes": session.fresh,
        }
        session.changed_at, session.fresh = None, 0
        if not self._keep:
            return
        self._tables.session_cuts.append(found)
        if reason != "interval" or session.unkept > session.kept:
            rows = table_of(session, terms)
            self._tables.session_snapshots.append(found | {"rows": rows})
            session.unkept, session.kept = 0, len(rows)


def table_of(session: Session, terms: TopicRules) -> dict[str, Row]:
    """The session's table, now."""
    if not session.log:
        return dict(session.rows)
    rows = dict(session.rows)
    for _, _, epoch, said in sorted(session.log, key=lambda entry: entry[:2]):
        fold(rows, said, epoch, terms.all_null)
    return rows
