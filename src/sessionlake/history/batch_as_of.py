"""Reads all silver tables consistently as of one batch of the ledger.

Rows of append-only tables have the number of their batch. A merge writes several batches to the merged tables at once,
so all tables are consistent only where a merge ended. Silver is therefore read as of the last merge that ended at or
before the requested batch: append-only tables up to that batch, merged tables at the version in the ledger. Batches
before a rebuild of silver are read at the tables' old versions, as long as Delta still has them.
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
"""The tables that silver's stream and its merges write."""
_BATCH = "_batch"
_LAYERS: Condition = ("layer", is_in, [SILVER, SILVER_TABLES])
_END = ("layer", "batch_id", "source_to")
_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class AsOfBatch:
    """The versions of silver's tables that belong to one batch of the ledger.

    Attributes:
        lake: The lake.
        asked: The requested batch.
        batch: The batch that tables are read as of: the end of the last merge at or before the requested batch.
        versions: Versions after that batch, by table: of the tables whose rows have no batch number, or of all tables
            if silver was rebuilt since.
        rebuilt: True if silver was rebuilt since, so that rows have the number of the rebuild instead of the batch.
    """

    lake: Lake
    asked: int
    batch: int
    versions: Mapping[str, int]
    rebuilt: bool

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Returns one of silver's tables as of the batch.

        Raises:
            LakeError: Silver has no such table, or retention has removed rows that belong to it.
        """
        from pyspark.sql import functions as F

        if table not in SILVER_WRITES:
            raise LakeError(f"{table} is not a table of silver; its tables are {', '.join(SILVER_WRITES)}")
        appended = _is_appended(table)
        by_rows = appended and not self.rebuilt
        found = read_head(self.lake.reader(spark), table) if by_rows else None
        if found is not None and found.batch > self.batch:
            raise LakeError(
                f"{found.summary}, of batches up to {found.batch}, so it cannot be read as of batch {self.batch}",
                fix=f"Choose batch {found.batch} or a later one",
            )
        # Version 0: nothing had been written to the table by then.
        version = None if by_rows else self.versions.get(table, 0)
        frame = self.lake.read(spark, table, version)
        return frame.where(F.col(_BATCH) <= self.batch) if appended else frame


def as_of_batch(spark: SparkSession, settings: Settings, batch: int) -> AsOfBatch:
    """Returns the view of silver's tables as of a batch of the ledger's layer `silver`.

    Raises:
        LakeError: There is no such batch, or no merge ended at or before it.
    """
    lake = Lake(settings)
    if not lake.exists(spark, LEDGER):
        raise LakeError(
            f"silver has committed no batch in {settings.home} yet", fix="Run `sessionlake run all --once` to fill it"
        )
    reader = lake.reader(spark)
    books = LedgerReader(reader, "source_to", "outputs", "batches", VERSIONS)
    known = _LedgerSummary().with_entries(to_dicts(books.entries(_LAYERS)), batch)
    if not 0 <= batch <= known.committed:
        committed = "none yet" if known.committed < 0 else f"0 to {known.committed}"
        raise LakeError(
            f"batch {batch}: silver has committed batches {committed}",
            fix="Run `sessionlake status` for the last batch of each layer",
        )
    if known.summed <= known.merged >= 0:
        end, versions = known.merged, _versions(books.entries(_LAYERS), known.merged)
    else:  # an entry that sums up batches beyond this one does not say what was true before
        end, versions = _search_ledger(reader, known, batch)
    versioned_tables = known.versioned_tables(end)
    return AsOfBatch(
        lake,
        batch,
        end,
        {table: one for table, one in versions.items() if table in versioned_tables},
        known.is_rebuilt(end),
    )


def _is_appended(table: str) -> bool:
    """Returns True if the table's rows have the number of their batch."""
    return any(name == _BATCH for name, _ in TABLES[table].columns)


