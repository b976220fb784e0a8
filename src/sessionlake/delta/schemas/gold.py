"""What gold's tables hold."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import TableSchema, Writes
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

_POINT = (
    ("topic", "string"),
    ("session_id", "string"),
    ("row_id", "string"),
    ("metric", "string"),
)
_AVERAGE = (
    ("value", "double"),
    ("average", "double"),
    ("points", "int"),
    ("revision", "int"),
    ("pane", "string"),
)

_SEQ_ORDER = (("_session", "bigint"), ("_life", "bigint"), ("_seq", "bigint"))
"""What orders points of one event time first under `once`; null in other classes."""


def _placed(name: str) -> tuple[tuple[str, str], ...]:
    """A value, and its place in event time."""
    parts = (("ts", "bigint"), ("life", "bigint"), ("position", "bigint"), ("ordinal", "int"))
    return (name, "double"), *((f"_{name}_{part}", sql) for part, sql in parts)


def _metrics(comment: str) -> TableSchema:
    """A tier of metrics: what begins with an underscore is kept so that late points merge."""
    return TableSchema(
        (
            *_POINT,
            ("partition", "int"),
            ("window_start", "timestamp"),
            ("points", "bigint"),
            ("min", "double"),
            ("max", "double"),
            ("sum", "double"),
            ("_sum_rest", "double"),
            ("average", "double"),
            *_placed("first"),
            *_placed("last"),
            ("variance", "double"),
            ("_squares", "double"),
            ("__squares_rest", "double"),
        ),
        comment,
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "window_start"),
        writes=Writes.BOTH,
    )


GOLD_TABLES: dict[str, TableSchema] = {
    AVERAGES: TableSchema(
        (
            *_POINT[:2],
            ("partition", "int"),
            *_POINT[2:],
            ("ts", "bigint"),
            ("position", "bigint"),
            ("ordinal", "int"),
            *_AVERAGE,
            *_SEQ_ORDER[1:],
        ),
        "Average over each point and the N-1 before it in event time",
        cluster_by=("topic", "session_id"),
        skipping=("topic", "session_id", "ts"),
        writes=Writes.BOTH,
    ),
    SENSOR_AVERAGES: TableSchema(
        (
            ("topic", "string"),
            ("row_id", "string"),
            ("metric", "string"),
            ("ts", "bigint"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("ordinal", "int"),
            *_AVERAGE,
            *_SEQ_ORDER,
        ),
        "Average over each point and the N-1 before it in event time, across the topic's sessions",
        cluster_by=("topic", "row_id"),
        skipping=("topic", "row_id", "ts"),
        writes=Writes.BOTH,
    ),
    RESTATEMENTS: TableSchema(
        (
            ("table", "string"),
            *_POINT,
            ("ts", "bigint"),
            ("position", "bigint"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("ordinal", "int"),
            ("revision", "int"),
            ("average_before", "double"),
            ("average", "double"),
            ("points_before", "int"),
            ("points", "int"),
            ("pane", "string"),
            ("late_points", "int"),
            ("late_ms", "bigint"),
            ("because", "array<struct<partition:int,offset:bigint,ts:bigint>>"),
            ("logic", "string"),
            ("restated_at", "timestamp"),
            ("_batch", "bigint"),
        ),
        "Every published average that became another: from what to what, and because of which messages",
        cluster_by=("table", "topic"),
        skipping=("table", "topic", "session_id", "row_id", "ts", "_batch"),
        writes=Writes.BOTH,
    ),
    LATE_POINTS: TableSchema(
        (
            ("table", "string"),
            ("topic", "string"),
            ("session_id", "string"),
            ("row_id", "string"),
            ("name", "string"),
            ("ts", "bigint"),
            ("stream_time", "bigint"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("position", "bigint"),
            ("ordinal", "int"),
            ("_batch", "bigint"),
        ),
        "Every point that came too late for a table of gold with a lateness, and so is not in it",
        cluster_by=("table", "topic"),
        skipping=("table", "topic", "session_id", "row_id", "ts", "_batch"),
        writes=Writes.BOTH,
    ),
    METRICS_1M: _metrics("One row a minute of event time"),
    METRICS_1H: _metrics("One row an hour of event time"),
    METRICS_1D: _metrics("One row a day of event time"),
    DISTINCT_VALUES: TableSchema(
        (
            ("topic", "string"),
            ("column", "string"),
            ("value", "string"),
            ("changes", "bigint"),
            ("first_ts", "bigint"),
            ("last_ts", "bigint"),
        ),
        "Every text that a column was ever set to, when first and last in event time, and how often",
        cluster_by=("topic", "column"),
        skipping=("topic", "column", "value", "last_ts"),
        writes=Writes.BOTH,
    ),
    LOOKUP_FAILURES: TableSchema(
        (
            ("reference", "string"),
            ("key", "string"),
            ("error", "string"),
            ("reason", "string"),
            ("attempts", "int"),
            ("failed_at", "timestamp"),
            ("next_try", "timestamp"),
        ),
        "Keys that a lookup has brought nothing for, why, and when it is asked again; what comes at last has no row",
        writes=Writes.BOTH,
    ),
}
"""The definitions of the tables of the schema `gold`, by their names."""
