"""What the truth is given (rules, messages) and what it gives back (tables, or a violation)."""

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
"""(topic, partition, session id): the identity of a session."""


@dataclass(frozen=True)
class Rules:
    """How a capture is judged; times in milliseconds.

    `by_topic` holds (regular expression, overrides) pairs: the first that matches the whole topic name replaces
    the fields its overrides name. Construction raises `ConfigError` for a class, policy or type that does not exist.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    """Declared column name to Spark SQL type, in declared order."""
    integrity: str = "strict"
    on_violation: str = "fail"
    lateness_ms: int = 600_000
    gap_timeout_ms: int = 600_000
    session_timeout_ms: int = 3_600_000
    max_future_skew_ms: int = 86_400_000
    max_message_bytes: int = 10 * 1024 * 1024
    max_held_messages: int = 10_000
    """A session's most held back messages (class `window`), and their bytes."""
    max_held_bytes: int = 64 * 1024 * 1024
    max_gaps: int = 10_000
    """A session's most gaps between taken seqs (classes `once` and `window`)."""
    snapshot_interval_ms: int = 600_000
    by_topic: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def __post_init__(self) -> None:
        _one_of("integrity", self.integrity, INTEGRITY)
        _one_of("on_violation", self.on_violation, ON_VIOLATION)
        for column, spark_type in self.columns.items():
            _one_of(f"column {column}", spark_type, COLUMN_TYPES)

    def for_topic(self, topic: str) -> Rules:
        """These rules with the overrides of the first pattern that matches the whole topic name."""
        for pattern, overrides in self.by_topic:
            if re.fullmatch(pattern, topic):
                return replace(self, by_topic=(), **overrides)
        return self


def _one_of(what: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise ConfigError(f"{what}: found '{found}', expected one of {', '.join(allowed)}; correct the rules")


class KafkaMessage(NamedTuple):
    """One Kafka record. Times in milliseconds.

    `timestamp` is -1 if the producer set none. `ingested_at` is when bronze read the record; None: not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    ingested_at: int | None = None


@dataclass
class Tables:
    """What silver must hold. Every row is a plain dictionary named like the table's columns.

    `session_rows` and `sessions` have a key for every session that sent a well-formed message; a session's table may
    be empty. The lists are in the order of judging.
    """

    session_rows: dict[SessionKey, dict[str, Row]] = field(default_factory=dict)
    """Session to row id to declared columns, `_rescued`, `_epoch`, `_seq`, `_ts`, `_offset`."""
    session_changes: list[Row] = field(default_factory=list)
    session_cuts: list[Row] = field(default_factory=list)
    """Where and why tables were cut, and how many changes were applied since the cut before."""
    session_snapshots: list[Row] = field(default_factory=list)
    """Those of the cuts whose tables were kept, with `rows`: row id to columns as in `session_rows`."""
    sessions: dict[SessionKey, Row] = field(default_factory=dict)
    quarantine: list[Row] = field(default_factory=list)
    integrity_events: list[Row] = field(default_factory=list)
    counts: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    """(topic, partition) to messages = applied + duplicates + quarantined + held."""


class Violation(IntegrityViolationError):  # noqa: N818 - named as the protocol names what happened
    """A session broke its class under `fail`: mend the stream, or judge again under another policy."""

    def __init__(
        self, integrity: str, event: str, topic: str, partition: int, session_id: str, offset: int,
        expected: int | None, actual: int | None,
    ) -> None:  # fmt: skip
        self.integrity, self.event = integrity, event
        self.topic, self.partition, self.session_id, self.offset = topic, partition, session_id, offset
        self.expected, self.actual = expected, actual
        super().__init__(
            f"violation {event} of class {integrity}: session '{session_id}' in {topic}[{partition}] at offset "
            f"{offset}: expected seq {expected}, found {actual}; set on_violation to isolate or record to go on"
        )
