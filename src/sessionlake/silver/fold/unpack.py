"""Unpacks the rows in the payloads that a fold emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.protocol.chunk import decode_ipc


@dataclass(frozen=True)
class PayloadUnpacker:
    """A function for `mapInArrow` that decodes a fold's payloads (`payload binary`) into the rows in them.

    Attributes:
        batch_number: The value of the last column, `_batch`. As a literal in the query, it would make Spark compile
            the query again in every micro-batch.
    """

    batch_number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows in the task's payloads."""
        for batch in batches:
            for payload in batch.column("payload"):
                yield from unpack_rows([payload.as_buffer()], self.batch_number).to_batches()


def unpack_rows(payloads: Iterable[bytes | pa.Buffer], batch: int) -> pa.Table:
    """Returns the rows in these payloads, with the number of the batch in an added last column `_batch`."""
    rows = pa.concat_tables([decode_ipc(payload) for payload in payloads])
    return rows.append_column("_batch", pa.array(np.full(rows.num_rows, batch, np.int64)))
