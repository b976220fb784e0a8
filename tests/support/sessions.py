"""How tests set the Spark session that they work in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def without_generated_code(spark: SparkSession) -> SparkSession:
    """Over a handful of rows, writing code for every plan and task is a third of all work.

    What tests start as a user does (commands, the demo) generates code as it does for users.
    """
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return spark
