"""Reads rows of a table's files: all rows, or single ones by reading only the row groups that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sessionlake.delta.folders.parquet import conform_batch
from sessionlake.delta.folders.table_files import TableFile
from sessionlake.protocol.types import Int64s

_BATCH = 1 << 16
_FEW = 8  # up to this many row groups, one thread is faster
_PARSED = 7  # bytes in memory per byte of a footer


@dataclass(frozen=True)
class Footer:
    """A Parquet file's footer. Reading it takes longer than reading a few rows.

    Attributes:
        metadata: the row groups and their places.
        first_rows: the first row of each row group, and the number of rows at the end.
        dictionary_columns: text columns that are stored with a dictionary.
    """

    metadata: pq.FileMetaData
    first_rows: Int64s
    dictionary_columns: frozenset[str]

    @classmethod
    def of(cls, content: pq.FileMetaData) -> Footer:
        """Returns the footer from Parquet metadata."""
        sizes = [content.row_group(number).num_rows for number in range(content.num_row_groups)]
        return cls(content, np.cumsum([0, *sizes]), _listed(content))

    @classmethod
    def read(cls, path: Path) -> Footer:
        """Reads a file's footer."""
        return cls.of(pq.read_metadata(path))

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory."""
        return int(_PARSED * self.metadata.serialized_size + self.first_rows.nbytes)


def _listed(content: pq.FileMetaData) -> frozenset[str]:
    if not content.num_row_groups:
        return frozenset()
    group = content.row_group(0)
    texts = (n for n in range(group.num_columns) if content.schema.column(n).logical_type.type == "STRING")
    return frozenset(group.column(n).path_in_schema for n in texts if group.column(n).has_dictionary_page)


def read_rows(path: Path, rows: Int64s, columns: Sequence[str], footer: Footer | None = None) -> pa.Table:
    """Reads rows of a Parquet file.

    Args:
        rows: their numbers, ascending.
        columns: those that the file lacks, because they are newer, are left out.
        footer: the file's; None to read it.
    """
    footer = footer or Footer.read(path)
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
                parts.append(conform_batch(batch.take(pa.array(here - place)), plain))
            place += batch.num_rows
        return pa.Table.from_batches(parts, plain)


def column_of(rows: pa.Table, wanted: pa.Field, count: int) -> pa.Array | pa.ChunkedArray:
    """Returns a column with the table's type; nulls if the rows' file is older than the column."""
    if wanted.name not in rows.column_names:
        return pa.nulls(count, wanted.type)
    column = rows[wanted.name]
    return column if column.type == wanted.type else column.cast(wanted.type)


def read_files(files: Iterable[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of files in that order, with the columns of a schema; nulls for columns newer than a file."""
    for file in files:
        stays, place = np.ones(file.row_count, np.bool_), 0
        stays[file.deleted_rows] = False
        # Spark writes some times as INT96. Arrow would read them as nanoseconds, whose range is too short.
        with pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as content:
            for batch in content.iter_batches(columns=schema.names):
                kept = pa.array(stays[place : place + batch.num_rows])
                place += batch.num_rows
                yield conform_batch(batch, schema).filter(kept)
