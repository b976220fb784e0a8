"""The manifest of a layer: what is noted of it beside its checkpoint, in one file, `<checkpoint>.json`.

Only the process that has claimed the layer writes it, whole or not at all. States that are handed over to a checkpoint
are no part of it: they come into force by renaming their folder (`streaming.handover`). Neither are copies of what
tables hold, which may be lost, and are looked up again: stream times, silences, what gold's tables were made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sessionlake.delta.lake import storage_of
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError, LossError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.entries import config_hash as hash_of
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import way_on, write_whole

T = TypeVar("T")


class Batch(msgspec.Struct):
    """A batch that is being committed to the layer's tables, or is in all of them.

    Attributes:
        config_hash: of what decides its results.
        offsets: topic, partition, first and last offset of what it took in.
        judged_by: the hash of what decides how messages are judged.
    """

    batch: int
    config_hash: str
    offsets: list[tuple[str, int, int, int]]
    judged_by: str = ""


class Manifest(msgspec.Struct):
    """The file.

    Attributes:
        committing: the batch that is being committed table by table, or was when its process died.
        committed: the last batch that is in all tables. Whether its query knows that it is done, is not known.
        shards: how many shards the checkpoint's states are of; of silver alone.
        stopped: the message that the layer stopped at, if it has not gone on since.
    """

    committing: Batch | None = None
    committed: Batch | None = None
    shards: int | None = None
    stopped: dict[str, Any] | None = None
    format: int = 1


_FINISHED_BY_HAND = (
    "Put the file back from a backup. Without one, see to it that the settings are those of the last run, remove it "
    "and run again: the batch is finished by them"
)


def read(settings: Settings, layer: str) -> Manifest:
    """The layer's manifest; an empty one if there is no file.

    Raises:
        LossError: the file cannot be read.
    """
    file = _file(settings, layer)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest()
    except (OSError, msgspec.MsgspecError) as error:
        raise LossError(
            f"{layer}: {file} cannot be read ({error}): it says which batch was half committed, and by which settings",
            fix=(f"{way_on(layer)}. Or by hand: " if layer == SILVER else "") + _FINISHED_BY_HAND,
        ) from None


def discard(settings: Settings, layer: str) -> None:
    """Removes the manifest: the layer begins anew, with tables that were replaced."""
    _file(settings, layer).unlink(missing_ok=True)


def half_committed(settings: Settings, layer: str) -> Batch | None:
    """The batch that a layer is committing, or was when its process died.

    Raises:
        LossError: the manifest cannot be read.
    """
    return read(settings, layer).committing


def refuse_half_committed(settings: Settings, layer: str) -> None:
    """Returns if every batch of the layer is in all of its tables, or in none.

    Raises:
        LakeError: its process died between two tables.
    """
    half = half_committed(settings, layer)
    if half is not None:
        raise LakeError(
            f"{layer} was interrupted while it committed batch {half.batch}: finish it first with "
            f"`sessionlake run {layer} --once`"
        )


@contextmanager
def committing(
    settings: Settings, layer: str, batch: int, config_hash: str, offsets: Sequence[OffsetRange]
) -> Iterator[None]:
    """Notes by which settings a batch is made, while it is committed table by table, and that it is done.

    A batch that died between two tables is made once more, and skips the tables that have it: they must fit together.
    So must its state and all of them, where it died before its query had noted that it is done: messages must be judged
    by the same settings. A processor's class may be a newer one from that batch on.

    Raises:
        LakeError: it was begun under other settings, or what it was begun under cannot be read.
    """
    judged_by, found = hash_of(settings, SILVER), read(settings, layer)
    half, done = found.committing, found.committed
    if half is not None and half.batch == batch and half.config_hash != config_hash:
        raise _changed(layer, batch, half.config_hash, config_hash)
    if done is not None and done.batch == batch and done.judged_by != judged_by:
        raise _changed(layer, batch, done.judged_by, judged_by)
    spans = [(item.topic, item.partition, item.first, item.last) for item in offsets]
    storage_of(settings).require_claims()  # the file may be that of whoever has taken the layer over
    found.committing = Batch(batch, config_hash, spans, judged_by)
    _write(settings, layer, found)
    yield
    found.committing, found.committed, found.stopped = None, found.committing, None
    _write(settings, layer, found)


def _changed(layer: str, batch: int, before: str, now: str) -> LakeError:
    return LakeError(
        f"{layer} was interrupted while it committed batch {batch}, and its settings have changed since (config_hash "
        f"{before}, now {now}): finish it with those of before (--once), then change them"
    )


def stopped_at(settings: Settings, layer: str, kind: type[T]) -> T | None:
    """The message that a layer stopped at, if it has not gone on since; None, too, if that cannot be read."""
    with suppress(LossError, msgspec.ValidationError):
        stopped = read(settings, layer).stopped
        return None if stopped is None else msgspec.convert(stopped, kind)
    return None


def note_stop(settings: Settings, message: object, layer: str = SILVER) -> None:
    """Notes the message that a layer stops at. If that fails, the layer stops there again."""
    with suppress(OSError, LossError):
        found = read(settings, layer)
        found.stopped = msgspec.to_builtins(message)
        _write(settings, layer, found)


def note_going_on(settings: Settings, layer: str = SILVER) -> None:
    """Notes that a layer has passed the message that it stopped at."""
    with suppress(OSError, LossError):
        found = read(settings, layer)
        if found.stopped is not None:
            found.stopped = None
            _write(settings, layer, found)


def note_shards(settings: Settings) -> None:
    """Notes how many shards silver's checkpoint has.

    Raises:
        LossError: the manifest cannot be read.
    """
    found = read(settings, SILVER)
    if found.shards != settings.silver.shards:
        found.shards = settings.silver.shards
        _write(settings, SILVER, found)


def _write(settings: Settings, layer: str, manifest: Manifest) -> None:
    file = _file(settings, layer)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, msgspec.json.encode(manifest))


def _file(settings: Settings, layer: str) -> Path:
    return Path(f"{settings.checkpoint(layer)}.json")
