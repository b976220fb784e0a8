"""Builds SQL text: quoted strings, column lists, and statements that create tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sessionlake.delta.schemas.definition import Column, TableSchema
from sessionlake.feeds.topics import FeedTopics
from sessionlake.protocol.names import quote

_LAST_OF_BMP = "\uffff"


def quote_sql_string(value: str) -> str:
    """Returns the value as a SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def build_feed_topics_condition(topics: FeedTopics | None) -> str:
    """Returns a SQL condition: the column `topic` has a topic that the feed reads. It is always true without a feed."""
    if topics is None:
        return "true"
    return " AND ".join(
        [_build_pattern_condition(topics.pattern), *(f"NOT {_build_pattern_condition(one)}" for one in topics.earlier)]
    )


def _build_pattern_condition(pattern: str) -> str:
    anchored = quote_sql_string(rf"\A(?:{pattern})\z")
    return f"topic RLIKE {anchored}"


def build_columns_ddl(columns: Iterable[Column]) -> str:
    """Returns columns in the form of SQL (name, type and comment), for `CREATE TABLE` and `ADD COLUMNS`."""
    return ", ".join(
        f"{quote(column.name)} {column.sql} COMMENT {quote_sql_string(column.comment)}" for column in columns
    )


def build_create_table_statements(
    identifier: str, schema: TableSchema, columns: Iterable[Column], properties: Mapping[str, str]
) -> Iterator[str]:
    """Yields the SQL statements that create a table in a catalog, with its clustering or partitioning.

    Args:
        identifier: the table's full, quoted name in SQL.
        schema: the table's definition.
        columns: all columns of the table, including the declared capture columns.
        properties: Delta properties of the table.
    """
    listed = build_columns_ddl(columns)
    by = f" CLUSTER BY ({', '.join(map(quote, schema.cluster_by))})" if schema.cluster_by else ""
    # Delta cuts CLUSTER BY out of CREATE TABLE by position, and miscounts characters beyond U+FFFF.
    is_miscounted = max(identifier + listed) > _LAST_OF_BMP
    divided = f" PARTITIONED BY ({quote(schema.partition_by)})" if schema.partition_by else ""
    with_properties = ", ".join(
        f"{quote_sql_string(key)} = {quote_sql_string(value)}" for key, value in properties.items()
    )
    yield (
        f"CREATE TABLE IF NOT EXISTS {identifier} ({listed}) USING delta{'' if is_miscounted else by}{divided}"
        f" COMMENT {quote_sql_string(schema.comment)} TBLPROPERTIES ({with_properties})"
    )
    if by and is_miscounted:
        yield build_cluster_statement(identifier, schema.cluster_by)


def build_cluster_statement(identifier: str, keys: Iterable[str]) -> str:
    """Returns the SQL statement that sets a table's clustering columns.

    Args:
        identifier: the table's full, quoted name in SQL.
        keys: names of the clustering columns.
    """
    return f"ALTER TABLE {identifier} CLUSTER BY ({', '.join(map(quote, keys))})"
