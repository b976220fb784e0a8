"""Unpacking: a fold's payloads back to rows, as a `mapInArrow` function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


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
                for rows in pa.ipc.open_stream(payload.as_buffer()):
                    number = pa.array(np.full(rows.num_rows, self.batch, np.int64))
                    yield rows.append_column("_batch", number)
