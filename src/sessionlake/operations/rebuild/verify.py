"""`sessionlake verify silver`: builds silver again beside the live tables, and compares tables and states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.operations.rebuild.compare import SilverTablesComparison, compare_live_with_staging_tables
from sessionlake.operations.rebuild.compare_states import compare_states_with_rebuilt
from sessionlake.operations.rebuild.replay import (
    is_bronze_small,
    open_silver_lake,
    remove_staging_tables,
    replay_messages_into_staging,
)
from sessionlake.settings.model import Settings
from sessionlake.silver.job import LAYER
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.manifest import require_finished_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_silver_tables(
    spark: SparkSession, settings: Settings, *, slice_messages: int | None = None
) -> SilverTablesComparison:
    """Builds silver again from the messages that it has read, and compares its tables and states with the live ones.

    Args:
        slice_messages: About how many messages are read at a time; None means the default.

    Raises:
        LakeError: Silver does not exist yet, or a batch is half committed.
    """
    refuse_interrupted_operations(settings, LAYER)
    require_finished_batch(settings, LAYER)
    lake = open_silver_lake(spark, settings)
    with disable_code_generation(spark, enabled=is_bronze_small(spark, lake)):
        TableMerger(spark, settings).merge_all_pending_batches()
        version, ends = (
            lake.latest_version(spark, MESSAGES),
            OffsetLog.load_from_ledger(spark, lake, LAYER).last_offsets,
        )
        replayed = replay_messages_into_staging(
            spark, settings, version=version, last_offsets=ends, slice_messages=slice_messages
        )
        states = compare_states_with_rebuilt(spark, settings, replayed.states)
        comparison = replace(compare_live_with_staging_tables(spark, settings, lake), states=states)
    remove_staging_tables(spark, settings)
    return comparison
