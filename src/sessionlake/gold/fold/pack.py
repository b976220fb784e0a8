"""Changes to points, packed: what crosses from Spark into the fold is one Arrow IPC chunk a shard and task.

A chunk has one row for each change that set a metric: `session` (topic and session id), `row` (these and the
row id), joined by a zero character, which topics and session ids cannot contain; `partition`, `kafka_ms`, `ts`,
`position`, `ordinal`; and `value:<i>`, null where metric `i` was not set. What the task's changes come to in a product
is a chunk besides, which the fold passes on. A chunk never outlives its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import Declared, value_field
from sessionlake.protocol.chunk import write_ipc
from sessionlake.protocol.types import Int64s, Payloads

SEPARATOR = "\0"
_TASK_ROWS = 250_000  # packed at once: enough to make chunks worth their headers, about 30 MB
_PRODUCT = b"product"
_COUNTS = (b"changes", b"first_batch", b"last_batch")
_PACKED = pa.schema([("shard", pa.int32()), ("chunk", pa.binary())])


@dataclass(frozen=True)
class ReadChanges:
    """How much of `silver.session_changes` was read.

    Attributes:
        changes: rows, with or without points.
        first: lowest silver batch among them; None if there are none.
        last: highest.
    """

    changes: int = 0
    first: int | None = None
    last: int | None = None

    def __add__(self, other: ReadChanges) -> ReadChanges:
        firsts = [r.first for r in (self, other) if r.first is not None]
        lasts = [r.last for r in (self, other) if r.last is not None]
        return ReadChanges(self.changes + other.changes, min(firsts, default=None), max(lasts, default=None))


@dataclass(frozen=True)
class PointPacker:
    """Packs one task's changes; a `mapInArrow` function.

    Takes `shard int, topic, session_id, row_id, partition, kafka_ms, ts, position, ordinal, batch` and the declared
    columns (see `Declared`), gives `shard int, chunk binary`.

    Attributes:
        products: those that are made of changes.
    """

    declared: Declared
    products: tuple[Product, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs the batches, many at a time."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _TASK_ROWS:
                yield self._pack(pa.Table.from_batches(waiting))
                waiting, rows = [], 0
        if rows:
            yield self._pack(pa.Table.from_batches(waiting))

    def _pack(self, changes: pa.Table) -> pa.RecordBatch:
        values = [value_field(i) for i in range(len(self.declared.numbers))]
        kept = changes.filter(_any_valid([changes[name] for name in values], changes.num_rows))
        session = pc.binary_join_element_wise(kept["topic"], kept["session_id"], SEPARATOR)
        row = pc.binary_join_element_wise(session, kept["row_id"], SEPARATOR)
        columns = [kept[name] for name in ("partition", "kafka_ms", "ts", "position", "ordinal", *values)]
        names = ["session", "row", "partition", "kafka_ms", "ts", "position", "ordinal", *values]
        shards, tables = _split(pa.table([session, row, *columns], names), kept["shard"])
        tables[0] = tables[0].replace_schema_metadata(_counts(changes["batch"]))
        chunks = [write_ipc(table) for table in tables]
        made = self._products(changes)
        shards, chunks = shards + [shards[i % len(shards)] for i in range(len(made))], chunks + made
        return pa.record_batch([pa.array(shards, pa.int32()), pa.array(chunks, pa.binary())], schema=_PACKED)

    def _products(self, changes: pa.Table) -> list[bytes]:
        events = {source: source.events(changes, self.declared) for source in {p.source for p in self.products}}
        made = ((product.name, product.of_events(events[product.source])) for product in self.products)
        return [write_ipc(rows.replace_schema_metadata({_PRODUCT: name})) for name, rows in made if rows.num_rows]


def split(chunks: Sequence[bytes]) -> tuple[list[bytes], Payloads]:
    """A shard's chunks of points, and those of products, each under the product's name."""
    named = [((pa.ipc.open_stream(chunk).schema.metadata or {}).get(_PRODUCT), chunk) for chunk in chunks]
    points = [chunk for name, chunk in named if name is None]
    return points, [(name.decode(), chunk) for name, chunk in named if name is not None]


def read_chunks(chunks: Sequence[bytes]) -> tuple[pa.Table, ReadChanges]:
    """A shard's chunks of points as one table, and what was read to make them."""
    tables = [pa.ipc.open_stream(chunk).read_all() for chunk in chunks]
    read = sum((_counted(table.schema.metadata) for table in tables), ReadChanges())
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).combine_chunks(), read


def _any_valid(columns: Sequence[pa.ChunkedArray], rows: int) -> pa.Array:
    found = np.zeros(rows, np.bool_)
    for column in columns:
        found |= column.is_valid().to_numpy()
    return pa.array(found)


def _split(table: pa.Table, shard: pa.ChunkedArray) -> tuple[list[int], list[pa.Table]]:
    """One table a shard; without rows one empty table, on shard 0, to carry what was read."""
    if not table.num_rows:
        return [0], [table]
    code: Int64s = shard.to_numpy()
    order = np.argsort(code, kind="stable")
    code, table = code[order], table.take(pa.array(order)).combine_chunks()
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    lengths = np.diff(starts, append=len(code))
    slices = [table.slice(a, n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return code[starts].tolist(), slices


def _counts(batch: pa.ChunkedArray) -> dict[bytes, bytes]:
    bounds = pc.min_max(batch).as_py()
    values = (len(batch), bounds["min"], bounds["max"])
    return {name: str(value).encode() for name, value in zip(_COUNTS, values, strict=True) if value is not None}


def _counted(metadata: dict[bytes, bytes] | None) -> ReadChanges:
    found = {name: int(value) for name, value in (metadata or {}).items() if name in _COUNTS}
    return ReadChanges(found.get(b"changes", 0), found.get(b"first_batch"), found.get(b"last_batch"))
