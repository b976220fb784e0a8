"""What is decided about one message, and what follows from it.

Where the protocol leaves a choice, these hold:

- `none` knows no duplicates and counts no gaps, but what follows an `end` is a violation as in every class.
- `once`: a gap is counted and recorded when it shows (`applied`), and becomes a violation when the stream time of
  its topic-partition passes the revealing message's timestamp + `gap_timeout`; that event bears the revealing
  message's offset and is not counted again. It does not break a session that ended or has a newer snapshot.
- `once`: the first `end` that is applied ends the session and says where, even if higher seqs are applied already,
  which stay. From then on what is missing below that place is applied in its turn, and what is above is `after_end`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sessionlake_lab.truth.model import Rules, Violation
from sessionlake_lab.truth.outcomes import OutcomeWriter, PartitionState
from sessionlake_lab.truth.reading import MessageParser, ParsedMessage
from sessionlake_lab.truth.session import (
    BROKEN,
    ENDED,
    OPEN,
    Cause,
    Hole,
    Life,
    Session,
    changes,
    fold,
    gaps_with,
    is_taken,
    leave,
    take,
)


class TopicRules:
    """What a topic's messages are read and judged by."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.parser = MessageParser(rules)
        self.all_null = dict.fromkeys(rules.columns)


OnApplied = Callable[[TopicRules, Session, str, Cause], None]


