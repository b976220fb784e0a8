"""Tables whose files Databricks' predictive optimization merges and removes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionlake.delta.catalog.history import compute_file_retention
from sessionlake.delta.schemas.properties import RETENTION, format_interval
from sessionlake.delta.storage.interface import TableStorage
from sessionlake.delta.storage.upkeep import HistoryToKeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROW, _ENABLED = "Predictive Optimization", "ENABLE"


def has_predictive_optimization(spark: SparkSession, storage: TableStorage, table: str) -> bool:
    """Returns True if the platform runs OPTIMIZE and VACUUM on a table by itself."""
    if not storage.needs_spark:
        return False
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {storage.to_sql_identifier(table)}").collect()
    return is_enabled((str(row[0]), str(row[1])) for row in rows)


def is_enabled(description: Iterable[tuple[str, str]]) -> bool:
    """Returns True if a table's description says that predictive optimization is on.

    Args:
        description: Names and values. The value is such as `ENABLE (inherited from METASTORE lake)`; open-source Spark
            has no such row.
    """
    return any(name == _ROW and value.upper().startswith(_ENABLED) for name, value in description)


def keep_files(spark: SparkSession, storage: TableStorage, table: str, kept: HistoryToKeep) -> None:
    """Stores in a table property how long files must stay for the readers. The platform's VACUUM obeys it."""
    span = compute_file_retention(storage.open_delta_table(spark, table), table, kept)
    storage.set_changed_properties(spark, table, {RETENTION: format_interval(span)})
