"""A process that runs silver, or only claims it, until it is stopped, in a catalog with existing tables.

Usage: python lease_worker.py CONFIG TABLES SECONDS [hold]

The catalog is Spark's in-memory one, so the file TABLES names the folders of the tables.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.catalog import leases
from sessionlake.delta.lake import create_storage
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import SessionlakeError
from sessionlake.local.signals import StopFlag
from sessionlake.operations.pipeline import Layer, run_until_stopped
from sessionlake.settings.model import Settings, load_settings
from support.sessions import without_generated_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, tables: dict[str, str]) -> None:
    """Registers tables in the catalog.

    Args:
        spark: The session.
        tables: Folders of the tables by name.
    """
    for schema in sorted({name.rpartition(".")[0] for name in tables}):
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for name, place in tables.items():
        spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{place}'")


def hold(spark: SparkSession, settings: Settings, stop: StopFlag) -> None:
    """Holds the claim on silver without running it."""
    storage = create_storage(settings)
    with storage.hold_exclusive_claim(spark, SILVER, "runs silver"):
        while not stop.wait(0.1):
            storage.require_claims_still_held()


def main(config: str, tables: str, seconds: str, *words: str) -> int:
    """Runs or claims silver and returns the exit code.

    Args:
        config: The configuration file.
        tables: JSON file with the folders of the tables by name.
        seconds: Duration of a lease.
        words: `hold` to only claim silver.
    """
    leases.LENGTH = timedelta(seconds=float(seconds))
    settings = load_settings(config)
    with StopFlag() as stop:
        spark = without_generated_code(settings, "lease-worker")
        stop.install_signal_handlers()
        register(spark, json.loads(Path(tables).read_text(encoding="utf-8")))
        try:
            if words == ("hold",):
                hold(spark, settings, stop)
            else:
                run_until_stopped(spark, settings, Layer.SILVER, stop)
        except SessionlakeError as error:
            sys.stderr.write(f"error: {error}\n")
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
