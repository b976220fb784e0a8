"""Records the integrity events of a session, and chooses what to do about its violations."""

from __future__ import annotations

from collections.abc import Mapping

from sessionlake.integrity.chains import ChainGap
from sessionlake.integrity.cursor import OpenGap, SessionCursor, SessionStatus
from sessionlake.integrity.outcome import (
    IntegrityEvent,
    IntegrityEventAction,
    IntegrityEventKind,
    JudgingOutcome,
    MessageHeader,
)
from sessionlake.integrity.rules import JudgingRules, OperatorDecision
from sessionlake.protocol.message import INT64_MAX, NO_SEQ, SeqLink
from sessionlake.settings.section import Integrity, OnViolation

_WITHOUT_NEXT_SEQ = frozenset({SeqLink.LINK, SeqLink.CHAINED, SeqLink.REPEATED})
Seqs = tuple[int | None, int | None]
"""The expected seq (None: any, or unknown) and the actual seq (None: the message has none) of an event."""


class ViolationError(Exception):
    """A session violates its class, and the policy is `fail`. The violation is already recorded; judging stops here."""


class EventRecorder:
    """Records the events of one session in the outcome of its batch.

    Args:
        cursor: The session's cursor.
        rules: The rules of the session's topic.
        outcome: Where events and followed decisions are recorded.
        decisions: Operators' decisions, by the offset of the message.
    """

    def __init__(
        self,
        cursor: SessionCursor,
        rules: JudgingRules,
        outcome: JudgingOutcome,
        decisions: Mapping[int, OperatorDecision],
    ) -> None:
        self._cursor, self._rules, self._outcome, self._decisions = cursor, rules, outcome, decisions

    def record_integrity_event(
        self, message: MessageHeader, kind: IntegrityEventKind, action: IntegrityEventAction
    ) -> None:
        """Records an event that a message has caused, and what was done about it."""
        self._append_integrity_event(kind, action, message, self.find_expected_and_actual_seq(message))

    def record_message_skipped_by_operator(self, message: MessageHeader) -> None:
        """Records that an operator decided to skip a message. It is not judged, so the event has no expected seq."""
        self._append_integrity_event(
            IntegrityEventKind.SKIPPED,
            IntegrityEventAction.QUARANTINED,
            message,
            (None, self.find_expected_and_actual_seq(message)[1]),
        )

    def record_chain_gap(self, gap: ChainGap) -> None:
        """Records missing seqs of a counter that the session shares, if the session is open.

        Under `strict` it is a violation.

        Raises:
            ViolationError: It is a violation, and the policy is `fail`.
        """
        cursor = self._cursor
        if cursor.status != SessionStatus.OPEN or cursor.last_seq == NO_SEQ:
            return
        cursor.gaps += 1
        seqs = gap.expected, gap.actual
        if self._rules.integrity is not Integrity.STRICT:
            self._append_integrity_event(IntegrityEventKind.GAP, IntegrityEventAction.APPLIED, gap, seqs)
        elif self.record_violation(gap, IntegrityEventKind.GAP, seqs) is OnViolation.ISOLATE:
            cursor.status = SessionStatus.BROKEN

    def record_violation(
        self, cause: MessageHeader | OpenGap | ChainGap, kind: IntegrityEventKind, seqs: Seqs
    ) -> OnViolation:
        """Records a violation and returns the policy to follow.

        Args:
            cause: The message that violates the class, or the gap that was not filled in time, or of a chain.
            kind: What happened.
            seqs: The expected and the actual seq.

        Raises:
            ViolationError: The policy is `fail`.
        """
        policy = self.choose_violation_policy(cause.offset)
        self._append_integrity_event(kind, self._choose_violation_action(cause.offset, policy), cause, seqs)
        if policy is OnViolation.FAIL:
            raise ViolationError
        return policy

    def find_expected_and_actual_seq(self, message: MessageHeader) -> Seqs:
        """Returns the seq that the session expects next (None: any, or unknown), and a message's own (None: none)."""
        last = self._cursor.last_seq
        # The highest possible seq is its own successor: tables cannot hold a higher one.
        expected = None if last == NO_SEQ or message.link in _WITHOUT_NEXT_SEQ else min(last + 1, INT64_MAX)
        return expected, None if message.seq == NO_SEQ else message.seq

    def choose_violation_policy(self, offset: int) -> OnViolation:
        """Returns the policy for a violation by the message at this offset: an operator's decision, or the topic's."""
        decision = self._decisions.get(offset)
        if decision is None or decision.violation_policy is None:
            return self._rules.on_violation
        self._outcome.followed_decisions.add((self._outcome.session_number, offset))
        return decision.violation_policy

    def _choose_violation_action(self, offset: int, policy: OnViolation) -> IntegrityEventAction:
        """Returns what an event says was done about a violation."""
        if policy is OnViolation.RECORD:
            return IntegrityEventAction.ACCEPTED if offset in self._decisions else IntegrityEventAction.RECORDED
        return IntegrityEventAction.ISOLATED if policy is OnViolation.ISOLATE else IntegrityEventAction.STOPPED

    def _append_integrity_event(
        self,
        kind: IntegrityEventKind,
        action: IntegrityEventAction,
        cause: MessageHeader | OpenGap | ChainGap,
        seqs: Seqs,
    ) -> None:
        """Adds an event about a message or gap to the outcome."""
        session_and_kind, place = (self._outcome.session_number, kind, action), (cause.partition, cause.offset)
        self._outcome.events.append(IntegrityEvent(*session_and_kind, *place, *seqs, cause.kafka_ts))
