"""`sessionlake recover gold`: what is lost of gold is found, and all of it left to be computed anew from silver."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, LATE_POINTS, LEDGER, LOOKUP_FAILURES, RULE_RESULTS
from sessionlake.errors import LakeError
from sessionlake.gold.changes import refuse_shorter
from sessionlake.gold.declared.tables import schemas_of, tables_of, with_finals
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.job import LAYER
from sessionlake.gold.tables.notes import maintained_names
from sessionlake.operations.rebuild.endings import gold_tables, reset_gold
from sessionlake.settings.model import Settings
from sessionlake.streaming.journal import require_uninterrupted
from sessionlake.streaming.losses import (
    first_loss,
    has_begun,
    refuse_lost_checkpoint,
    refuse_lost_ledger,
    refuse_unreadable,
    require_logs,
)
from sessionlake.streaming.set_back import refuse_set_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recover(spark: SparkSession, settings: Settings, *, shorten: bool = False) -> tuple[str, ...]:
    """Empties gold, if something of it is lost; returns what that is.

    Args:
        shorten: though retention has removed changes that gold was made of.

    Raises:
        LakeError: there is no gold, or silver or the ledger has lost something itself; or gold would begin later.
    """
    lake, own = Lake(settings), gold_tables(settings)
    require_logs(spark, lake, [CHANGES, LEDGER, *own])
    if not has_begun(spark, lake, LAYER):
        raise LakeError(f"there is no gold in {settings.place}: `sessionlake run gold` begins one")
    require_uninterrupted(settings, LAYER)
    refuse_lost_ledger(spark, settings, LAYER)
    refuse_unreadable(spark, lake, [LEDGER, CHANGES])
    refuse_set_back(spark, lake, [CHANGES])
    checkpoint = first_loss(lambda: refuse_lost_checkpoint(spark, settings, LAYER))
    # Those of rules are all there, or, as long as there has been no rule, none.
    ruled = any(lake.exists(spark, table) for table in RULE_RESULTS)
    # Older versions had no table of late points; without a lookup there are no failures.
    optional = {LATE_POINTS, LOOKUP_FAILURES, *(() if ruled else RULE_RESULTS), *_only_declared(spark, lake)}
    present = [table for table in own if table not in optional or lake.exists(spark, table)]
    unread = first_loss(lambda: refuse_unreadable(spark, lake, present))
    tables = unread or first_loss(lambda: refuse_set_back(spark, lake, present))
    found = tuple(loss for loss in (checkpoint, tables) if loss is not None)
    if found:
        try:
            empty(spark, settings, shorten=shorten)
        except LakeError as error:
            raise LakeError(f"{'; '.join(found)}; but {error}") from error
    return found


def _only_declared(spark: SparkSession, lake: Lake) -> set[str]:
    """The tables that gold has yet to begin: they are not lost."""
    noted = maintained_names(spark, lake) if lake.exists(spark, AVERAGES) else None
    if noted is None:
        return set()
    new = [table for table in tables_of(lake.settings) if table.name not in noted]
    taken = {
        one.applied_table
        for one in lake.settings.gold.references
        if any(isinstance(table, EnrichedTable) for table in new)
    }
    return {table.table for table in with_finals(new)} | taken


def empty(spark: SparkSession, settings: Settings, *, shorten: bool = False) -> None:
    """Leaves gold as before its first batch: the next start computes it from silver.

    Raises:
        LakeError: it would begin later, and must not.
    """
    lake = Lake(settings, schemas_of(settings))
    if not shorten:
        refuse_shorter(lake, spark)
    lake.ensure(spark, [AVERAGES, LEDGER])
    reset_gold(spark, settings, lake, uuid4().hex[:12], 0, datetime.now(UTC))
