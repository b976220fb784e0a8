"""Unpacking: a fold's payloads back to rows, as a `mapInArrow` function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record batches `payload binary`, each payload an Arrow IPC stream, to the rows in them."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from pa.ipc.open_stream(payload.as_buffer())
