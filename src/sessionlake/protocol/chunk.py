"""Chunks: Arrow IPC tables of decoded messages, one row per message, which Spark moves from decoding to folding.

A chunk has each message's topic, partition and offset, its type, seq and times, and the list `changes`: its changes of
rows, numbered by `ordinal`. A malformed message has a `reason` and no changes. The schema's metadata has the format
version. A chunk does not outlive its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.message import MessageType

CHUNK_FORMAT = b"sessionlake.chunk/5"
_FORMAT_KEY = b"format"
_IPC_MAGIC = b"\xff\xff\xff\xff"  # every Arrow IPC stream begins with this
COMPRESSED_MAGIC = b"zstd"
"""The first bytes that mark compressed contents."""
COMPRESS_ABOVE_BYTES = 256 << 10
"""Contents with more bytes are compressed."""
_LENGTH_PREFIX_BYTES = 8
IGNORED = -2
"""Code of a message that its feed ignores in a chunk's column `reason`. It does not go to quarantine."""


class ExpectedRowPresence(IntEnum):
    """What a change expects of its row in the table before it. In a chunk, null means that the row may exist or not."""

    PRESENT = 1
    ABSENT = 2


class RowChangeKind(IntEnum):
    """The effect of a change on a session's table."""

    CLEAR = 0
    UPSERT = 1
    DELETE = 2


def build_set_flag_name(index: int) -> str:
    """Returns the name of the flag that is true if the message set declared column `index`."""
    return f"set:{index}"


def build_value_field_name(index: int) -> str:
    """Returns the name of the field with the value of declared column `index`."""
    return f"value:{index}"


@lru_cache(maxsize=8)
def build_change_fields(columns: tuple[Column, ...]) -> tuple[pa.Field, ...]:
    """Returns the Arrow fields of a change of one row.

    Each declared column has a field for its value and a set flag.
    """
    values = [pa.field(build_value_field_name(i), column.arrow) for i, column in enumerate(columns)]
    flags = [pa.field(build_set_flag_name(i), pa.bool_()) for i in range(len(columns))]
    return (
        pa.field("change", pa.int8()),
        pa.field("ordinal", pa.int32()),
        pa.field("row_id", pa.string()),
        pa.field(RESCUED, pa.string()),
        pa.field("expect", pa.int8()),
        *values,
        *flags,
    )


@lru_cache(maxsize=8)
def build_chunk_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the Arrow schema of a chunk. Times are int64 milliseconds since the Unix epoch.

    `seq` is null if the message is malformed or has none (class `none`). `size` is the Kafka value's size in bytes.
    `reason` is a code of `reasons.CODES`: 0 if the message is well-formed, `erased.ERASED_CODE` if it was erased,
    `IGNORED` if its feed ignores it. A message that its feed splits has several rows, which `part` numbers from 0.
    `sent` is the checksum in the message as JSON text; null if there is none. `chain` is the name of the counter that
    the message shares with other sessions; null if its session has its own.
    `clock` is the highest Kafka timestamp that counts, of the message and earlier ones in its segment: messages with
    consecutive offsets that one task reads. The fold computes stream time from it.
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
            pa.field("after", pa.int64()),
            pa.field("link", pa.int8()),
            pa.field("part", pa.int32()),
            pa.field("sent", pa.string()),
            pa.field("chain", pa.string()),
            pa.field("changes", pa.list_(pa.struct(build_change_fields(columns)))),
        ],
        metadata={_FORMAT_KEY: CHUNK_FORMAT},
    )


def encode_ipc(table: pa.Table, *, compress_columns: bool = False) -> bytes:
    """Encodes an Arrow table as one IPC stream, which any Arrow reader can read.

    Args:
        compress_columns: True to compress each column.
    """
    return bytes(_encode_ipc_stream(table, "zstd" if compress_columns else None))


def decode_ipc(stored: bytes | pa.Buffer) -> pa.Table:
    """Decodes an Arrow table from an IPC stream, compressed or not."""
    return pa.ipc.open_stream(decompress_if_compressed(stored)).read_all()


def encode_compressed_ipc(table: pa.Table) -> bytes:
    """Encodes an Arrow table as one IPC stream, and compresses it if it is large. `decode_ipc` decodes it."""
    return compress_if_large(_encode_ipc_stream(table, None))


