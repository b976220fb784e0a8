"""A process for crash tests: runs layers, each once over all messages that have arrived.

Usage: python crash_worker.py CONFIG [LAYER ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.bronze import sources as bronze
from sessionlake.delta.schemas.names import BRONZE, GOLD, SILVER, SILVER_TABLES
from sessionlake.gold import job as gold
from sessionlake.processors import job as processors
from sessionlake.settings.model import Settings, load_settings
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger
from support.attached import attached
from support.sessions import without_generated_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS = (BRONZE, SILVER, SILVER_TABLES)
"""Layers in the order in which data passes through them."""


def run_layer(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Runs a layer once over all input. A fault point may end the process at any commit."""
    if layer == BRONZE:
        bronze.start_bronze(spark, settings, once=True).wait()
    elif layer == SILVER:
        silver.start(spark, settings, once=True).wait()
    elif layer == GOLD:
        gold.start(spark, settings, once=True).wait()
    elif own := [own for own in settings.processors if own.layer == layer]:
        processors.start(spark, settings, own[0].name, once=True).wait()
    else:
        TableMerger(spark, settings).merge_all_pending_batches()


def main(file: Path, *layers: str) -> None:
    """Runs the given layers one after the other, or all by default."""
    settings = load_settings(file)
    spark = attached() or without_generated_code(settings, "crash-worker")
    for layer in layers or LAYERS:
        run_layer(spark, settings, layer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
