"""What SQL asks of silver's tables so often that it has a name: views, which hold nothing and so are never behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import sql_string
from sessionlake.delta.schemas.definition import DECLARED
from sessionlake.delta.schemas.names import (
    CHANGES,
    DATA_QUALITY,
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
from sessionlake.delta.table_function import create_table_function, subquery
from sessionlake.protocol.erased import KEY as ERASED_KEY
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.names import quote
from sessionlake.protocol.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class View:
    """A named query.

    Attributes:
        columns: and what is in them.
        reads: tables, by what the query calls them; `main` first.
        sql: the query, in which tables' names stand in braces.
    """

    comment: str
    columns: Mapping[str, str]
    reads: Mapping[str, str]
    sql: str

    @property
    def main(self) -> str:
        """The table without which there is nothing to tell."""
        return next(iter(self.reads.values()))


# All is of the session's present life, as the counts of `silver.sessions` are. Under `once` a gap is told twice: when
# it shows, and when it was not filled in time.
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
# An hour is one of UTC, whatever the session's time zone. Since a rebuild, entries before it tell of tables replaced;
# when it was committed says nothing of how soon messages came into silver.
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
_HOUR = "timestamp_seconds(unix_seconds({0}) - pmod(unix_seconds({0}), 3600))"
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

DATA_QUALITY_SINCE = "data_quality_since"
_FIRST_HOUR = _HOUR.format(f"{DATA_QUALITY_SINCE}.since")
# By these, files are left out: a message is applied at stream time, which is its own timestamp's or later.
_SINCE = {
    "since": f"kafka_timestamp >= {_FIRST_HOUR}",
    "m_since": f"m.timestamp >= {_FIRST_HOUR}",
    "applied_since": f"_applied_at >= {_FIRST_HOUR}",
}
_EVER = dict.fromkeys(_SINCE, "true")

DEFINITIONS: dict[str, View] = {
    SESSION_SUMMARY: View(
        "One row a session: what has become of it, in its present life",
        {
            "topic": "",
            "session_id": "",
            "status": "open, ended, expired or broken",
            "partition": "",
            "first_ts": "least event time, ms",
            "last_ts": "greatest event time, ms",
            "duration_ms": "between the two",
            "ended_at": "event time of its end, or when it expired",
            "last_kafka_timestamp": "of its last well-formed message; stream time then if that has none",
            "rows": "of its table, now",
            "messages": "applied",
            "duplicates": "",
            "gaps": "that its messages showed",
            "lost": "messages that were missing in these gaps; under once, in those that were not filled in time",
            "late": "quarantined since event time had passed them",
            "quarantined": "its messages in silver.quarantine",
            "first_offset": "",
            "last_offset": "",
        },
        {"sessions": SESSIONS, "rows": ROWS, "quarantine": QUARANTINE, "events": EVENTS},
        _SUMMARY,
    ),
    DATA_QUALITY: View(
        "One row a topic and hour of Kafka time (UTC): how much came, how soon, and what was wrong with it",
        {
            "topic": "",
            "hour": "in which it begins, UTC, by Kafka timestamp; 23:00 on 1969-12-31 has the messages without one",
            "messages": "in bronze",
            "waiting": "of these, not judged by silver yet",
            "used": "applied, or held back until event time has passed them",
            "duplicates": "dropped",
            "quarantined": "in silver.quarantine",
            "freshness_mean": "seconds from Kafka timestamp to silver's commit, of what has changes or is quarantined; "
            "messages whose timestamp says no time, or one in the future, are left out",
            "freshness_max": "the most of these",
            "events": "silver.integrity_events by kind",
            "reasons": "silver.quarantine by reason",
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
    """Creates views, or says anew what they are: in a catalog they stay, on a laptop they are the session's."""
    for name in views:
        view = DEFINITIONS[name]
        columns = ", ".join(f"{column} COMMENT {sql_string(said)}" for column, said in view.columns.items())
        spark.sql(
            f"CREATE OR REPLACE VIEW {lake.storage.prepare_view(spark, name)} ({columns}) "
            f"COMMENT {sql_string(view.comment)} AS {_query(spark, lake, view, _EVER)}"
        )


def create_quality_since(spark: SparkSession, lake: Lake) -> str:
    """Creates `data_quality_since(since TIMESTAMP)`, the hours from that moment's on, and returns its name.

    A condition on the view's `hour` has all files read; this one those of that time.

    Raises:
        LakeError: it may not be created.
    """
    view = DEFINITIONS[DATA_QUALITY]
    fields = spark.sql(_query(spark, lake, view, _EVER)).schema.fields
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    body = _query(spark, lake, view, _SINCE)
    return create_table_function(spark, lake, f"gold.{DATA_QUALITY_SINCE}", "since TIMESTAMP", columns, body)


def _query(spark: SparkSession, lake: Lake, view: View, since: Mapping[str, str]) -> str:
    tables = {word: _relation(spark, lake, table) for word, table in view.reads.items()}
    return view.sql.format(**_SHORT, **since, **tables)


def _relation(spark: SparkSession, lake: Lake, table: str) -> str:
    """The table for a query, less the declared columns, which could be called as a parameter or an alias of the query.

    One that is not there yet has no rows.
    """
    own = [(name, sql) for name, sql in TABLES[table].columns if name != DECLARED]
    if not lake.exists(spark, table):
        return f"(SELECT {', '.join(f'CAST(NULL AS {sql}) AS {quote(name)}' for name, sql in own)} WHERE false)"
    if len(own) == len(TABLES[table].columns):
        return lake.identifier(table)
    return subquery(lake.identifier(table), (quote(name) for name, _ in own))
