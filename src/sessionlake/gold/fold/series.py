"""Declares tables with rolling averages over the last points of a series."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from sessionlake.feeds.topics import FeedTopics
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.names import build_ddl

OF_SESSION = ("topic", "session_id", PARTITION)
POINT_SERIES = (*OF_SESSION, "row_id", "metric")
"""The columns that can identify a series.

The row id comes last among the names that are joined, since it may contain the separator.
"""
_IN_SESSION = ("ts", "position", "ordinal")
# Positions do not order points of different sessions. Those of equal event time follow Kafka's order.
_IN_TOPIC = ("ts", "partition", "offset", "ordinal")
# Under `once`, these columns order points of equal event time. Points of the same session stay together.
SEQ_ORDER = ("_session", "_life", "_seq")
# The exact value of a decimal column: the number of units of 10^-scale. Null for columns of other types.
EXACT = ("_units", "_scale")
EXACT_TYPES = tuple(zip(EXACT, ("decimal(38,0)", "int"), strict=True))
_TYPES = {"ts": "bigint", "position": "bigint", "ordinal": "int", "partition": "int", "offset": "bigint"}
_FORMAT = 3


@dataclass(frozen=True)
class RollingAverage:
    """A table of gold with one row per point: the average of the point and the points before it in its series.

    Attributes:
        name: Name of the table in the schema `gold`.
        keys: The columns that identify a series, in the order of `POINT_SERIES`. Always `topic` and `metric`. In
            addition `row_id`, or `session_id` and `partition`, or all three, or none.
        window_points: The highest number of points in an average (N).
        watermark_ms: By how many ms of event time the watermark of a series is behind its newest point.
        publishes_early: True to publish averages before the watermark has passed their points.
        minimum_points: The lowest number of points in a published average.
        comment: What a row is, for the table's description.
        topics: The topics of the only feed whose points are averaged; None for the points of all topics.
    """

    name: str
    keys: tuple[str, ...] = POINT_SERIES
    window_points: int = 8
    watermark_ms: int = 0
    publishes_early: bool = True
    minimum_points: int = 1
    comment: str = ""
    topics: FeedTopics | None = None

    @property
    def table_name(self) -> str:
        """The table's two-level name, `gold.<name>`."""
        return f"gold.{self.name}"

    @property
    def is_per_session(self) -> bool:
        """True if each series belongs to one session."""
        return "session_id" in self.keys

    @property
    def owner_columns(self) -> tuple[str, ...]:
        """The columns that identify the owner of a series. An owner is a session, or a row across sessions.

        All series of an owner are in one shard, and their state is dropped together.
        """
        return OF_SESSION if self.is_per_session else tuple(name for name in self.keys if name != "metric")

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The names of the key columns that are texts."""
        return tuple(name for name in self.keys if name != PARTITION)

    @property
    def point_columns(self) -> tuple[str, ...]:
        """The names of the columns that identify a point within its series.

        They also order the points of a series, except in topics of class `once`.
        """
        return _IN_SESSION if self.is_per_session else _IN_TOPIC

    @property
    def seq_order_columns(self) -> tuple[str, ...]:
        """The names of the columns that order points of equal event time in class `once`. They are null otherwise."""
        return SEQ_ORDER[1:] if self.is_per_session else SEQ_ORDER

    @property
    def sort_columns(self) -> tuple[str, ...]:
        """The names of the columns that order the points of a series, whatever the integrity class."""
        time, *rest = self.point_columns
        return (time, *self.seq_order_columns, *rest)

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The names of the columns that identify a row."""
        return (*self.keys, *self.point_columns)

    @property
    def column_types(self) -> tuple[tuple[str, str], ...]:
        """All columns of the table in order, as pairs of name and Spark SQL type."""
        keys = tuple((name, _TYPES.get(name, "string")) for name in self.row_keys)
        figures = (("value", "double"), ("average", "double"), ("points", "int"))
        order = ((name, "bigint") for name in self.seq_order_columns)
        return (*keys, *figures, ("revision", "int"), ("pane", "string"), *order, *EXACT_TYPES)

    @property
    def columns_ddl(self) -> str:
        """All columns of the table as Spark DDL."""
        return build_ddl(self.column_types)

    @property
    def result_columns(self) -> tuple[str, ...]:
        """The names of the columns whose values depend only on silver's changes.

        `revision` and `pane` also depend on how gold splits the changes into batches.
        """
        return ("value", "average", "points")

    @property
    def logic_hash(self) -> str:
        """A hash of everything in the declaration that the rows depend on."""
        declaration = (
            _FORMAT,
            self.keys,
            self.window_points,
            self.watermark_ms,
            self.publishes_early,
            self.minimum_points,
        )
        feed = () if self.topics is None else (self.topics,)
        return sha256(repr((*declaration, *feed)).encode()).hexdigest()[:12]
