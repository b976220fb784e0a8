"""The packed form of messages between decoding and folding: Arrow IPC, one row a message.

A chunk's columns are the message's coordinates and header, and `changes`: the row changes it asks for, in
order (`ordinal` counts them). A malformed message has a `reason` and no changes. The format version stands in
the schema's metadata; a chunk never outlives its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import contiguous
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.message import MessageType

FORMAT = b"sessionlake.chunk/2"
_FORMAT_KEY = b"format"
_IPC = b"\xff\xff\xff\xff"  # what every Arrow IPC stream begins with
COMPRESSED = b"zstd"
"""What contents that are `compressed` begin with."""
COMPRESS_ABOVE_BYTES = 256 << 10
"""Contents of more bytes are compressed."""
_SIZE_BYTES = 8


class ChangeKind(IntEnum):
    """What a change does to a session's table."""

    CLEAR = 0
    UPSERT = 1
    DELETE = 2


def set_field(index: int) -> str:
    """Name of the flag that says whether the message set declared column `index`."""
    return f"set:{index}"


def value_field(index: int) -> str:
    """Name of the field that holds declared column `index`."""
    return f"value:{index}"


@lru_cache(maxsize=8)
def change_fields(columns: tuple[Column, ...]) -> tuple[pa.Field, ...]:
    """Fields of one change."""
    values = [pa.field(value_field(i), column.arrow) for i, column in enumerate(columns)]
    flags = [pa.field(set_field(i), pa.bool_()) for i in range(len(columns))]
    return (
        pa.field("change", pa.int8()),
        pa.field("ordinal", pa.int32()),
        pa.field("row_id", pa.string()),
        pa.field(RESCUED, pa.string()),
        *values,
        *flags,
    )


@lru_cache(maxsize=8)
def chunk_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Arrow schema of a chunk; times are int64 milliseconds since the epoch.

    `seq` is null where the message is malformed or class `none` lets it be absent; `size` is the value's in bytes;
    `reason` is the code of one (see `reasons`), 0 where the message is well-formed, or `erased.CODE`;
    `clock` is the highest Kafka timestamp of the message's segment up to it (see `integrity.clock`).
    """
    return pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("kafka_ts", pa.int64()),
            pa.field("session_id", pa.string()),
            pa.field("type", pa.int8()),
            pa.field("seq", pa.int64()),
            pa.field("ts", pa.int64()),
            pa.field("reason", pa.int8()),
            pa.field("size", pa.int32()),
            pa.field("clock", pa.int64()),
            pa.field("changes", pa.list_(pa.struct(change_fields(columns)))),
        ],
        metadata={_FORMAT_KEY: FORMAT},
    )


def write_ipc(table: pa.Table, *, compress_columns: bool = False) -> bytes:
    """An Arrow table as one IPC stream, as any reader of Arrow takes it."""
    return bytes(_ipc_stream(table, "zstd" if compress_columns else None))


def read_ipc(stored: bytes | pa.Buffer) -> pa.Table:
    """Reads what `write_ipc` wrote, be it `compressed`."""
    return pa.ipc.open_stream(decompress(stored)).read_all()


def write_compressed(table: pa.Table) -> bytes:
    """As `write_ipc`, and `compressed`, with one copy less."""
    return compress(_ipc_stream(table, None))


def compress(content: bytes | pa.Buffer) -> bytes:
    """Large contents in fewer bytes, for their way through Spark; what is compressed already stays as it is.

    There each byte is copied some ten times, which costs more than to compress it.
    """
    if len(content) <= COMPRESS_ABOVE_BYTES or memoryview(content)[: len(COMPRESSED)] == COMPRESSED:
        return bytes(content)
    return COMPRESSED + len(content).to_bytes(_SIZE_BYTES, "little") + _codec().compress(content, asbytes=True)


def decompress(content: bytes | pa.Buffer) -> bytes | pa.Buffer:
    """What was `compressed`, if it was."""
    seen, begin = memoryview(content), len(COMPRESSED)
    if seen[:begin] != COMPRESSED:
        return content
    size = int.from_bytes(seen[begin : begin + _SIZE_BYTES], "little")
    return _codec().decompress(pa.py_buffer(seen[begin + _SIZE_BYTES :]), size)


def _ipc_stream(table: pa.Table, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=1)


def is_chunk(payload: bytes) -> bool:
    """Whether the payload is a chunk, and not a packer's other word to the shards (see `integrity.clock`)."""
    return payload.startswith((_IPC, COMPRESSED))


def align_columns(table: pa.Table, then: Sequence[tuple[str, str]], columns: tuple[Column, ...]) -> pa.Table:
    """A chunk's rows as of these columns.

    A column that was declared since was not set by an update, and is null in a snapshot.

    Args:
        then: `(name, SQL type)` of the columns that were declared when the chunk was written: all are declared now.
    """
    if list(then) == [(column.name, column.sql) for column in columns]:
        return table.replace_schema_metadata(chunk_schema(columns).metadata)
    places = {name: place for place, (name, _) in enumerate(then)}
    lists = contiguous(table["changes"])
    changes = lists.flatten()
    set_by_all = pc.equal(table["type"], MessageType.SNAPSHOT).combine_chunks()
    owner = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
    added = pc.and_(set_by_all.take(pa.array(owner)), pc.equal(changes.field("change"), ChangeKind.UPSERT))
    given = {name: changes.field(name) for name in ("change", "ordinal", "row_id", RESCUED)}
    for place, column in enumerate(columns):
        old = places.get(column.name)
        given[value_field(place)] = (
            pa.nulls(len(changes), column.arrow) if old is None else changes.field(value_field(old))
        )
        given[set_field(place)] = added if old is None else changes.field(set_field(old))
    fields = list(change_fields(columns))
    struct = pa.StructArray.from_arrays([given[field.name] for field in fields], fields=fields)
    schema = chunk_schema(columns)
    rebuilt = pa.ListArray.from_arrays(lists.offsets, struct)
    return table.set_column(table.num_columns - 1, schema.field("changes"), rebuilt).cast(schema)


def read_chunks(chunks: Sequence[bytes], columns: tuple[Column, ...]) -> pa.Table:
    """Chunks as one table, in the order given.

    Raises:
        LakeError: a chunk is of another format version.
    """
    schema = chunk_schema(columns)
    tables = [read_ipc(chunk) for chunk in chunks] or [schema.empty_table()]
    for table in tables:
        found = (table.schema.metadata or {}).get(_FORMAT_KEY)
        if found != FORMAT:
            raise LakeError(f"a packed chunk is of format {found!r}, this version reads {FORMAT!r}: restart the job")
    return pa.concat_tables([table.replace_schema_metadata(schema.metadata) for table in tables]).combine_chunks()
