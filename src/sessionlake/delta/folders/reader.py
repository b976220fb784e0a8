"""Reads the tables of a home with delta-rs, without Spark."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.table_files import opened
from sessionlake.delta.storage.far_times import FarTime, micros_of
from sessionlake.delta.storage.reading import Condition, FilesRead, TableReader, TableSize, among, is_null
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from deltalake import DeltaTable


def is_table(folder: Path) -> bool:
    """Whether a table is there: one that a process died in creating has a log without a commit."""
    try:
        with os.scandir(folder / "_delta_log") as log:
            return any(entry.name.endswith(".json") for entry in log)
    except (FileNotFoundError, NotADirectoryError):
        return False


class FolderReader(TableReader):
    """Reads tables that are folders.

    Args:
        path: the folder of a table.
    """

    def __init__(self, path: Callable[[str], Path]) -> None:
        self._path = path

    def exists(self, table: str) -> bool:
        """See `TableReader`."""
        return is_table(self._path(table))

    def schema(self, table: str) -> pa.Schema:
        """See `TableReader`."""
        return pa.schema(opened(self._path(table)).schema().to_arrow())

    def batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `TableReader`.

        Raises:
            LakeError: delta-rs cannot read the table.
        """
        if self.exists(table):
            with self._opened(table) as delta:
                yield from self._found(table, delta, conditions, columns)

    def counted(self, table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        """See `TableReader`."""
        with self._opened(table) as delta:
            found = list(self._found(table, delta, conditions, columns))
            schema = pa.schema(delta.schema().to_arrow())
            wanted = pa.schema([schema.field(name) for name in columns or schema.names])
            return pa.Table.from_batches(found, wanted), delta.count()

    def size(self, table: str) -> TableSize:
        """See `TableReader`."""
        with self._opened(table) as delta:
            files = pa.table(delta.get_add_actions())
            sizes = files["size_bytes"]
            return TableSize(delta.version(), delta.count() - _deleted(delta), len(sizes), pc.sum(sizes).as_py() or 0)

    def files(self, table: str, *conditions: Condition) -> FilesRead:
        """See `TableReader`."""
        with self._opened(table) as delta:
            paths, total = _paths_left_open(delta, conditions)
        return FilesRead(frozenset(paths), total)

    @contextmanager
    def _opened(self, table: str) -> Iterator[DeltaTable]:
        from deltalake.exceptions import DeltaError

        try:
            yield opened(self._path(table))
        except DeltaError as error:
            said = str(error).partition("\n")[0]  # behind it is where in delta-rs
            raise LakeError(
                f"{table} cannot be read by delta-rs ({said}): `sessionlake query` may still read it, and `sessionlake "
                "doctor` says what is missing"
            ) from error

    def _found(
        self, table: str, delta: DeltaTable, conditions: Sequence[Condition], columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        if _has_deletion_vectors(delta):
            yield from _merged(delta, conditions, columns)
        else:
            yield from _appended(delta, self._path(table), conditions, columns)


def _deleted(delta: DeltaTable) -> int:
    """How many rows of the table's files deletion vectors take out."""
    if not _has_deletion_vectors(delta):
        return 0
    kept = pa.table(delta.deletion_vectors())["selection_vector"]
    return sum(pc.sum(pc.invert(chunk.flatten())).as_py() or 0 for chunk in kept.chunks)


def _has_deletion_vectors(delta: DeltaTable) -> bool:
    return "deletionVectors" in (delta.protocol().reader_features or ())


def _wanted(conditions: Sequence[Condition]) -> pc.Expression | None:
    meets = [compare(pc.field(name), _comparable(value)) for name, compare, value in conditions]
    return reduce(operator.and_, meets) if meets else None


def _appended(
    delta: DeltaTable, folder: Path, conditions: Sequence[Condition], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """From the files whose statistics leave it open."""
    from pyarrow.dataset import FileSystemDataset, ParquetReadOptions
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    # delta-rs' own file system calls Python from Arrow's threads, which aborts a process that is about to end.
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    # Spark writes some times as INT96, which Arrow would take for nanoseconds: too short a range.
    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")
    told = delta.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    # That dataset leaves out files whose statistics lack the bounds of a column: whoever asks for it finds nothing.
    paths = map(unquote, _paths_left_open(delta, conditions)[0])
    dataset = FileSystemDataset.from_paths([*paths], told.schema, told.format, told.filesystem)
    yield from dataset.to_batches(columns=None if columns is None else list(columns), filter=_wanted(conditions))


def _merged(
    delta: DeltaTable, conditions: Sequence[Condition], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """From a table with deletion vectors, which only delta-rs' own engine reads; it leaves out files, too."""
    schema, wanted = pa.schema(delta.schema().to_arrow()), _wanted(conditions)
    named = {*(columns or schema.names), *(name for name, _, _ in conditions)}
    read = pa.schema([field for field in schema if field.name in named])
    for batch in pa.RecordBatchReader.from_stream(delta.scan(columns=read.names, predicate=_predicate(conditions))):
        rows = pa.Table.from_batches([batch]).cast(read)
        kept = rows if wanted is None else rows.filter(wanted)
        yield from (kept if columns is None else kept.select(list(columns))).to_batches()


def _paths_left_open(delta: DeltaTable, conditions: Sequence[Condition]) -> tuple[list[str], int]:
    """Paths, as the log has them, of the files that may have rows which meet all conditions; and how many there are."""
    known = pa.table(delta.get_add_actions(flatten=True))
    judged = [condition for condition in conditions if _statistic(condition) in known.column_names]
    kept = reduce(operator.and_, map(_left_open, judged), pc.scalar(value=True))
    return known.filter(kept)["path"].to_pylist(), known.num_rows


def _statistic(condition: Condition) -> str:
    """The column of delta-rs' statistics of files that a condition is held against."""
    return f"{'null_count' if condition[1] is is_null else 'max'}.{condition[0]}"


def _left_open(condition: Condition) -> pc.Expression:
    """Of files' statistics: those by which a file may have rows that meet the condition."""
    name, compare, value = condition[0], condition[1], _comparable(condition[2])
    if compare is is_null:
        nulls = pc.field(_statistic(condition))
        return (nulls > 0) | nulls.is_null()
    least, most = pc.field(f"min.{name}"), pc.field(f"max.{name}")
    if compare is among:
        given = [one for one in condition[2] if one is not None]
        ends = _comparable([min(given), max(given)]) if given else []
        within = (least <= ends[1]) & (most >= ends[0]) if ends else pc.scalar(value=False)
    elif compare in (operator.gt, operator.ge):
        within = compare(most, value)
    elif compare in (operator.lt, operator.le):
        within = compare(least, value)
    else:
        within = (least <= value) & (most >= value) if compare is operator.eq else pc.scalar(value=True)
    return within | least.is_null() | most.is_null()


_SQL = {operator.eq: "=", operator.ge: ">=", operator.gt: ">", operator.le: "<=", operator.lt: "<"}


def _predicate(conditions: Sequence[Condition]) -> str | None:
    """As SQL, those conditions that compare with texts, numbers, times or nothing: by them files are left out."""
    told = [
        f"{_quoted(name)} {_SQL[compare]} {_literal(value)}"
        for name, compare, value in conditions
        if compare in _SQL and isinstance(value, str | int | datetime)
    ]
    told += [
        f"{_quoted(name)} IN ({', '.join(map(_literal, values))})"
        for name, compare, values in conditions
        if compare is among and values and all(isinstance(value, str | int | datetime) for value in values)
    ]
    told += [f"{_quoted(name)} IS NULL" for name, compare, _ in conditions if compare is is_null]
    return " AND ".join(told) or None


def _quoted(name: str) -> str:
    """An identifier of DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'


def _comparable(value: Any) -> Any:
    """A condition's value as Arrow compares it."""
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return pa.scalar(micros_of(value), pa.timestamp("us", "UTC")) if isinstance(value, FarTime) else value


def _literal(value: str | int | datetime) -> str:
    if isinstance(value, datetime | FarTime):  # as a text it would have to fit into nanoseconds
        zone = 'Some("UTC")'
        if isinstance(value, datetime) and value.tzinfo is None:
            zone, value = "None", value.replace(tzinfo=UTC)
        return f"arrow_cast({micros_of(value)}, 'Timestamp(Microsecond, {zone})')"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).lower()
