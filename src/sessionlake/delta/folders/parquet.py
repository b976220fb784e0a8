"""Writes Parquet files into a table's folder. The files become part of the table in a later commit.

Spark's own writer works row by row, and took most of the JVM's time in silver and gold. So a Spark task that has Arrow
batches writes them directly, to one file per task, and returns the file's statistics. The driver commits all files.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.file_statistics import FileStatistics
from sessionlake.errors import LakeError
from sessionlake.protocol.names import quote
from sessionlake.spark.frames import DeferredArrowMap

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

FAST_CODEC, COMPACT_CODEC = "snappy", "zstd"
"""Compression codecs: a fast one for new files, which are soon merged, and a compact one for merged files."""
WRITTEN_COLUMNS = "path string, size bigint, stats string"
_GATHERED_BYTES = 32 << 20
_WRITTEN = pa.schema([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])


@dataclass(frozen=True)
class WrittenFile:
    """A new data file in a table's folder that is not committed yet.

    Attributes:
        path: path relative to the folder.
        size: size in bytes.
        stats: Delta's statistics as JSON text: number of rows, and minimum, maximum and null count of some columns.
    """

    path: str
    size: int
    stats: str

    @property
    def row_count(self) -> int:
        """Number of rows in the file, from its statistics."""
        return int(json.loads(self.stats)["numRecords"])


@dataclass(frozen=True)
class DataFileWriter:
    """A function for `mapInArrow` that writes all its record batches to one new file.

    It yields one row that describes the file (`path`, `size`, `stats`), or no row if the batches have no rows. Text
    columns that are dictionary-encoded in the first batch are also dictionary-encoded in the file.

    Attributes:
        folder: the folder to write to.
        schema: the file's columns. Columns of batches are matched by name; absent columns are null.
        indexed: columns for which statistics are collected (minimum, maximum and null count).
        codec: Parquet's compression codec.
    """

    folder: str
    schema: pa.Schema
    indexed: tuple[str, ...]
    codec: str = FAST_CODEC

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the batches to a new file, and yields one row that describes the file.

        Yields nothing if there are no rows.
        """
        path = f"part-{uuid.uuid4()}.{self.codec}.parquet"
        target = Path(self.folder) / path
        known = FileStatistics(self.indexed, self.schema)
        writer: pq.ParquetWriter | None = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                rows = convert_batch_to_schema(
                    batch, _copy_dictionary_encodings(batch.schema, self.schema) if writer is None else writer.schema
                )
                writer = writer or pq.ParquetWriter(
                    target,
                    rows.schema,
                    compression=self.codec,
                    use_dictionary=list_dictionary_columns(rows.schema),
                    store_schema=False,  # readers get plain texts, also where the file has dictionaries
                )
                writer.write_batch(rows)
                known.add_batch(rows)
        except BaseException:
            with suppress(FileNotFoundError):
                target.unlink()
            raise
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            row = {"path": path, "size": target.stat().st_size, "stats": known.to_json()}
            yield pa.RecordBatch.from_pylist([row], _WRITTEN)

    def write_files(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Writes the batches to a new file in this process.

        Returns a list with this file; an empty list if there are no rows.
        """
        return [WrittenFile(**row) for batch in self(batches) for row in batch.to_pylist()]


def read_sql_column_types(delta: DeltaTable) -> dict[str, str]:
    """Returns the Spark SQL types of a table's columns by column name, in the order of the columns."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def write_files_with_arrow(rows: DeferredArrowMap, writer: DataFileWriter) -> list[WrittenFile]:
    """Writes the Arrow batches that a function computes from a Spark frame: one file per Spark task, in one job.

    Args:
        rows: the frame, and the function that computes Arrow batches from its rows.
        writer: writes the files.
    """
    files = rows.apply_then(writer, WRITTEN_COLUMNS).collect()
    return [WrittenFile(row["path"], row["size"], row["stats"]) for row in files]


def write_files_with_spark(rows: DataFrame, columns: Mapping[str, str], writer: DataFileWriter) -> list[WrittenFile]:
    """Writes the rows of a Spark frame with Spark's own writer, in one job. Passing the rows to Python would cost more.

    Args:
        rows: the rows.
        columns: Spark SQL types of the table's columns, by name. Columns that the rows lack become null.
        writer: only its folder and the columns for statistics are used.

    Raises:
        LakeError: the rows have a column that the table lacks.
    """
    folder = Path(writer.folder)
    into = folder / f"staged-{uuid.uuid4()}"
    try:
        convert_frame_to_table_columns(rows, columns).write.parquet(str(into))
        written = [_move_spark_file_to_table(file, folder, writer.indexed) for file in sorted(into.glob("*.parquet"))]
        return [file for file in written if file is not None]
    finally:
        shutil.rmtree(into, ignore_errors=True)


def convert_frame_to_table_columns(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Returns the rows with exactly the table's columns, in the table's order and types.

    Args:
        rows: the rows.
        columns: Spark SQL types of the table's columns, by name. Columns that the rows lack become null.

    Raises:
        LakeError: the rows have a column that the table lacks.
    """
    from pyspark.sql import functions as F

    held = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if [*held.items()] == [*columns.items()]:
        return rows
    if unknown := held.keys() - columns:
        raise LakeError(
            f"the rows to write have columns that the table lacks: {', '.join(sorted(unknown))}",
            why="Nothing was written",
            fix="Remove these columns from the rows, or add them to the table",
        )
    return rows.select(
        *((F.col(quote(name)) if name in held else F.lit(None)).cast(sql).alias(name) for name, sql in columns.items())
    )


def _move_spark_file_to_table(file: Path, folder: Path, indexed: tuple[str, ...]) -> WrittenFile | None:
    """Moves a file that Spark wrote into the table's folder, under a new name.

    Args:
        file: full path of the file.
        folder: the table's folder.
        indexed: columns for which statistics are collected.

    Returns:
        The moved file, with statistics from its footer. None if it has no rows; it is not moved then.
    """
    footer = pq.read_metadata(file)
    known = FileStatistics(indexed, footer.schema.to_arrow_schema())
    if not footer.num_rows:
        return None
    for number in range(footer.num_row_groups):
        known.add_row_group(footer.row_group(number))
    path = f"part-{uuid.uuid4()}.{FAST_CODEC}.parquet"
    file.rename(folder / path)
    return WrittenFile(path, (folder / path).stat().st_size, known.to_json())


def convert_batch_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the record batch with exactly the columns of `schema`, in its order and types.

    Columns that the batch lacks are null. Columns that the schema lacks are left out.
    """
    held = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [_cast_column_or_nulls(held.get(field.name), field.type, batch.num_rows) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_column_or_nulls(values: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, kind)
    return values if values.type == kind else values.cast(kind)


def combine_small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combines record batches into larger ones, since each batch becomes one row group of a file."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _GATHERED_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, size = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def list_dictionary_columns(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns that are written with a dictionary, because their values usually repeat."""
    return [
        field.name
        for field in schema
        if pa.types.is_dictionary(field.type) or (pa.types.is_string(field.type) and field.name not in _DISTINCT)
    ]


def _copy_dictionary_encodings(encoded_schema: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Returns `schema` with dictionary types for the columns that have dictionary types in `encoded_schema`."""
    there = {f.name: f.type for f in encoded_schema if pa.types.is_dictionary(f.type)}
    return pa.schema(
        [
            field.with_type(there[field.name])
            if field.name in there and there[field.name].value_type == field.type
            else field
            for field in schema
        ]
    )


# Text columns in which nearly all values are distinct.
_DISTINCT = frozenset({"row_id"})