@dataclass
class _LedgerSummary:
    """What the ledger's entries say about silver. Old entries may be sums of several.

    Attributes:
        committed: Silver's last batch; -1 before the first.
        merged: The last batch up to the requested one at which a merge is known to have ended; -1 if none is known.
        latest: When the last entry was committed.
        summed: The last batch in an entry that sums up several; -1 if there is none.
        rebuilds: The batches of silver's rebuilds.
        last_writes: By table, when it was last written and its version after that.
    """

    committed: int = -1
    merged: int = -1
    latest: datetime = _NEVER
    summed: int = -1
    rebuilds: list[int] = field(default_factory=list)
    last_writes: dict[str, tuple[datetime, int | None]] = field(default_factory=dict)

    def with_entries(self, rows: Iterable[Row], batch: int) -> Self:
        """Adds the ledger's entries up to any batch, and returns itself.

        Args:
            rows: The entries.
            batch: The requested batch.
        """
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
                self.last_writes.setdefault(output["table"], (_NEVER, None))
            for write in row[VERSIONS] or ():
                last, _ = self.last_writes.get(write["table"], (_NEVER, None))
                if write["committed_at"] >= last:
                    self.last_writes[write["table"]] = write["committed_at"], write["version"]
        return self

    def is_rebuilt(self, end: int) -> bool:
        """Returns True if silver was rebuilt after a batch."""
        return any(batch > end for batch in self.rebuilds)

    def versioned_tables(self, end: int) -> set[str]:
        """Returns the tables that must be read at a version to see them as of a batch."""
        return {table for table in self.last_writes if self.is_rebuilt(end) or not _is_appended(table)}

    def idle_since(self, moment: datetime) -> dict[str, int]:
        """Returns the versions of merged tables that were not written after the moment.

        Other tables are left out, because silver writes them itself and may be ahead of the merges.
        """
        return {
            table: version
            for table, (last, version) in self.last_writes.items()
            if version is not None and last < moment and not _is_appended(table)
        }


def _search_ledger(reader: TableReader, known: _LedgerSummary, batch: int) -> tuple[int, dict[str, int]]:
    """Returns the batch at which the last merge up to `batch` ended, and the versions of tables that belong to it.

    It reads the ledger's single entries, from the latest back until everything is found.

    Raises:
        LakeError: No merge ended by then, or retention has removed the entries that say so.
    """
    for window in search_windows(known.latest):
        ends = _merge_ends(reader.batches(LEDGER, _LAYERS, *window, columns=_END))
        end = max((end for end in ends if end <= batch), default=None)
        if end is None:
            continue
        versions = known.idle_since(window[0][2]) if window else {}
        versions |= _versions(reader.batches(LEDGER, _LAYERS, *window, columns=[*_END, "outputs"]), end)
        if versions.keys() >= known.versioned_tables(end):
            break
    else:
        cut = read_heads(reader).get(LEDGER)
        if cut is not None:  # the removed entries may have had the versions
            raise LakeError(f"batch {batch}: {cut.summary}, so the tables' versions after this batch are not known")
    if end is None:
        first = min(_merge_ends(reader.batches(LEDGER, _LAYERS, columns=_END)), default=None)
        merged = "none has been merged yet" if first is None else f"the first merge ended with batch {first}"
        raise LakeError(f"batch {batch}: session_rows and sessions were not merged by then; {merged}")
    return end, versions


def _ends(entries: pa.RecordBatch) -> pa.Array:
    """Returns the last of silver's batches in each entry of the ledger."""
    return pc.if_else(pc.equal(entries["layer"], SILVER), entries["batch_id"], entries["source_to"])


def _merge_ends(entries: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yields the batches at which merges ended."""
    for part in entries:
        yield from part["source_to"].filter(pc.equal(part["layer"], SILVER_TABLES)).to_pylist()


def _versions(entries: Iterable[pa.RecordBatch], end: int) -> dict[str, int]:
    """Returns the version of each table after the last of the entries up to batch `end` that wrote to it."""
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
