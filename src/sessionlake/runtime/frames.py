"""Arrow rows as a Spark frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def as_frame(spark: SparkSession, rows: DataFrame | pa.Table) -> DataFrame:
    """The rows as a frame of this session, if they are not one yet.

    Spark 4.0 stops reading an Arrow table at its first empty chunk and says nothing: chunks are put together first.
    """
    return spark.createDataFrame(rows.combine_chunks()) if isinstance(rows, pa.Table) else rows
