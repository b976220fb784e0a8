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
from sessionlake.ledger.books import VERSIONS, LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.progress import iterate_commit_time_windows
from sessionlake.ledger.retained import read_removal_record_of_table, read_removal_records_without_limits
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
class SilverTablesAsOfBatch:
    """Silver's tables as they were after one batch of the ledger.

    Attributes:
        lake: The lake.
        requested_batch: The batch that was asked for.
        batch: The batch as of which tables are read: the last one, up to `requested_batch`, with which a merge ended.
        versions: The Delta version to read, by table. It has the tables whose rows have no batch number; if silver was
            rebuilt since, it has all tables.
        rebuilt: True if silver was rebuilt since. Rows then have the number of the rebuild instead of their batch.
    """

    lake: Lake
    requested_batch: int
    batch: int
    versions: Mapping[str, int]
    rebuilt: bool

    def read_table(self, spark: SparkSession, table: str) -> DataFrame:
        """Returns one of silver's tables as of the batch.

        Raises:
            LakeError: Silver has no such table, or retention has removed rows that belong to it.
        """
        from pyspark.sql import functions as F

        if table not in SILVER_WRITES:
            raise LakeError(
                f"{table} is not a table that silver's batches write, so it has no state as of a batch",
                fix=f"Name one of {', '.join(SILVER_WRITES)}",
            )
        appended = _is_append_only_table(table)
        by_rows = appended and not self.rebuilt
        found = read_removal_record_of_table(self.lake.reader(spark), table) if by_rows else None
        if found is not None and found.batch > self.batch:
            raise LakeError(
                f"{found.removal_description}, of batches up to {found.batch}, so the table cannot be read as of "
                f"batch {self.batch}",
                fix=f"Choose batch {found.batch} or a later one",
            )
        # Version 0: nothing had been written to the table by then.
        version = None if by_rows else self.versions.get(table, 0)
        frame = self.lake.read(spark, table, version)
        return frame.where(F.col(_BATCH) <= self.batch) if appended else frame


def as_of_batch(spark: SparkSession, settings: Settings, batch: int) -> SilverTablesAsOfBatch:
    """Returns silver's tables as they were after a batch of silver in the ledger.

    Raises:
        LakeError: Silver has not committed this batch, or no merge ended with it or an earlier one.
    """
    lake = Lake(settings)
    if not lake.exists(spark, LEDGER):
        raise LakeError(
            f"silver has committed no batch in {settings.home} yet",
            fix="Run `sessionlake run all --once`, which commits the first one, or name another home "
            "with SESSIONLAKE_HOME",
        )
    reader = lake.reader(spark)
    books = LedgerReader(reader, "source_to", "outputs", "batches", VERSIONS)
    known = _SilverLedgerSummary().add_ledger_entries(iterate_rows_as_dicts(books.read_entries(_LAYERS)), batch)
    if not 0 <= batch <= known.committed:
        committed = "none yet" if known.committed < 0 else f"0 to {known.committed}"
        raise LakeError(
            f"silver has no batch {batch}: it has committed the batches {committed}",
            fix="Choose one of these. `sessionlake status` shows the last batch of each layer",
        )
    if known.summed <= known.merged >= 0:
        end, versions = known.merged, _find_table_versions_after_batch(books.read_entries(_LAYERS), known.merged)
    else:  # an entry that sums up batches beyond this one does not say what was true before
        end, versions = _find_last_merged_batch_and_table_versions(reader, known, batch)
    versioned_tables = known.find_tables_needing_time_travel(end)
    return SilverTablesAsOfBatch(
        lake,
        batch,
        end,
        {table: one for table, one in versions.items() if table in versioned_tables},
        known.is_silver_rebuilt_after_batch(end),
    )


def _is_append_only_table(table: str) -> bool:
    """Returns True if the table is append-only: each row has the number of the batch that wrote it."""
    return any(name == _BATCH for name, _ in TABLES[table].column_types)


