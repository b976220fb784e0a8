"""Reads tables in folders without Spark.

The log names a table's files. Statistics show which of them cannot have a matching row. Arrow reads the others.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.table_files import TableFile, list_data_files, open_table
from sessionlake.delta.folders.writable import may_have_deletion_vectors, needs_delta_reader
from sessionlake.delta.storage.far_times import OutOfRangeTime, convert_time_to_micros
from sessionlake.delta.storage.reading import (
    Condition,
    FilesToRead,
    TableReader,
    TableSize,
    build_arrow_expression,
    is_in,
    is_null,
)
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from deltalake import DeltaTable


def is_delta_table_folder(folder: Path) -> bool:
    """True if the folder holds a Delta table with at least one commit.

    A process that died while it created a table may have left a log without a commit.
    """
    try:
        with os.scandir(folder / "_delta_log") as log:
            return any(entry.name.endswith(".json") for entry in log)
    except (FileNotFoundError, NotADirectoryError):
        return False


class FolderReader(TableReader):
    """Reads tables that are folders on this machine, without Spark.

    Args:
        path: function that returns the folder of a table, given its two-level name.
    """

    def __init__(self, path: Callable[[str], Path]) -> None:
        self._path = path

    def exists(self, table: str) -> bool:
        return is_delta_table_folder(self._path(table))

    def read_table_schema(self, table: str) -> pa.Schema:
        return pa.schema(open_table(self._path(table)).schema().to_arrow())

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if self.exists(table):
            with self._open_latest_version(table) as delta:
                yield from _read_rows(delta, conditions, columns)

    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        with self._open_latest_version(table) as delta:
            schema = pa.schema(delta.schema().to_arrow())
            wanted = pa.schema([schema.field(name) for name in columns or schema.names])
            return pa.Table.from_batches(_read_rows(delta, conditions, columns), wanted), _count_rows(delta)

    def read_size(self, table: str) -> TableSize:
        with self._open_latest_version(table) as delta:
            sizes = pa.table(delta.get_add_actions())["size_bytes"]
            return TableSize(delta.version(), _count_rows(delta), len(sizes), pc.sum(sizes).as_py() or 0)

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesToRead:
        with self._open_latest_version(table) as delta:
            if needs_delta_reader(delta):
                every = frozenset(pa.table(delta.get_add_actions())["path"].to_pylist())
                return FilesToRead(every, len(every))
            files = list_data_files(delta, read_vectors=False)
            return FilesToRead(
                frozenset(file.add["path"] for file in _select_candidate_files(files, conditions)), len(files)
            )

    @contextmanager
    def _open_latest_version(self, table: str) -> Iterator[DeltaTable]:
        """Opens a table at its latest version.

        Errors of delta-rs within the block are raised as errors for the operator.

        Raises:
            LakeError: delta-rs cannot read the table.
        """
        from deltalake.exceptions import DeltaError

        try:
            yield open_table(self._path(table))
        except DeltaError as error:
            said = str(error).partition("\n")[0]  # further lines name places in delta-rs' source
            raise LakeError(
                f"{table} cannot be read without Spark, by delta-rs ({said})",
                fix="Run `sessionlake doctor`, which says whether files are missing. `sessionlake query "
                "--engine spark` may still read the table",
            ) from error


def _count_rows(delta: DeltaTable) -> int:
    """Returns the number of rows of a table according to its log. Rows marked in deletion vectors do not count."""
    return delta.count() - sum(
        len(file.deleted_rows) for file in (list_data_files(delta) if may_have_deletion_vectors(delta) else ())
    )


def _read_rows(
    delta: DeltaTable, conditions: Sequence[Condition], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows that meet all conditions, in record batches.

    Args:
        delta: the table.
        conditions: the conditions.
        columns: names of the columns to read; None for all.
    """
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat, ParquetReadOptions
    from pyarrow.fs import LocalFileSystem

    schema, wanted = pa.schema(delta.schema().to_arrow()), build_arrow_expression(conditions)
    names = schema.names if columns is None else [*columns]
    if may_have_deletion_vectors(delta) or needs_delta_reader(delta):
        # With deletion vectors, delta-rs needs a quarter of the time that Arrow needs.
        read = pa.schema([schema.field(name) for name in dict.fromkeys([*names, *(name for name, _, _ in conditions)])])
        for batch in pa.RecordBatchReader.from_stream(
            delta.scan(columns=read.names, predicate=_convert_to_sql_predicate(conditions))
        ):
            rows = pa.Table.from_batches([batch]).cast(read)
            yield from (rows if wanted is None else rows.filter(wanted)).select(names).to_batches()
        return
    # Spark may write times as INT96. Arrow would read them as nanoseconds, which end in the year 2262.
    form = ParquetFileFormat(read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    paths = [
        str(file.full_path) for file in _select_candidate_files(list_data_files(delta, read_vectors=False), conditions)
    ]
    # delta-rs' own file system calls Python from Arrow's threads, which aborts a process that is about to end.
    dataset = FileSystemDataset.from_paths(paths, schema, form, LocalFileSystem())
    yield from dataset.to_batches(columns=names, filter=wanted)


def _select_candidate_files(files: Sequence[TableFile], conditions: Sequence[Condition]) -> list[TableFile]:
    """Returns the files that may have a row that meets the conditions, according to their statistics."""
    return [file for file in files if all(_may_file_meet_condition(file, *condition) for condition in conditions)]


def _may_file_meet_condition(file: TableFile, name: str, compare: Callable[[Any, Any], Any], value: Any) -> bool:
    if compare is is_null:
        return bool(file.stats.get("nullCount", {}).get(name, 1))
    if compare is is_in:
        given = [one for one in value if one is not None]
        return bool(given) and file.may_have_values_in_ranges({name: (min(given), max(given))})
    if compare in (operator.gt, operator.ge):
        return file.may_have_values_in_ranges({name: (value, None)}, between=compare is operator.gt)
    if compare in (operator.lt, operator.le):
        return file.may_have_values_in_ranges({name: (None, value)}, between=compare is operator.lt)
    return compare is not operator.eq or file.may_have_values_in_ranges({name: (value, value)})


_SQL = {operator.eq: "=", operator.ge: ">=", operator.gt: ">", operator.le: "<=", operator.lt: "<"}


def _convert_to_sql_predicate(conditions: Sequence[Condition]) -> str | None:
    """Returns conditions as a SQL predicate, with which delta-rs skips files; None if no condition can be translated.

    Only conditions that compare with texts, integers or times, or test for null, are translated. So the result may
    match more rows than the conditions.
    """
    parts = [
        f"{_quote_name(name)} {_SQL[compare]} {_to_sql_literal(value)}"
        for name, compare, value in conditions
        if compare in _SQL and isinstance(value, str | int | datetime)
    ]
    parts += [
        f"{_quote_name(name)} IN ({', '.join(map(_to_sql_literal, values))})"
        for name, compare, values in conditions
        if compare is is_in and values and all(isinstance(value, str | int | datetime) for value in values)
    ]
    parts += [f"{_quote_name(name)} IS NULL" for name, compare, _ in conditions if compare is is_null]
    return " AND ".join(parts) or None


def _quote_name(name: str) -> str:
    """Returns a column name as a quoted identifier in the SQL of DataFusion, which delta-rs uses."""
    return '"' + name.replace('"', '""') + '"'


def _to_sql_literal(value: str | int | datetime) -> str:
    if isinstance(value, datetime | OutOfRangeTime):  # a time as text would be parsed as nanoseconds, which end in 2262
        zone = 'Some("UTC")'
        if isinstance(value, datetime) and value.tzinfo is None:
            zone, value = "None", value.replace(tzinfo=UTC)
        return f"arrow_cast({convert_time_to_micros(value)}, 'Timestamp(Microsecond, {zone})')"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).lower()
