"""Settings of a session for a while; above all, those under which small queries cost least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A small query ends before code for it would be compiled; and adaptive execution makes a job of each of its exchanges.
_KEYS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def interpreted(spark: SparkSession, *, when: bool = True) -> AbstractContextManager[None]:
    """Runs the session's queries inside the block as small ones, if `when`."""
    return conf(spark, _KEYS if when else {})


@contextmanager
def conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Sets the session's settings inside the block."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)
