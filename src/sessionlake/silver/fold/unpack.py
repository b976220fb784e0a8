"""Unpacks the rows in the payloads that a fold emitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.protocol.chunk import decode_ipc


@dataclass(frozen=True)
class PayloadUnpacker:
    """A `mapInArrow` function: takes record batches `payload binary`, and yields the rows in the payloads.

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


def unpack_rows(payloads: Iterable[bytes | pa.Buffer], batch_number: int) -> pa.Table:
    """Returns the rows in the payloads, with `batch_number` in an additional last column `_batch`."""
    rows = pa.concat_tables([decode_ipc(payload) for payload in payloads])
    return rows.append_column("_batch", pa.array(np.full(rows.num_rows, batch_number, np.int64)))
