"""What both sources of the MERGEs share: the range of batches that is merged, and how it is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.protocol.columns import RESCUED
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.net_changes import MARKS
from sessionlake.silver.tables.snapshots import ROW_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Cleared sessions up to this number are looked up by name, which lets Delta skip files.
NAMED_SESSIONS = 500


@dataclass(frozen=True)
class BatchRange:
    """A range of silver's batches, both ends included, that is merged at once.

    Attributes:
        rows: for each of them, its rows by table where they are at hand.
    """

    first: int
    last: int
    rows: tuple[Mapping[str, pa.Table], ...] = ()

    def at_hand(self, table: str) -> pa.Table | None:
        """All rows of a table, or None if some must be read. A batch that wrote none has none to hand over."""
        if not self.rows or not all(self.rows):
            return None
        found = [rows[table] for rows in self.rows if table in rows]
        return pa.concat_tables(found) if found else None


class Source:
    """What a source needs to look up what its batches changed."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange) -> None:
        self._spark = spark
        self._lake = lake
        self._batches = batches
        self._columns = settings.capture.declared

    @property
    def _read(self) -> tuple[str, ...]:
        declared = (column.name for column in self._columns)
        return (*ROW_KEY, *declared, RESCUED, *MARKS, "change", "_set", "_position", "ordinal", "_life")
