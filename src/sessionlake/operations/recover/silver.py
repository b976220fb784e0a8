"""`sessionlake recover silver`: finds lost tables, states or checkpoints of silver, and rebuilds silver from bronze."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, DECISIONS, EVENTS, LEDGER, MESSAGES, QUARANTINE
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.rebuild.silver import (
    SilverRebuildResult,
    find_interrupted_silver_rebuild,
    rebuild_silver_tables,
)
from sessionlake.settings.model import Settings
from sessionlake.silver.job import LAYER
from sessionlake.streaming import manifest
from sessionlake.streaming.losses import (
    find_first_loss_error,
    has_layer_started,
    refuse_lost_checkpoint,
    refuse_lost_ledger,
    refuse_lost_rows,
    refuse_unreadable_rows,
    require_readable_logs,
)
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SilverRecoveryResult:
    """The result of `sessionlake recover silver`.

    Attributes:
        found: A text for each loss; empty if nothing was lost.
        rebuilt: The result of the rebuild; None if nothing was lost.
    """

    found: tuple[str, ...]
    rebuilt: SilverRebuildResult | None


def recover_silver(spark: SparkSession, settings: Settings) -> SilverRecoveryResult:
    """Rebuilds silver from bronze if a table, the states or the checkpoint of silver is lost.

    Tables that cannot be read are replaced without a comparison.

    Raises:
        LakeError: The lake has no silver, or bronze is damaged.
    """
    lake = Lake(settings)
    require_readable_logs(spark, lake, [MESSAGES, LEDGER, *REPLAYED])
    if not has_layer_started(spark, lake, LAYER):
        raise LakeError(
            f"recover silver: silver has not run in {settings.lake_location}, so there is nothing to recover",
            fix="Start silver with `sessionlake run silver`, or name another home with SESSIONLAKE_HOME",
        )
    refuse_lost_ledger(spark, settings, LAYER)
    finished = rebuild_silver_tables(spark, settings) if find_interrupted_silver_rebuild(settings) is not None else None
    refuse_unreadable_rows(spark, lake, [MESSAGES, LEDGER])
    refuse_restored_tables(spark, lake, [MESSAGES, DECISIONS])
    checkpoint = find_first_loss_error(
        lambda: refuse_lost_checkpoint(spark, settings, LAYER), lambda: manifest.read_commit_manifest(settings, LAYER)
    )
    tables = find_first_loss_error(lambda: refuse_unreadable_rows(spark, lake, REPLAYED))
    back = find_first_loss_error(lambda: refuse_restored_tables(spark, lake, REPLAYED))
    rows = tables or back or find_first_loss_error(lambda: refuse_lost_rows(spark, lake, (CHANGES, QUARANTINE, EVENTS)))
    losses = tuple(loss for loss in (checkpoint, rows) if loss is not None)
    return SilverRecoveryResult(
        losses, rebuild_silver_tables(spark, settings, compares=tables is None) if losses else finished
    )
