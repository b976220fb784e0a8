"""Definitions of the tables of the schema `silver`. `schemas.tables` collects the definitions of all schemas."""

from __future__ import annotations

from sessionlake.delta.schemas.columns import (
    KAFKA_TIMESTAMP,
    OFFSET,
    ORDINAL,
    PARTITION,
    ROW_ID,
    SESSION_ID,
    SILVER_BATCH,
    TOPIC,
)
from sessionlake.delta.schemas.definition import DECLARED, Column, TableSchema, WriteMode
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    EVENTS,
    PROCESSOR_ERRORS,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSIONS,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)

_EPOCH = Column(
    "_epoch", "bigint", "Kafka offset of the snapshot that began the session's epoch; -1 before the first snapshot"
)
_VALUES = (
    Column(DECLARED, "", "Declared column: the row's value; null if it was never set, or set to null"),
    Column(
        "_rescued",
        "string",
        "JSON object of the columns in the row's last upsert that are not declared; null if there are none",
    ),
    _EPOCH,
    Column("_seq", "bigint", "seq of the message that changed the row last; null if it has none (class none)"),
    Column("_ts", "bigint", "Event time of the message that changed the row last, ms since 1970"),
    Column("_offset", "bigint", "Kafka offset of the message that changed the row last"),
)
"""Columns with the content of one row of a session's table, and with the message that changed it last."""
_SESSION = (
    TOPIC,
    SESSION_ID,
    Column("status", "string", "open, ended (by an end message), expired (by its timeout) or broken (isolated)"),
    Column("epoch", "bigint", "Kafka offset of the snapshot that began the present epoch; -1 before the first"),
    Column(
        "next_seq",
        "bigint",
        "seq that is expected next: one past the highest applied; null if none was applied yet, or under links",
    ),
    Column("messages", "bigint", "Number of messages applied in the session's present life"),
    Column("duplicates", "bigint", "Number of duplicates in the present life"),
    Column("gaps", "bigint", "Number of gaps in the present life"),
    Column("late", "bigint", "Number of late messages in the present life (class window)"),
    Column("checks", "bigint", "Number of checksums and expectations of a feed that were compared in the present life"),
    Column("checks_failed", "bigint", "Number of these that did not hold"),
    Column(
        "first_ts",
        "bigint",
        "Lowest event time applied in the present life, ms since 1970; null if nothing was applied yet",
    ),
    Column(
        "last_ts",
        "bigint",
        "Highest event time applied in the present life, ms since 1970; null if nothing was applied yet",
    ),
    Column("first_offset", "bigint", "Kafka offset of the first message of the present life, which names the life"),
    Column("last_offset", "bigint", "Kafka offset of the session's last message"),
    PARTITION,
    Column(
        "ended_at",
        "timestamp",
        "Event time of the end message, or stream time of the expiry; null if the session is open or broken",
    ),
    Column(
        "last_kafka_timestamp",
        "timestamp",
        "Kafka timestamp of the session's last message, or stream time if Kafka gave none; null before the first known "
        "time",
    ),
)
_SNAPSHOT_AT = Column("snapshot_at", "timestamp", "Stream time of the cut")
_CUT_REASON = Column("reason", "string", "Why the table was cut: interval, end or expiry")
_CUT_POSITION = Column(
    "position", "bigint", "The cut holds every change of the session with a _position up to this one"
)
_CUT = (
    TOPIC,
    SESSION_ID,
    PARTITION,
    _SNAPSHOT_AT,
    _CUT_REASON,
    Column(
        "changed_at",
        "timestamp",
        "Stream time of the first change since the cut before; null if there was no change since",
    ),
    _CUT_POSITION,
    Column("life", "bigint", "Kafka offset of the first message of the session's life"),
    Column(
        "next_seq", "bigint", "seq that was expected next at the cut: one past the highest applied; null if none was"
    ),
    Column(
        "offset",
        "bigint",
        "Kafka offset of the session's last message before the cut; null if the session expired by then",
    ),
    Column("changes", "bigint", "Number of changes applied since the cut before"),
)
SILVER_SCHEMAS: dict[str, TableSchema] = {
    CHANGES: TableSchema(
        (
            TOPIC,
            SESSION_ID,
            Column("row_id", "string", "Id of the row; null if change is clear"),
            Column(
                DECLARED,
                "",
                "Declared column: the value that the message set; null if it set null or did not set it (see _set)",
            ),
            Column(
                "_rescued", "string", "JSON object of the row's columns that are not declared; null if there are none"
            ),
            _EPOCH,
            Column("_seq", "bigint", "seq of the message; null if it has none (class none)"),
            Column("_ts", "bigint", "Event time of the message, ms since 1970"),
            Column("_offset", "bigint", "Kafka offset of the message"),
            Column("change", "string", "clear (all rows of the session go), upsert or delete (one row)"),
            Column("_set", "array<string>", "Names of the declared columns that the message set"),
            PARTITION,
            ORDINAL,
            KAFKA_TIMESTAMP,
            Column(
                "_position",
                "bigint",
                "Order in which the session's messages were applied: the message's offset, or the next free number if "
                "it was held back",
            ),
            Column("_life", "bigint", "Kafka offset of the first message of the session's life"),
            Column(
                "_applied_at",
                "timestamp",
                "Stream time at which the message was applied; 1969-12-31 23:59:59.999 UTC before the first known time",
            ),
            Column(
                "_applied_by",
                "bigint",
                "Kafka offset of the message whose arrival had this one applied: its own, unless it was held back; "
                "null if the session's expiry released it",
            ),
            SILVER_BATCH,
        ),
        "Every accepted change, judged and in order; append-only",
        written_by="silver.job",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "_offset", "_ts", "_position", "_applied_at", "_batch"),
        writes=WriteMode.APPEND,
    ),
    PROGRESS: TableSchema(
        (
            *_SESSION,
            Column(
                "beneath",
                "boolean",
                "True if the batch applied a message of the session below one with a higher seq (class once)",
            ),
            SILVER_BATCH,
        ),
        "State of every session after each batch that touched it; sessions has the latest",
        written_by="silver.job",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "_batch"),
        writes=WriteMode.APPEND,
    ),
    CUTS: TableSchema(
        (*_CUT, SILVER_BATCH),
        "Moments at which whole tables may be kept; a cut holds every change with a _position up to its own",
        written_by="silver.job",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "snapshot_at", "position", "_batch"),
        writes=WriteMode.APPEND,
    ),
    SNAPSHOTS: TableSchema(
        (TOPIC, SESSION_ID, _SNAPSHOT_AT, _CUT_REASON, _CUT_POSITION, ROW_ID, *_VALUES, PARTITION),
        "Whole tables of sessions: at their end, at their expiry, and after more changes than the last one has rows",
        written_by="silver.merge.merger",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "snapshot_at", "position"),
        writes=WriteMode.APPEND,
    ),
    SNAPSHOT_INDEX: TableSchema(
        (
            *_CUT,
            Column("rows", "bigint", "Number of rows that session_snapshots has of the cut; 0 for an empty table"),
            Column("_batch", "bigint", "Number of the silver batch that made the cut"),
        ),
        "The cuts whose whole tables are in session_snapshots, including empty ones, and how many rows each has",
        written_by="silver.merge.merger",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "snapshot_at", "position", "_batch"),
        writes=WriteMode.APPEND,
    ),
    ROWS: TableSchema(
        (TOPIC, SESSION_ID, ROW_ID, *_VALUES, PARTITION),
        "The table of every session, as it is now",
        written_by="silver.merge.merger",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "row_id"),
        change_feed=True,
    ),
    SESSIONS: TableSchema(
        _SESSION,
        "One row per session: status, epoch, counts",
        written_by="silver.merge.merger",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id"),
    ),
    QUARANTINE: TableSchema(
        (
            TOPIC,
            PARTITION,
            OFFSET,
            KAFKA_TIMESTAMP,
            Column("session_id", "string", "Id of the capture session; null if the Kafka key is no session id"),
            Column("reason", "string", "Why the message was not used: one of the reasons of docs/reference/tables.md"),
            Column("key", "binary", "Kafka key, raw bytes; null if the message has none"),
            Column("value", "binary", "Kafka value, raw bytes; null if the message has none"),
            SILVER_BATCH,
        ),
        "Messages that could not be used, unchanged, and why",
        written_by="silver.job",
        statistics_columns=("topic", "partition", "offset", "reason", "_batch"),
        writes=WriteMode.APPEND,
    ),
    EVENTS: TableSchema(
        (
            TOPIC,
            PARTITION,
            SESSION_ID,
            Column("offset", "bigint", "Kafka offset of the message; null if event is split_session"),
            Column(
                "event",
                "string",
                "What was found: duplicate, gap, orphan, after_end, late, healed, held_limit, gap_limit, skipped or "
                "split_session",
            ),
            Column(
                "action",
                "string",
                "What was done: dropped, applied, isolated, recorded, quarantined or accepted (by a decision)",
            ),
            Column("integrity", "string", "Integrity class of the topic: none, order, once, window or strict"),
            Column(
                "expected_seq",
                "bigint",
                "seq that was due; null if any could come, or an operator had the message skipped",
            ),
            Column("actual_seq", "bigint", "seq of the message; null if it has none"),
            Column(
                "kafka_timestamp",
                "timestamp",
                "Kafka timestamp of the message; 1969-12-31 23:59:59.999 UTC if Kafka gave none; null if event is "
                "split_session",
            ),
            Column("_batch", "bigint", "Number of the silver batch that found it, or of the last one that was merged"),
        ),
        "Every judgement of a message other than plain acceptance: duplicates, gaps, late messages, violations",
        written_by="silver.job",
        statistics_columns=("topic", "session_id", "offset", "_batch"),
        writes=WriteMode.APPEND,
    ),
    PROCESSOR_ERRORS: TableSchema(
        (
            Column("processor", "string", "Name of the processor"),
            TOPIC,
            PARTITION,
            SESSION_ID,
            Column("_offset", "bigint", "Kafka offset of the session's last message before the failure"),
            Column("_position", "bigint", "Order of application of that message (see session_changes)"),
            Column("ordinal", "int", "Position among the calls that followed that message, from 0"),
            Column("_time", "timestamp", "Stream time of the failed call"),
            Column("event", "string", "What the processor was called for: message, timer or expiry"),
            Column(
                "action",
                "string",
                "What was done: isolated (no further calls for the session's present life), recorded, or skipped (not "
                "called, isolated before)",
            ),
            Column("error", "string", "What the class raised, up to 1,000 characters"),
            Column("_batch", "bigint", "Number of the processor's batch that wrote the row"),
        ),
        "Calls of user-defined processors that failed, and calls that were skipped after that",
        written_by="processors.job",
        statistics_columns=("processor", "topic", "session_id", "_offset", "_batch"),
        writes=WriteMode.APPEND,
    ),
}
"""Definitions of silver's tables, by two-level table name."""
