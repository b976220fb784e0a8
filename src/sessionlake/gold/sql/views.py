"""The SQL views of silver's tables. They store nothing, so they are always current."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import quote_sql_string
from sessionlake.delta.schemas.definition import DECLARED
from sessionlake.delta.schemas.names import (
    CHANGES,
    DATA_QUALITY,
    DATA_QUALITY_SINCE,
    EVENTS,
    LEDGER,
    MESSAGES,
    POSITIONS,
    QUARANTINE,
    ROWS,
    SESSION_SUMMARY,
    SESSIONS,
    SILVER,
    VIEWS,
)
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.delta.table_function import build_subquery_sql, create_table_function
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.names import quote
from sessionlake.protocol.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ViewDefinition:
    """A SQL view: a query with a description and a comment for each column.

    Attributes:
        comment: The view's description.
        columns: For each column of the view, its comment.
        reads: For each placeholder of a table in the query, the table's two-level name. The first is the main table.
        sql: The query, with placeholders in braces.
    """

    comment: str
    columns: Mapping[str, str]
    reads: Mapping[str, str]
    sql: str

    @property
    def main_source_table(self) -> str:
        """Two-level name of the main table, whose rows the view describes."""
        return next(iter(self.reads.values()))


# All counts are of the session's current life, like those of `silver.sessions`. Under `once` a gap has two events: one
# when it shows, and one when it was not filled in time.
_SUMMARY = """
WITH present AS (
  SELECT topic, partition, session_id, count(*) AS n FROM {rows} GROUP BY topic, partition, session_id
), refused AS (
  SELECT s.topic, s.partition, s.session_id, count(*) AS n
  FROM {quarantine} q JOIN {sessions} s
    ON q.topic = s.topic AND q.partition = s.partition AND q.session_id = s.session_id
  WHERE q.offset >= s.first_offset
  GROUP BY s.topic, s.partition, s.session_id
), missing AS (
  SELECT s.topic, s.partition, s.session_id, sum(CAST(e.actual_seq - e.expected_seq AS DECIMAL(38))) AS n
  FROM {events} e JOIN {sessions} s
    ON e.topic = s.topic AND e.partition = s.partition AND e.session_id = s.session_id
  WHERE e.offset >= s.first_offset AND e.event = 'gap' AND NOT (e.integrity = 'once' AND e.action = 'applied')
  GROUP BY s.topic, s.partition, s.session_id
)
SELECT topic, session_id, status, partition, first_ts, last_ts, try_subtract(last_ts, first_ts) AS duration_ms,
  ended_at, last_kafka_timestamp, coalesce(present.n, 0L) AS rows, messages, duplicates, gaps,
  CAST(least(coalesce(missing.n, 0), 9223372036854775807) AS BIGINT) AS lost, late,
  coalesce(refused.n, 0L) AS quarantined, first_offset, last_offset
FROM {sessions}
  LEFT JOIN present USING (topic, partition, session_id)
  LEFT JOIN refused USING (topic, partition, session_id)
  LEFT JOIN missing USING (topic, partition, session_id)
