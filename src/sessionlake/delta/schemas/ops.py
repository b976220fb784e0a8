"""Definitions of the tables of the schema `ops`. `schemas.tables` collects the definitions of all schemas."""

from __future__ import annotations

from sessionlake.delta.schemas.columns import PARTITION, TOPIC
from sessionlake.delta.schemas.definition import Column, TableSchema, WriteMode
from sessionlake.delta.schemas.names import ABSENT, DECISIONS, LEASES, LEDGER, POSITIONS, RETAINED, TOPICS

_OFFSETS = "array<struct<topic:string,partition:int,first:bigint,last:bigint,messages:bigint>>"
_OUTPUTS = "array<struct<table:string,version:bigint,rows:bigint>>"
_TAKEN = "array<struct<topic:string,partition:int,session_id:string,offset:bigint,decision:string>>"
_PARTITIONS = "array<struct<partition:int,first_offset:bigint,next_offset:bigint,end_offset:bigint>>"
_VERSIONS = "array<struct<table:string,version:bigint,committed_at:timestamp>>"
_FEEDS = "array<struct<name:string,topics:string,columns:string,hashes:string>>"
_LAYER = Column(
    "layer",
    "string",
    "bronze, silver, silver_tables (MERGEs beside silver), gold, processor-NAME or publish:TABLE:TOPIC",
)
_APP_ID = Column("app_id", "string", "Id of the streaming query, or of the rebuild, that made the batch")

