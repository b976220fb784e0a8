"""`sessionlake recover bronze`: starts a new generation of bronze's checkpoint, after the last message in its table.

Three places say how far bronze has read: its checkpoint, the ledger, and the table itself. So messages that the table
has and the ledger lacks are first recorded in the ledger. A new generation of the checkpoint then starts at the offsets
in the ledger, so that no message is read twice or skipped. The command can be repeated after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import eq
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from sessionlake.bronze.batch_ranges import read_stored_ranges_after_offsets
from sessionlake.bronze.job import (
    LAYER,
    build_bronze_ledger_entry,
    refuse_outdated_checkpoint,
)
from sessionlake.bronze.silences import find_silences_file
from sessionlake.bronze.subscription import CheckpointOffsets
from sessionlake.delta.commit import make_delta_skip_transaction
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.entries import RECOVERED, Ledger, OffsetRange
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.settings.kafka import MessageSourceKind
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import CheckpointGeneration, CheckpointGenerations, require_intact_checkpoint
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.journal import OperationJournal
from sessionlake.streaming.losses import (
    find_first_loss_error,
    refuse_lost_files,
    refuse_lost_tables,
    require_readable_logs,
)
from sessionlake.streaming.operation import RECOVER_BRONZE
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _RecoveryJournalInputs(msgspec.Struct):
    """The input of the recovery, as the journal stores it.

    Attributes:
        app_id: The id of bronze's query. If the checkpoint and the ledger are lost, it is stored nowhere else.
    """

    app_id: str


@dataclass(frozen=True)
class BronzeRecoveryResult:
    """The result of `sessionlake recover bronze`.

    Attributes:
        found: A text that says what was wrong with the checkpoint; None if no fault was found.
        unrecorded: The number of messages that the table had and the ledger lacked. They are in the ledger now.
        generation: The number of the checkpoint's new generation.
        batch: The number of the first batch in the new generation.
    """

    found: str | None
    unrecorded: int
    generation: int
    batch: int


def recover_bronze(spark: SparkSession, settings: Settings) -> BronzeRecoveryResult:
    """Starts a new generation of bronze's checkpoint, after the last message in `bronze.messages`.

    Raises:
        LakeError: Bronze does not exist, or does not read Kafka.
        DataLossError: `bronze.messages` is gone or was restored to an older version, or files of it or of the ledger
            are gone.
        OffsetHoleError: After the messages that the ledger knows, the table lacks messages, or has some twice.
    """
    lake = Lake(settings)
    if settings.bronze.source is not MessageSourceKind.KAFKA:
        raise LakeError(
            f"recover bronze: bronze.source is {settings.bronze.source}, and only a checkpoint for "
            "Kafka can be made again",
            fix="Restore the checkpoint from a backup. Without a backup, capture into another home "
            "(SESSIONLAKE_HOME), if the source still has its messages",
        )
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES])
    if not lake.exists(spark, MESSAGES):
        raise LakeError(
            f"recover bronze: {settings.lake_location} has no bronze.messages, so bronze has not run there",
            fix="Set SESSIONLAKE_HOME to the home of the lake. For a new lake, run `sessionlake run bronze`",
        )
    require_readable_logs(spark, lake, [MESSAGES, LEDGER])
    lake.create_or_update_tables(spark, [MESSAGES, LEDGER])
    for table in (MESSAGES, LEDGER):
        refuse_lost_files(spark, lake, table)
    refuse_restored_tables(spark, lake, [MESSAGES])
    fault = find_first_loss_error(lambda: _require_usable_checkpoint(spark, lake, settings))
    generations = CheckpointGenerations(settings.checkpoint_path(LAYER), LAYER)
    app_id, number, unrecorded = end_bronze_query(spark, lake, settings)
    find_silences_file(settings).unlink(missing_ok=True)  # the table may be older than this file of silences
    generation = start_recovered_checkpoint(settings, generations, number + 1, app_id)
    return BronzeRecoveryResult(fault, unrecorded, generation.number, generation.first_batch)


def end_bronze_query(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[str, int, int]:
    """Ends the present generation of bronze's checkpoint: none of its planned batches can be committed any more.

    Returns:
        The query's id, the last batch number that must not be used again, and the number of messages that the table had
        and the ledger lacked. They are in the ledger now.
    """
    app_id, known = _read_query_id_and_last_batch(spark, lake, settings)
    _find_ranges_missing_in_ledger(spark, lake, settings)  # raises its errors before anything changes
    OperationJournal.create_journal(
        settings, RECOVER_BRONZE, _RecoveryJournalInputs(app_id)
    )  # bronze cannot start until the new generation exists
    inject_fault_if_requested("after:bronze.held")
    number = _make_delta_skip_planned_batches(spark, lake, app_id, known)
    inject_fault_if_requested("after:bronze.retired")
    return app_id, number, _add_missing_messages_to_ledger(spark, lake, settings, Txn(app_id, number - 1))


def start_recovered_checkpoint(
    settings: Settings, generations: CheckpointGenerations, first_batch: int, app_id: str
) -> CheckpointGeneration:
    """Starts a fresh checkpoint folder, with which bronze resumes. Call `end_bronze_query` first.

    Args:
        generations: Creates the folder.
        first_batch: The number of the first batch in that folder.
        app_id: The id under which Delta records the transactions of bronze's query.
    """
    generation = generations.create_next_generation(first_batch, app_id)
    RECOVER_BRONZE.find_journal_file(settings).unlink()
    return generation


def _require_usable_checkpoint(spark: SparkSession, lake: Lake, settings: Settings) -> None:
    """Checks bronze's checkpoint, as far as that is possible without starting its query.

    Raises the error of the first fault.
    """
    checkpoint = settings.checkpoint_path(LAYER)
    require_intact_checkpoint(checkpoint, LAYER)
    refuse_new_checkpoint_over_data(spark, lake, settings, LAYER)
    present = CheckpointGenerations(checkpoint, LAYER).current_generation
    refuse_outdated_checkpoint(spark, lake, present)
    if present.last_planned_batch is not None:
        CheckpointOffsets(present.folder).read_next_batch_start()


def _read_query_id_and_last_batch(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[str, int]:
    """Returns the query's id, and the highest batch number in the ledger and checkpoint; 0 if there is none."""
    reader = lake.reader(spark)
    entries = list(iterate_rows_as_dicts(LedgerReader(reader).read_entries(("layer", eq, LAYER))))
    latest = max(entries, key=lambda entry: entry["committed_at"], default=None)
    of_checkpoint, planned = CheckpointGenerations(
        settings.checkpoint_path(LAYER), LAYER
    ).read_last_known_app_id_and_batch()
    interrupted = OperationJournal.read_journal(settings, RECOVER_BRONZE, _RecoveryJournalInputs)
    of_checkpoint = of_checkpoint if interrupted is None else interrupted.inputs.app_id
    app_id = of_checkpoint if latest is None else latest["app_id"]
    recorded = -1 if app_id is None else read_last_batch_number(reader, LAYER, app_id)
    return app_id or str(uuid4()), max(planned, recorded or 0, 0)


