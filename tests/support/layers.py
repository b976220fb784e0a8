"""Runs layers over the messages in bronze."""

from __future__ import annotations

from typing import Any

from sessionlake.gold import job as gold
from sessionlake.settings.model import Settings
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger


def run_layers(spark: Any, settings: Settings) -> None:
    """Runs silver, the merges into its tables, and gold, each until it has read all its input."""
    silver.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()
    gold.start(spark, settings, once=True).wait()
