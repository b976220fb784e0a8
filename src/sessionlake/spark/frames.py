"""Conversions between Arrow tables and Spark frames, Python functions on their batches, and checkpoints of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sessionlake.protocol.arrow import decode_dictionaries
from sessionlake.protocol.names import add_internal_prefix, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Largest number of rows that `keep_small_frame_in_one_task` keeps in one task.
_FEW = 2_000
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class DeferredArrowMap:
    """A Spark frame, and a function of its Arrow batches that Spark will apply when the rows are used.

    Attributes:
        frame: The input rows.
        function: Receives the input's Arrow batches and yields result batches. Text columns of the result may be
            dictionary-encoded.
        ddl: The columns of the result, as Spark DDL.
    """

    frame: DataFrame
    function: ArrowFunction
    ddl: str

    def apply_then(self, function: ArrowFunction, ddl: str) -> DataFrame:
        """Returns the frame with the stored function and then a second one applied, both in the same task.

        Two calls of `mapInArrow` would convert the batches to Spark rows in between.

        Args:
            function: Receives the result batches of the stored function.
            ddl: The columns of the second function's result, as Spark DDL.
        """
        return self.frame.mapInArrow(_ChainedFunctions(self.function, function), ddl)


@dataclass(frozen=True)
class _ChainedFunctions:
    """Two functions of Arrow batches as one: the second receives what the first yields."""

    first: ArrowFunction
    second: ArrowFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.second(self.first(batches))


def _decode_dictionary_columns(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decodes dictionary-encoded columns, which Spark cannot read."""
    return map(decode_dictionaries, batches)


Rows: TypeAlias = "DataFrame | DeferredArrowMap | pa.Table"


def convert_to_spark_frame(spark: SparkSession, rows: Rows) -> DataFrame:
    """Returns the rows as a Spark frame of this session. Rows that are a frame already are returned unchanged.

    The chunks of an Arrow table are combined first, because Spark 4.0 silently stops at the first empty chunk.
    """
    if isinstance(rows, DeferredArrowMap):
        return rows.apply_then(_decode_dictionary_columns, rows.ddl)
    return spark.createDataFrame(rows.combine_chunks()) if isinstance(rows, pa.Table) else rows


def keep_small_frame_in_one_task(frame: DataFrame) -> DataFrame:
    """Returns the same rows, read once and kept in one task, if there are at most 2,000. Else returns the frame itself.

    Planning a read of a Delta table takes Spark longer than reading a small one, each time a query uses it. Rows in
    one task are also grouped, joined and sorted without a shuffle.
    """
    rows = frame.limit(_FEW + 1).localCheckpoint()
    return rows if rows.count() <= _FEW else frame


def apply_to_batches(frame: DataFrame, function: ArrowFunction, ddl: str | StructType) -> DataFrame:
    """Returns the result of a function that Spark's tasks apply to the frame's Arrow batches.

    Column names may have dots.

    PySpark reads a name with a dot or a backtick as a path, so such columns are renamed on the way to Python.
    """
    if all(map(_is_plain_column_name, frame.columns)):
        return frame.mapInArrow(function, ddl)
    return frame.toDF(*_create_plain_column_names(frame.columns)).mapInArrow(
        _FunctionWithRenamedColumns(function, tuple(frame.columns)), ddl
    )


@dataclass(frozen=True)
class FunctionPerArrowBatch:
    """Makes a function of one Arrow table usable with `mapInArrow`: it is called for each batch.

    Attributes:
        function: Returns the result rows of a table.
    """

    function: Callable[[pa.Table], pa.Table]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the function's result for each batch."""
        for batch in batches:
            yield from self.function(pa.Table.from_batches([batch])).to_batches()


def apply_to_rows(rows: Rows, function: Callable[[pa.Table], pa.Table], ddl: str) -> Rows:
    """Applies a function to rows. An Arrow table is mapped at once, a frame later, per batch in Spark's tasks.

    Args:
        rows: An Arrow table, or a Spark frame with or without an unapplied function.
        function: Returns the result rows of a table.
        ddl: The columns of the result, as Spark DDL.
    """
    if isinstance(rows, pa.Table):
        return function(rows)
    if isinstance(rows, DeferredArrowMap):
        return DeferredArrowMap(rows.frame, _ChainedFunctions(rows.function, FunctionPerArrowBatch(function)), ddl)
    return apply_to_batches(rows, FunctionPerArrowBatch(function), ddl)


