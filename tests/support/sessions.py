"""How tests set the Spark session that they work in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from unittest.mock import patch

from sessionlake.settings.model import Settings
from sessionlake.spark.session import _LAPTOP, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hive(database: str) -> dict[str, str]:
    """Settings of a session whose catalog is Hive's: what stands in the tests for a platform's.

    Args:
        database: Derby's name of the one that holds the metastore, as `memory:name` or a path.
    """
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{database};create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }


_NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Of state stores: as often as nothing else would notice one that is open when its query has ended.
UPKEEP_SECONDS = 1
_UPKEEP = {"spark.sql.streaming.stateStore.maintenanceInterval": f"{UPKEEP_SECONDS}s"}


def without_generated_code(
    settings: Settings, app: str, more: Mapping[str, str] | None = None, *, recording: bool = False
) -> SparkSession:
    """A session of the package's in which, and in all further ones that begin beside it, queries generate no code.

    Over a handful of rows, writing code for every plan and task is a third of all work. What tests start as a user does
    (commands, the demo) generates code as it does for users.

    Args:
        more: settings.
        recording: as `spark_session`.
    """
    with patch.dict(_LAPTOP, _NO_CODE | _UPKEEP | dict(more or {})):
        return spark_session(settings, app=app, recording=recording)
