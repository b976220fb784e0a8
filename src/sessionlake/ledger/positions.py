"""Maintains `ops.positions`, the sums of ledger entries. Maintenance writes them, not the layers' batches.

The sums cover entries committed up to five minutes before the ledger's latest entry. So they include no batch that a
layer may repeat after a crash. They also miss no entry that another process is just committing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import replace_rows_as_claim_holder
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, POSITIONS
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.delta.storage.reading import TableReader, starts_with
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import ClaimedByOtherProcessError, LakeError
from sessionlake.ledger.books import (
    CARRIED,
    FORMAT,
    SUMS,
    TABLE_VERSIONS,
    VERSIONS,
    LedgerReader,
    find_last_rebuilds,
    mask_entries_since_rebuild,
    read_stored_sums,
)
from sessionlake.ledger.retained import CLAIM
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The sums end this long before the latest entry: longer than the time between an entry's timestamp and its commit.
_LAG = timedelta(minutes=5)
# If fewer entries can be summed, reading sums saves no time.
_WORTHWHILE = 500
# At most this many rows are in memory at once while a long ledger is summed.
_AT_ONCE = 50_000

_TIME = pa.timestamp("us", tz="UTC")
_PLACE = [("topic", pa.string()), ("partition", pa.int32())]
_OFFSETS = pa.struct([*_PLACE, *((name, pa.int64()) for name in ("first", "last", "messages"))])
_OUTPUTS = pa.struct([("table", pa.string()), ("version", pa.int64()), ("rows", pa.int64())])
_TAKEN = [*_PLACE, ("session_id", pa.string()), ("offset", pa.int64()), ("decision", pa.string())]
SCHEMA = pa.schema(
    [
        ("layer", pa.string()),
        ("app_id", pa.string()),
        ("batch_id", pa.int64()),
        ("batches", pa.int64()),
        ("source_to", pa.int64()),
        ("offsets", pa.list_(_OFFSETS)),
        ("outputs", pa.list_(_OUTPUTS)),
        *((name, pa.int64()) for name in ("messages", *COUNTS, "unaccounted")),
        ("committed_at", _TIME),
        ("decisions", pa.list_(pa.struct(_TAKEN))),
        ("until", _TIME),
        ("format", pa.int32()),
        (VERSIONS, TABLE_VERSIONS),
    ]
)
"""Arrow schema of `ops.positions`."""

_HIGHEST = ("batch_id", "source_to", "committed_at")
_TOTALS = (*SUMS, "messages", *COUNTS)
# Columns with lists: the fields that identify an element, and how its other fields are aggregated.
_LISTS = {
    "offsets": (("topic", "partition"), {"first": "min", "last": "max", "messages": "sum"}),
    "outputs": (("table",), {"version": "max", "rows": "sum"}),
    "decisions": (("topic", "partition", "session_id", "offset", "decision"), {}),
    VERSIONS: (("table",), {"committed_at": "last", "version": "last"}),
}
_COLUMNS = (*_HIGHEST, *_TOTALS, *_LISTS)
# Rows before and after their layer's last rebuild are summed separately: `current` is True after it.
_KEY = ("layer", "app_id", "current")
_SUMMED = pa.schema([*(field for field in SCHEMA if field.name in {*_KEY, *_COLUMNS}), ("current", pa.bool_())])


def update_ledger_sums(spark: SparkSession, lake: Lake) -> bool:
    """Sums the ledger's entries into `ops.positions`, if at least 500 entries are not in a sum yet.

    The entries stay in the ledger. The sums make reading progress faster.

    Returns:
        True if the sums were updated; False if too few entries are new or another process holds the claim for it.
    """
    books = LedgerReader(lake.reader(spark), *_COLUMNS, include_carried=False)
    times = [batch.column("committed_at") for batch in books.read_entries()]
    latest = pc.max(pa.chunked_array(times, _TIME)).as_py()
    if latest is None:
        return False
    until = latest - _LAG
    if sum(pc.sum(_mask_earlier_times(part, until)).as_py() or 0 for part in times) < _WORTHWHILE:
        return False
    with suppress(ClaimedByOtherProcessError), lake.storage.hold_exclusive_claim(spark, CLAIM, "sums the ledger up"):
        # Carried sums are not copies and must stay. Another process may have changed them since the first read.
        reader = lake.reader(spark)
        known = read_stored_sums(reader).carried
        own = sum_ledger_entries(LedgerReader(reader, *_COLUMNS, include_carried=False).read_entries, until)
        sums = pa.concat_tables([own, known.cast(SCHEMA)]) if known.num_rows else own
        replace_rows_as_claim_holder(spark, lake, POSITIONS, sums)
        return True
    return False


def write_sums_of_old_entries(spark: SparkSession, lake: Lake, cutoff: datetime) -> None:
    """Writes sums of all ledger entries committed before `cutoff`, so that retention can then remove these entries.

    Sums of entries that stay in the ledger are dropped; `update_ledger_sums` computes them again. The caller must hold
    `retained.CLAIM`.
    """
    replace_rows_as_claim_holder(spark, lake, POSITIONS, compute_sums_of_old_entries(lake.reader(spark), cutoff))


def compute_sums_of_old_entries(reader: TableReader, cutoff: datetime) -> pa.Table:
    """Returns the sums of all ledger entries committed before `cutoff`, as rows of `ops.positions`.

    Entries that retention removed earlier are included: the sums that already replace them are added.
    """
    sums = sum_ledger_entries(LedgerReader(reader, *_COLUMNS, every_entry=True).read_entries, cutoff)
    carried = pa.array([CARRIED] * sums.num_rows, pa.int32())
    return sums.set_column(SCHEMA.get_field_index("format"), "format", carried)


def drop_ledger_sums_of_layers(spark: SparkSession, lake: Lake, layers: Collection[str]) -> None:
    """Drops the stored sums of the layers whose ledger entries a rebuild is writing again.

    Also drops all sums of entries that are still in the ledger; `update_ledger_sums` computes them again. The caller
    must hold `retained.CLAIM`.

    Args:
        spark: the session to write with.
        lake: the lake that has `ops.positions`.
        layers: names of the layers that are being rebuilt.
    """
    known = read_stored_sums(lake.reader(spark)).carried
    if known.num_rows:
        others = pc.invert(pc.is_in(known["layer"], pa.array(layers, pa.string())))
        replace_rows_as_claim_holder(spark, lake, POSITIONS, known.filter(others).cast(SCHEMA))


def verify_ledger_sums(reader: TableReader) -> bool:
    """Compares the sums in `ops.positions` of entries that the ledger still has with sums computed from these entries.

    Returns:
        True if they are equal; False if there are no such sums, or readers do not use them.

    Raises:
        LakeError: they differ.
    """
    known = read_stored_sums(reader).copies
    if known is None or not LedgerReader(reader).uses_sums_of_old_entries:
        return False
    made = sum_ledger_entries(
        LedgerReader(reader, *_COLUMNS, every_entry=True, include_carried=False).read_entries, known["until"][0].as_py()
    )
    if _format_sorted_rows(known) != _format_sorted_rows(made):
        raise LakeError(
            f"{POSITIONS}, the copy of the ledger's sums, differs from {LEDGER}",
            why="This is a bug in sessionlake, or the table was changed by another program",
            fix=f"Remove the table {POSITIONS}, which is then computed again from the ledger, and report the error",
        )
    return True


def sum_ledger_entries(entries: Callable[..., Iterator[pa.RecordBatch]], until: datetime) -> pa.Table:
    """Returns sums of ledger entries as rows of `ops.positions`: one for each layer and application id.

    Args:
        entries: a function that yields all ledger rows that meet the conditions passed to it. It is called twice. Rows
            may themselves be sums of older entries.
        until: only rows with an earlier commit time are summed.
    """
    before = ("committed_at", lt, until)
    since = find_last_rebuilds(entries(before, ("app_id", starts_with, REBUILD)))
    held, rows = [_SUMMED.empty_table()], 0
    for batch in entries(before):
        flagged = pa.Table.from_batches([batch]).append_column("current", mask_entries_since_rebuild(batch, since))
        held.append(flagged.select(_SUMMED.names).cast(_SUMMED))
        rows += batch.num_rows
        if rows >= _AT_ONCE:
            held, rows = [_sum_rows_by_key(pa.concat_tables(held))], 0
    sums = _sum_rows_by_key(pa.concat_tables(held)).to_pylist()
    last = {"until": until, "format": FORMAT}
    complete = [{name: value for name, value in row.items() if name != "current"} | last for row in sums]
    return pa.Table.from_pylist(complete, SCHEMA)


def _sum_rows_by_key(rows: pa.Table) -> pa.Table:
    """Adds up all rows that have the same values in the columns `layer`, `app_id` and `current`."""
    kept = [*((name, "max") for name in _HIGHEST), *((name, "sum") for name in _TOTALS)]
    heads = rows.group_by(_KEY).aggregate(kept).to_pylist()
    found: dict[tuple[Any, ...], Row] = {}
    for head in heads:
        own = {name: head[f"{name}_{how}"] for name, how in kept}
        found[_read_group_key(head)] = {name: head[name] for name in _KEY} | own | {name: [] for name in _LISTS}
    for name, (places, fields) in _LISTS.items():
        by = [*_KEY, *places]
        items, ordered = _unnest_list_column(rows, name), "last" in fields.values()
        if ordered:
            items = items.sort_by([(field, "ascending") for field in fields])
        parts = items.group_by(by, use_threads=not ordered).aggregate(list(fields.items()))
        for part in sorted(parts.to_pylist(), key=itemgetter(*places)):
            item = {place: part[place] for place in places}
            found[_read_group_key(part)][name].append(item | {f: part[f"{f}_{how}"] for f, how in fields.items()})
    return pa.Table.from_pylist([found[key] for key in sorted(found)], rows.schema)


def _read_group_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)


def _unnest_list_column(rows: pa.Table, name: str) -> pa.Table:
    """Returns one row for each element of a list column, with `layer`, `app_id`, `current` and the element's fields."""
    lists = rows[name].combine_chunks()
    keys = rows.select(_KEY).take(pc.list_parent_indices(lists))
    items = lists.flatten()
    for number, field in enumerate(items.type):
        keys = keys.append_column(field.name, pc.struct_field(items, [number]))
    return keys


def _mask_earlier_times(times: pa.Array, until: datetime) -> pa.BooleanArray:
    return pc.less(times, pa.scalar(until, times.type))


def _format_sorted_rows(sums: pa.Table) -> list[str]:
    names = [name for name in sums.schema.names if name not in {"until", "format"}]
    return sorted(str(row) for row in sums.select(names).to_pylist())
