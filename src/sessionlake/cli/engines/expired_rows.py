"""Tells which tables of a statement lack rows that retention has removed."""

from __future__ import annotations

from collections.abc import Collection

from sessionlake.delta.schemas.names import METRICS_BETWEEN
from sessionlake.delta.storage.reading import TableReader
from sessionlake.gold.aggregate.standard import TIERS
from sessionlake.gold.tables.expiry import describe_expiry, read_expiry_times
from sessionlake.settings.model import Settings


def describe_expired_rows(reader: TableReader, settings: Settings, names: Collection[str]) -> list[str]:
    """Returns a sentence for each table from which retention has removed rows that the statement would have read.

    Args:
        reader: Reads the lake's tables.
        settings: The configuration.
        names: The tables, views and functions that the statement reads.
    """
    kept = [one.table_name for one in settings.gold.products] + [tier.table_name for tier in TIERS]
    through = [tier.table_name for tier in TIERS] if f"gold.{METRICS_BETWEEN}" in names else []
    named = [table for table in kept if table in {*names, *through}]
    return [describe_expiry(table, floors) for table, floors in read_expiry_times(reader, named).items()]
