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
    """Returns True if Databricks runs OPTIMIZE and VACUUM on a table by itself (predictive optimization)."""
    if not storage.needs_spark:
        return False
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {storage.to_sql_identifier(table)}").collect()
    return is_predictive_optimization_enabled((str(row[0]), str(row[1])) for row in rows)


def is_predictive_optimization_enabled(description: Iterable[tuple[str, str]]) -> bool:
    """Returns True if a table's description in the catalog says that predictive optimization is on.

    Args:
        description: pairs of name and value. The value is such as `ENABLE (inherited from METASTORE lake)`; open-source
            Spark has no such row.
    """
    return any(name == _ROW and value.upper().startswith(_ENABLED) for name, value in description)


def set_file_retention_property(
    spark: SparkSession, storage: TableStorage, table: str, history_to_keep: HistoryToKeep
) -> None:
    """Sets the table property that says how long removed files must stay. The platform's own VACUUM obeys it.

    Args:
        spark: the session to use.
        storage: opens the table.
        table: the table's two-level name.
        history_to_keep: how much history readers and streams need.
    """
    span = compute_file_retention(storage.open_delta_table(spark, table), table, history_to_keep)
    storage.set_properties_that_differ(spark, table, {RETENTION: format_interval(span)})
