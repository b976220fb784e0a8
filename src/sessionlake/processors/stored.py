"""The states in a processor's checkpoint, all read before its stream starts: one that cannot be is told at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.errors import LakeError
from sessionlake.integrity.state import ShardState, changed_column
from sessionlake.processors.memory import ProcessorMemory, shards_of
from sessionlake.processors.shard import MessageByMessage
from sessionlake.protocol.arrow import parts_of_key
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import split
from sessionlake.silver.states import has_state, state_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_readable_states(spark: SparkSession, settings: Settings, layer: str, processor: MessageByMessage) -> None:
    """Returns if every stored state can be read, or migrated, by the processor's class; or if there is none.

    Raises:
        LakeError: naming processor, session and stored version, and what to do.
    """
    if not has_state(settings, layer):
        return
    # A rebuild may have handed some over, and of its code this may be a later version.
    states = state_frame(spark, settings, layer).select("chunk")
    found = states.mapInArrow(_Check(processor), "fault string").orderBy("fault").first()
    if found is not None:
        raise LakeError(f"{found['fault']} (checkpoint {settings.checkpoint(layer)}). Nothing was consumed")


@dataclass(frozen=True)
class _Check:
    """A `mapInArrow` function: states in, a text out for the first shard whose states cannot be read."""

    processor: MessageByMessage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for state in batch.column("chunk"):
                try:
                    read_all(state.as_py(), self.processor)
                except LakeError as error:
                    yield pa.record_batch({"fault": [str(error)]})


def read_all(state: bytes, processor: MessageByMessage) -> None:
    """Reads every session's state in the state of a shard.

    Raises:
        LakeError: one cannot be read.
    """
    judging, memory = split(state)
    if (other := changed_column(judging, processor.columns)) is not None:
        name = processor.ref.name
        raise LakeError(
            f"processor {name}: it was given a column {other}, which capture.columns does not have so: "
            f"`sessionlake rebuild processor:{name}` makes its table and states of all of bronze with the columns that "
            "are declared now; or declare it so again"
        )
    ShardState.decode(judging, processor.columns)
    if memory is None:
        return
    made_for = shards_of(memory)
    if made_for != processor.shards:
        raise LakeError(
            f"processor {processor.ref.name}: its state is spread over {made_for} shards, silver.shards is "
            f"{processor.shards}: set it back, or move it with `sessionlake reshard {processor.shards}`"
        )
    codec = processor.workings.codec
    for key, kept in ProcessorMemory.decode(memory).sessions.items():
        if kept.state:
            codec.read(kept.state, kept.version, parts_of_key(key)[2])
