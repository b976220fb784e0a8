"""Judges the messages that `sessionlake feed try` reads, with the code of silver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.lines import MessageOfLine
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import FeedTrial, TrialOutcome
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.capture import CaptureSettings
from sessionlake.silver.fold.schemas import StoppingViolation
from sessionlake.silver.in_memory import EventAndQuarantineRows, SilverInMemory, StoppedAtViolationError
from sessionlake.streaming.payloads import build_feed_decoder

BLOCK = 500
"""Number of messages of a file that are judged at once."""
_NOTHING = EventAndQuarantineRows([], [])
_SHOWN = ("topic", "partition", "offset", "session_id", "event", "expected_seq", "actual_seq")
"""What is shown of a violation."""


@dataclass
class SilverTrialJudge:
    """Judges tried messages as silver does.

    Attributes:
        silver: Silver's tables after the judged messages.
        block: Number of messages that are judged at once. With 1, each is shown as soon as it is read.
        stopped: The violation at which silver stops, with `on_violation: fail`; None if it does not stop.
        last_offsets: The last offset of each topic-partition.
    """

    silver: SilverInMemory
    block: int = BLOCK
    stopped: Row | None = None
    last_offsets: dict[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def create(cls, capture: CaptureSettings, only: str | None, *, block: int) -> SilverTrialJudge:
        """Returns a trial of no messages yet.

        Args:
            capture: The settings of capture.
            only: Name of the feed that reads messages whatever their topic is; None to choose by topic.
            block: As in the attributes.
        """
        if only is not None:
            feeds = [feed.model_copy(update={"topics": ".*"}) for feed in capture.feeds if feed.name == only]
            capture = capture.model_copy(update={"feeds": tuple(feeds)})
        decoder = build_feed_decoder(capture, 1)
        if decoder is None:
            raise ValueError("the configuration has no feeds")
        return cls(SilverInMemory(capture, decoder), block)

    def judge_lines(
        self, trial: FeedTrial, lines: Iterable[MessageOfLine]
    ) -> Iterator[tuple[MessageOfLine, TrialOutcome]]:
        """Reads messages and judges them; yields each with its outcome.

        Args:
            trial: Reads the messages.
            lines: The messages.
        """
        source = iter(lines)
        while block := list(islice(source, self.block)):
            outcomes = [trial.read_message(line.record, has_no_topic=line.is_bare) for line in block]
            is_followed = trial.totals.followed is None
            read = [one.record for one in outcomes if one.feed is not None and self._is_above_last_offset(one.record)]
            found = self._judge_records(read) if is_followed and self.stopped is None else _NOTHING
            reasons: dict[tuple[str, int, int], dict[str, str]] = {}
            for row in found.quarantine:
                if row["session_id"] is not None:
                    place = row["topic"], row["partition"], row["offset"]
                    reasons.setdefault(place, {})[row["session_id"]] = row["reason"]
            for line, outcome in zip(block, outcomes, strict=True):
                record = outcome.record
                own = reasons.get((record.topic, record.partition, record.offset), {})
                yield line, replace(outcome, quarantined=own if isinstance(outcome.found, DecodedMessage) else {})

    def _is_above_last_offset(self, record: KafkaRecord) -> bool:
        """Returns False for a message whose offset is not above those before. Kafka has no such message."""
        place = record.topic, record.partition
        is_next = record.offset > self.last_offsets.get(place, -1)
        if is_next:
            self.last_offsets[place] = record.offset
        return is_next

    def list_broken_sessions(self) -> list[Row]:
        """Returns the event at which each broken session broke, in the order in which they broke."""
        return [{name: row[name] for name in _SHOWN} for row in self.silver.breaks.values()]

    def _judge_records(self, records: Sequence[KafkaRecord]) -> EventAndQuarantineRows:
        """Judges messages. If silver stops at one of them, judges only those before it.

        The violation does not say which message that is: it may name an earlier one that is held or that opened a gap,
        whose time the later message ends. So halves of the messages are judged until the message is known.
        """
        if not records:
            return _NOTHING
        try:
            return self.silver.judge_and_apply_messages(records)
        except StoppedAtViolationError as error:
            if len(records) == 1:
                self.stopped = _list_shown_fields_of_violation(error.violation)
                return _NOTHING
        first_half = self._judge_records(records[: len(records) // 2])
        if self.stopped is not None:
            return first_half
        other_half = self._judge_records(records[len(records) // 2 :])
        return EventAndQuarantineRows(
            first_half.events + other_half.events, first_half.quarantine + other_half.quarantine
        )


def _list_shown_fields_of_violation(found: StoppingViolation) -> dict[str, Any]:
    return {name: getattr(found, name) for name in _SHOWN}
