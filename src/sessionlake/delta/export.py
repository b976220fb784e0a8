"""Exports a Spark frame as Parquet, CSV or JSON Lines files of limited size, to any file system that Spark can use.

The files are written to a temporary folder, which is then renamed to the target folder. If the file system renames
atomically (a disk, HDFS, ADLS), the target folder has all files or none. If not (S3), the export is complete when the
file `_SUCCESS` exists, which is written last.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.errors import UsageError
from sessionlake.protocol.names import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# Size of the sample from which the bytes per row are estimated, in rows.
_SAMPLE = 20_000
# If a file was too large, the next attempt writes fewer rows per file: this fraction of what should just fit.
_MARGIN = 0.9
_SUCCESS = "_SUCCESS"
# Marks a folder as an export of sessionlake.
_MARKER = "_sessionlake_export"
_ROWS = "part-"
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_UNTRIMMED = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_NESTED = {"array", "map", "struct"}


class FileFormat(StrEnum):
    """Format of exported files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


_OPTIONS: dict[FileFormat, tuple[str, dict[str, str]]] = {
    FileFormat.PARQUET: ("parquet", {}),
    FileFormat.CSV: ("csv", {"header": "true", "escape": '"', **_UNTRIMMED, **_TIMES}),
    FileFormat.JSONL: ("json", {"ignoreNullFields": "false", **_TIMES}),
}
"""Spark's name of each format, and its options."""


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote: number of rows, number of files, and size of all files in bytes."""

    rows: int
    files: int
    bytes: int


def export_frame(
    frame: DataFrame, path: str, file_format: FileFormat, max_bytes: int, *, overwrite: bool
) -> ExportResult:
    """Writes the rows of a Spark frame to files in a folder, which then holds exactly these rows.

    In CSV files, nested columns are JSON and binary columns are Base64. In JSON Lines files, binary columns are Base64,
    and null columns are written, too.

    Args:
        frame: the rows. The frame is computed more than once, and must have the same rows each time.
        path: path of the folder, as Spark takes it.
        file_format: format of the files.
        max_bytes: limit for the size of each file, in bytes.
        overwrite: True to replace the files of an earlier export in the folder.

    Raises:
        UsageError: the folder holds other files, or a single row is larger than `max_bytes`.
    """
    folder = _ExportFolder(frame.sparkSession, path)
    folder.require_writable(overwrite=overwrite)
    beside = _ExportFolder(frame.sparkSession, f"{folder.path.rstrip('/')}.partial-{uuid.uuid4()}")
    rows, flat = frame.count(), _convert_columns_csv_cannot_store(frame) if file_format is FileFormat.CSV else frame
    try:
        at_most = max(1, rows)
        if rows > _SAMPLE:
            _write_export_files(flat.limit(_SAMPLE), beside, file_format, 1, _SAMPLE)
            at_most = _estimate_rows_per_file(_SAMPLE, beside, max_bytes)
        while True:
            _write_export_files(flat, beside, file_format, max(1, math.ceil(rows / at_most)), at_most)
            sizes = beside.list_file_sizes()
            if max(sizes, default=0) <= max_bytes:
                break
            if at_most == 1:
                raise UsageError(
                    f"export: one row of the table takes {max(sizes)} bytes, but --max-file-size allows only "
                    f"{max_bytes} bytes per file",
                    fix="Raise --max-file-size",
                )
            at_most = min(at_most - 1, _estimate_rows_per_file(at_most, beside, max_bytes))
        beside.move_files_to_folder(folder)
    finally:
        beside.delete_export_folder()
    return ExportResult(rows, len(sizes), sum(sizes))


def _estimate_rows_per_file(rows: int, written: _ExportFolder, max_bytes: int) -> int:
    """Returns how many rows a file may have to stay below `max_bytes`, estimated from files that were just written.

    Args:
        rows: number of rows of each written file.
        written: the folder with these files. The largest file counts.
        max_bytes: limit for the size of a file, in bytes.
    """
    return max(1, int(rows * max_bytes * _MARGIN / max(*written.list_file_sizes(), 1)))


def _write_export_files(
    rows: DataFrame, folder: _ExportFolder, file_format: FileFormat, files: int, max_rows: int
) -> None:
    name, options = _OPTIONS[file_format]
    writer = rows.coalesce(files).write.mode("overwrite").options(**options)
    writer.option("maxRecordsPerFile", max_rows).format(name).save(folder.path)


def _convert_columns_csv_cannot_store(frame: DataFrame) -> DataFrame:
    """Returns the frame with columns that CSV can store: nested columns become JSON, and binary columns Base64."""
    return frame.select(*(_convert_column_to_text(field.name, field.dataType) for field in frame.schema.fields))


def _convert_column_to_text(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    column = F.col(quote(name))
    if kind.typeName() in _NESTED:
        column = F.to_json(column, {"ignoreNullFields": "false", **_TIMES})
    elif kind.typeName() == "binary":
        column = F.translate(F.base64(column), "\r\n", "")  # Spark inserts line breaks into Base64
    return column.alias(name)


class _ExportFolder:
    """A folder for exported files, in any file system that Spark can use.

    Args:
        spark: the session whose file systems are used.
        path: path of the folder, as Spark takes it. Its scheme names the file system; a local path may be relative.

    Attributes:
        path: full path of the folder, with the scheme of its file system.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path if re.match(r"\w+:", path) else str(Path(path).expanduser().absolute())
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no public way to its file systems from Python
        self._new = jvm.org.apache.hadoop.fs.Path
        self._here = self._new(self.path)
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - pyspark has no public way to Hadoop's configuration
        self._files = self._here.getFileSystem(conf)

    def require_writable(self, *, overwrite: bool) -> None:
        """Checks that an export to this folder would overwrite only files of earlier exports.

        Args:
            overwrite: True if files of an earlier export may be overwritten.

        Raises:
            UsageError: the path is not a folder, or the folder has files that may not be overwritten.
        """
        if self._here.getParent() is None:
            raise UsageError(
                f"export: {self.path} is the root of a file system, and an export replaces its whole folder",
                fix="Name a folder below it",
            )
        if not self._files.exists(self._here):
            return
        if self._files.getFileStatus(self._here).isFile():
            raise UsageError(f"export: {self.path} is a file, but an export writes a folder", fix="Name a folder")
        names = [name for name, _ in self._list_files()]
        if not names or (overwrite and _MARKER in names and all(map(_is_exported_file, names))):
            return
        if overwrite:
            raise UsageError(
                f"export: the folder {self.path} has files that are not from an export",
                why="--overwrite would delete them",
                fix="Name another folder",
            )
        raise UsageError(
            f"export: the folder {self.path} is not empty",
            why="Its files would be mixed with the exported ones",
            fix="Name another folder, or replace an earlier export with --overwrite",
        )

    def list_file_sizes(self) -> list[int]:
        """Returns the size in bytes of each exported file in the folder."""
        return [size for name, size in self._list_files() if name.startswith(_ROWS)]

    def move_files_to_folder(self, target: _ExportFolder) -> None:
        """Renames this folder to the path of `target`, and deletes what was there.

        If renaming fails, restores what was there.
        """
        former = self._new(f"{target.path.rstrip('/')}.replaced-{uuid.uuid4()}")
        replaces = self._files.exists(target._here)
        self._files.mkdirs(target._here.getParent())
        if replaces and not self._files.rename(target._here, former):
            raise UsageError(
                f"export: the earlier export in {target.path} cannot be moved away, so it cannot be replaced",
                fix="Delete the folder, or name another one",
            )
        for name in [name for name, _ in self._list_files() if not name.startswith(_ROWS)]:
            self._delete_path(self._new(self._here, name))  # files of Spark's commit protocol; Databricks has more
        self._files.create(self._new(self._here, _MARKER)).close()
        if not self._files.rename(self._here, target._here):
            if replaces:
                self._files.rename(former, target._here)
            raise UsageError(
                f"export: the folder {target.path} cannot be created",
                fix="Check that you may write there, or name another folder",
            )
        self._files.create(self._new(target._here, _SUCCESS)).close()
        self._delete_path(former)

    def delete_export_folder(self) -> None:
        """Deletes the export folder with its files, if it exists."""
        self._delete_path(self._here)

    def _delete_path(self, path: Any) -> None:
        self._files.delete(path, True)  # noqa: FBT003 - recursively; Java's methods take no names

    def _list_files(self) -> Iterator[tuple[str, int]]:
        for status in self._files.listStatus(self._here):
            yield str(status.getPath().getName()), int(status.getLen()) if status.isFile() else 0


def _is_exported_file(name: str) -> bool:
    return name in {_SUCCESS, _MARKER} or name.startswith(_ROWS)
