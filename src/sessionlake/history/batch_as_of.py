"""All silver tables as of one batch of the ledger, consistently.

The append-only tables name the batch of each row. The merged ones take in several batches at once, so what is
consistent is the end of a merge: of the batches up to the one asked for, the last that a merge ended with. As of that
batch the append-only tables hold the rows of all batches up to it, and the merged ones are read at the versions that
the ledger notes for it. Batches from before a rebuild of silver are read at the versions of then, as long as Delta has
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
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
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import Condition, TableReader, is_in
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import LakeError
from sessionlake.ledger.books import VERSIONS, LedgerReader, to_dicts
from sessionlake.ledger.progress import search_windows
from sessionlake.ledger.retained import read_head, read_heads
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SILVER_WRITES = (CHANGES, PROGRESS, CUTS, ROWS, SESSIONS, SNAPSHOTS, SNAPSHOT_INDEX, QUARANTINE, EVENTS)
"""What silver's stream and the merges beside it write."""
_BATCH = "_batch"
_LAYERS: Condition = ("layer", is_in, [SILVER, SILVER_TABLES])
_END = ("layer", "batch_id", "source_to")
_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class AsOfBatch:
    """Which version of each of silver's tables belongs to one batch of the ledger.

    Attributes:
        asked: the batch that was asked for.
        batch: the batch that the tables are read as of: the end of the last merge that ended at or before it.
        versions: as that batch left them, of the tables whose rows do not name their batch; of all if silver was
            rebuilt since.
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
        appended = _is_appended(table)
        by_rows = appended and not self.rebuilt
        found = read_head(self.lake.reader(spark), table) if by_rows else None
        if found is not None and found.batch > self.batch:
            raise LakeError(
                f"{found.summary}, of batches up to {found.batch}: it can be read as of that batch, or a later one, "
                f"not of {self.batch}"
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
    books = LedgerReader(reader, "source_to", "outputs", "batches", VERSIONS)
    known = _Known().told(to_dicts(books.entries(_LAYERS)), batch)
    if not 0 <= batch <= known.committed:
        said = "none yet" if known.committed < 0 else f"0 to {known.committed}"
        raise LakeError(f"batch {batch}: silver has committed batches {said}; `sessionlake status` shows them")
    if known.summed <= known.merged >= 0:
        end, versions = known.merged, _versions(books.entries(_LAYERS), known.merged)
    else:  # sums that reach beyond say nothing of what was before it
        end, versions = _found(reader, known, batch)
    used = known.used(end)
    return AsOfBatch(
        lake, batch, end, {table: one for table, one in versions.items() if table in used}, known.is_rebuilt(end)
    )


def _is_appended(table: str) -> bool:
    """Whether a table's rows name the batch that they are of."""
    return any(name == _BATCH for name, _ in TABLES[table].columns)


@dataclass
class _Known:
    """What the ledger's entries say together; old ones may be sums.

    Attributes:
        committed: silver's last batch; -1 before the first.
        merged: the last batch up to the one asked for that a merge ended with, as far as it is known; or -1.
        latest: when the last entry was committed.
        summed: the last batch that a sum of several entries is about; -1 if there is none.
        rebuilds: the batches of silver's rebuilds.
        left: of each table that was written, when it was for the last time, and its version then.
    """

    committed: int = -1
    merged: int = -1
    latest: datetime = _NEVER
    summed: int = -1
    rebuilds: list[int] = field(default_factory=list)
    left: dict[str, tuple[datetime, int | None]] = field(default_factory=dict)

    def told(self, rows: Iterable[Row], batch: int) -> Self:
        """Takes in entries, one by one."""
        for row in rows:
            self.latest = max(self.latest, row["committed_at"])
            if row["layer"] == SILVER:
                end = row["batch_id"]
                self.committed = max(self.committed, end)
            else:
                end = row["source_to"]
                self.merged = max(self.merged, end) if end <= batch else self.merged
            if row["batches"] > 1:
                self.summed = max(self.summed, end)
            if row["app_id"].startswith(REBUILD):
                self.rebuilds.append(end)
            for output in row["outputs"]:
                self.left.setdefault(output["table"], (_NEVER, None))
            for one in row[VERSIONS] or ():
                last, _ = self.left.get(one["table"], (_NEVER, None))
                if one["committed_at"] >= last:
                    self.left[one["table"]] = one["committed_at"], one["version"]
        return self

    def is_rebuilt(self, end: int) -> bool:
        """Whether silver was rebuilt since a batch."""
        return any(batch > end for batch in self.rebuilds)

    def used(self, end: int) -> set[str]:
        """The tables that are read at their versions as of a batch."""
        return {table for table in self.left if self.is_rebuilt(end) or not _is_appended(table)}

    def idle_since(self, moment: datetime) -> dict[str, int]:
        """Versions of merged tables that nothing was written to since.

        Those of whoever is merged after that: silver itself, which writes the others, may be ahead of the merges.
        """
        return {
            table: version
            for table, (last, version) in self.left.items()
            if version is not None and last < moment and not _is_appended(table)
        }


