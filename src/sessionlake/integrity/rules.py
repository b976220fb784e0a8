"""What a topic's streams are judged by: the integrity class, the policy and the times, resolved per topic."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sessionlake.config import CaptureSettings, Integrity, OnViolation, milliseconds
from sessionlake.errors import ConfigError

AVAILABLE = (Integrity.STRICT, Integrity.ORDER)


@dataclass(frozen=True)
class Rules:
    """How the sessions of one topic are judged. Times in milliseconds."""

    integrity: Integrity
    on_violation: OnViolation
    session_timeout: int
    lateness: int
    gap_timeout: int


@dataclass
class RuleBook:
    """Finds a topic's rules: the first `by_topic` entry that matches its whole name, over the defaults."""

    capture: CaptureSettings
    _known: dict[str, Rules] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = {self.capture.integrity, *(rule.integrity for rule in self.capture.by_topic if rule.integrity)}
        for integrity in sorted(wanted - set(AVAILABLE)):
            raise ConfigError(
                f"capture.integrity: class {integrity} is not built in this version; available: {', '.join(AVAILABLE)}"
            )

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
        )
