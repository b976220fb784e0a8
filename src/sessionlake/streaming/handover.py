"""Handovers: the state that an operation leaves for a layer's stream to resume from, with a new checkpoint.

A streaming checkpoint cannot be filled from outside. So a rebuild writes, beside the checkpoint, the version from which
the stream reads on, the number of its next batch, and the state of each shard. The stream begins a new checkpoint from
there. Where an operation only changes states, as `forget` and `reshard` do, the new checkpoint is one of the same
query: its batch numbers go on, and so do the transactions that bear its id.

A handover is prepared in a folder of its own. Renaming that folder brings it into force, with all that is in it.
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
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import LakeError, LossError
from sessionlake.settings.model import Settings
from sessionlake.streaming import manifest
from sessionlake.streaming.carried import Emissions
from sessionlake.streaming.checkpoint import TablePlace, last_committed, last_planned, read_to, way_on, write_whole
from sessionlake.streaming.sharded import ShardFold
from sessionlake.streaming.stores import put_aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Handover(msgspec.Struct, frozen=True):
    """Where the stream begins.

    Attributes:
        bronze_version: the last version taken in of the table that the layer reads; for gold, of silver's changes.
        first_batch: number of the stream's first batch: `_batch` goes on rising.
        shards: the number of shards that the states are of.
        rebuild: the name of the operation that wrote it.
        stored: the shards that have a state.
        query: the metadata of the query that goes on, as Spark has it in the checkpoint; None begins a new query.
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
"""Spark's own, in a checkpoint."""


def folder(settings: Settings, layer: str = SILVER) -> Path:
    """The folder of the handover in force."""
    return Path(f"{settings.checkpoint(layer)}.handover")


def prepared(settings: Settings, layer: str = SILVER) -> Path:
    """The folder in which the next handover is prepared."""
    return Path(f"{settings.checkpoint(layer)}.handover.next")


def read(place: Path, layer: str = SILVER) -> Handover | None:
    """The handover in a folder, if there is one.

    Raises:
        LossError: it cannot be read.
    """
    file = place / _NOTE
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Handover)
    except msgspec.MsgspecError as error:
        raise LossError(f"{file} is damaged ({error})", fix=way_on(layer)) from None


def in_force(settings: Settings, layer: str = SILVER) -> Handover | None:
    """The handover that a layer's stream begins from, or began from."""
    return read(folder(settings, layer), layer)


def require_states(settings: Settings, layer: str) -> None:
    """Returns if every state of the handover in force is there: without one, its sessions would begin anew.

    Raises:
        LossError: naming the file of one that is not.
    """
    begin = in_force(settings, layer)
    if begin is not None:
        lost = sorted({*begin.stored} - {*numbers(settings, layer)})
        if lost:
            raise LossError(f"{layer}: {folder(settings, layer) / f'{lost[0]}.state'} is gone", fix=way_on(layer))


def prepare(
    settings: Settings,
    begin: Handover,
    states: Iterable[tuple[int, bytes]],
    layer: str = SILVER,
    *,
    same_query: bool = False,
) -> None:
    """Writes a handover, which comes into force with `swap`.

    Args:
        same_query: whether the query of the present checkpoint goes on; otherwise a new one begins.
    """
    place, metadata = prepared(settings, layer), Path(settings.checkpoint(layer)) / _METADATA
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    stored = []
    for shard, state in states:
        write_whole(place / f"{shard}.state", state)
        stored.append(shard)
    query = metadata.read_text(encoding="utf-8") if same_query and metadata.is_file() else None
    whole = msgspec.structs.replace(begin, stored=sorted(stored), query=query)
    write_whole(place / _NOTE, msgspec.json.encode(whole))


def is_prepared(settings: Settings, name: str, layer: str) -> bool:
    """Whether a handover of this name is prepared, and whole: its note and all states that the note lists."""
    place = prepared(settings, layer)
    try:
        found = read(place, layer)
    except LossError:
        return False
    if found is None or found.rebuild != name:
        return False
    return all((place / f"{shard}.state").is_file() for shard in found.stored)


def discard_prepared(settings: Settings, layer: str = SILVER) -> None:
    """Removes a handover that was prepared and never came into force."""
    shutil.rmtree(prepared(settings, layer), ignore_errors=True)


def require_prepared(settings: Settings, name: str, layer: str, remedy: str) -> None:
    """Returns if a handover of this name is in force, or is prepared and whole.

    Raises:
        LossError: it is neither, so that the layer could not go on from what is about to replace its tables.
    """
    # In this order: a handover in force that is damaged is what a prepared one is to replace.
    if not is_prepared(settings, name, layer) and not is_in_force(settings, name, layer):
        raise LossError(
            f"{layer}: {prepared(settings, layer)} is gone or damaged, from which it was to go on", fix=remedy
        )


def is_in_force(settings: Settings, name: str, layer: str) -> bool:
    """Whether the handover in force is the one of this name."""
    begin = in_force(settings, layer)
    return begin is not None and begin.rebuild == name


def first_batch(settings: Settings, layer: str = SILVER) -> int:
    """The number of the first batch of a layer's checkpoint, which Spark counts as 0."""
    begin = in_force(settings, layer)
    return 0 if begin is None else begin.first_batch


def known_first_batch(settings: Settings, layer: str = SILVER) -> int | None:
    """As `first_batch`; None where the handover in force cannot be read."""
    try:
        return first_batch(settings, layer)
    except LossError:
        return None


