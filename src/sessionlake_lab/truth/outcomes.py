"""Records the result of each message in the expected tables: counts, quarantine and integrity events."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessionlake_lab.truth.model import ExpectedTables, KafkaMessage
from sessionlake_lab.truth.reading import NO_TIMESTAMP, ParsedMessage, parse_session_id
from sessionlake_lab.truth.session import LifeState, OpenGap, SessionState


@dataclass(slots=True, eq=False)
class TopicPartitionState:
    """State of a topic-partition: stream time, counts, deadlines of open gaps, and due times of session checks."""

    counts: dict[str, int]
    stream_time: int = NO_TIMESTAMP
    """Highest Kafka timestamp so far, including malformed messages. -1 until a time is known."""
    is_timed: bool = False
    """True once a time is known."""
    gap_deadlines: list[tuple[int, int, SessionState, LifeState, OpenGap]] = field(default_factory=list)
    """A heap of open gaps, ordered by deadline and order of discovery."""
    checks: list[tuple[int, int, SessionState]] = field(default_factory=list)
    """A heap of sessions, ordered by the stream time of their next check and order of scheduling."""


class OutcomeWriter:
    """Writes the results of messages into the expected tables and counts them by topic-partition."""

    def __init__(self) -> None:
        self.tables = ExpectedTables()
        self.partitions: dict[tuple[str, int], TopicPartitionState] = {}

    def get_or_create_partition_state(self, message: KafkaMessage) -> TopicPartitionState:
        """Returns the state of the message's topic-partition, which is created at its first message."""
        where = message.topic, message.partition
        partition = self.partitions.get(where)
        if partition is None:
            counts = dict.fromkeys(("messages", "applied", "duplicates", "quarantined", "held"), 0)
            self.tables.counts[where] = counts
            partition = self.partitions[where] = TopicPartitionState(counts)
        return partition

    def count_messages(self, message: KafkaMessage, outcome: str, number: int = 1) -> None:
        """Adds `number` to the count of an outcome in the message's topic-partition.

        `outcome` is `applied`, `duplicates`, `quarantined` or `held`.
        """
        self.get_or_create_partition_state(message).counts[outcome] += number

    def quarantine_message(self, message: KafkaMessage, reason: str) -> None:
        """Adds the unchanged message to the quarantine with a reason of the protocol, and counts it."""
        self.count_messages(message, "quarantined")
        row = {**message._asdict(), "reason": reason, "session_id": parse_session_id(message.key)}
        del row["ingested_at"]
        self.tables.quarantine.append(row)

    def record_integrity_event(self, parsed: ParsedMessage, event: str, action: str, expected: int | None) -> None:
        """Records an integrity event at a message.

        Args:
            parsed: The message.
            event: Name of the event, such as `gap` or `duplicate`.
            action: What was done with the message, such as `applied` or `dropped`.
            expected: The seq that was expected; None if no particular one was.
        """
        kafka = parsed.kafka
        self.tables.integrity_events.append(
            {
                "topic": kafka.topic,
                "partition": kafka.partition,
                "session_id": parsed.session_id,
                "offset": kafka.offset,
                "event": event,
                "action": action,
                "expected_seq": expected,
                "actual_seq": parsed.seq,
                "kafka_timestamp": kafka.timestamp,
            }
        )

    def record_split_session(self, topic: str, partition: int, session_id: str) -> None:
        """Records that a session's id also occurs in other partitions. Offset, seqs and time of the event are null."""
        names = ("offset", "expected_seq", "actual_seq", "kafka_timestamp")
        row = {"topic": topic, "partition": partition, "session_id": session_id, **dict.fromkeys(names)}
        self.tables.integrity_events.append(row | {"event": "split_session", "action": "recorded"})
