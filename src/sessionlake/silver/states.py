"""The states of silver's shards, read out of the state store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.names import SILVER
from sessionlake.silver import handover
from sessionlake.streaming.checkpoint import last_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shard_states(spark: SparkSession, settings: Settings, shard: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The shards' states after the last committed batch, by Spark's state reader.

    Before a rebuilt silver's first batch, they are those that the rebuild has handed over.

    Args:
        shard: of this one alone.

    Raises:
        LakeError: silver has no checkpoint yet.
    """
    from pyspark.sql import functions as F

    checkpoint = settings.checkpoint(SILVER)
    if last_committed(checkpoint) is None:
        handed = handover.states(settings)
        if handed:
            yield from ((number, state) for number, state in handed.items() if shard in (None, number))
            return
        raise LakeError(f"there is no silver state in {checkpoint} yet: run `sessionlake run silver`")
    frame = spark.read.format("statestore").load(checkpoint).select("key.shard", F.col("value.*"))
    wanted = frame if shard is None else frame.where(F.col("shard") == shard)
    for row in wanted.selectExpr("shard", "groupState.state AS state").toLocalIterator():
        yield row["shard"], bytes(row["state"])


def shard_of(spark: SparkSession, settings: Settings, topic: str, session: str) -> int:
    """The shard that a session is in."""
    from pyspark.sql import functions as F

    number = F.pmod(F.xxhash64(F.lit(topic), F.lit(session.encode())), F.lit(settings.silver.shards))
    row = spark.range(1).select(number.cast("int").alias("shard")).first()
    assert row is not None  # noqa: S101 - one row is one row
    return int(row["shard"])
