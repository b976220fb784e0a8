"""Columns that have the same meaning in several tables."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import Column

TOPIC = Column("topic", "string", "Kafka topic")
PARTITION = Column("partition", "int", "Kafka partition")
OFFSET = Column("offset", "bigint", "Kafka offset of the message")
SESSION_ID = Column("session_id", "string", "Id of the capture session: the message's Kafka key, as text")
ROW_ID = Column("row_id", "string", "Id of the row in its session's table")
METRIC = Column("metric", "string", "Name of the declared column that the number was set in")
TS = Column("ts", "bigint", "Event time, ms since 1970")
ORDINAL = Column("ordinal", "int", "Position of the change in its message, from 0")
KAFKA_TIMESTAMP = Column(
    "kafka_timestamp", "timestamp", "Kafka timestamp of the message; 1969-12-31 23:59:59.999 UTC if Kafka gave none"
)
SILVER_BATCH = Column("_batch", "bigint", "Number of the silver batch that wrote the row")
GOLD_BATCH = Column("_batch", "bigint", "Number of the gold batch that wrote the row")
