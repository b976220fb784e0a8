"""A few rows out of the lake's tables: by delta-rs on a laptop, by Spark where tables are in a catalog.

A question about one message, or about the ledger, is answered by delta-rs before Spark would have started. Both
readers give the same rows. Of the append-only tables, only files whose statistics leave it open are read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.lake.ledger import ENTRY, REBUILD, current, rebuilt
from sessionlake.lake.names import LEDGER
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.types import Row
from sessionlake.runtime.interpreted import interpreted

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

# A column, a comparison that both engines' expressions understand (one of the `operator` module, `among`), and a value.
Condition = tuple[str, Callable[[Any, Any], Any], Any]
_PLACE = ["layer", "topic", "partition"]


class Span(NamedTuple):
    """First and last offset of a topic-partition that a layer has taken in, both included."""

    layer: str
    topic: str
    partition: int
    first: int
    last: int


class TableReader(Protocol):
    """Reads tables; one that is not there yet has no rows."""

    def rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """The rows that meet all conditions; times are aware, in UTC."""

    def table(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows that meet all conditions, as one Arrow table. The table must be there."""

    def any(self, table: str, *conditions: Condition) -> bool:
        """Whether a row meets all conditions; reads no further than to the first."""

    def covering(self, layer: str, topic: str, partition: int, offset: int) -> list[Row]:
        """The layer's ledger rows, since it was rebuilt, whose offset ranges include the message."""

    def spans(self) -> list[Span]:
        """What each layer, as it is now, has taken in of each topic-partition, by the ledger, in that order."""


def reader_for(lake: Lake, spark: SparkSession | None = None) -> TableReader:
    """The lake's reader: local tables need no session.

    Raises:
        LakeError: the tables are in a catalog and there is no session.
    """
    if lake.local:
        return DirectReader(lake)
    if spark is None:
        raise LakeError(f"the tables of catalog {lake.settings.catalog} are read by Spark: pass the session")
    return SparkReader(lake, spark)


def among(column: Any, values: Sequence[Any]) -> Any:
    """A comparison: the column's value is one of these."""
    return column.isin(values)


def _begins_with(column: Any, text: str) -> Any:
    return pc.starts_with(column, text)


class TooLargeError(LakeError):
    """More was found than whoever asked can hold in memory."""


