"""The gold tables as a batch writes them: what tells their rows apart, and which columns may change."""

from __future__ import annotations

from dataclasses import dataclass

from sessionlake.gold.fold.outputs import METRIC_KEY, GoldOutput
from sessionlake.lake.names import AVERAGES, MINUTES
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.upsert import Upsert


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

    @property
    def upsert(self) -> Upsert:
        """How changed rows are merged: that a row is there is known, which spares Delta an outer join."""
        return Upsert((*METRIC_KEY, *self.order), self.updated, bounded=(self.time,), inserts=False)


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
