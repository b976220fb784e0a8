"""The manifest of a layer: facts stored beside its checkpoint, in the file `<checkpoint>.json`.

Only the process that has claimed the layer writes it, and always atomically. It does not contain states for a new
checkpoint, which are in `streaming.handover`. Nor does it contain copies of table content, such as stream times,
silences, and the sources of gold's tables: copies can be lost and are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sessionlake.delta.lake import create_storage
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import DataLossError, LakeError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.entries import hash_settings_of_layers as hash_of
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint, write_atomically

T = TypeVar("T")


class ManifestBatch(msgspec.Struct):
    """A batch in a layer's manifest, the file that names the batch being committed and the last committed one.

    Attributes:
        batch: The number of the batch.
        config_hash: Hash of the settings that affect the batch's results.
        offsets: Topic, partition, first and last offset of the messages in the batch.
        judged_by: Hash of the settings that affect how messages are judged.
    """

    batch: int
    config_hash: str
    offsets: list[tuple[str, int, int, int]]
    judged_by: str = ""


class CommitManifest(msgspec.Struct):
    """The content of a layer's manifest file, which records how far the layer has come with committing batches.

    Attributes:
        committing: The batch that is being committed table by table, or was when its process died; None between
            batches.
        committed: The last batch that is in all tables. Spark's checkpoint may not record it as committed yet.
        shards: The number of shards of the checkpoint's states; only for silver.
        stopped: The message at which the layer stopped, as fields; None once the layer has passed it.
        format: Version of the file's format.
    """

    committing: ManifestBatch | None = None
    committed: ManifestBatch | None = None
    shards: int | None = None
    stopped: dict[str, Any] | None = None
    format: int = 1


_RESTORE_MANIFEST = (
    "Restore the file from a backup. Without one, set the settings of the last run, remove the file and run the layer "
    "again: it then finishes the batch with these settings"
)


def read_commit_manifest(settings: Settings, layer: str) -> CommitManifest:
    """Reads the layer's manifest; returns an empty one if there is no file.

    Raises:
        DataLossError: The file cannot be read.
    """
    file = _find_commit_manifest_path(settings, layer)
    try:
        return msgspec.json.decode(file.read_bytes(), type=CommitManifest)
    except FileNotFoundError:
        return CommitManifest()
    except (OSError, msgspec.MsgspecError) as error:
        raise DataLossError(
            f"{layer}: {file} cannot be read ({error})",
            why="The file says which batch is only partly committed, and with which settings",
            fix=(f"{build_checkpoint_recovery_hint(layer)}. Or by hand: " if layer == SILVER else "")
            + _RESTORE_MANIFEST,
        ) from None


def remove_commit_manifest(settings: Settings, layer: str) -> None:
    """Removes the layer's manifest file, because a rebuild has replaced the layer's tables."""
    _find_commit_manifest_path(settings, layer).unlink(missing_ok=True)


def read_unfinished_batch(settings: Settings, layer: str) -> ManifestBatch | None:
    """Returns the batch that a layer is committing, or was when its process died; None if there is none.

    Raises:
        DataLossError: The manifest cannot be read.
    """
    return read_commit_manifest(settings, layer).committing


def require_finished_batch(settings: Settings, layer: str) -> None:
    """Checks that no batch of the layer is in only some of its tables.

    Raises:
        LakeError: The layer's process died after it had written only some of the tables.
    """
    half = read_unfinished_batch(settings, layer)
    if half is not None:
        raise LakeError(
            f"{layer} was interrupted while it committed batch {half.batch}",
            why="Some of its tables have the batch, others do not",
            fix=f"Run `sessionlake run {layer} --once` first, which finishes the batch",
        )


@contextmanager
def record_batch_commit(
    settings: Settings, layer: str, batch: int, config_hash: str, offsets: Sequence[OffsetRange]
) -> Iterator[None]:
    """Records in the layer's manifest that a batch is being committed, and after the block that this is done.

    If the process dies within the block, the batch is computed again, and the tables that have it skip it. So the
    settings must not change in between: all tables must get results of the same settings. The same holds until Spark's
    checkpoint records the batch, because its state may be computed again. Only a processor's code may be newer.

    Args:
        settings: The settings of the lake.
        layer: The layer.
        batch: The number of the batch.
        config_hash: Hash of the settings that affect the batch's results.
        offsets: The offsets of the messages in the batch.

    Raises:
        LakeError: The settings have changed since the batch was started, or the manifest cannot be read.
    """
    judged_by, found = hash_of(settings, SILVER), read_commit_manifest(settings, layer)
    half, done = found.committing, found.committed
    if half is not None and half.batch == batch and half.config_hash != config_hash:
        raise _build_changed_settings_error(layer, batch, half.config_hash, config_hash)
    if done is not None and done.batch == batch and done.judged_by != judged_by:
        raise _build_changed_settings_error(layer, batch, done.judged_by, judged_by)
    spans = [(item.topic, item.partition, item.first, item.last) for item in offsets]
    create_storage(settings).require_claims_still_held()  # otherwise the file could already belong to another process
    found.committing = ManifestBatch(batch, config_hash, spans, judged_by)
    _write_commit_manifest(settings, layer, found)
    yield
    found.committing, found.committed, found.stopped = None, found.committing, None
    _write_commit_manifest(settings, layer, found)


def _build_changed_settings_error(layer: str, batch: int, before: str, now: str) -> LakeError:
    return LakeError(
        f"{layer} was interrupted while it committed batch {batch}, and its settings were changed "
        f"since then (config_hash {before}, now {now})",
        why="All tables must get a batch with the same settings",
        fix=f"Set the former settings, finish the batch with `sessionlake run {layer} --once`, then "
        "change the settings",
    )


def read_message_that_stopped_layer(settings: Settings, layer: str, kind: type[T]) -> T | None:
    """Returns the message at which a layer has stopped; None if it has not stopped or the record cannot be read.

    Args:
        settings: The settings of the lake.
        layer: The layer.
        kind: The type to which the recorded message is converted.
    """
    with suppress(DataLossError, msgspec.ValidationError):
        stopped = read_commit_manifest(settings, layer).stopped
        return None if stopped is None else msgspec.convert(stopped, kind)
    return None


def record_message_that_stopped_layer(settings: Settings, message: object, layer: str = SILVER) -> None:
    """Records the message at which a layer stops in the layer's manifest.

    If the file cannot be written, nothing happens: at its next start, the layer will stop there again.
    """
    with suppress(OSError, DataLossError):
        found = read_commit_manifest(settings, layer)
        found.stopped = msgspec.to_builtins(message)
        _write_commit_manifest(settings, layer, found)


def forget_message_that_stopped_layer(settings: Settings, layer: str = SILVER) -> None:
    """Removes the record of the message at which a layer stopped, because the layer has passed this message."""
    with suppress(OSError, DataLossError):
        found = read_commit_manifest(settings, layer)
        if found.stopped is not None:
            found.stopped = None
            _write_commit_manifest(settings, layer, found)


def record_shard_count(settings: Settings) -> None:
    """Records in silver's manifest the number of shards of its states, which is `silver.shards` of the settings.

    Raises:
        DataLossError: The manifest cannot be read.
    """
    found = read_commit_manifest(settings, SILVER)
    if found.shards != settings.silver.shards:
        found.shards = settings.silver.shards
        _write_commit_manifest(settings, SILVER, found)


def _write_commit_manifest(settings: Settings, layer: str, manifest: CommitManifest) -> None:
    file = _find_commit_manifest_path(settings, layer)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(manifest))


def _find_commit_manifest_path(settings: Settings, layer: str) -> Path:
    return Path(f"{settings.checkpoint_path(layer)}.json")
