"""A process that runs silver, or only claims it, until it is stopped, over a catalog whose tables another has made.

Usage: python lease_worker.py CONFIG TABLES SECONDS [hold]

Its catalog is Spark's, in memory: it is told where the tables are.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.catalog import leases
from sessionlake.delta.lake import storage_of
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import SessionlakeError
from sessionlake.local.signals import StopFlag
from sessionlake.operations.pipeline import Layer, run_live
from sessionlake.settings.model import Settings, load_settings
from support.sessions import without_generated_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, tables: dict[str, str]) -> None:
    """Makes tables known by their names.

    Args:
        tables: their places.
    """
    for schema in sorted({name.rpartition(".")[0] for name in tables}):
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for name, place in tables.items():
        spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{place}'")


def hold(spark: SparkSession, settings: Settings, stop: StopFlag) -> None:
    """Claims silver, and does nothing."""
    storage = storage_of(settings)
    with storage.claim(spark, SILVER, "runs silver"):
        while not stop.wait(0.1):
            storage.require_claims()


def main(config: str, tables: str, seconds: str, *words: str) -> int:
    """Runs silver, or claims it; returns the exit code.

    Args:
        tables: a JSON file that names the tables' places.
        seconds: a lease's length.
    """
    leases.LENGTH = timedelta(seconds=float(seconds))
    settings = load_settings(config)
    with StopFlag() as stop:
        spark = without_generated_code(settings, "lease-worker")
        stop.install_handlers()
        register(spark, json.loads(Path(tables).read_text(encoding="utf-8")))
        try:
            if words == ("hold",):
                hold(spark, settings, stop)
            else:
                run_live(spark, settings, Layer.SILVER, stop)
        except SessionlakeError as error:
            sys.stderr.write(f"error: {error}\n")
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
