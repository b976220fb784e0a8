"""Definitions of the tables of the schema `bronze`. `schemas.tables` collects the definitions of all schemas."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import Column, TableSchema, WriteMode
from sessionlake.delta.schemas.names import DAMAGED, ERASURES, MESSAGES

BRONZE_SCHEMAS: dict[str, TableSchema] = {
    MESSAGES: TableSchema(
        (
            Column("topic", "string", "Kafka topic; null if the row records silences and is no message"),
            Column("partition", "int", "Kafka partition; null if the row records silences"),
            Column(
                "offset",
                "bigint",
                "Kafka offset, raised by ops.topics.offset_shift if the topic was recreated; null if the row records "
                "silences",
            ),
            Column(
                "timestamp",
                "timestamp",
                "Kafka timestamp; 1969-12-31 23:59:59.999 UTC if Kafka gave none; null if the row records silences",
            ),
            Column(
                "timestamp_type",
                "int",
                "0: the producer set the timestamp, 1: the broker did, -1: there is none; null if the row records "
                "silences",
            ),
            Column("key", "binary", "Kafka key, raw bytes; null if the message has none or the row records silences"),
            Column(
                "value",
                "binary",
                "Kafka value, raw bytes, or JSON of the silences; null if the message has none or was erased",
            ),
            Column(
                "headers",
                "array<struct<key:string,value:binary>>",
                "Kafka headers in order, values as raw bytes; null if there are none or the message was erased",
            ),
            Column("ingested_at", "timestamp", "Wall-clock time at which bronze read the message"),
        ),
        "Raw Kafka messages, each exactly once",
        written_by="bronze.job",
        cluster_by=("topic", "partition", "offset"),
        statistics_columns=("topic", "partition", "offset", "timestamp", "ingested_at"),
        writes=WriteMode.APPEND,
    ),
    DAMAGED: TableSchema(
        (
            Column("file", "string", "Path of the archive file"),
            Column("member", "string", "Name of the member in the file"),
            Column("start", "bigint", "Byte of the file at which the member starts"),
            Column("topic", "string", "Kafka topic that the member's header names; null if the header cannot be read"),
            Column("partition", "int", "Kafka partition that the header names; null if the header cannot be read"),
            Column(
                "damage",
                "string",
                "What is wrong: unreadable, bad_header, bad_message, bad_footer, wrong_count or wrong_checksum",
            ),
            Column("detail", "string", "The same in words"),
            Column("found_at", "timestamp", "Wall-clock time at which bronze read the member"),
        ),
        "Members of archives that could not be used, and why",
        written_by="bronze.streamed",
        writes=WriteMode.APPEND,
    ),
    ERASURES: TableSchema(
        (
            Column("receipt", "string", "Number of the receipt"),
            Column("topic", "string", "Kafka topic of the session"),
            Column(
                "session_hash",
                "string",
                "SHA-256, in hexadecimal, of the salt's bytes, the topic, a zero byte and the session id",
            ),
            Column("salt", "string", "Salt of the hash, in hexadecimal; the same in all rows"),
            Column("begun_at", "timestamp", "Wall-clock time at which forgetting began"),
            Column("done_at", "timestamp", "Wall-clock time at which it was complete; null if it is not complete yet"),
            Column("messages", "bigint", "Number of messages that were erased in bronze.messages"),
            Column("report", "string", "JSON object of what was removed from each table and found by the search"),
            Column("format", "int", "Version of this table's format"),
        ),
        "Sessions that were forgotten, each known by a salted hash, and what was removed where",
        written_by="ledger.erasures",
        writes=WriteMode.REPLACE,
    ),
}
"""Definitions of bronze's tables, by two-level table name."""
