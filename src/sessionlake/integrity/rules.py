"""The rules by which a topic's sessions are judged: integrity class, violation policy and timeouts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from sessionlake.protocol.decode import DecodeRules
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation, milliseconds


class Decision(StrEnum):
    """An operator's decision about one message that violated its session's integrity class."""

    ACCEPT_GAP = "accept-gap"
    ISOLATE = "isolate"
    SKIP = "skip-message"

    @property
    def policy(self) -> OnViolation | None:
        """The violation policy that replaces the configured one; None if the message is skipped instead of judged."""
        return {Decision.ACCEPT_GAP: OnViolation.RECORD, Decision.ISOLATE: OnViolation.ISOLATE}.get(self)


DecisionKey = tuple[str, int, str, int]
"""Topic, partition, session id and offset of the message that a decision is about."""


@dataclass(frozen=True)
class Rules:
    """How the sessions of one topic are judged. Times are in milliseconds; the `max_` limits apply to each session."""

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
class RuleLookup:
    """Looks up a topic's rules: the first entry of `by_topic` whose pattern matches it, with defaults for the rest.

    Attributes:
        capture: The capture settings, which contain the defaults and `by_topic`.
        snapshot_interval: Time between snapshots of a session's table, in ms; the same for all topics.
    """

    capture: CaptureSettings
    snapshot_interval: int = 600_000
    _known: dict[str, Rules] = field(default_factory=dict)

    def find_rules(self, topic: str) -> Rules:
        """Returns the rules by which sessions of this topic are judged."""
        if topic not in self._known:
            self._known[topic] = self._resolve_rules(topic)
        return self._known[topic]

    def _resolve_rules(self, topic: str) -> Rules:
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
class IsSeqOptional:
    """A function that says whether messages of a topic may lack a `seq`: only under class `none`. Picklable."""

    capture: CaptureSettings

    def __call__(self, topic: str) -> bool:
        """Returns True if messages of the topic may lack a `seq`."""
        return RuleLookup(self.capture).find_rules(topic).integrity is Integrity.NONE


def build_decode_rules(capture: CaptureSettings) -> DecodeRules:
    """Returns the rules by which a Kafka value is accepted as a message, from the capture settings."""
    skew = milliseconds(capture.max_future_skew)
    return DecodeRules(capture.declared, capture.max_message_bytes, skew, IsSeqOptional(capture))
