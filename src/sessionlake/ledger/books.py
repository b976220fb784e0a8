"""Reads the ledger quickly: recent entries, and sums of older ones from `ops.positions`.

A row of `ops.positions` sums a layer's entries with one application id that were committed before a moment (`until`).
There are two kinds:

- Copies sum entries that the ledger still has. They are used only if the copied entries plus the later ones are as many
  as the ledger's log counts. This detects entries whose clock was wrong, and a ledger that was restored. Otherwise the
  whole ledger is read.
- Carried sums stand for entries that retention has removed. If the ledger still has such entries, they are being
  removed and are ignored.
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

FORMAT = 3
"""Format of the copied sums. Copies of another format are ignored and computed again."""
CARRIED = 2
"""Value of `format` in carried sums."""
ENTRY = ("layer", "app_id", "batch_id", "committed_at")
"""Columns that every row has. In a sum they describe its last batch."""
SUMS = ("batches", "unaccounted")
"""Columns of sums only: the number of entries, and the messages that are in none of their other counts."""
VERSIONS = "table_versions"
"""Another column of sums: the version at which the last entry with an output to a table left it, and when."""
TABLE_VERSIONS = pa.list_(
    pa.struct([("table", pa.string()), ("version", pa.int64()), ("committed_at", pa.timestamp("us", tz="UTC"))])
)
"""The type of the column `VERSIONS`."""
# Ledger columns from which the columns of sums are computed.
_MADE_OF: Mapping[str, Sequence[str]] = {"batches": (), "unaccounted": COUNTS, VERSIONS: ("outputs", "committed_at")}
# At most this many ledger rows are in memory at once.
_AT_ONCE = 50_000
# Layers whose batch numbers keep rising through a rebuild. Those of other layers start again at 0.
_RISING = {SILVER: "batch_id", SILVER_TABLES: "batch_id"}


class StoredSums(NamedTuple):
    """The rows of `ops.positions`: copies (None if not usable) and carried sums."""

    copies: pa.Table | None
    carried: pa.Table

    @property
    def removed_before(self) -> datetime | None:
        """The moment before which entries were removed; None if none were."""
        return self.carried["until"][0].as_py() if self.carried.num_rows else None

    @property
    def ledger_conditions(self) -> list[list[Condition]]:
        """Conditions under which the ledger is read: first entries from the moment of removal on, then earlier ones."""
        if self.removed_before is None:
            return [[]]
        return [[("committed_at", ge, self.removed_before)], [("committed_at", lt, self.removed_before)]]

    def drop_summed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the ledger's rows without those that the carried sums stand for."""
        if self.removed_before is None:
            return batch
        known = self.carried
        names, known_names = _layer_and_app(batch), _layer_and_app(known)
        last = known["batch_id"].combine_chunks().take(pc.index_in(names, value_set=known_names))
        old = pc.less(
            batch.column("committed_at"), pa.scalar(self.removed_before, batch.schema.field("committed_at").type)
        )
        gone = pc.and_(old, pc.fill_null(pc.less_equal(batch.column("batch_id"), last), fill_value=False))
        return batch.filter(pc.invert(gone))


