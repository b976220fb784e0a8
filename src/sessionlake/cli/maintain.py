"""`sessionlake maintain`: what was merged and removed, table by table."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.show import OutputFormat, show
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import UsageError
from sessionlake.operations.maintenance import CLAIM, Maintained, Maintenance
from sessionlake.settings.model import Settings
from sessionlake.streaming.aside import asked, stand_aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("table", "files_before", "files_after", "removed_files", "freed_bytes", "removed_rows", "waits")


def maintain_once(spark: SparkSession, settings: Settings, table: str | None, form: OutputFormat) -> None:
    """Does what there is to do, and shows it: one row a table; what is empty was not to be done.

    Raises:
        ClaimedError: another process maintains the tables, or forgets a session.
        UsageError: there is no such table.
    """
    with Lake(settings).storage.claim(spark, CLAIM, "maintains the tables"):
        done = list(Maintenance(spark, settings).once(table))
    show(COLUMNS, [_row(one) for one in done], form)


def purge_vectors(settings: Settings, table: str, form: OutputFormat) -> None:
    """Rewrites files of a table that have marked rows, once, and shows how many those were.

    Raises:
        ClaimedError: another process maintains the tables, or forgets a session.
        UsageError: there is no such table, or it is in a catalog.
    """
    lake = Lake(settings)
    if lake.storage.needs_spark:
        lake.storage.purge_vectors(table)  # which says what to do there
    known = [name for name in [*TABLES, *settings.own_tables] if lake.storage.exists(None, name)]
    if table not in known:
        raise UsageError(f"maintain: there is no table {table!r}; there are: {', '.join(known) or 'none yet'}")
    with lake.storage.claim(None, CLAIM, "maintains the tables"):
        rewritten = lake.storage.purge_vectors(table)
    show(("table", "files_rewritten"), [(table, rewritten)], form)


def maintain(
    spark: SparkSession,
    settings: Settings,
    table: str | None,
    stop: threading.Event,
    say: Say,
) -> None:
    """Goes on until `stop` is set; stands aside as long as somebody asks for it.

    Args:
        say: told what is done, in words.
    """

    def tell(done: Maintained) -> None:
        if text := told(done):
            say(text)

    say(f"maintaining {table or 'all tables'} of {settings.place}; Ctrl-C stops")
    while not stop.is_set():
        if why := asked(settings):
            stand_aside(settings, stop, why, say)
            continue
        with Lake(settings).storage.claim(spark, CLAIM, "maintains the tables"):
            Maintenance(spark, settings, tell).watch(stop, table)
    say("stopped")


def told(done: Maintained) -> str:
    """What was done, in words; empty for nothing."""
    parts = []
    if done.compacted is not None:
        parts.append(f"{done.compacted.before} files, now {done.compacted.after}")
    if done.vacuumed is not None:
        parts.append(f"{done.vacuumed.files} files removed, {done.vacuumed.freed} bytes freed")
    if done.rows:
        parts.append(f"{done.rows} old rows removed")
    return f"{done.table}: {'; '.join(parts)}" if parts else ""


def _row(done: Maintained) -> tuple[object, ...]:
    files = (None, None) if done.compacted is None else (done.compacted.before, done.compacted.after)
    freed = (None, None) if done.vacuumed is None else (done.vacuumed.files, done.vacuumed.freed)
    return (done.table, *files, *freed, done.rows or None, done.waits)
