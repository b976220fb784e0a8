"""Maintains the tables: merges small files, and removes old rows, unused files and old log entries.

In the background it works on one table at a time, with pauses between them. Merging files does not change a table's
rows, and streams skip its commits. Rows, files and log entries are removed only if they are older than `maintain.keep`
and no layer, processor or publication still has to read them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.catalog.predictive import has_predictive_optimization, set_file_retention_property
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD, LEDGER, MESSAGES, SILVER
from sessionlake.delta.schemas.properties import RETENTION, format_interval, parse_interval
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.upkeep import CompactionResult, HistoryToKeep, VacuumResult
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.positions import update_ledger_sums
from sessionlake.operations.retention.removal import RetentionRunner
from sessionlake.settings.model import Settings
from sessionlake.spark.session import create_separate_session
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_delta_offset, read_last_committed_batch, read_last_planned_batch
from sessionlake.streaming.journal import read_bronze_version_of_rebuild
from sessionlake.streaming.pause_requests import read_pause_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PAUSED_SECONDS = 1.0
CLAIM = "maintain"
"""The name of the claim that lets one process merge or remove files.

Other processes must wait, for example while a table's history is removed.
"""


@dataclass(frozen=True)
class TableMaintenanceResult:
    """The result of maintaining one table.

    Attributes:
        table: The table's name.
        compacted: The result of merging small files; None if there were too few of them.
        vacuumed: The result of removing unused files; None if none were removed.
        rows: The number of old rows removed.
        waits: A text that says why rows or files could not be removed; empty if there was no obstacle.
    """

    table: str
    compacted: CompactionResult | None = None
    vacuumed: VacuumResult | None = None
    rows: int = 0
    waits: str = ""


@dataclass(frozen=True)
class ReadingStreamProgress:
    """A stream that reads a table, and its progress.

    Attributes:
        name: The stream's layer, processor or publication.
        has_started: True if the stream has planned a batch, or will start after the version of a rebuild.
        next_version: The table's version that the stream reads next. None if that is unknown, or if the stream still
            reads the table's first snapshot.
        last_start: The table's version at which the stream's last batch began; None if unknown. Spark lists the files
            of that batch again whenever the stream starts, although it does not read them.
    """

    name: str
    has_started: bool
    next_version: int | None = None
    last_start: int | None = None

    @property
    def oldest_needed_version(self) -> int | None:
        """The oldest version whose entry in the table's log the stream still needs; None if unknown."""
        return self.next_version if self.last_start is None else self.last_start


