"""Input and output of the ground truth: rules and messages, tables and violations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sessionlake.errors import ConfigError, IntegrityViolationError

INTEGRITY = ("none", "once", "order", "window", "strict")
ON_VIOLATION = ("fail", "isolate", "record")
COLUMN_TYPES = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")

Row = dict[str, Any]
SessionKey = tuple[str, int, str]
"""Identity of a session: topic, partition, session id."""


@dataclass(frozen=True)
class CaptureRules:
    """How a capture is judged. Times are in milliseconds.

    `by_topic` has pairs of a regular expression and overrides. The first expression that matches the whole topic name
    replaces the fields that its overrides name.

    Raises:
        ConfigError: A class, policy or column type does not exist.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    """Declared columns and their Spark SQL types, in declared order."""
    integrity: str = "strict"
    on_violation: str = "fail"
    lateness_ms: int = 600_000
    gap_timeout_ms: int = 600_000
    session_timeout_ms: int = 3_600_000
    max_future_skew_ms: int = 86_400_000
    max_message_bytes: int = 10 * 1024 * 1024
    max_held_messages: int = 10_000
    """Maximum number of messages that a session holds back (class `window`)."""
    max_held_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of the messages that a session holds back (class `window`), or that wait for a snapshot."""
    hold: int = 0
    """Maximum number of messages that wait for a snapshot in a session without one, or in a broken one."""
    max_gaps: int = 10_000
    """Maximum number of gaps between a session's seqs (classes `once` and `window`)."""
    snapshot_interval_ms: int = 600_000
    by_topic: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def __post_init__(self) -> None:
        _require_allowed_value("integrity", self.integrity, INTEGRITY)
        _require_allowed_value("on_violation", self.on_violation, ON_VIOLATION)
        for column, spark_type in self.columns.items():
            _require_allowed_value(f"column {column}", spark_type, COLUMN_TYPES)

    def apply_topic_overrides(self, topic: str) -> CaptureRules:
        """Returns the rules with the overrides of the first pattern that matches the whole topic name."""
        for pattern, overrides in self.by_topic:
            if re.fullmatch(pattern, topic):
                return replace(self, by_topic=(), **overrides)
        return self


def _require_allowed_value(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}: found '{value}', expected one of {', '.join(allowed)}", fix="Correct the rules")


class KafkaMessage(NamedTuple):
    """One Kafka record. Times are in milliseconds.

    `timestamp` is -1 if the producer set none. `ingested_at` is the time at which bronze read the record, or None.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    ingested_at: int | None = None


@dataclass
class ExpectedTables:
    """The expected silver tables. Each row is a dictionary with the table's columns.

    `session_rows` and `sessions` have a key for each session that sent a well-formed message. A session's table may be
    empty. The lists are in the order in which messages were judged.
    """

    session_rows: dict[SessionKey, dict[str, Row]] = field(default_factory=dict)
    """Rows of each session by row id, with the declared columns, `_rescued`, `_epoch`, `_seq`, `_ts`, `_offset`."""
    session_changes: list[Row] = field(default_factory=list)
    session_cuts: list[Row] = field(default_factory=list)
    """Where and why each table was cut, with the number of changes since the previous cut."""
    session_snapshots: list[Row] = field(default_factory=list)
    """Cuts whose tables are stored, with `rows`: row id to columns as in `session_rows`."""
    sessions: dict[SessionKey, Row] = field(default_factory=dict)
    quarantine: list[Row] = field(default_factory=list)
    integrity_events: list[Row] = field(default_factory=list)
    counts: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    """Counts by topic and partition: messages = applied + duplicates + quarantined + held."""


class TruthViolationError(IntegrityViolationError):
    """A message broke its session's class under `fail`. Correct the stream, or judge again with another policy."""

    def __init__(
        self, integrity: str, event: str, topic: str, partition: int, session_id: str, offset: int,
        expected: int | None, actual: int | None,
    ) -> None:  # fmt: skip
        self.integrity, self.event = integrity, event
        self.topic, self.partition, self.session_id, self.offset = topic, partition, session_id, offset
        self.expected, self.actual = expected, actual
        super().__init__(
            f"violation {event} of class {integrity}: session '{session_id}' in {topic}[{partition}] at offset "
            f"{offset}: expected seq {expected}, found {actual}",
            fix="Set on_violation to isolate or record to continue",
        )