def _make_delta_skip_planned_batches(spark: SparkSession, lake: Lake, app_id: str, last_known_batch: int) -> int:
    """Makes `bronze.messages` reject all batches that the ended query has planned.

    It makes an empty commit with one batch number after the other, until Delta accepts one. Delta ignores a number that
    the table has already, or a lower one. This also finds a batch that is in the table but not in the ledger.

    Returns:
        The accepted number: the last one that must not be used again.
    """
    number, written = last_known_batch, False
    while not written:
        number += 1
        before = lake.latest_version(spark, MESSAGES)
        make_delta_skip_transaction(spark, lake, [MESSAGES], Txn(app_id, number))
        new_versions = lake.latest_version(spark, MESSAGES) - before
        # A platform that merges files by itself commits as well, but not as WRITE.
        commits = lake.storage.latest_commits(spark, MESSAGES, new_versions) if new_versions else []
        written = any(commit.operation == "WRITE" for commit in commits)
    return number


def has_messages_missing_in_ledger(spark: SparkSession, lake: Lake) -> bool:
    """Returns True if `bronze.messages` has messages that the ledger lacks."""
    return bool(
        read_stored_ranges_after_offsets(spark, lake, OffsetLog.load_from_ledger(spark, lake, LAYER).last_offsets)
    )


def _find_ranges_missing_in_ledger(spark: SparkSession, lake: Lake, settings: Settings) -> tuple[OffsetRange, ...]:
    """Returns the offset ranges of the messages that `bronze.messages` has and the ledger lacks.

    Raises:
        OffsetHoleError: Offsets are missing in these ranges, or some are in the table twice.
    """
    log = OffsetLog.load_from_ledger(spark, lake, LAYER)
    ranges = read_stored_ranges_after_offsets(spark, lake, log.last_offsets)
    if ranges:
        log.require_consecutive_ranges(ranges, allow_gaps=settings.allows_offset_gaps, layer=LAYER)
    return ranges


def _add_missing_messages_to_ledger(spark: SparkSession, lake: Lake, settings: Settings, txn: Txn) -> int:
    """Adds a ledger entry for the messages that the ledger lacks. Returns the number of these messages."""
    ranges = _find_ranges_missing_in_ledger(spark, lake, settings)
    if not ranges:
        return 0
    version = lake.latest_version(spark, MESSAGES)
    entry = replace(
        build_bronze_ledger_entry(settings, txn, ranges, version, datetime.now(UTC)), source=RECOVERED, config_hash=""
    )
    # A ledger that was emptied still rejects the transactions of its former entries, so this entry needs another id.
    Ledger(lake).write_entry(spark, entry, Txn(f"{txn.app_id}:{RECOVERED}", txn.version))
    return entry.messages
