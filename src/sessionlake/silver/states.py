"""The states of silver's shards, read out of the state store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError
from sessionlake.ledger.progress import last_batch
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import last_committed
from sessionlake.streaming.sharded import PACKED_SCHEMA, read_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def shard_states(spark: SparkSession, settings: Settings, shard: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The shards' states, see `state_frame`.

    Args:
        shard: of this one alone.
    """
    from pyspark.sql import functions as F

    frame = state_frame(spark, settings)
    wanted = frame if shard is None else frame.where(F.col("shard") == shard)
    for row in wanted.toLocalIterator():
        yield row["shard"], bytes(row["chunk"])


def state_frame(spark: SparkSession, settings: Settings, layer: str = SILVER) -> DataFrame:
    """The shards' states after the last committed batch, by Spark's state reader: `shard int, chunk binary`.

    Of shards that no batch behind a handover has come to, they are those that were handed over: gold's batches are told
    to the shards that they touch alone, and one that reads nothing, such as files that were merged, is told to none.

    Args:
        layer: silver, a processor, or gold.

    Raises:
        LakeError: it has no checkpoint yet.
    """
    checkpoint, handed = settings.checkpoint(layer), handover.stored_shards(settings, layer)
    batch = last_committed(checkpoint)
    if batch is None:
        if not handed:
            raise LakeError(f"there is no {layer} state in {checkpoint} yet: run `sessionlake run silver`")
        return _handed_over(spark, settings, layer, handed)
    states = read_states(spark, checkpoint, batch)
    if not handed:
        return states
    taken_up = {row["shard"] for row in states.select("shard").collect()}
    left = [number for number in handed if number not in taken_up]
    return states.unionByName(_handed_over(spark, settings, layer, left)) if left else states


def _handed_over(spark: SparkSession, settings: Settings, layer: str, numbers: list[int]) -> DataFrame:
    frame = spark.createDataFrame([(number,) for number in numbers], "shard int")
    return frame.mapInPandas(handover.StateReader(str(handover.active_folder(settings, layer))), PACKED_SCHEMA)


def has_state(settings: Settings, layer: str) -> bool:
    """Whether the layer has committed a batch, or was handed states over."""
    return last_committed(settings.checkpoint(layer)) is not None or bool(handover.stored_shards(settings, layer))


def last_batches(spark: SparkSession, settings: Settings, layer: str = SILVER) -> tuple[int, int]:
    """The batch after which the states are, and the ledger's last; -1 where there is none.

    They differ where the stream died between a batch's last commit and its checkpoint: it ends that batch as it starts.
    """
    last = last_batch(Lake(settings).reader(spark), layer)
    return handover.next_batch(settings, layer) - 1, -1 if last is None else last


def shard_of(spark: SparkSession, settings: Settings, topic: str, session: str) -> int:
    """The shard that a session is in, of as many as silver's states are of, whatever is configured."""
    from pyspark.sql import functions as F

    shards = handover.shard_count(settings) or settings.silver.shards
    number = F.pmod(F.xxhash64(F.lit(topic), F.lit(session.encode())), F.lit(shards))
    row = spark.range(1).select(number.cast("int").alias("shard")).first()
    assert row is not None  # noqa: S101 - one row is one row
    return int(row["shard"])
