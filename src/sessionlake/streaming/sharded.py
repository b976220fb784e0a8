"""Stateful folding over shards: the one place where this package meets Spark's Python state call.

Spark pays about a millisecond of CPU for every *group*, so groups are shards, not sessions. What crosses
Spark's row-by-row boundaries are a few big binary chunks a shard; what is in them is the fold's own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import pyarrow as pa

from sessionlake.errors import note_place
from sessionlake.local.paths import plain_link
from sessionlake.protocol.types import Payloads
from sessionlake.streaming.carried import NO_FILES, Emissions, Files, sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKED_SCHEMA = "shard int, chunk binary"
FOLDED_SCHEMA = "kind string, payload binary"
_FOLDED = pa.schema([("kind", pa.string()), ("payload", pa.binary())])


class ShardFold(Protocol):
    """A pure fold of one shard; must be picklable, since Spark ships it to its workers."""

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
        """Folds the batch's chunks of a shard.

        Args:
            shard: number of the shard.
            state: what the previous call for this shard returned; None at first.
            chunks: the batch's packed input, in no particular order.

        Returns:
            The new state (None: unchanged) and what is emitted.
        """
        ...


def folded_table(payloads: Payloads) -> pa.Table:
    """What was folded elsewhere than in the stream, as `FOLDED_SCHEMA`."""
    return pa.table({"kind": [kind for kind, _ in payloads], "payload": [content for _, content in payloads]}, _FOLDED)


def fold_shards(packed: DataFrame, fold: ShardFold, files: Files = NO_FILES) -> DataFrame:
    """Runs the fold as a streaming stateful operator.

    Args:
        packed: streaming frame `shard int, chunk binary`.
        files: where large rows go, which then are not in the frame.

    Returns:
        Streaming frame `kind string, payload binary`, in append mode.
    """

    def call(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterable[pd.DataFrame]:
        chunks = [bytes(chunk) for frame in frames for chunk in frame["chunk"]]
        before = bytes(state.get[0]) if state.exists else None
        after, out = _folded(fold, int(key[0]), before, chunks)
        if after is not None:
            state.update((after,))
        if out:
            yield pd.DataFrame(sent(out, files), columns=["kind", "payload"])

    return packed.groupBy("shard").applyInPandasWithState(call, FOLDED_SCHEMA, "state binary", "append", "NoTimeout")


def stored_states(spark: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    """The shards' states after a batch, by Spark's state reader: `shard int, chunk binary`.

    Args:
        batch: by Spark's number. Left to itself, the reader takes the last one whose note of the commit is not lost.
    """
    # Spark's reader encodes the path as a URI, and then takes that for a path.
    stored = spark.read.format("statestore").option("batchId", batch).load(str(plain_link(Path(checkpoint))))
    return stored.selectExpr("key.shard AS shard", "value.groupState.state AS chunk")


def fold_slice(packed: DataFrame, states: DataFrame, fold: ShardFold) -> DataFrame:
    """Runs the fold over one slice in batch.

    Args:
        packed: `shard int, chunk binary`.
        states: the shards' states before, in the same form; shards without one begin.

    Returns:
        `shard int, kind string, payload binary`; the new states are of kind `state`.
    """
    from pyspark.sql import functions as F

    def call(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        before = [bytes(chunk) for chunk in rows.loc[rows["is_state"], "chunk"]]
        chunks = [bytes(chunk) for chunk in rows.loc[~rows["is_state"], "chunk"]]
        after, out = _folded(fold, int(key[0]), before[0] if before else None, chunks)
        state = after if after is not None else before[0] if before else None
        emitted = [*sent(out), *([] if state is None else [("state", state)])]
        return pd.DataFrame([(int(key[0]), kind, payload) for kind, payload in emitted], columns=_SLICE_COLUMNS)

    both = packed.withColumn("is_state", F.lit(col=False)).unionByName(states.withColumn("is_state", F.lit(col=True)))
    return both.groupBy("shard").applyInPandas(call, "shard int, kind string, payload binary")


_SLICE_COLUMNS = ["shard", "kind", "payload"]


def _folded(fold: ShardFold, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
    """What the fold returns; what it raises says of which shard, as nothing else does once Spark passes it on."""
    try:
        return fold(shard, state, chunks)
    except Exception as error:
        note_place(error, f"shard {shard}")
        raise
