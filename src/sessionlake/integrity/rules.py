"""The rules by which a topic's sessions are judged: integrity class, violation policy and timeouts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from sessionlake.feeds.feed import Feed
from sessionlake.protocol.decode import MessageDecodingRules
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation, milliseconds

SEQ_REMEMBERING_CLASSES = frozenset({Integrity.ONCE, Integrity.WINDOW})
"""The classes that remember which seqs were applied or held back."""


class OperatorDecision(StrEnum):
    """An operator's decision about one message that violated its session's integrity class."""

    ACCEPT_GAP = "accept-gap"
    ISOLATE = "isolate"
    SKIP = "skip-message"

    @property
    def violation_policy(self) -> OnViolation | None:
        """The violation policy that replaces the configured one; None if the message is skipped instead of judged."""
        return {OperatorDecision.ACCEPT_GAP: OnViolation.RECORD, OperatorDecision.ISOLATE: OnViolation.ISOLATE}.get(
            self
        )


DecisionKey = tuple[str, int, str, int]
"""Topic, partition, session id and offset of the message that a decision is about."""


@dataclass(frozen=True)
class JudgingRules:
    """How the sessions of one topic are judged. Times are in milliseconds. The `max_` limits apply to each session."""

    integrity: Integrity
    on_violation: OnViolation
    session_timeout: int
    lateness: int
    gap_timeout: int
    max_held_messages: int = 10_000
    max_held_bytes: int = 64 << 20
    max_gaps: int = 10_000
    snapshot_interval: int = 600_000
    starts_with_anything: bool = False
    """True if a session may begin with any message, not only with a snapshot."""
    hold: int = 0
    """Most messages that a session without a snapshot holds back until one arrives; 0 if it holds none back."""
    holds_rows: bool = False
    """True if the session's rows are kept in memory while its messages are judged, because its feed needs them."""
    modulo: int | None = None
    """The number at which the producer's counter starts again at 0; None if it rises for ever."""
    has_links_to_previous_seq: bool = False
    """True if each message names the seq of the message before it, so that the next seq is not known."""
    has_chains: bool = False
    """True if sessions share a counter. Then all sessions of the topic are in one shard."""

    @property
    def knows_next_seq(self) -> bool:
        """True if the seq of a session's next message is known before the message."""
        return not (self.has_links_to_previous_seq or self.has_chains)

    @property
    def holds_back_messages(self) -> bool:
        """True if sessions hold messages back: by event time, or until a snapshot arrives."""
        return self.integrity is Integrity.WINDOW or self.hold > 0


NEVER_EXPIRES = 1 << 60
"""Session timeout (ms) of sessions that do not expire. Twice this value still fits in 64 bits, added to any time."""


@dataclass
class JudgingRuleLookup:
    """Looks up a topic's rules: from its feed, else from the first matching entry of `by_topic`, else the defaults.

    Attributes:
        capture: The capture settings, which have the feeds, `by_topic` and the defaults.
        snapshot_interval: The time between snapshots of a session's table, in ms; the same for all topics.
    """

    capture: CaptureSettings
    snapshot_interval: int = 600_000
    _known: dict[str, JudgingRules] = field(default_factory=dict)
    _feeds: dict[str, Feed] = field(default_factory=dict)

    def find_judging_rules(self, topic: str) -> JudgingRules:
        """Returns the rules by which sessions of this topic are judged."""
        if topic not in self._known:
            self._known[topic] = self._build_judging_rules(topic)
        return self._known[topic]

    def find_feed(self, topic: str) -> Feed:
        """Returns the feed that reads this topic. The configuration must have one."""
        if topic not in self._feeds:
            self._feeds[topic] = next(feed for feed in self.capture.feeds if re.fullmatch(feed.topics, topic)).build()
        return self._feeds[topic]

    def _build_judging_rules(self, topic: str) -> JudgingRules:
        capture = self.capture
        rule = next((rule for rule in capture.by_topic if re.fullmatch(rule.pattern, topic)), None)
        feed = next((feed for feed in capture.feeds if re.fullmatch(feed.topics, topic)), None)
        timeout = (feed and feed.session_timeout) or capture.session_timeout
        return JudgingRules(
            integrity=(feed and feed.integrity) or (rule and rule.integrity) or capture.integrity,
            on_violation=(feed and feed.on_violation) or (rule and rule.on_violation) or capture.on_violation,
            session_timeout=NEVER_EXPIRES if isinstance(timeout, str) else milliseconds(timeout),
            lateness=milliseconds((feed and feed.lateness) or (rule and rule.lateness) or capture.lateness),
            gap_timeout=milliseconds((feed and feed.gap_timeout) or capture.gap_timeout),
            starts_with_anything=feed is not None and feed.starts_with == "anything",
            hold=0 if feed is None else feed.hold,
            holds_rows=feed is not None and feed.holds_rows,
            modulo=None if feed is None else feed.modulo,
            has_links_to_previous_seq=feed is not None and feed.has_links_to_previous_seq,
            has_chains=feed is not None and feed.has_chains,
            max_held_messages=capture.max_held_messages,
            max_held_bytes=capture.max_held_bytes,
            max_gaps=capture.max_gaps,
            snapshot_interval=self.snapshot_interval,
        )


@dataclass(frozen=True)
class OptionalSeqCheck:
    """A picklable function that says whether messages of a topic may lack a `seq`. They may only under class `none`."""

    capture: CaptureSettings

    def __call__(self, topic: str) -> bool:
        """Returns True if messages of the topic may lack a `seq`."""
        return JudgingRuleLookup(self.capture).find_judging_rules(topic).integrity is Integrity.NONE


def build_decode_rules(capture: CaptureSettings) -> MessageDecodingRules:
    """Returns the rules for decoding messages, such as the declared columns and the maximum size."""
    skew = milliseconds(capture.max_future_skew)
    return MessageDecodingRules(capture.declared_columns, capture.max_message_bytes, skew, OptionalSeqCheck(capture))