class TableMaintainer:
    """Maintains the tables of a home or catalog, once or in the background.

    Attributes:
        error: The last error in the background thread, which continues after it; None if there was none.
    """

    def __init__(
        self, spark: SparkSession, settings: Settings, on_done: Callable[[TableMaintenanceResult], None] | None = None
    ) -> None:
        self._spark = create_separate_session(spark)  # OPTIMIZE and VACUUM take their options from session settings
        self._settings = settings
        self._lake = Lake(settings)
        self._retention = RetentionRunner(self._spark, settings)
        self._on_done = on_done or (lambda _: None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def maintain_tables_once(self, table: str | None = None) -> Iterator[TableMaintenanceResult]:
        """Maintains each table once, with all work that is possible now. Yields the result of each table.

        Args:
            table: The only table to maintain; None means all.

        Raises:
            UsageError: The lake has no such table.
        """
        known = self._list_tables()
        if table is not None and table not in known:
            raise UsageError(
                f"maintain: there is no table {table!r}",
                fix=f"Name one of the tables of this lake: {', '.join(known) or 'none yet'}",
            )
        for name in known if table is None else [table]:
            yield self._maintain_table(name, only_if_worth=False)

    def start(self) -> TableMaintainer:
        """Starts a background thread that maintains the tables until `stop`."""
        self._thread = threading.Thread(target=self._run_in_background, name="maintenance", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops the background thread once the current table is finished."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def maintain_until_stopped(self, stop: threading.Event, table: str | None = None) -> None:
        """Maintains one table after another until `stop` is set, or another process asks this one to pause.

        Args:
            table: The only table to maintain; None means all.
        """
        while not stop.is_set() and read_pause_reason(self._settings) is None:
            tables = self._list_tables() if table is None else [table]
            pause = self._settings.maintain.interval.total_seconds() / max(1, len(tables))
            for name in tables or [""]:
                if stop.wait(pause) or read_pause_reason(self._settings) is not None:
                    return
                if name:
                    self._maintain_table_and_report(name)

    def _maintain_table_and_report(self, table: str) -> None:
        """Maintains one table. In the background thread, an error is stored in `error` instead of raised."""
        try:
            self._on_done(self._maintain_table(table, only_if_worth=True))
        except Exception as error:
            if self._thread is None:  # a caller waits for the result
                raise
            self.error = error  # may be temporary, such as a full disk: the table gets its turn again

    def _run_in_background(self) -> None:
        try:
            self.maintain_until_stopped(self._stop)
            while not self._stop.wait(_PAUSED_SECONDS):  # another process has asked it to pause
                self.maintain_until_stopped(self._stop)
        except BaseException as error:  # noqa: BLE001 - the process that runs the layers reads it
            self.error = error

    def _list_tables(self) -> list[str]:
        return [
            table for table in [*TABLES, *self._settings.added_table_names] if self._lake.exists(self._spark, table)
        ]

    def _maintain_table(self, table: str, *, only_if_worth: bool) -> TableMaintenanceResult:
        """Removes old rows, merges files, and removes unused files of one table.

        Args:
            only_if_worth: True to save work: old rows are looked for only from time to time, and unused files are
                removed only if there are many.
        """
        reading = list_streams_reading_table(self._settings, table)
        if table == MESSAGES and not all(reader.has_started for reader in reading if reader.name == SILVER):
            # A new stream reads the first snapshot in the order of file times, which merging would change.
            return TableMaintenanceResult(
                table, waits="silver has not started to read it, and needs its files as they are"
            )
        removed = self._retention.remove_expired_rows(table, datetime.now(UTC), only_if_due=only_if_worth)
        wrong_retention = self._describe_too_short_log_retention(table)
        is_predictive = has_predictive_optimization(self._spark, self._lake.storage, table)
        compacted = None if is_predictive else self._compact_table(table)
        if table == LEDGER:
            update_ledger_sums(self._spark, self._lake)
        waits = wrong_retention or _describe_streams_reading_first_snapshot(reading)
        kept = self._choose_history_to_keep(reading)
        if is_predictive:
            set_file_retention_property(self._spark, self._lake.storage, table, kept)
        skips_vacuum = waits or is_predictive
        vacuumed = None if skips_vacuum else self._vacuum_table(table, kept, only_if_worth=only_if_worth)
        reasons = "; ".join(filter(None, (removed.waits, waits)))
        return TableMaintenanceResult(table, compacted, vacuumed, removed.rows, reasons)

    def _choose_history_to_keep(self, readers: Sequence[ReadingStreamProgress]) -> HistoryToKeep:
        """Returns how much of a table's history must stay: for its readers, and for queries of older versions."""
        needed = [reader.oldest_needed_version for reader in readers if reader.oldest_needed_version is not None]
        return HistoryToKeep(self._settings.maintain.keep, min(needed, default=None), self._settings.maintain.versions)

    def _vacuum_table(self, table: str, kept: HistoryToKeep, *, only_if_worth: bool) -> VacuumResult | None:
        """Removes unused files of a table; None if `only_if_worth` and there are few."""
        storage = self._lake.storage
        if only_if_worth and not storage.needs_vacuum(self._spark, table, kept):
            return None
        return storage.vacuum_table(self._spark, table, kept)

    def _compact_table(self, table: str) -> CompactionResult | None:
        """Merges small files of a table until few are left.

        Returns the files before and after; None if there was nothing to merge.
        """
        first: CompactionResult | None = None
        while not self._stop.is_set():
            done = self._lake.storage.compact_table(self._spark, table)
            if done is None or done.before <= done.after:
                break
            first = CompactionResult((first or done).before, done.after)
        return first

    def _describe_too_short_log_retention(self, table: str) -> str:
        """Returns why removed files cannot be deleted yet: Delta's log keeps them for less than `maintain.keep`.

        Returns an empty text if they can. Also sets missing properties of a table that an earlier version of
        sessionlake created.
        """
        storage = self._lake.storage
        wanted = self._settings.maintain.keep
        if (
            parse_interval(
                storage.set_properties_that_differ(self._spark, table, storage.log_properties).get(RETENTION)
            )
            >= wanted
        ):
            return ""
        return f"its property {RETENTION} is not yet {format_interval(wanted)}: the next start of its layer sets it"


def list_streams_reading_table(settings: Settings, table: str) -> list[ReadingStreamProgress]:
    """Returns the streams that read a table, with their progress: layers, processors and publications.

    Raises:
        LakeError: The progress of a stream cannot be read.
    """
    if table == MESSAGES:
        stateful = [SILVER, *(processor.layer for processor in settings.processors if not processor.key)]
    else:
        stateful = [GOLD] if table == CHANGES else []
    names = [
        processor.layer for processor in settings.processors if processor.key and processor.source == table
    ] + stateful
    checkpoints = Path(settings.checkpoint_path("")).glob(f"publish-{table}-*")
    names += [folder.name for folder in sorted(checkpoints)]
    begins = {name: handover.read_active_handover(settings, name) for name in stateful}
    firsts = {name: begin.bronze_version + 1 for name, begin in begins.items() if begin is not None}
    return [_read_stream_progress(settings, name, firsts.get(name)) for name in names]


def _read_stream_progress(settings: Settings, name: str, first_version: int | None = None) -> ReadingStreamProgress:
    """Reads a stream's progress from its checkpoint.

    Args:
        name: The stream's layer, processor or publication.
        first_version: The version at which the stream starts if it has no batch yet; None if it starts with a snapshot.
    """
    checkpoint = Path(settings.checkpoint_path(name))
    batch = read_last_committed_batch(checkpoint)
    if batch is None:
        if first_version is None and (rebuilt := read_bronze_version_of_rebuild(settings, name)) is not None:
            first_version = rebuilt + 1
        return ReadingStreamProgress(
            name, first_version is not None or read_last_planned_batch(checkpoint) is not None, first_version
        )
    try:
        place = read_delta_offset(checkpoint, batch)
        # A first batch has no start in its checkpoint. Spark loads the table as it was one version before the end.
        last_start = (
            read_delta_offset(checkpoint, batch - 1).version if batch else first_version or max(place.version - 1, 0)
        )
    except (OSError, ValueError) as error:
        raise LakeError(
            f"{checkpoint / 'offsets'}: the checkpoint file {batch}, or the one before, cannot be read ({error!r})",
            why=f"It says what {name} has read, so maintenance does not know which files are still "
            "needed. Nothing was removed",
            fix="Run `sessionlake doctor`, which names the remedy",
        ) from None
    return (
        ReadingStreamProgress(name, has_started=True)
        if place.in_initial_snapshot
        else ReadingStreamProgress(name, has_started=True, next_version=place.version, last_start=last_start)
    )


def _describe_streams_reading_first_snapshot(readers: Sequence[ReadingStreamProgress]) -> str:
    """Returns a text that names the streams which still read the table's first snapshot; empty if none does.

    The files of the snapshot can be of any age, so none may be removed yet.
    """
    early = [reader.name for reader in readers if reader.has_started and reader.next_version is None]
    return f"still reading the first snapshot of the table: {', '.join(early)}" if early else ""
