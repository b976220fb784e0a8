"""Removes one session from the states of silver's shards and of processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, SILVER
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.errors import DataLossError
from sessionlake.integrity.state import ShardState
from sessionlake.processors.shard_state import ProcessorShardState, remove_session_from_processor_state
from sessionlake.protocol.columns import Column
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import join_shard_state, split_shard_state
from sessionlake.silver.states import has_state, read_state_and_ledger_batch, read_state_frame
from sessionlake.spark.failures import parse_spark_failure
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.handover import Handover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def list_layers_with_state(settings: Settings) -> list[str]:
    """Returns the names of silver and of processors, without those that have never run."""
    layers = [SILVER, *(processor.layer for processor in settings.processors)]
    return [layer for layer in layers if has_checkpoint_or_handover(settings, layer)]


def has_checkpoint_or_handover(settings: Settings, layer: str) -> bool:
    """Returns True if the layer has a checkpoint, or prepared states from which its stream will start."""
    has_checkpoint = (Path(settings.checkpoint_path(layer)) / "metadata").is_file()
    return (
        has_checkpoint
        or handover.read_active_handover(settings, layer) is not None
        or handover.find_prepared_handover_folder(settings, layer).is_dir()
    )


def require_states_rewritable_without_session(
    spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str]
) -> None:
    """Checks that a layer's states can be read, and can be written again without the session.

    Raises:
        DataLossError: A state cannot be read or written.
    """
    try:
        for _ in _rewrite_states_without_session(spark, settings, layer, session):
            pass
    except Exception as error:
        raise DataLossError(
            f"forget: the stored states of {layer} cannot be read ({parse_spark_failure(error)})",
            why="So the session cannot be removed from them. Nothing was changed",
            fix=build_checkpoint_recovery_hint(layer),
        ) from error


def hand_over_states_without_session(
    spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str], receipt: str
) -> None:
    """Replaces a layer's states by states without the session. Its stream resumes from them at bronze's latest version.

    The layer must have read all of bronze. Safe to repeat after a crash.

    Args:
        session: Topic and id of the session.
        receipt: Name of the file that records this run of `forget`. The handed-over states have it as their name, so
            that a repeated run finds them.
    """
    version = Lake(settings).latest_version(spark, MESSAGES)
    _, last = read_state_and_ledger_batch(spark, settings, layer)
    begin = Handover(version - 1, last + 1, settings.silver.shards, receipt)
    if not handover.is_handover_active(settings, receipt, layer):
        if not handover.is_handover_prepared(settings, receipt, layer):
            handover.prepare_handover(
                settings,
                begin,
                _rewrite_states_without_session(spark, settings, layer, session),
                layer,
                same_query=True,
            )
        inject_fault_if_requested(f"after:{layer}.prepared")
    handover.activate_handover(spark, settings, receipt, layer)


def _rewrite_states_without_session(
    spark: SparkSession, settings: Settings, layer: str, session: tuple[str, str]
) -> Iterator[tuple[int, bytes]]:
    """Yields the number of each shard that has a state, and its encoded state without the session."""
    if not has_state(settings, layer):
        return
    for row in read_state_frame(spark, settings, layer).toLocalIterator():
        yield row["shard"], remove_session_from_state(bytes(row["chunk"]), settings.capture.declared_columns, session)


def remove_session_from_state(stored: bytes, columns: tuple[Column, ...], session: tuple[str, str]) -> bytes:
    """Returns a shard's encoded state without the session, in whichever partition it is. Other sessions are unchanged.

    Args:
        stored: The shard's encoded state.
        columns: The declared columns.
        session: Topic and id of the session.
    """
    judging, memory = split_shard_state(stored)
    state = ShardState.decode_shard_state(judging, columns)
    left = None if memory is None else remove_session_from_processor_state(memory, *session)
    state.replace_sessions(
        ShardState(),
        lambda topic, _, session_id: (topic, session_id) == session,
        ProcessorShardState.read_due_times(left),
    )
    return join_shard_state(state.encode_shard_state(columns), left)
