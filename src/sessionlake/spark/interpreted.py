"""Temporary settings of a Spark session, such as those that make small queries cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A small query ends before compiled code would pay off, and adaptive execution runs a Spark job per exchange.
_KEYS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def disable_code_generation(spark: SparkSession, *, enabled: bool = True) -> AbstractContextManager[None]:
    """Returns a context manager.

    In its block, the session's queries run without code generation and adaptive execution.

    Args:
        enabled: False to change nothing.
    """
    return use_temporary_spark_conf(spark, _KEYS if enabled else {})


@contextmanager
def use_temporary_spark_conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets the session's settings for the block and restores the previous values after it."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)