OPS_SCHEMAS: dict[str, TableSchema] = {
    DECISIONS: TableSchema(
        (
            TOPIC,
            Column("session_id", "string", "Id of the capture session that broke its class"),
            Column("offset", "bigint", "Kafka offset of the message that the decision is about"),
            Column("decision", "string", "accept-gap, isolate, skip-message, or withdrawn (no decision any more)"),
            Column("who", "string", "Name of the user who decided"),
            Column("why", "string", "Reason in the user's words; null if none was given"),
            Column("decided_at", "timestamp", "Wall-clock time of the decision; of one place, the last row counts"),
            PARTITION,
        ),
        "Decisions of operators about messages at which a session broke its class",
        written_by="silver.decisions",
        writes=WriteMode.APPEND,
    ),
    TOPICS: TableSchema(
        (
            TOPIC,
            Column("generation", "int", "0, and one more each time that a topic of this name was begun again"),
            Column(
                "state",
                "string",
                "active, inactive, deleted, recreated, cut or forgotten (docs/how-to/handle-topic-changes.md)",
            ),
            Column("topic_id", "string", "Kafka's id of the topic; null if the broker gives none"),
            Column("first_seen", "timestamp", "Wall-clock time at which bronze first saw the generation"),
            Column(
                "last_seen",
                "timestamp",
                "Wall-clock time at which bronze last saw it in Kafka; where nothing else has changed, up to an hour "
                "earlier",
            ),
            Column("last_message_at", "timestamp", "Wall-clock time at which its last message was seen; null if none"),
            Column("offset_shift", "bigint", "Offset in bronze.messages minus offset in Kafka"),
            Column(
                "partitions",
                _PARTITIONS,
                "By partition, offsets as in bronze.messages: first seen, next to be read, and end in Kafka",
            ),
            Column("lost", "bigint", "Number of messages known to be lost before they were read; null if none are"),
        ),
        "Every captured topic: state, partitions, and what was lost",
        written_by="ledger.topics",
        writes=WriteMode.REPLACE,
    ),
    ABSENT: TableSchema(
        (
            TOPIC,
            PARTITION,
            Column("first", "bigint", "First offset without a message"),
            Column("last", "bigint", "Last offset without a message, included"),
            Column(
                "reason",
                "string",
                "transaction (marker or aborted record), or skipped (an operator had bronze leave the message out)",
            ),
            Column("who", "string", "Name of the user who decided; null if reason is transaction"),
            Column("why", "string", "Reason in the user's words; null if reason is transaction"),
            Column("noted_at", "timestamp", "Wall-clock time of the row"),
        ),
        "Offsets without a message: transaction markers, aborted records, and messages that an operator skipped",
        written_by="ledger.absent",
        statistics_columns=("topic", "partition", "first", "last"),
        writes=WriteMode.APPEND,
    ),
    LEASES: TableSchema(
        (
            Column("name", "string", "What is claimed: a layer, a processor, a publication or an operation"),
            Column("number", "bigint", "Number of changes of the lease up to this row"),
            Column(
                "token", "bigint", "Number of times that the lease was acquired; every holder's is higher than before"
            ),
            Column("claim", "string", "Id of the claim that acquired it last"),
            Column("holder", "string", "Host and process that have it; null if it was given back"),
            Column("doing", "string", "What the holder does, as in: runs silver"),
            Column("acquired_at", "timestamp", "Wall-clock time at which the holder acquired it"),
            Column("renewed_at", "timestamp", "Wall-clock time at which it was renewed last"),
            Column("expires_at", "timestamp", "Wall-clock time from which another process may take it over"),
            Column("settled", "boolean", "Whether its last holder gave it back after a normal end"),
        ),
        "Which process may write a layer, in a catalog: one row per claim, and a second one while nobody holds it",
        written_by="delta.catalog.lease_table",
        partition_by="name",
        writes=WriteMode.REPLACE,
    ),
    LEDGER: TableSchema(
        (
            _LAYER,
            _APP_ID,
            Column("batch_id", "bigint", "Number of the batch; rises within the layer and app_id"),
            Column("source", "string", "What was read: kafka, archive, kinesis, a table, or recovered (see recover)"),
            Column("source_from", "bigint", "First batch or version of the source that was read; null if it has none"),
            Column("source_to", "bigint", "Last batch or version of the source that was read; null if it has none"),
            Column(
                "offsets",
                _OFFSETS,
                "Kafka offsets read, by topic and partition: first and last, both included, and number of messages",
            ),
            Column(
                "outputs",
                _OUTPUTS,
                "Tables written: two-level name, Delta version after the write, and number of rows written",
            ),
            Column("messages", "bigint", "Number of messages read, without erased ones; of gold, number of changes"),
            Column(
                "parts", "bigint", "Number of parts of these messages: more than messages if a feed splits messages"
            ),
            Column("applied", "bigint", "Number of parts applied; of bronze and gold, all that were read"),
            Column("duplicates", "bigint", "Number of parts dropped as duplicates"),
            Column("quarantined", "bigint", "Number of parts put into quarantine"),
            Column("held", "bigint", "Number of messages held back, less those released from before"),
            Column("ignored", "bigint", "Number of messages that their feed ignores"),
            Column("started_at", "timestamp", "Wall-clock time at which the batch began"),
            Column("committed_at", "timestamp", "Wall-clock time of this entry, later than the layer's last rebuild"),
            Column("code_version", "string", "Version of sessionlake that made the batch"),
            Column("config_hash", "string", "Fingerprint of the settings that decide results; empty if recovered"),
            Column(
                "decisions",
                _TAKEN,
                "Decisions of operators that the batch followed, by place: topic, partition, session, offset",
            ),
            Column(
                "feeds",
                _FEEDS,
                "How messages were read: hashes of each feed's mapping; empty without feeds, null in other layers",
            ),
        ),
        "One row per micro-batch of each layer: what it read and what it wrote",
        written_by="ledger.entries",
        statistics_columns=("layer", "batch_id", "committed_at"),
        writes=WriteMode.APPEND,
    ),
    POSITIONS: TableSchema(
        (
            _LAYER,
            _APP_ID,
            Column("batch_id", "bigint", "Highest batch number that was summed"),
            Column("batches", "bigint", "Number of ledger entries that were summed"),
            Column("source_to", "bigint", "Highest source_to of the entries; null if none has one"),
            Column(
                "offsets",
                _OFFSETS,
                "Kafka offsets read, by topic and partition: lowest first, highest last, and number of messages",
            ),
            Column(
                "outputs",
                _OUTPUTS,
                "Tables written: two-level name, highest Delta version, and number of rows written",
            ),
            Column("messages", "bigint", "Sum of messages"),
            Column("parts", "bigint", "Sum of parts"),
            Column("applied", "bigint", "Sum of applied"),
            Column("duplicates", "bigint", "Sum of duplicates"),
            Column("quarantined", "bigint", "Sum of quarantined"),
            Column("held", "bigint", "Sum of held: the messages that are held back at the end"),
            Column("ignored", "bigint", "Sum of ignored"),
            Column("unaccounted", "bigint", "Sum of parts that are in none of the other counts; 0 if all is well"),
            Column("committed_at", "timestamp", "Highest committed_at of the entries"),
            Column("decisions", _TAKEN, "All decisions that the entries followed"),
            Column("until", "timestamp", "The row sums the entries committed before this time"),
            Column(
                "format", "int", "Version of this table's format; 2 if the summed entries were removed by retention"
            ),
            Column(
                "table_versions",
                _VERSIONS,
                "By table, the Delta version that the last entry with an output to it left, and when it was committed",
            ),
        ),
        "Sums of the ledger by layer and application id, up to a moment; a copy, computed again if lost",
        written_by="ledger.positions",
        writes=WriteMode.REPLACE,
    ),
    RETAINED: TableSchema(
        (
            Column("table", "string", "Two-level name of the table whose rows were removed"),
            Column("topic", "string", "Kafka topic that the limit is about; empty in the table's own row"),
            Column("partition", "int", "Kafka partition that the limit is about; -1 in the table's own row"),
            Column("session_id", "string", "Id of the session that the limit is about; empty if it is about none"),
            Column(
                "limit",
                "bigint",
                "Rows are gone up to this offset, position or batch, included; null in the table's own row",
            ),
            Column(
                "highest_timestamp",
                "timestamp",
                "Highest Kafka timestamp up to the limit; null if none is known, and in the table's own row",
            ),
            Column("batch", "bigint", "No row of a later silver batch is gone; -1 if the table's rows name no batch"),
            Column(
                "before",
                "timestamp",
                "Wall-clock time before which all removed rows were committed; null in rows of limits",
            ),
            Column("removed", "bigint", "Number of rows removed; null in rows of limits"),
            Column("pending", "bigint", "Number of rows that are being removed; null in rows of limits"),
            Column("format", "int", "Version of this table's format"),
        ),
        "What retention has removed: one row per table, and one per partition or session with its limit",
        written_by="ledger.retained",
    ),
}
"""Definitions of the tables in `ops`, by two-level table name."""
