"""Handovers: the state that an operation leaves for a layer's stream to resume from, with a new checkpoint.

Only Spark can fill a streaming checkpoint. So a rebuild writes a handover beside the checkpoint. It has the version of
the source table after which the stream resumes, the number of its next batch, and the state of each shard. The stream
starts a new checkpoint from it. Operations that only change states, such as `forget` and `reshard`, continue the same
query: its batch numbers and its transaction id stay the same.

A handover is prepared in a separate folder. Renaming this folder activates all of it at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pandas as pd

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SILVER
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.errors import DataLossError, LakeError
from sessionlake.settings.model import Settings
from sessionlake.streaming import manifest
from sessionlake.streaming.checkpoint import (
    DeltaOffset,
    build_checkpoint_recovery_hint,
    read_delta_offset,
    read_last_committed_batch,
    read_last_planned_batch,
    write_atomically,
)
from sessionlake.streaming.payload_files import Emissions
from sessionlake.streaming.sharded import ShardFold
from sessionlake.streaming.stores import archive_checkpoint_folders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Handover(msgspec.Struct, frozen=True):
    """What a rebuild leaves for the stream of a layer: where to continue to read.

    The states of the shards lie beside it.

    Attributes:
        bronze_version: The last version that the rebuild read of the table that the layer reads (for gold, of
            `silver.session_changes`).
        first_batch: The number of the stream's first batch. It is above all earlier batch numbers of the layer.
        shards: The number of shards that the states are for.
        rebuild: The name of the operation that wrote the handover.
        stored: The numbers of the shards that have a state.
        query: The metadata of the query to continue, as in Spark's checkpoint; None starts a new query.
        format: Version of the stored format.
    """

    bronze_version: int
    first_batch: int
    shards: int
    rebuild: str
    stored: list[int] = []
    query: str | None = None
    format: int = 2


_NOTE = "handover.json"
_METADATA = "metadata"
"""Spark's own file in a checkpoint."""


def find_active_handover_folder(settings: Settings, layer: str = SILVER) -> Path:
    """Returns the folder of the handover (result of a rebuild) from which the layer's stream starts or has started."""
    return Path(f"{settings.checkpoint_path(layer)}.handover")


def find_prepared_handover_folder(settings: Settings, layer: str = SILVER) -> Path:
    """Returns the folder in which a rebuild writes the next handover, before it replaces the one in use."""
    return Path(f"{settings.checkpoint_path(layer)}.handover.next")


def read_handover(folder: Path, layer: str = SILVER) -> Handover | None:
    """Reads the handover in a folder; returns None if there is none.

    Raises:
        DataLossError: The handover cannot be read. The error has advice for the layer.
    """
    file = folder / _NOTE
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Handover)
    except msgspec.MsgspecError as error:
        raise DataLossError(
            f"the handover {file}, from which {layer} resumes, is damaged ({error})",
            fix=build_checkpoint_recovery_hint(layer),
        ) from None


def read_active_handover(settings: Settings, layer: str = SILVER) -> Handover | None:
    """Reads the handover from which the layer's current checkpoint starts or has started; None if there is none.

    Raises:
        DataLossError: The handover cannot be read.
    """
    return read_handover(find_active_handover_folder(settings, layer), layer)


def require_handover_states(settings: Settings, layer: str) -> None:
    """Checks that every state that the layer's handover lists exists.

    Without it, the sessions of a shard would start over.

    Raises:
        DataLossError: A state is gone. The error names its file.
    """
    begin = read_active_handover(settings, layer)
    if begin is not None:
        lost = sorted({*begin.stored} - {*list_shards_in_handover(settings, layer)})
        if lost:
            raise DataLossError(
                f"{layer}: its state {find_active_handover_folder(settings, layer) / f'{lost[0]}.state'} is gone",
                fix=build_checkpoint_recovery_hint(layer),
            )


def prepare_handover(
    settings: Settings,
    handover: Handover,
    states: Iterable[tuple[int, bytes]],
    layer: str = SILVER,
    *,
    same_query: bool = False,
) -> None:
    """Writes the next handover of a layer beside the one in use. `activate_handover` puts it into use later.

    Args:
        handover: The handover. Its `stored` and `query` are ignored: this function sets them.
        states: Pairs of shard number and state.
        same_query: True continues the query of the current checkpoint; False starts a new one.
    """
    place, metadata = find_prepared_handover_folder(settings, layer), Path(settings.checkpoint_path(layer)) / _METADATA
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    stored = []
    for shard, state in states:
        write_atomically(place / f"{shard}.state", state)
        stored.append(shard)
    query = metadata.read_text(encoding="utf-8") if same_query and metadata.is_file() else None
    complete = msgspec.structs.replace(handover, stored=sorted(stored), query=query)
    write_atomically(place / _NOTE, msgspec.json.encode(complete))


