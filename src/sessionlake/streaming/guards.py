"""What a layer's job asks before it writes: whether its tables are those that its checkpoint and settings go with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import eq, ge
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sessionlake.delta.lake import Lake, storage_of
from sessionlake.delta.schemas.names import (
    AVERAGES,
    BRONZE,
    CHANGES,
    DISTINCT_VALUES,
    GOLD,
    MESSAGES,
    METRICS_1M,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    SILVER,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import LakeError, LossError
from sessionlake.integrity.rules import RuleBook
from sessionlake.ledger.books import Books, rows_of
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.entries import config_hash as hash_of
from sessionlake.ledger.retained import cut_of
from sessionlake.settings.model import Integrity, Settings
from sessionlake.streaming.checkpoint import way_on, write_whole
from sessionlake.streaming.generations import Generations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

FILLED = {
    BRONZE: (MESSAGES,),
    SILVER: (PROGRESS, QUARANTINE),
    GOLD: (AVERAGES, METRICS_1M, DISTINCT_VALUES),
}
"""Every batch of a layer leaves rows in one of these, of gold every one that has a number or a text."""


def refuse_fresh_checkpoint(spark: SparkSession, lake: Lake, settings: Settings, layer: str) -> None:
    """Stops a job whose checkpoint is new while its tables are not: it would write everything twice.

    Raises:
        LossError: naming the checkpoint and what to do.
    """
    checkpoint = settings.checkpoint(layer)
    if Generations(checkpoint, layer).present.app_id is not None:
        return
    entries = list(rows_of(Books(lake.reader(spark)).current(("layer", eq, layer))))
    of_rebuild = [entry["app_id"].startswith(REBUILD) for entry in entries]
    # What is rebuilt is filled by right, and handed over. Gold is emptied: what it has is of a batch since.
    begins_empty = not entries or (layer == GOLD and not Path(f"{checkpoint}.handover").exists())
    if not all(of_rebuild) or (begins_empty and is_filled(spark, lake, layer)):
        raise LossError(
            f"the checkpoint {checkpoint} is new, but the {layer} tables already hold data: running on would write "
            "everything twice",
            way_on(layer),
        )


def is_filled(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Whether the layer has taken in anything, by its tables alone."""
    return any(lake.reader(spark).any(table) for table in FILLED.get(layer, ()))


def rebuild_journal(settings: Settings, layer: str = SILVER) -> Path:
    """What is left to publish of a rebuild of silver, or of a processor, while it is being published."""
    return Path(f"{settings.checkpoint(layer)}.publishing.json")


def refuse_interrupted_rebuild(settings: Settings) -> None:
    """Stops a job that writes or follows silver while some of its tables are rebuilt and others are not.

    Raises:
        LakeError: a publication has stopped half-way.
    """
    if rebuild_journal(settings).exists():
        raise LakeError(interrupted_rebuild("silver", "silver"))
    refuse_half_changed(settings)


def interrupted_rebuild(made: str, target: str) -> str:
    """What a command says that cannot work while a rebuild is half published.

    Args:
        made: the layer or table that is being replaced.
        target: what `sessionlake rebuild` calls it.
    """
    return (
        f"a rebuild of {made} was interrupted while it replaced the tables, which may be of two versions: "
        f"run `sessionlake rebuild {target}`, which finishes it. `sessionlake rebuild {target} --cancel` gives it up "
        f"as long as no table was replaced; `sessionlake rebuild {target} --start-over` builds everything again from "
        "bronze if its files are damaged"
    )


def forget_journal(settings: Settings) -> Path:
    """What is left to do of a session that is being forgotten."""
    return Path(f"{settings.checkpoint('forgetting')}.json")


def reshard_journal(settings: Settings) -> Path:
    """Which layers' states are yet to come into another number of shards, while they do."""
    return Path(f"{settings.checkpoint('resharding')}.json")


def refuse_half_changed(settings: Settings) -> None:
    """Stops a job while some states, or tables, have changed and others have yet to.

    Raises:
        LakeError: the forgetting of a session, or a resharding, has stopped half-way.
    """
    if forget_journal(settings).exists():
        raise LakeError(_FORGETTING)
    _refuse_interrupted_resharding(settings)


def refuse_before_erasure(settings: Settings) -> None:
    """As `refuse_half_changed`, for what builds tables again from bronze.

    It may work while a session is being forgotten whose messages in bronze are erased: what is built has none of it.

    Raises:
        LakeError: the forgetting of a session has stopped before that, or a resharding half-way.
    """
    if forget_journal(settings).exists() and BRONZE not in _steps_done(forget_journal(settings)):
        raise LakeError(_FORGETTING)
    _refuse_interrupted_resharding(settings)


def _refuse_interrupted_resharding(settings: Settings) -> None:
    if (journal := reshard_journal(settings)).exists():
        shards = _noted(journal).get("shards", "N")
        raise LakeError(
            f"a resharding was interrupted, so layers may have different numbers of shards: run `sessionlake reshard "
            f"{shards}`, which finishes it. `sessionlake reshard {shards} --cancel` leaves the other layers as they are"
        )


_FORGETTING = (
    "the forgetting of a session was interrupted, so tables may still hold it: run `sessionlake forget --resume`, "
    "which finishes it. `sessionlake forget --cancel` gives it up as long as nothing was erased"
)


