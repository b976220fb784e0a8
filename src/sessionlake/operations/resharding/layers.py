"""The shards of each layer: compares the configured number with that of the stored states, and moves the states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, SILVER
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.declared.tables import (
    build_declared_gold_schemas,
    list_declared_averages,
    list_declared_gold_tables,
)
from sessionlake.gold.fold.resharding import GoldResharder
from sessionlake.gold.rebuilding.states import build_tracked_averages, read_shards_of_owners_by_hash
from sessionlake.gold.tables.table_properties import (
    find_complete_tables,
    read_gold_shard_count,
    require_maintained_tables_are_complete,
)
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.operations.resharding.judging import SessionStateResharder
from sessionlake.processors.shard_state import read_stored_shard_count
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import split_shard_state
from sessionlake.silver.states import has_state, read_state_frame
from sessionlake.streaming import handover
from sessionlake.streaming.resharded import reshard_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def list_sharded_layers(settings: Settings) -> list[str]:
    """Returns the layers whose states are divided into shards, in the order of the data flow."""
    return [SILVER, *(processor.layer for processor in settings.processors if not processor.key), GOLD]


def get_configured_shard_count(settings: Settings, layer: str) -> int:
    """Returns the configured number of shards of a layer. Processors have as many as silver."""
    return settings.gold.shards if layer == GOLD else settings.silver.shards


def replace_configured_shard_count(settings: Settings, layer: str, shards: int) -> Settings:
    """Returns the configuration with another number of shards for a layer."""
    section = "gold" if layer == GOLD else "silver"
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update={"shards": shards})})


def count_shards_of_states(spark: SparkSession, settings: Settings, layer: str) -> int | None:
    """Returns the number of shards in a layer's states; None if it has no states or does not record the number."""
    if layer == GOLD:
        return read_gold_shard_count(spark, Lake(settings))
    if layer == SILVER:
        return handover.read_shard_count(settings)
    if has_state(settings, layer):
        for row in read_state_frame(spark, settings, layer).toLocalIterator():
            memory = split_shard_state(bytes(row["chunk"]))[1]
            if memory is not None:
                return read_stored_shard_count(memory)
    return None


def reshard_layer_states(
    spark: SparkSession, settings: Settings, layer: str, old_count: int, new_count: int
) -> DataFrame:
    """Returns a layer's states, moved into `new_count` shards: a row `shard int, chunk binary` per new shard.

    Raises:
        LakeError: Gold maintains a table that is not configured any more, or a state cannot be read.
    """
    states = read_state_frame(spark, settings, layer)
    if layer != GOLD:
        return reshard_states(states, SessionStateResharder(JudgingRuleLookup(settings.capture), new_count), new_count)
    lake = Lake(settings, build_declared_gold_schemas(settings))
    require_maintained_tables_are_complete(spark, lake, list_declared_gold_tables(settings))
    former = replace_configured_shard_count(settings, GOLD, old_count)
    averages = [
        build_tracked_averages(spark, lake, former, series)
        for series in find_complete_tables(spark, lake, list_declared_averages(settings))
    ]
    marked = {one.series.name: read_shards_of_owners_by_hash(spark, lake, one.series, new_count) for one in averages}
    resharder = GoldResharder(get_value_columns(settings).numbers, tuple(averages), marked, new_count)
    every = spark.range(old_count).selectExpr("CAST(id AS INT) AS shard")
    return reshard_states(every.join(states, "shard", "left"), resharder, new_count)
