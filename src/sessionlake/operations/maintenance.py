"""Tables kept small while they grow: files merged, and files, log entries and old rows removed that nobody needs.

A little at a time, beside the layers: one table, then a pause. What is merged says the same rows, and streams pass over
it. What is removed is older than `maintain.keep`, and than all that a layer, a processor or a publication has to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD, LEDGER, MESSAGES, SILVER
from sessionlake.delta.schemas.properties import RETENTION, interval_text, parse_interval
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.upkeep import Compacted, HistoryToKeep, Vacuumed
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.positions import update_sums
from sessionlake.operations.retention.removal import Retention
from sessionlake.settings.model import Settings
from sessionlake.spark.session import separate_session
from sessionlake.streaming import handover
from sessionlake.streaming.aside import asked
from sessionlake.streaming.checkpoint import last_committed, last_planned, read_to
from sessionlake.streaming.journal import built_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ASIDE_SECONDS = 1.0
CLAIM = "maintain"
"""What whoever merges and removes files beside the layers claims: none may while a table's history is removed."""


@dataclass(frozen=True)
class Maintained:
    """What was done to a table.

    Attributes:
        compacted: None if few files were small.
        vacuumed: None if it was put off.
        rows: how many old rows were removed.
        waits: why nothing was removed, or merged; empty if nothing is in the way.
    """

    table: str
    compacted: Compacted | None = None
    vacuumed: Vacuumed | None = None
    rows: int = 0
    waits: str = ""


@dataclass(frozen=True)
class Reader:
    """A stream that reads a table, and how far it is.

    Attributes:
        begun: whether it has read anything.
        since: the version that it goes on with; None if it is not known, or it is still at what the table held first.
        again: the version that its last batch began with: Spark asks for the files of that batch once more whenever
            the stream starts, though it does not read them.
    """

    name: str
    begun: bool
    since: int | None = None
    again: int | None = None

    @property
    def needs(self) -> int | None:
        """The oldest version whose entry in the table's log it needs."""
        return self.since if self.again is None else self.again