def is_handover_prepared(settings: Settings, operation: str, layer: str) -> bool:
    """Returns True if a handover of this operation is prepared for the layer, and all states that it lists exist."""
    place = find_prepared_handover_folder(settings, layer)
    try:
        found = read_handover(place, layer)
    except DataLossError:
        return False
    if found is None or found.rebuild != operation:
        return False
    return all((place / f"{shard}.state").is_file() for shard in found.stored)


def discard_prepared_handover(settings: Settings, layer: str = SILVER) -> None:
    """Deletes the handover that a rebuild prepared for the layer and did not put into use, if there is one."""
    shutil.rmtree(find_prepared_handover_folder(settings, layer), ignore_errors=True)


def require_prepared_handover(settings: Settings, operation: str, layer: str, remedy: str) -> None:
    """Checks that a handover of this operation is in use, or is completely prepared.

    Args:
        operation: The name of the operation.
        remedy: What the operator can do, for the error's text.

    Raises:
        DataLossError: It is neither. The layer could not resume once its tables are replaced.
    """
    # Checked first, because the prepared handover may be there to replace an active one that is damaged.
    if not is_handover_prepared(settings, operation, layer) and not is_handover_active(settings, operation, layer):
        raise DataLossError(
            f"{layer}: the folder {find_prepared_handover_folder(settings, layer)} is gone or damaged",
            why="It has the state from which the layer would resume after the operation",
            fix=remedy,
        )


def is_handover_active(settings: Settings, operation: str, layer: str) -> bool:
    """Returns True if this operation wrote the handover from which the layer's stream starts or has started."""
    begin = read_active_handover(settings, layer)
    return begin is not None and begin.rebuild == operation


def read_first_batch_number(settings: Settings, layer: str = SILVER) -> int:
    """Returns the layer's number of the first batch in its checkpoint, which Spark counts as 0.

    It is 0 unless a rebuild left a handover with a higher number.

    Raises:
        DataLossError: The handover cannot be read.
    """
    begin = read_active_handover(settings, layer)
    return 0 if begin is None else begin.first_batch


def read_first_batch_number_or_none(settings: Settings, layer: str = SILVER) -> int | None:
    """Returns the layer's number of the first batch in its checkpoint; None if the layer's handover cannot be read."""
    try:
        return read_first_batch_number(settings, layer)
    except DataLossError:
        return None


def read_next_batch_number(settings: Settings, layer: str = SILVER) -> int:
    """Returns the layer's number of the batch that follows the last committed batch."""
    committed = read_last_committed_batch(settings.checkpoint_path(layer))
    return read_first_batch_number(settings, layer) + (0 if committed is None else committed + 1)


def read_last_processed_version(settings: Settings, layer: str, *, reads_change_feed: bool = False) -> int | None:
    """Returns the last version of its source table that a layer has processed; None before the layer's first batch.

    Args:
        reads_change_feed: True if the layer reads the table's change feed. Its batches never end within a version.

    Raises:
        LakeError: The layer has an unfinished batch, or has read only a part of a version.
    """
    checkpoint, begin = Path(settings.checkpoint_path(layer)), read_active_handover(settings, layer)
    batch = read_last_committed_batch(checkpoint)
    if batch is None and begin is None:
        return None
    run = f"Run `sessionlake run {layer.replace('processor-', 'processor ')} --once` first"
    if read_last_planned_batch(checkpoint) != batch:
        raise LakeError(f"{layer} was interrupted in its last batch", fix=run)
    if batch is None:
        return begin.bronze_version if begin else None
    version, is_complete = read_version_reached_by_batch(settings, layer, batch, reads_change_feed=reads_change_feed)
    if not is_complete:
        raise LakeError(f"{layer} has read only a part of the last commit of its source table", fix=run)
    return version


def read_version_reached_by_batch(
    settings: Settings, layer: str, batch: int, *, reads_change_feed: bool = False
) -> tuple[int, bool]:
    """Returns the last version of the source table that a batch reads, and whether it reads that version completely.

    Args:
        batch: Spark's number of the batch.
        reads_change_feed: True if the layer reads the table's change feed. Its batches never end within a version.

    Raises:
        LakeError: The checkpoint has no readable entry for the batch.
    """
    place = _read_batch_end_offset(settings, layer, batch)
    if place.in_initial_snapshot:
        return place.version, False
    return place.last_read_version, reads_change_feed or place.is_at_version_start