"""
# Hours are in UTC, whatever the session's time zone. Ledger entries before a rebuild describe replaced tables, and the
# commit time of the rebuild itself says nothing about how soon messages reached silver.
_QUALITY = """
WITH entries AS (
  SELECT app_id, batch_id, offsets, committed_at FROM {ledger} WHERE layer = '{silver}'
), latest AS (
  SELECT max(batch_id) AS batch FROM entries
), known AS (
  SELECT app_id, batch_id, offsets FROM entries
  UNION ALL
  SELECT app_id, batch_id, offsets FROM {positions} WHERE layer = '{silver}'
), spans AS (
  SELECT explode(offsets) AS span FROM known
  WHERE batch_id >= (SELECT coalesce(max(batch_id), 0) FROM known WHERE startswith(app_id, '{rebuild}'))
), judged AS (
  SELECT span.topic, span.partition, max(span.last) AS last FROM spans GROUP BY span.topic, span.partition
), arrived AS (
  SELECT m.topic, {m_hour} AS hour, count(*) AS messages,
    count_if(judged.last IS NULL OR m.offset > judged.last) AS waiting
  FROM {messages} m LEFT JOIN judged ON m.topic = judged.topic AND m.partition = judged.partition
  WHERE {m_since} AND m.topic IS NOT NULL AND NOT m.key <=> {erased}
  GROUP BY m.topic, {m_hour}
), event_counts AS (
  SELECT topic, {hour} AS hour, event, count(*) AS n FROM {events} WHERE {since} AND {told}
  GROUP BY topic, {hour}, event
), events AS (
  SELECT topic, hour, map_from_entries(sort_array(collect_list(struct(event, n)))) AS events,
    coalesce(sum(n) FILTER (WHERE event = 'duplicate'), 0L) AS duplicates
  FROM event_counts GROUP BY topic, hour
), reason_counts AS (
  SELECT topic, {hour} AS hour, reason, count(*) AS n FROM {quarantine} WHERE {since} AND {told}
  GROUP BY topic, {hour}, reason
), refused AS (
  SELECT topic, hour, map_from_entries(sort_array(collect_list(struct(reason, n)))) AS reasons, sum(n) AS quarantined
  FROM reason_counts GROUP BY topic, hour
), came AS (
  SELECT topic, kafka_timestamp, _batch FROM {changes} WHERE ordinal = 0 AND {timed} AND {since} AND {applied_since}
  UNION ALL
  SELECT topic, kafka_timestamp, _batch FROM {quarantine} WHERE reason <> '{future}' AND {timed} AND {since}
), by_batch AS (
  SELECT topic, {hour} AS hour, _batch, count(*) AS n, avg(unix_micros(kafka_timestamp)) AS mean,
    min(kafka_timestamp) AS first
  FROM came GROUP BY topic, {hour}, _batch
), fresh AS (
  SELECT topic, hour, sum(n * (unix_micros(committed_at) - mean)) / sum(n) / 1e6D AS mean,
    max(unix_micros(committed_at) - unix_micros(first)) / 1e6D AS most
  FROM by_batch JOIN entries ON _batch = batch_id AND NOT startswith(app_id, '{rebuild}')
  GROUP BY topic, hour
)
SELECT topic, hour, messages, waiting,
  messages - waiting - coalesce(duplicates, 0L) - coalesce(quarantined, 0L) AS used,
  coalesce(duplicates, 0L) AS duplicates, coalesce(quarantined, 0L) AS quarantined,
  fresh.mean AS freshness_mean, fresh.most AS freshness_max,
  coalesce(events, CAST(map() AS MAP<STRING, BIGINT>)) AS events,
  coalesce(reasons, CAST(map() AS MAP<STRING, BIGINT>)) AS reasons
FROM arrived
  LEFT JOIN events USING (topic, hour)
  LEFT JOIN refused USING (topic, hour)
  LEFT JOIN fresh USING (topic, hour)
