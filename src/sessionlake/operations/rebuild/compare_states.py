"""Compares the stream's states with rebuilt ones, session by session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.protocol.columns import Column
from sessionlake.settings.model import Settings
from sessionlake.silver.states import read_state_and_ledger_batch, read_state_frame
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint, read_last_planned_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPARED_SCHEMA = "shard int, sessions bigint, difference string"


@dataclass(frozen=True)
class StatesComparison:
    """The result of comparing the stream's states with rebuilt ones.

    Attributes:
        sessions: The number of sessions compared.
        first_difference: A text that shows the first difference, ordered by shard; None if there is none.
        skipped: A text that says why nothing was compared; None if the states were compared.
    """

    sessions: int
    first_difference: str | None = None
    skipped: str | None = None


def compare_states_with_rebuilt(spark: SparkSession, settings: Settings, rebuilt: DataFrame | None) -> StatesComparison:
    """Compares the states from which silver's stream resumes with rebuilt states, session by session.

    A task has the two states of one shard in memory at a time.

    Args:
        rebuilt: The states that a replay of the same messages has built, as rows `shard int, chunk binary`; None if
            there are none.

    Raises:
        LakeError: There are no states, although the ledger has batches.
    """
    from pyspark.sql import functions as F

    why_not = _explain_why_states_incomparable(spark, settings)
    if rebuilt is None or why_not is not None:
        return StatesComparison(0, skipped=why_not or "there is no message yet")
    live = read_state_frame(spark, settings).withColumn("is_rebuilt", F.lit(col=False))
    both = live.unionByName(rebuilt.withColumn("is_rebuilt", F.lit(col=True)))
    compared = both.groupBy("shard").applyInPandas(
        _create_shard_state_comparer(settings.capture.declared_columns), _COMPARED_SCHEMA
    )
    shards = sorted(compared.collect(), key=lambda row: row["shard"])
    differ = (f"shard {row['shard']}, {row['difference']}" for row in shards if row["difference"] is not None)
    return StatesComparison(sum(row["sessions"] for row in shards), next(differ, None))


def _explain_why_states_incomparable(spark: SparkSession, settings: Settings) -> str | None:
    """Returns a text that says why silver's states cannot be compared with rebuilt ones; None if they can.

    The states may be those after another batch than the ledger's last, or have another number of shards.
    """
    present, configured = handover.read_shard_count(settings), settings.silver.shards
    if present not in (None, configured):
        return f"they have {present} shards, but silver.shards is {configured}"
    of_states, last = read_state_and_ledger_batch(spark, settings)
    if of_states < 0 <= last != read_last_planned_batch(settings.checkpoint_path(SILVER)):
        raise LakeError(
            "silver has processed batches, but its checkpoint has no state of them",
            why="So the stored states cannot be compared with the rebuilt ones",
            fix=build_checkpoint_recovery_hint(SILVER),
        )
    if of_states < 0:
        died = ", and silver has not finished its first batch: run `sessionlake run silver --once`"
        return f"there are none yet{'' if last < 0 else died}"
    if of_states != last:
        return f"they are of batch {of_states}, and the ledger's last is {last}: run `sessionlake run silver --once`"
    return None


def _create_shard_state_comparer(
    columns: tuple[Column, ...],
) -> Callable[[tuple[Any, ...], pd.DataFrame], pd.DataFrame]:
    """Returns a function for `applyInPandas` that compares the stream's state of a shard with the rebuilt one.

    The function receives the two states as rows `shard, chunk, is_rebuilt`. It returns one row `shard, sessions,
    difference`: the number of sessions, and a text about the first difference, or None.
    """

    def decode_shard_state(stored: pd.Series[Any]) -> ShardState:
        return ShardState.decode_shard_state(bytes(stored.iloc[0]) if len(stored) else None, columns)

    def compare_states_of_shard(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        rebuilt = decode_shard_state(rows.loc[rows["is_rebuilt"], "chunk"])
        try:
            difference = find_first_state_difference(
                decode_shard_state(rows.loc[~rows["is_rebuilt"], "chunk"]), rebuilt
            )
            text = None if difference is None else str(difference)
        except LakeError as error:  # a state that cannot be read counts as different
            text = str(error)
        return pd.DataFrame([{"shard": int(key[0]), "sessions": len(rebuilt.cursors), "difference": text}])

    return compare_states_of_shard
