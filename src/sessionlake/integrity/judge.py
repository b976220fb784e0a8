"""Judges one session message by message, by the protocol's sections "Stream integrity" and "Session life".

This code is pure and defines the result: the vectorised path in `batch.py` must give the same. Where the protocol
leaves a choice, these rules apply:

- `window`: a seq that was applied or is held back is a duplicate, whatever its `ts`. Lateness is judged after that.
  Expiry releases held messages as soon as stream time passes it. They stay applied even if a later message reverts the
  expiry. Their positions start at the offset of the session's last message.
- `once`: a gap is an event when a message reveals it. It becomes a violation when stream time passes that message's
  timestamp plus `gap_timeout`. The violation has the offset of that message, and the gap is not counted again.
  The violation does not break a session that has ended or has a newer snapshot. An ended session stays ended under
  `isolate` too.
- `once`: the first applied `end` ends the session, at its seq. A lower seq that was not applied yet is a late fill; if
  it is another `end`, it changes nothing. A higher seq is `after_end`. An `end` that is itself a late fill also ends
  the session, and messages with higher seqs that were applied before stay applied.
- A message that exceeds a limit of held messages or gaps is a violation. If it is applied all the same, the oldest
  held message is released, or the lowest gap counts as filled.
- `hold` of a feed: a session without a snapshot, or a broken one, holds its messages back. The next applied snapshot
  has them judged in order of arrival. An `end` or the expiry sends them to quarantine, and the limit the oldest one.
  Before the first snapshot each of these is an `orphan`, and under `isolate` the first one breaks the session.
- A message whose own timestamp is older than stream time by more than the session timeout expires its session at once.
- A session is forgotten when stream time is more than twice the session timeout past its last message. Until then, the
  timestamp of a later message may revert the expiry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from sessionlake.integrity.chains import ChainGap
from sessionlake.integrity.cursor import NEVER, NO_TIME, OpenGap, SessionCursor, SessionStatus
from sessionlake.integrity.cuts import CUT_DTYPE, NO_OFFSET, CutReason, compute_next_cut_time
from sessionlake.integrity.gaps import judge_overdue_gaps
from sessionlake.integrity.holding import HeldMessages, is_session_waiting_for_snapshot, must_message_wait_for_snapshot
from sessionlake.integrity.outcome import (
    IntegrityEventAction,
    IntegrityEventKind,
    JudgingOutcome,
    MessageHeader,
    MessageVerdict,
)
from sessionlake.integrity.recorder import EventRecorder
from sessionlake.integrity.rules import SEQ_REMEMBERING_CLASSES, JudgingRules, OperatorDecision
from sessionlake.integrity.shard_batch import SessionRows
from sessionlake.integrity.transition import apply_message_to_cursor
from sessionlake.protocol.message import NO_SEQ, TABLE_CHANGING_TYPES, MessageType, SeqLink
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.settings.section import Integrity, OnViolation


class SessionJudge:
    """Judges the messages of one session in order, and updates its cursor.

    Args:
        cursor: The session's cursor, updated in place.
        held_messages: The messages that the session holds back.
        rules: The rules of the session's topic.
        outcome: Where verdicts, events and cuts are recorded.
        decisions: Operators' decisions, by the offset of the message.
        rows: The session's rows; None if they are not kept in memory.
        chain_gaps: Gaps of the session's chain, in order of their offsets.
    """

    def __init__(
        self,
        cursor: SessionCursor,
        held_messages: list[MessageHeader],
        rules: JudgingRules,
        outcome: JudgingOutcome,
        decisions: Mapping[int, OperatorDecision] | None = None,
        rows: SessionRows | None = None,
        chain_gaps: Sequence[ChainGap] = (),
    ) -> None:
        self._cursor = cursor
        self.held_messages = HeldMessages(held_messages, rules)
        self.rules = rules
        self.outcome = outcome
        self._decisions = decisions or {}
        self._events = EventRecorder(cursor, rules, outcome, self._decisions)
        self._rows = rows
        self._chain_gaps = deque(chain_gaps)
        # Stream time, and offset of the arriving message, that are recorded with the next applied message.
        self._applied_at, self._applied_by = NO_TIME, NO_OFFSET

    def judge_message(self, message: MessageHeader) -> None:
        """Judges the session's next message in offset order: sets its verdict, and updates the cursor.

        Raises:
            ViolationError: The message violates the session's class, and the policy is `fail`.
        """
        self.judge_chain_gaps_up_to_offset(message.offset)
        self.advance_stream_time(message.now)
        self._applied_at, self._applied_by = message.now, message.offset
        if self._decisions.get(message.offset) is OperatorDecision.SKIP:
            self.outcome.followed_decisions.add((self.outcome.session_number, message.offset))
            self._events.record_message_skipped_by_operator(message)
            self._quarantine_message(message, Reason.SKIPPED)
            return
        if self._is_first_of_new_life(message):
            self._judge_all_held_messages()
            judge_overdue_gaps(self._cursor, self._events, NEVER)  # what this life misses can no longer arrive
            self._cursor.start_new_life()
        elif self.held_messages and not self.rules.holds_back_messages:
            self._judge_all_held_messages()  # the rules have changed since they were held back
        if self.rules.modulo is not None and not self.rules.has_chains:
            message = message.unwrap_restarting_seq(self._cursor.last_seq, self.rules.modulo)
            self.outcome.unwrapped_seqs[message.index] = message.seq
        self._cursor.record_arrived_message(message.lane, message.partition, message.offset, message.message_time)
        self.outcome.life[message.index] = self._cursor.first_offset
        self._judge_arrived_message(message, message.offset)
        if self.held_messages and self.rules.hold and not is_session_waiting_for_snapshot(self._cursor, self.rules):
            for held in self.held_messages.pop_all_messages():
                self._judge_arrived_message(held, message.offset)
        if self._expiry_time < message.now:
            self._expire_session(message.now)

    def _judge_arrived_message(self, message: MessageHeader, releasing_offset: int) -> None:
        """Judges a message that has just arrived or was held back for a snapshot. A duplicate is dropped."""
        if self._is_duplicate(message):
            self._cursor.duplicates += 1
            self._events.record_integrity_event(message, IntegrityEventKind.DUPLICATE, IntegrityEventAction.DROPPED)
            self.outcome.verdict[message.index] = MessageVerdict.DUPLICATE
        elif self.rules.integrity is Integrity.WINDOW:
            self._hold_message_until_watermark(message)
        elif must_message_wait_for_snapshot(message, self._cursor, self.rules):
            self._hold_message_until_snapshot(message)
        else:
            if message.type == MessageType.END and self.rules.hold:
                self._judge_all_held_messages()
            self._judge_non_duplicate_message(message, releasing_offset)

    def advance_stream_time(self, now: int) -> None:
        """Judges what is due when stream time reaches `now` (ms): unfilled gaps, cuts and expiry."""
        judge_overdue_gaps(self._cursor, self._events, now)
        expiry = self._expiry_time
        if self._next_cut_time <= min(now, expiry):
            self.record_table_cut(CutReason.INTERVAL, self._next_cut_time)
        if expiry < now:
            self._applied_at, self._applied_by = expiry + 1, NO_OFFSET
            self._expire_session(expiry)

    def judge_chain_gaps_up_to_offset(self, offset: int) -> None:
        """Judges the gaps of the session's chain that messages up to this offset have revealed."""
        while self._chain_gaps and self._chain_gaps[0].offset <= offset:
            gap = self._chain_gaps.popleft()
            self.advance_stream_time(gap.now)
            if self._expiry_time >= gap.now:
                self._events.record_chain_gap(gap)

    def record_table_cut(self, reason: CutReason, stream_time: int) -> None:
        """Records a cut of the session's table, with the changes so far, at this stream time (ms)."""
        cursor, offset = self._cursor, self._cursor.last_offset
        if reason is CutReason.EXPIRY:
            cursor.cut_position = cursor.position
        if reason is CutReason.EXPIRY or (reason is CutReason.END and self._applied_by == NO_OFFSET):
            offset = NO_OFFSET
        values = (cursor.position, cursor.first_offset, cursor.last_seq, cursor.changed_at, offset, cursor.changes)
        self.outcome.add_cuts(np.array([(self.outcome.session_number, stream_time, reason, *values)], CUT_DTYPE))
        cursor.changed_at, cursor.changes = NEVER, 0

    @property
    def _expiry_time(self) -> int:
        """Stream time (ms) after which the session has expired; `NEVER` before its first message."""
        last = self._cursor.last_kafka_ts
        return NEVER if last == NO_TIME else last + self.rules.session_timeout

    @property
    def _next_cut_time(self) -> int:
        """The stream time (ms) of the table's next cut; `NEVER` if the table has not changed since its last cut."""
        changed_at = self._cursor.changed_at
        return NEVER if changed_at == NEVER else compute_next_cut_time(changed_at, self.rules.snapshot_interval)

    def _expire_session(self, stream_time: int) -> None:
        """Marks the session as expired: judges its held messages, and cuts its table if it has changed."""
        cursor = self._cursor
        self._judge_all_held_messages()
        ended = cursor.status == SessionStatus.ENDED
        if cursor.position > cursor.cut_position and not (ended and cursor.changed_at == NEVER):
            self.record_table_cut(CutReason.EXPIRY, stream_time)
        cursor.marked = int(not ended)

    def can_apply_following_messages_unjudged(self, message: MessageHeader) -> bool:
        """Returns True if later messages that continue this judged one will all be applied, whatever their type."""
        cursor, integrity = self._cursor, self.rules.integrity
        applied = self.outcome.verdict[message.index] == MessageVerdict.APPLIED and cursor.status == SessionStatus.OPEN
        latest = message.seq == cursor.last_seq or integrity is Integrity.NONE
        is_plain = integrity is not Integrity.WINDOW and not self._decisions and self._rows is None
        return bool(applied and latest and is_plain)

    def _is_first_of_new_life(self, message: MessageHeader) -> bool:
        last, timeout = self._cursor.last_kafka_ts, self.rules.session_timeout
        return last != NO_TIME and (message.message_time - last > timeout or message.now - last > 2 * timeout)

    def _is_duplicate(self, message: MessageHeader) -> bool:
        integrity, last = self.rules.integrity, self._cursor.last_seq
        if integrity is Integrity.NONE or message.seq == NO_SEQ or message.link == SeqLink.CHAINED:
            return False
        if message.link == SeqLink.REPEATED:
            return True
        if integrity in SEQ_REMEMBERING_CLASSES:
            return message.seq in self._cursor.taken
        is_keep_alive = message.type == MessageType.HEARTBEAT and message.after == message.seq == last
        return message.seq <= last and message.link != SeqLink.RESTART and not is_keep_alive

    def _is_gap_before_message(self, message: MessageHeader) -> bool:
        """Returns True if messages are missing before this one, which is not a duplicate."""
        last = self._cursor.last_seq
        if message.link == SeqLink.LINK:
            return message.after != last
        return message.link not in {SeqLink.RESTART, SeqLink.CHAINED} and message.after > last

    # -- class `window`: held back until the watermark passes

    def _hold_message_until_watermark(self, message: MessageHeader) -> None:
        cursor, rules = self._cursor, self.rules
        cursor.highest_ts = max(cursor.highest_ts, message.ts)
        watermark = cursor.highest_ts - rules.lateness
        if message.ts < watermark:
            cursor.late += 1
            self._events.record_integrity_event(message, IntegrityEventKind.LATE, IntegrityEventAction.QUARANTINED)
            self._quarantine_message(message, Reason.LATE)
            return
        if self._is_rejected_by_gap_limit(message):
            return
        cursor.record_applied_or_held_seqs(message.seq, message.seq, rules.max_gaps)
        self._add_held_message(message)
        while self.held_messages and self.held_messages.first_message.ts < watermark:
            self._judge_non_duplicate_message(self.held_messages.pop_first_message(), message.offset)
        if self.held_messages.exceed_holding_limits and not self._is_applied_despite_violation(
            message, IntegrityEventKind.HELD_LIMIT, Reason.HELD_LIMIT
        ):
            self.held_messages.remove_message(message)
        while self.held_messages.exceed_holding_limits:
            self._judge_non_duplicate_message(self.held_messages.pop_first_message(), message.offset)

    def _add_held_message(self, message: MessageHeader) -> None:
        self.held_messages.add_message(message)
        self.outcome.verdict[message.index] = MessageVerdict.HELD

    def _judge_all_held_messages(self) -> None:
        """Judges all held messages. Those that wait for a snapshot go to quarantine."""
        for message in self.held_messages.pop_all_messages():
            if self.rules.hold:
                self._quarantine_message_held_for_snapshot(message)
            elif self.rules.integrity is Integrity.WINDOW:
                self._judge_non_duplicate_message(message, self._cursor.last_offset)
            else:
                self._judge_arrived_message(message, self._cursor.last_offset)

    # -- `hold`: held back until a snapshot

    def _hold_message_until_snapshot(self, message: MessageHeader) -> None:
        self._add_held_message(message)
        while self.held_messages.exceed_holding_limits:
            self._quarantine_message_held_for_snapshot(self.held_messages.pop_first_message())

    def _quarantine_message_held_for_snapshot(self, message: MessageHeader) -> None:
        """Quarantines a message that waited for a snapshot in vain.

        If the session has had no snapshot yet, it is a violation.
        """
        cursor, seqs = self._cursor, self._events.find_expected_and_actual_seq(message)
        if cursor.last_seq != NO_SEQ:
            self._quarantine_message(message, Reason.SESSION_BROKEN)
            return
        if cursor.status == SessionStatus.OPEN:
            policy = self._events.record_violation(message, IntegrityEventKind.ORPHAN, seqs)
            cursor.status = SessionStatus.BROKEN if policy is OnViolation.ISOLATE else cursor.status
        self._quarantine_message(message, Reason.ORPHAN)

    # -- every class

    def _judge_non_duplicate_message(self, message: MessageHeader, releasing_offset: int) -> None:
        """Judges a message that is not a duplicate.

        Args:
            message: The message.
            releasing_offset: Offset of the message whose arrival had this one judged; it can be the same message.
        """
        cursor, integrity = self._cursor, self.rules.integrity
        is_late_fill = integrity is Integrity.ONCE and message.seq < cursor.end_seq
        if cursor.status == SessionStatus.ENDED and not is_late_fill:
            if self._is_applied_despite_violation(message, IntegrityEventKind.AFTER_END, Reason.AFTER_END):
                self._apply_message(message, releasing_offset)
        elif cursor.status == SessionStatus.BROKEN:
            self._judge_message_of_broken_session(message, releasing_offset)
        elif integrity is Integrity.NONE:
            self._apply_message(message, releasing_offset)
        elif integrity is Integrity.ONCE and self._is_rejected_by_gap_limit(message):
            return
        elif cursor.last_seq == NO_SEQ:
            may_begin = integrity is Integrity.ONCE or self.rules.starts_with_anything
            may_begin |= message.type == MessageType.SNAPSHOT
            if may_begin or self._is_applied_despite_violation(message, IntegrityEventKind.ORPHAN, Reason.ORPHAN):
                self._apply_message(message, releasing_offset)
        elif self._is_gap_before_message(message):
            self._judge_message_after_gap(message, releasing_offset)
        else:
            self._apply_message(message, releasing_offset)

    def _judge_message_of_broken_session(self, message: MessageHeader, releasing_offset: int) -> None:
        is_new = message.seq > self._cursor.last_seq or message.link in {SeqLink.RESTART, SeqLink.CHAINED}
        if message.type == MessageType.SNAPSHOT and is_new:
            self._events.record_integrity_event(message, IntegrityEventKind.HEALED, IntegrityEventAction.APPLIED)
            self._apply_message(message, releasing_offset)
        else:
            self._quarantine_message(message, Reason.SESSION_BROKEN)

    def _judge_message_after_gap(self, message: MessageHeader, releasing_offset: int) -> None:
        cursor, rules = self._cursor, self.rules
        cursor.gaps += 1
        if rules.integrity is Integrity.STRICT:
            if (
                message.type == MessageType.SNAPSHOT
                and self._events.choose_violation_policy(message.offset) is OnViolation.ISOLATE
            ):
                # The gap breaks the session, and this snapshot heals it at once.
                self._events.record_integrity_event(message, IntegrityEventKind.GAP, IntegrityEventAction.ISOLATED)
                self._apply_message(message, releasing_offset)
            elif self._is_applied_despite_violation(message, IntegrityEventKind.GAP, Reason.GAP):
                self._apply_message(message, releasing_offset)
            return
        self._events.record_integrity_event(message, IntegrityEventKind.GAP, IntegrityEventAction.APPLIED)
        if rules.integrity is Integrity.ONCE:
            due = message.message_time + rules.gap_timeout
            start = cursor.last_seq + 1
            gap = OpenGap(start, message.seq, due, message.offset, message.kafka_ts, message.partition)
            cursor.open_gaps.append(gap)
        self._apply_message(message, releasing_offset)

    def _apply_message(self, message: MessageHeader, releasing_offset: int) -> None:
        cursor, out, index = self._cursor, self.outcome, message.index
        position = max(cursor.position + 1, releasing_offset)
        out.verdict[index] = MessageVerdict.APPLIED
        in_seq_order, is_snapshot = self.rules.integrity is Integrity.ONCE, message.type == MessageType.SNAPSHOT
        out.epoch[index] = cursor.assign_epoch(
            message.seq, message.offset, is_snapshot=is_snapshot, in_seq_order=in_seq_order
        )
        out.position[index] = position
        out.life[index] = cursor.first_offset
        out.applied_at[index], out.applied_by[index] = self._applied_at, self._applied_by
        if cursor.status == SessionStatus.BROKEN:
            cursor.status = SessionStatus.OPEN
        ends = message.type == MessageType.END and cursor.status == SessionStatus.OPEN
        if self.rules.integrity is Integrity.ONCE and message.seq < cursor.last_seq:
            out.late_fills.add(out.session_number)
        if message.link in {SeqLink.RESTART, SeqLink.CHAINED}:
            cursor.last_seq = NO_SEQ
        apply_message_to_cursor(cursor, message.seq, message.ts, position, is_end=ends)
        if self.rules.integrity is Integrity.ONCE:
            cursor.record_applied_or_held_seqs(message.seq, message.seq, self.rules.max_gaps)
        cursor.changes += message.changes
        if self._rows is not None:
            self._apply_message_to_rows(message, self._rows)
        if ends:
            self.record_table_cut(CutReason.END, self._applied_at)
        elif message.type in TABLE_CHANGING_TYPES and cursor.changed_at == NEVER:
            cursor.changed_at = self._applied_at

    def _apply_message_to_rows(self, message: MessageHeader, rows: SessionRows) -> None:
        """Applies a message to the rows in memory. A failed check is a violation, but the message stays applied."""
        found, cursor = rows.apply_message_to_rows(message.index), self._cursor
        cursor.changes += found.added_changes
        cursor.checks += found.checks
        cursor.checks_failed += len(found.failed)
        for kind in found.failed:
            seqs = None, None if message.seq == NO_SEQ else message.seq
            policy = self._events.record_violation(message, kind, seqs)
            if policy is OnViolation.ISOLATE and cursor.status != SessionStatus.ENDED:
                cursor.status = SessionStatus.BROKEN

    # -- the gaps between taken seqs (classes `once` and `window`)

    def _is_rejected_by_gap_limit(self, message: MessageHeader) -> bool:
        too_many = self._cursor.taken.count_gaps_after_adding_seq(message.seq) > self.rules.max_gaps
        kind, reason = IntegrityEventKind.GAP_LIMIT, Reason.GAP_LIMIT
        return too_many and not self._is_applied_despite_violation(message, kind, reason)

    def _is_applied_despite_violation(self, message: MessageHeader, kind: IntegrityEventKind, reason: Reason) -> bool:
        """Records a violation. Returns True if the message is applied despite it, False if it was quarantined."""
        policy = self._events.record_violation(message, kind, self._events.find_expected_and_actual_seq(message))
        if policy is OnViolation.RECORD:
            return True
        if self._cursor.status != SessionStatus.ENDED:
            self._cursor.status = SessionStatus.BROKEN
        if must_message_wait_for_snapshot(message, self._cursor, self.rules):
            self._hold_message_until_snapshot(message)
        else:
            self._quarantine_message(message, reason)
        return False

    def _quarantine_message(self, message: MessageHeader, reason: Reason) -> None:
        self.outcome.verdict[message.index] = MessageVerdict.QUARANTINED
        self.outcome.reason[message.index] = CODE_OF[reason]
        if self.rules.integrity is Integrity.WINDOW and reason is not Reason.SKIPPED:
            self._cursor.taken.remove_seq(message.seq)  # it was not applied, so the same seq is no duplicate next time
