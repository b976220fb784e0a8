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

from sessionlake.errors import add_failure_location_note
from sessionlake.local.paths import find_path_without_special_characters
from sessionlake.protocol.types import Payloads
from sessionlake.streaming.payload_files import NO_FILES, Emissions, PayloadFiles, encode_payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKED_SCHEMA = "shard int, chunk binary"
FOLDED_SCHEMA = "kind string, payload binary"
_FOLDED = pa.schema([("kind", pa.string()), ("payload", pa.binary())])


class ShardFold(Protocol):
    """A pure function that updates the state of one shard with the messages of a batch.

    Picklable for Spark's workers.
    """

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
        """Updates the state of a shard with the messages of one batch.

        Args:
            shard: The number of the shard.
            state: The state that the previous call for this shard returned; None for the first call.
            chunks: The batch's messages in packed form, in any order.

        Returns:
            The new state (None: unchanged), and the rows and bytes that the fold emits, each with its kind.
        """
        ...


def convert_payloads_to_table(payloads: Payloads) -> pa.Table:
    """Returns pairs of kind and payload as a table with the columns `kind` and `payload`."""
    return pa.table({"kind": [kind for kind, _ in payloads], "payload": [content for _, content in payloads]}, _FOLDED)


def fold_shards(packed_messages: DataFrame, fold: ShardFold, files: PayloadFiles = NO_FILES) -> DataFrame:
    """Runs a fold for every shard as a stateful streaming operator: Spark keeps each shard's state.

    Args:
        packed_messages: Packed messages, as a streaming frame `shard int, chunk binary`.
        fold: The fold of one shard.
        files: Where large rows are stored, so that they do not pass through Spark; by default they are compressed.

    Returns:
        What the fold emits, as a streaming frame `kind string, payload binary` in append mode.
    """

    def fold_shard_group(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterable[pd.DataFrame]:
        chunks = [bytes(chunk) for frame in frames for chunk in frame["chunk"]]
        before = bytes(state.get[0]) if state.exists else None
        after, out = _fold_with_shard_in_errors(fold, int(key[0]), before, chunks)
        if after is not None:
            state.update((after,))
        if out:
            yield pd.DataFrame(encode_payloads(out, files), columns=["kind", "payload"])

    return packed_messages.groupBy("shard").applyInPandasWithState(
        fold_shard_group, FOLDED_SCHEMA, "state binary", "append", "NoTimeout"
    )


def read_states_after_batch(spark: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    """Returns the state of each shard after a batch, as a frame `shard int, chunk binary`.

    Args:
        spark: The Spark session.
        checkpoint: The folder of the checkpoint.
        batch: Spark's number of the batch. It is given because Spark's state reader would otherwise choose the last
            batch with a commit entry, and that entry can be lost.
    """
    # Spark's reader encodes the path as a URI and then uses the result as a path.
    stored = (
        spark.read.format("statestore")
        .option("batchId", batch)
        .load(str(find_path_without_special_characters(Path(checkpoint))))
    )
    return stored.selectExpr("key.shard AS shard", "value.groupState.state AS chunk")


def fold_messages_in_batch_job(packed_messages: DataFrame, states: DataFrame, fold: ShardFold) -> DataFrame:
    """Runs a fold for every shard as a batch job, over a part of the messages that is small enough for one job.

    Args:
        packed_messages: The messages of the slice, `shard int, chunk binary`.
        states: The states before the slice, `shard int, chunk binary`. Shards without a row start without a state.
        fold: The fold of one shard.

    Returns:
        The new states and what the fold emits, `shard int, kind string, payload binary`. A new state has the kind
        `state`.
    """
    from pyspark.sql import functions as F

    def fold_shard_group(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        before = [bytes(chunk) for chunk in rows.loc[rows["is_state"], "chunk"]]
        chunks = [bytes(chunk) for chunk in rows.loc[~rows["is_state"], "chunk"]]
        after, out = _fold_with_shard_in_errors(fold, int(key[0]), before[0] if before else None, chunks)
        state = after if after is not None else before[0] if before else None
        emitted = [*encode_payloads(out), *([] if state is None else [("state", state)])]
        return pd.DataFrame([(int(key[0]), kind, payload) for kind, payload in emitted], columns=_SLICE_COLUMNS)

    both = packed_messages.withColumn("is_state", F.lit(col=False)).unionByName(
        states.withColumn("is_state", F.lit(col=True))
    )
    return both.groupBy("shard").applyInPandas(fold_shard_group, "shard int, kind string, payload binary")


_SLICE_COLUMNS = ["shard", "kind", "payload"]


def _fold_with_shard_in_errors(
    fold: ShardFold, shard: int, state: bytes | None, chunks: list[bytes]
) -> tuple[bytes | None, Emissions]:
    """Calls the fold.

    Adds the shard's number to an error that it raises, because Spark's own error does not contain it.
    """
    try:
        return fold(shard, state, chunks)
    except Exception as error:
        add_failure_location_note(error, f"shard {shard}")
        raise
