"""Whether what gold has taken of reference tables is what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.gold.compare import Compared
from sessionlake.gold.enrich.table import Enriched
from sessionlake.gold.references.declared import references_of
from sessionlake.gold.references.taken import waiting
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_references(spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[object]) -> list[Compared]:
    """Compares the reference tables that these tables are joined with; keys that rest are passed over."""
    used = {join.reference.name for table in tables if isinstance(table, Enriched) for join in table.joins}
    reader, found = lake.reader(spark), []
    for one in references_of(settings):
        if one.name not in used:
            continue
        try:
            rest, _ = waiting(lake, reader, one)
        except LakeError:  # all of it rests
            continue
        first = (
            None if not rest.rows else f"{one.taken}: {rest.rows} rows of {one.table} wait for `sessionlake run gold`"
        )
        found.append(Compared(one.taken, reader.size(one.table).rows, rest.rows, first))
    return found
