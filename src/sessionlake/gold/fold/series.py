"""Declarations of tables with rolling averages over the last points of a series."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.names import ddl_of

OF_SESSION = ("topic", "session_id", PARTITION)
POINT_SERIES = (*OF_SESSION, "row_id", "metric")
"""The columns that can identify a series of numbers. The row id comes last but one, since it may contain the separator
that joins names."""
_IN_SESSION = ("ts", "position", "ordinal")
# Positions do not order points of different sessions. Those of equal event time follow Kafka's order.
_IN_TOPIC = ("ts", "partition", "offset", "ordinal")
# Under `once`, these columns order points of equal event time. Across sessions, they keep each session's together.
SEQ_ORDER = ("_session", "_life", "_seq")
_TYPES = {"ts": "bigint", "position": "bigint", "ordinal": "int", "partition": "int", "offset": "bigint"}
_FORMAT = 2


@dataclass(frozen=True)
class RollingAverage:
    """A table of gold with one row per point: the average over the point and the points before it in its series.

    Attributes:
        name: Name of the table in the schema `gold`.
        keys: The columns that identify a series, in the order of `POINT_SERIES`: `topic` and `metric`, with `row_id`,
            with `session_id` and `partition`, with all three, or with none.
        last: The most points that an average is over, N.
        watermark_ms: How far the watermark of a series is behind its newest point, in event time.
        early: Whether averages are published before the watermark has passed their points.
        least: Averages over fewer points are not published.
    """

    name: str
    keys: tuple[str, ...] = POINT_SERIES
    last: int = 8
    watermark_ms: int = 0
    early: bool = True
    least: int = 1
    comment: str = ""

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"

    @property
    def of_session(self) -> bool:
        """Whether a series belongs to one session."""
        return "session_id" in self.keys

    @property
    def owner(self) -> tuple[str, ...]:
        """The key columns of a series' owner: a session, or a row across sessions.

        Series of one owner share a shard and are forgotten together.
        """
        return OF_SESSION if self.of_session else tuple(name for name in self.keys if name != "metric")

    @property
    def texts(self) -> tuple[str, ...]:
        """The text columns among the keys."""
        return tuple(name for name in self.keys if name != PARTITION)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that identify a point of a series. They also order its points, unless `seq_order` does."""
        return _IN_SESSION if self.of_session else _IN_TOPIC

    @property
    def seq_order(self) -> tuple[str, ...]:
        """The columns that, under `once`, order points of equal event time before all others; null in other classes."""
        return SEQ_ORDER[1:] if self.of_session else SEQ_ORDER

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """The columns that order the points of a series under any class."""
        time, *rest = self.order
        return (time, *self.seq_order, *rest)

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*self.keys, *self.order)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Its columns and their Spark SQL types, in order."""
        keys = tuple((name, _TYPES.get(name, "string")) for name in self.row_keys)
        figures = (("value", "double"), ("average", "double"), ("points", "int"))
        order = ((name, "bigint") for name in self.seq_order)
        return (*keys, *figures, ("revision", "int"), ("pane", "string"), *order)

    @property
    def ddl(self) -> str:
        """Its columns as Spark DDL."""
        return ddl_of(self.columns)

    @property
    def results(self) -> tuple[str, ...]:
        """The columns that follow from silver alone. `revision` and `pane` depend on gold's batches, too."""
        return ("value", "average", "points")

    @property
    def logic(self) -> str:
        """A hash of everything that its rows depend on."""
        declaration = (_FORMAT, self.keys, self.last, self.watermark_ms, self.early, self.least)
        return sha256(repr(declaration).encode()).hexdigest()[:12]
