"""What the ledger says, without reading all of it: entries of late, and before them the sums in `ops.positions`.

A row of `ops.positions` is the sum of a layer's entries under one application id, of all that were committed before a
moment (`until`). It is only a copy, and trusted only if it and the entries since are as many as the log says that the
ledger has: so nothing is missed that came late, by a clock that was set back, nor believed of a ledger that was
restored. Else, as where there is no such table, the ledger is read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import ge
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.lake.ledger import COUNTS, REBUILD
from sessionlake.lake.names import LEDGER, POSITIONS, SILVER, SILVER_TABLES
from sessionlake.lake.reading import Condition, TableReader, begins_with
from sessionlake.lake.txn import Txn
from sessionlake.protocol.types import Row

FORMAT = 1
"""Of the sums; those of another format are not looked at, and made anew."""
ENTRY = ("layer", "app_id", "batch_id", "committed_at")
"""What every row has of the last batch that it is of."""
SUMS = ("batches", "unaccounted")
"""Columns of sums alone: how many entries there are, and how many of their messages became nothing."""
# Layers whose batch numbers go on rising through a rebuild; those of others begin anew.
_RISING = {SILVER: "batch_id", SILVER_TABLES: "batch_id"}


class Rebuilt(NamedTuple):
    """Since when a layer is as it is: rows count whose column `by` is at least `least`."""

    by: str
    least: Any


Rebuilds = Mapping[str, Rebuilt]
"""By layer."""


class Books:
    """The ledger's rows, of which old ones may be sums; they have the columns `ENTRY` and those asked for.

    Args:
        columns: of the ledger, and of `SUMS`.
        before: a batch that is left out, with all behind it: it is made again.
        whole: that no sums be gone by.
    """

    def __init__(self, reader: TableReader, *columns: str, before: Txn | None = None, whole: bool = False) -> None:
        self._reader = reader
        self._columns = list(dict.fromkeys([*ENTRY, *columns]))
        self._before = before
        self._short = None if whole else _in_short(reader, self._columns, before)

    @property
    def in_short(self) -> bool:
        """Whether old rows are sums."""
        return self._short is not None

    def entries(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """All rows that meet the conditions, which are on columns of `ENTRY`: of a sum, on its last batch."""
        for batch in self._read(conditions, self._columns):
            yield from self._kept(batch)

    def current(self, *conditions: Condition) -> Iterator[pa.RecordBatch]:
        """As `entries`, of the layers as they are now: without the rows from before their last rebuild."""
        since = self.rebuilds()
        for batch in self._read(conditions, self._columns):
            yield from self._kept(batch.filter(is_current(batch, since)))

    def rebuilds(self) -> Rebuilds:
        """The last rebuild of each layer that was rebuilt."""
        return rebuilds(self._read([("app_id", begins_with, REBUILD)], ENTRY))

    def _read(self, conditions: Sequence[Condition], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._short is None:
            for batch in self._reader.batches(LEDGER, *conditions, columns=_of_ledger(columns)):
                yield with_sums(batch, columns)
        for batch in self._short or ():
            meets = [compare(pc.field(name), value) for name, compare, value in conditions]
            found = pa.Table.from_batches([batch])
            for wanted in meets:
                found = found.filter(wanted)
            yield from found.select(list(columns)).to_batches()

    def _kept(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches([batch])
        if self._before is not None:
            behind = (pc.field("app_id") == self._before.app_id) & (pc.field("batch_id") >= self._before.version)
            rows = rows.filter(~behind)
        yield from rows.to_batches()


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Rows as dictionaries; times are aware, in UTC."""
    for batch in batches:
        yield from batch.to_pylist()


def rebuilds(batches: Iterable[pa.RecordBatch]) -> Rebuilds:
    """The last rebuild of each layer, of rows that have the columns `ENTRY`."""
    found: dict[str, Rebuilt] = {}
    for batch in batches:
        named = batch.filter(pc.starts_with(batch.column("app_id"), REBUILD))
        for row in named.select(ENTRY).to_pylist():
            layer, by = row["layer"], _RISING.get(row["layer"], "committed_at")
            found[layer] = Rebuilt(by, max(row[by], found.get(layer, Rebuilt(by, row[by])).least))
    return found


def is_current(batch: pa.RecordBatch, since: Rebuilds) -> pa.BooleanArray:
    """Which rows tell of a layer since its last rebuild."""
    counts = pa.array([True] * batch.num_rows, pa.bool_())
    for layer, (by, least) in since.items():
        column = batch.column(by)
        later = pc.greater_equal(column, pa.scalar(least, column.type))
        counts = pc.and_(counts, pc.or_(pc.not_equal(batch.column("layer"), layer), later))
    return counts


def with_sums(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Entries of the ledger, each as a sum of one, with these columns."""
    found = {name: batch.column(name) for name in columns if name not in SUMS}
    if "batches" in columns:
        found["batches"] = pa.array([1] * batch.num_rows, pa.int64())
    if "unaccounted" in columns:
        left = batch.column(COUNTS[0])
        for name in COUNTS[1:]:
            left = pc.subtract(left, batch.column(name))
        found["unaccounted"] = pc.abs(left)
    return pa.RecordBatch.from_pydict({name: found[name] for name in columns})


def _of_ledger(columns: Sequence[str]) -> list[str]:
    """The ledger's columns that these are made of."""
    counts = COUNTS if "unaccounted" in columns else ()
    return list(dict.fromkeys([*(name for name in columns if name not in SUMS), *counts]))


def _in_short(reader: TableReader, columns: Sequence[str], before: Txn | None) -> list[pa.RecordBatch] | None:
    """The sums and the entries since; None if there are none to go by."""
    if not reader.exists(POSITIONS) or not reader.exists(LEDGER):
        return None
    sums = reader.table(POSITIONS)
    if not sums.num_rows or pc.unique(sums["format"]).to_pylist() != [FORMAT]:
        return None
    if before is not None:
        same = sums.filter(pc.field("app_id") == before.app_id)
        if same.num_rows and pc.max(same["batch_id"]).as_py() >= before.version:
            return None
    since = ("committed_at", ge, sums["until"][0].as_py())
    entries, known = reader.counted(LEDGER, since, columns=_of_ledger(columns))
    if pc.sum(sums["batches"]).as_py() + entries.num_rows != known:
        return None
    late = [with_sums(batch, columns) for batch in entries.to_batches()]
    return [*sums.select(list(columns)).to_batches(), *late]
