"""The manifest of a layer: facts stored beside its checkpoint, in the file `<checkpoint>.json`.

Only the process that has claimed the layer writes it, and always atomically. It does not contain states for a new
checkpoint: `streaming.handover` has these. Nor does it contain copies of what tables hold, such as stream times,
silences, and what gold's tables were made of: those can be lost, and are looked up again.
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
from sessionlake.streaming.checkpoint import recovery_hint, write_atomically

T = TypeVar("T")


class Batch(msgspec.Struct):
    """A batch that is being committed to the layer's tables, or was committed to all of them.

    Attributes:
        batch: The number of the batch.
        config_hash: Hash of the settings that decide its results.
        offsets: Topic, partition, first and last offset of the messages in it.
        judged_by: Hash of the settings that decide how messages are judged.
    """

    batch: int
    config_hash: str
    offsets: list[tuple[str, int, int, int]]
    judged_by: str = ""


class Manifest(msgspec.Struct):
    """The content of the file.

    Attributes:
        committing: The batch that is being committed table by table, or was when its process died.
        committed: The last batch that is in all tables. Its query may not know yet that it is done.
        shards: The number of shards of the checkpoint's states; only for silver.
        stopped: The message that the layer stopped at, if it has not passed it since.
    """

    committing: Batch | None = None
    committed: Batch | None = None
    shards: int | None = None
    stopped: dict[str, Any] | None = None
    format: int = 1


_RESTORE_MANIFEST = (
    "Restore the file from a backup. Without one, make sure that the settings are those of the last run, remove the "
    "file and run again: the batch is then finished with these settings"
)


def read(settings: Settings, layer: str) -> Manifest:
    """Reads the layer's manifest; an empty one if there is no file.

    Raises:
        LossError: The file cannot be read.
    """
    file = _file(settings, layer)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest()
    except (OSError, msgspec.MsgspecError) as error:
        raise LossError(
            f"{layer}: {file} cannot be read ({error})",
            why="It says which batch is only partly committed, and with which settings it was made",
            fix=(f"{recovery_hint(layer)}. Or by hand: " if layer == SILVER else "") + _RESTORE_MANIFEST,
        ) from None


def discard(settings: Settings, layer: str) -> None:
    """Removes the manifest, because the layer starts over with replaced tables."""
    _file(settings, layer).unlink(missing_ok=True)


def unfinished_batch(settings: Settings, layer: str) -> Batch | None:
    """Returns the batch that a layer is committing, or was when its process died; None if there is none.

    Raises:
        LossError: The manifest cannot be read.
    """
    return read(settings, layer).committing


def require_finished_batch(settings: Settings, layer: str) -> None:
    """Returns if every batch of the layer is in all of its tables or in none.

    Raises:
        LakeError: The layer's process died between two tables.
    """
    half = unfinished_batch(settings, layer)
    if half is not None:
        raise LakeError(
            f"{layer} was interrupted while it committed batch {half.batch}",
            fix=f"Run `sessionlake run {layer} --once` first, which finishes the batch",
        )


@contextmanager
def committing(
    settings: Settings, layer: str, batch: int, config_hash: str, offsets: Sequence[OffsetRange]
) -> Iterator[None]:
    """Notes that a batch is being committed and with which settings; at the end of the block, that it is committed.

    If a process dies between two tables, the batch is made again and skips the tables that have it. All parts must fit
    together, so the settings must be the same. This also holds if the process died after the last table but before the
    query noted the batch as done: then the state is made again, and messages must be judged by the same settings. Only
    the class of a processor may be a newer one.

    Raises:
        LakeError: The settings have changed since the batch was started, or the manifest cannot be read.
    """
    judged_by, found = hash_of(settings, SILVER), read(settings, layer)
    half, done = found.committing, found.committed
    if half is not None and half.batch == batch and half.config_hash != config_hash:
        raise _changed(layer, batch, half.config_hash, config_hash)
    if done is not None and done.batch == batch and done.judged_by != judged_by:
        raise _changed(layer, batch, done.judged_by, judged_by)
    spans = [(item.topic, item.partition, item.first, item.last) for item in offsets]
    storage_of(settings).require_claims()  # otherwise the file could already belong to another process
    found.committing = Batch(batch, config_hash, spans, judged_by)
    _write(settings, layer, found)
    yield
    found.committing, found.committed, found.stopped = None, found.committing, None
    _write(settings, layer, found)


def _changed(layer: str, batch: int, before: str, now: str) -> LakeError:
    return LakeError(
        f"{layer} was interrupted while it committed batch {batch}, and its settings have changed since (config_hash "
        f"{before}, now {now})",
        why="All tables must get the batch with the same settings",
        fix="Restore the former settings, finish the batch with `--once`, then change them",
    )


def stopped_at(settings: Settings, layer: str, kind: type[T]) -> T | None:
    """Returns the message that a layer stopped at and has not passed since; None if there is none or it is unknown."""
    with suppress(LossError, msgspec.ValidationError):
        stopped = read(settings, layer).stopped
        return None if stopped is None else msgspec.convert(stopped, kind)
    return None


def note_stop(settings: Settings, message: object, layer: str = SILVER) -> None:
    """Notes the message that a layer stops at. A failure to write is ignored: the layer stops there again."""
    with suppress(OSError, LossError):
        found = read(settings, layer)
        found.stopped = msgspec.to_builtins(message)
        _write(settings, layer, found)


def clear_stop(settings: Settings, layer: str = SILVER) -> None:
    """Notes that a layer has passed the message that it had stopped at."""
    with suppress(OSError, LossError):
        found = read(settings, layer)
        if found.stopped is not None:
            found.stopped = None
            _write(settings, layer, found)


def note_shards(settings: Settings) -> None:
    """Notes how many shards silver's checkpoint has.

    Raises:
        LossError: The manifest cannot be read.
    """
    found = read(settings, SILVER)
    if found.shards != settings.silver.shards:
        found.shards = settings.silver.shards
        _write(settings, SILVER, found)


def _write(settings: Settings, layer: str, manifest: Manifest) -> None:
    file = _file(settings, layer)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(manifest))


def _file(settings: Settings, layer: str) -> Path:
    return Path(f"{settings.checkpoint(layer)}.json")
