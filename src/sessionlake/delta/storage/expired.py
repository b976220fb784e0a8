"""Selects the rows of a table that are to be removed, as an Arrow mask and as a Spark condition.

`Expired` selects rows of a topic-partition or session up to a limit. A limit never moves back, and no rows up to it are
added later. So every process selects the same rows at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import le
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.spark.frames import as_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LIMIT = "limit"


class RowSelection(Protocol):
    """Selects rows of a table.

    Attributes:
        upper_bounds: the highest value that each of these columns has in the selected rows.
    """

    @property
    def upper_bounds(self) -> Mapping[str, Any]:
        """The highest value that each of these columns has in the selected rows. Files are skipped by it."""

    @property
    def columns(self) -> list[str]:
        """The columns that `mask` needs."""

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns which rows of the batch are selected."""

    def source(self, spark: SparkSession) -> DataFrame:
        """Returns the frame, alias `s`, that `condition` joins the table with."""

    def condition(self) -> Column:
        """Returns the join condition that selects rows of the table (alias `t`) by a row of `source` (alias `s`)."""


@dataclass(frozen=True)
class Expired:
    """Selects rows whose `limited_column` is at most the limit of their keys. Rows of keys without a limit stay.

    Attributes:
        keys: columns that identify whose a row is; if empty, one limit holds for all rows.
        limits: the distinct keys and the column `limit`.
        upper_bounds: columns that must also be at most this value; files without such rows are skipped.
        spared_by: boolean column; rows where it is true stay. None if no row is spared.
    """

    keys: tuple[str, ...]
    limited_column: str
    limits: pa.Table
    upper_bounds: Mapping[str, Any]
    spared_by: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that `mask` needs."""
        spared = () if self.spared_by is None else (self.spared_by,)
        return list(dict.fromkeys([*self.keys, self.limited_column, *self.upper_bounds, *spared]))

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns which rows of the batch are selected."""
        limit = self._limits_of(batch)
        goes = pc.less_equal(batch.column(self.limited_column), limit)
        for name, value in self.upper_bounds.items():
            column = batch.column(name)
            goes = pc.and_kleene(goes, pc.less_equal(column, pa.scalar(value, column.type)))
        if self.spared_by is not None:
            goes = pc.and_kleene(goes, pc.invert(pc.fill_null(batch.column(self.spared_by), fill_value=False)))
        return pc.fill_null(goes, fill_value=False)

    def _limits_of(self, batch: pa.RecordBatch) -> Any:
        """Returns the limit of each row; null if it has none."""
        limits = self.limits[LIMIT].combine_chunks()
        if not self.keys:
            return limits[0] if len(limits) else pa.scalar(None, limits.type)
        return limits.take(pc.index_in(_joined_keys(batch, self.keys), value_set=_joined_keys(self.limits, self.keys)))

    def source(self, spark: SparkSession) -> DataFrame:
        """Returns the limits as a frame, alias `s`."""
        return as_frame(spark, self.limits.select([*self.keys, LIMIT])).alias("s")

    def condition(self) -> Column:
        """Returns the join condition of the table (alias `t`) with the limits (alias `s`)."""
        from pyspark.sql import functions as F

        goes = F.col(f"t.{self.limited_column}") <= F.col(f"s.{LIMIT}")
        for name in self.keys:
            goes &= F.col(f"t.{name}") == F.col(f"s.{name}")
        for name, value in self.upper_bounds.items():
            goes &= F.col(f"t.{name}") <= F.lit(value)
        if self.spared_by is not None:
            goes &= ~F.coalesce(F.col(f"t.{self.spared_by}"), F.lit(col=False))
        return goes

    @property
    def conditions(self) -> list[tuple[str, Any, Any]]:
        """Conditions that every selected row meets, for `TableReader.batches`."""
        return [(name, le, value) for name, value in self.upper_bounds.items()]


def _joined_keys(rows: pa.Table | pa.RecordBatch, keys: tuple[str, ...]) -> pa.Array:
    """Returns the keys of each row joined into one text; null if any of them is null."""
    parts = [pc.cast(rows[name] if isinstance(rows, pa.Table) else rows.column(name), pa.string()) for name in keys]
    joined = pc.binary_join_element_wise(*parts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
