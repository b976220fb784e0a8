"""`sessionlake maintain`: maintains the tables, and reports what was merged and removed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import UsageError
from sessionlake.operations.maintenance import CLAIM, TableMaintainer, TableMaintenanceResult
from sessionlake.settings.model import Settings
from sessionlake.streaming.pause_requests import read_pause_reason, wait_while_paused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("table", "files_before", "files_after", "removed_files", "freed_bytes", "removed_rows", "waits")


def maintain_once(spark: SparkSession, settings: Settings, table: str | None, form: OutputFormat) -> None:
    """Maintains one table or all tables once, and shows one row per table. An empty cell: there was nothing to do.

    Args:
        spark: The Spark session.
        settings: The configuration.
        table: Name of the table; None for all.
        form: The format of the output.

    Raises:
        ClaimedByOtherProcessError: Another process maintains the tables, or forgets a session.
        UsageError: The lake has no such table.
    """
    with Lake(settings).storage.hold_exclusive_claim(spark, CLAIM, "maintains the tables"):
        done = list(TableMaintainer(spark, settings).maintain_tables_once(table))
    show_rows(COLUMNS, [_list_maintenance_cells(one) for one in done], form)


def rewrite_files_with_deletion_vectors(settings: Settings, table: str, form: OutputFormat) -> None:
    """Rewrites those files of a table that have deletion vectors, and shows how many they were.

    Raises:
        ClaimedByOtherProcessError: Another process maintains the tables, or forgets a session.
        UsageError: The lake has no such table, or the table is in a catalog.
    """
    lake = Lake(settings)
    if lake.storage.needs_spark:
        lake.storage.purge_deletion_vectors(table)  # raises the error that says what to do in a catalog
    known = [name for name in [*TABLES, *settings.added_table_names] if lake.storage.exists(None, name)]
    if table not in known:
        raise UsageError(
            f"maintain: there is no table {table!r}",
            fix=f"Name one of the tables of this lake: {', '.join(known) or 'none yet'}",
        )
    with lake.storage.hold_exclusive_claim(None, CLAIM, "maintains the tables"):
        rewritten = lake.storage.purge_deletion_vectors(table)
    show_rows(("table", "files_rewritten"), [(table, rewritten)], form)


def maintain_until_stopped(
    spark: SparkSession,
    settings: Settings,
    table: str | None,
    stop: threading.Event,
    say: Say,
) -> None:
    """Maintains one table or all tables (None) until `stop` is set. Pauses while another process asks for a pause."""

    def report_maintained_table(done: TableMaintenanceResult) -> None:
        if text := describe_maintenance(done):
            say(text)

    say(f"maintaining {table or 'all tables'} of {settings.lake_location}; Ctrl-C stops")
    while not stop.is_set():
        if why := read_pause_reason(settings):
            wait_while_paused(settings, stop, why, say)
            continue
        with Lake(settings).storage.hold_exclusive_claim(spark, CLAIM, "maintains the tables"):
            TableMaintainer(spark, settings, report_maintained_table).maintain_until_stopped(stop, table)
    say("stopped")


def describe_maintenance(done: TableMaintenanceResult) -> str:
    """Returns in words what maintenance did to a table; empty if it did nothing."""
    parts = []
    if done.compacted is not None:
        parts.append(f"{done.compacted.before} files, now {done.compacted.after}")
    if done.vacuumed is not None:
        parts.append(f"{done.vacuumed.files} files removed, {done.vacuumed.freed} bytes freed")
    if done.rows:
        parts.append(f"{done.rows} old rows removed")
    return f"{done.table}: {'; '.join(parts)}" if parts else ""


def _list_maintenance_cells(done: TableMaintenanceResult) -> tuple[object, ...]:
    files = (None, None) if done.compacted is None else (done.compacted.before, done.compacted.after)
    freed = (None, None) if done.vacuumed is None else (done.vacuumed.files, done.vacuumed.freed)
    return (done.table, *files, *freed, done.rows or None, done.waits)