"""
# Not with `unix_seconds`: engines round seconds before 1970 in different ways.
_HOUR = "timestamp_micros(unix_micros({0}) - pmod(unix_micros({0}), 3600000000))"
_SHORT = {
    "silver": SILVER,
    "rebuild": REBUILD,
    "erased": f"X'{ERASED_KEY.hex()}'",
    "hour": _HOUR.format("kafka_timestamp"),
    "m_hour": _HOUR.format("m.timestamp"),
    "timed": f"kafka_timestamp <> timestamp_millis({NO_KAFKA_TIME})",
    "future": Reason.FUTURE_KAFKA_TS,
    "told": "_batch <= (SELECT batch FROM latest)",
}

_FIRST_HOUR = _HOUR.format(f"{DATA_QUALITY_SINCE}.since")
# These conditions let Delta skip files. A message is applied at a stream time that is not before its own timestamp.
_SINCE = {
    "since": f"kafka_timestamp >= {_FIRST_HOUR}",
    "m_since": f"m.timestamp >= {_FIRST_HOUR}",
    "applied_since": f"_applied_at >= {_FIRST_HOUR}",
}
_EVER = dict.fromkeys(_SINCE, "true")

DEFINITIONS: dict[str, ViewDefinition] = {
    SESSION_SUMMARY: ViewDefinition(
        "One row per session: state and counts of its current life",
        {
            "topic": "Kafka topic",
            "session_id": "The session: its Kafka key, as text",
            "status": "State: open, ended, expired or broken",
            "partition": "Kafka partition",
            "first_ts": "Lowest event time, ms",
            "last_ts": "Highest event time, ms",
            "duration_ms": "Milliseconds from first_ts to last_ts",
            "ended_at": "Event time of its end, or when it expired",
            "last_kafka_timestamp": "Kafka timestamp of the last well-formed message; if none, the stream time then",
            "rows": "Number of rows in its table now",
            "messages": "Number of applied messages",
            "duplicates": "Number of dropped duplicates",
            "gaps": "Number of gaps in its sequence",
            "lost": "Number of messages missing in these gaps; under once, only in gaps that were not filled in time",
            "late": "Number of messages quarantined because they were too late",
            "quarantined": "Number of its messages in silver.quarantine",
            "first_offset": "Offset of the first message of its life",
            "last_offset": "Offset of its last message",
        },
        {"sessions": SESSIONS, "rows": ROWS, "quarantine": QUARANTINE, "events": EVENTS},
        _SUMMARY,
    ),
    DATA_QUALITY: ViewDefinition(
        "One row per topic and hour of Kafka time (UTC): number of messages, freshness, and problems by kind",
        {
            "topic": "Kafka topic",
            "hour": "Start of the hour, UTC, by Kafka timestamp; messages without a timestamp are in 1969-12-31 23:00",
            "messages": "Number of messages in bronze",
            "waiting": "Number of these that silver has not processed yet",
            "used": "Number of messages that silver applied or holds back",
            "duplicates": "Number of dropped duplicates",
            "quarantined": "Number of messages in silver.quarantine",
            "freshness_mean": "Mean seconds from Kafka timestamp to silver's commit, over messages with changes and "
            "quarantined ones; messages without a timestamp, or with one in the future, are left out",
            "freshness_max": "Maximum of the same seconds",
            "events": "Number of rows in silver.integrity_events by kind",
            "reasons": "Number of rows in silver.quarantine by reason",
        },
        {
            "messages": MESSAGES,
            "changes": CHANGES,
            "quarantine": QUARANTINE,
            "events": EVENTS,
            "ledger": LEDGER,
            "positions": POSITIONS,
        },
        _QUALITY,
    ),
}


def create_views(spark: SparkSession, lake: Lake, views: Iterable[str] = VIEWS) -> None:
    """Creates or replaces views.

    They are permanent in a catalog. On a laptop they are temporary views of the Spark session.

    Args:
        views: Names of the views.
    """
    for name in views:
        view = DEFINITIONS[name]
        columns = ", ".join(f"{column} COMMENT {quote_sql_string(said)}" for column, said in view.columns.items())
        spark.sql(
            f"CREATE OR REPLACE VIEW {lake.storage.create_view_schema_and_get_name(spark, name)} ({columns}) "
            f"COMMENT {quote_sql_string(view.comment)} AS {_build_view_sql(spark, lake, view, _EVER)}"
        )


def create_sql_function_data_quality_since(spark: SparkSession, lake: Lake) -> str:
    """Creates the SQL table function `data_quality_since(since TIMESTAMP)`, and returns its name.

    The function returns the rows of the view `gold.data_quality` from the hour of `since` on. It reads only files with
    rows from that time on, whereas a condition on the view's column `hour` reads all files.

    Raises:
        LakeError: Spark refuses to create the function, for example because a privilege is missing.
    """
    view = DEFINITIONS[DATA_QUALITY]
    fields = spark.sql(_build_view_sql(spark, lake, view, _EVER)).schema.fields
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    body = _build_view_sql(spark, lake, view, _SINCE)
    return create_table_function(spark, lake, f"gold.{DATA_QUALITY_SINCE}", "since TIMESTAMP", columns, body)


def build_view_query(lake: Lake, name: str) -> str:
    """Returns the SQL query of a view over local tables. A table that does not exist yet counts as empty.

    Args:
        name: Name of the view.
    """
    return _build_view_sql(None, lake, DEFINITIONS[name], _EVER)


def _build_view_sql(spark: SparkSession | None, lake: Lake, view: ViewDefinition, since: Mapping[str, str]) -> str:
    tables = {word: _build_table_relation_sql(spark, lake, table) for word, table in view.reads.items()}
    return view.sql.format(**_SHORT, **since, **tables)


def _build_table_relation_sql(spark: SparkSession | None, lake: Lake, table: str) -> str:
    """Returns the SQL that stands for a table in a query, without the table's declared columns.

    A declared column could otherwise have the name of a parameter or an alias of the query. A table that does not exist
    yet counts as empty.
    """
    own = [(name, sql) for name, sql in TABLES[table].column_types if name != DECLARED]
    if not lake.exists(spark, table):
        return f"(SELECT {', '.join(f'CAST(NULL AS {sql}) AS {quote(name)}' for name, sql in own)} WHERE false)"
    if len(own) == len(TABLES[table].column_types):
        return lake.to_sql_identifier(table)
    return build_subquery_sql(lake.to_sql_identifier(table), (quote(name) for name, _ in own))
