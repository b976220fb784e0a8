"""Judges one message by class and policy, and applies it.

Where the protocol leaves a choice, these rules apply:

- `none` has no duplicates and counts no gaps, but a message after an `end` is a violation as in every class.
- `once`: a gap is counted and recorded (`applied`) when a message reveals it. It becomes a violation when stream time
  passes that message's timestamp + `gap_timeout`. The violation's event has the message's offset and is not counted
  again. It does not break a session that has ended or has a newer snapshot.
- `once`: the first applied `end` ends the session at its seq. Higher seqs that were applied before stay applied. After
  that, lower missing seqs are still applied, and higher ones are `after_end`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sessionlake_lab.truth.model import CaptureRules, TruthViolationError
from sessionlake_lab.truth.outcomes import OutcomeWriter, TopicPartitionState
from sessionlake_lab.truth.reading import MessageParser, ParsedMessage
from sessionlake_lab.truth.session import (
    BROKEN,
    ENDED,
    OPEN,
    ApplyCause,
    LifeState,
    OpenGap,
    SessionState,
    apply_message_to_table,
    count_gaps_with,
    count_message_bytes,
    forget_received_seq,
    is_seq_received,
    make_change_rows,
    record_received_seq,
)


class TopicRules:
    """The rules and the parser for the messages of a topic.

    Attributes:
        rules: The rules with the topic's own overrides.
        parser: Parses the topic's messages.
        all_null: Null for each declared column.
    """

    def __init__(self, rules: CaptureRules) -> None:
        self.rules = rules
        self.parser = MessageParser(rules)
        self.all_null = dict.fromkeys(rules.columns)


OnApplied = Callable[[TopicRules, SessionState, str, ApplyCause], None]


class MessageJudge:
    """Judges messages by class and policy, in the order in which it is called.

    Args:
        on_applied: Called for each applied message with its kind, or `after end` for an `end` after the end.
        keep_changes: False to leave the table `session_changes` empty.
    """

    def __init__(self, on_applied: OnApplied, *, keep_changes: bool) -> None:
        self.outcomes = OutcomeWriter()
        self._on_applied = on_applied
        self._keep_changes = keep_changes
        self._gaps_seen = 0

    def judge_message(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, cause: ApplyCause
    ) -> None:
        """Judges a message that is not a duplicate: applies it, quarantines it, or lets it wait for a snapshot.

        Args:
            topic_rules: Rules of the message's topic.
            session: Session of the message, whose state is changed.
            parsed: The message.
            cause: When it is applied, and which message caused this.

        Raises:
            TruthViolationError: The message breaks its class under `fail`.
        """
        life, integrity, expected = session.life, topic_rules.rules.integrity, session.life.next_seq
        is_snapshot = parsed.kind == "snapshot"
        if parsed.kind == "end":
            self.quarantine_waiting_messages(topic_rules, session)
        if life.status == ENDED and not _is_before_end_seq(integrity, life, parsed):
            self._judge_violation(topic_rules, session, parsed, cause, "after_end")
        elif life.status == BROKEN:
            if is_snapshot and (expected is None or parsed.seq is None or parsed.seq >= expected):
                self.outcomes.record_integrity_event(parsed, "healed", "applied", expected)
                self._apply_message(topic_rules, session, parsed, cause)
            else:
                self._reject_message(topic_rules, session, parsed, "session_broken")
        elif integrity == "none":
            self._apply_message(topic_rules, session, parsed, cause)
        elif (
            integrity == "once"
            and parsed.seq is not None
            and self.has_too_many_gaps(topic_rules, session, parsed, parsed.seq)
        ):
            return
        elif expected is None:
            self._judge_first_message(topic_rules, session, parsed, cause)
        elif parsed.seq is not None and parsed.seq > expected:
            self._judge_gap(topic_rules, session, parsed, cause)
        else:
            self._apply_message(topic_rules, session, parsed, cause)

    def _judge_first_message(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, cause: ApplyCause
    ) -> None:
        """Judges a message of a life in which none was applied yet. It is an orphan unless it is a snapshot."""
        if parsed.kind == "snapshot" or topic_rules.rules.integrity == "once":
            self._apply_message(topic_rules, session, parsed, cause)
        elif _can_wait_for_snapshot(topic_rules, parsed):
            self._add_waiting_message(topic_rules, session, parsed)
        else:
            self._judge_violation(topic_rules, session, parsed, cause, "orphan")

    def has_too_many_gaps(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, seq: int
    ) -> bool:
        """Judges a violation `gap_limit` if a message's seq would leave more gaps than allowed.

        Returns:
            True if the message was rejected for this, so that it must not be applied.
        """
        too_many = count_gaps_with(session.life, seq) > topic_rules.rules.max_gaps
        return too_many and not self.apply_violation_policy(topic_rules, session, parsed, "gap_limit")

    def apply_violation_policy(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, event: str
    ) -> bool:
        """Handles a violation as `on_violation` says. `event` is its name, such as `gap`.

        Returns:
            True if the message must be applied (`record`), False if it was quarantined or waits (`isolate`).

        Raises:
            TruthViolationError: `on_violation` is `fail`.
        """
        life = session.life
        isolates = self._record_violation(topic_rules.rules, parsed, event, life.next_seq)
        if isolates:
            life.status = life.status if life.status == ENDED else BROKEN
            self._reject_message(topic_rules, session, parsed, event)
        return not isolates

    def _record_violation(self, rules: CaptureRules, parsed: ParsedMessage, event: str, expected: int | None) -> bool:
        """Records a violation. Returns True for `isolate`, False for `record`; raises TruthViolationError for `fail`.

        Args:
            rules: Rules of the message's topic.
            parsed: The message.
            event: Name of the violation, such as `gap`.
            expected: The seq that was expected; None if no particular one was.
        """
        kafka = parsed.kafka
        if rules.on_violation == "fail":
            raise TruthViolationError(
                rules.integrity, event, kafka.topic, kafka.partition, parsed.session_id, kafka.offset,
                expected, parsed.seq,
            )  # fmt: skip
        isolates = rules.on_violation == "isolate"
        self.outcomes.record_integrity_event(parsed, event, "isolated" if isolates else "recorded", expected)
        return isolates

    def quarantine_waiting_messages(self, topic_rules: TopicRules, session: SessionState) -> None:
        """Quarantines all messages that wait for a snapshot, because none will come."""
        while session.life.waiting:
            self._quarantine_oldest_waiting(topic_rules, session)

    def _add_waiting_message(self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage) -> None:
        """Lets a message wait for a snapshot. While too many wait, the oldest is quarantined."""
        waiting = session.life.waiting
        waiting.append(parsed)
        while (
            len(waiting) > topic_rules.rules.hold
            or sum(map(count_message_bytes, waiting)) > topic_rules.rules.max_held_bytes
        ):
            self._quarantine_oldest_waiting(topic_rules, session)

    def _quarantine_oldest_waiting(self, topic_rules: TopicRules, session: SessionState) -> None:
        """Quarantines the oldest waiting message: an orphan, or part of a session that broke after its snapshot."""
        life = session.life
        parsed = life.waiting.pop(0)
        if life.next_seq is not None:
            self._quarantine_message(session, parsed, "session_broken")
            return
        if life.status != BROKEN and self._record_violation(topic_rules.rules, parsed, "orphan", None):
            life.status = BROKEN
        self._quarantine_message(session, parsed, "orphan")

    def _reject_message(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, reason: str
    ) -> None:
        """Quarantines a message that was not applied, unless it can wait for the snapshot that repairs the session."""
        if session.life.status == BROKEN and _can_wait_for_snapshot(topic_rules, parsed):
            self._add_waiting_message(topic_rules, session, parsed)
        else:
            self._quarantine_message(session, parsed, reason)

    def _judge_gap(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, cause: ApplyCause
    ) -> None:
        """Counts and records the gap before a message, and applies it. Under `strict`, a gap is a violation."""
        session.life.gaps += 1
        if topic_rules.rules.integrity == "strict":
            self._judge_violation(topic_rules, session, parsed, cause, "gap")
            return
        self.outcomes.record_integrity_event(parsed, "gap", "applied", session.life.next_seq)
        if topic_rules.rules.integrity == "once":
            self._add_open_gap(topic_rules, session, parsed)
        self._apply_message(topic_rules, session, parsed, cause)

    def _judge_violation(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, cause: ApplyCause, event: str
    ) -> None:
        """Applies or rejects a message that is a violation, as `on_violation` says. `event` is its name, such as `gap`.

        Under `isolate`, a snapshot after a gap is applied, because it repairs the session.
        """
        if event == "gap" and parsed.kind == "snapshot" and topic_rules.rules.on_violation == "isolate":
            self.outcomes.record_integrity_event(parsed, event, "isolated", session.life.next_seq)
            self._apply_message(
                topic_rules, session, parsed, cause
            )  # the snapshot reveals the gap and repairs it at once
        elif self.apply_violation_policy(topic_rules, session, parsed, event):
            self._apply_message(topic_rules, session, parsed, cause)

    def _apply_message(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage, cause: ApplyCause
    ) -> None:
        """Applies a message: updates the session's state and table, and adds its rows of `session_changes`."""
        life, seq = session.life, parsed.seq
        session.position = max(session.position + 1, cause.releasing)
        epoch = _find_epoch_of_message(topic_rules.rules.integrity, life, parsed)
        if life.status == BROKEN:
            life.status = OPEN
        ends = parsed.kind == "end" and life.status == OPEN
        if ends:
            life.status, life.ended_at, life.end_seq = ENDED, parsed.ts, seq
        if seq is not None:
            life.next_seq = seq + 1 if life.next_seq is None else max(life.next_seq, seq + 1)
        life.messages += 1
        life.first_ts = parsed.ts if life.first_ts is None else min(life.first_ts, parsed.ts)
        life.last_ts = parsed.ts if life.last_ts is None else max(life.last_ts, parsed.ts)
        self.outcomes.count_messages(parsed.kafka, "applied")
        made = len(parsed.rows) + len(parsed.deleted) + (parsed.kind == "snapshot")
        session.changes_since_cut += made
        session.changes_since_snapshot += made
        if self._keep_changes:
            self.outcomes.tables.session_changes += make_change_rows(
                parsed, epoch, session.position, cause, topic_rules.all_null
            )
        if topic_rules.rules.integrity == "once" and seq is not None:
            record_received_seq(life, seq, topic_rules.rules.max_gaps)
            session.log.append((session.lives, seq, epoch, parsed))
        else:
            apply_message_to_table(session.rows, parsed, epoch, topic_rules.all_null)
        self._on_applied(topic_rules, session, "after end" if parsed.kind == "end" and not ends else parsed.kind, cause)

    def _quarantine_message(self, session: SessionState, parsed: ParsedMessage, reason: str) -> None:
        """Quarantines a message. Its seq counts as not received, so that a repetition is not a duplicate."""
        if parsed.seq is not None:
            forget_received_seq(session.life, parsed.seq)
        self.outcomes.quarantine_message(parsed.kafka, reason)

    def _add_open_gap(self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage) -> None:
        """Adds the gap before a message to the open gaps, with the deadline at which it becomes a violation."""
        start = session.life.next_seq
        if start is None or parsed.seq is None:
            return
        gap = OpenGap(start, parsed.seq, parsed, parsed.seq - start, parsed.time)
        session.life.open_gaps.append(gap)
        self._gaps_seen += 1
        deadline = parsed.time + topic_rules.rules.gap_timeout_ms
        partition = self.outcomes.get_or_create_partition_state(parsed.kafka)
        heapq.heappush(partition.gap_deadlines, (deadline, self._gaps_seen, session, session.life, gap))

    def restart_gap_deadlines(self, partition: TopicPartitionState, topic_rules: TopicRules) -> None:
        """Restarts the deadlines of all open gaps at the first known stream time."""
        partition.gap_deadlines = [
            (partition.stream_time + topic_rules.rules.gap_timeout_ms, number, session, life, gap)
            for _, number, session, life, gap in partition.gap_deadlines
        ]
        heapq.heapify(partition.gap_deadlines)
        for *_, gap in partition.gap_deadlines:
            gap.opened = partition.stream_time

    def judge_due_gaps(self, partition: TopicPartitionState, topic_rules: TopicRules) -> None:
        """Judges the open gaps (class `once`) whose deadline stream time has passed."""
        while partition.gap_deadlines and partition.gap_deadlines[0][0] < partition.stream_time:
            _, _, session, life, gap = heapq.heappop(partition.gap_deadlines)
            if gap.missing and life is session.life and gap in life.open_gaps:
                life.open_gaps.remove(gap)
                self._judge_unfilled_gap(topic_rules.rules, life, gap)

    def judge_gaps_of_past_life(self, topic_rules: TopicRules, life: LifeState) -> None:
        """Judges the open gaps of a session's earlier life as violations, because they cannot be filled any more."""
        for gap in sorted(life.open_gaps, key=lambda gap: gap.opened):
            if gap.missing and gap in life.open_gaps:
                life.open_gaps.remove(gap)
                self._judge_unfilled_gap(topic_rules.rules, life, gap)

    def _judge_unfilled_gap(self, rules: CaptureRules, life: LifeState, gap: OpenGap) -> None:
        """Records an unfilled gap as a violation, at the message that revealed it.

        Under `isolate` this breaks the session, unless it has ended or has a newer snapshot.
        """
        first = next(seq for seq in range(gap.start, gap.end) if not is_seq_received(life, seq))
        isolates = self._record_violation(rules, gap.revealed_by, "gap", first)
        has_newer_snapshot = life.epoch_seq is not None and life.epoch_seq >= gap.end
        if isolates and life.status == OPEN and not has_newer_snapshot:
            life.status = BROKEN
            life.open_gaps.clear()


