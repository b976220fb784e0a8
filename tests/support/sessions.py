"""Spark sessions for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from unittest.mock import patch

from sessionlake.settings.model import Settings
from sessionlake.spark.session import _LAPTOP, get_or_start_spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hive(database: str) -> dict[str, str]:
    """Returns settings of a session with a Hive catalog, which replaces Unity Catalog in tests.

    Args:
        database: Derby database of the metastore: `memory:name`, or a path.
    """
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{database};create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }


_NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Maintenance of state stores runs often, so that it closes the stores of queries that have ended.
UPKEEP_SECONDS = 1
_UPKEEP = {"spark.sql.streaming.stateStore.maintenanceInterval": f"{UPKEEP_SECONDS}s"}


def without_generated_code(
    settings: Settings, app: str, more: Mapping[str, str] | None = None, *, recording: bool = False
) -> SparkSession:
    """Returns a session of the package whose queries, and those of further sessions, generate no code.

    Over few rows, code generation is a third of all work. Commands and the demo, which tests start as a user does,
    generate code as for users.

    Args:
        settings: Settings of the lake.
        app: Name of the log files.
        more: Further Spark settings.
        recording: True if the JVM's loaded classes will be written to the class archive.
    """
    with patch.dict(_LAPTOP, _NO_CODE | _UPKEEP | dict(more or {})):
        return get_or_start_spark_session(settings, app=app, records_classes=recording)
