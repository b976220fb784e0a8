"""Packs changes so that Spark can move them to the fold: one chunk (Arrow IPC) per shard and task.

A chunk has the changes of one shard, with dictionary-encoded texts. All changes are packed by session, for the products
and for averages within sessions. Averages across sessions belong to another owner (`RollingAverage.owner_columns`). For
each such owner the changes that set a number are packed again. A chunk never outlives its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.late import APPLIED
from sessionlake.gold.aggregate.order import (
    LIFE,
    SESSION_MARK,
    TURN,
    OnceTopics,
    add_change_order_columns,
    add_missing_change_order_columns,
    add_session_hashes,
)
from sessionlake.gold.aggregate.sources import (
    DeclaredColumns,
    build_decimal_column_name,
    build_number_column_name,
    build_text_column_name,
)
from sessionlake.gold.fold.series import OF_SESSION, RollingAverage
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.protocol.chunk import decode_ipc, encode_compressed_ipc
from sessionlake.protocol.types import Int64s

SEPARATOR = "\0"
"""Joins the parts of a name to one text. Topics and session ids cannot contain it."""
_TASK_ROWS = 250_000  # rows packed at once, about 30 MB: so many that the size of the chunks' headers does not matter
_OWNER = b"owner"
PLACE_BITS = 47
"""The number of low bits of `combine_partition_and_offset` that hold the offset. The partition is in the bits above."""
_COUNTS = (b"changes", b"first_batch", b"last_batch")
_PACKED = pa.schema([("shard", pa.int32()), ("chunk", pa.binary())])
_TEXTS = ("topic", "session_id", "row_id")
_NUMBERS = ("partition", "offset", "kafka_ms", "ts", "position", "ordinal")

Owner = tuple[str, ...]


@dataclass(frozen=True)
class ReadChangesSummary:
    """How many rows of `silver.session_changes` were read, and from which batches of silver.

    Attributes:
        changes: Number of rows, including those that set no number.
        first_batch: Lowest number of a silver batch in the rows; None if there are no rows.
        last_batch: Highest number of a silver batch in the rows; None if there are no rows.
    """

    changes: int = 0
    first_batch: int | None = None
    last_batch: int | None = None

    def __add__(self, other: ReadChangesSummary) -> ReadChangesSummary:
        firsts = [r.first_batch for r in (self, other) if r.first_batch is not None]
        lasts = [r.last_batch for r in (self, other) if r.last_batch is not None]
        return ReadChangesSummary(self.changes + other.changes, min(firsts, default=None), max(lasts, default=None))


@dataclass(frozen=True)
class ChangePacker:
    """A `mapInArrow` function that packs the changes of one Spark task into chunks (Arrow IPC), one per shard.

    An owner is a session, or a row across sessions. A change may be in different shards for different kinds of owner.

    Input: changes with the columns of `gold.changes.build_change_columns`, and for each kind of owner the shard of the
    change in `shard:<i>`. Output: `shard int, chunk binary`.

    Attributes:
        declared: The declared columns that the changes have.
        owners: The kinds of owner, from `list_owner_columns_of_averages`. Changes are packed for each.
        once: Decides which topics have the class `once`. None if no topic has it.
    """

    declared: DeclaredColumns
    owners: tuple[Owner, ...]
    once: OnceTopics | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs the changes of many Arrow batches at a time, and yields rows of shard and chunk."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _TASK_ROWS:
                yield self._pack_changes(pa.Table.from_batches(waiting))
                waiting, rows = [], 0
        if rows:
            yield self._pack_changes(pa.Table.from_batches(waiting))

    def _pack_changes(self, changes: pa.Table) -> pa.RecordBatch:
        values = [build_number_column_name(i) for i in range(len(self.declared.numbers))]
        texts = [build_text_column_name(i) for i in range(len(self.declared.texts))]
        decimals = [build_decimal_column_name(i) for i in range(len(self.declared.decimals))]
        encoded, order = _dictionary_encode_columns(changes, (*_TEXTS, *texts)), list[str]()
        if self.once is not None:
            encoded, order = add_session_hashes(add_change_order_columns(encoded, self.once)), [LIFE, TURN]
        with_points = encoded.filter(have_any_non_null_value(changes, values))
        shards, tables = list[int](), list[pa.Table]()
        for i, owner in enumerate(self.owners):
            kept, more = (encoded, [APPLIED, *texts]) if owner == OF_SESSION else (with_points, [])
            names = [name for name in _TEXTS if owner == OF_SESSION or name in owner]
            across = [SESSION_MARK] * (self.once is not None and owner != OF_SESSION)
            columns = [*names, *_NUMBERS, *order, *across, *values, *decimals, *more]
            of_shard, parts = _split_by_shard(kept.select(columns), kept[build_shard_column_name(i)])
            shards += of_shard
            tables += [part.replace_schema_metadata({_OWNER: SEPARATOR.join(owner)}) for part in parts]
        tables[0] = tables[0].replace_schema_metadata(
            (tables[0].schema.metadata or {}) | _encode_read_changes(changes["batch"])
        )
        chunks = [encode_compressed_ipc(table) for table in tables]
        return pa.record_batch([pa.array(shards, pa.int32()), pa.array(chunks, pa.binary())], schema=_PACKED)


@dataclass(frozen=True)
class DecodedChunks:
    """The changes that one shard gets in one micro-batch, decoded from chunks.

    Attributes:
        changes: The changes, by kind of owner (its key columns). A kind without changes in this shard is missing.
        read: Number and silver batches of the changes that were packed.
    """

    changes: dict[Owner, pa.Table]
    read: ReadChangesSummary

    @staticmethod
    def decode_chunks(chunks: Iterable[bytes]) -> DecodedChunks:
        """Decodes chunks that `ChangePacker` made for one shard, and concatenates their changes."""
        parts: dict[Owner, list[pa.Table]] = {}
        read = ReadChangesSummary()
        for chunk in chunks:
            table = decode_ipc(chunk)
            metadata = table.schema.metadata
            read += _decode_read_changes(metadata)
            owner = tuple(metadata[_OWNER].decode().split(SEPARATOR))
            parts.setdefault(owner, []).append(table.replace_schema_metadata(None))
        tables = {owner: pa.concat_tables(found).combine_chunks() for owner, found in parts.items()}
        return DecodedChunks(
            {owner: add_missing_change_order_columns(changes) for owner, changes in tables.items()}, read
        )


def list_owner_columns_of_averages(averages: Iterable[RollingAverage]) -> tuple[Owner, ...]:
    """Returns the distinct kinds of owner of the series of these tables.

    An owner is a session, or a row across sessions. Its kind is the tuple of its key columns. Sessions are always the
    first kind.
    """
    return tuple(dict.fromkeys([OF_SESSION, *(series.owner_columns for series in averages)]))


def build_shard_column_name(owner_kind_index: int) -> str:
    """Returns the name of the column with a change's shard, for kind `owner_kind_index` of the kinds of owner."""
    return f"shard:{owner_kind_index}"


