"""Ends what depends on tables that are replaced: the query that wrote them, and gold, which was computed from them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.commit import build_merge_app_id, delete_all_rows, make_delta_skip_transaction
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    CHANGES,
    GOLD,
    LATE_POINTS,
    LEDGER,
    LOOKUP_FAILURES,
    PRODUCTS,
    RESTATEMENTS,
    RULE_RESULTS,
    SENSOR_AVERAGES,
    SILVER,
)
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError
from sessionlake.gold.tables.table_properties import store_maintained_table_names
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.entries import Ledger, LedgerEntry, hash_settings_of_layers
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.guards import EVIDENCE_TABLES
from sessionlake.streaming.stores import archive_checkpoint_folders, build_archived_path

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession


def list_gold_tables(settings: Settings) -> tuple[str, ...]:
    """Returns all tables that gold writes."""
    standard = (AVERAGES, SENSOR_AVERAGES, RESTATEMENTS, LATE_POINTS, *PRODUCTS)
    return (*standard, *settings.gold.added_table_names, LOOKUP_FAILURES, *RULE_RESULTS)


def reject_later_commits_of_query(spark: SparkSession, lake: Lake, layer: str, tables: Iterable[str]) -> None:
    """Makes these tables reject later commits of a layer's present query, for example from a process that hangs."""
    token = lake.storage.get_fencing_token(layer)
    if token:
        for app_id in _read_query_ids_of_layer(spark, lake, layer):
            last, merges = (
                Txn.create_txn_with_maximum_version(app_id),
                Txn.build_txn_before_lease_holder(build_merge_app_id(app_id), token),
            )
            for txn in (last, last.txn_of_second_write, *([merges] if layer == SILVER else [])):
                make_delta_skip_transaction(spark, lake, (*tables, LEDGER), txn)


def _read_query_ids_of_layer(spark: SparkSession, lake: Lake, layer: str) -> set[str]:
    """Returns the id of a layer's present query, from its checkpoint.

    If the checkpoint is lost, returns the ids of all queries of the layer in the ledger.
    """
    try:
        app_id = CheckpointGenerations(lake.settings.checkpoint_path(layer), layer).current_generation.app_id
    except LakeError:
        app_id = None
    if app_id is not None:
        return {app_id}
    entries = iterate_rows_as_dicts(LedgerReader(lake.reader(spark)).read_entries(("layer", eq, layer)))
    return {entry["app_id"] for entry in entries if not entry["app_id"].startswith(REBUILD)}


def has_gold_unread_changes(spark: SparkSession, settings: Settings, lake: Lake) -> bool:
    """Returns True if gold has started, and has not read all changes of silver or has an unfinished batch.

    Gold finds unread changes by the numbers of silver's batches, which a rebuild of silver changes.
    """
    checkpoint = settings.checkpoint_path(GOLD)
    if read_last_planned_batch(Path(checkpoint)) is not None and read_last_committed_batch(checkpoint) is None:
        return True
    try:
        version = handover.read_last_processed_version(settings, GOLD)
        return version is not None and lake.read(spark, CHANGES, version).count() != lake.read(spark, CHANGES).count()
    except LakeError:
        return True


def empty_gold_to_recompute(
    spark: SparkSession, settings: Settings, lake: Lake, operation_id: str, batch: int, started_at: datetime
) -> None:
    """Empties gold, so that its next run computes it again. Safe to repeat after a crash.

    Gold must not start before all its tables are empty. Gold refuses to start with a new checkpoint while the ledger
    has its batches, or while the tables that every batch fills have rows. So these tables are emptied last.

    Args:
        operation_id: The id of the operation that empties gold, which names the archived checkpoint.
        batch: The batch number of the commits that empty the tables.
        started_at: When the operation started, for the ledger.
    """
    checkpoint = Path(settings.checkpoint_path(GOLD))
    known = sorted(list_gold_tables(settings), key=EVIDENCE_TABLES[GOLD].__contains__)
    known = [table for table in known if lake.exists(spark, table)]
    handed = handover.find_active_handover_folder(settings, GOLD)
    begins = checkpoint.exists() and not build_archived_path(checkpoint, operation_id).exists()
    if begins:
        reject_later_commits_of_query(spark, lake, GOLD, known)
    archive_checkpoint_folders(spark, lake, [checkpoint, handed] if begins else [handed], operation_id)
    inject_fault_if_requested("after:gold.aside")
    if AVERAGES in known:
        # A table that is not configured now stays as it is. If it is configured again later, gold rebuilds it.
        store_maintained_table_names(spark, lake, (table.removeprefix(f"{GOLD}.") for table in known))
    txn = Txn(f"{REBUILD}{operation_id}:{GOLD}", batch)
    for table in known:
        delete_all_rows(spark, lake, table, txn)
        inject_fault_if_requested(f"after:empty:{table}")
    if known:
        Ledger(lake).write_entry(
            spark, LedgerEntry(GOLD, txn, CHANGES, started_at, config_hash=hash_settings_of_layers(settings))
        )
