"""Parquet files written by Spark's tasks into a table's folder, for Delta to take in.

Spark's own writer goes row by row: it was most of what silver's and gold's JVM did. A task that has Arrow batches
writes them as they are, one file a task, and says what Delta wants to know of it; the driver commits all at once.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sessionlake.errors import LakeError
from sessionlake.lake.table_schema import SKIPPING, names_listed
from sessionlake.protocol.names import quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.runtime.frames import Mapped

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

QUICK, SMALL = "snappy", "zstd"
"""What files are compressed with: fresh ones, which are merged soon, and those that are merged, and stay."""
WRITTEN = "path string, size bigint, stats string"
_WRITTEN = pa.schema([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])
# Longer texts are cut, to what is not above the least, and not below the greatest. Left out they must not be: of a
# column that has values and no bounds, delta-rs' dataset takes every row for one that meets no condition on it.
_LONGEST_TEXT = 256
_LAST_CHARACTER = "\U0010ffff"
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class WrittenFile:
    """A file in a table's folder that no version of the table knows yet.

    Attributes:
        path: within the folder.
        stats: what Delta keeps of it, as JSON: number of rows, and minimum, maximum and nulls of some columns.
    """

    path: str
    size: int
    stats: str

    @property
    def rows(self) -> int:
        """How many it has."""
        return int(json.loads(self.stats)["numRecords"])


@dataclass(frozen=True)
class FileWriter:
    """A `mapInArrow` function: record batches in, one row for the file that they were written to; none for no rows.

    Texts that the first batch has as dictionaries are written as they are, without being looked up one by one.

    Attributes:
        schema: of the file; columns of the batches by name, absent ones null.
        indexed: names of columns of which minimum, maximum and number of nulls are told.
        codec: what Parquet compresses with.
    """

    folder: str
    schema: pa.Schema
    indexed: tuple[str, ...]
    codec: str = QUICK

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the task's rows."""
        path = f"part-{uuid.uuid4()}.{self.codec}.parquet"
        target = Path(self.folder) / path
        known = _Statistics(self.indexed)
        writer: pq.ParquetWriter | None = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                rows = conformed(batch, _encoded_as(batch.schema, self.schema) if writer is None else writer.schema)
                writer = writer or pq.ParquetWriter(
                    target,
                    rows.schema,
                    compression=self.codec,
                    use_dictionary=dictionaries(rows.schema),
                    store_schema=False,  # a reader is to have texts, however they came
                )
                writer.write_batch(rows)
                known.add(rows)
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

    def files(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Writes rows in this process: to one file, or to none if there are none."""
        return [WrittenFile(**told) for batch in self(batches) for told in batch.to_pylist()]


def indexed_columns(delta: DeltaTable) -> tuple[str, ...]:
    """The columns that a table's files keep minimum and maximum of."""
    return names_listed(delta.metadata().configuration.get(SKIPPING, ""))


def columns_of(delta: DeltaTable) -> dict[str, str]:
    """Names of a table's columns, and their types in Spark SQL."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def written_by_arrow(rows: Mapped, writer: FileWriter) -> list[WrittenFile]:
    """Writes rows that tasks have as Arrow (one job)."""
    files = rows.then(writer, WRITTEN).collect()
    return [WrittenFile(row["path"], row["size"], row["stats"]) for row in files]


def written_by_spark(
    rows: DataFrame, folder: Path, columns: Mapping[str, str], indexed: tuple[str, ...]
) -> list[WrittenFile]:
    """Writes rows that Spark has as its own (one job): to carry them to Python would cost more than its writer does.

    Args:
        columns: names and types of the table's; one that the rows lack is null.
    """
    into = folder / f"staged-{uuid.uuid4()}"
    try:
        conforming(rows, columns).write.parquet(str(into))
        written = [_adopted(file, folder, indexed) for file in sorted(into.glob("*.parquet"))]
        return [file for file in written if file is not None]
    finally:
        shutil.rmtree(into, ignore_errors=True)


def conforming(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The rows with a table's columns, in its order and of its types.

    Raises:
        LakeError: they have a column that the table has not.
    """
    from pyspark.sql import functions as F

    held = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if [*held.items()] == [*columns.items()]:
        return rows
    if unknown := held.keys() - columns:
        raise LakeError(f"the table has no column {', '.join(sorted(unknown))}, which rows to be written have")
    return rows.select(
        *((F.col(quote(name)) if name in held else F.lit(None)).cast(sql).alias(name) for name, sql in columns.items())
    )


def _adopted(file: Path, folder: Path, indexed: tuple[str, ...]) -> WrittenFile | None:
    """A file of Spark's, moved into the table's folder, with what its footer tells; None of one without rows."""
    footer, known = pq.read_metadata(file), _Statistics(indexed)
    if not footer.num_rows:
        return None
    for number in range(footer.num_row_groups):
        known.add_group(footer.row_group(number))
    path = f"part-{uuid.uuid4()}.{QUICK}.parquet"
    file.rename(folder / path)
    return WrittenFile(path, (folder / path).stat().st_size, known.to_json())


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with a table's columns, in its order and of its types."""
    held = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [_typed(held.get(field.name), field.type, batch.num_rows) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _typed(values: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, kind)
    return values if values.type == kind else values.cast(kind)


def dictionaries(schema: pa.Schema) -> list[str]:
    """Columns whose values repeat so often that a dictionary saves more than it costs to make."""
    return [
        field.name
        for field in schema
        if pa.types.is_dictionary(field.type) or (pa.types.is_string(field.type) and field.name not in _DISTINCT)
    ]


def _encoded_as(found: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """The schema, with those columns as dictionaries that were found as such."""
    there = {f.name: f.type for f in found if pa.types.is_dictionary(f.type)}
    return pa.schema(
        [
            field.with_type(there[field.name])
            if field.name in there and there[field.name].value_type == field.type
            else field
            for field in schema
        ]
    )


# Texts of which nearly every one is another.
_DISTINCT = frozenset({"row_id"})


class _Statistics:
    """What Delta keeps of a file's columns, gathered batch by batch."""

    def __init__(self, names: Iterable[str]) -> None:
        self._rows = 0
        self._nulls = dict.fromkeys(names, 0)
        self._whole = True
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch."""
        self._rows += batch.num_rows
        for name in self._nulls:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            if pa.types.is_dictionary(column.type):
                column = column.dictionary.take(column.indices.unique())
            if is_time := pa.types.is_timestamp(column.type):
                column = column.cast(_MICROSECONDS).cast(pa.int64())
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                self._extend(name, ends["min"], ends["max"], is_time=is_time)

    def add_group(self, group: Any) -> None:
        """Takes in a row group of a file's footer."""
        self._rows += group.num_rows
        for index in range(group.num_columns):
            column = group.column(index)
            if (name := column.path_in_schema) not in self._nulls:
                continue
            told = column.statistics
            if told is not None and told.has_min_max:
                is_time = told.logical_type.type == "TIMESTAMP"
                ends = (told.min_raw, told.max_raw) if is_time else (told.min, told.max)
                self._extend(name, *ends, is_time=is_time)
            elif told is None or told.null_count < group.num_rows:
                self._whole = False  # as of texts of thousands of characters
            self._nulls[name] += 0 if told is None else told.null_count

    def _extend(self, name: str, least: Any, greatest: Any, *, is_time: bool) -> None:
        """Takes in bounds; times are in microseconds, and those of no year of four digits are none that can be told."""
        if is_time and not FIRST_MS * 1000 <= least <= greatest <= LAST_MS * 1000:
            self._whole = False
            return
        if is_time:
            least, greatest = (_EPOCH + timedelta(microseconds=end) for end in (least, greatest))
        self._least[name] = min(self._least.get(name, least), least)
        self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def to_json(self) -> str:
        """As Delta's log has it; the number of rows alone where a bound is not known."""
        if not self._whole:
            return json.dumps({"numRecords": self._rows})
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {name: _text(value, _cut) for name, value in sorted(self._least.items())},
                "maxValues": {name: _text(value, _rounded_up) for name, value in sorted(self._greatest.items())},
                "nullCount": self._nulls,
            }
        )


def _text(value: Any, shortened: Callable[[str], str]) -> Any:
    if isinstance(value, datetime):  # `strftime` would not fill up years to four digits
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return shortened(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return text[:_LONGEST_TEXT]


def _rounded_up(text: str) -> str:
    """At least the text: what is behind its beginning is below the last character that there is."""
    end = next((i for i in range(_LONGEST_TEXT, len(text)) if text[i] != _LAST_CHARACTER), len(text))
    return text if end == len(text) else text[:end] + _LAST_CHARACTER
