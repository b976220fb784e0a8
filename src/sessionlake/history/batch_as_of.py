"""All silver tables as of one batch of the ledger, consistently.

The append-only tables name the batch of each row. The merged ones take in several batches at once, so what is
consistent is the end of a merge: of the batches up to the one asked for, the last that a merge ended with. As of that
batch the append-only tables hold the rows of all batches up to it, and the merged ones are read at the versions that
the ledger notes for it. Batches from before a rebuild of silver are read at the versions of then, as long as Delta has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.ledger import REBUILD
from sessionlake.lake.names import (
    CHANGES,
    CUTS,
    EVENTS,
    LEDGER,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSIONS,
    SILVER,
    SILVER_TABLES,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SILVER_WRITES = (CHANGES, PROGRESS, CUTS, ROWS, SESSIONS, SNAPSHOTS, SNAPSHOT_INDEX, QUARANTINE, EVENTS)
"""What silver's stream and the merges beside it write."""
_BATCH = "_batch"


@dataclass(frozen=True)
class AsOfBatch:
    """Which version of each of silver's tables belongs to one batch of the ledger.

    Attributes:
        asked: the batch that was asked for.
        batch: the batch that the tables are read as of: the end of the last merge that ended at or before it.
        versions: of the tables, as that batch left them.
        rebuilt: whether silver was rebuilt since: rows then name the rebuild, not the batch.
    """

    lake: Lake
    asked: int
    batch: int
    versions: Mapping[str, int]
    rebuilt: bool

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """One of silver's tables, as it was.

        Raises:
            LakeError: it is no table of silver's.
        """
        from pyspark.sql import functions as F

        if table not in SILVER_WRITES:
            raise LakeError(f"{table} is not read as of a batch of silver; its tables are {', '.join(SILVER_WRITES)}")
        appended = any(name == _BATCH for name, _ in TABLES[table].columns)
        # A table that nothing had been written to by then is as it was created.
        version = None if appended and not self.rebuilt else self.versions.get(table, 0)
        frame = self.lake.read(spark, table, version)
        return frame.where(F.col(_BATCH) <= self.batch) if appended else frame


def as_of_batch(spark: SparkSession, settings: Settings, batch: int) -> AsOfBatch:
    """Silver as of a batch of the ledger's layer `silver`.

    Raises:
        LakeError: there is no such batch, or no merge ended at or before it.
    """
    from pyspark.sql import functions as F

    lake = Lake(settings)
    if not lake.exists(spark, LEDGER):
        raise LakeError(f"silver has committed no batch in {settings.home} yet: `sessionlake run all --once`")
    ledger = lake.read(spark, LEDGER).where(F.col("layer").isin(SILVER, SILVER_TABLES))
    ends = F.when(F.col("layer") == SILVER, F.col("batch_id")).otherwise(F.col("source_to"))
    rows = ledger.select("layer", "app_id", ends.alias("end"), "outputs").orderBy("end", "layer").collect()
    committed = max((row["end"] for row in rows if row["layer"] == SILVER), default=-1)
    if not 0 <= batch <= committed:
        known = "none yet" if committed < 0 else f"0 to {committed}"
        raise LakeError(f"batch {batch}: silver has committed batches {known}; `sessionlake status` shows them")
    merges = [row["end"] for row in rows if row["layer"] == SILVER_TABLES]
    end = max((end for end in merges if end <= batch), default=None)
    if end is None:
        first = f"the first merge ended with batch {merges[0]}" if merges else "none has been merged yet"
        raise LakeError(f"batch {batch}: session_rows and sessions were not merged by then; {first}")
    versions = {out["table"]: out["version"] for row in rows if row["end"] <= end for out in row["outputs"]}
    rebuilt = any(row["end"] > end and row["app_id"].startswith(REBUILD) for row in rows)
    return AsOfBatch(lake, batch, end, versions, rebuilt)