def read_next_version_after_batch(settings: Settings, layer: str, batch: int) -> int:
    """Returns the first version of the source table that the layer has not read completely after a batch.

    Args:
        batch: The layer's number of the batch, as in the ledger.

    Raises:
        LakeError: The checkpoint has no readable entry for the batch. Or the layer still reads the rows that the table
            had when the layer started, which are not in order of versions.
    """
    begin, number = read_active_handover(settings, layer), batch - read_first_batch_number(settings, layer)
    if begin is not None and number < 0:
        return begin.bronze_version + 1
    place = _read_batch_end_offset(settings, layer, number)
    if place.in_initial_snapshot:
        raise LakeError(
            f"{layer} has read only a part of the rows that its source table had at the layer's first start",
            fix=f"Run `sessionlake run {layer.replace('processor-', 'processor ')} --once` first",
        )
    return place.version


def _read_batch_end_offset(settings: Settings, layer: str, batch: int) -> DeltaOffset:
    """Returns the point in the layer's source table up to which a batch reads. `batch` is Spark's number of the batch.

    Raises:
        LakeError: The checkpoint has no readable entry for the batch.
    """
    checkpoint = settings.checkpoint_path(layer)
    try:
        return read_delta_offset(checkpoint, batch)
    except (OSError, ValueError) as error:
        unknown = f"{checkpoint} does not say what {layer} has read ({error!r})"
        raise LakeError(unknown, fix=build_checkpoint_recovery_hint(layer)) from None


def list_shards_in_handover(settings: Settings, layer: str = SILVER) -> list[int]:
    """Returns the numbers of the shards that have a state file in the layer's handover, ascending."""
    return sorted(int(file.stem) for file in find_active_handover_folder(settings, layer).glob("*.state"))


def _read_shard_state_file(folder: str, shard: int) -> bytes | None:
    file = Path(folder) / f"{shard}.state"
    return file.read_bytes() if file.exists() else None


@dataclass(frozen=True)
class HandoverStateReader:
    """A `mapInPandas` function that reads the states of shards from a handover's folder, one state at a time.

    Input `shard int`; output `shard int, chunk binary`, with null for a shard without a state.

    Attributes:
        folder: The folder of the handover.
    """

    folder: str

    def __call__(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yields one frame `shard int, chunk binary` for each shard in the input frames."""
        for frame in frames:
            for shard in frame["shard"].tolist():
                yield pd.DataFrame({"shard": [shard], "chunk": [_read_shard_state_file(self.folder, shard)]})


def refuse_changed_shard_count(settings: Settings) -> None:
    """Refuses to start if `silver.shards` differs from the number of shards for which silver's states were made.

    With another number, a session's messages would go to a shard that does not have its state.

    Raises:
        LakeError: `silver.shards` was changed. The error names both numbers.
    """
    made = read_shard_count(settings)
    if made not in (None, settings.silver.shards):
        raise LakeError(
            f"silver.shards is {settings.silver.shards}, but silver's stored states are in {made} shards",
            fix=f"Set silver.shards back to {made}, or move the states with `sessionlake reshard "
            f"{settings.silver.shards}`",
        )


def read_shard_count(settings: Settings) -> int | None:
    """Returns the number of shards for which silver's states were made; None if there are no states yet.

    Raises:
        DataLossError: The checkpoint's manifest or the handover cannot be read.
    """
    noted = manifest.read_commit_manifest(settings, SILVER).shards
    if noted is not None and (Path(settings.checkpoint_path(SILVER)) / _METADATA).exists():
        return noted
    begin = read_active_handover(settings)
    return None if begin is None else begin.shards


def activate_handover(spark: SparkSession, settings: Settings, operation: str, layer: str = SILVER) -> None:
    """Puts the handover that an operation prepared into use, and archives the layer's checkpoint.

    The layer's stream then starts from the handover. After a crash, the call can be repeated. `operation` is its name.
    """
    checkpoint = Path(settings.checkpoint_path(layer))
    if is_handover_prepared(settings, operation, layer):
        archive_checkpoint_folders(
            spark, Lake(settings), (checkpoint, find_active_handover_folder(settings, layer)), operation
        )
        find_prepared_handover_folder(settings, layer).rename(find_active_handover_folder(settings, layer))
    inject_fault_if_requested(f"after:{layer}.swapped")
    begin = read_active_handover(settings, layer)
    if begin is not None and begin.query is not None and not (checkpoint / _METADATA).exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_atomically(checkpoint / _METADATA, begin.query.encode())


@dataclass
class FoldResumedFromHandover:
    """A fold that starts each shard from the state that a rebuild left for it.

    Attributes:
        fold: The fold of one shard.
        folder: The folder of the handover, which has the states.
    """

    fold: ShardFold
    folder: str

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
        """Folds a batch of one shard. If the shard has no state yet (None), starts from its state in the handover.

        Returns:
            The new state (None: unchanged), and the rows and bytes that the fold emits.
        """
        begins = _read_shard_state_file(self.folder, shard) if state is None else None
        after, out = self.fold(shard, state or begins, chunks)
        return after or begins, out
