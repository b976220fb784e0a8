"""`sessionlake recover gold`: finds lost tables or checkpoints of gold. Then empties gold, to be computed again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, LATE_POINTS, LEDGER, LOOKUP_FAILURES, RULE_RESULTS
from sessionlake.errors import LakeError
from sessionlake.gold.changes import refuse_rebuild_from_fewer_changes
from sessionlake.gold.declared.tables import (
    add_final_tables_of_products,
    build_declared_gold_schemas,
    list_declared_gold_tables,
)
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.job import LAYER
from sessionlake.gold.tables.table_properties import read_maintained_table_names
from sessionlake.operations.rebuild.endings import empty_gold_to_recompute, list_gold_tables
from sessionlake.settings.model import Settings
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.losses import (
    find_first_loss_error,
    has_layer_started,
    refuse_lost_checkpoint,
    refuse_lost_ledger,
    refuse_unreadable_rows,
    require_readable_logs,
)
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recover_gold(spark: SparkSession, settings: Settings, *, shorten: bool = False) -> tuple[str, ...]:
    """Empties gold if one of its tables or its checkpoint is lost. Its next run then computes it again.

    Args:
        shorten: True to empty gold even if retention has removed old changes of silver. Gold then begins later.

    Returns:
        A text for each loss; empty if there was none, and gold is unchanged.

    Raises:
        LakeError: The lake has no gold, silver or the ledger are damaged, or gold would begin later and `shorten` is
            False.
    """
    lake, all_tables = Lake(settings), list_gold_tables(settings)
    require_readable_logs(spark, lake, [CHANGES, LEDGER, *all_tables])
    if not has_layer_started(spark, lake, LAYER):
        raise LakeError(
            f"recover gold: gold has not run in {settings.lake_location}, so there is nothing to recover",
            fix="Start gold with `sessionlake run gold`, or name another home with SESSIONLAKE_HOME",
        )
    refuse_interrupted_operations(settings, LAYER)
    refuse_lost_ledger(spark, settings, LAYER)
    refuse_unreadable_rows(spark, lake, [LEDGER, CHANGES])
    refuse_restored_tables(spark, lake, [CHANGES])
    checkpoint = find_first_loss_error(lambda: refuse_lost_checkpoint(spark, settings, LAYER))
    # The tables of rules exist all together, or not at all before the first rule.
    has_rules = any(lake.exists(spark, table) for table in RULE_RESULTS)
    # Earlier versions had no table of late points, and without lookups there is no table of their failures.
    optional = {
        LATE_POINTS,
        LOOKUP_FAILURES,
        *(() if has_rules else RULE_RESULTS),
        *_list_gold_tables_not_created(spark, lake),
    }
    present = [table for table in all_tables if table not in optional or lake.exists(spark, table)]
    unread = find_first_loss_error(lambda: refuse_unreadable_rows(spark, lake, present))
    tables = unread or find_first_loss_error(lambda: refuse_restored_tables(spark, lake, present))
    losses = tuple(loss for loss in (checkpoint, tables) if loss is not None)
    if losses:
        try:
            empty_gold(spark, settings, shorten=shorten)
        except LakeError as error:
            raise LakeError(
                "; ".join(losses),
                why=f"Gold cannot be computed again: {error}",
                fix="Restore gold's tables and its checkpoint from a backup",
            ) from error
    return losses


def _list_gold_tables_not_created(spark: SparkSession, lake: Lake) -> set[str]:
    """Returns the names of the declared tables that gold has not created yet. They do not count as lost."""
    noted = read_maintained_table_names(spark, lake) if lake.exists(spark, AVERAGES) else None
    if noted is None:
        return set()
    new = [table for table in list_declared_gold_tables(lake.settings) if table.name not in noted]
    taken = {
        one.applied_table_name
        for one in lake.settings.gold.references
        if any(isinstance(table, EnrichedTable) for table in new)
    }
    return {table.table_name for table in add_final_tables_of_products(new)} | taken


def empty_gold(spark: SparkSession, settings: Settings, *, shorten: bool = False) -> None:
    """Empties gold, so that its next start computes it again from silver.

    Raises:
        LakeError: Retention has removed changes, so gold would begin later, and `shorten` is False.
    """
    lake = Lake(settings, build_declared_gold_schemas(settings))
    if not shorten:
        refuse_rebuild_from_fewer_changes(lake, spark)
    lake.create_or_update_tables(spark, [AVERAGES, LEDGER])
    empty_gold_to_recompute(spark, settings, lake, uuid4().hex[:12], 0, datetime.now(UTC))