@dataclass
class _SilverLedgerSummary:
    """A summary of all ledger entries of silver and its merges. An old entry may stand for several batches.

    Attributes:
        committed: Silver's last batch; -1 before the first.
        merged: The last batch, up to the requested one, with which a merge is known to have ended; -1 if there is none.
        latest: When the last entry was committed.
        summed: The last batch of an entry that stands for several batches; -1 if there is none.
        rebuilds: The numbers of the batches that were rebuilds of silver.
        last_writes: For each table, when it was last written, and its version after that (None if not known).
    """

    committed: int = -1
    merged: int = -1
    latest: datetime = _NEVER
    summed: int = -1
    rebuilds: list[int] = field(default_factory=list)
    last_writes: dict[str, tuple[datetime, int | None]] = field(default_factory=dict)

    def add_ledger_entries(self, ledger_rows: Iterable[Row], requested_batch: int) -> Self:
        """Adds ledger entries to the summary and returns it.

        Args:
            ledger_rows: The entries, also those after the requested batch.
            requested_batch: The requested batch.
        """
        for row in ledger_rows:
            self.latest = max(self.latest, row["committed_at"])
            if row["layer"] == SILVER:
                end = row["batch_id"]
                self.committed = max(self.committed, end)
            else:
                end = row["source_to"]
                self.merged = max(self.merged, end) if end <= requested_batch else self.merged
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

    def is_silver_rebuilt_after_batch(self, last_batch: int) -> bool:
        """Returns True if silver was rebuilt after the batch `last_batch`."""
        return any(batch > last_batch for batch in self.rebuilds)

    def find_tables_needing_time_travel(self, last_batch: int) -> set[str]:
        """Returns the tables that must be read at an old Delta version to see them as of the batch `last_batch`."""
        return {
            table
            for table in self.last_writes
            if self.is_silver_rebuilt_after_batch(last_batch) or not _is_append_only_table(table)
        }

    def find_versions_of_tables_unwritten_since(self, moment: datetime) -> dict[str, int]:
        """Returns the current version of each merged table that was last written before `moment`.

        Append-only tables are left out, because silver's stream may already have written batches that are not merged.
        """
        return {
            table: version
            for table, (last, version) in self.last_writes.items()
            if version is not None and last < moment and not _is_append_only_table(table)
        }


def _find_last_merged_batch_and_table_versions(
    reader: TableReader, summary: _SilverLedgerSummary, batch: int
) -> tuple[int, dict[str, int]]:
    """Returns the last batch, up to `batch`, with which a merge ended, and the tables' versions after that batch.

    The ledger's entries are read from the latest backwards, until all versions are found.

    Args:
        reader: Reads the ledger.
        summary: A summary of the ledger's entries.
        batch: The requested batch.

    Raises:
        LakeError: No merge ended up to this batch, or retention has removed the entries that record it.
    """
    for window in iterate_commit_time_windows(summary.latest):
        ends = _list_last_silver_batch_per_merge(reader.read_batches(LEDGER, _LAYERS, *window, columns=_END))
        end = max((end for end in ends if end <= batch), default=None)
        if end is None:
            continue
        versions = summary.find_versions_of_tables_unwritten_since(window[0][2]) if window else {}
        versions |= _find_table_versions_after_batch(
            reader.read_batches(LEDGER, _LAYERS, *window, columns=[*_END, "outputs"]), end
        )
        if versions.keys() >= summary.find_tables_needing_time_travel(end):
            break
    else:
        cut = read_removal_records_without_limits(reader).get(LEDGER)
        if cut is not None:  # the removed entries may have had the versions
            raise LakeError(
                f"{cut.removal_description}, so it is not known which version each table had after batch {batch}",
                fix="Choose a later batch",
            )
    if end is None:
        first = min(_list_last_silver_batch_per_merge(reader.read_batches(LEDGER, _LAYERS, columns=_END)), default=None)
        merged = "none has been merged yet" if first is None else f"the first merge ended with batch {first}"
        raise LakeError(
            f"session_rows and sessions never had exactly the state after batch {batch}; {merged}",
            why="Silver merges several batches at once into these tables, and no merge ended with this batch",
            fix="Choose a batch with which a merge ended, or a later one",
        )
    return end, versions


def _compute_last_silver_batch_per_entry(entries: pa.RecordBatch) -> pa.Array:
    """Returns, for each ledger entry of silver or of its merges, the last silver batch that the entry covers."""
    return pc.if_else(pc.equal(entries["layer"], SILVER), entries["batch_id"], entries["source_to"])


def _list_last_silver_batch_per_merge(entries: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yields, for each merge in the ledger entries, the last silver batch that it merged."""
    for part in entries:
        yield from part["source_to"].filter(pc.equal(part["layer"], SILVER_TABLES)).to_pylist()


def _find_table_versions_after_batch(entries: Iterable[pa.RecordBatch], last_batch: int) -> dict[str, int]:
    """Returns each table's Delta version after silver batch `last_batch`, by table name."""
    found: dict[str, tuple[int, str, int]] = {}
    for part in entries:
        kept = part.filter(pc.less_equal(_compute_last_silver_batch_per_entry(part), last_batch))
        lists = kept["outputs"]
        outputs, of = lists.flatten(), pc.list_parent_indices(lists)
        columns = {"end": _compute_last_silver_batch_per_entry(kept).take(of), "layer": kept["layer"].take(of)}
        named = {name: pc.struct_field(outputs, name) for name in ("table", "version")}
        rows = pa.table(columns | named).sort_by([("end", "ascending"), ("layer", "ascending")])
        lasts = [(name, "last") for name in ("end", "layer", "version")]
        for row in rows.group_by("table", use_threads=False).aggregate(lasts).to_pylist():
            last = row["end_last"], row["layer_last"], row["version_last"]
            if row["table"] not in found or last[:2] >= found[row["table"]][:2]:
                found[row["table"]] = last
    return {table: version for table, (_, _, version) in found.items()}
