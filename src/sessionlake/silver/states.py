"""Reads the states of a layer's shards from the state store, for inspection and for operations on states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_last_committed_batch
from sessionlake.streaming.sharded import PACKED_SCHEMA, read_states_after_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_shard_states(spark: SparkSession, settings: Settings, shard: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the encoded state of silver's shards, as they are after the last committed batch.

    Args:
        spark: The Spark session.
        settings: The settings of the lake.
        shard: The number of the only shard to read; None to read all.
    """
    from pyspark.sql import functions as F

    frame = read_state_frame(spark, settings)
    wanted = frame if shard is None else frame.where(F.col("shard") == shard)
    for row in wanted.toLocalIterator():
        yield row["shard"], bytes(row["chunk"])


def read_state_frame(spark: SparkSession, settings: Settings, layer: str = SILVER) -> DataFrame:
    """Returns the states of a layer's shards after its last committed batch, as rows `shard int, chunk binary`.

    After a handover, a shard that has had no batch yet has its state only in the handover. This is common for gold: a
    batch reaches only the shards with changes, and no shard if the batch reads only compacted files.

    Args:
        spark: The Spark session.
        settings: The settings of the lake.
        layer: Silver, a processor, or gold.

    Raises:
        LakeError: The layer has no state yet.
    """
    checkpoint, handed_over = settings.checkpoint_path(layer), handover.list_shards_in_handover(settings, layer)
    batch = read_last_committed_batch(checkpoint)
    if batch is None:
        if not handed_over:
            raise LakeError(
                f"{layer} has no stored state in {checkpoint} yet",
                why="It stores its state with its first batch, and has committed none",
                fix="Run `sessionlake run all --once`, then this command again",
            )
        return _read_handed_over_states(spark, settings, layer, handed_over)
    states = read_states_after_batch(spark, checkpoint, batch)
    if not handed_over:
        return states
    with_state = {row["shard"] for row in states.select("shard").collect()}
    remaining = [number for number in handed_over if number not in with_state]
    return states.unionByName(_read_handed_over_states(spark, settings, layer, remaining)) if remaining else states


def _read_handed_over_states(spark: SparkSession, settings: Settings, layer: str, shards: list[int]) -> DataFrame:
    """Returns the states that a handover has for these shards, as rows `shard int, chunk binary`."""
    frame = spark.createDataFrame([(number,) for number in shards], "shard int")
    return frame.mapInPandas(
        handover.HandoverStateReader(str(handover.find_active_handover_folder(settings, layer))), PACKED_SCHEMA
    )


def has_state(settings: Settings, layer: str) -> bool:
    """Returns True if the layer has stored states: after a committed batch, or in a handover."""
    return read_last_committed_batch(settings.checkpoint_path(layer)) is not None or bool(
        handover.list_shards_in_handover(settings, layer)
    )


def read_state_and_ledger_batch(spark: SparkSession, settings: Settings, layer: str = SILVER) -> tuple[int, int]:
    """Returns the number of the batch after which a layer's states are, and that of its last batch in the ledger.

    A number is -1 if there is no batch. The two differ if the stream died between a batch's last commit and its
    checkpoint. The next start finishes that batch.
    """
    last = read_last_batch_number(Lake(settings).reader(spark), layer)
    return handover.read_next_batch_number(settings, layer) - 1, -1 if last is None else last


def compute_shard_of_session(spark: SparkSession, settings: Settings, topic: str, session_id: str) -> int:
    """Returns the number of the shard that has a session, for the number of shards that silver's stored states have."""
    from pyspark.sql import functions as F

    shards = handover.read_shard_count(settings) or settings.silver.shards
    # Sessions that share chains are in one shard, which depends on the topic alone.
    has_chains = JudgingRuleLookup(settings.capture).find_judging_rules(topic).has_chains
    columns = [F.lit(topic)] if has_chains else [F.lit(topic), F.lit(session_id.encode())]
    number = F.pmod(F.xxhash64(*columns), F.lit(shards))
    row = spark.range(1).select(number.cast("int").alias("shard")).first()
    assert row is not None  # noqa: S101 - one row is one row
    return int(row["shard"])
