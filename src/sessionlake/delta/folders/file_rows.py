"""Reads rows of data files: all rows, or rows with given numbers. For these, only their row groups are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.parquet import convert_batch_to_schema
from sessionlake.delta.folders.table_files import TableFile
from sessionlake.protocol.types import Int64s

_BATCH = 1 << 16
_FEW = 8  # with up to this many row groups, one thread reads faster than several
_PARSED = 7  # bytes of memory that a parsed footer needs per byte in the file


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a Parquet file, with what is needed to find rows by their numbers.

    Attributes:
        metadata: the footer as PyArrow parses it.
        first_rows: the number of the first row of each row group, and at the end the file's number of rows.
        dictionary_columns: names of the text columns that are stored with a dictionary.
    """

    metadata: pq.FileMetaData
    first_rows: Int64s
    dictionary_columns: frozenset[str]

    @classmethod
    def from_metadata(cls, content: pq.FileMetaData) -> ParquetFooter:
        """Returns the footer of a Parquet file, computed from PyArrow's metadata of the file."""
        sizes = [content.row_group(number).num_rows for number in range(content.num_row_groups)]
        return cls(content, np.cumsum([0, *sizes]), _list_dictionary_columns(content))

    @classmethod
    def read_footer(cls, path: Path) -> ParquetFooter:
        """Reads a file's footer."""
        return cls.from_metadata(pq.read_metadata(path))

    @property
    def nbytes(self) -> int:
        """Approximate memory that the footer uses, in bytes."""
        return int(_PARSED * self.metadata.serialized_size + self.first_rows.nbytes)


def _list_dictionary_columns(content: pq.FileMetaData) -> frozenset[str]:
    if not content.num_row_groups:
        return frozenset()
    group = content.row_group(0)
    texts = (n for n in range(group.num_columns) if content.schema.column(n).logical_type.type == "STRING")
    return frozenset(group.column(n).path_in_schema for n in texts if group.column(n).has_dictionary_page)


def read_rows(path: Path, rows: Int64s, columns: Sequence[str], footer: ParquetFooter | None = None) -> pa.Table:
    """Returns the rows of a Parquet file that have these numbers, in this order.

    Args:
        path: full path of the file.
        rows: numbers of the rows in the file, ascending, from 0.
        columns: names of the columns to read. Columns that the file lacks are left out of the result.
        footer: the file's footer, if it is known; None to read it from the file.
    """
    footer = footer or ParquetFooter.read_footer(path)
    texts = [name for name in columns if name in footer.dictionary_columns]  # only the selected rows are decoded
    with (
        pa.OSFile(str(path)) as file,
        pq.ParquetFile(
            file, metadata=footer.metadata, read_dictionary=texts, coerce_int96_timestamp_unit="us"
        ) as content,
    ):
        schema = content.schema_arrow
        present = [schema.field(name) for name in columns if name in schema.names]
        if not present:
            return pa.table({})
        group = np.searchsorted(footer.first_rows, rows, side="right") - 1
        read = np.unique(group)
        sizes = np.diff(footer.first_rows)[read]
        skipped = np.zeros(len(footer.first_rows), np.int64)
        skipped[read] = footer.first_rows[read] - (np.cumsum(sizes) - sizes)
        wanted, place = rows - skipped[group], 0
        plain = pa.schema([field.with_type(pa.string()) if field.name in texts else field for field in present])
        parts = list[pa.RecordBatch]()
        for batch in content.iter_batches(
            _BATCH, row_groups=read.tolist(), columns=plain.names, use_threads=len(read) > _FEW
        ):
            here = wanted[np.searchsorted(wanted, place) : np.searchsorted(wanted, place + batch.num_rows)]
            if len(here):
                parts.append(convert_batch_to_schema(batch.take(pa.array(here - place)), plain))
            place += batch.num_rows
        return pa.Table.from_batches(parts, plain)


def get_column_or_nulls(rows: pa.Table, column: pa.Field, row_count: int) -> pa.Array | pa.ChunkedArray:
    """Returns one column of rows that were read from a file, converted to the type that the table has.

    If the file lacks the column because it is older, all values are null.

    Args:
        rows: rows from one file.
        column: name and type of the column in the table.
        row_count: number of rows, which `rows` does not say if it has no columns.
    """
    if column.name not in rows.column_names:
        return pa.nulls(row_count, column.type)
    stored = rows[column.name]
    return stored if stored.type == column.type else stored.cast(column.type)


def read_undeleted_rows(files: Iterable[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of data files, file by file, without deleted rows.

    Args:
        files: the files.
        schema: columns of the result. Columns that a file lacks are null.
    """
    for file in files:
        stays, place = np.ones(file.row_count, np.bool_), 0
        stays[file.deleted_rows] = False
        # Spark may write times as INT96. Arrow would read them as nanoseconds, which end in the year 2262.
        with pq.ParquetFile(file.full_path, coerce_int96_timestamp_unit="us") as content:
            for batch in content.iter_batches(columns=schema.names):
                kept = pa.array(stays[place : place + batch.num_rows])
                place += batch.num_rows
                yield convert_batch_to_schema(batch, schema).filter(kept)
