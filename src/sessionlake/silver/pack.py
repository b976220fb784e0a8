"""Packing: raw messages of one task, decoded and cut into one chunk a shard. Runs before the shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.chunk import write_ipc
from sessionlake.protocol.decode import DecodeRules, decode

# A block is decoded as one: big enough that a shard's share is worth an IPC stream, small enough for memory.
BLOCK_MESSAGES = 262_144
BLOCK_BYTES = 64 * 1024 * 1024
PACKED = pa.schema([("shard", pa.int32()), ("chunk", pa.binary())])


@dataclass(frozen=True)
class Packer:
    """A `mapInArrow` function: record batches of raw messages in, `shard int, chunk binary` out.

    Input columns: `shard int32, topic, partition, offset, timestamp, key, value`.
    """

    rules: DecodeRules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs the task's messages block by block."""
        block: list[pa.RecordBatch] = []
        messages = size = 0
        for batch in batches:
            block.append(batch)
            messages += batch.num_rows
            size += batch.nbytes
            if messages >= BLOCK_MESSAGES or size >= BLOCK_BYTES:
                yield self.pack(pa.Table.from_batches(block))
                block, messages, size = [], 0, 0
        if messages:
            yield self.pack(pa.Table.from_batches(block))

    def pack(self, raw: pa.Table) -> pa.RecordBatch:
        """Packs one block."""
        raw = raw.take(pa.array(np.argsort(raw["shard"].to_numpy(), kind="stable"))).combine_chunks()
        shards = raw["shard"].to_numpy()
        chunk = decode(
            raw.drop_columns(["shard", "timestamp"]).append_column("kafka_ts", _ms(raw["timestamp"])), self.rules
        )
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        ends = np.append(starts[1:], len(shards))
        packed = [write_ipc(chunk.slice(a, b - a)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        return pa.record_batch([pa.array(shards[starts], pa.int32()), pa.array(packed, pa.binary())], schema=PACKED)


def _ms(timestamps: Any) -> Any:
    return pc.floor_temporal(timestamps, unit="millisecond").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
