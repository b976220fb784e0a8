"""What is gone that should be there: noticed before a job writes on over the hole, and by `sessionlake doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LAST_RESORT, LakeError
from sessionlake.lake.books import stored_sums
from sessionlake.lake.names import LEDGER, POSITIONS
from sessionlake.lake.retained import retained
from sessionlake.lake.tables import Lake
from sessionlake.streaming.checkpoint import last_committed, planned, way_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the files that are gone, as many are named.
_NAMED = 3


def has_committed(settings: Settings, layer: str) -> bool:
    """Whether the layer's checkpoint tells of a committed batch, in any of its generations."""
    return any(Path(settings.checkpoint(layer)).glob("**/commits/[0-9]*"))


def refuse_lost_ledger(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Stops a job that has committed batches while there is no ledger: a new one would balance, and know of none.

    Raises:
        LakeError: naming the checkpoint that tells of the batches; or the sums are gone of entries that were removed.
    """
    lake = Lake(settings)
    there = lake.exists(spark, LEDGER)
    cut = retained(lake.reader(spark)).get(LEDGER) if there else None
    if cut is not None and cut.removed and stored_sums(lake.reader(spark)).cut is None:
        raise LakeError(f"{cut.since}, and {POSITIONS}, which has their only sums, is gone: put it back from a backup")
    if has_committed(settings, layer) and not there:
        checkpoint = settings.checkpoint(layer)
        raise LakeError(
            f"{LEDGER} is gone, though {layer} has committed batches ({checkpoint}): put it back from a backup. "
            f"{LAST_RESORT}"
        )


def refuse_lost_state(settings: Settings, layer: str) -> None:
    """Returns if every state store has the last committed batch, or nothing is committed yet.

    Raises:
        LakeError: naming a folder that lacks it.
    """
    checkpoint = Path(settings.checkpoint(layer))
    batch = last_committed(checkpoint)
    if batch is None:
        return
    stores = (checkpoint / "state" / "0" / str(number) for number in range(_stores(checkpoint, batch)))
    lacking = next((store for store in stores if not any(store.glob(f"{batch + 1}*"))), None)
    if lacking is not None:
        raise LakeError(f"{layer}: {lacking} lacks the state of batch {batch}. {way_on(layer)}")


def _stores(checkpoint: Path, batch: int) -> int:
    """How many state stores a stream has: settled by its first batch, and noted by Spark with each.

    Raises:
        LakeError: the note is not whole.
    """
    try:
        metadata, _ = planned(checkpoint, batch)
        return int(metadata["conf"]["spark.sql.shuffle.partitions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LakeError(f"{checkpoint} does not say how many state stores it has ({error!r})") from None


def refuse_lost_files(spark: SparkSession, lake: Lake, table: str) -> None:
    """Returns if every file that the table's present version names is there, as far as that can be seen.

    Raises:
        LakeError: naming some that are gone.
    """
    lost = lake.storage.lost_files(spark, table)
    if lost:
        named = ", ".join(sorted(lost)[:_NAMED]) + (f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise LakeError(f"{table} names files that are gone ({named}): put them back from a backup")