class DirectReader:
    """Reads local tables with delta-rs, batch by batch."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """See `TableReader`."""
        for batch in self._batches(table, conditions, columns):
            yield from batch.to_pylist()

    def table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        at_most: int | None = None,
    ) -> pa.Table:
        """See `TableReader`.

        Args:
            at_most: bytes in memory.

        Raises:
            TooLargeError: it has more.
        """
        from deltalake import DeltaTable

        batches, size = [], 0
        for batch in self._batches(table, conditions, columns):
            size += batch.nbytes
            if at_most is not None and size > at_most:
                raise TooLargeError(f"the rows asked for of {table} have more than {at_most} bytes")
            batches.append(batch)
        if batches:
            return pa.Table.from_batches(batches)
        schema = pa.schema(DeltaTable(self._lake.path(table)).schema().to_arrow())
        return schema.empty_table().select(schema.names if columns is None else list(columns))

    def any(self, table: str, *conditions: Condition) -> bool:
        """See `TableReader`."""
        named = [name for name, _, _ in conditions]
        return any(batch.num_rows for batch in self._batches(table, conditions, named or None))

    def covering(self, layer: str, topic: str, partition: int, offset: int) -> list[Row]:
        """See `TableReader`."""
        found: list[Row] = []
        for batch in self._current(("layer", operator.eq, layer)):
            place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
            inside = place & (pc.field("first") <= offset) & (pc.field("last") >= offset)
            found += batch.take(_ranges(batch).filter(inside)["row"].unique()).to_pylist()
        return found

    def spans(self) -> list[Span]:
        """See `TableReader`."""
        found: dict[tuple[str, str, int], tuple[int, int]] = {}
        for batch in self._current(columns=[*ENTRY, "offsets"]):
            spans = _ranges(batch).group_by(_PLACE).aggregate([("first", "min"), ("last", "max")])
            for row in spans.to_pylist():
                place = row["layer"], row["topic"], row["partition"]
                first, last = found.get(place, (row["first_min"], row["last_max"]))
                found[place] = min(first, row["first_min"]), max(last, row["last_max"])
        return sorted(Span(*place, *span) for place, span in found.items())

    def _current(self, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The ledger's rows since each layer was rebuilt."""
        rebuilds = self._batches(LEDGER, [("app_id", _begins_with, REBUILD)], ENTRY)
        since = rebuilt(row for batch in rebuilds for row in batch.to_pylist())
        for batch in self._batches(LEDGER, conditions, columns):
            kept = pa.Table.from_batches([batch])
            for layer, (by, least) in since.items():
                kept = kept.filter((pc.field("layer") != layer) | (pc.field(by) >= least))
            yield from kept.to_batches()

    def _batches(
        self, table: str, conditions: Sequence[Condition], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        folder = self._lake.path(table)
        if not (folder / "_delta_log").is_dir():
            return
        meets = [compare(pc.field(name), value) for name, compare, value in conditions]
        wanted = reduce(operator.and_, meets) if meets else None
        try:
            delta = DeltaTable(folder)
            marked = "deletionVectors" in (delta.protocol().reader_features or ())
            yield from (_merged if marked else _appended)(delta, folder, wanted, columns)
        except DeltaError as error:
            raise LakeError(f"{table} cannot be read by delta-rs ({error}); `sessionlake query` reads it") from error


def _appended(
    delta: DeltaTable, folder: Path, wanted: pc.Expression | None, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """From the files whose statistics leave it open."""
    from pyarrow.dataset import ParquetReadOptions
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    # delta-rs' own file system calls Python from Arrow's threads, which aborts a process that is about to end.
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    # Spark writes some times as INT96, which Arrow would take for nanoseconds: too short a range.
    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")
    dataset = delta.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    yield from dataset.to_batches(columns=None if columns is None else list(columns), filter=wanted)


def _merged(
    delta: DeltaTable, folder: Path, wanted: pc.Expression | None, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """From a table with deletion vectors, which only delta-rs' own engine reads: all of it."""
    del folder
    schema = pa.schema(delta.schema().to_arrow())
    for batch in pa.RecordBatchReader.from_stream(delta.scan(columns=schema.names)):
        rows = pa.Table.from_batches([batch]).cast(schema)
        kept = rows if wanted is None else rows.filter(wanted)
        yield from (kept if columns is None else kept.select(list(columns))).to_batches()


class SparkReader:
    """Reads tables by Spark; what the ledger is asked is answered where it is."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self._lake = lake
        self._spark = spark

    def rows(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """See `TableReader`."""
        if self._lake.exists(self._spark, table):
            yield from self.table(table, *conditions, columns=columns).to_pylist()

    def table(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> pa.Table:
        """See `TableReader`."""
        frame = self._where(table, conditions)
        with interpreted(self._spark):
            return (frame if columns is None else frame.select(*map(quote, columns))).toArrow()

    def any(self, table: str, *conditions: Condition) -> bool:
        """See `TableReader`."""
        if not self._lake.exists(self._spark, table):
            return False
        with interpreted(self._spark):
            return not self._where(table, conditions).isEmpty()

    def _where(self, table: str, conditions: Sequence[Condition]) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self._lake.read(self._spark, table)
        for name, compare, value in conditions:
            frame = frame.where(compare(F.col(name), value))
        return frame

    def covering(self, layer: str, topic: str, partition: int, offset: int) -> list[Row]:
        """See `TableReader`."""
        from pyspark.sql import functions as F

        if not self._lake.exists(self._spark, LEDGER):
            return []
        place = (F.col("o.topic") == topic) & (F.col("o.partition") == partition)
        inside = place & F.lit(offset).between(F.col("o.first"), F.col("o.last"))
        rows = current(self._lake.read(self._spark, LEDGER)).where(F.col("layer") == layer)
        return self._collected(rows.withColumn("o", F.explode("offsets")).where(inside).drop("o"))

    def spans(self) -> list[Span]:
        """See `TableReader`."""
        from pyspark.sql import functions as F

        if not self._lake.exists(self._spark, LEDGER):
            return []
        ranges = current(self._lake.read(self._spark, LEDGER)).select("layer", F.explode("offsets").alias("o"))
        ends = ranges.groupBy("layer", "o.topic", "o.partition").agg(F.min("o.first"), F.max("o.last"))
        return sorted(Span(*row.values()) for row in self._collected(ends))

    def _collected(self, frame: DataFrame) -> list[Row]:
        with interpreted(self._spark):
            return list(frame.toArrow().to_pylist())


def _ranges(batch: pa.RecordBatch) -> pa.Table:
    """The offset ranges of ledger rows: `row` (index of the one it stands in), `layer` and the range's fields."""
    offsets = batch.column("offsets")
    row, ranges = pc.list_parent_indices(offsets), offsets.flatten()
    columns = {name: ranges.field(name) for name in ("topic", "partition", "first", "last")}
    return pa.table({"row": row, "layer": batch.column("layer").take(row)} | columns)
