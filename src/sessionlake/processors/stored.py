"""Reads all states in a processor's checkpoint before its stream starts.

So a state that cannot be read stops the start. Otherwise the error would come only with the session's next message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.errors import LakeError
from sessionlake.integrity.state import ShardState, find_changed_column_in_stored_state
from sessionlake.processors.shard import MessageProcessor
from sessionlake.processors.shard_state import ProcessorShardState, read_stored_shard_count
from sessionlake.protocol.arrow import split_session_key
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import split_shard_state
from sessionlake.silver.states import has_state, read_state_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_readable_states(spark: SparkSession, settings: Settings, layer: str, processor: MessageProcessor) -> None:
    """Checks that the processor's class can read or migrate the state of every session in its checkpoint.

    Raises:
        LakeError: A state cannot be read. Nothing was processed.
    """
    if not has_state(settings, layer):
        return
    # A rebuild may have left states that an earlier version of the code wrote.
    states = read_state_frame(spark, settings, layer).select("chunk")
    found = states.mapInArrow(_UnreadableStateFinder(processor), "fault string").orderBy("fault").first()
    if found is not None:
        raise LakeError(f"checkpoint {settings.checkpoint_path(layer)}: {found['fault']}", why="Nothing was processed")


@dataclass(frozen=True)
class _UnreadableStateFinder:
    """A function for `mapInArrow` that yields an error text for each encoded shard state that cannot be read."""

    processor: MessageProcessor

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for state in batch.column("chunk"):
                try:
                    require_readable_shard_state(state.as_py(), self.processor)
                except LakeError as error:
                    yield pa.record_batch({"fault": [str(error)]})


def require_readable_shard_state(state: bytes, processor: MessageProcessor) -> None:
    """Checks that the processor's class can read the state of every session in a shard.

    Args:
        state: The encoded state of the shard.
        processor: The processor.

    Raises:
        LakeError: A session's state cannot be read, or the state is for another number of shards.
    """
    judging, memory = split_shard_state(state)
    if (other := find_changed_column_in_stored_state(judging, processor.columns)) is not None:
        name = processor.ref.name
        raise LakeError(
            f"processor {name}: its stored states have a column {other}, which the configuration no "
            "longer declares with this type",
            why="A stored state can only be read with the columns with which it was written",
            fix=f"Declare the column as before. Or run `sessionlake rebuild processor:{name}`, which "
            "computes its table and states from all of bronze with the present columns",
        )
    ShardState.decode_shard_state(judging, processor.columns)
    if memory is None:
        return
    made_for = read_stored_shard_count(memory)
    if made_for != processor.shards:
        raise LakeError(
            f"processor {processor.ref.name}: its states are stored in {made_for} shards, but "
            f"silver.shards is {processor.shards}",
            why="The processor would not find its states",
            fix=f"Set silver.shards back to {made_for}, or move the states with `sessionlake reshard "
            f"{processor.shards}`",
        )
    codec = processor.loaded_processor.codec
    for key, kept in ProcessorShardState.decode_processor_state(memory).sessions.items():
        if kept.state:
            codec.decode_and_migrate_state(kept.state, kept.version, split_session_key(key)[2])
