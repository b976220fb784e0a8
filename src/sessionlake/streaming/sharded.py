"""Runs a fold over shards with state: the only module that uses Spark's Python state API.

Spark needs about a millisecond of CPU for every *group*. So the groups are shards, not sessions. Per shard, a few large
binary chunks pass through Spark, which handles them row by row. Only the fold knows their content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import pyarrow as pa

from sessionlake.errors import add_place_note
from sessionlake.local.paths import link_without_special_characters
from sessionlake.protocol.types import Payloads
from sessionlake.streaming.payload_files import NO_FILES, Emissions, PayloadFiles, encode_payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKED_SCHEMA = "shard int, chunk binary"
FOLDED_SCHEMA = "kind string, payload binary"
_FOLDED = pa.schema([("kind", pa.string()), ("payload", pa.binary())])


class ShardFold(Protocol):
    """A pure function that folds the batches of one shard. Picklable, because Spark sends it to its workers."""

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
        """Folds the chunks of one batch into the state of a shard.

        Args:
            shard: The number of the shard.
            state: The state that the previous call for this shard returned; None for the first call.
            chunks: The batch's packed messages, in any order.

        Returns:
            The new state (None: unchanged), and the rows and bytes that the fold emits.
        """
        ...


def build_payload_table(payloads: Payloads) -> pa.Table:
    """Returns payloads as the table that a fold in a stream returns: `kind` and `payload`. A rebuild has no stream."""
    return pa.table({"kind": [kind for kind, _ in payloads], "payload": [content for _, content in payloads]}, _FOLDED)


def fold_shards(packed: DataFrame, fold: ShardFold, files: PayloadFiles = NO_FILES) -> DataFrame:
    """Runs the fold as a stateful streaming operator.

    Args:
        packed: Packed messages, as a streaming frame `shard int, chunk binary`.
        fold: The fold of one shard.
        files: The files for large rows, which keep these out of the frame.

    Returns:
        The payloads that the fold emits, as a streaming frame `kind string, payload binary` in append mode.
    """

    def call(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterable[pd.DataFrame]:
        chunks = [bytes(chunk) for frame in frames for chunk in frame["chunk"]]
        before = bytes(state.get[0]) if state.exists else None
        after, out = _fold_checked(fold, int(key[0]), before, chunks)
        if after is not None:
            state.update((after,))
        if out:
            yield pd.DataFrame(encode_payloads(out, files), columns=["kind", "payload"])

    return packed.groupBy("shard").applyInPandasWithState(call, FOLDED_SCHEMA, "state binary", "append", "NoTimeout")


def read_states(spark: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    """Reads the states of the shards after a batch with Spark's state reader, as `shard int, chunk binary`.

    Args:
        spark: The Spark session.
        checkpoint: The folder of the checkpoint.
        batch: Spark's number of the batch. It is given because the reader would otherwise choose the last batch with a
            commit entry, and that entry can be lost.
    """
    # Spark's reader encodes the path as a URI and then uses the result as a path.
    stored = (
        spark.read.format("statestore")
        .option("batchId", batch)
        .load(str(link_without_special_characters(Path(checkpoint))))
    )
    return stored.selectExpr("key.shard AS shard", "value.groupState.state AS chunk")


def fold_slice(packed: DataFrame, states: DataFrame, fold: ShardFold) -> DataFrame:
    """Runs the fold as a batch job over a slice: a part of the messages that is small enough for one job.

    Args:
        packed: The messages of the slice, `shard int, chunk binary`.
        states: The states before the slice, `shard int, chunk binary`. Shards without a row start without a state.
        fold: The fold of one shard.

    Returns:
        The new states and the payloads, `shard int, kind string, payload binary`; a new state has the kind `state`.
    """
    from pyspark.sql import functions as F

    def call(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        before = [bytes(chunk) for chunk in rows.loc[rows["is_state"], "chunk"]]
        chunks = [bytes(chunk) for chunk in rows.loc[~rows["is_state"], "chunk"]]
        after, out = _fold_checked(fold, int(key[0]), before[0] if before else None, chunks)
        state = after if after is not None else before[0] if before else None
        emitted = [*encode_payloads(out), *([] if state is None else [("state", state)])]
        return pd.DataFrame([(int(key[0]), kind, payload) for kind, payload in emitted], columns=_SLICE_COLUMNS)

    both = packed.withColumn("is_state", F.lit(col=False)).unionByName(states.withColumn("is_state", F.lit(col=True)))
    return both.groupBy("shard").applyInPandas(call, "shard int, kind string, payload binary")


_SLICE_COLUMNS = ["shard", "kind", "payload"]


def _fold_checked(
    fold: ShardFold, shard: int, state: bytes | None, chunks: list[bytes]
) -> tuple[bytes | None, Emissions]:
    """Calls the fold and adds the shard's number to its errors, because Spark's own error does not contain it."""
    try:
        return fold(shard, state, chunks)
    except Exception as error:
        add_place_note(error, f"shard {shard}")
        raise
