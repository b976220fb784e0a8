"""A frame's rows as plain files, of bounded size, in a folder of any store that Spark writes to.

They are written beside the folder, which takes its name by a rename: where that is one step (a disk, HDFS, ADLS), the
folder holds all or nothing. Where it is not (S3), all is there as soon as `_SUCCESS` is, which comes last.
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

# So many rows tell how many bytes one takes.
_SAMPLE = 20_000
# A file that came out too large is written again with so much less than would just fit.
_MARGIN = 0.9
_SUCCESS = "_SUCCESS"
# What tells an export from the output of another writer.
_MARKER = "_sessionlake_export"
_ROWS = "part-"
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
_UNTRIMMED = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_NESTED = {"array", "map", "struct"}


class FileFormat(StrEnum):
    """What the files are."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


_OPTIONS: dict[FileFormat, tuple[str, dict[str, str]]] = {
    FileFormat.PARQUET: ("parquet", {}),
    FileFormat.CSV: ("csv", {"header": "true", "escape": '"', **_UNTRIMMED, **_TIMES}),
    FileFormat.JSONL: ("json", {"ignoreNullFields": "false", **_TIMES}),
}
"""Spark's name of the format, and its options."""


@dataclass(frozen=True)
class Exported:
    """What was written: rows, files, and their bytes."""

    rows: int
    files: int
    bytes: int


def export(frame: DataFrame, path: str, form: FileFormat, max_bytes: int, *, overwrite: bool) -> Exported:
    """Writes a frame's rows into a folder, which holds them all then, and nothing else.

    CSV has nested columns as JSON and bytes as Base64; JSON Lines have bytes as Base64, and every column in every line.

    Args:
        frame: gives the same rows each time: it is read more than once.
        path: of the folder, on any store that Spark writes to.
        max_bytes: of a file.
        overwrite: whether files of an earlier export there are replaced.

    Raises:
        UsageError: the folder holds something else, or one row alone is larger than a file may be.
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
                raise UsageError(f"export: a file of one row has {max(sizes)} bytes, and may have {max_bytes}")
            at_most = min(at_most - 1, _fitting(at_most, beside, max_bytes))
        beside.move_to(folder)
    finally:
        beside.remove()
    return Exported(rows, len(sizes), sum(sizes))


def _fitting(rows: int, written: _Folder, max_bytes: int) -> int:
    """How many rows a file may have, if so many came to the largest that is there."""
    return max(1, int(rows * max_bytes * _MARGIN / max(*written.sizes(), 1)))


def _write(rows: DataFrame, into: _Folder, form: FileFormat, files: int, at_most: int) -> None:
    name, options = _OPTIONS[form]
    writer = rows.coalesce(files).write.mode("overwrite").options(**options)
    writer.option("maxRecordsPerFile", at_most).format(name).save(into.path)


def _flat(frame: DataFrame) -> DataFrame:
    """The frame with columns that a cell can hold."""
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
    """A folder, through the file system that Spark has for its path; one of this machine may be relative.

    Attributes:
        path: of it, with what its file system needs to find it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path if re.match(r"\w+:", path) else str(Path(path).expanduser().absolute())
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no public way to its file systems from Python
        self._new = jvm.org.apache.hadoop.fs.Path
        self._here = self._new(self.path)
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - pyspark has no public way to Hadoop's configuration
        self._files = self._here.getFileSystem(conf)

    def require_free(self, *, overwrite: bool) -> None:
        """Returns if nothing would be lost here.

        Raises:
            UsageError: something would.
        """
        if self._here.getParent() is None:
            raise UsageError(f"export: {self.path} is no folder that could be made")
        if not self._files.exists(self._here):
            return
        if self._files.getFileStatus(self._here).isFile():
            raise UsageError(f"export: {self.path} is a file: name a folder")
        names = [name for name, _ in self._list()]
        if not names or (overwrite and _MARKER in names and all(map(_is_ours, names))):
            return
        what = "holds what no export wrote" if overwrite else "is not empty (--overwrite replaces an earlier export)"
        raise UsageError(f"export: {self.path} {what}: name another folder")

    def sizes(self) -> list[int]:
        """Bytes of each file with rows."""
        return [size for name, size in self._list() if name.startswith(_ROWS)]

    def move_to(self, other: _Folder) -> None:
        """Gives what is here the other's place; if that fails, what was there is there again."""
        former = self._new(f"{other.path.rstrip('/')}.replaced-{uuid.uuid4()}")
        replaces = self._files.exists(other._here)
        self._files.mkdirs(other._here.getParent())
        if replaces and not self._files.rename(other._here, former):
            raise UsageError(f"export: {other.path} cannot be replaced: remove it")
        for name in [name for name, _ in self._list() if not name.startswith(_ROWS)]:
            self._remove(self._new(self._here, name))  # what Spark's committer notes; Databricks' leaves more of it
        self._files.create(self._new(self._here, _MARKER)).close()
        if not self._files.rename(self._here, other._here):
            if replaces:
                self._files.rename(former, other._here)
            raise UsageError(f"export: {other.path} cannot be made beside what is there")
        self._files.create(self._new(other._here, _SUCCESS)).close()
        self._remove(former)

    def remove(self) -> None:
        """Removes it, if it is there."""
        self._remove(self._here)

    def _remove(self, path: Any) -> None:
        self._files.delete(path, True)  # noqa: FBT003 - recursively; Java's methods take no names

    def _list(self) -> Iterator[tuple[str, int]]:
        for status in self._files.listStatus(self._here):
            yield str(status.getPath().getName()), int(status.getLen()) if status.isFile() else 0


def _is_ours(name: str) -> bool:
    return name in {_SUCCESS, _MARKER} or name.startswith(_ROWS)
