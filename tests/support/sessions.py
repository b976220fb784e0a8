"""How tests set the Spark session that they work in."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def without_generated_code(spark: SparkSession) -> SparkSession:
    """Over a handful of rows, writing code for every plan and task is a third of all work.

    What tests start as a user does (commands, the demo) generates code as it does for users.
    """
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return spark