def combine_partition_and_offset(partition: Int64s, offset: Int64s) -> Int64s:
    """Combines the partition and the offset of messages into one integer. In a partition it rises with the offset."""
    return (partition << PLACE_BITS) | offset


def split_into_partition_and_offset(combined: Int64s) -> dict[str, Int64s]:
    """Splits integers from `combine_partition_and_offset`. Returns arrays with the keys `partition` and `offset`."""
    return {"partition": combined >> PLACE_BITS, "offset": combined & ((1 << PLACE_BITS) - 1)}


def _dictionary_encode_columns(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Returns the table with some of its columns dictionary-encoded."""
    for name in names:
        table = table.set_column(
            table.column_names.index(name), name, convert_to_contiguous_array(table[name]).dictionary_encode()
        )
    return table


def have_any_non_null_value(table: pa.Table, columns: Iterable[str]) -> pa.Array:
    """Returns True for each row in which at least one of the columns is not null."""
    found = np.zeros(table.num_rows, np.bool_)
    for name in columns:
        found |= table[name].is_valid().to_numpy()
    return pa.array(found)


def _split_by_shard(table: pa.Table, shard: pa.ChunkedArray) -> tuple[list[int], list[pa.Table]]:
    """Splits a table by shard. Returns the shards that occur and, in the same order, the rows of each.

    Dictionaries of a result have only the texts that its rows use.

    Args:
        table: Rows with dictionary-encoded texts.
        shard: The shard of each row.
    """
    if not table.num_rows:
        return [], []
    code: Int64s = shard.to_numpy()
    order = np.argsort(code, kind="stable")
    code, table = code[order], table.take(pa.array(order)).combine_chunks()
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    lengths = np.diff(starts, append=len(code))
    slices = [
        _remove_unused_dictionary_values(table.slice(a, n))
        for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    return code[starts].tolist(), slices


def _remove_unused_dictionary_values(table: pa.Table) -> pa.Table:
    """Returns the table with dictionaries that have only the values that the rows use."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = convert_to_contiguous_array(table[field.name])
            used, index = np.unique(pc.fill_null(column.indices, -1).to_numpy(), return_inverse=True)
            missing = used < 0
            index = pa.array(index.reshape(-1).astype(np.int32) - int(missing.any()), mask=missing[index.reshape(-1)])
            kept = column.dictionary.take(pa.array(used[~missing]))
            table = table.set_column(place, field.name, pa.DictionaryArray.from_arrays(index, kept))
    return table


def _encode_read_changes(silver_batches: pa.ChunkedArray) -> dict[bytes, bytes]:
    bounds = pc.min_max(silver_batches).as_py()
    values = (len(silver_batches), bounds["min"], bounds["max"])
    return {name: str(value).encode() for name, value in zip(_COUNTS, values, strict=True) if value is not None}


def _decode_read_changes(metadata: dict[bytes, bytes]) -> ReadChangesSummary:
    found = {name: int(value) for name, value in metadata.items() if name in _COUNTS}
    return ReadChangesSummary(found.get(b"changes", 0), found.get(b"first_batch"), found.get(b"last_batch"))
