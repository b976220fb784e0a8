"""Enriched tables kept up: by each batch of gold, and beside it by what comes of reference tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.errors import SessionlakeError
from sessionlake.gold.declared.references import enriched_of, references_of
from sessionlake.gold.declared.tables import GoldTable
from sessionlake.gold.enrich.reference import taken_columns
from sessionlake.gold.enrich.table import Enriched, joins_of
from sessionlake.gold.references.corrections import Corrections
from sessionlake.gold.references.lookup import lookup_of
from sessionlake.gold.references.lookups import Lookups
from sessionlake.gold.references.step import EnrichStep
from sessionlake.gold.references.taken import TakenRows
from sessionlake.gold.tables.notes import mark_incomplete, whole
from sessionlake.settings.model import Settings
from sessionlake.spark.session import own_session
from sessionlake.streaming.errors import explain
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_ready(spark: SparkSession, lake: Lake, settings: Settings) -> None:
    """Creates what is missing of reference tables and of those that have what is taken of them.

    One of the latter that is lost, or has other columns than are declared now, is begun anew, and with it all that
    rests on it.
    """
    tables = enriched_of(settings)
    for one in references_of(settings):
        if lake.exists(spark, one.table):
            lake.add_missing_columns(spark, one.table)  # it is others': what it has besides is theirs
            lake.storage.set_retention(spark, one.table)
        else:
            lake.ensure(spark, [one.table])
        there = lake.exists(spark, one.taken)
        if not there or lake.storage.columns(spark, one.taken) != dict(taken_columns(one)):
            resting = [table for table, _ in joins_of(tables, one)]
            # Where it is lost, a table of other logic is not made anew without being asked for.
            for table in resting if there else whole(spark, lake, resting):
                mark_incomplete(spark, lake, table)
            if there:
                lake.drop(spark, one.taken)
        lake.ensure(spark, [one.taken])


class References:
    """What keeps enriched tables up while gold's stream runs.

    Args:
        kept: tables of gold that are kept up.
        asks: whether lookups ask for what reference tables lack.

    Attributes:
        step: adds a batch's changes.
        beside: what is done in threads of their own, each before what goes on with what it leaves.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, settings: Settings, kept: Sequence[GoldTable], *, asks: bool
    ) -> None:
        tables = [one for one in kept if isinstance(one, Enriched)]
        references = references_of(settings) if settings.gold.enriched else ()
        taken = TakenRows(lake, references)
        lookups = _lookups(spark, lake, settings, tables) if asks else []
        self.step = EnrichStep(lake, tables, taken, [one.note for one in lookups])
        mine = own_session(spark) if references else spark
        self._corrections = Corrections(mine, lake, references, tables, taken)
        self._corrections.begin()
        self.beside: list[Beside] = []
        if references:
            pause = settings.gold.trigger.total_seconds()
            self.beside += [Beside(f"lookup-{one.name}", one.step, pause) for one in lookups]
            self.beside.append(Beside("references", self._corrections.step, pause))

    def catch_up(self) -> None:
        """Takes all that reference tables have, here and now; nobody is asked for more."""
        self._corrections.catch_up()


def _lookups(spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[Enriched]) -> list[Lookups]:
    declared = {one.name: one.lookup for one in settings.gold.references}
    found = []
    for one in references_of(settings):
        lookup = declared[one.name]
        if lookup is not None and joins_of(tables, one):
            lake.ensure(spark, [LOOKUP_FAILURES])
            client = lookup_of(lookup, f"gold.references.{one.name}")
            found.append(Lookups(own_session(spark), lake, one, lookup, client, tables))
    return found


class Beside:
    """A step that is repeated: at once as long as it finds something to do, else after a pause.

    Args:
        step: says whether there was something to do.
        pause: in seconds.
    """

    def __init__(self, name: str, step: Callable[[], bool], pause: float) -> None:
        self._step, self._pause = step, pause
        self._stop, self._idle, self._wake = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begins to repeat it."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the step under way."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def finish(self) -> bool:
        """Does all that there is to do, here and now, where it does not run by itself; whether there was anything."""
        found = False
        while self._thread.ident is None and not self._stop.is_set() and self._step():
            found = True
        return found

    def drain(self) -> None:
        """Waits until a step that began after this found nothing to do."""
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
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the layer
            self.error = error


def finish(beside: Sequence[Beside]) -> None:
    """Does all that there is to do, what one has left for another, too."""
    while any([one.finish() for one in beside]):  # noqa: C419  (each of them, in turn)
        pass


class AccompaniedQuery(LayerQuery):
    """A running layer, and what is done beside it."""

    def __init__(self, layer: str, checkpoint: str) -> None:
        super().__init__(layer, checkpoint)
        self._beside: Sequence[Beside] = ()

    def accompany(self, beside: Sequence[Beside], *, once: bool) -> AccompaniedQuery:
        """Begins what is done beside it; `once`, it is done when the stream has ended."""
        self._beside = beside
        for one in () if once else beside:
            one.start()
        return self

    def stop(self) -> None:
        super().stop()
        for one in self._beside:
            one.stop()

    def wait(self, seconds: float | None = None) -> bool:
        ended = super().wait(seconds)
        if ended:
            try:
                finish(self._beside)
            except SessionlakeError:
                raise
            except Exception as error:
                raise explain(error, self.layer, self.checkpoint) from error
        return ended

    def check(self) -> None:
        super().check()
        for one in self._beside:
            if isinstance(one.error, SessionlakeError):
                raise one.error
            if one.error is not None:
                raise explain(one.error, self.layer, self.checkpoint) from one.error

    def drain(self) -> None:
        super().drain()
        for one in self._beside:
            one.drain()
        self.check()