def _can_wait_for_snapshot(topic_rules: TopicRules, parsed: ParsedMessage) -> bool:
    """Returns True if messages may wait in this topic, and this one is an update or heartbeat."""
    return topic_rules.rules.hold > 0 and parsed.kind in {"update", "heartbeat"}


def _is_before_end_seq(integrity: str, life: LifeState, parsed: ParsedMessage) -> bool:
    """Returns True if the class is `once` and the message's seq is below the seq of the `end` that was applied."""
    if integrity != "once" or parsed.seq is None or life.end_seq is None:
        return False
    return parsed.seq < life.end_seq


def _find_epoch_of_message(integrity: str, life: LifeState, parsed: ParsedMessage) -> int:
    """Returns the epoch of a message: the offset of the last snapshot up to it, -1 if there is none.

    Under `once`, the last snapshot in seq order counts. If the message is a snapshot, its offset is recorded.
    """
    if integrity == "once" and parsed.seq is not None:
        if parsed.kind == "snapshot":
            life.epochs[parsed.seq] = parsed.kafka.offset
            life.epoch_seq = max(life.epochs)
            life.epoch = life.epochs[life.epoch_seq]
        if life.epoch_seq is not None and parsed.seq >= life.epoch_seq:
            return life.epoch
        before = [seq for seq in life.epochs if seq <= parsed.seq]
        return life.epochs[max(before)] if before else -1
    if parsed.kind == "snapshot":
        life.epoch = parsed.kafka.offset
    return life.epoch
