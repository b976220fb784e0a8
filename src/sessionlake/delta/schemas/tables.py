"""What every table holds: columns as DDL, clustering and Delta properties. Names are a contract (see README)."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from sessionlake.delta.schemas.definition import DECLARED, TableSchema, Writes
from sessionlake.delta.schemas.gold import GOLD_TABLES
from sessionlake.delta.schemas.names import (
    ABSENT,
    CHANGES,
    CUTS,
    DAMAGED,
    DECISIONS,
    ERASURES,
    EVENTS,
    LEASES,
    LEDGER,
    MESSAGES,
    POSITIONS,
    PROCESSOR_ERRORS,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    ROWS,
    SESSIONS,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
    TOPICS,
)
from sessionlake.delta.schemas.rules import RULE_TABLES

_ROW = (
    ("topic", "string"),
    ("session_id", "string"),
    ("row_id", "string"),
    (DECLARED, ""),
    ("_rescued", "string"),
    ("_epoch", "bigint"),
    ("_seq", "bigint"),
    ("_ts", "bigint"),
    ("_offset", "bigint"),
)
_SESSION = (
    ("topic", "string"),
    ("session_id", "string"),
    ("status", "string"),
    ("epoch", "bigint"),
    ("next_seq", "bigint"),
    ("messages", "bigint"),
    ("duplicates", "bigint"),
    ("gaps", "bigint"),
    ("late", "bigint"),
    ("first_ts", "bigint"),
    ("last_ts", "bigint"),
    ("first_offset", "bigint"),
    ("last_offset", "bigint"),
    ("partition", "int"),
    ("ended_at", "timestamp"),
    ("last_kafka_timestamp", "timestamp"),
)
_OFFSETS = "array<struct<topic:string,partition:int,first:bigint,last:bigint,messages:bigint>>"
_OUTPUTS = "array<struct<table:string,version:bigint,rows:bigint>>"
_TAKEN = "array<struct<topic:string,partition:int,session_id:string,offset:bigint,decision:string>>"
_PARTITIONS = "array<struct<partition:int,first_offset:bigint,next_offset:bigint,end_offset:bigint>>"
COUNTS = ("messages", "applied", "duplicates", "quarantined", "held")
"""Columns that balance in every entry of silver: the first is the sum of the others."""
_COUNTS = tuple((name, "bigint") for name in COUNTS)
_CUT = (
    ("topic", "string"),
    ("session_id", "string"),
    ("partition", "int"),
    ("snapshot_at", "timestamp"),
    ("reason", "string"),
    ("changed_at", "timestamp"),
    ("position", "bigint"),
    ("life", "bigint"),
    ("next_seq", "bigint"),
    ("offset", "bigint"),
    ("changes", "bigint"),
)
TABLES: dict[str, TableSchema] = {
    MESSAGES: TableSchema(
        (
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
            ("timestamp_type", "int"),
            ("key", "binary"),
            ("value", "binary"),
            ("headers", "array<struct<key:string,value:binary>>"),
            ("ingested_at", "timestamp"),
        ),
        "Raw Kafka messages, each exactly once",
        cluster_by=("topic", "partition", "offset"),
        skipping=("topic", "partition", "offset", "timestamp", "ingested_at"),
        writes=Writes.APPEND,
    ),
    DAMAGED: TableSchema(
        (
            ("file", "string"),
            ("member", "string"),
            ("start", "bigint"),
            ("topic", "string"),
            ("partition", "int"),
            ("damage", "string"),
            ("detail", "string"),
            ("found_at", "timestamp"),
        ),
        "Members of archives that could not be used, and why",
        writes=Writes.APPEND,
    ),
    CHANGES: TableSchema(
        (
            *_ROW,
            ("change", "string"),
            ("_set", "array<string>"),
            ("partition", "int"),
            ("ordinal", "int"),
            ("kafka_timestamp", "timestamp"),
            ("_position", "bigint"),
            ("_life", "bigint"),
            ("_applied_at", "timestamp"),
            ("_applied_by", "bigint"),
            ("_batch", "bigint"),
        ),
        "Every accepted change, judged and in order; append-only",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "_offset", "_ts", "_position", "_applied_at", "_batch"),
        writes=Writes.APPEND,
    ),
    PROGRESS: TableSchema(
        (*_SESSION, ("beneath", "boolean"), ("_batch", "bigint")),
        "What each batch left of every session it touched; `sessions` takes over the latest",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "_batch"),
        writes=Writes.APPEND,
    ),
    CUTS: TableSchema(
        (*_CUT, ("_batch", "bigint")),
        "Where whole tables are cut: each holds every change with a _position up to its own",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "snapshot_at", "position", "_batch"),
        writes=Writes.APPEND,
    ),
    SNAPSHOTS: TableSchema(
        (
            ("topic", "string"),
            ("session_id", "string"),
            ("snapshot_at", "timestamp"),
            ("reason", "string"),
            ("position", "bigint"),
            *_ROW[2:],
            ("partition", "int"),
        ),
        "The whole table of a session at its end, at its expiry, and where the changes since the last outweigh that",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "snapshot_at", "position"),
        writes=Writes.APPEND,
    ),
    SNAPSHOT_INDEX: TableSchema(
        (*_CUT, ("rows", "bigint"), ("_batch", "bigint")),
        "The cuts whose whole tables are in session_snapshots, empty ones too, and how many rows each has",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "snapshot_at", "position", "_batch"),
        writes=Writes.APPEND,
    ),
    ROWS: TableSchema(
        (*_ROW, ("partition", "int")),
        "The table of every session, now",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "row_id"),
        feed=True,
    ),
    SESSIONS: TableSchema(
        _SESSION,
        "One row a session: status, epoch, counts",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id"),
    ),
    QUARANTINE: TableSchema(
        (
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("kafka_timestamp", "timestamp"),
            ("session_id", "string"),
            ("reason", "string"),
            ("key", "binary"),
            ("value", "binary"),
            ("_batch", "bigint"),
        ),
        "What could not be used, whole, and why",
        skipping=("topic", "partition", "offset", "reason", "_batch"),
        writes=Writes.APPEND,
    ),
    EVENTS: TableSchema(
        (
            ("topic", "string"),
            ("partition", "int"),
            ("session_id", "string"),
            ("offset", "bigint"),
            ("event", "string"),
            ("action", "string"),
            ("integrity", "string"),
            ("expected_seq", "bigint"),
            ("actual_seq", "bigint"),
            ("kafka_timestamp", "timestamp"),
            ("_batch", "bigint"),
        ),
        "Every judgement that was not 'fine'",
        skipping=("topic", "session_id", "offset", "_batch"),
        writes=Writes.APPEND,
    ),
    PROCESSOR_ERRORS: TableSchema(
        (
            ("processor", "string"),
            ("topic", "string"),
            ("partition", "int"),
            ("session_id", "string"),
            ("_offset", "bigint"),
            ("_position", "bigint"),
            ("ordinal", "int"),
            ("_time", "timestamp"),
            ("event", "string"),
            ("action", "string"),
            ("error", "string"),
            ("_batch", "bigint"),
        ),
        "What user-defined processors failed on, and what they were not given since",
        skipping=("processor", "topic", "session_id", "_offset", "_batch"),
        writes=Writes.APPEND,
    ),
    **GOLD_TABLES,
    **RULE_TABLES,
    DECISIONS: TableSchema(
        (
            ("topic", "string"),
            ("session_id", "string"),
            ("offset", "bigint"),
            ("decision", "string"),
            ("who", "string"),
            ("why", "string"),
            ("decided_at", "timestamp"),
            ("partition", "int"),
        ),
        "What operators decided about places at which a session broke its class",
        writes=Writes.APPEND,
    ),
    TOPICS: TableSchema(
        (
            ("topic", "string"),
            ("generation", "int"),
            ("state", "string"),
            ("topic_id", "string"),
            ("first_seen", "timestamp"),
            ("last_seen", "timestamp"),
            ("last_message_at", "timestamp"),
            ("offset_shift", "bigint"),
            ("partitions", _PARTITIONS),
            ("lost", "bigint"),
        ),
        "The life of every captured topic",
        writes=Writes.REPLACE,
    ),
    ABSENT: TableSchema(
        (
            ("topic", "string"),
            ("partition", "int"),
            ("first", "bigint"),
            ("last", "bigint"),
            ("reason", "string"),
            ("who", "string"),
            ("why", "string"),
            ("noted_at", "timestamp"),
        ),
        "Offsets without a message: transaction markers, aborted records, and messages that an operator skipped",
        skipping=("topic", "partition", "first", "last"),
        writes=Writes.APPEND,
    ),
    LEASES: TableSchema(
        (
            ("name", "string"),
            ("number", "bigint"),
            ("token", "bigint"),
            ("claim", "string"),
            ("holder", "string"),
            ("doing", "string"),
            ("acquired_at", "timestamp"),
            ("renewed_at", "timestamp"),
            ("expires_at", "timestamp"),
        ),
        "Who may write what, in a catalog: one row a layer",
    ),
    LEDGER: TableSchema(
        (
            ("layer", "string"),
            ("app_id", "string"),
            ("batch_id", "bigint"),
            ("source", "string"),
            ("source_from", "bigint"),
            ("source_to", "bigint"),
            ("offsets", _OFFSETS),
            ("outputs", _OUTPUTS),
            *_COUNTS,
            ("started_at", "timestamp"),
            ("committed_at", "timestamp"),
            ("code_version", "string"),
            ("config_hash", "string"),
            ("decisions", _TAKEN),
        ),
        "What each micro-batch of each layer took in and gave out",
        skipping=("layer", "batch_id", "committed_at"),
        writes=Writes.APPEND,
    ),
    POSITIONS: TableSchema(
        (
            ("layer", "string"),
            ("app_id", "string"),
            ("batch_id", "bigint"),
            ("batches", "bigint"),
            ("source_to", "bigint"),
            ("offsets", _OFFSETS),
            ("outputs", _OUTPUTS),
            *_COUNTS,
            ("unaccounted", "bigint"),
            ("committed_at", "timestamp"),
            ("decisions", _TAKEN),
            ("until", "timestamp"),
            ("format", "int"),
            ("table_versions", "array<struct<table:string,version:bigint,committed_at:timestamp>>"),
        ),
        "The ledger in short: what each layer had taken in and given out until a moment; a copy, made anew if lost",
        writes=Writes.REPLACE,
    ),
    RETAINED: TableSchema(
        (
            ("table", "string"),
            ("topic", "string"),
            ("partition", "int"),
            ("session_id", "string"),
            ("limit", "bigint"),
            ("highest_timestamp", "timestamp"),
            ("batch", "bigint"),
            ("before", "timestamp"),
            ("removed", "bigint"),
            ("pending", "bigint"),
            ("format", "int"),
        ),
        "What retention has removed: a row a table, and those of the places and sessions up to where rows are gone",
    ),
    ERASURES: TableSchema(
        (
            ("receipt", "string"),
            ("topic", "string"),
            ("session_hash", "string"),
            ("salt", "string"),
            ("begun_at", "timestamp"),
            ("done_at", "timestamp"),
            ("messages", "bigint"),
            ("report", "string"),
            ("format", "int"),
        ),
        "Sessions that were forgotten, each known by a salted hash, and what was removed where",
        writes=Writes.REPLACE,
    ),
}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The columns of a table without declared ones; needs a running session, whose parser knows the types."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(", ".join(f"{name} {sql}" for name, sql in TABLES[table].columns)))


def own_columns(table: str) -> tuple[str, ...]:
    """The columns of a table of every lake, less the declared ones."""
    return tuple(name for name, _ in TABLES[table].columns if name != DECLARED)