def _found(reader: TableReader, known: _Known, batch: int) -> tuple[int, dict[str, int]]:
    """The last batch up to one that a merge ended with, and the versions that belong to it of the tables used.

    The ledger's own entries are looked through, from the latest back to where all is found.

    Raises:
        LakeError: no merge ended by then, or the entries that say it are gone.
    """
    for window in search_windows(known.latest):
        ends = _merges(reader.batches(LEDGER, _LAYERS, *window, columns=_END))
        end = max((end for end in ends if end <= batch), default=None)
        if end is None:
            continue
        versions = known.idle_since(window[0][2]) if window else {}
        versions |= _versions(reader.batches(LEDGER, _LAYERS, *window, columns=[*_END, "outputs"]), end)
        if versions.keys() >= known.used(end):
            break
    else:
        cut = read_heads(reader).get(LEDGER)
        if cut is not None:  # which table had which version may be among what is gone
            raise LakeError(f"batch {batch}: {cut.summary}, and does not say what it left")
    if end is None:
        first = min(_merges(reader.batches(LEDGER, _LAYERS, columns=_END)), default=None)
        said = "none has been merged yet" if first is None else f"the first merge ended with batch {first}"
        raise LakeError(f"batch {batch}: session_rows and sessions were not merged by then; {said}")
    return end, versions


def _ends(entries: pa.RecordBatch) -> pa.Array:
    """The last of silver's batches that each entry of the ledger is about."""
    return pc.if_else(pc.equal(entries["layer"], SILVER), entries["batch_id"], entries["source_to"])


def _merges(entries: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """The batches that merges ended with."""
    for part in entries:
        yield from part["source_to"].filter(pc.equal(part["layer"], SILVER_TABLES)).to_pylist()


def _versions(entries: Iterable[pa.RecordBatch], end: int) -> dict[str, int]:
    """The version that the last batch up to one, of those that wrote to it, left each table at."""
    found: dict[str, tuple[int, str, int]] = {}
    for part in entries:
        kept = part.filter(pc.less_equal(_ends(part), end))
        lists = kept["outputs"]
        outputs, of = lists.flatten(), pc.list_parent_indices(lists)
        columns = {"end": _ends(kept).take(of), "layer": kept["layer"].take(of)}
        named = {name: pc.struct_field(outputs, name) for name in ("table", "version")}
        rows = pa.table(columns | named).sort_by([("end", "ascending"), ("layer", "ascending")])
        lasts = [(name, "last") for name in ("end", "layer", "version")]
        for row in rows.group_by("table", use_threads=False).aggregate(lasts).to_pylist():
            last = row["end_last"], row["layer_last"], row["version_last"]
            if row["table"] not in found or last[:2] >= found[row["table"]][:2]:
                found[row["table"]] = last
    return {table: version for table, (_, _, version) in found.items()}
