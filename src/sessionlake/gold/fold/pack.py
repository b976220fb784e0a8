"""Changes to points, packed: what crosses from Spark into the fold is one Arrow IPC chunk a shard and task.

Of each table of averages, a chunk has one row for each change that set a metric: `owner`, what is forgotten as a whole
(a session by its topic and id; of series across sessions, the series' row), and `row`, all its keys but the metric,
both joined by a zero character, which topics and session ids cannot contain; `partition`, `offset`, `kafka_ms`, `ts`,
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
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.chunk import write_ipc
from sessionlake.protocol.types import Int64s, Payloads

SEPARATOR = "\0"
_TASK_ROWS = 250_000  # packed at once: enough to make chunks worth their headers, about 30 MB
_PRODUCT = b"product"
_SERIES = b"series"
PLACE_BITS = 47
"""Of a place in Kafka, those of the offset; the partition is above it."""
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

    Takes `topic, session_id, row_id, partition, offset, kafka_ms, ts, position, ordinal, batch`, the declared columns
    (see `Declared`), and of each table of averages the shard of the change (see `shard_field`); gives
    `shard int, chunk binary`.

    Attributes:
        products: those that are made of changes.
    """

    declared: Declared
    averages: tuple[RollingAverage, ...]
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
        shards, tables = list[int](), list[pa.Table]()
        for i, series in enumerate(self.averages):
            of_shard, parts = _split(_points(kept, series, values), kept[shard_field(i)])
            shards += of_shard
            tables += [part.replace_schema_metadata({_SERIES: series.name}) for part in parts]
        if not tables:  # what was read is said all the same
            shards, tables = [0], [pa.table({})]
        tables[0] = tables[0].replace_schema_metadata((tables[0].schema.metadata or {}) | _counts(changes["batch"]))
        chunks = [write_ipc(table) for table in tables]
        made = self._products(changes)
        shards, chunks = shards + [shards[i % len(shards)] for i in range(len(made))], chunks + made
        return pa.record_batch([pa.array(shards, pa.int32()), pa.array(chunks, pa.binary())], schema=_PACKED)

    def _products(self, changes: pa.Table) -> list[bytes]:
        events = {source: source.events(changes, self.declared) for source in {p.source for p in self.products}}
        made = ((product.name, product.of_events(events[product.source])) for product in self.products)
        return [write_ipc(rows.replace_schema_metadata({_PRODUCT: name})) for name, rows in made if rows.num_rows]


@dataclass(frozen=True)
class Chunks:
    """A shard's chunks of one batch.

    Attributes:
        points: by the name of the table of averages.
        products: each under the product's name.
        read: what was read to make them.
    """

    points: dict[str, pa.Table]
    products: Payloads
    read: ReadChanges

    @staticmethod
    def of(chunks: Iterable[bytes]) -> Chunks:
        """Takes them apart."""
        points: dict[str, list[pa.Table]] = {}
        products: Payloads = []
        read = ReadChanges()
        for chunk in chunks:
            stream = pa.ipc.open_stream(chunk)
            said = stream.schema.metadata or {}
            if _PRODUCT in said:
                products.append((said[_PRODUCT].decode(), chunk))
                continue
            read += _counted(said)
            if _SERIES in said:
                table = stream.read_all().replace_schema_metadata(None)
                points.setdefault(said[_SERIES].decode(), []).append(table)
        tables = {name: pa.concat_tables(parts).combine_chunks() for name, parts in points.items()}
        return Chunks(tables, products, read)


def shard_field(index: int) -> str:
    """Name of the column that says the shard of a change in the table of averages `index`."""
    return f"shard:{index}"


def place_of(partition: Int64s, offset: Int64s) -> Int64s:
    """A message's place among those of its topic, in one number."""
    return (partition << PLACE_BITS) | offset


def taken_apart(place: Int64s) -> dict[str, Int64s]:
    """What `place_of` was made of."""
    return {"partition": place >> PLACE_BITS, "offset": place & ((1 << PLACE_BITS) - 1)}


def _points(kept: pa.Table, series: RollingAverage, values: Sequence[str]) -> pa.Table:
    row = pc.binary_join_element_wise(*(kept[name] for name in series.keys if name != "metric"), SEPARATOR)
    owner, position = row, kept["position"]
    if series.of_session:
        owner = pc.binary_join_element_wise(kept["topic"], kept["session_id"], SEPARATOR)
    else:
        position = pa.array(place_of(kept["partition"].to_numpy().astype(np.int64), kept["offset"].to_numpy()))
    columns = [kept[name] for name in ("partition", "offset", "kafka_ms", "ts")]
    names = ["owner", "row", "partition", "offset", "kafka_ms", "ts", "position", "ordinal", *values]
    return pa.table([owner, row, *columns, position, kept["ordinal"], *(kept[name] for name in values)], names)


def _any_valid(columns: Sequence[pa.ChunkedArray], rows: int) -> pa.Array:
    found = np.zeros(rows, np.bool_)
    for column in columns:
        found |= column.is_valid().to_numpy()
    return pa.array(found)


def _split(table: pa.Table, shard: pa.ChunkedArray) -> tuple[list[int], list[pa.Table]]:
    """One table a shard."""
    if not table.num_rows:
        return [], []
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
