"""Reads what Delta knows of a table's latest version without a Spark job: its properties, and whether it is empty.

Spark has no public function for that, but the JVM's query plan of a read of the table has an object that knows it.
Spark Connect exposes no plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionlake.delta.storage.interface import TableStorage
from sessionlake.spark.interpreted import disable_code_generation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_properties(storage: TableStorage, spark: SparkSession, table: str) -> dict[str, str]:
    """Returns all Delta properties of a table, by name.

    If the session exposes no query plans, SHOW TBLPROPERTIES reads them, and for clustered tables that is a Spark job.
    """
    from py4j.protocol import Py4JError

    with disable_code_generation(spark):
        try:
            values = _get_jvm_file_index(storage, spark, table).metadata().configuration()
            return dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(values))  # noqa: SLF001 - it has no public name
        except (AttributeError, Py4JError):
            rows = spark.sql(f"SHOW TBLPROPERTIES {storage.to_sql_identifier(table)}").collect()
            return {row["key"]: row["value"] for row in rows}


def has_no_files_by_checksum(storage: TableStorage, spark: SparkSession, table: str) -> bool:
    """Returns True if the checksum file of the table's latest version says that the table has no files.

    False if it has files, if it has no checksum file, or if the checksum cannot be read: it is read through Spark's
    query plans, which Spark Connect does not show.
    """
    from py4j.protocol import Py4JError

    with disable_code_generation(spark):
        try:
            checksum = _get_jvm_file_index(storage, spark, table).getSnapshot().checksumOpt()
            return bool(checksum.isDefined()) and checksum.get().numFiles() == 0
        except (AttributeError, Py4JError):
            return False


def _get_jvm_file_index(storage: TableStorage, spark: SparkSession, table: str) -> Any:
    """Returns the JVM object that lists the table's files in a query plan."""
    plan = storage.read(spark, table, {})._jdf.queryExecution().analyzed()  # noqa: SLF001 - it has no public name
    return plan.collectLeaves().head().relation().location()
