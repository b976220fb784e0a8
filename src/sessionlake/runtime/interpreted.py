"""Small queries without generated code: they are over before it would be written, compiled and worth it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextmanager
def interpreted(spark: SparkSession, *, when: bool = True) -> Iterator[None]:
    """Runs the session's queries inside the block without generated code, if `when`."""
    before = {key: spark.conf.get(key) for key in _KEYS} if when else {}
    for key in before:
        spark.conf.set(key, _KEYS[key])
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))
