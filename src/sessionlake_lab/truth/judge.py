"""The judge: every message in its turn, and what time brings: new lives, watermarks, expiry.

Where the protocol leaves a choice, these hold:

- Class `window`: a seq that was applied or is held back is a duplicate, whatever its `ts`, and lateness is judged after
  that. Expiry releases what is held as soon as the topic-partition's stream time passes it, even if a message then
  proves the expiry early: what was applied stays applied. It takes positions from the session's last message on.
- Classes `once` and `window`: more held back, or more gaps, than the limits allow is a violation of the message that
  came too much. Where it is applied all the same, the oldest held message, or gap, makes room for it.
- Until a topic-partition's time is known nothing expires in it, no gap is due, and stream time is -1. The first time
  that a message or a silence says is, from then on, the time of everything that came before it.
- What stands for an erased message is a moment of its topic-partition's stream time, and nothing else.
- A session is forgotten when its topic-partition's stream time is more than twice the session timeout past its last
  message: until then a message's own timestamp may take the expiry back, from then on any message begins a new life.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict

from sessionlake.errors import UsageError
from sessionlake_lab.truth.model import KafkaMessage, Rules, SessionKey, Tables
from sessionlake_lab.truth.outcomes import PartitionState
from sessionlake_lab.truth.reading import NO_TIMESTAMP, MalformedError, ParsedMessage
from sessionlake_lab.truth.session import ENDED, EXPIRED, Cause, Life, Session, is_taken, take
from sessionlake_lab.truth.snapshots import Snapshots, table_of
from sessionlake_lab.truth.verdict import MessageJudge, TopicRules

ERASED = (b"\0erased", None)
"""Key and value of what stands for an erased message."""


class Truth:
    """Feed every message of a topic-partition in offset order, then `finish`.

    Args:
        rules: how to judge.
        keep_changes: False leaves `session_changes`, `session_cuts` and `session_snapshots` empty: about 1 KB a change.
    """

    def __init__(self, rules: Rules, *, keep_changes: bool = True) -> None:
        self._rules = rules
        self._terms: dict[str, TopicRules] = {}
        self._sessions: dict[SessionKey, Session] = {}
        self._judge = MessageJudge(self._applied, keep_changes=keep_changes)
        self._outcomes = self._judge.outcomes
        self._snapshots = Snapshots(self._outcomes.tables, self._release_all, keep=keep_changes)
        self._finished = False

    def feed(self, message: KafkaMessage) -> None:
        """Judges one message.

        Raises:
            Violation: under `fail`; what was fed before is then of no further use.
            UsageError: after `finish`.
        """
        if self._finished:
            raise UsageError(
                "the truth is finished and takes no more messages; make a new Truth and feed it all of them"
            )
        terms = self._terms_of(message.topic)
        partition = self._outcomes.partition_of(message)
        partition.counts["messages"] += 1
        if message.timestamp != NO_TIMESTAMP and not terms.parser.is_from_the_future(message):
            self._time_comes_to(partition, message.timestamp, message.topic, message.partition)
        self._judge.judge_due_holes(partition, terms)
        self._snapshots.pass_time(partition, terms)
        if (message.key, message.value) == ERASED:
            return
        try:
            said = terms.parser.parse(message, partition.stream_time)
        except MalformedError as error:
            self._outcomes.quarantine(message, error.reason)
            return
        session = self._session_of(terms, said)
        self._arrive(terms, session, said)
        self._snapshots.after(partition, terms, session)

    def silence(self, topic: str, partition: int, until: int) -> None:
        """Notes that no message came behind what was fed of a topic-partition, and stream time went on to `until`, ms.

        Raises:
            Violation: under `fail`, by a message that only an expiry releases, or a gap that was not filled.
        """
        found, terms = self._outcomes.partitions.get((topic, partition)), self._terms_of(topic)
        if found is not None:
            self._time_comes_to(found, until, topic, partition)
            self._judge.judge_due_holes(found, terms)
            self._snapshots.pass_time(found, terms)

    def _time_comes_to(self, partition: PartitionState, time: int, topic: str, number: int) -> None:
        """Moves stream time on. The first time that is known counts for all that was there before it."""
        if partition.is_timed:
            partition.stream_time = max(partition.stream_time, time)
            return
        partition.stream_time, partition.is_timed = time, True
        mine = [s for s in self._sessions.values() if (s.topic, s.partition) == (topic, number)]
        for session in mine:
            session.life.last_timestamp = None if session.life.last_timestamp is None else time
            session.changed_at = None if session.changed_at is None else time
            session.wake = None
        partition.wakes.clear()
        for session in mine:
            self._snapshots.wake_for(partition, self._terms_of(topic), session)
        self._judge.begin_time(partition, self._terms_of(topic))

    def finish(self) -> Tables:
        """Expires the sessions that went silent before their topic-partition's last time, and gives the tables.

        Raises:
            Violation: under `fail`, by a message that only the expiry releases, or a gap overdue as it showed.
            UsageError: when finished before.
        """
        if self._finished:
            raise UsageError("the truth is finished already; keep the tables of the first finish")
        self._finished = True
        for (topic, _), partition in self._outcomes.partitions.items():
            self._judge.judge_due_holes(partition, self._terms_of(topic))
        for key, session in self._sessions.items():
            self._expire_if_silent(session)
            terms = self._terms_of(session.topic)
            self._outcomes.tables.session_rows[key] = table_of(session, terms)
            self._outcomes.tables.sessions[key] = session.as_row()
            self._outcomes.partitions[session.topic, session.partition].counts["held"] += len(session.life.held)
        self._note_split_ids()
        return self._outcomes.tables

    def _note_split_ids(self) -> None:
        """An id that came in two partitions of a topic is two sessions, and each of them has an event about it."""
        where = defaultdict[tuple[str, str], list[int]](list)
        for topic, partition, session_id in self._sessions:
            where[topic, session_id].append(partition)
        for (topic, session_id), partitions in where.items():
            if len(partitions) > 1:
                for partition in partitions:
                    self._outcomes.split(topic, partition, session_id)

    def _terms_of(self, topic: str) -> TopicRules:
        terms = self._terms.get(topic)
        if terms is None:
            terms = self._terms[topic] = TopicRules(self._rules.for_topic(topic))
        return terms

    def _session_of(self, terms: TopicRules, said: ParsedMessage) -> Session:
        """The session with this message noted; a life that timed out before it has ended and a new one begun."""
        kafka = said.kafka
        key = kafka.topic, kafka.partition, said.session_id
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(kafka.topic, said.session_id, kafka.partition)
        last = session.life.last_timestamp
        if last is not None and self._is_over(terms, session, said):
            self._judge.judge_holes_of_past(terms, session.life)
            session.life = Life()
            session.lives += 1
            session.expired_at = session.position
        life = session.life
        if life.last_timestamp is None:
            life.first_offset = kafka.offset
        life.last_offset, life.last_timestamp = kafka.offset, said.time
        return session

    def _is_over(self, terms: TopicRules, session: Session, said: ParsedMessage) -> bool:
        """Whether the session's life ended before this message: by its own timestamp, or because it is forgotten."""
        last, timeout = session.life.last_timestamp, terms.rules.session_timeout_ms
        now = self._outcomes.partition_of(said.kafka).stream_time
        return last is not None and (said.time > last + timeout or now > last + 2 * timeout)

    def _arrive(self, terms: TopicRules, session: Session, said: ParsedMessage) -> None:
        integrity, life = terms.rules.integrity, session.life
        if _is_duplicate(integrity, life, said.seq):
            life.duplicates += 1
            self._outcomes.count(said.kafka, "duplicates")
            self._outcomes.event(said, "duplicate", "dropped", life.next_seq)
        elif integrity == "window":
            self._hold_back(terms, session, said)
        else:
            self._judge.judge(terms, session, said, self._arrival(said))

    # -- class `window`: held back until the watermark passes

    def _hold_back(self, terms: TopicRules, session: Session, said: ParsedMessage) -> None:
        life, lateness = session.life, terms.rules.lateness_ms
        life.highest_ts = said.ts if life.highest_ts is None else max(life.highest_ts, said.ts)
        if said.ts < life.highest_ts - lateness:
            life.late += 1
            self._outcomes.event(said, "late", "quarantined", life.next_seq)
            self._outcomes.quarantine(said.kafka, "late")
            return
        if said.seq is not None and self._judge.has_too_many_gaps(terms, session, said, said.seq):
            return
        if said.seq is not None:
            take(life, said.seq, terms.rules.max_gaps)
        insort(life.held, said, key=lambda held: (held.ts, held.seq))
        self._release(terms, session, self._arrival(said))
        self._make_room(terms, session, said)

    def _make_room(self, terms: TopicRules, session: Session, said: ParsedMessage) -> None:
        rules, held = terms.rules, session.life.held

        def too_much() -> bool:
            return len(held) > rules.max_held_messages or sum(map(_size, held)) > rules.max_held_bytes

        if too_much() and self._judge.may_pass(terms, session, said, "held_limit"):
            while too_much():
                self._judge.judge(terms, session, held.pop(0), self._arrival(said))
        elif too_much():
            held.remove(said)

    def _release(self, terms: TopicRules, session: Session, cause: Cause) -> None:
        life = session.life
        while life.held and life.highest_ts is not None and life.held[0].ts < life.highest_ts - terms.rules.lateness_ms:
            self._judge.judge(terms, session, life.held.pop(0), cause)

    def _release_all(self, terms: TopicRules, session: Session, cause: Cause) -> None:
        while session.life.held:
            self._judge.judge(terms, session, session.life.held.pop(0), cause)

    def _arrival(self, said: ParsedMessage) -> Cause:
        offset = said.kafka.offset
        return Cause(offset, self._outcomes.partition_of(said.kafka).stream_time, offset)

    def _applied(self, terms: TopicRules, session: Session, kind: str, cause: Cause) -> None:
        """A message was applied: the table has changed, or the session has ended, which is cut at once."""
        if kind == "end":
            self._snapshots.cut(terms, session, "end", cause.at, cause.by)
        elif kind in {"snapshot", "update"} and session.changed_at is None:
            session.changed_at = cause.at

    # -- the end

    def _expire_if_silent(self, session: Session) -> None:
        terms, life = self._terms_of(session.topic), session.life
        partition = self._outcomes.partitions[session.topic, session.partition]
        if life.last_timestamp is None:
            return
        expiry = life.last_timestamp + terms.rules.session_timeout_ms
        if expiry >= partition.stream_time:
            return
        if life.status != ENDED:
            life.status, life.ended_at = EXPIRED, expiry


def _size(said: ParsedMessage) -> int:
    return len(said.kafka.value or b"")


def _is_duplicate(integrity: str, life: Life, seq: int | None) -> bool:
    if integrity == "none" or seq is None:
        return False
    if integrity in {"once", "window"}:
        return is_taken(life, seq)
    return life.next_seq is not None and seq < life.next_seq
