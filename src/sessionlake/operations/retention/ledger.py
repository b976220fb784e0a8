"""Removes old entries of the ledger. Before that, it adds their sums per layer to `ops.positions`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from operator import eq
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, LEDGER, RETAINED, SILVER, SILVER_TABLES
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.reading import TableReader
from sessionlake.ledger.books import LedgerReader, read_stored_sums
from sessionlake.ledger.positions import write_sums_of_old_entries
from sessionlake.ledger.progress import read_last_merged_batch_number, read_ledger_entries_after_batch
from sessionlake.ledger.retained import RetentionRecord, read_removal_record_of_table, store_removal_record
from sessionlake.settings.model import Settings
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def remove_old_ledger_entries(spark: SparkSession, lake: Lake, keep_since: datetime) -> int:
    """Removes old ledger entries that are not needed singly. Returns the number of entries removed.

    This process must hold the claim `retention`. Entries committed at `keep_since` or later stay.
    """
    reader = lake.reader(spark)
    before = read_removal_record_of_table(reader, LEDGER) or RetentionRecord(LEDGER, keep_since)
    if before.pending:  # a process died during an earlier removal
        before = replace(_finish_interrupted_removal(spark, lake, before), pending=0)
    cut = find_end_of_removable_entries(reader, lake.settings, keep_since)
    if cut is None or not (count := lake.storage.count_rows(spark, LEDGER, _select_entries_before(cut))):
        return 0
    refuse_restored_tables(spark, lake, [RETAINED])
    now = replace(before, before=cut, pending=count)
    store_removal_record(spark, lake, now)
    write_sums_of_old_entries(spark, lake, cut)
    remove_rows(spark, lake, LEDGER, _select_entries_before(cut))
    store_removal_record(spark, lake, replace(now, removed=now.max_missing_rows, pending=0))
    return count


def _finish_interrupted_removal(spark: SparkSession, lake: Lake, recorded: RetentionRecord) -> RetentionRecord:
    """Finishes an interrupted removal if the sums of its entries were stored. Else the entries stay in the ledger.

    Args:
        recorded: The row of `ops.retained` about the interrupted removal. It is returned with the number of entries
            that are removed now.
    """
    if read_stored_sums(lake.reader(spark)).removed_before != recorded.before:
        return recorded
    remove_rows(spark, lake, LEDGER, _select_entries_before(recorded.before))
    return replace(recorded, removed=recorded.max_missing_rows)


def find_end_of_removable_entries(reader: TableReader, settings: Settings, keep_since: datetime) -> datetime | None:
    """Returns the moment before which ledger entries may be removed; None if nothing may be removed now.

    It is None if an earlier removal has removed later entries, for example because the machine's clock was moved back
    since.

    Args:
        keep_since: Entries committed from this moment on are kept. The result is never later.
    """
    cut, last = (
        min(_read_commit_times_of_needed_entries(reader, settings, keep_since)),
        read_stored_sums(reader).removed_before,
    )
    return None if last is not None and cut < last else cut


def _read_commit_times_of_needed_entries(
    reader: TableReader, settings: Settings, keep_since: datetime
) -> list[datetime]:
    """Returns `keep_since`, and the commit times of all ledger entries that are still needed singly.

    These are the last entry of each layer, and the entries of silver's batches that are not merged yet.
    """
    layers = (BRONZE, SILVER, SILVER_TABLES, GOLD, *(processor.layer for processor in settings.processors))
    needed = [keep_since]
    for layer in layers:
        times = [
            pc.max(part.column("committed_at")).as_py()
            for part in LedgerReader(reader).read_entries(("layer", eq, layer))
        ]
        needed += [max(known)] if (known := [time for time in times if time is not None]) else []
    return needed + [
        row["committed_at"]
        for row in read_ledger_entries_after_batch(reader, SILVER, read_last_merged_batch_number(reader))
    ]


def _select_entries_before(end: datetime) -> ExpiredRowSelection:
    """Returns the selection of the ledger entries that were committed before `end`."""
    last = end - timedelta(microseconds=1)
    limits = pa.table({"limit": pa.array([last], pa.timestamp("us", tz="UTC"))})
    return ExpiredRowSelection((), "committed_at", limits, {"committed_at": last})
