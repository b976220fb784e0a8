"""The range of batches to merge, and the base of the classes that compute its merge sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.protocol.columns import RESCUED
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.net_changes import CLEAR_MARKERS
from sessionlake.silver.tables.snapshots import ROW_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Up to this number, sessions are selected by their ids, which lets Delta skip files.
NAMED_SESSIONS = 500


@dataclass(frozen=True)
class BatchRange:
    """A range of silver's batches, both ends included, that is merged in one MERGE per table.

    Attributes:
        first: The number of the first batch.
        last: The number of the last batch.
        rows_by_table: For each batch, the rows that it appended, by table. Empty if they are no longer in memory.
    """

    first: int
    last: int
    rows_by_table: tuple[Mapping[str, pa.Table], ...] = ()

    def find_rows_in_memory(self, table: str) -> pa.Table | None:
        """Returns the rows that the range has appended to a table.

        None if some are not in memory, or there are none.
        """
        if not self.rows_by_table or not all(self.rows_by_table):
            return None
        found = [rows[table] for rows in self.rows_by_table if table in rows]
        return pa.concat_tables(found) if found else None


class MergeRowsComputer:
    """The base of the classes that compute the rows to merge for a range of batches, in the driver or with Spark."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, batches: BatchRange) -> None:
        self._spark = spark
        self._lake = lake
        self._batches = batches
        self._columns = settings.capture.declared_columns

    @property
    def _change_column_names(self) -> tuple[str, ...]:
        """The columns of `session_changes` from which net changes are computed."""
        declared = (column.name for column in self._columns)
        return (*ROW_KEY, *declared, RESCUED, *CLEAR_MARKERS, "change", "_set", "_position", "ordinal", "_life")
