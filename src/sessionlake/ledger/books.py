"""Reads the ledger quickly: recent entries, and sums of older entries from `ops.positions`.

A row of `ops.positions` sums the entries of one layer and one application id that were committed before the time
`until`. There are two kinds of sums:

- Copied sums (copies) repeat what the ledger still has. They are used only if the number of copied and later entries
  equals the row count in the ledger's Delta log. A difference means that an entry's clock was wrong or that the ledger
  was restored. Then the whole ledger is read.
- Carried sums replace entries that retention has removed. If the ledger still has such entries, they are being
  removed, and readers ignore them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import ge, lt
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import LEDGER, POSITIONS, SILVER, SILVER_TABLES
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.delta.storage.reading import Condition, TableReader, starts_with
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError
from sessionlake.protocol.types import Row

FORMAT = 4
"""Value of `format` in copied sums. Copies with another value are ignored and computed again."""
CARRIED = 2
"""Value of `format` in carried sums."""
ENTRY = ("layer", "app_id", "batch_id", "committed_at")
"""Columns that every row of a `LedgerReader` has. In a sum they describe the last summed batch."""
SUMS = ("batches", "unaccounted")
"""Columns that only sums have.

`batches` is the number of summed entries. `unaccounted` is the number of parts of messages that were read but not
counted as applied, duplicate, quarantined, held back or ignored, plus the number of messages without any part; it
should be 0.
"""
VERSIONS = "table_versions"
"""A column of sums: for each table that the summed entries wrote, its version after the last write, and when that was.

Its elements are structs `(table, version, committed_at)`.
"""
TABLE_VERSIONS = pa.list_(
    pa.struct([("table", pa.string()), ("version", pa.int64()), ("committed_at", pa.timestamp("us", tz="UTC"))])
)
"""Arrow type of the column `VERSIONS`."""
# For each column that only sums have: the ledger columns from which it is computed.
_MADE_OF: Mapping[str, Sequence[str]] = {
    "batches": (),
    "unaccounted": ("messages", *COUNTS),
    VERSIONS: ("outputs", "committed_at"),
}
# At most this many ledger rows are in memory at once.
_AT_ONCE = 50_000
# Layers whose batch numbers keep rising after a rebuild. The batch numbers of other layers start again at 0.
_RISING = {SILVER: "batch_id", SILVER_TABLES: "batch_id"}


class StoredLedgerSums(NamedTuple):
    """The rows of `ops.positions`: sums over many ledger entries, from which progress is read quickly.

    Attributes:
        copies: sums of entries that the ledger still has. None if there are none, or if another version of sessionlake
            wrote them in a format that this version does not read.
        carried: sums that replace entries which retention removed from the ledger; no rows if none were removed.
    """

    copies: pa.Table | None
    carried: pa.Table

    @property
    def removed_before(self) -> datetime | None:
        """Commit time before which all ledger entries were removed; None if none were removed."""
        return self.carried["until"][0].as_py() if self.carried.num_rows else None

    @property
    def ledger_read_conditions(self) -> list[list[Condition]]:
        """Conditions of the reads that together cover the ledger: one list of conditions per read.

        If retention has removed old entries, the first read gets the entries since `removed_before`. The second read
        gets older entries whose removal was interrupted.
        """
        if self.removed_before is None:
            return [[]]
        return [[("committed_at", ge, self.removed_before)], [("committed_at", lt, self.removed_before)]]

    def drop_entries_already_summed(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the ledger rows without those that a stored sum replaces, and that retention is about to remove."""
        if self.removed_before is None:
            return entries
        known = self.carried
        names, known_names = _join_layer_and_app_id(entries), _join_layer_and_app_id(known)
        last = known["batch_id"].combine_chunks().take(pc.index_in(names, value_set=known_names))
        old = pc.less(
            entries.column("committed_at"), pa.scalar(self.removed_before, entries.schema.field("committed_at").type)
        )
        gone = pc.and_(old, pc.fill_null(pc.less_equal(entries.column("batch_id"), last), fill_value=False))
        return entries.filter(pc.invert(gone))


