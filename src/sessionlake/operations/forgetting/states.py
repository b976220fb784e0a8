"""The states of silver's shards, and of processors', without one session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, SILVER
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import LossError
from sessionlake.integrity.state import ShardState
from sessionlake.processors.memory import ProcessorMemory, without_session
from sessionlake.protocol.columns import Column
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import join, split
from sessionlake.silver.states import has_state, last_batches, state_frame
from sessionlake.spark.failures import parse_failure
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import way_on
from sessionlake.streaming.handover import Handover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stateful(settings: Settings) -> list[str]:
    """The layers that judge sessions and have begun to."""
    layers = [SILVER, *(processor.layer for processor in settings.processors)]
    return [layer for layer in layers if has_begun(settings, layer)]


def has_begun(settings: Settings, layer: str) -> bool:
    """Whether the layer has a checkpoint, or states to begin from."""
    begun = (Path(settings.checkpoint(layer)) / "metadata").is_file()
    return begun or handover.in_force(settings, layer) is not None or handover.prepared(settings, layer).is_dir()


def require_states(spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str]) -> None:
    """Returns if the states that `hand_over` will take can be read, and written without the session.

    Raises:
        LossError: they cannot.
    """
    try:
        for _ in _states(spark, settings, layer, session):
            pass
    except Exception as error:
        what = (
            f"{layer}: its states cannot be read ({parse_failure(error)}), "
            "so the session could not be taken out of them"
        )
        raise LossError(what, fix=f"Nothing was changed. {way_on(layer)}") from error


def hand_over(spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str], receipt: str) -> None:
    """Has a layer's stream, which has taken in all of bronze, go on without the session from bronze's latest version.

    Repeatable after a crash.
    """
    version = Lake(settings).latest_version(spark, MESSAGES)
    _, last = last_batches(spark, settings, layer)
    begin = Handover(version - 1, last + 1, settings.silver.shards, receipt)
    if not handover.is_in_force(settings, receipt, layer):
        if not handover.is_prepared(settings, receipt, layer):
            handover.prepare(settings, begin, _states(spark, settings, layer, session), layer, same_query=True)
        fault_point(f"after:{layer}.prepared")
    handover.swap(spark, settings, receipt, layer)


def _states(
    spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str]
) -> Iterator[tuple[int, bytes]]:
    if not has_state(settings, layer):
        return
    for row in state_frame(spark, settings, layer).toLocalIterator():
        yield row["shard"], left_of(bytes(row["chunk"]), settings.capture.declared, session)


def left_of(stored: bytes, columns: tuple[Column, ...], session: tuple[str, str]) -> bytes:
    """A shard's state without a topic's sessions of one id, in any partition; all others stay as they were."""
    judging, memory = split(stored)
    state = ShardState.decode(judging, columns)
    left = None if memory is None else without_session(memory, *session)
    state.replace_sessions(ShardState(), lambda topic, _, own: (topic, own) == session, ProcessorMemory.due_of(left))
    return join(state.encode(columns), left)