def apply_to_groups(
    frame: DataFrame, keys: Iterable[str], group_count: int, function: Callable[[pa.Table], pa.Table], ddl: str
) -> DataFrame:
    """Divides the rows into groups and applies a function to each. All rows with the same key are in the same group.

    Args:
        frame: The input rows.
        keys: The columns that form the key. Its hash assigns a row to a group.
        group_count: The number of groups. The rows of each must fit into a worker's memory.
        function: Returns the result rows of a group.
        ddl: The columns of the result, as Spark DDL.
    """
    from pyspark.sql import functions as F

    names, group = frame.columns, add_internal_prefix("group")

    def apply_function_to_group(rows: pa.Table) -> pa.Table:
        return function(rows.select(inside).rename_columns(names))

    inside = names if all(map(_is_plain_column_name, names)) else _create_plain_column_names(names)
    renamed = (F.col(quote(name)).alias(other) for name, other in zip(names, inside, strict=True))
    number = F.pmod(F.xxhash64(*map(quote, keys)), F.lit(group_count)).alias(group)
    return frame.select(*renamed, number).groupBy(group).applyInArrow(apply_function_to_group, ddl)


def _is_plain_column_name(name: str) -> bool:
    """Returns True if a column name has no dot or backtick, so that Spark finds the column by the plain name."""
    return "." not in name and "`" not in name


def _create_plain_column_names(names: Sequence[str]) -> list[str]:
    """Returns a column name without dots for each of these names: its position in the list."""
    return [add_internal_prefix(str(place)) for place in range(len(names))]


@dataclass(frozen=True)
class _FunctionWithRenamedColumns:
    """A function of Arrow batches whose columns are renamed before it is called."""

    function: ArrowFunction
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(list(self.names)) for batch in batches)


@contextmanager
def store_frame_on_disk(frame: DataFrame) -> Iterator[DataFrame]:
    """Reads the frame once, and yields a frame whose rows are on the executors' disks until the block ends.

    It is a checkpoint and not a cache. Spark fills a lost part of a cache from the source again, which may have other
    rows by then. A lost part of a checkpoint is an error.
    """
    from pyspark import StorageLevel

    stored = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    try:
        yield stored
    finally:
        # Spark has no public way to free the disk space. Otherwise only a garbage collection in the driver frees it.
        stored._jdf.queryExecution().logical().rdd().unpersist(False)  # noqa: FBT003, SLF001  (py4j has no keywords)


def iterate_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yields the frame's rows as Arrow batches, with the rows of only one task in the driver at a time."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    for row in apply_to_batches(frame, _serialize_batches, "part binary").toLocalIterator():
        with pa.ipc.open_stream(row["part"]) as parts:
            yield from parts.read_all().cast(schema).to_batches()


def _serialize_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields, for each batch, a batch with one row and the column `part`: the batch as an Arrow stream."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"part": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def count_rows_reading_all_columns(frame: DataFrame) -> int:
    """Reads every column of every row and returns the number of rows.

    A write to the `noop` sink cannot be used: for it, Delta does not plan the removal of rows in deletion vectors.
    """
    return int(frame._jdf.queryExecution().toRdd().count())  # noqa: SLF001  (a count would read no column)


def convert_variants_to_json(frame: DataFrame) -> DataFrame:
    """Returns the frame with all columns of type VARIANT, or that contain it, converted to JSON text.

    Arrow has no such type.
    """
    from pyspark.sql import functions as F

    kinds = [field.dataType.simpleString() for field in frame.schema.fields]
    if not any("variant" in kind for kind in kinds):
        return frame
    names = [add_internal_prefix(str(number)) for number in range(len(kinds))]  # the frame's names may repeat
    renamed = frame.toDF(*names)
    columns = [F.to_json(name) if "variant" in kind else F.col(name) for name, kind in zip(names, kinds, strict=True)]
    return renamed.select(*columns).toDF(*frame.columns)
