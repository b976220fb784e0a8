"""Converts changed rows of a table to Kafka messages: an upsert has the whole row, a tombstone has no value.

The key is a JSON object of the key columns, always in the same order and spelling, because Kafka compares bytes. The
value is a JSON object of all columns; nulls are `null`. JSON has no type for some values:

- `NaN`, `Infinity` and `-Infinity` are strings;
- a timestamp is an integer, microseconds since the Unix epoch, a timestamp without zone as if it were in UTC; a date is
  an integer, days since then;
- a decimal is a string with all its decimals, because many readers parse numbers as doubles;
- bytes are a base64 string;
- an array is an array, its elements as above;
- integers have up to 64 bits, so a reader must not parse them as doubles.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import HEADERS, convert_to_contiguous_array

CHANGE = "_change_type"
VERSION = "_commit_version"
# The columns that Delta's change feed adds to a table's columns.
FEED = (CHANGE, VERSION, "_commit_timestamp")
DELETE = "delete"
# Headers of every message. A consumer may skip a message whose version is not above the last one of the same key.
VERSION_HEADER = "sessionlake.version"
BATCH_HEADER = "sessionlake.batch"

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("version", pa.int64()),
    ]
)
DDL = "key binary, value binary, headers array<struct<key:string,value:binary>>, version bigint"
# Rows may be large, so messages are returned in batches of about this many bytes.
_CHUNK_BYTES = 16 << 20

_json = msgspec.json.Encoder()


@dataclass(frozen=True)
class UpsertMessageEncoder:
    """A function for `mapInArrow` that converts rows of Delta's change feed to Kafka messages.

    The rows must have no pre-images and be sorted by version, then key, then deletes before upserts. If a version both
    deletes and writes a row, as RESTORE does, there is one message with the final row.

    Attributes:
        key: The table's key columns.
        batch: The number of the micro-batch, for the messages' headers.
    """

    key: tuple[str, ...]
    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields a Kafka message for each row that a task has, in the same order: `key, value, headers, version`."""
        for rows in _select_last_of_each_key(batches, (VERSION, *self.key)):
            yield from self._encode_rows_as_messages(rows)

    def _encode_rows_as_messages(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yields the Kafka messages of rows, in batches of about 16 MB."""
        names = [name for name in rows.column_names if name not in FEED]
        columns = {
            name: _convert_column_to_json_values(name, convert_to_contiguous_array(rows[name])) for name in names
        }
        keys = [
            _json.encode(dict(zip(self.key, row, strict=True))) for row in _iterate_rows_of_columns(columns, self.key)
        ]
        changes, versions = rows[CHANGE].to_pylist(), rows[VERSION].to_pylist()
        batch, chunk, size = str(self.batch).encode(), [], 0
        for key, row, change, version in zip(
            keys, _iterate_rows_of_columns(columns, names), changes, versions, strict=True
        ):
            value = None if change == DELETE else _json.encode(dict(zip(names, row, strict=True)))
            headers = [(VERSION_HEADER, str(version).encode()), (BATCH_HEADER, batch)]
            chunk.append((key, value, headers, version))
            size += len(key) + len(value or b"")
            if size >= _CHUNK_BYTES:
                yield _build_record_batch_of_messages(chunk)
                chunk, size = [], 0
        if chunk:
            yield _build_record_batch_of_messages(chunk)


def _build_record_batch_of_messages(messages: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Returns Kafka messages `(key, value, headers, version)` as an Arrow batch."""
    columns = zip(*messages, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _select_last_of_each_key(batches: Iterable[pa.RecordBatch], key_columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Yields the rows without those whose next row has equal values in `key_columns`.

    The next row may be in another batch.
    """
    held: pa.Table | None = None
    for batch in batches:
        fresh = pa.Table.from_batches([batch])
        rows = (fresh if held is None else pa.concat_tables([held, fresh])).combine_chunks()
        if not rows.num_rows:
            continue
        same = reduce(pc.and_, (pc.equal(rows[name][:-1], rows[name][1:]) for name in key_columns))
        yield rows[:-1].filter(pc.invert(same))
        held = rows[-1:]
    if held is not None:
        yield held


def _iterate_rows_of_columns(columns: dict[str, list[Any]], names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[name] for name in names), strict=True)


def _convert_column_to_json_values(name: str, column: pa.Array) -> list[Any]:
    """Returns a column's values in types that JSON has: a decimal as text, a timestamp as microseconds."""
    kind = column.type
    if pa.types.is_list(kind):
        items = iter(_convert_column_to_json_values(name, column.flatten()))
        sizes = pc.list_value_length(column).to_pylist()
        return [size if size is None else list(islice(items, size)) for size in sizes]
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist()
    if any(has_kind(kind) for has_kind in _UNCHANGED):
        return column.to_pylist()
    spell = next((spell for has_kind, spell in _SPELLINGS if has_kind(kind)), None)
    if spell is None:
        raise LakeError(
            f"publish: the column {name} is of type {kind}, which has no defined form in JSON",
            fix="Publish a table without such a column, or declare the column with another type",
        )
    return [value if value is None else spell(value) for value in column.to_pylist()]


def _replace_special_number_by_name(value: float) -> float | str:
    """Returns a finite number unchanged, else its name: `NaN`, `Infinity` or `-Infinity`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_base64(value: bytes) -> str:
    return b64encode(value).decode()


_UNCHANGED = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string)
_SPELLINGS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_floating, _replace_special_number_by_name),
    (pa.types.is_decimal, "{:f}".format),
    (pa.types.is_binary, _encode_base64),
)
