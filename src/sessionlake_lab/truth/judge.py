"""Judges the messages of all sessions in offset order, and applies what stream time causes: expiry and new lives.

Where the protocol leaves a choice, these rules apply:

- Class `window`: a seq that was applied or is held back is a duplicate, whatever its `ts`. Lateness is judged after
  that. Expiry releases held messages as soon as the topic-partition's stream time passes it. They stay applied even if
  a later message shows that the expiry was early. Their positions follow the offset of the session's last message.
- Classes `once` and `window`: a message that exceeds the limit of held messages or gaps is a violation. If it is
  applied anyway, the oldest held message is released, or the oldest gap counts as filled.
- Until a topic-partition's stream time is known it is -1, nothing expires, and no gap is due. The first known time, of
  a message or a silence, then counts as the time of everything before it.
- `hold`: before the first snapshot, and while a session is broken, updates and heartbeats wait for a snapshot. Its
  arrival has them judged in order of arrival. An `end`, or the expiry, quarantines them; a message beyond the limit
  quarantines the oldest. Without any snapshot so far this is the violation `orphan`.
- An erased message (of a session that was forgotten on request) only advances stream time.
- The state of a session is dropped when stream time is more than twice the session timeout past its last message.
  Until then a message's own timestamp may revert the expiry. After that, any message starts a new life.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict

from sessionlake.errors import UsageError
from sessionlake_lab.truth.model import CaptureRules, ExpectedTables, KafkaMessage, SessionKey
from sessionlake_lab.truth.outcomes import TopicPartitionState
from sessionlake_lab.truth.reading import NO_TIMESTAMP, MalformedMessageError, ParsedMessage
from sessionlake_lab.truth.session import (
    ENDED,
    EXPIRED,
    OPEN,
    ApplyCause,
    LifeState,
    SessionState,
    count_message_bytes,
    is_seq_received,
    record_received_seq,
)
from sessionlake_lab.truth.snapshots import SnapshotCutter, get_current_table_of_session
from sessionlake_lab.truth.verdict import MessageJudge, TopicRules

ERASED = (b"\0erased", None)
"""Key and value of the record that replaces an erased message."""


class GroundTruth:
    """Computes the expected silver tables from Kafka messages.

    Call `judge_message` for each message in offset order, then `finish_and_return_tables`.

    Args:
        rules: Rules by which messages are judged.
        keep_changes: False leaves `session_changes`, `session_cuts` and `session_snapshots` empty, which saves about
            1 KB of memory per change.
    """

    def __init__(self, rules: CaptureRules, *, keep_changes: bool = True) -> None:
        self._rules = rules
        self._topic_rules: dict[str, TopicRules] = {}
        self._sessions: dict[SessionKey, SessionState] = {}
        self._judge = MessageJudge(self._note_applied_message, keep_changes=keep_changes)
        self._outcomes = self._judge.outcomes
        self._snapshots = SnapshotCutter(self._outcomes.tables, self._judge_all_held_messages, keep=keep_changes)
        self._finished = False

    def judge_message(self, message: KafkaMessage) -> None:
        """Judges one message, and writes the result into the expected tables.

        Raises:
            TruthViolationError: The message breaks its class under `fail`. This object must not be used any more.
            UsageError: `finish_and_return_tables` was called before.
        """
        if self._finished:
            raise UsageError(
                "the ground truth is finished and accepts no further messages", fix="Feed all messages to a new Truth"
            )
        topic_rules = self._find_rules_of_topic(message.topic)
        partition = self._outcomes.get_or_create_partition_state(message)
        partition.counts["messages"] += 1
        if message.timestamp != NO_TIMESTAMP and not topic_rules.parser.is_timestamp_too_far_ahead(message):
            self._advance_stream_time(partition, message.timestamp, message.topic, message.partition)
        self._judge.judge_due_gaps(partition, topic_rules)
        self._snapshots.run_due_session_checks(partition, topic_rules)
        if (message.key, message.value) == ERASED:
            return
        try:
            parsed = topic_rules.parser.parse_message(message, partition.stream_time)
        except MalformedMessageError as error:
            self._outcomes.quarantine_message(message, error.reason)
            return
        session = self._find_or_create_session(topic_rules, parsed)
        self._judge_or_hold_arriving_message(topic_rules, session, parsed)
        self._snapshots.schedule_checks_after_message(partition, topic_rules, session)

    def apply_silence(self, topic: str, partition: int, until: int) -> None:
        """Applies a silence: the topic-partition has no further messages until the stream time `until` (ms).

        Raises:
            TruthViolationError: Under `fail`: an expiry releases a violating message, or a gap was not filled in time.
        """
        found, topic_rules = self._outcomes.partitions.get((topic, partition)), self._find_rules_of_topic(topic)
        if found is not None:
            self._advance_stream_time(found, until, topic, partition)
            self._judge.judge_due_gaps(found, topic_rules)
            self._snapshots.run_due_session_checks(found, topic_rules)

    def _advance_stream_time(
        self, partition: TopicPartitionState, time: int, topic: str, partition_number: int
    ) -> None:
        """Advances the stream time of a topic-partition to `time` (ms), if it is later.

        The first known time counts as the time of everything before it. `topic` and `partition_number` are its names.
        """
        if partition.is_timed:
            partition.stream_time = max(partition.stream_time, time)
            return
        partition.stream_time, partition.is_timed = time, True
        mine = [s for s in self._sessions.values() if (s.topic, s.partition) == (topic, partition_number)]
        for session in mine:
            session.life.last_timestamp = None if session.life.last_timestamp is None else time
            session.changed_at = None if session.changed_at is None else time
            session.next_check = None
        partition.checks.clear()
        for session in mine:
            self._snapshots.schedule_next_session_check(partition, self._find_rules_of_topic(topic), session)
        self._judge.restart_gap_deadlines(partition, self._find_rules_of_topic(topic))

    def finish_and_return_tables(self) -> ExpectedTables:
        """Expires idle sessions up to the last stream time, and returns the expected tables.

        Raises:
            TruthViolationError: Under `fail`: an expiry releases a violating message, or a gap was not filled in time.
            UsageError: `finish_and_return_tables` was called before.
        """
        if self._finished:
            raise UsageError("the ground truth is finished already", fix="Use the tables that finish returned")
        self._finished = True
        for (topic, _), partition in self._outcomes.partitions.items():
            self._judge.judge_due_gaps(partition, self._find_rules_of_topic(topic))
        for key, session in self._sessions.items():
            self._expire_session_if_idle(session)
            topic_rules = self._find_rules_of_topic(session.topic)
            self._outcomes.tables.session_rows[key] = get_current_table_of_session(session, topic_rules)
            self._outcomes.tables.sessions[key] = session.to_sessions_row()
            held = len(session.life.held) + len(session.life.waiting)
            self._outcomes.partitions[session.topic, session.partition].counts["held"] += held
        self._record_split_sessions()
        return self._outcomes.tables

    def _record_split_sessions(self) -> None:
        """Records an event for each session whose id occurs in several partitions of its topic."""
        where = defaultdict[tuple[str, str], list[int]](list)
        for topic, partition, session_id in self._sessions:
            where[topic, session_id].append(partition)
        for (topic, session_id), partitions in where.items():
            if len(partitions) > 1:
                for partition in partitions:
                    self._outcomes.record_split_session(topic, partition, session_id)

    def _find_rules_of_topic(self, topic: str) -> TopicRules:
        topic_rules = self._topic_rules.get(topic)
        if topic_rules is None:
            topic_rules = self._topic_rules[topic] = TopicRules(self._rules.apply_topic_overrides(topic))
        return topic_rules

    def _find_or_create_session(self, topic_rules: TopicRules, parsed: ParsedMessage) -> SessionState:
        """Returns the message's session with its last offset and time updated. Starts a new life if the old expired."""
        kafka = parsed.kafka
        key = kafka.topic, kafka.partition, parsed.session_id
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = SessionState(kafka.topic, parsed.session_id, kafka.partition)
        last = session.life.last_timestamp
        if last is not None and self._is_session_expired(topic_rules, session, parsed):
            self._judge.judge_gaps_of_past_life(topic_rules, session.life)
            session.life = LifeState()
            session.lives += 1
            session.expired_at = session.position
        life = session.life
        if life.last_timestamp is None:
            life.first_offset = kafka.offset
        life.last_offset, life.last_timestamp = kafka.offset, parsed.time
        return session

    def _is_session_expired(self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage) -> bool:
        """Returns True if the session expired before this message, or its state was dropped."""
        last, timeout = session.life.last_timestamp, topic_rules.rules.session_timeout_ms
        now = self._outcomes.get_or_create_partition_state(parsed.kafka).stream_time
        return last is not None and (parsed.time > last + timeout or now > last + 2 * timeout)

    def _judge_or_hold_arriving_message(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage
    ) -> None:
        """Drops a duplicate, holds back a message of class `window`, and judges any other."""
        integrity, life = topic_rules.rules.integrity, session.life
        if _is_duplicate(integrity, life, parsed.seq):
            self._drop_duplicate(life, parsed)
        elif integrity == "window":
            self._hold_back_message(topic_rules, session, parsed)
        else:
            self._judge.judge_message(topic_rules, session, parsed, self._make_cause_of_arrival(parsed))
            if parsed.kind == "snapshot" and life.status == OPEN:
                self._judge_waiting_messages(topic_rules, session, self._make_cause_of_arrival(parsed))

    def _judge_waiting_messages(self, topic_rules: TopicRules, session: SessionState, cause: ApplyCause) -> None:
        """Judges the messages that waited for the snapshot that was just applied."""
        waited, session.life.waiting = session.life.waiting, []
        for parsed in waited:
            if _is_duplicate(topic_rules.rules.integrity, session.life, parsed.seq):
                self._drop_duplicate(session.life, parsed)
            else:
                self._judge.judge_message(topic_rules, session, parsed, cause)

    def _drop_duplicate(self, life: LifeState, parsed: ParsedMessage) -> None:
        """Counts a message as a duplicate, and records the event."""
        life.duplicates += 1
        self._outcomes.count_messages(parsed.kafka, "duplicates")
        self._outcomes.record_integrity_event(parsed, "duplicate", "dropped", life.next_seq)

    # -- class `window`: messages are held back until the watermark passes them

    def _hold_back_message(self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage) -> None:
        """Holds back a message until the watermark (highest `ts` minus lateness) has passed its `ts`.

        A message that is late or leaves too many gaps is quarantined instead.
        """
        life, lateness = session.life, topic_rules.rules.lateness_ms
        life.highest_ts = parsed.ts if life.highest_ts is None else max(life.highest_ts, parsed.ts)
        if parsed.ts < life.highest_ts - lateness:
            life.late += 1
            self._outcomes.record_integrity_event(parsed, "late", "quarantined", life.next_seq)
            self._outcomes.quarantine_message(parsed.kafka, "late")
            return
        if parsed.seq is not None and self._judge.has_too_many_gaps(topic_rules, session, parsed, parsed.seq):
            return
        if parsed.seq is not None:
            record_received_seq(life, parsed.seq, topic_rules.rules.max_gaps)
        insort(life.held, parsed, key=lambda held: (held.ts, held.seq))
        self._release_due_messages(topic_rules, session, self._make_cause_of_arrival(parsed))
        self._enforce_limit_of_held_messages(topic_rules, session, parsed)

    def _enforce_limit_of_held_messages(
        self, topic_rules: TopicRules, session: SessionState, parsed: ParsedMessage
    ) -> None:
        """Judges the violation `held_limit` if, with this message, the session holds back too many messages or bytes.

        If the message is kept, the oldest ones are released. Otherwise it is removed.
        """
        rules, held = topic_rules.rules, session.life.held

        def exceeds_held_limit() -> bool:
            return len(held) > rules.max_held_messages or sum(map(count_message_bytes, held)) > rules.max_held_bytes

        if exceeds_held_limit() and self._judge.apply_violation_policy(topic_rules, session, parsed, "held_limit"):
            while exceeds_held_limit():
                self._judge.judge_message(topic_rules, session, held.pop(0), self._make_cause_of_arrival(parsed))
        elif exceeds_held_limit():
            held.remove(parsed)

    def _release_due_messages(self, topic_rules: TopicRules, session: SessionState, cause: ApplyCause) -> None:
        """Judges the held messages whose `ts` the watermark (highest `ts` minus lateness) has passed, in order."""
        life = session.life
        while (
            life.held
            and life.highest_ts is not None
            and life.held[0].ts < life.highest_ts - topic_rules.rules.lateness_ms
        ):
            self._judge.judge_message(topic_rules, session, life.held.pop(0), cause)

    def _judge_all_held_messages(self, topic_rules: TopicRules, session: SessionState, cause: ApplyCause) -> None:
        """Judges all held messages in order, and quarantines those that wait for a snapshot."""
        self._judge.quarantine_waiting_messages(topic_rules, session)
        while session.life.held:
            self._judge.judge_message(topic_rules, session, session.life.held.pop(0), cause)

    def _make_cause_of_arrival(self, parsed: ParsedMessage) -> ApplyCause:
        """Returns the cause of applying messages when this one arrives."""
        offset = parsed.kafka.offset
        return ApplyCause(offset, self._outcomes.get_or_create_partition_state(parsed.kafka).stream_time, offset)

    def _note_applied_message(
        self, topic_rules: TopicRules, session: SessionState, kind: str, cause: ApplyCause
    ) -> None:
        """Notes that a message has changed the session's table, or records a cut of the table if `kind` is `end`."""
        if kind == "end":
            self._snapshots.record_table_cut(topic_rules, session, "end", cause.at, cause.by)
        elif kind in {"snapshot", "update"} and session.changed_at is None:
            session.changed_at = cause.at

    # -- the end

    def _expire_session_if_idle(self, session: SessionState) -> None:
        """Sets the status of a session to expired if stream time has passed its timeout, unless it has ended."""
        topic_rules, life = self._find_rules_of_topic(session.topic), session.life
        partition = self._outcomes.partitions[session.topic, session.partition]
        if life.last_timestamp is None:
            return
        expiry = life.last_timestamp + topic_rules.rules.session_timeout_ms
        if expiry >= partition.stream_time:
            return
        if life.status != ENDED:
            life.status, life.ended_at = EXPIRED, expiry


def _is_duplicate(integrity: str, life: LifeState, seq: int | None) -> bool:
    """Returns True if the seq was received before in this life. Class `none` has no duplicates."""
    if integrity == "none" or seq is None:
        return False
    if integrity in {"once", "window"}:
        return is_seq_received(life, seq)
    return life.next_seq is not None and seq < life.next_seq
