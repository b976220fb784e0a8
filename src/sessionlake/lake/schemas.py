"""What every table holds: columns as DDL, clustering and Delta properties. Names are a contract (see README)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sessionlake.config import Settings
from sessionlake.lake.names import (
    AVERAGES,
    CHANGES,
    CUTS,
    DECISIONS,
    EVENTS,
    LEASES,
    LEDGER,
    MESSAGES,
    MINUTES,
    PROCESSOR_ERRORS,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSIONS,
    SNAPSHOTS,
    TOPICS,
)

DECLARED = "<declared>"
_LOG = {"delta.checkpointInterval": "50"}
RETENTION = "delta.deletedFileRetentionDuration"
"""How long the log remembers files that are no part of the table any more. Each is in every checkpoint until then."""
_APPEND_ONLY = {"delta.appendOnly": "true"}
_MERGED = {"delta.enableDeletionVectors": "true"}


def interval(span: timedelta) -> str:
    """A duration as Delta's properties have it."""
    return f"interval {int(span.total_seconds())} seconds"


class Writes(StrEnum):
    """How rows come into a table."""

    APPEND = "append"
    MERGE = "merge"
    BOTH = "both"


@dataclass(frozen=True)
class TableSchema:
    """Definition of one Delta table.

    Attributes:
        columns: `(name, Spark SQL type)` in order; `DECLARED` stands for the declared capture columns.
        cluster_by: liquid clustering keys, where the storage has it.
        writes: how rows come in; what MERGE replaces is marked in deletion vectors.
        skipping: columns that files keep minimum and maximum of.
        feed: whether Delta's change data feed is on.
    """

    columns: tuple[tuple[str, str], ...]
    comment: str
    cluster_by: tuple[str, ...] = ()
    skipping: tuple[str, ...] = ()
    feed: bool = False
    writes: Writes = Writes.MERGE

    def resolved(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """The columns, with the declared ones in place."""
        declared = tuple((column.name, column.sql) for column in settings.capture.declared)
        whole: list[tuple[str, str]] = []
        for column in self.columns:
            whole.extend(declared if column[0] == DECLARED else (column,))
        return tuple(whole)

    @property
    def append_only(self) -> bool:
        """Whether rows never change."""
        return self.writes is Writes.APPEND

    def properties(self, keep: timedelta) -> dict[str, str]:
        """Delta table properties.

        Args:
            keep: how far back the table's history is to reach.
        """
        found = _LOG | {RETENTION: interval(keep)}
        found |= _APPEND_ONLY if self.append_only else _MERGED
        if self.skipping:
            found["delta.dataSkippingStatsColumns"] = ",".join(self.skipping)
        if self.feed:
            found["delta.enableChangeDataFeed"] = "true"
        return found


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
_POINT = (
    ("topic", "string"),
    ("session_id", "string"),
    ("row_id", "string"),
    ("metric", "string"),
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
        (
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
            ("_batch", "bigint"),
        ),
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
        ),
        "The whole table of a session at its end, at its expiry, and every snapshot_interval",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "snapshot_at", "position"),
        writes=Writes.APPEND,
    ),
    ROWS: TableSchema(
        _ROW,
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
    AVERAGES: TableSchema(
        (
            *_POINT,
            ("ts", "bigint"),
            ("position", "bigint"),
            ("ordinal", "int"),
            ("value", "double"),
            ("average", "double"),
            ("points", "int"),
        ),
        "Average over each point and the N-1 before it in event time",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "ts"),
        writes=Writes.BOTH,
    ),
    MINUTES: TableSchema(
        (
            *_POINT,
            ("window_start", "timestamp"),
            ("points", "bigint"),
            ("min", "double"),
            ("max", "double"),
            ("sum", "double"),
            ("average", "double"),
            ("first", "double"),
            ("last", "double"),
        ),
        "One row a minute of event time",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "window_start"),
        writes=Writes.BOTH,
    ),
    DECISIONS: TableSchema(
        (
            ("topic", "string"),
            ("session_id", "string"),
            ("offset", "bigint"),
            ("decision", "string"),
            ("who", "string"),
            ("why", "string"),
            ("decided_at", "timestamp"),
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
            (
                "partitions",
                "array<struct<partition:int,first_offset:bigint,next_offset:bigint,end_offset:bigint>>",
            ),
            ("lost", "bigint"),
        ),
        "The life of every captured topic",
        writes=Writes.BOTH,
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
            ("offsets", "array<struct<topic:string,partition:int,first:bigint,last:bigint,messages:bigint>>"),
            ("outputs", "array<struct<table:string,version:bigint,rows:bigint>>"),
            ("messages", "bigint"),
            ("applied", "bigint"),
            ("duplicates", "bigint"),
            ("quarantined", "bigint"),
            ("held", "bigint"),
            ("started_at", "timestamp"),
            ("committed_at", "timestamp"),
            ("code_version", "string"),
            ("config_hash", "string"),
            ("decisions", "array<struct<topic:string,session_id:string,offset:bigint,decision:string>>"),
        ),
        "What each micro-batch of each layer took in and gave out",
        skipping=("layer", "batch_id", "committed_at"),
        writes=Writes.APPEND,
    ),
}
