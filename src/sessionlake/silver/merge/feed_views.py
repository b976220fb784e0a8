"""Creates the views of feeds: `silver.<feed>` has the rows of a feed's sessions now, `silver.<feed>_changes` changes.

A view has only the feed's own columns, the key first, and only rows of topics that the feed reads. It stores nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import build_feed_topics_condition, quote_sql_string
from sessionlake.delta.schemas.names import CHANGES, ROWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.table_function import build_subquery_sql
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.names import quote
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.feeds import FeedSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's `timestamp_millis` fails beyond its range; these are the years 1 to 9999.
_TIME = "CASE WHEN `_ts` BETWEEN -62135596800000 AND 253402300799999 THEN timestamp_millis(`_ts`) END"


class _ViewColumn(NamedTuple):
    """A column of a view: its name, the SQL expression of its values, and its comment."""

    name: str
    sql: str
    comment: str


def _create_plain_column(name: str, comment: str) -> _ViewColumn:
    """Returns a column of a view that has a table's column unchanged."""
    return _ViewColumn(name, quote(name), comment)


_SESSION = (
    _create_plain_column("topic", "Kafka topic"),
    _create_plain_column("session_id", "Id of the session"),
)
_ENDS = {
    ROWS: (
        _create_plain_column(
            "_rescued", "JSON object of the undeclared fields in the row's last upsert; null if there are none"
        ),
        _ViewColumn("_time", _TIME, "Event time of the message that changed the row last"),
        _create_plain_column("_seq", "seq of the message that changed the row last"),
        _create_plain_column("_offset", "Kafka offset of the message that changed the row last"),
        _create_plain_column("partition", "Kafka partition"),
    ),
    CHANGES: (
        _create_plain_column("_rescued", "JSON object of the undeclared fields of the row; null if there are none"),
        _create_plain_column(
            "_set", "The columns that the message set; the others are null here, and keep their values in the row"
        ),
        _ViewColumn("_time", _TIME, "Event time of the message"),
        _create_plain_column("kafka_timestamp", "Kafka timestamp of the message"),
        _create_plain_column("_applied_at", "Stream time at which the message was applied"),
        _create_plain_column("_seq", "seq of the message"),
        _create_plain_column("_offset", "Kafka offset of the message"),
        _create_plain_column(
            "_position", "Position of the message in the order in which the session's messages were applied"
        ),
        _create_plain_column("ordinal", "Position of the change inside its message"),
        _create_plain_column("partition", "Kafka partition"),
    ),
}
_CHANGE = _create_plain_column("change", "clear (a snapshot empties the table), upsert or delete")


def list_feed_view_sources(capture: CaptureSettings) -> dict[str, str]:
    """Returns, by the name of each feed's views, such as `silver.orders`, the table that the view reads."""
    return {view: table for feed in capture.feeds for view, table in zip(feed.views, (ROWS, CHANGES), strict=True)}


def create_feed_views(spark: SparkSession, lake: Lake, views: Collection[str] | None = None) -> None:
    """Creates or replaces views of feeds. In a catalog they are permanent; else they exist only in this Spark session.

    Args:
        spark: The Spark session.
        lake: The lake.
        views: The names of the views to create; None for all.
    """
    for feed in lake.settings.capture.feeds:
        for name, table in zip(feed.views, (ROWS, CHANGES), strict=True):
            if views is None or name in views:
                _create_view(spark, lake, name, table, feed)


def _create_view(spark: SparkSession, lake: Lake, view: str, table: str, feed: FeedSettings) -> None:
    columns = list(_list_columns(feed, table))
    what = "The present rows of its sessions" if table == ROWS else "The changes of its sessions' rows, in order"
    source = _build_source_sql(spark, lake, table)
    heads = ", ".join(f"{quote(column.name)} COMMENT {quote_sql_string(column.comment)}" for column in columns)
    condition = build_feed_topics_condition(lake.settings.capture.find_feed_topics(feed.name))
    rows = build_subquery_sql(
        f"{source} WHERE {condition}", (f"{column.sql} AS {quote(column.name)}" for column in columns)
    )
    spark.sql(
        f"CREATE OR REPLACE VIEW {lake.storage.create_view_schema_and_get_name(spark, view)} ({heads}) "
        f"COMMENT {quote_sql_string(f'Feed {feed.name}. {what}')} AS {rows}"
    )


def _list_columns(feed: FeedSettings, table: str) -> Iterator[_ViewColumn]:
    """Yields the columns of a feed's view: those that identify the row, the feed's own, and those about the message."""
    made = feed.build()
    keys = [column.name for column in made.key]
    yield from _SESSION
    if table == CHANGES:
        yield _CHANGE
    for column in made.key:
        yield _ViewColumn(column.name, _build_value_sql(column), "Key of the row")
    for column in made.columns.values():
        if column.name not in keys:
            yield _ViewColumn(column.name, _build_value_sql(column), "Value of the row")
    yield from _ENDS[table]


def _build_value_sql(column: FeedColumn) -> str:
    """Returns the SQL expression of a feed's column. A variant is stored as JSON text, so it is parsed."""
    name = quote(column.name)
    if column.sql == "variant":
        return f"parse_json({name})"
    return f"transform({name}, v -> parse_json(v))" if column.sql == "array<variant>" else name


def _build_source_sql(spark: SparkSession, lake: Lake, table: str) -> str:
    """Returns a table as SQL, with nulls for columns that it does not have yet. A missing table has no rows."""
    present = lake.storage.read_column_types(spark, table) if lake.exists(spark, table) else {}
    wanted = TABLES[table].list_column_types(lake.settings)
    nulls = [f"CAST(NULL AS {sql}) AS {quote(name)}" for name, sql in wanted if name not in present]
    if not present:
        return f"(SELECT {', '.join(nulls)} WHERE false)"
    return build_subquery_sql(lake.to_sql_identifier(table), ["*", *nulls]) if nulls else lake.to_sql_identifier(table)
