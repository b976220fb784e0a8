"""The packed form of messages between decoding and folding: Arrow IPC, one row a message.

A chunk's columns are the message's coordinates and header, and `changes`: the row changes it asks for, in
order (`ordinal` counts them). A malformed message has a `reason` and no changes. The format version stands in
the schema's metadata; a chunk never outlives its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import pyarrow as pa

from sessionlake.errors import LakeError
from sessionlake.protocol.columns import RESCUED, Column

FORMAT = b"sessionlake.chunk/1"
_FORMAT_KEY = b"format"


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
    """Arrow schema of a chunk; times are int64 milliseconds since the epoch."""
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
            pa.field("changes", pa.list_(pa.struct(change_fields(columns)))),
        ],
        metadata={_FORMAT_KEY: FORMAT},
    )


def write_ipc(table: pa.Table) -> bytes:
    """An Arrow table as one IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_chunks(chunks: Sequence[bytes], columns: tuple[Column, ...]) -> pa.Table:
    """Chunks as one table, in the order given.

    Raises:
        LakeError: a chunk is of another format version.
    """
    schema = chunk_schema(columns)
    tables = [pa.ipc.open_stream(chunk).read_all() for chunk in chunks]
    for table in tables:
        found = (table.schema.metadata or {}).get(_FORMAT_KEY)
        if found != FORMAT:
            raise LakeError(f"a packed chunk is of format {found!r}, this version reads {FORMAT!r}: restart the job")
    return pa.concat_tables([table.replace_schema_metadata(schema.metadata) for table in tables]).combine_chunks()
