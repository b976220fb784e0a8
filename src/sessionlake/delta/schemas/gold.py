"""Definitions of the tables of the schema `gold`. `schemas.tables` collects the definitions of all schemas."""

from __future__ import annotations

from sessionlake.delta.schemas.columns import (
    GOLD_BATCH,
    METRIC,
    OFFSET,
    ORDINAL,
    PARTITION,
    ROW_ID,
    SESSION_ID,
    TOPIC,
    TS,
)
from sessionlake.delta.schemas.definition import Column, TableSchema, WriteMode
from sessionlake.delta.schemas.names import (
    AVERAGES,
    DISTINCT_VALUES,
    LATE_POINTS,
    LOOKUP_FAILURES,
    METRICS_1D,
    METRICS_1H,
    METRICS_1M,
    RESTATEMENTS,
    SENSOR_AVERAGES,
)

_POINT = (TOPIC, SESSION_ID, ROW_ID, METRIC)
_POSITION = Column("position", "bigint", "Order of application in the session (session_changes._position)")
_AVERAGE = (
    Column("value", "double", "The point: the number that the message set"),
    Column(
        "average",
        "double",
        "Average of this point and those before it; null if it is not published yet (least_points, early: false)",
    ),
    Column("points", "int", "Number of points that the average covers, 1 to N"),
    Column("revision", "int", "Number of times that the published average became another; 0 at first"),
    Column(
        "pane",
        "string",
        "Whether the row was last written before the series' watermark passed its event time (early), as it passed "
        "(on_time) or after (late)",
    ),
)
_LIFE = Column("_life", "bigint", "Kafka offset of the first message of the session's life; null unless class once")
_SEQ = Column("_seq", "bigint", "seq of the message; null unless class once")
_SESSION = Column(
    "_session",
    "bigint",
    "Hash of the session id, by which sessions of one event time are ordered; null unless class once",
)
_EXACT = (
    Column("_units", "decimal(38,0)", "The exact value in units of 10^-_scale; null unless the metric is a decimal"),
    Column("_scale", "int", "Number of digits of the exact value after the point; null unless the metric is a decimal"),
)


def _build_point_columns(name: str, order: str) -> tuple[Column, ...]:
    """Returns the columns of a window's first or last point: its value, and its place in the order of points.

    The place shows whether a point that arrives late comes before the first or after the last point.

    Args:
        name: name of the column with the value: `first` or `last`.
        order: the same word for the column's comment.
    """
    return (
        Column(name, "double", f"The {order} point in event time"),
        Column(f"_{name}_ts", "bigint", f"State of {name}: its event time, ms since 1970"),
        Column(f"_{name}_life", "bigint", f"State of {name}: its session's _life under class once, else -1"),
        Column(f"_{name}_position", "bigint", f"State of {name}: its seq under class once, else its _position"),
        Column(f"_{name}_ordinal", "int", f"State of {name}: its position in its message, from 0"),
    )


def _build_metrics_schema(comment: str, bucket: str) -> TableSchema:
    """Returns the definition of a table of metrics per minute, hour or day.

    Columns that start with an underscore hold state, from which the other columns are computed again if late points
    arrive.

    Args:
        comment: what a row is.
        bucket: the length of a window, as in "minute", for the columns' comments.
    """
    return TableSchema(
        (
            *_POINT,
            PARTITION,
            Column("window_start", "timestamp", f"Event time at which the {bucket} begins (UTC)"),
            Column("points", "bigint", f"Number of points in the {bucket}: numbers that messages set"),
            Column("min", "double", "The least of them"),
            Column("max", "double", "The greatest of them"),
            Column("sum", "double", "Their sum"),
            Column("_sum_rest", "double", "State of sum: what rounding took from it"),
            Column("average", "double", "Their mean"),
            *_build_point_columns("first", "first"),
            *_build_point_columns("last", "last"),
            Column(
                "variance",
                "double",
                "Their sample variance; null if there is one point, or squares are beyond the range of doubles",
            ),
            Column("_squares", "double", "State of variance: sum of the squares"),
            Column("__squares_rest", "double", "State of variance: what rounding took from _squares"),
        ),
        comment,
        written_by="gold.batch.products",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "window_start"),
        writes=WriteMode.BOTH,
    )


