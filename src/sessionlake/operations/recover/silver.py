"""`sessionlake recover silver`: what is lost of silver is found, and all of it made once more from bronze."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, DECISIONS, EVENTS, LEDGER, MESSAGES, QUARANTINE
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.rebuild.silver import Rebuilt, interrupted, rebuild
from sessionlake.settings.model import Settings
from sessionlake.silver.job import LAYER
from sessionlake.streaming import manifest
from sessionlake.streaming.losses import (
    first_loss,
    has_started,
    refuse_lost_checkpoint,
    refuse_lost_ledger,
    refuse_lost_rows,
    refuse_unreadable,
    require_logs,
)
from sessionlake.streaming.restored_tables import refuse_restored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RecoveredSilver:
    """The outcome.

    Attributes:
        found: what was lost; empty if nothing can be seen.
        rebuilt: what was made in its place; None if nothing was lost.
    """

    found: tuple[str, ...]
    rebuilt: Rebuilt | None


def recover(spark: SparkSession, settings: Settings) -> RecoveredSilver:
    """Makes silver once more from bronze, if something of it is lost.

    Live tables that cannot be read are replaced without a comparison.

    Raises:
        LakeError: there is no silver, or bronze has lost something itself.
    """
    lake = Lake(settings)
    require_logs(spark, lake, [MESSAGES, LEDGER, *REPLAYED])
    if not has_started(spark, lake, LAYER):
        raise LakeError(f"there is no silver in {settings.place}: `sessionlake run silver` begins one")
    refuse_lost_ledger(spark, settings, LAYER)
    finished = rebuild(spark, settings) if interrupted(settings) is not None else None
    refuse_unreadable(spark, lake, [MESSAGES, LEDGER])
    refuse_restored(spark, lake, [MESSAGES, DECISIONS])
    checkpoint = first_loss(
        lambda: refuse_lost_checkpoint(spark, settings, LAYER), lambda: manifest.read(settings, LAYER)
    )
    tables = first_loss(lambda: refuse_unreadable(spark, lake, REPLAYED))
    back = first_loss(lambda: refuse_restored(spark, lake, REPLAYED))
    rows = tables or back or first_loss(lambda: refuse_lost_rows(spark, lake, (CHANGES, QUARANTINE, EVENTS)))
    found = tuple(loss for loss in (checkpoint, rows) if loss is not None)
    return RecoveredSilver(found, rebuild(spark, settings, compares=tables is None) if found else finished)
