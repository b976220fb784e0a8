"""Averages over the last points of a series: what a table of them declares."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.names import ddl_of

OF_SESSION = ("topic", "session_id", PARTITION)
POINT_SERIES = (*OF_SESSION, "row_id", "metric")
"""What tells series of numbers apart; the row's id may hold whatever separates names, so it comes behind them."""
_IN_SESSION = ("ts", "position", "ordinal")
# Of several sessions, no position orders points: of one event time, Kafka's order counts.
_IN_TOPIC = ("ts", "partition", "offset", "ordinal")
# Under `once`, a session's points of one event time go by these first; across sessions, each session's are together.
SEQ_ORDER = ("_session", "_life", "_seq")
_TYPES = {"ts": "bigint", "position": "bigint", "ordinal": "int", "partition": "int", "offset": "bigint"}
_FORMAT = 2


@dataclass(frozen=True)
class RollingAverage:
    """A table of gold: one row for each point, with the average over it and those before it in its series.

    Attributes:
        name: of the table, in the schema `gold`.
        keys: what tells series apart, in the order of `POINT_SERIES`: `topic`, `metric`, and `row_id`, or `session_id`
            and `partition`, or all of these, or neither.
        last: N, how many points an average is over, at most.
        watermark_ms: how far a series' watermark stays behind its newest point, in event time.
        early: whether averages are published before the watermark has passed their points.
        least: no average of fewer points is published.
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
        """Whether each session has series of its own."""
        return "session_id" in self.keys

    @property
    def owner(self) -> tuple[str, ...]:
        """The columns of what is forgotten as a whole, and so is in one shard: a session, or a row across sessions."""
        return OF_SESSION if self.of_session else tuple(name for name in self.keys if name != "metric")

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of the keys that are texts."""
        return tuple(name for name in self.keys if name != PARTITION)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that tell the points of a series apart, and order them unless `seq_order` does."""
        return _IN_SESSION if self.of_session else _IN_TOPIC

    @property
    def seq_order(self) -> tuple[str, ...]:
        """The columns that order points of one event time first under `once`; null in other classes."""
        return SEQ_ORDER[1:] if self.of_session else SEQ_ORDER

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """The columns that order the points of a series under any class."""
        time, *rest = self.order
        return (time, *self.seq_order, *rest)

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
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
        """The columns that follow from silver alone; `revision` and `pane` tell how they came about."""
        return ("value", "average", "points")

    @property
    def logic(self) -> str:
        """Changes with whatever its rows depend on."""
        said = (_FORMAT, self.keys, self.last, self.watermark_ms, self.early, self.least)
        return sha256(repr(said).encode()).hexdigest()[:12]
