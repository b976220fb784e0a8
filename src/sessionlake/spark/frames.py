"""Rows at hand as a Spark frame, and a frame's rows kept as they were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sessionlake.protocol.arrow import decode_dictionaries
from sessionlake.protocol.names import internal, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Rows that one task may have.
_FEW = 2_000
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Mapped:
    """A frame seen through a function of Arrow batches, which runs in the tasks of whoever uses the rows.

    Attributes:
        function: texts may come of it as dictionaries.
        ddl: of the rows that the function gives.
    """

    frame: DataFrame
    function: ArrowFunction
    ddl: str

    def then(self, function: ArrowFunction, ddl: str) -> DataFrame:
        """Through a further function, in the same task: between two, Spark would make rows of the batches."""
        return self.frame.mapInArrow(_Chain(self.function, function), ddl)


@dataclass(frozen=True)
class _Chain:
    first: ArrowFunction
    second: ArrowFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.second(self.first(batches))


def _dense(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With texts in the place of dictionaries, which Spark does not read."""
    return map(decode_dictionaries, batches)


Rows: TypeAlias = "DataFrame | Mapped | pa.Table"


def as_frame(spark: SparkSession, rows: Rows) -> DataFrame:
    """The rows as a frame of this session, if they are not one yet.

    Spark 4.0 stops reading an Arrow table at its first empty chunk and says nothing: chunks are put together first.
    """
    if isinstance(rows, Mapped):
        return rows.then(_dense, rows.ddl)
    return spark.createDataFrame(rows.combine_chunks()) if isinstance(rows, pa.Table) else rows


def gathered(frame: DataFrame) -> DataFrame:
    """The frame's rows; few of them are read once, and are one task's from there on.

    To plan a read of a Delta table takes Spark longer than to read a small one, wherever a query names it; and what
    is in one place is grouped, joined and ordered without a shuffle.
    """
    rows = frame.limit(_FEW + 1).localCheckpoint()
    return rows if rows.count() <= _FEW else frame


def map_batches(frame: DataFrame, function: ArrowFunction, ddl: str | StructType) -> DataFrame:
    """What a function makes of the frame's Arrow batches, whatever the columns are called.

    PySpark reads a name with a dot or a backtick as a path: such frames cross to Python under names of ours.
    """
    if all(map(_is_word, frame.columns)):
        return frame.mapInArrow(function, ddl)
    return frame.toDF(*_numbered(frame.columns)).mapInArrow(_Renamed(function, tuple(frame.columns)), ddl)


@dataclass(frozen=True)
class EachBatch:
    """A function of a table, as a function of Arrow batches: called for each batch by itself."""

    function: Callable[[pa.Table], pa.Table]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results of all batches."""
        for batch in batches:
            yield from self.function(pa.Table.from_batches([batch])).to_batches()


def mapped(rows: Rows, function: Callable[[pa.Table], pa.Table], ddl: str) -> Rows:
    """The result of a function on rows: at once if they are at hand, else for each batch by itself, where they are."""
    if isinstance(rows, pa.Table):
        return function(rows)
    if isinstance(rows, Mapped):
        return Mapped(rows.frame, _Chain(rows.function, EachBatch(function)), ddl)
    return map_batches(rows, EachBatch(function), ddl)


def map_groups(
    frame: DataFrame, keys: Iterable[str], groups: int, function: Callable[[pa.Table], pa.Table], ddl: str
) -> DataFrame:
    """The result of a function on the rows of many keys at once, all rows of a key together.

    Args:
        keys: columns by whose hash rows are assigned to a group; their names may be any.
        groups: number of groups; the rows of each must fit into a worker's memory.
        function: called once a group.
        ddl: columns of the function's result.
    """
    from pyspark.sql import functions as F

    names, group = frame.columns, internal("group")

    def call(rows: pa.Table) -> pa.Table:
        return function(rows.select(inside).rename_columns(names))

    inside = names if all(map(_is_word, names)) else _numbered(names)
    renamed = (F.col(quote(name)).alias(other) for name, other in zip(names, inside, strict=True))
    number = F.pmod(F.xxhash64(*map(quote, keys)), F.lit(groups)).alias(group)
    return frame.select(*renamed, number).groupBy(group).applyInArrow(call, ddl)


def _is_word(name: str) -> bool:
    return "." not in name and "`" not in name


def _numbered(names: Sequence[str]) -> list[str]:
    return [internal(str(place)) for place in range(len(names))]


@dataclass(frozen=True)
class _Renamed:
    """A function of Arrow batches that is given them under these names."""

    function: ArrowFunction
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(list(self.names)) for batch in batches)


@contextmanager
def on_disk(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame's rows, read once: on the executors' disks until the block is left, then gone.

    A checkpoint, not a cache: what a cache loses Spark reads once more from the source, which may hold other rows by
    then; what a checkpoint loses is an error.
    """
    from pyspark import StorageLevel

    stored = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    try:
        yield stored
    finally:
        # Spark gives no other way to it, and would free the disk only once the driver's garbage is collected.
        stored._jdf.queryExecution().logical().rdd().unpersist(False)  # noqa: FBT003, SLF001  (py4j has no keywords)


def by_parts(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The frame's rows, as `toArrow` gives them; of these, one task's are in the driver at once."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    for row in map_batches(frame, _serialized, "part binary").toLocalIterator():
        with pa.ipc.open_stream(row["part"]) as parts:
            yield from parts.read_all().cast(schema).to_batches()


def _serialized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A `mapInArrow` function: each batch as an Arrow stream."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"part": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def read_whole(frame: DataFrame) -> int:
    """Reads every column of every row, and returns how many rows there are.

    A write to nowhere does not do: for one, Delta does not plan how rows that are marked as gone are left out.
    """
    return int(frame._jdf.queryExecution().toRdd().count())  # noqa: SLF001  (a count would read no column)
