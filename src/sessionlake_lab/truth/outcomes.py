"""Where the truth notes what became of every message, and every judgement that was not "fine"."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessionlake_lab.truth.model import KafkaMessage, Tables
from sessionlake_lab.truth.reading import NO_TIMESTAMP, ParsedMessage, session_of
from sessionlake_lab.truth.session import Hole, Life, Session


@dataclass(slots=True, eq=False)
class PartitionState:
    """A topic-partition: its stream time, its counts, and the holes that wait for their deadline."""

    counts: dict[str, int]
    stream_time: int = NO_TIMESTAMP
    """The highest Kafka timestamp so far, of well-formed messages and others; those that say no time aside."""
    is_timed: bool = False
    """Whether any time is known yet."""
    waiting: list[tuple[int, int, Session, Life, Hole]] = field(default_factory=list)
    """A heap by (deadline, order of sight)."""
    wakes: list[tuple[int, int, Session]] = field(default_factory=list)
    """A heap by (stream time at which to look after the session, order of setting)."""


class OutcomeWriter:
    """Writes what became of messages into the expected tables, and counts it by topic-partition."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.partitions: dict[tuple[str, int], PartitionState] = {}

    def partition_of(self, message: KafkaMessage) -> PartitionState:
        """The topic-partition of a message."""
        where = message.topic, message.partition
        partition = self.partitions.get(where)
        if partition is None:
            counts = dict.fromkeys(("messages", "applied", "duplicates", "quarantined", "held"), 0)
            self.tables.counts[where] = counts
            partition = self.partitions[where] = PartitionState(counts)
        return partition

    def count(self, message: KafkaMessage, outcome: str, number: int = 1) -> None:
        """Notes what became of messages: applied, duplicates, quarantined or held."""
        self.partition_of(message).counts[outcome] += number

    def quarantine(self, message: KafkaMessage, reason: str) -> None:
        """Puts a message away, whole."""
        self.count(message, "quarantined")
        row = {**message._asdict(), "reason": reason, "session_id": session_of(message.key)}
        del row["ingested_at"]
        self.tables.quarantine.append(row)

    def event(self, said: ParsedMessage, event: str, action: str, expected: int | None) -> None:
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

    def split(self, topic: str, partition: int, session_id: str) -> None:
        """Records that a session's id came in other partitions of its topic, too: about no message, at no time."""
        names = ("offset", "expected_seq", "actual_seq", "kafka_timestamp")
        row = {"topic": topic, "partition": partition, "session_id": session_id, **dict.fromkeys(names)}
        self.tables.integrity_events.append(row | {"event": "split_session", "action": "recorded"})
