"""Records cuts: moments in a session's history at which its table may be stored as a snapshot.

There is a cut at a session's end, at its expiry, and at multiples of the snapshot interval of stream time.

At an end or expiry, the table is always stored as a snapshot. At an interval, it is stored if more changes were applied
since the session's last stored snapshot than that snapshot has rows.

Where the protocol leaves a choice, these rules apply:

- A changed table has a cut at the next multiple of the interval, with all changes applied before it. An unchanged table
  has none. Only a snapshot or an update changes a table.
- There is a cut at expiry when stream time passes it, after the messages that expiry releases. The cut stays even if a
  later message reverts the expiry. There is no cut if the session has ended and not changed since, or if nothing
  was applied since its last cut at expiry.
- Messages released by expiry count as applied one millisecond after it, the first moment past it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sessionlake_lab.truth.model import ExpectedTables, Row
from sessionlake_lab.truth.outcomes import TopicPartitionState
from sessionlake_lab.truth.session import ENDED, ApplyCause, SessionState, apply_message_to_table
from sessionlake_lab.truth.verdict import TopicRules

Release = Callable[[TopicRules, SessionState, ApplyCause], None]


class SnapshotCutter:
    """Records cuts of tables, and stores tables as snapshots, when stream time advances.

    Args:
        tables: The expected tables to write to.
        release: Function that judges all messages that a session holds back.
        keep: False to leave the tables of cuts and snapshots empty.
    """

    def __init__(self, tables: ExpectedTables, release: Release, *, keep: bool) -> None:
        self._tables, self._release, self._keep = tables, release, keep
        self._scheduled = 0

    def run_due_session_checks(self, partition: TopicPartitionState, topic_rules: TopicRules) -> None:
        """Checks the sessions whose next check is due: records their cuts, and expires them."""
        while partition.checks and partition.checks[0][0] <= partition.stream_time:
            time, _, session = heapq.heappop(partition.checks)
            if time == session.next_check:
                session.next_check = None
            self._check_session_for_cut_or_expiry(partition, topic_rules, session)

    def schedule_checks_after_message(
        self, partition: TopicPartitionState, topic_rules: TopicRules, session: SessionState
    ) -> None:
        """Schedules the session's next check after a message, and expires it at once if its timestamp is too old."""
        expiry = session.compute_expiry_time(topic_rules.rules.session_timeout_ms)
        if expiry < partition.stream_time:  # the message's own timestamp is old
            last, now = session.life.last_offset, partition.stream_time
            self._expire_session(topic_rules, session, now, ApplyCause(last, now, last))
        self.schedule_next_session_check(partition, topic_rules, session)

    def _check_session_for_cut_or_expiry(
        self, partition: TopicPartitionState, topic_rules: TopicRules, session: SessionState
    ) -> None:
        """Records a cut of the session if one is due, and expires it or schedules its next check."""
        expiry = session.compute_expiry_time(topic_rules.rules.session_timeout_ms)
        due = session.compute_next_cut_time(topic_rules.rules.snapshot_interval_ms)
        if due is not None and due <= min(expiry, partition.stream_time):
            self.record_table_cut(topic_rules, session, "interval", due, session.life.last_offset)
        if expiry < partition.stream_time:
            self._expire_session(topic_rules, session, expiry, ApplyCause(session.life.last_offset, expiry + 1, None))
        else:
            self.schedule_next_session_check(partition, topic_rules, session)

    def schedule_next_session_check(
        self, partition: TopicPartitionState, topic_rules: TopicRules, session: SessionState
    ) -> None:
        """Schedules the session's next check, for its next cut or its expiry."""
        expiry, due = (
            session.compute_expiry_time(topic_rules.rules.session_timeout_ms),
            session.compute_next_cut_time(topic_rules.rules.snapshot_interval_ms),
        )
        time = expiry + 1 if due is None else min(expiry + 1, due)
        if session.next_check is None or time < session.next_check:
            self._scheduled += 1
            session.next_check = time
            heapq.heappush(partition.checks, (time, self._scheduled, session))

    def _expire_session(self, topic_rules: TopicRules, session: SessionState, at: int, cause: ApplyCause) -> None:
        """Judges the held messages of an expired session, and records a cut unless nothing has changed."""
        self._release(topic_rules, session, cause)
        settled = session.life.status == ENDED and session.changed_at is None
        if session.position > session.expired_at and not settled:
            self.record_table_cut(topic_rules, session, "expiry", at, None)
            session.expired_at = session.position

    def record_table_cut(
        self, topic_rules: TopicRules, session: SessionState, reason: str, at: int, offset: int | None
    ) -> None:
        """Records a cut of the session's table, and stores the table as a snapshot if it changed enough.

        Args:
            topic_rules: Rules of the session's topic.
            session: The session.
            reason: `end`, `expiry` or `interval`.
            at: Stream time of the cut in ms.
            offset: Offset of the last message in the cut; None at an expiry.
        """
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
            "changes": session.changes_since_cut,
        }
        session.changed_at, session.changes_since_cut = None, 0
        if not self._keep:
            return
        self._tables.session_cuts.append(found)
        if reason != "interval" or session.changes_since_snapshot > session.snapshot_rows:
            rows = get_current_table_of_session(session, topic_rules)
            self._tables.session_snapshots.append(found | {"rows": rows})
            session.changes_since_snapshot, session.snapshot_rows = 0, len(rows)


def get_current_table_of_session(session: SessionState, topic_rules: TopicRules) -> dict[str, Row]:
    """Returns the rows of the session's current table by row id."""
    if not session.log:
        return dict(session.rows)
    rows = dict(session.rows)
    for _, _, epoch, parsed in sorted(session.log, key=lambda entry: entry[:2]):
        apply_message_to_table(rows, parsed, epoch, topic_rules.all_null)
    return rows
