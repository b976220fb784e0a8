"""What silver's fold emits: Arrow schemas of the rows for each table, and a shard's typed report on a batch."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.integrity.clock import BEGINNING, LaneTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Int64s

TIMESTAMP = pa.timestamp("us", tz="UTC")
_MOST_MS = np.iinfo(np.int64).max // 1000


class SilverOutput(StrEnum):
    """Kinds of payload that silver's fold emits: rows for a table as Arrow IPC, and one report."""

    CHANGES = "changes"
    PROGRESS = "progress"
    QUARANTINE = "quarantine"
    EVENTS = "events"
    CUTS = "cuts"
    REPORT = "report"


@lru_cache(maxsize=8)
def changes_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Rows of `silver.session_changes`, less the bookkeeping column `_batch`."""
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
            ("kafka_timestamp", TIMESTAMP),
            ("_position", pa.int64()),
            ("_life", pa.int64()),
            ("_applied_at", TIMESTAMP),
            ("_applied_by", pa.int64()),
        ]
    )


def timestamps(milliseconds: Int64s) -> pa.Array:
    """Milliseconds since the epoch as Arrow timestamps, as far as these reach; the least int64 is null."""
    never = milliseconds == np.iinfo(np.int64).min
    return pa.array(np.clip(milliseconds, -_MOST_MS, _MOST_MS) * 1000, mask=never).cast(TIMESTAMP)


PROGRESS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("session_id", pa.string()),
        ("status", pa.string()),
        *((name, pa.int64()) for name in ("epoch", "next_seq", "messages", "duplicates", "gaps", "late")),
        *((name, pa.int64()) for name in ("first_ts", "last_ts", "first_offset", "last_offset")),
        ("partition", pa.int32()),
        ("ended_at", TIMESTAMP),
        ("last_kafka_timestamp", TIMESTAMP),
        ("beneath", pa.bool_()),  # whether it had a late fill: a message applied after some with higher seqs
    ]
)
CUTS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("session_id", pa.string()),
        ("partition", pa.int32()),
        ("snapshot_at", TIMESTAMP),
        ("reason", pa.string()),
        ("changed_at", TIMESTAMP),
        *((name, pa.int64()) for name in ("position", "life", "next_seq", "offset", "changes")),
    ]
)
QUARANTINE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("kafka_timestamp", TIMESTAMP),
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
        ("kafka_timestamp", TIMESTAMP),
    ]
)


class PartitionCounts(msgspec.Struct):
    """What became of a shard's messages of one topic-partition: `messages` is the sum of the five counts behind it.

    `held` counts what came to be held back less what was released, which is among the others. Without messages, what
    tells of offsets and times means nothing.

    Attributes:
        since: the offset that the stream time before the batch was of.
        stream_time: after the batch, ms.
    """

    topic: str
    partition: int
    first: int
    last: int
    messages: int
    applied: int = 0
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    since: int = BEGINNING
    stream_time: int = NO_TIME
    erased: int = 0


class Violation(msgspec.Struct):
    """The message at which the job must stop, since it breaks its class under `fail`, and why."""

    topic: str
    partition: int
    offset: int
    session_id: str
    integrity: str
    event: str
    expected_seq: int | None
    actual_seq: int | None


class ShardReport(msgspec.Struct):
    """What one shard did in one batch.

    Attributes:
        rows: rows by kind of output.
        decided: topics, partitions, sessions and offsets at which an operator's decision was taken.
        silences: where topic-partitions stand behind silences of the batch; one shard tells all.
        quarantined: topic, partition, first and last offset of what was quarantined: some of it was held back, and is
            older than the batch.
    """

    partitions: list[PartitionCounts]
    rows: dict[str, int]
    violations: list[Violation] = []
    quarantined: list[tuple[str, int, int, int]] = []
    decided: list[tuple[str, int, str, int]] = []
    silences: list[LaneTime] = []
    format: int = 1


_decoder = msgspec.msgpack.Decoder(ShardReport)


def read_report(payload: bytes) -> ShardReport:
    """Decodes a report payload."""
    return _decoder.decode(payload)


def write_report(report: ShardReport) -> bytes:
    """Encodes a report payload."""
    return msgspec.msgpack.encode(report)