def _join_layer_and_app_id(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Returns a text for each row: its layer, a zero character and its application id."""
    parts = [rows.column(name) for name in ("layer", "app_id")]
    joined = pc.binary_join_element_wise(*parts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def read_stored_sums(reader: TableReader) -> StoredLedgerSums:
    """Reads the sums in `ops.positions`. If the table is missing, the result has no sums."""
    if not reader.exists(POSITIONS):
        return StoredLedgerSums(None, pa.table({}))
    known = reader.read_arrow_table(POSITIONS)
    copies = known.filter(pc.field("format") != CARRIED)
    usable = pc.unique(copies["format"]).to_pylist() == [FORMAT]
    return StoredLedgerSums(copies if usable else None, known.filter(pc.field("format") == CARRIED))


class LastRebuild(NamedTuple):
    """The last rebuild of a layer, as a condition on ledger rows.

    Rows of the rebuild and later ones have `first_value` or more in `column`.

    Attributes:
        column: name of the ledger column to compare: `batch_id` or `committed_at`.
        first_value: the rebuild's own value in this column: a batch number or a time.
    """

    column: str
    first_value: Any


LastRebuilds = Mapping[str, LastRebuild]
"""The last rebuild of each layer, by the layer's name. Layers that were never rebuilt are missing."""


class LedgerReader:
    """Reads the ledger as Arrow rows. A row is one entry, or the sum of several old entries.

    Every row has the columns `layer`, `app_id`, `batch_id` and `committed_at`; in a sum, those of the last summed
    batch.

    Args:
        reader: reads the tables.
        columns: further columns of the ledger, or `batches`, `unaccounted` or `table_versions`, which only sums have.
        before: a batch that its query will run again. This batch and later ones of the query are left out. None to
            leave out no batch.
        every_entry: True to read each entry that the ledger still has, instead of sums of such entries.
        include_carried: False to leave out the sums that replace entries which retention removed.

    Raises:
        LakeError: retention removed the entry of the batch `before`, so a sum contains it.
    """

    def __init__(
        self,
        reader: TableReader,
        *columns: str,
        before: Txn | None = None,
        every_entry: bool = False,
        include_carried: bool = True,
    ) -> None:
        self._reader = reader
        self._columns = list(dict.fromkeys([*ENTRY, *columns]))
        self._before = before
        sums = read_stored_sums(reader)
        self._carried = sums.carried.to_batches() if include_carried else []
        self._sums = sums
        self._copies_and_later_entries = (
            None if every_entry else _read_copies_and_later_entries(reader, self._columns, before, sums)
        )
        _refuse_batch_already_in_sums(before, sums)

    @property
    def uses_sums_of_old_entries(self) -> bool:
        """True if sums from `ops.positions` are read in place of old entries that the ledger still has."""
        return self._copies_and_later_entries is not None

    @property
    def may_ledger_rows_be_sums(self) -> bool:
        """True if some of the rows that this object reads may be sums of several entries."""
        return self.uses_sums_of_old_entries or self._sums.removed_before is not None

    def read_entries(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """Yields all ledger rows that meet the conditions. A sum of entries meets them if the last summed batch does.

        Args:
            conditions: conditions on the columns `layer`, `app_id`, `batch_id` and `committed_at` only.
        """
        for batch in self._read_ledger_rows(conditions, self._columns):
            yield from self._drop_excluded_batches(batch)

    def read_entries_since_rebuild(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """Yields each layer's ledger rows since its last rebuild; all rows of layers that were never rebuilt.

        Args:
            conditions: further conditions, on the column `layer` only.
        """
        batches = self._read_ledger_rows(conditions, self._columns)
        first = list(_read_batches_until_row_limit(_AT_ONCE, batches))
        # If all rows are in memory, the rebuilds are found among them, without another read.
        since = (
            find_last_rebuilds(first)
            if sum(batch.num_rows for batch in first) <= _AT_ONCE
            else self.read_last_rebuilds()
        )
        for batch in chain(first, batches):
            yield from self._drop_excluded_batches(batch.filter(mask_entries_since_rebuild(batch, since)))

    def read_last_rebuilds(self) -> LastRebuilds:
        """Returns the last rebuild of each layer, by the layer's name. Layers that were never rebuilt are missing."""
        return find_last_rebuilds(self._read_ledger_rows([("app_id", starts_with, REBUILD)], ENTRY))

    def _read_ledger_rows(self, conditions: Sequence[Condition], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._copies_and_later_entries is None:
            for when in self._sums.ledger_read_conditions:
                for batch in self._reader.read_batches(
                    LEDGER, *conditions, *when, columns=_list_ledger_columns_for_sums([*ENTRY, *columns])
                ):
                    yield convert_entries_to_sums(self._sums.drop_entries_already_summed(batch), columns)
        for batch in (*self._carried, *(self._copies_and_later_entries or ())):
            meets = [compare(pc.field(name), value) for name, compare, value in conditions]
            found = pa.Table.from_batches([batch])
            for wanted in meets:
                found = found.filter(wanted)
            yield from found.select(list(columns)).to_batches()

    def _drop_excluded_batches(self, ledger_rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches([ledger_rows])
        if self._before is not None:
            behind = (pc.field("app_id") == self._before.app_id) & (pc.field("batch_id") >= self._before.version)
            rows = rows.filter(~behind)
        yield from rows.to_batches()


def _read_batches_until_row_limit(row_limit: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields record batches until they have more than `row_limit` rows together.

    The last one yielded exceeds the limit.
    """
    for batch in batches:
        yield batch
        row_limit -= batch.num_rows
        if row_limit < 0:
            return


def iterate_rows_as_dicts(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yields each row of the record batches as a dictionary by column name. Times are datetimes in UTC."""
    for batch in batches:
        yield from batch.to_pylist()


def find_last_rebuilds(entries: Iterable[pa.RecordBatch]) -> LastRebuilds:
    """Returns the last rebuild of each layer that is in these ledger rows, by the layer's name.

    Args:
        entries: rows with at least the columns `layer`, `app_id`, `batch_id` and `committed_at`.
    """
    found: dict[str, LastRebuild] = {}
    for batch in entries:
        named = batch.filter(pc.starts_with(batch.column("app_id"), REBUILD))
        for row in named.select(ENTRY).to_pylist():
            layer, by = row["layer"], _RISING.get(row["layer"], "committed_at")
            found[layer] = LastRebuild(by, max(row[by], found.get(layer, LastRebuild(by, row[by])).first_value))
    return found


def mask_entries_since_rebuild(entries: pa.RecordBatch, last_rebuilds: LastRebuilds) -> pa.BooleanArray:
    """Returns a boolean for each ledger row: True if its layer wrote it in the layer's last rebuild or later.

    It is True for all rows of layers that are missing in `last_rebuilds`, because they were never rebuilt.
    """
    counts = pa.array([True] * entries.num_rows, pa.bool_())
    for layer, (by, least) in last_rebuilds.items():
        column = entries.column(by)
        later = pc.greater_equal(column, pa.scalar(least, column.type))
        counts = pc.and_(counts, pc.or_(pc.not_equal(entries.column("layer"), layer), later))
    return counts


def convert_entries_to_sums(entries: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns ledger entries in the form of sums: one row for each entry, with 1 in the column `batches`.

    Args:
        entries: rows of `ops.ledger`.
        columns: the columns that the result has.
    """
    found = {name: entries.column(name) for name in columns if name not in _MADE_OF}
    if VERSIONS in columns:
        found[VERSIONS] = _collect_table_versions(entries)
    if "batches" in columns:
        found["batches"] = pa.array([1] * entries.num_rows, pa.int64())
    if "unaccounted" in columns:
        left = entries.column(COUNTS[0])
        for name in COUNTS[1:]:
            left = pc.subtract(left, entries.column(name))
        without_part = pc.max_element_wise(pc.subtract(entries.column("messages"), entries.column(COUNTS[0])), 0)
        found["unaccounted"] = pc.add(pc.abs(left), without_part)
    return pa.RecordBatch.from_pydict({name: found[name] for name in columns})


def _collect_table_versions(entries: pa.RecordBatch) -> pa.ListArray:
    """Returns a list of structs `(table, version, committed_at)` for each ledger entry: the tables that it wrote."""
    lists = entries.column("outputs")
    outputs = lists.flatten()
    times = entries.column("committed_at").take(pc.list_parent_indices(lists))
    fields = [pc.struct_field(outputs, "table"), pc.struct_field(outputs, "version"), times]
    items = [column.cast(field.type) for column, field in zip(fields, TABLE_VERSIONS.value_type, strict=True)]
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(items, fields=[*TABLE_VERSIONS.value_type]))


def _list_ledger_columns_for_sums(sum_columns: Sequence[str]) -> list[str]:
    """Returns the ledger columns from which these columns of sums are computed."""
    return list(dict.fromkeys(name for column in sum_columns for name in _MADE_OF.get(column, (column,))))


def _read_copies_and_later_entries(
    reader: TableReader, columns: Sequence[str], before: Txn | None, sums: StoredLedgerSums
) -> list[pa.RecordBatch] | None:
    """Returns the stored sums of entries that the ledger still has, and then the entries that are not in these sums.

    Returns None if the sums cannot be used. Their number of entries contradicts the ledger, or one of them contains the
    batch `before`, which its query will run again.
    """
    copies = sums.copies
    if copies is None or not reader.exists(LEDGER):
        return None
    if before is not None:
        same = copies.filter(pc.field("app_id") == before.app_id)
        if same.num_rows and pc.max(same["batch_id"]).as_py() >= before.version:
            return None
    since = ("committed_at", ge, copies["until"][0].as_py())
    entries, known = reader.read_rows_and_total_count(LEDGER, since, columns=_list_ledger_columns_for_sums(columns))
    if pc.sum(copies["batches"]).as_py() + entries.num_rows != known - _count_entries_already_summed(reader, sums):
        return None
    late = [convert_entries_to_sums(batch, columns) for batch in entries.to_batches()]
    return [*copies.select(list(columns)).to_batches(), *late]


def _count_entries_already_summed(reader: TableReader, sums: StoredLedgerSums) -> int:
    """Counts the old entries that are still in the ledger because their removal by retention was interrupted."""
    if sums.removed_before is None:
        return 0
    early = reader.read_batches(LEDGER, ("committed_at", lt, sums.removed_before), columns=list(ENTRY))
    return sum(batch.num_rows - sums.drop_entries_already_summed(batch).num_rows for batch in early)


def _refuse_batch_already_in_sums(before: Txn | None, sums: StoredLedgerSums) -> None:
    """Checks that retention has not yet added a batch that will run again to the sums of `ops.positions`.

    Its messages would be counted twice, because a single batch cannot be taken out of a sum.

    Args:
        before: the batch; None if no batch will run again.
        sums: the sums in `ops.positions`.

    Raises:
        LakeError: retention has added the batch to the sums, and removed its ledger entry.
    """
    if before is None or sums.removed_before is None:
        return
    same = sums.carried.filter(pc.field("app_id") == before.app_id)
    if same.num_rows and pc.max(same["batch_id"]).as_py() >= before.version:
        raise LakeError(
            f"{same['layer'][0].as_py()}: the checkpoint repeats batch {before.version}, which is so "
            f"old that maintain.retention has removed its entry from {LEDGER} (all before "
            f"{sums.removed_before:%Y-%m-%d %H:%M:%SZ})",
            why="So the checkpoint is much older than the tables",
            fix="Restore the newest backup of the checkpoint. Without one, run `sessionlake recover LAYER` (for a "
            "processor `sessionlake rebuild processor:NAME`)",
        )
