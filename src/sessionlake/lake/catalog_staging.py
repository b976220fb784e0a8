"""How Spark's writer commits rows to a table of a catalog: appended once, whatever the number of repetitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.lake.conflicts import repeated
from sessionlake.lake.storage import Storage, writing
from sessionlake.lake.txn import Txn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StagedFrame:
    """A frame that Spark's writer takes in.

    Args:
        known: how many rows it has, if that is known.
    """

    def __init__(self, catalog: Storage, table: str, rows: DataFrame, known: int | None = None) -> None:
        self._catalog = catalog
        self._table = table
        self._rows = rows
        self._known = known

    def count(self) -> int:
        """See `Staged`; a Spark job, if it is not known."""
        return self._rows.count() if self._known is None else self._known

    def columns(self, *names: str) -> pa.Table:
        """See `Staged`."""
        return self._rows.select(*names).toArrow()

    def commit(self, txn: Txn) -> None:
        """See `Staged`."""
        # Two that commit the same transaction at once conflict: repeated, the later one is passed over.
        repeated(lambda: self._catalog.save(writing(self._rows, self._table, txn, "append"), self._table))
