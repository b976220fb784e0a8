"""Arrow schemas of the rows that silver's fold emits for each table, and the report of one shard about one batch."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.integrity.clock import BEGINNING, PartitionStreamTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Int64s

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_MAX_MS = np.iinfo(np.int64).max // 1000


class SilverPayloadKind(StrEnum):
    """The kinds of payload that silver's fold emits: rows for one table as Arrow IPC, or the shard's report."""

    CHANGES = "changes"
    PROGRESS = "progress"
    QUARANTINE = "quarantine"
    EVENTS = "events"
    CUTS = "cuts"
    REPORT = "report"


@lru_cache(maxsize=8)
def build_changes_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the Arrow schema of `silver.session_changes`, without the column `_batch`."""
    return pa.schema(
        [
            ("topic", pa.string()),
            ("session_id", pa.string()),
            ("row_id", pa.string()),
            *((column.name, column.arrow) for column in columns),
            (RESCUED, pa.string()),
            ("_epoch", pa.int64()),
            ("_seq", pa.int64()),
            ("_ts", pa.int64()),
            ("_offset", pa.int64()),
            ("change", pa.string()),
            ("_set", pa.list_(pa.string())),
            ("partition", pa.int32()),
            ("ordinal", pa.int32()),
            ("kafka_timestamp", TIMESTAMP_TYPE),
            ("_position", pa.int64()),
            ("_life", pa.int64()),
            ("_applied_at", TIMESTAMP_TYPE),
            ("_applied_by", pa.int64()),
        ]
    )


def convert_ms_to_timestamps(milliseconds: Int64s) -> pa.Array:
    """Converts ms since 1970 to Arrow timestamps, limited to their range; the lowest int64 becomes null."""
    never = milliseconds == np.iinfo(np.int64).min
    return pa.array(np.clip(milliseconds, -_MAX_MS, _MAX_MS) * 1000, mask=never).cast(TIMESTAMP_TYPE)


PROGRESS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("session_id", pa.string()),
        ("status", pa.string()),
        *(
            (name, pa.int64())
            for name in ("epoch", "next_seq", "messages", "duplicates", "gaps", "late", "checks", "checks_failed")
        ),
        *((name, pa.int64()) for name in ("first_ts", "last_ts", "first_offset", "last_offset")),
        ("partition", pa.int32()),
        ("ended_at", TIMESTAMP_TYPE),
        ("last_kafka_timestamp", TIMESTAMP_TYPE),
        ("beneath", pa.bool_()),  # True if the session had a late fill in the batch
    ]
)
CUTS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("session_id", pa.string()),
        ("partition", pa.int32()),
        ("snapshot_at", TIMESTAMP_TYPE),
        ("reason", pa.string()),
        ("changed_at", TIMESTAMP_TYPE),
        *((name, pa.int64()) for name in ("position", "life", "next_seq", "offset", "changes")),
    ]
)
QUARANTINE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("kafka_timestamp", TIMESTAMP_TYPE),
        ("session_id", pa.string()),
        ("reason", pa.string()),
    ]
)
EVENTS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("session_id", pa.string()),
        ("offset", pa.int64()),
        ("event", pa.string()),
        ("action", pa.string()),
        ("integrity", pa.string()),
        ("expected_seq", pa.int64()),
        ("actual_seq", pa.int64()),
        ("kafka_timestamp", TIMESTAMP_TYPE),
    ]
)


class PartitionMessageCounts(msgspec.Struct):
    """Counts of a shard's messages in one topic-partition.

    `parts` is the sum of the counts from `applied` on. A message that its feed splits has several parts, which can be
    in several shards: the shard with its first part counts the message. `held` counts newly held messages minus
    released ones. A released message also counts by its new verdict. If `parts` is 0, the offsets and times have no
    meaning.

    Attributes:
        first_offset: First offset of the batch.
        last_offset: Last offset of the batch.
        previous_offset: The offset at which the stream time before the batch was noted.
        stream_time: Stream time after the batch, ms.
        erased: Number of messages of forgotten sessions, which have only offset and timestamp.
        ignored: Number of messages that their feed ignores.
        parts: Number of parts of messages.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    messages: int
    applied: int = 0
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    previous_offset: int = BEGINNING
    stream_time: int = NO_TIME
    erased: int = 0
    ignored: int = 0
    parts: int = 0


class StoppingViolation(msgspec.Struct):
    """A message at which the job must stop, because it violates its session's class under `fail`.

    Attributes:
        integrity: The session's integrity class, such as `strict`.
        event: The kind of the integrity event.
        expected_seq: The expected seq; None if any seq was acceptable.
        actual_seq: The seq of the message; None if it has none.
    """

    topic: str
    partition: int
    offset: int
    session_id: str
    integrity: str
    event: str
    expected_seq: int | None
    actual_seq: int | None


class ShardReport(msgspec.Struct):
    """The report of one shard about one batch: what it counted, emitted and decided.

    Attributes:
        partitions: Counts by topic-partition.
        rows: Number of emitted rows by kind of output.
        violations: The shard's first violation at which the job must stop; empty if there is none.
        quarantined: Topic, partition, first and last offset of quarantined messages. Messages that were held back can
            be older than the batch.
        decided: Topic, partition, session id and offset of each operator's decision that was followed.
        silences: Stream time of each topic-partition after a silence of the batch; only one shard reports them.
        format: Version of the report's format.
    """

    partitions: list[PartitionMessageCounts]
    rows: dict[str, int]
    violations: list[StoppingViolation] = []
    quarantined: list[tuple[str, int, int, int]] = []
    decided: list[tuple[str, int, str, int]] = []
    silences: list[PartitionStreamTime] = []
    format: int = 1


_report_decoder = msgspec.msgpack.Decoder(ShardReport)


def decode_report(payload: bytes) -> ShardReport:
    """Decodes a report that `encode_report` has encoded."""
    return _report_decoder.decode(payload)


def encode_report(report: ShardReport) -> bytes:
    """Encodes a shard's report with MessagePack."""
    return msgspec.msgpack.encode(report)
