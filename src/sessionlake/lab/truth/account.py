"""The books: what became of every message, and every judgement that was not "fine"."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessionlake.lab.truth.model import KafkaMessage, Tables
from sessionlake.lab.truth.reading import Said, session_of
from sessionlake.lab.truth.session import Hole, Life, Session


@dataclass(slots=True, eq=False)
class Lane:
    """A topic-partition: its stream time, its counts, and the holes that wait for their deadline."""

    stream_time: int
    """The highest Kafka timestamp so far, of well-formed messages and others."""
    counts: dict[str, int]
    waiting: list[tuple[int, int, Session, Life, Hole]] = field(default_factory=list)
    """A heap by (deadline, order of sight)."""
    wakes: list[tuple[int, int, Session]] = field(default_factory=list)
    """A heap by (stream time at which to look after the session, order of setting)."""


class Account:
    """Writes outcomes into the tables."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.lanes: dict[tuple[str, int], Lane] = {}

    def lane_of(self, message: KafkaMessage) -> Lane:
        """The topic-partition of a message."""
        where = message.topic, message.partition
        lane = self.lanes.get(where)
        if lane is None:
            counts = dict.fromkeys(("messages", "applied", "duplicates", "quarantined", "held"), 0)
            self.tables.counts[where] = counts
            lane = self.lanes[where] = Lane(message.timestamp, counts)
        return lane

    def count(self, message: KafkaMessage, outcome: str, number: int = 1) -> None:
        """Notes what became of messages: applied, duplicates, quarantined or held."""
        self.lane_of(message).counts[outcome] += number

    def quarantine(self, message: KafkaMessage, reason: str) -> None:
        """Puts a message away, whole."""
        self.count(message, "quarantined")
        row = {**message._asdict(), "reason": reason, "session_id": session_of(message.key)}
        self.tables.quarantine.append(row)

    def event(self, said: Said, event: str, action: str, expected: int | None) -> None:
        """Records a judgement that was not "fine"."""
        kafka = said.kafka
        self.tables.integrity_events.append(
            {
                "topic": kafka.topic,
                "partition": kafka.partition,
                "session_id": said.session_id,
                "offset": kafka.offset,
                "event": event,
                "action": action,
                "expected_seq": expected,
                "actual_seq": said.seq,
                "kafka_timestamp": kafka.timestamp,
            }
        )