def _steps_done(journal: Path) -> Collection[str]:
    done = _noted(journal).get("done")
    return done if isinstance(done, dict) else ()


def _noted(journal: Path) -> dict[str, Any]:
    """What a journal says; nothing if it is damaged, of which the command that it belongs to tells."""
    try:
        return msgspec.json.decode(journal.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def read_journal(file: Path, kind: type[T], remedy: str) -> T | None:
    """What an operation has noted of itself; None if none is under way.

    Args:
        remedy: what to do about a note that is damaged.

    Raises:
        LossError: the note cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise LossError(
            f"{file} cannot be read ({error}): it says what is left to do of an operation", remedy
        ) from None


def refuse_half_committed(settings: Settings, layer: str) -> None:
    """Stops what takes a layer's tables for those of whole batches.

    Raises:
        LakeError: a batch died between two of its tables.
    """
    half = begun(settings, layer)
    if half is not None:
        raise LakeError(
            f"{layer} was interrupted while it committed batch {half.batch}: finish it first with "
            f"`sessionlake run {layer} --once`"
        )


class Begun(msgspec.Struct):
    """A batch that is being committed, or was when its process died.

    Attributes:
        config_hash: of what decides its results.
        offsets: topic, partition, first and last offset of what it took in.
        judged_by: the hash of what decides how messages are judged.
    """

    batch: int
    config_hash: str
    offsets: list[tuple[str, int, int, int]]
    judged_by: str = ""


_FINISHED_BY_HAND = (
    "Put the file back from a backup. Without one, see to it that the settings are those of the last run, remove it "
    "and run again: the batch is finished by them"
)


@contextmanager
def committing(
    settings: Settings, layer: str, batch: int, config_hash: str, offsets: Sequence[OffsetRange]
) -> Iterator[None]:
    """Notes, while a batch is committed table by table, what it is made by.

    A batch that died between two tables is made once more, and skips the tables that have it: they must fit together.
    So must its state and all of them, where it died before its query had noted that it is done: messages must be judged
    by the same settings. A processor's class may be a newer one from that batch on.

    Raises:
        LakeError: it was begun under other settings, or what it was begun under cannot be read.
    """
    judged_by = hash_of(settings, SILVER)
    half, done = notes(settings, layer)
    if half is not None and half.batch == batch and half.config_hash != config_hash:
        raise _changed(layer, batch, half.config_hash, config_hash)
    if done is not None and done.batch == batch and done.judged_by != judged_by:
        raise _changed(layer, batch, done.judged_by, judged_by)
    note = _begun(settings, layer)
    spans = [(item.topic, item.partition, item.first, item.last) for item in offsets]
    storage_of(settings).require_claims()  # the note may be that of whoever has taken the layer over
    write_whole(note, msgspec.json.encode(Begun(batch, config_hash, spans, judged_by)))
    yield
    note.replace(_done(settings, layer))


def _changed(layer: str, batch: int, before: str, now: str) -> LakeError:
    return LakeError(
        f"{layer} was interrupted while it committed batch {batch}, and its settings have changed since (config_hash "
        f"{before}, now {now}): finish it with those of before (--once), then change them"
    )


def notes(settings: Settings, layer: str) -> tuple[Begun | None, Begun | None]:
    """What is noted of the batch that a layer is committing, as by `begun`, and of the last that is in all tables.

    Raises:
        LossError: a note cannot be read.
    """
    return begun(settings, layer), _read(_done(settings, layer), layer)


def begun(settings: Settings, layer: str) -> Begun | None:
    """The batch that a layer is committing, or was when its process died.

    Raises:
        LossError: its note cannot be read.
    """
    return _read(_begun(settings, layer), layer)


def _read(note: Path, layer: str) -> Begun | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Begun)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise LossError(
            f"{layer}: {note} cannot be read ({error}): it says which batch was half committed, and by which settings",
            (f"{way_on(layer)}. Or by hand: " if layer == SILVER else "") + _FINISHED_BY_HAND,
        ) from None


def forget_begun(settings: Settings, layer: str) -> None:
    """Removes the note of a batch, of which no table has anything any more."""
    for note in (_begun(settings, layer), _done(settings, layer)):
        note.unlink(missing_ok=True)


def _begun(settings: Settings, layer: str) -> Path:
    return Path(f"{settings.checkpoint(layer)}.committing.json")


def _done(settings: Settings, layer: str) -> Path:
    """What the last batch was made by that is in all tables; whether its query knows, is not known."""
    return Path(f"{settings.checkpoint(layer)}.committed.json")


def refuse_removed_history(reader: TableReader, settings: Settings) -> None:
    """Stops a job that would fold sessions from their first change on, of which changes are gone.

    Raises:
        LakeError: a topic has become one of class `once` since retention has removed changes of it.
    """
    found = cut_of(reader, CHANGES)
    if found is None:
        return
    rules = RuleBook(settings.capture)
    for (topic,) in sorted(reader.counts(RETAINED, ["topic"], ("table", eq, CHANGES), ("limit", ge, 0))):
        if rules.of(topic).integrity is Integrity.ONCE:
            raise LakeError(
                f"topic {topic} is of class once, whose sessions are folded from their first change on, but "
                f"{found.since}: set the class back"
            )
