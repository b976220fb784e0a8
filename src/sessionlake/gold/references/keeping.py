"""Enriched tables kept up: by each batch of gold, and beside it by what comes of reference tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.gold.enrich.reference import taken_columns
from sessionlake.gold.enrich.table import Enriched, joins_of
from sessionlake.gold.products import mark_incomplete, whole
from sessionlake.gold.references.beside import Beside
from sessionlake.gold.references.corrections import Corrections
from sessionlake.gold.references.declared import enriched_of, references_of
from sessionlake.gold.references.lookup import lookup_of
from sessionlake.gold.references.lookups import Lookups
from sessionlake.gold.references.step import EnrichStep
from sessionlake.gold.references.taken import TakenRows
from sessionlake.settings.model import Settings
from sessionlake.spark.session import own_session

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
            lake.widen(spark, one.table)  # it is others': what it has besides is theirs
            lake.storage.retain(spark, one.table)
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
        asks: whether lookups ask for what reference tables lack.

    Attributes:
        step: adds a batch's changes.
        beside: what is done in threads of their own, each before what goes on with what it leaves.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[Enriched], *, asks: bool
    ) -> None:
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