def compress_if_large(content: bytes | pa.Buffer) -> bytes:
    """Compresses bytes if they are more than 256 kB and not compressed already. Else returns them unchanged.

    Spark copies each byte about ten times, which costs more than the compression.
    """
    if len(content) <= COMPRESS_ABOVE_BYTES or memoryview(content)[: len(COMPRESSED_MAGIC)] == COMPRESSED_MAGIC:
        return bytes(content)
    return (
        COMPRESSED_MAGIC
        + len(content).to_bytes(_LENGTH_PREFIX_BYTES, "little")
        + _create_compression_codec().compress(content, asbytes=True)
    )


def decompress_if_compressed(content: bytes | pa.Buffer) -> bytes | pa.Buffer:
    """Decompresses bytes that `compress_if_large` has compressed. Others are returned unchanged."""
    view, start = memoryview(content), len(COMPRESSED_MAGIC)
    if view[:start] != COMPRESSED_MAGIC:
        return content
    size = int.from_bytes(view[start : start + _LENGTH_PREFIX_BYTES], "little")
    return _create_compression_codec().decompress(pa.py_buffer(view[start + _LENGTH_PREFIX_BYTES :]), size)


def _encode_ipc_stream(table: pa.Table, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _create_compression_codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=1)


def is_chunk(payload: bytes) -> bool:
    """Returns True if the payload is a chunk of messages, False if it is another one, such as stream times."""
    return payload.startswith((_IPC_MAGIC, COMPRESSED_MAGIC))


def align_columns_with_declared(
    table: pa.Table, earlier_columns: Sequence[tuple[str, str]], columns: tuple[Column, ...]
) -> pa.Table:
    """Returns a chunk's rows with the columns that are declared now.

    Updates do not set columns that were declared later. Snapshots set them to null.

    Args:
        table: The chunk.
        earlier_columns: `(name, SQL type)` of each column that was declared when the chunk was written. All are still
            declared.
        columns: The columns that are declared now.
    """
    if list(earlier_columns) == [(column.name, column.sql) for column in columns]:
        return table.replace_schema_metadata(build_chunk_schema(columns).metadata)
    places = {name: place for place, (name, _) in enumerate(earlier_columns)}
    lists = convert_to_contiguous_array(table["changes"])
    changes = lists.flatten()
    set_by_all = pc.equal(table["type"], MessageType.SNAPSHOT).combine_chunks()
    owner = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
    added = pc.and_(set_by_all.take(pa.array(owner)), pc.equal(changes.field("change"), RowChangeKind.UPSERT))
    given = {name: changes.field(name) for name in ("change", "ordinal", "row_id", RESCUED, "expect")}
    for place, column in enumerate(columns):
        old = places.get(column.name)
        given[build_value_field_name(place)] = (
            pa.nulls(len(changes), column.arrow) if old is None else changes.field(build_value_field_name(old))
        )
        given[build_set_flag_name(place)] = added if old is None else changes.field(build_set_flag_name(old))
    fields = list(build_change_fields(columns))
    struct = pa.StructArray.from_arrays([given[field.name] for field in fields], fields=fields)
    schema = build_chunk_schema(columns)
    rebuilt = pa.ListArray.from_arrays(lists.offsets, struct)
    return table.set_column(table.num_columns - 1, schema.field("changes"), rebuilt).cast(schema)


def decode_and_join_chunks(chunks: Sequence[bytes], columns: tuple[Column, ...]) -> pa.Table:
    """Decodes chunks into one table, in their order. Without chunks, the table is empty.

    Raises:
        LakeError: A chunk has another format version.
    """
    schema = build_chunk_schema(columns)
    tables = [decode_ipc(chunk) for chunk in chunks] or [schema.empty_table()]
    for table in tables:
        found = (table.schema.metadata or {}).get(_FORMAT_KEY)
        if found != CHUNK_FORMAT:
            raise LakeError(
                f"rows between two steps of the job have the format {found!r}, but this process reads {CHUNK_FORMAT!r}",
                why="So processes of different versions of sessionlake run in the same job",
                fix="Restart the job, so that all its processes run the same version",
            )
    return pa.concat_tables([table.replace_schema_metadata(schema.metadata) for table in tables]).combine_chunks()
