"""Which rows of a table go: those of a place or a session up to its limit. Pure, and as Spark's condition.

A limit is never moved back, and rows up to it never come again, so that what goes is the same whoever asks, and when.
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
    """Rows of a table that something is to be done with.

    Attributes:
        most: columns that are at most a value in all of them.
    """

    @property
    def upper_bounds(self) -> Mapping[str, Any]:
        """The most that each of these columns is."""

    @property
    def columns(self) -> list[str]:
        """What must be read of a row to tell."""

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows they are."""

    def source(self, spark: SparkSession) -> DataFrame:
        """What `condition` compares rows with, alias `s`."""

    def condition(self) -> Column:
        """Whether a row of the table (alias `t`) is one of them by a row of `source`."""


@dataclass(frozen=True)
class Expired:
    """Rows whose `by` is at most the limit of their keys; those of keys without a limit stay.

    Attributes:
        keys: columns that say whose a row is; without any, there is one limit for all.
        limits: the keys, no two the same, and `limit`.
        most: columns that must be at most a value, too: by them, files are left out that have no such row.
        spares: a column; where that is true, the row stays.
    """

    keys: tuple[str, ...]
    limited_column: str
    limits: pa.Table
    upper_bounds: Mapping[str, Any]
    spared_by: str | None = None

    @property
    def columns(self) -> list[str]:
        """What must be read of a row to tell."""
        spared = () if self.spared_by is None else (self.spared_by,)
        return list(dict.fromkeys([*self.keys, self.limited_column, *self.upper_bounds, *spared]))

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows go."""
        limit = self._limits_of(batch)
        goes = pc.less_equal(batch.column(self.limited_column), limit)
        for name, value in self.upper_bounds.items():
            column = batch.column(name)
            goes = pc.and_kleene(goes, pc.less_equal(column, pa.scalar(value, column.type)))
        if self.spared_by is not None:
            goes = pc.and_kleene(goes, pc.invert(pc.fill_null(batch.column(self.spared_by), fill_value=False)))
        return pc.fill_null(goes, fill_value=False)

    def _limits_of(self, batch: pa.RecordBatch) -> Any:
        """The limit of each row; null if it has none."""
        limits = self.limits[LIMIT].combine_chunks()
        if not self.keys:
            return limits[0] if len(limits) else pa.scalar(None, limits.type)
        return limits.take(pc.index_in(_joined_keys(batch, self.keys), value_set=_joined_keys(self.limits, self.keys)))

    def source(self, spark: SparkSession) -> DataFrame:
        """The limits, alias `s`."""
        return as_frame(spark, self.limits.select([*self.keys, LIMIT])).alias("s")

    def condition(self) -> Column:
        """Whether a row of the table (alias `t`) goes by the row of `limits` (alias `s`) that has its keys."""
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
        """What rows must meet in any case: see `reading.Condition`."""
        return [(name, le, value) for name, value in self.upper_bounds.items()]


def _joined_keys(rows: pa.Table | pa.RecordBatch, keys: tuple[str, ...]) -> pa.Array:
    """The keys of each row as one text; null where one of them is."""
    parts = [pc.cast(rows[name] if isinstance(rows, pa.Table) else rows.column(name), pa.string()) for name in keys]
    joined = pc.binary_join_element_wise(*parts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