class MessageJudge:
    """Judges messages that are due, by class and policy.

    Args:
        on_applied: told of every message that is applied, by its kind; an `end` after the end is none.
    """

    def __init__(self, on_applied: OnApplied, *, keep_changes: bool) -> None:
        self.outcomes = OutcomeWriter()
        self._on_applied = on_applied
        self._keep_changes = keep_changes
        self._holes_seen = 0

    def judge(self, terms: TopicRules, session: Session, said: ParsedMessage, cause: Cause) -> None:
        """Judges a message that is no duplicate."""
        life, integrity, expected = session.life, terms.rules.integrity, session.life.next_seq
        is_snapshot = said.kind == "snapshot"
        if life.status == ENDED and not _is_below_the_end(integrity, life, said):
            self._violation(terms, session, said, cause, "after_end")
        elif life.status == BROKEN:
            if is_snapshot and (expected is None or said.seq is None or said.seq >= expected):
                self.outcomes.event(said, "healed", "applied", expected)
                self._apply(terms, session, said, cause)
            else:
                self._set_aside(session, said, "session_broken")
        elif integrity == "none":
            self._apply(terms, session, said, cause)
        elif integrity == "once" and said.seq is not None and self.has_too_many_gaps(terms, session, said, said.seq):
            return
        elif expected is None:
            if is_snapshot or integrity == "once":
                self._apply(terms, session, said, cause)
            else:
                self._violation(terms, session, said, cause, "orphan")
        elif said.seq is not None and said.seq > expected:
            self._gap(terms, session, said, cause)
        else:
            self._apply(terms, session, said, cause)

    def has_too_many_gaps(self, terms: TopicRules, session: Session, said: ParsedMessage, seq: int) -> bool:
        """Whether a message is set aside because taking its seq would leave more gaps than are allowed."""
        too_many = gaps_with(session.life, seq) > terms.rules.max_gaps
        return too_many and not self.may_pass(terms, session, said, "gap_limit")

    def may_pass(self, terms: TopicRules, session: Session, said: ParsedMessage, event: str) -> bool:
        """Under `record`, notes the violation and lets the message on; under `isolate`, sets it aside."""
        rules, life, kafka = terms.rules, session.life, said.kafka
        if rules.on_violation == "fail":
            raise Violation(
                rules.integrity, event, kafka.topic, kafka.partition, said.session_id, kafka.offset,
                life.next_seq, said.seq,
            )  # fmt: skip
        passes = rules.on_violation == "record"
        self.outcomes.event(said, event, "recorded" if passes else "isolated", life.next_seq)
        if not passes:
            life.status = life.status if life.status == ENDED else BROKEN
            self._set_aside(session, said, event)
        return passes

    def _gap(self, terms: TopicRules, session: Session, said: ParsedMessage, cause: Cause) -> None:
        session.life.gaps += 1
        if terms.rules.integrity == "strict":
            self._violation(terms, session, said, cause, "gap")
            return
        self.outcomes.event(said, "gap", "applied", session.life.next_seq)
        if terms.rules.integrity == "once":
            self._open_hole(terms, session, said)
        self._apply(terms, session, said, cause)

    def _violation(self, terms: TopicRules, session: Session, said: ParsedMessage, cause: Cause, event: str) -> None:
        if event == "gap" and said.kind == "snapshot" and terms.rules.on_violation == "isolate":
            self.outcomes.event(said, event, "isolated", session.life.next_seq)
            self._apply(terms, session, said, cause)  # it names the gap and heals it at once
        elif self.may_pass(terms, session, said, event):
            self._apply(terms, session, said, cause)

    def _apply(self, terms: TopicRules, session: Session, said: ParsedMessage, cause: Cause) -> None:
        life, seq = session.life, said.seq
        session.position = max(session.position + 1, cause.releasing)
        epoch = _epoch_of(terms.rules.integrity, life, said)
        if life.status == BROKEN:
            life.status = OPEN
        ends = said.kind == "end" and life.status == OPEN
        if ends:
            life.status, life.ended_at, life.end_seq = ENDED, said.ts, seq
        if seq is not None:
            life.next_seq = seq + 1 if life.next_seq is None else max(life.next_seq, seq + 1)
        life.messages += 1
        life.first_ts = said.ts if life.first_ts is None else min(life.first_ts, said.ts)
        life.last_ts = said.ts if life.last_ts is None else max(life.last_ts, said.ts)
        self.outcomes.count(said.kafka, "applied")
        made = len(said.rows) + len(said.deleted) + (said.kind == "snapshot")
        session.fresh += made
        session.unkept += made
        if self._keep_changes:
            self.outcomes.tables.session_changes += changes(said, epoch, session.position, cause, terms.all_null)
        if terms.rules.integrity == "once" and seq is not None:
            take(life, seq, terms.rules.max_gaps)
            session.log.append((session.lives, seq, epoch, said))
        else:
            fold(session.rows, said, epoch, terms.all_null)
        self._on_applied(terms, session, "after end" if said.kind == "end" and not ends else said.kind, cause)

    def _set_aside(self, session: Session, said: ParsedMessage, reason: str) -> None:
        if said.seq is not None:
            leave(session.life, said.seq)
        self.outcomes.quarantine(said.kafka, reason)

    def _open_hole(self, terms: TopicRules, session: Session, said: ParsedMessage) -> None:
        start = session.life.next_seq
        if start is None or said.seq is None:
            return
        hole = Hole(start, said.seq, said, said.seq - start, said.time)
        session.life.holes.append(hole)
        self._holes_seen += 1
        deadline = said.time + terms.rules.gap_timeout_ms
        partition = self.outcomes.partition_of(said.kafka)
        heapq.heappush(partition.waiting, (deadline, self._holes_seen, session, session.life, hole))

    def begin_time(self, partition: PartitionState, terms: TopicRules) -> None:
        """Counts the deadlines of all gaps from the first known time on."""
        partition.waiting = [
            (partition.stream_time + terms.rules.gap_timeout_ms, number, session, life, hole)
            for _, number, session, life, hole in partition.waiting
        ]
        heapq.heapify(partition.waiting)
        for *_, hole in partition.waiting:
            hole.opened = partition.stream_time

    def judge_due_holes(self, partition: PartitionState, terms: TopicRules) -> None:
        """Finds the gaps (class `once`) whose deadline the topic-partition's stream time has passed unfilled."""
        while partition.waiting and partition.waiting[0][0] < partition.stream_time:
            _, _, session, life, hole = heapq.heappop(partition.waiting)
            if hole.missing and life is session.life and hole in life.holes:
                life.holes.remove(hole)
                self._unfilled(terms.rules, life, hole)

    def judge_holes_of_past(self, terms: TopicRules, life: Life) -> None:
        """Finds the gaps of a life that is over: they will not be filled, however long there still was."""
        for hole in sorted(life.holes, key=lambda hole: hole.opened):
            if hole.missing and hole in life.holes:
                life.holes.remove(hole)
                self._unfilled(terms.rules, life, hole)

    def _unfilled(self, rules: Rules, life: Life, hole: Hole) -> None:
        first = next(seq for seq in range(hole.start, hole.end) if not is_taken(life, seq))
        said = hole.revealed
        if rules.on_violation == "fail":
            raise Violation(
                rules.integrity, "gap", said.kafka.topic, said.kafka.partition, said.session_id, said.kafka.offset,
                first, said.seq,
            )  # fmt: skip
        isolate = rules.on_violation == "isolate"
        self.outcomes.event(said, "gap", "isolated" if isolate else "recorded", first)
        whole_again = life.epoch_seq is not None and life.epoch_seq >= hole.end
        if isolate and life.status == OPEN and not whole_again:
            life.status = BROKEN
            life.holes.clear()


def _is_below_the_end(integrity: str, life: Life, said: ParsedMessage) -> bool:
    if integrity != "once" or said.seq is None or life.end_seq is None:
        return False
    return said.seq < life.end_seq


def _epoch_of(integrity: str, life: Life, said: ParsedMessage) -> int:
    """The offset of the last snapshot up to this message (under `once`: by seq); a snapshot is noted on the way."""
    if integrity == "once" and said.seq is not None:
        if said.kind == "snapshot":
            life.epochs[said.seq] = said.kafka.offset
            life.epoch_seq = max(life.epochs)
            life.epoch = life.epochs[life.epoch_seq]
        if life.epoch_seq is not None and said.seq >= life.epoch_seq:
            return life.epoch
        before = [seq for seq in life.epochs if seq <= said.seq]
        return life.epochs[max(before)] if before else -1
    if said.kind == "snapshot":
        life.epoch = said.kafka.offset
    return life.epoch
