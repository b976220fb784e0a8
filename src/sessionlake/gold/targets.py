"""The gold tables as a batch writes them: what tells their rows apart, and which columns may change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sessionlake.gold.fold.outputs import METRIC_KEY, GoldOutput, RowRange
from sessionlake.lake.names import AVERAGES, MINUTES
from sessionlake.lake.schemas import TABLES

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Target:
    """How the rows of one table are told apart and written.

    Attributes:
        time: the column whose range narrows a MERGE to few files.
    """

    table: str
    new: GoldOutput
    changed: GoldOutput
    time: str
    order: tuple[str, ...]
    updated: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """The table's columns."""
        return ", ".join(f"{name} {sql}" for name, sql in TABLES[self.table].columns)

    def same(self, changed: RowRange) -> str:
        """Condition under which a row of the table is the source's.

        Args:
            changed: of the rows that are in the table; as literals its bounds let Delta skip files.
        """
        low, high = (self._literal(value) for value in (changed.low, changed.high))
        equal = (f"t.{name} = s.{name}" for name in (*METRIC_KEY, *self.order))
        return " AND ".join([f"t.{self.time} >= {low} AND t.{self.time} <= {high}", *equal])

    def clauses(self, builder: DeltaMergeBuilder) -> DeltaMergeBuilder:
        """Sets what may change: that a row is there is known, which spares Delta an outer join."""
        return builder.whenMatchedUpdate(set={name: f"s.{name}" for name in self.updated})

    def _literal(self, value: int) -> str:
        if self.time == "ts":
            return f"{value}L"
        return f"TIMESTAMP'{(_EPOCH + timedelta(microseconds=value)).isoformat()}'"


TARGETS = (
    Target(
        AVERAGES,
        GoldOutput.NEW_AVERAGES,
        GoldOutput.CHANGED_AVERAGES,
        "ts",
        ("ts", "position", "ordinal"),
        ("average", "points"),
    ),
    Target(
        MINUTES,
        GoldOutput.NEW_MINUTES,
        GoldOutput.CHANGED_MINUTES,
        "window_start",
        ("window_start",),
        ("points", "min", "max", "sum", "average", "first", "last"),
    ),
)
