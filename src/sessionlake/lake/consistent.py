"""All silver tables as of one batch of the ledger, consistently.

The append-only tables name the batch of each row. The merged ones take in several batches at once, so what is
consistent is the end of a merge: of the batches up to the one asked for, the last that a merge ended with. As of that
batch the append-only tables hold the rows of all batches up to it, and the merged ones are read at the versions that
the ledger notes for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.ledger import LEDGER
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM, MERGES = "silver", "silver_tables"
SILVER = tuple(table for table in TABLES if table.startswith("silver."))
_BATCH = "_batch"


@dataclass(frozen=True)
class AsOfBatch:
    """Silver as of one batch.

    Attributes:
        asked: the batch that was asked for.
        batch: the batch that the tables are read as of: the end of the last merge that ended at or before it.
        versions: of the merged tables.
    """

    lake: Lake
    asked: int
    batch: int
    versions: Mapping[str, int]

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """One of silver's tables, as it was.

        Raises:
            LakeError: it is no table of silver's.
        """
        from pyspark.sql import functions as F

        if table not in SILVER:
            raise LakeError(f"{table} is not read as of a batch of silver; its tables are {', '.join(SILVER)}")
        if any(name == _BATCH for name, _ in TABLES[table].columns):
            return self.lake.read(spark, table).where(F.col(_BATCH) <= self.batch)
        # A table that no merge had written to by then is as it was created.
        return self.lake.read(spark, table, self.versions.get(table, 0))


def as_of_batch(spark: SparkSession, settings: Settings, batch: int) -> AsOfBatch:
    """Silver as of a batch of the ledger's layer `silver`.

    Raises:
        LakeError: there is no such batch, or no merge ended at or before it.
    """
    from pyspark.sql import functions as F

    lake = Lake(settings)
    if not lake.exists(spark, LEDGER):
        raise LakeError(f"silver has committed no batch in {settings.home} yet: `sessionlake run all --once`")
    ledger = lake.read(spark, LEDGER)
    last = ledger.where(F.col("layer") == STREAM).agg(F.max("batch_id")).first()
    committed = last[0] if last else None
    if committed is None or not 0 <= batch <= committed:
        known = "none yet" if committed is None else f"0 to {committed}"
        raise LakeError(f"batch {batch}: silver has committed batches {known}; `sessionlake status` shows them")
    merges = ledger.where(F.col("layer") == MERGES).select("source_to", "outputs").orderBy("source_to").collect()
    ends = [row["source_to"] for row in merges if row["source_to"] <= batch]
    if not ends:
        first = f"the first merge ended at batch {merges[0]['source_to']}" if merges else "none has been merged yet"
        raise LakeError(f"batch {batch}: session_rows and sessions were not merged by then; {first}")
    versions = {out["table"]: out["version"] for row in merges[: len(ends)] for out in row["outputs"]}
    return AsOfBatch(lake, batch, ends[-1], versions)
