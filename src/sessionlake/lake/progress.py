"""What every layer's job asks before it starts: whether its tables are those that its checkpoint knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.ledger import LEDGER, REBUILD, current
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_fresh_checkpoint(spark: SparkSession, lake: Lake, settings: Settings, layer: str) -> None:
    """Stops a job whose checkpoint is new while its tables are not: it would write everything twice.

    Raises:
        LakeError: naming the checkpoint and what to do.
    """
    from pyspark.sql import functions as F

    checkpoint = settings.checkpoint(layer)
    if (Path(checkpoint) / "metadata").exists() or not lake.exists(spark, LEDGER):
        return
    entries = current(lake.read(spark, LEDGER)).where(F.col("layer") == layer)
    known = entries.where(~F.col("app_id").startswith(REBUILD)).limit(1).count()
    if known:
        raise LakeError(
            f"the checkpoint {checkpoint} is new, but the {layer} tables already hold data: running on would write "
            "everything twice. Put the checkpoint back, or start over with an empty home (make clean-home)"
        )


def rebuild_journal(settings: Settings) -> Path:
    """What is left to publish of a rebuild of silver, while it is being published."""
    return Path(f"{settings.checkpoint('silver')}.publishing.json")


def refuse_interrupted_rebuild(settings: Settings) -> None:
    """Stops a job that writes or follows silver while some of its tables are rebuilt and others are not.

    Raises:
        LakeError: a publication has stopped half-way.
    """
    if rebuild_journal(settings).exists():
        raise LakeError("a rebuild of silver was interrupted while it was published: run `sessionlake rebuild silver`")
