"""Rows appended by Spark's Delta writer: in catalogs, and to folders whose tables ask more of their writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.storage.conflicts import repeated
from sessionlake.delta.storage.interface import Storage, writing
from sessionlake.delta.storage.txn import Txn
from sessionlake.spark.frames import Rows, as_frame, on_disk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StagedFrame:
    """A frame that Spark's writer takes in.

    Args:
        known: how many rows it has, if that is known.
    """

    def __init__(self, storage: Storage, table: str, rows: DataFrame, known: int | None = None) -> None:
        self._storage, self._table, self._rows, self._known = storage, table, rows, known

    def count(self) -> int:
        """See `Staged`; a Spark job, if it is not known."""
        return self._rows.count() if self._known is None else self._known

    def columns(self, *names: str) -> pa.Table:
        """See `Staged`."""
        return self._rows.select(*names).toArrow()

    def commit(self, txn: Txn) -> None:
        """See `Staged`. Two that commit one transaction at once conflict: repeated, the later one does nothing."""
        repeated(lambda: self._storage.save(writing(self._rows, self._table, txn, "append"), self._table))


@contextmanager
def staged_by_spark(storage: Storage, spark: SparkSession, table: str, rows: Rows) -> Iterator[StagedFrame]:
    """The rows on disk, read once, until the block is left."""
    with on_disk(as_frame(spark, rows)) as kept:
        yield StagedFrame(storage, table, kept, rows.num_rows if isinstance(rows, pa.Table) else None)
