"""Selects the rows of a table that retention removes, both as an Arrow mask and as a Spark condition.

`ExpiredRowSelection` selects the rows of each topic-partition or session up to a limit, such as an offset. Limits
only rise, and no row at or below a limit is added later. So all processes select the same rows, whenever they do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.spark.frames import convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LIMIT = "limit"


class RowSelection(Protocol):
    """Rows of a table that are selected, for example to be removed. Works on Arrow batches and on Spark frames.

    Attributes:
        upper_bounds: for some columns, the highest value that a selected row can have.
    """

    @property
    def upper_bounds(self) -> Mapping[str, Any]:
        """For some columns, the highest value that a selected row can have.

        Files with only higher values are skipped.
        """

    @property
    def columns_needed_for_mask(self) -> list[str]:
        """Names of the columns that are needed to decide whether a row is selected."""

    def mask_selected_rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns a boolean for each row of the record batch: True if the row is selected."""

    def build_merge_source(self, spark: SparkSession) -> DataFrame:
        """Returns a Spark frame with the alias `s`, which is joined with the table by `build_merge_condition`."""

    def build_merge_condition(self) -> Column:
        """Returns a join condition: selected rows of the table (alias `t`) match a row of the source (alias `s`)."""


@dataclass(frozen=True)
class ExpiredRowSelection:
    """Selects the rows of a table whose value in one column is at most the limit for their key.

    Rows whose key has no limit are not selected.

    Attributes:
        keys: the key columns, such as topic and partition. If empty, one limit holds for all rows.
        limited_column: the column that is compared with the limit, such as the offset.
        limits: table with the key columns and the column `limit`, one row per key.
        upper_bounds: for some columns, a value that selected rows must not exceed. Files with only higher values are
            skipped.
        spared_by: name of a boolean column. Rows where it is true are not selected. None if there is no such column.
    """

    keys: tuple[str, ...]
    limited_column: str
    limits: pa.Table
    upper_bounds: Mapping[str, Any]
    spared_by: str | None = None

    @property
    def columns_needed_for_mask(self) -> list[str]:
        """Names of the columns that are needed to decide whether a row is selected."""
        spared = () if self.spared_by is None else (self.spared_by,)
        return list(dict.fromkeys([*self.keys, self.limited_column, *self.upper_bounds, *spared]))

    def mask_selected_rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns a boolean for each row of the record batch: True if the row is selected."""
        limit = self._find_limit_of_each_row(batch)
        goes = pc.less_equal(batch.column(self.limited_column), limit)
        for name, value in self.upper_bounds.items():
            column = batch.column(name)
            goes = pc.and_kleene(goes, pc.less_equal(column, pa.scalar(value, column.type)))
        if self.spared_by is not None:
            goes = pc.and_kleene(goes, pc.invert(pc.fill_null(batch.column(self.spared_by), fill_value=False)))
        return pc.fill_null(goes, fill_value=False)

    def _find_limit_of_each_row(self, batch: pa.RecordBatch) -> Any:
        """Returns an array with the limit for the key of each row, null for keys without a limit.

        Without key columns, returns one scalar: the limit of all rows.
        """
        limits = self.limits[LIMIT].combine_chunks()
        if not self.keys:
            return limits[0] if len(limits) else pa.scalar(None, limits.type)
        return limits.take(
            pc.index_in(_join_key_columns(batch, self.keys), value_set=_join_key_columns(self.limits, self.keys))
        )

    def build_merge_source(self, spark: SparkSession) -> DataFrame:
        """Returns the limits as a Spark frame with the alias `s`."""
        return convert_to_spark_frame(spark, self.limits.select([*self.keys, LIMIT])).alias("s")

    def build_merge_condition(self) -> Column:
        """Returns a join condition by which selected rows of the table (alias `t`) match their limit (alias `s`)."""
        from pyspark.sql import functions as F

        goes = F.col(f"t.{self.limited_column}") <= F.col(f"s.{LIMIT}")
        for name in self.keys:
            goes &= F.col(f"t.{name}") == F.col(f"s.{name}")
        for name, value in self.upper_bounds.items():
            goes &= F.col(f"t.{name}") <= F.lit(value)
        if self.spared_by is not None:
            goes &= ~F.coalesce(F.col(f"t.{self.spared_by}"), F.lit(col=False))
        return goes


def _join_key_columns(rows: pa.Table | pa.RecordBatch, keys: tuple[str, ...]) -> pa.Array:
    """Returns a text for each row: its values in the key columns, joined. Null if one of them is null."""
    parts = [pc.cast(rows[name] if isinstance(rows, pa.Table) else rows.column(name), pa.string()) for name in keys]
    joined = pc.binary_join_element_wise(*parts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
