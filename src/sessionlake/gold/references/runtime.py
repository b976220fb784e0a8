"""Keeps enriched tables current while gold runs: joins each batch, and runs corrections and lookups in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.errors import SessionlakeError
from sessionlake.gold.declared.references import list_declared_enriched_tables, list_declared_references
from sessionlake.gold.declared.tables import GoldTable
from sessionlake.gold.enrich.reference import list_columns_of_applied_table
from sessionlake.gold.enrich.table import EnrichedTable, find_joins_with_reference
from sessionlake.gold.references.applied import AppliedReferenceRows
from sessionlake.gold.references.corrections import ReferenceCorrectionRunner
from sessionlake.gold.references.lookup import create_lookup
from sessionlake.gold.references.lookups import LookupRunner
from sessionlake.gold.references.step import EnrichmentStep
from sessionlake.gold.tables.table_properties import find_complete_tables, mark_table_incomplete
from sessionlake.settings.model import Settings
from sessionlake.spark.session import create_separate_session
from sessionlake.streaming.errors import convert_to_layer_error
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def prepare_reference_tables(spark: SparkSession, lake: Lake, settings: Settings) -> None:
    """Creates missing reference tables, and gold's copies of them.

    If a copy is lost or its columns differ from the declared ones, an empty copy is created. The enriched tables that
    depend on it are marked to be rebuilt.
    """
    tables = list_declared_enriched_tables(settings)
    for one in list_declared_references(settings):
        if lake.exists(spark, one.table_name):
            lake.add_missing_columns(spark, one.table_name)  # others write this table, so their further columns stay
            lake.storage.set_history_retention(spark, one.table_name)
        else:
            lake.create_or_update_tables(spark, [one.table_name])
        exists = lake.exists(spark, one.applied_table_name)
        if not exists or lake.storage.read_column_types(spark, one.applied_table_name) != dict(
            list_columns_of_applied_table(one)
        ):
            dependent = [table for table, _ in find_joins_with_reference(tables, one)]
            # If the copy is lost, only complete tables of current logic are rebuilt; others wait for a command.
            for table in dependent if exists else find_complete_tables(spark, lake, dependent):
                mark_table_incomplete(spark, lake, table)
            if exists:
                lake.drop_table(spark, one.applied_table_name)
        lake.create_or_update_tables(spark, [one.applied_table_name])


class ReferenceRuntime:
    """Creates the parts that keep enriched tables current while gold's stream runs.

    Args:
        gold_tables: the tables that gold maintains.
        runs_lookups: True if lookups fetch missing rows of reference tables.

    Attributes:
        step: the part of gold's batch that joins changes and adds them to enriched tables.
        background: lookups and corrections; each runs in its own thread. Lookups come first, because their answers
            cause corrections.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: Settings,
        gold_tables: Sequence[GoldTable],
        *,
        runs_lookups: bool,
    ) -> None:
        tables = [one for one in gold_tables if isinstance(one, EnrichedTable)]
        references = list_declared_references(settings) if settings.gold.enriched else ()
        applied = AppliedReferenceRows(lake, references)
        lookups = _create_lookup_runners(spark, lake, settings, tables) if runs_lookups else []
        self.step = EnrichmentStep(lake, tables, applied, [one.schedule_search_of_batches for one in lookups])
        corrections_session = create_separate_session(spark) if references else spark
        self._corrections = ReferenceCorrectionRunner(corrections_session, lake, references, tables, applied)
        self._corrections.finish_interrupted_corrections()
        self.background: list[BackgroundStep] = []
        if references:
            pause = settings.gold.trigger.total_seconds()
            self.background += [
                BackgroundStep(f"lookup-{one.name}", one.request_rows_of_next_keys, pause) for one in lookups
            ]
            self.background.append(BackgroundStep("references", self._corrections.apply_next_corrections, pause))

    def apply_all_corrections(self) -> None:
        """Applies all changes of reference tables to enriched tables, then returns. Lookups do not run."""
        self._corrections.apply_all_corrections()


def _create_lookup_runners(
    spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[EnrichedTable]
) -> list[LookupRunner]:
    declared = {one.name: one.lookup for one in settings.gold.references}
    found = []
    for one in list_declared_references(settings):
        lookup = declared[one.name]
        if lookup is not None and find_joins_with_reference(tables, one):
            lake.create_or_update_tables(spark, [LOOKUP_FAILURES])
            client = create_lookup(lookup, f"gold.references.{one.name}")
            found.append(LookupRunner(create_separate_session(spark), lake, one, lookup, client, tables))
    return found


class BackgroundStep:
    """A thread that calls a function repeatedly: at once if the last call found work, otherwise after a pause.

    Args:
        name: name of the thread.
        step: the function. It returns True if it found work.
        pause: the pause after a call without work, in seconds.

    Attributes:
        error: the exception that ended the thread; None if there was none.
    """

    def __init__(self, name: str, step: Callable[[], bool], pause: float) -> None:
        self._step, self._pause = step, pause
        self._stop, self._idle, self._wake = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self.error: BaseException | None = None

    def start_thread(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop_thread(self) -> None:
        """Stops the thread, after the current call of the function has returned."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def run_until_idle(self) -> bool:
        """Calls the function in the caller's thread until it finds nothing to do.

        Does nothing if the background thread was started.

        Returns:
            True if the function found work at least once.
        """
        found = False
        while self._thread.ident is None and not self._stop.is_set() and self._step():
            found = True
        return found

    def wait_until_idle(self) -> None:
        """Waits until the thread has called the function again without finding work.

        Returns at once if the thread does not run.
        """
        for _ in range(2):
            self._idle.clear()
            self._wake.set()
            while self._thread.is_alive() and not self._idle.wait(0.1):
                pass

    def _run_thread(self) -> None:
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


def run_steps_until_idle(steps: Sequence[BackgroundStep]) -> None:
    """Calls the functions of all steps in turn until none finds work. A step may create work for another step."""
    while any([one.run_until_idle() for one in steps]):  # noqa: C419  (each step runs, even after one found work)
        pass


class QueryWithBackgroundThreads(LayerQuery):
    """The running streaming query of a layer, with background steps that start and stop with it."""

    def __init__(self, layer: str, checkpoint: str) -> None:
        super().__init__(layer, checkpoint)
        self._background: Sequence[BackgroundStep] = ()

    def start_background_threads(
        self, background: Sequence[BackgroundStep], *, once: bool
    ) -> QueryWithBackgroundThreads:
        """Starts the threads of background steps, and returns this query.

        Args:
            background: The steps.
            once: True to start no threads. The steps then run after the stream has ended.
        """
        self._background = background
        for one in () if once else background:
            one.start_thread()
        return self

    def stop(self) -> None:
        super().stop()
        for one in self._background:
            one.stop_thread()

    def wait(self, seconds: float | None = None) -> bool:
        ended = super().wait(seconds)
        if ended:
            try:
                run_steps_until_idle(self._background)
            except SessionlakeError:
                raise
            except Exception as error:
                raise convert_to_layer_error(error, self.layer, self.checkpoint) from error
        return ended

    def check_query_health(self) -> None:
        super().check_query_health()
        for one in self._background:
            if isinstance(one.error, SessionlakeError):
                raise one.error
            if one.error is not None:
                raise convert_to_layer_error(one.error, self.layer, self.checkpoint) from one.error

    def process_all_available(self) -> None:
        super().process_all_available()
        for one in self._background:
            one.wait_until_idle()
        self.check_query_health()
