"""Unpacking: a fold's payloads back to rows, as a `mapInArrow` function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.protocol.chunk import read_ipc


@dataclass(frozen=True)
class Unpack:
    """Record batches `payload binary`, each payload an Arrow IPC stream, to the rows in them.

    Attributes:
        batch: put into a last column `_batch`. Here rather than as a literal of the query, for which Spark
            would compile its code anew in every micro-batch.
    """

    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpacks the task's payloads."""
        for batch in batches:
            for payload in batch.column("payload"):
                yield from unpacked([payload.as_buffer()], self.batch).to_batches()


def unpacked(payloads: Iterable[bytes | pa.Buffer], batch: int) -> pa.Table:
    """The rows in the payloads, with the last column `_batch`."""
    rows = pa.concat_tables([read_ipc(payload) for payload in payloads])
    return rows.append_column("_batch", pa.array(np.full(rows.num_rows, batch, np.int64)))