class Maintenance:
    """Looks after the tables of a home or catalog.

    Attributes:
        error: what it has failed by last, in the background, where it goes on all the same.
    """

    def __init__(
        self, spark: SparkSession, settings: Settings, on_done: Callable[[Maintained], None] | None = None
    ) -> None:
        self._spark = separate_session(spark)  # what OPTIMIZE and VACUUM are told stands in the session
        self._settings = settings
        self._lake = Lake(settings)
        self._retention = Retention(self._spark, settings)
        self._on_done = on_done or (lambda _: None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def once(self, table: str | None = None) -> Iterator[Maintained]:
        """Does all that there is to do now, table by table.

        Args:
            table: only this one.

        Raises:
            UsageError: there is no such table.
        """
        known = self._tables()
        if table is not None and table not in known:
            raise UsageError(f"maintain: there is no table {table!r}; there are: {', '.join(known) or 'none yet'}")
        for name in known if table is None else [table]:
            yield self._maintain(name, at_leisure=False)

    def start(self) -> Maintenance:
        """Goes on in the background until `stop`."""
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends it after the table under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def watch(self, stop: threading.Event, table: str | None = None) -> None:
        """Goes round the tables until `stop` is set, or somebody asks to stand aside.

        Args:
            table: only this one.
        """
        while not stop.is_set() and asked(self._settings) is None:
            tables = self._tables() if table is None else [table]
            pause = self._settings.maintain.interval.total_seconds() / max(1, len(tables))
            for name in tables or [""]:
                if stop.wait(pause) or asked(self._settings) is not None:
                    return
                if name:
                    self._tend(name)

    def _tend(self, table: str) -> None:
        try:
            self._on_done(self._maintain(table, at_leisure=True))
        except Exception as error:
            if self._thread is None:  # somebody waits for it
                raise
            self.error = error  # as of a disk that is full for a while: its turn comes again

    def _run(self) -> None:
        try:
            self.watch(self._stop)
            while not self._stop.wait(_ASIDE_SECONDS):  # it stood aside
                self.watch(self._stop)
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the layers
            self.error = error

    def _tables(self) -> list[str]:
        return [table for table in [*TABLES, *self._settings.own_tables] if self._lake.exists(self._spark, table)]

    def _maintain(self, table: str, *, at_leisure: bool) -> Maintained:
        """One table: rows, merging, files. At leisure, files that have expired are removed only if they are many."""
        reading = readers(self._settings, table)
        if table == MESSAGES and not all(reader.begun for reader in reading if reader.name == SILVER):
            return Maintained(table, waits="silver has not begun: it reads what is there in the order in which it came")
        removed = self._retention.remove(table, datetime.now(UTC), at_leisure=at_leisure)
        unfit = self._unfit(table)
        compacted = self._compact(table)
        if table == LEDGER:
            update_sums(self._spark, self._lake)
        waits = unfit or _in_the_way(reading)
        vacuumed = None if waits else self._vacuum(table, reading, at_leisure=at_leisure)
        return Maintained(table, compacted, vacuumed, removed.rows, "; ".join(filter(None, (removed.waits, waits))))

    def _vacuum(self, table: str, reading: Sequence[Reader], *, at_leisure: bool) -> Vacuumed | None:
        storage = self._lake.storage
        since = min((reader.needs for reader in reading if reader.needs is not None), default=None)
        kept = HistoryToKeep(self._settings.maintain.keep, since, self._settings.maintain.versions)
        if at_leisure and not storage.needs_vacuum(self._spark, table, kept):
            return None
        return storage.vacuum(self._spark, table, kept)

    def _compact(self, table: str) -> Compacted | None:
        """Merges files until those that are left are few, or large."""
        first: Compacted | None = None
        while not self._stop.is_set():
            done = self._lake.storage.compact(self._spark, table)
            if done is None or done.before <= done.after:
                break
            first = Compacted((first or done).before, done.after)
        return first

    def _unfit(self, table: str) -> str:
        """Why the table does not remember removed files as long as they are to be kept.

        Of one of an earlier version, Delta leaves the log alone from then on.
        """
        storage = self._lake.storage
        wanted = self._settings.maintain.keep
        if (
            parse_interval(storage.set_changed_properties(self._spark, table, storage.log_properties).get(RETENTION))
            >= wanted
        ):
            return ""
        return f"its {RETENTION} is not {interval_text(wanted)}: the next start of its layer sets it"


def readers(settings: Settings, table: str) -> list[Reader]:
    """The streams that read a table.

    Raises:
        LakeError: what one of them has read cannot be told.
    """
    if table == MESSAGES:
        stateful = [SILVER, *(processor.layer for processor in settings.processors if not processor.key)]
    else:
        stateful = [GOLD] if table == CHANGES else []
    names = [own.layer for own in settings.processors if own.key and own.source == table] + stateful
    beside = Path(settings.checkpoint("")).glob(f"publish-{table}-*")
    names += [folder.name for folder in sorted(beside)]
    begins = {name: handover.in_force(settings, name) for name in stateful}
    firsts = {name: begin.bronze_version + 1 for name, begin in begins.items() if begin is not None}
    return [_reader(settings, name, firsts.get(name)) for name in names]


def _reader(settings: Settings, name: str, first: int | None = None) -> Reader:
    """A stream by its checkpoint.

    Args:
        first: the version that it is to begin with.
    """
    checkpoint = Path(settings.checkpoint(name))
    batch = last_committed(checkpoint)
    if batch is None:
        if first is None and (rebuilt := built_from(settings, name)) is not None:
            first = rebuilt + 1
        return Reader(name, first is not None or last_planned(checkpoint) is not None, first)
    try:
        place = read_to(checkpoint, batch)
        # A first batch has no place to begin at: Spark loads the table as it was one version before its end.
        again = read_to(checkpoint, batch - 1).version if batch else first or max(place.version - 1, 0)
    except (OSError, ValueError) as error:
        raise LakeError(
            f"{checkpoint / 'offsets'}: {batch}, or the one before, does not say what {name} has read ({error!r}): "
            "`sessionlake doctor` says what to do"
        ) from None
    return Reader(name, begun=True) if place.at_first else Reader(name, begun=True, since=place.version, again=again)


def _in_the_way(reading: Sequence[Reader]) -> str:
    """Which streams still read what the table held when they began, of whatever age that is."""
    early = [reader.name for reader in reading if reader.begun and reader.since is None]
    return f"{', '.join(early)} still at what it held at first" if early else ""