def next_batch(settings: Settings, layer: str = SILVER) -> int:
    """The number of the batch behind a layer's last committed one."""
    committed = last_committed(settings.checkpoint(layer))
    return first_batch(settings, layer) + (0 if committed is None else committed + 1)


def taken_in(settings: Settings, layer: str, *, feed: bool = False) -> int | None:
    """The last version of the table that it reads that a layer has taken in; None before its first batch.

    Args:
        feed: whether it reads the table's change feed, of which a batch has whole versions.

    Raises:
        LakeError: it has stopped within a version, or within a batch.
    """
    checkpoint, begin = Path(settings.checkpoint(layer)), in_force(settings, layer)
    batch = last_committed(checkpoint)
    if batch is None and begin is None:
        return None
    run = f"run `sessionlake run {layer.replace('processor-', 'processor ')} --once` first"
    if last_planned(checkpoint) != batch:
        raise LakeError(f"{layer} has not finished its last batch: {run}")
    if batch is None:
        return begin.bronze_version if begin else None
    version, is_whole = reached(settings, layer, batch, feed=feed)
    if not is_whole:
        raise LakeError(f"{layer} has read a part of what the layer before it wrote at once: {run}")
    return version


def reached(settings: Settings, layer: str, batch: int, *, feed: bool = False) -> tuple[int, bool]:
    """The version of the table that a layer reads that a batch, by Spark's number, comes to; whether to its end.

    Args:
        feed: as with `taken_in`.

    Raises:
        LakeError: the checkpoint does not say it.
    """
    place = _place(settings, layer, batch)
    if place.at_first:
        return place.version, False
    return place.latest, feed or place.before_version


def following(settings: Settings, layer: str, batch: int) -> int:
    """The first version of the table that a layer reads of which it has not read all after a batch of the ledger's.

    Raises:
        LakeError: the checkpoint does not say it; or the layer is still at what the table held when it began, which it
            reads in another order than that of its versions.
    """
    begin, number = in_force(settings, layer), batch - first_batch(settings, layer)
    if begin is not None and number < 0:
        return begin.bronze_version + 1
    place = _place(settings, layer, number)
    if place.at_first:
        raise LakeError(
            f"{layer} has read a part of what there was when it began: run `sessionlake run "
            f"{layer.replace('processor-', 'processor ')} --once` first"
        )
    return place.version


def _place(settings: Settings, layer: str, batch: int) -> TablePlace:
    """Where a batch, by Spark's number, ends."""
    checkpoint = settings.checkpoint(layer)
    try:
        return read_to(checkpoint, batch)
    except (OSError, ValueError) as error:
        unknown = f"{checkpoint} does not say what {layer} has read ({error!r})"
        raise LakeError(f"{unknown}. {way_on(layer)}") from None


def numbers(settings: Settings, layer: str = SILVER) -> list[int]:
    """The shards that the handover in force has states of, in order."""
    return sorted(int(file.stem) for file in folder(settings, layer).glob("*.state"))


def _state(place: str, shard: int) -> bytes | None:
    file = Path(place) / f"{shard}.state"
    return file.read_bytes() if file.exists() else None


@dataclass(frozen=True)
class StateReader:
    """The states of a handover, read where the rows are, one at a time; a `mapInPandas` function.

    Takes `shard int`, gives `shard int, chunk binary`.
    """

    place: str

    def __call__(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Reads the task's states."""
        for frame in frames:
            for shard in frame["shard"].tolist():
                yield pd.DataFrame({"shard": [shard], "chunk": [_state(self.place, shard)]})


def refuse_other_shards(settings: Settings) -> None:
    """Refuses another number of shards than the states are of: sessions would not find theirs.

    Raises:
        LakeError: naming both numbers.
    """
    made = shards(settings)
    if made not in (None, settings.silver.shards):
        raise LakeError(
            f"silver.shards is {settings.silver.shards}, but silver's states are of {made} shards: set it back, or "
            f"move them with `sessionlake reshard {settings.silver.shards}`"
        )


def shards(settings: Settings) -> int | None:
    """How many shards silver's states are of: the checkpoint's, or, before its first batch, the handover's.

    None if there are none yet.

    Raises:
        LossError: what is noted of them cannot be read.
    """
    noted = manifest.read(settings, SILVER).shards
    if noted is not None and (Path(settings.checkpoint(SILVER)) / _METADATA).exists():
        return noted
    begin = in_force(settings)
    return None if begin is None else begin.shards


def swap(spark: SparkSession, settings: Settings, rebuild: str, layer: str = SILVER) -> None:
    """Brings the prepared handover of this name into force, and archives the checkpoint. Repeatable after a crash."""
    checkpoint = Path(settings.checkpoint(layer))
    if is_prepared(settings, rebuild, layer):
        put_aside(spark, Lake(settings), (checkpoint, folder(settings, layer)), rebuild)
        prepared(settings, layer).rename(folder(settings, layer))
    fault_point(f"after:{layer}.swapped")
    begin = in_force(settings, layer)
    if begin is not None and begin.query is not None and not (checkpoint / _METADATA).exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_whole(checkpoint / _METADATA, begin.query.encode())


@dataclass
class HandedOver:
    """A fold whose shards begin with the states of a handover."""

    fold: ShardFold
    place: str

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Emissions]:
        """See `ShardFold`."""
        begins = _state(self.place, shard) if state is None else None
        after, out = self.fold(shard, state or begins, chunks)
        return after or begins, out
