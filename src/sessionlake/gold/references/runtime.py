"""Keeps enriched tables current while gold runs: the join in each batch, and corrections and lookups in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.errors import SessionlakeError
from sessionlake.gold.declared.references import enriched_of, references_of
from sessionlake.gold.declared.tables import GoldTable
from sessionlake.gold.enrich.reference import applied_columns
from sessionlake.gold.enrich.table import EnrichedTable, joins_with
from sessionlake.gold.references.applied import AppliedRows
from sessionlake.gold.references.corrections import Corrections
from sessionlake.gold.references.lookup import create_lookup
from sessionlake.gold.references.lookups import Lookups
from sessionlake.gold.references.step import EnrichStep
from sessionlake.gold.tables.notes import complete_tables, mark_incomplete
from sessionlake.settings.model import Settings
from sessionlake.spark.session import separate_session
from sessionlake.streaming.errors import explain
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def prepare_tables(spark: SparkSession, lake: Lake, settings: Settings) -> None:
    """Creates missing reference tables and their tables of applied rows.

    If a table of applied rows is lost or has other columns than declared, it is created again empty. The enriched
    tables that are based on it are marked to be rebuilt.
    """
    tables = enriched_of(settings)
    for one in references_of(settings):
        if lake.exists(spark, one.table):
            lake.add_missing_columns(spark, one.table)  # others write this table, so their further columns stay
            lake.storage.set_retention(spark, one.table)
        else:
            lake.ensure(spark, [one.table])
        exists = lake.exists(spark, one.applied_table)
        if not exists or lake.storage.columns(spark, one.applied_table) != dict(applied_columns(one)):
            dependent = [table for table, _ in joins_with(tables, one)]
            # If it is lost, only complete tables of current logic are rebuilt; others wait for a command.
            for table in dependent if exists else complete_tables(spark, lake, dependent):
                mark_incomplete(spark, lake, table)
            if exists:
                lake.drop(spark, one.applied_table)
        lake.ensure(spark, [one.applied_table])


class ReferenceRuntime:
    """Keeps enriched tables current while gold's stream runs.

    Args:
        gold_tables: the tables that gold maintains.
        asks: whether lookups request keys that reference tables lack.

    Attributes:
        step: joins and adds a batch's changes.
        background: steps that run in their own threads, in the order in which one produces work for the next.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, settings: Settings, gold_tables: Sequence[GoldTable], *, asks: bool
    ) -> None:
        tables = [one for one in gold_tables if isinstance(one, EnrichedTable)]
        references = references_of(settings) if settings.gold.enriched else ()
        applied = AppliedRows(lake, references)
        lookups = _lookups(spark, lake, settings, tables) if asks else []
        self.step = EnrichStep(lake, tables, applied, [one.add_batches for one in lookups])
        corrections_session = separate_session(spark) if references else spark
        self._corrections = Corrections(corrections_session, lake, references, tables, applied)
        self._corrections.finish_interrupted()
        self.background: list[BackgroundStep] = []
        if references:
            pause = settings.gold.trigger.total_seconds()
            self.background += [BackgroundStep(f"lookup-{one.name}", one.step, pause) for one in lookups]
            self.background.append(BackgroundStep("references", self._corrections.step, pause))

    def apply_all(self) -> None:
        """Applies everything that reference tables have, without lookups. Returns when it is done."""
        self._corrections.apply_all()


def _lookups(spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[EnrichedTable]) -> list[Lookups]:
    declared = {one.name: one.lookup for one in settings.gold.references}
    found = []
    for one in references_of(settings):
        lookup = declared[one.name]
        if lookup is not None and joins_with(tables, one):
            lake.ensure(spark, [LOOKUP_FAILURES])
            client = create_lookup(lookup, f"gold.references.{one.name}")
            found.append(Lookups(separate_session(spark), lake, one, lookup, client, tables))
    return found


class BackgroundStep:
    """A step that runs repeatedly in a thread: again at once after it found work, else after a pause.

    Args:
        step: returns whether there was something to do.
        pause: in seconds.

    Attributes:
        error: what ended the thread; None while it runs.
    """

    def __init__(self, name: str, step: Callable[[], bool], pause: float) -> None:
        self._step, self._pause = step, pause
        self._stop, self._idle, self._wake = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread once the current step finishes."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def run_to_idle(self) -> bool:
        """Runs the step in the caller's thread until it finds nothing to do, unless its own thread runs.

        Returns:
            Whether it found something to do.
        """
        found = False
        while self._thread.ident is None and not self._stop.is_set() and self._step():
            found = True
        return found

    def drain(self) -> None:
        """Waits until a step that started after this call found nothing to do."""
        for _ in range(2):
            self._idle.clear()
            self._wake.set()
            while self._thread.is_alive() and not self._idle.wait(0.1):
                pass

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                if self._stop.is_set():
                    return
                if not self._step():
                    self._idle.set()
                    self._wake.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the thread that runs the layer
            self.error = error


def run_to_idle(background: Sequence[BackgroundStep]) -> None:
    """Runs all steps until none of them finds work, including work that one produces for another."""
    while any([one.run_to_idle() for one in background]):  # noqa: C419  (each step runs, even after one found work)
        pass


class QueryWithBackground(LayerQuery):
    """A running layer with background steps."""

    def __init__(self, layer: str, checkpoint: str) -> None:
        super().__init__(layer, checkpoint)
        self._background: Sequence[BackgroundStep] = ()

    def start_background(self, background: Sequence[BackgroundStep], *, once: bool) -> QueryWithBackground:
        """Starts the background steps. With `once`, they run after the stream has ended instead."""
        self._background = background
        for one in () if once else background:
            one.start()
        return self

    def stop(self) -> None:
        super().stop()
        for one in self._background:
            one.stop()

    def wait(self, seconds: float | None = None) -> bool:
        ended = super().wait(seconds)
        if ended:
            try:
                run_to_idle(self._background)
            except SessionlakeError:
                raise
            except Exception as error:
                raise explain(error, self.layer, self.checkpoint) from error
        return ended

    def check(self) -> None:
        super().check()
        for one in self._background:
            if isinstance(one.error, SessionlakeError):
                raise one.error
            if one.error is not None:
                raise explain(one.error, self.layer, self.checkpoint) from one.error

    def drain(self) -> None:
        super().drain()
        for one in self._background:
            one.drain()
        self.check()