def _layer_and_app(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Returns layer and application id of each row joined into one text."""
    parts = [rows.column(name) for name in ("layer", "app_id")]
    joined = pc.binary_join_element_wise(*parts, "\0")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def stored_sums(reader: TableReader) -> StoredSums:
    """Reads `ops.positions`. There are no copies if the table is missing or has another format."""
    if not reader.exists(POSITIONS):
        return StoredSums(None, pa.table({}))
    known = reader.table(POSITIONS)
    copies = known.filter(pc.field("format") != CARRIED)
    usable = pc.unique(copies["format"]).to_pylist() == [FORMAT]
    return StoredSums(copies if usable else None, known.filter(pc.field("format") == CARRIED))


class LastRebuild(NamedTuple):
    """The last rebuild of a layer: rows are current if their column `column` is at least `since`."""

    column: str
    since: Any


Rebuilds = Mapping[str, LastRebuild]
"""The last rebuild of each layer."""


class LedgerReader:
    """Reads the ledger's rows, some of them summed. Rows have the columns `ENTRY` and those asked for.

    Args:
        columns: further columns of the ledger or of `SUMS`.
        before: a batch that will be repeated; it and later ones are left out. None: no batch is left out.
        every_entry: True to read each entry that the ledger has, without copied sums.
        include_carried: False to leave out the sums of removed entries.
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
        sums = stored_sums(reader)
        self._carried = sums.carried.to_batches() if include_carried else []
        self._sums = sums
        self._short = None if every_entry else _copies_and_later(reader, self._columns, before, sums)
        _refuse_carried(before, sums)

    @property
    def uses_copies(self) -> bool:
        """True if old rows are copied sums."""
        return self._short is not None

    @property
    def has_sums(self) -> bool:
        """True if old rows are sums, copied or carried."""
        return self.uses_copies or self._sums.removed_before is not None

    def entries(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """Yields all rows that meet the conditions on columns of `ENTRY`. A sum meets them by its last batch."""
        for batch in self._read(conditions, self._columns):
            yield from self._without_excluded(batch)

    def current(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each layer since its last rebuild.

        Args:
            conditions: on the column `layer` only.
        """
        batches = self._read(conditions, self._columns)
        first = list(_up_to(_AT_ONCE, batches))
        # If all rows are in memory, their rebuilds are known without another read.
        since = last_rebuilds(first) if sum(batch.num_rows for batch in first) <= _AT_ONCE else self.rebuilds()
        for batch in chain(first, batches):
            yield from self._without_excluded(batch.filter(current_mask(batch, since)))

    def rebuilds(self) -> Rebuilds:
        """Returns the last rebuild of each layer that was rebuilt."""
        return last_rebuilds(self._read([("app_id", starts_with, REBUILD)], ENTRY))

    def _read(self, conditions: Sequence[Condition], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._short is None:
            for when in self._sums.ledger_conditions:
                for batch in self._reader.batches(LEDGER, *conditions, *when, columns=_of_ledger([*ENTRY, *columns])):
                    yield as_sums(self._sums.drop_summed(batch), columns)
        for batch in (*self._carried, *(self._short or ())):
            meets = [compare(pc.field(name), value) for name, compare, value in conditions]
            found = pa.Table.from_batches([batch])
            for wanted in meets:
                found = found.filter(wanted)
            yield from found.select(list(columns)).to_batches()

    def _without_excluded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches([batch])
        if self._before is not None:
            behind = (pc.field("app_id") == self._before.app_id) & (pc.field("batch_id") >= self._before.version)
            rows = rows.filter(~behind)
        yield from rows.to_batches()


def _up_to(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields batches until they have more than this many rows."""
    for batch in batches:
        yield batch
        rows -= batch.num_rows
        if rows < 0:
            return


def to_dicts(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yields the rows as dictionaries, with times in UTC."""
    for batch in batches:
        yield from batch.to_pylist()


def last_rebuilds(batches: Iterable[pa.RecordBatch]) -> Rebuilds:
    """Returns the last rebuild of each layer in rows that have the columns `ENTRY`."""
    found: dict[str, LastRebuild] = {}
    for batch in batches:
        named = batch.filter(pc.starts_with(batch.column("app_id"), REBUILD))
        for row in named.select(ENTRY).to_pylist():
            layer, by = row["layer"], _RISING.get(row["layer"], "committed_at")
            found[layer] = LastRebuild(by, max(row[by], found.get(layer, LastRebuild(by, row[by])).since))
    return found


def current_mask(batch: pa.RecordBatch, since: Rebuilds) -> pa.BooleanArray:
    """Returns which rows belong to the time since their layer's last rebuild."""
    counts = pa.array([True] * batch.num_rows, pa.bool_())
    for layer, (by, least) in since.items():
        column = batch.column(by)
        later = pc.greater_equal(column, pa.scalar(least, column.type))
        counts = pc.and_(counts, pc.or_(pc.not_equal(batch.column("layer"), layer), later))
    return counts


def as_sums(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns ledger entries with these columns, each as the sum of one entry."""
    found = {name: batch.column(name) for name in columns if name not in _MADE_OF}
    if VERSIONS in columns:
        found[VERSIONS] = _table_versions(batch)
    if "batches" in columns:
        found["batches"] = pa.array([1] * batch.num_rows, pa.int64())
    if "unaccounted" in columns:
        left = batch.column(COUNTS[0])
        for name in COUNTS[1:]:
            left = pc.subtract(left, batch.column(name))
        found["unaccounted"] = pc.abs(left)
    return pa.RecordBatch.from_pydict({name: found[name] for name in columns})


def _table_versions(batch: pa.RecordBatch) -> pa.ListArray:
    """Returns, for each entry, the versions at which it left the tables that it wrote."""
    lists = batch.column("outputs")
    outputs = lists.flatten()
    times = batch.column("committed_at").take(pc.list_parent_indices(lists))
    fields = [pc.struct_field(outputs, "table"), pc.struct_field(outputs, "version"), times]
    items = [column.cast(field.type) for column, field in zip(fields, TABLE_VERSIONS.value_type, strict=True)]
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(items, fields=[*TABLE_VERSIONS.value_type]))


def _of_ledger(columns: Sequence[str]) -> list[str]:
    """Returns the ledger's columns from which these columns are computed."""
    return list(dict.fromkeys(name for column in columns for name in _MADE_OF.get(column, (column,))))


def _copies_and_later(
    reader: TableReader, columns: Sequence[str], before: Txn | None, sums: StoredSums
) -> list[pa.RecordBatch] | None:
    """Returns the copied sums and the later entries; None if copies cannot be used."""
    copies = sums.copies
    if copies is None or not reader.exists(LEDGER):
        return None
    if before is not None:
        same = copies.filter(pc.field("app_id") == before.app_id)
        if same.num_rows and pc.max(same["batch_id"]).as_py() >= before.version:
            return None
    since = ("committed_at", ge, copies["until"][0].as_py())
    entries, known = reader.read_with_count(LEDGER, since, columns=_of_ledger(columns))
    if pc.sum(copies["batches"]).as_py() + entries.num_rows != known - _count_leftover(reader, sums):
        return None
    late = [as_sums(batch, columns) for batch in entries.to_batches()]
    return [*copies.select(list(columns)).to_batches(), *late]


def _count_leftover(reader: TableReader, sums: StoredSums) -> int:
    """Counts the removed entries that the ledger still has."""
    if sums.removed_before is None:
        return 0
    early = reader.batches(LEDGER, ("committed_at", lt, sums.removed_before), columns=list(ENTRY))
    return sum(batch.num_rows - sums.drop_summed(batch).num_rows for batch in early)


def _refuse_carried(before: Txn | None, sums: StoredSums) -> None:
    """Checks that no batch to leave out is inside a carried sum.

    Raises:
        LakeError: the batch's entry was removed.
    """
    if before is None or sums.removed_before is None:
        return
    same = sums.carried.filter(pc.field("app_id") == before.app_id)
    if same.num_rows and pc.max(same["batch_id"]).as_py() >= before.version:
        raise LakeError(
            f"{same['layer'][0].as_py()}: the checkpoint repeats batch {before.version}, but the entries of {LEDGER} "
            f"before {sums.removed_before:%Y-%m-%d %H:%M:%SZ} were removed by maintain.retention",
            fix="Restore the newer checkpoint",
        )
