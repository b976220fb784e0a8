"""`sessionlake recover bronze`: a new generation of bronze's checkpoint, which goes on behind what its table holds.

Where bronze stands is said three times: by its checkpoint, by the ledger, and by the table itself. So what the table
has and the ledger has not is written into the ledger, which is where a new generation takes its starting offsets from.
Nothing is read twice, and nothing passed over. Killed at any point, it can be run again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import eq
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from sessionlake.bronze.job import LAYER, bronze_ledger_entry, require_current_checkpoint, stored_ranges_after
from sessionlake.bronze.silences import silences_file
from sessionlake.bronze.subscription import QueryOffsets
from sessionlake.delta.commit import fence_off
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.entries import RECOVERED, Ledger, OffsetRange
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import last_batch
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import Generation, Generations, require_whole
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from sessionlake.streaming.journal import Journal
from sessionlake.streaming.losses import first_loss, refuse_lost_files, refuse_lost_tables, require_logs
from sessionlake.streaming.operation import RECOVER_BRONZE
from sessionlake.streaming.set_back import refuse_set_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Inputs(msgspec.Struct):
    """What the recovery goes by.

    Attributes:
        app_id: the query's id, which nothing may say any more where the checkpoint and the ledger are lost.
    """

    app_id: str


@dataclass(frozen=True)
class RecoveredBronze:
    """The outcome.

    Attributes:
        found: what was wrong with the checkpoint; None if nothing can be seen.
        booked: messages that the table had, and the ledger had not.
        generation: of the checkpoint, that the next start begins.
        batch: the number of its first batch.
    """

    found: str | None
    booked: int
    generation: int
    batch: int


def recover(spark: SparkSession, settings: Settings) -> RecoveredBronze:
    """Begins a new generation behind what the table holds.

    Raises:
        LakeError: there is no bronze.
        LossError: `bronze.messages` is gone or was set back, or files of it or of the ledger are gone.
        OffsetHoleError: the table lacks messages behind those that the ledger knows, or has some more than once.
    """
    lake = Lake(settings)
    if settings.bronze.source is not SourceKind.KAFKA:
        raise LakeError(
            f"bronze reads {settings.bronze.source}: put its checkpoint back from a backup; without one, "
            "capture into another home: the source still has its messages"
        )
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES])
    if not lake.exists(spark, MESSAGES):
        raise LakeError(f"there is no bronze in {settings.place}: `sessionlake run bronze` begins one")
    require_logs(spark, lake, [MESSAGES, LEDGER])
    lake.ensure(spark, [MESSAGES, LEDGER])
    for table in (MESSAGES, LEDGER):
        refuse_lost_files(spark, lake, table)
    refuse_set_back(spark, lake, [MESSAGES])
    found = first_loss(lambda: _require_sound(spark, lake, settings))
    generations = Generations(settings.checkpoint(LAYER), LAYER)
    app_id, number, booked = end_query(spark, lake, settings)
    silences_file(settings).unlink(missing_ok=True)  # the table may be older than they are
    begun = begin_generation(settings, generations, number + 1, app_id)
    return RecoveredBronze(found, booked, begun.number, begun.first_batch)


def end_query(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[str, int, int]:
    """Ends the present generation: nothing of what it has planned comes into the table any more.

    Returns:
        the query's id, the last number that no batch may have, and how many messages the ledger did not know of.
    """
    app_id, known = _last_known(spark, lake, settings)
    _unbooked(spark, lake, settings)  # what is refused, is refused before anything changes
    Journal.begin(settings, RECOVER_BRONZE, _Inputs(app_id))  # bronze does not start until another generation has begun
    fault_point("after:bronze.held")
    number = _retired(spark, lake, app_id, known)
    fault_point("after:bronze.retired")
    return app_id, number, _book(spark, lake, settings, Txn(app_id, number - 1))


def begin_generation(settings: Settings, generations: Generations, first_batch: int, app_id: str) -> Generation:
    """Begins the generation that bronze goes on in, after `end_query`."""
    begun = generations.begin(first_batch, app_id)
    RECOVER_BRONZE.file(settings).unlink()
    return begun


def _require_sound(spark: SparkSession, lake: Lake, settings: Settings) -> None:
    """Returns if nothing is wrong with the checkpoint that can be seen from outside."""
    checkpoint = settings.checkpoint(LAYER)
    require_whole(checkpoint, LAYER)
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    present = Generations(checkpoint, LAYER).present
    require_current_checkpoint(spark, lake, present)
    if present.newest is not None:
        QueryOffsets(present.folder).start()


def _last_known(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[str, int]:
    """The query's id, and the last batch that the ledger or the checkpoint knows; 0 if they know none.

    So an entry of what they do not know has a number, too.
    """
    reader = lake.reader(spark)
    entries = list(to_dicts(LedgerReader(reader).entries(("layer", eq, LAYER))))
    latest = max(entries, key=lambda entry: entry["committed_at"], default=None)
    of_checkpoint, planned = Generations(settings.checkpoint(LAYER), LAYER).survey()
    interrupted = Journal.read(settings, RECOVER_BRONZE, _Inputs)
    of_checkpoint = of_checkpoint if interrupted is None else interrupted.inputs.app_id
    app_id = of_checkpoint if latest is None else latest["app_id"]
    recorded = -1 if app_id is None else last_batch(reader, LAYER, app_id)
    return app_id or str(uuid4()), max(planned, recorded or 0, 0)


def _retired(spark: SparkSession, lake: Lake, app_id: str, known: int) -> int:
    """The first number behind all batches that the table has, retired: so none that was planned comes in any more.

    Numbers that were planned and given up are in neither ledger nor table; that of a batch which died before its ledger
    row is in the table alone. Of a number that the table knows, or of one before it, Delta makes no commit.
    """
    number, written = known, False
    while not written:
        number += 1
        before = lake.latest_version(spark, MESSAGES)
        fence_off(spark, lake, [MESSAGES], Txn(app_id, number))
        come = lake.latest_version(spark, MESSAGES) - before
        # A platform that merges files commits as well.
        found = lake.storage.latest_commits(spark, MESSAGES, come) if come else []
        written = any(commit.operation == "WRITE" for commit in found)
    return number


def has_unbooked(spark: SparkSession, lake: Lake) -> bool:
    """Whether the table has messages that the ledger does not know."""
    return bool(stored_ranges_after(spark, lake, OffsetLog.load(spark, lake, LAYER).last_offsets))


def _unbooked(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[OffsetRange, ...]:
    """The offsets of messages that the ledger does not know.

    Raises:
        OffsetHoleError: the table lacks some of them, or has some more than once.
    """
    log = OffsetLog.load(spark, lake, LAYER)
    ranges = stored_ranges_after(spark, lake, log.last_offsets)
    if ranges:
        log.check(ranges, allow_gaps=settings.allows_offset_gaps, layer=LAYER)
    return ranges


def _book(spark: SparkSession, lake: Lake, settings: Settings, txn: Txn) -> int:
    """Gives messages that the ledger does not know an entry of their own; returns how many they are."""
    ranges = _unbooked(spark, lake, settings)
    if not ranges:
        return 0
    version = lake.latest_version(spark, MESSAGES)
    entry = replace(
        bronze_ledger_entry(settings, txn, ranges, version, datetime.now(UTC)), source=RECOVERED, config_hash=""
    )
    # A ledger that was emptied remembers the transactions of its former entries.
    Ledger(lake).write(spark, entry, Txn(f"{txn.app_id}:{RECOVERED}", txn.version))
    return entry.messages
