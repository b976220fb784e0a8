"""Exports a frame as plain files of bounded size, into a folder of any store that Spark writes to.

The files are written to another folder first, which is then renamed. Where a rename is atomic (a disk, HDFS, ADLS), the
target folder holds all files or none. Where it is not (S3), the export is complete once `_SUCCESS` exists, which is
written last.
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

# Number of rows from which the bytes per row are estimated.
_SAMPLE = 20_000
# After a file came out too large, the next attempt uses this fraction of the rows that would just fit.
_MARGIN = 0.9
_SUCCESS = "_SUCCESS"
# Marks a folder as an export of sessionlake.
_MARKER = "_sessionlake_export"
_ROWS = "part-"
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
_UNTRIMMED = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_NESTED = {"array", "map", "struct"}


class FileFormat(StrEnum):
    """Format of the files."""

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
class Exported:
    """The result of an export: numbers of rows, files and bytes."""

    rows: int
    files: int
    bytes: int


def export(frame: DataFrame, path: str, form: FileFormat, max_bytes: int, *, overwrite: bool) -> Exported:
    """Writes a frame's rows to a folder, which then holds exactly these rows.

    CSV stores nested columns as JSON, and bytes as Base64. JSON Lines store bytes as Base64, and every column in every
    line.

    Args:
        frame: must give the same rows each time, since it is read more than once.
        path: of the folder.
        form: format of the files.
        max_bytes: limit for the size of a file.
        overwrite: True to replace files of an earlier export.

    Raises:
        UsageError: the folder holds other files, or a single row is larger than `max_bytes`.
    """
    folder = _Folder(frame.sparkSession, path)
    folder.require_free(overwrite=overwrite)
    beside = _Folder(frame.sparkSession, f"{folder.path.rstrip('/')}.partial-{uuid.uuid4()}")
    rows, flat = frame.count(), _flat(frame) if form is FileFormat.CSV else frame
    try:
        at_most = max(1, rows)
        if rows > _SAMPLE:
            _write(flat.limit(_SAMPLE), beside, form, 1, _SAMPLE)
            at_most = _fitting(_SAMPLE, beside, max_bytes)
        while True:
            _write(flat, beside, form, max(1, math.ceil(rows / at_most)), at_most)
            sizes = beside.sizes()
            if max(sizes, default=0) <= max_bytes:
                break
            if at_most == 1:
                raise UsageError(
                    f"export: a file of one row has {max(sizes)} bytes, and may have {max_bytes}",
                    fix="Allow larger files",
                )
            at_most = min(at_most - 1, _fitting(at_most, beside, max_bytes))
        beside.move_to(folder)
    finally:
        beside.remove()
    return Exported(rows, len(sizes), sum(sizes))


def _fitting(rows: int, written: _Folder, max_bytes: int) -> int:
    """Returns how many rows a file may have, judging by the largest of the written files, which have `rows` rows."""
    return max(1, int(rows * max_bytes * _MARGIN / max(*written.sizes(), 1)))


def _write(rows: DataFrame, into: _Folder, form: FileFormat, files: int, at_most: int) -> None:
    name, options = _OPTIONS[form]
    writer = rows.coalesce(files).write.mode("overwrite").options(**options)
    writer.option("maxRecordsPerFile", at_most).format(name).save(into.path)


def _flat(frame: DataFrame) -> DataFrame:
    """Returns the frame with columns that a CSV cell can hold."""
    return frame.select(*(_cell(field.name, field.dataType) for field in frame.schema.fields))


def _cell(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    column = F.col(quote(name))
    if kind.typeName() in _NESTED:
        column = F.to_json(column, {"ignoreNullFields": "false", **_TIMES})
    elif kind.typeName() == "binary":
        column = F.translate(F.base64(column), "\r\n", "")  # Spark breaks its lines
    return column.alias(name)


class _Folder:
    """A folder on the file system that Spark uses for its path. A local path may be relative.

    Attributes:
        path: full path of the folder.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path if re.match(r"\w+:", path) else str(Path(path).expanduser().absolute())
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no public way to its file systems from Python
        self._new = jvm.org.apache.hadoop.fs.Path
        self._here = self._new(self.path)
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - pyspark has no public way to Hadoop's configuration
        self._files = self._here.getFileSystem(conf)

    def require_free(self, *, overwrite: bool) -> None:
        """Checks that writing here would lose nothing.

        Raises:
            UsageError: the path is no folder, or holds other files.
        """
        if self._here.getParent() is None:
            raise UsageError(f"export: {self.path} is no folder that can be created", fix="Name another folder")
        if not self._files.exists(self._here):
            return
        if self._files.getFileStatus(self._here).isFile():
            raise UsageError(f"export: {self.path} is a file", fix="Name a folder")
        names = [name for name, _ in self._list()]
        if not names or (overwrite and _MARKER in names and all(map(_is_ours, names))):
            return
        if overwrite:
            raise UsageError(f"export: {self.path} holds files that no export wrote", fix="Name another folder")
        raise UsageError(
            f"export: {self.path} is not empty",
            fix="Name another folder, or replace an earlier export with --overwrite",
        )

    def sizes(self) -> list[int]:
        """Returns the bytes of each file with rows."""
        return [size for name, size in self._list() if name.startswith(_ROWS)]

    def move_to(self, other: _Folder) -> None:
        """Moves this folder to the other's path. If that fails, the other's former content is put back."""
        former = self._new(f"{other.path.rstrip('/')}.replaced-{uuid.uuid4()}")
        replaces = self._files.exists(other._here)
        self._files.mkdirs(other._here.getParent())
        if replaces and not self._files.rename(other._here, former):
            raise UsageError(f"export: {other.path} cannot be replaced", fix="Remove the folder")
        for name in [name for name, _ in self._list() if not name.startswith(_ROWS)]:
            self._remove(self._new(self._here, name))  # what Spark's committer notes; Databricks' leaves more of it
        self._files.create(self._new(self._here, _MARKER)).close()
        if not self._files.rename(self._here, other._here):
            if replaces:
                self._files.rename(former, other._here)
            raise UsageError(f"export: {other.path} cannot be created", fix="Name another folder")
        self._files.create(self._new(other._here, _SUCCESS)).close()
        self._remove(former)

    def remove(self) -> None:
        """Removes the folder if it exists."""
        self._remove(self._here)

    def _remove(self, path: Any) -> None:
        self._files.delete(path, True)  # noqa: FBT003 - recursively; Java's methods take no names

    def _list(self) -> Iterator[tuple[str, int]]:
        for status in self._files.listStatus(self._here):
            yield str(status.getPath().getName()), int(status.getLen()) if status.isFile() else 0


def _is_ours(name: str) -> bool:
    return name in {_SUCCESS, _MARKER} or name.startswith(_ROWS)
