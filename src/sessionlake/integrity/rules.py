"""What a topic's streams are judged by: the integrity class, the policy and the times, resolved per topic."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from sessionlake.protocol.decode import DecodeRules
from sessionlake.settings.capture import CaptureSettings, Integrity, OnViolation, milliseconds


class Decision(StrEnum):
    """What an operator decided about one message at which a session broke its class."""

    ACCEPT_GAP = "accept-gap"
    ISOLATE = "isolate"
    SKIP = "skip-message"

    @property
    def policy(self) -> OnViolation | None:
        """The policy that replaces the configured one; None if the message is not to be judged at all."""
        return {Decision.ACCEPT_GAP: OnViolation.RECORD, Decision.ISOLATE: OnViolation.ISOLATE}.get(self)


DecisionKey = tuple[str, int, str, int]
"""Topic, partition, session id and offset of the message that an operator decided about."""


@dataclass(frozen=True)
class Rules:
    """How the sessions of one topic are judged. Times in milliseconds, limits a session."""

    integrity: Integrity
    on_violation: OnViolation
    session_timeout: int
    lateness: int
    gap_timeout: int
    max_held_messages: int = 10_000
    max_held_bytes: int = 64 << 20
    max_gaps: int = 10_000
    snapshot_interval: int = 600_000


@dataclass
class RuleBook:
    """Finds a topic's rules: the first `by_topic` entry that matches its whole name, over the defaults.

    Attributes:
        snapshot_interval: of all topics, ms.
    """

    capture: CaptureSettings
    snapshot_interval: int = 600_000
    _known: dict[str, Rules] = field(default_factory=dict)

    def of(self, topic: str) -> Rules:
        """The topic's rules."""
        if topic not in self._known:
            self._known[topic] = self._resolve(topic)
        return self._known[topic]

    def _resolve(self, topic: str) -> Rules:
        capture = self.capture
        rule = next((rule for rule in capture.by_topic if re.fullmatch(rule.pattern, topic)), None)
        return Rules(
            integrity=(rule and rule.integrity) or capture.integrity,
            on_violation=(rule and rule.on_violation) or capture.on_violation,
            session_timeout=milliseconds(capture.session_timeout),
            lateness=milliseconds((rule and rule.lateness) or capture.lateness),
            gap_timeout=milliseconds(capture.gap_timeout),
            max_held_messages=capture.max_held_messages,
            max_held_bytes=capture.max_held_bytes,
            max_gaps=capture.max_gaps,
            snapshot_interval=self.snapshot_interval,
        )


@dataclass(frozen=True)
class SeqOptional:
    """Whether the messages of a topic may lack a `seq`: under class `none`."""

    capture: CaptureSettings

    def __call__(self, topic: str) -> bool:
        """Answers for one topic."""
        return RuleBook(self.capture).of(topic).integrity is Integrity.NONE


def decode_rules(capture: CaptureSettings) -> DecodeRules:
    """What decides whether a value is a message, out of the configuration."""
    skew = milliseconds(capture.max_future_skew)
    return DecodeRules(capture.declared, capture.max_message_bytes, skew, SeqOptional(capture))
