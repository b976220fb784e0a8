"""All silver tables as of one batch of the ledger, consistently.

The append-only tables name the batch of each row. The merged ones take in several batches at once, so what is
consistent is the end of a merge: of the batches up to the one asked for, the last that a merge ended with. As of that
batch the append-only tables hold the rows of all batches up to it, and the merged ones are read at the versions that
the ledger notes for it. Batches from before a rebuild of silver are read at the versions of then, as long as Delta has
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.books import Books, rows_of
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
from sessionlake.lake.progress import windows
from sessionlake.lake.reading import Condition, TableReader, among
from sessionlake.lake.retained import cut_of, heads
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import REBUILD
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SILVER_WRITES = (CHANGES, PROGRESS, CUTS, ROWS, SESSIONS, SNAPSHOTS, SNAPSHOT_INDEX, QUARANTINE, EVENTS)
"""What silver's stream and the merges beside it write."""
_BATCH = "_batch"
_LAYERS: Condition = ("layer", among, [SILVER, SILVER_TABLES])
_NOTED = ("source_to", "outputs")


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
        by_rows = appended and not self.rebuilt
        found = cut_of(self.lake.reader(spark), table) if by_rows else None
        if found is not None and found.batch > self.batch:
            raise LakeError(
                f"{found.since}, of batches up to {found.batch}: it can be read as of that batch, or a later one, not "
                f"of {self.batch}"
            )
        # A table that nothing had been written to by then is as it was created.
        version = None if by_rows else self.versions.get(table, 0)
        frame = self.lake.read(spark, table, version)
        return frame.where(F.col(_BATCH) <= self.batch) if appended else frame


def as_of_batch(spark: SparkSession, settings: Settings, batch: int) -> AsOfBatch:
    """Silver as of a batch of the ledger's layer `silver`.

    Raises:
        LakeError: there is no such batch, or no merge ended at or before it.
    """
    lake = Lake(settings)
    if not lake.exists(spark, LEDGER):
        raise LakeError(f"silver has committed no batch in {settings.home} yet: `sessionlake run all --once`")
    reader = lake.reader(spark)
    rows = list(rows_of(Books(reader, *_NOTED, "batches").entries(_LAYERS)))
    committed = max((row["batch_id"] for row in rows if row["layer"] == SILVER), default=-1)
    if not 0 <= batch <= committed:
        known = "none yet" if committed < 0 else f"0 to {committed}"
        raise LakeError(f"batch {batch}: silver has committed batches {known}; `sessionlake status` shows them")
    reached = _merged(rows, batch)
    # Sums that reach beyond say nothing of what was before it.
    hidden = any(row["batches"] > 1 and (reached is None or _end(row) > reached) for row in rows)
    end, versions = _found(reader, rows, batch) if hidden else _as_of(rows, batch)
    rebuilt = any(_end(row) > end and row["app_id"].startswith(REBUILD) for row in rows)
    return AsOfBatch(lake, batch, end, versions, rebuilt)


def _end(row: Row) -> int:
    """The last of silver's batches that a row of the ledger is about."""
    return int(row["batch_id"] if row["layer"] == SILVER else row["source_to"])


def _found(reader: TableReader, rows: Sequence[Row], batch: int) -> tuple[int, dict[str, int]]:
    """As `_as_of`, by the ledger's own rows, from the latest back to where all is found.

    Args:
        rows: among them sums, which are of later batches, too.
    """
    written = {output["table"] for row in rows for output in row["outputs"]}
    columns = ["layer", "batch_id", *_NOTED]
    for window in windows(max(row["committed_at"] for row in rows)):
        entries = list(reader.rows(LEDGER, _LAYERS, *window, columns=columns))
        end = _merged(entries, batch)
        if end is not None and _versions(entries, end).keys() == written:
            break
    else:
        cut = heads(reader).get(LEDGER)
        if cut is not None:  # which table had which version may be among what is gone
            raise LakeError(f"batch {batch}: {cut.since}, and does not say what it left")
    return _as_of(entries, batch)


def _as_of(rows: Sequence[Row], batch: int) -> tuple[int, dict[str, int]]:
    """The last batch up to one that a merge ended with, and the tables' versions that belong to it.

    Raises:
        LakeError: no merge ended by then.
    """
    end = _merged(rows, batch)
    if end is None:
        first = min((_end(row) for row in rows if row["layer"] == SILVER_TABLES), default=None)
        known = "none has been merged yet" if first is None else f"the first merge ended with batch {first}"
        raise LakeError(f"batch {batch}: session_rows and sessions were not merged by then; {known}")
    return end, _versions(rows, end)


def _merged(rows: Iterable[Row], batch: int) -> int | None:
    ends = (_end(row) for row in rows if row["layer"] == SILVER_TABLES)
    return max((end for end in ends if end <= batch), default=None)


def _versions(rows: Iterable[Row], end: int) -> dict[str, int]:
    known = sorted((row for row in rows if _end(row) <= end), key=lambda row: (_end(row), row["layer"]))
    return {output["table"]: output["version"] for row in known for output in row["outputs"]}
