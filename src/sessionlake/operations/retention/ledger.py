"""Old entries of the ledger: their sums are carried forward in `ops.positions`, then they are removed."""

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
from sessionlake.delta.storage.expired import Expired
from sessionlake.delta.storage.reading import TableReader
from sessionlake.ledger.books import LedgerReader, stored_sums
from sessionlake.ledger.positions import carry_forward
from sessionlake.ledger.progress import batches_after, last_merged_batch
from sessionlake.ledger.retained import Retained, read_head, record_retained
from sessionlake.settings.model import Settings
from sessionlake.streaming.set_back import refuse_set_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cut_ledger(spark: SparkSession, lake: Lake, bound: datetime) -> int:
    """Removes the entries from before a moment that nobody needs one by one; returns how many.

    The retention's claim must be held.
    """
    reader = lake.reader(spark)
    before = read_head(reader, LEDGER) or Retained(LEDGER, bound)
    if before.pending:  # a process died
        before = replace(_finished(spark, lake, before), pending=0)
    cut = due(reader, lake.settings, bound)
    if cut is None or not (count := lake.storage.count_rows(spark, LEDGER, _older(cut))):
        return 0
    refuse_set_back(spark, lake, [RETAINED])
    now = replace(before, before=cut, pending=count)
    record_retained(spark, lake, now)
    carry_forward(spark, lake, cut)
    remove_rows(spark, lake, LEDGER, _older(cut))
    record_retained(spark, lake, replace(now, removed=now.gone, pending=0))
    return count


def _finished(spark: SparkSession, lake: Lake, before: Retained) -> Retained:
    """What is gone behind a cut that was interrupted, which goes on only if sums stand for what it removes."""
    if stored_sums(lake.reader(spark)).removed_before != before.before:
        return before
    remove_rows(spark, lake, LEDGER, _older(before.before))
    return replace(before, removed=before.gone)


def due(reader: TableReader, settings: Settings, bound: datetime) -> datetime | None:
    """The moment from before which entries may go; None where it is before that of the last cut.

    A clock that was set back brings such a one: of what is gone since, nothing would be left to sum up.

    Args:
        bound: no later than this.
    """
    cut, last = min(_needed(reader, settings, bound)), stored_sums(reader).removed_before
    return None if last is not None and cut < last else cut


def _needed(reader: TableReader, settings: Settings, bound: datetime) -> list[datetime]:
    """The bound, and when those were committed that are asked for one by one.

    These are the last of each layer, and what is yet to be merged.
    """
    layers = (BRONZE, SILVER, SILVER_TABLES, GOLD, *(processor.layer for processor in settings.processors))
    found = [bound]
    for layer in layers:
        times = [
            pc.max(part.column("committed_at")).as_py() for part in LedgerReader(reader).entries(("layer", eq, layer))
        ]
        found += [max(known)] if (known := [time for time in times if time is not None]) else []
    return found + [row["committed_at"] for row in batches_after(reader, SILVER, last_merged_batch(reader))]


def _older(cut: datetime) -> Expired:
    last = cut - timedelta(microseconds=1)
    limits = pa.table({"limit": pa.array([last], pa.timestamp("us", tz="UTC"))})
    return Expired((), "committed_at", limits, {"committed_at": last})