GOLD_SCHEMAS: dict[str, TableSchema] = {
    AVERAGES: TableSchema(
        (TOPIC, SESSION_ID, PARTITION, ROW_ID, METRIC, TS, _POSITION, ORDINAL, *_AVERAGE, _LIFE, _SEQ, *_EXACT),
        "Average over each point and the N-1 before it in event time",
        written_by="gold.batch.averages",
        cluster_by=("topic", "session_id"),
        statistics_columns=("topic", "session_id", "ts"),
        writes=WriteMode.BOTH,
    ),
    SENSOR_AVERAGES: TableSchema(
        (TOPIC, ROW_ID, METRIC, TS, PARTITION, OFFSET, ORDINAL, *_AVERAGE, _SESSION, _LIFE, _SEQ, *_EXACT),
        "Average over each point and the N-1 before it in event time, across the topic's sessions",
        written_by="gold.batch.averages",
        cluster_by=("topic", "row_id"),
        statistics_columns=("topic", "row_id", "ts"),
        writes=WriteMode.BOTH,
    ),
    RESTATEMENTS: TableSchema(
        (
            Column("table", "string", "Two-level name of the table whose average was restated"),
            TOPIC,
            Column("session_id", "string", "Id of the capture session; null if the table's keys have none"),
            Column("row_id", "string", "Id of the row; null if the table's keys have none"),
            METRIC,
            TS,
            Column(
                "position", "bigint", "Order of application in the session; null if the table's keys have no session"
            ),
            PARTITION,
            Column("offset", "bigint", "Kafka offset of the message; null if the table's keys have a session"),
            ORDINAL,
            Column("revision", "int", "The row's revision after this restatement"),
            Column("average_before", "double", "Average as it was published before"),
            Column("average", "double", "Average from now on"),
            Column("points_before", "int", "Number of points that the average covered before"),
            Column("points", "int", "Number of points that it covers from now on"),
            Column("pane", "string", "The row's pane after this restatement: early, on_time or late"),
            Column("late_points", "int", "Number of new points that came into the average"),
            Column(
                "late_ms",
                "bigint",
                "How far the first of them is behind the series' newest point before, in ms of event time; 0 if it is "
                "not",
            ),
            Column(
                "because",
                "array<struct<partition:int,offset:bigint,ts:bigint>>",
                "Messages that caused the values, the first 16 in event time: partition, offset, event time in ms",
            ),
            Column("logic", "string", "Fingerprint of the table's settings (keys, number of points, watermark)"),
            Column("restated_at", "timestamp", "Wall-clock time of the restatement"),
            GOLD_BATCH,
        ),
        "Every change of a published average: from what to what, and because of which messages",
        written_by="gold.batch.averages",
        cluster_by=("table", "topic"),
        statistics_columns=("table", "topic", "session_id", "row_id", "ts", "_batch"),
        writes=WriteMode.BOTH,
    ),
    LATE_POINTS: TableSchema(
        (
            Column("table", "string", "Two-level name of the table that the point came too late for"),
            TOPIC,
            SESSION_ID,
            ROW_ID,
            Column("name", "string", "Name of the declared column that the message set"),
            TS,
            Column("stream_time", "bigint", "Stream time at which the message was applied, ms since 1970"),
            PARTITION,
            OFFSET,
            _POSITION,
            ORDINAL,
            Column("_batch", "bigint", "Number of the gold batch that read it; -1 if the table was rebuilt since"),
        ),
        "Every point that came too late for a table of gold with a lateness, and is not in that table",
        written_by="gold.batch.products",
        cluster_by=("table", "topic"),
        statistics_columns=("table", "topic", "session_id", "row_id", "ts", "_batch"),
        writes=WriteMode.BOTH,
    ),
    METRICS_1M: _build_metrics_schema("One row a minute of event time", "minute"),
    METRICS_1H: _build_metrics_schema("One row an hour of event time", "hour"),
    METRICS_1D: _build_metrics_schema("One row a day of event time", "day"),
    DISTINCT_VALUES: TableSchema(
        (
            TOPIC,
            Column("column", "string", "Name of the declared column"),
            Column("value", "string", "The text"),
            Column("changes", "bigint", "Number of changes that set it"),
            Column("first_ts", "bigint", "Lowest event time of these changes, ms since 1970"),
            Column("last_ts", "bigint", "Highest event time of these changes, ms since 1970"),
        ),
        "Every text that a column was ever set to, when first and last in event time, and how often",
        written_by="gold.batch.products",
        cluster_by=("topic", "column"),
        statistics_columns=("topic", "column", "value", "last_ts"),
        writes=WriteMode.BOTH,
    ),
    LOOKUP_FAILURES: TableSchema(
        (
            Column("reference", "string", "Name of the reference table, without its schema"),
            Column("key", "string", "JSON array of the key's values"),
            Column(
                "error",
                "string",
                "Why: timeout, connection, http_ and status, answer (not rows), size (over 16 MiB), unknown (no row), "
                "table (reference is faulty), raised (an exception)",
            ),
            Column("reason", "string", "The same in words"),
            Column("attempts", "int", "Number of requests for the key without success"),
            Column("failed_at", "timestamp", "Wall-clock time of the last request"),
            Column("next_try", "timestamp", "Wall-clock time from which the key is asked for again"),
        ),
        "Keys whose lookup returned no usable row, why, and when it is tried again",
        written_by="gold.references.lookups",
        writes=WriteMode.BOTH,
    ),
}
"""Definitions of gold's tables, by two-level table name."""

AVERAGE_COMMENTS = {
    column.name: column.comment for table in (AVERAGES, SENSOR_AVERAGES) for column in GOLD_SCHEMAS[table].definitions
}
"""Comments of all columns that a table of rolling averages can have, by column name."""
