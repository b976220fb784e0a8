"""A Python data source that streams the messages of archive files to Spark, in the order of the files' names.

A position in the stream is `{"files": 12, "last": "2026-11-22.zip", "there": 5}`: the number of files that were ever
read, the name of the last one, and how many of them were in the folder at that time. A batch is defined by its two
positions alone, so a repeated batch reads the same files under the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.bronze.archive.files import OpenArchives
from sessionlake.bronze.archive.lines import Message
from sessionlake.bronze.archive.members import (
    SUFFIXES,
    CheckedMember,
    Member,
    check_members,
    list_members,
    read_messages,
)
from sessionlake.errors import LakeError, LossError
from sessionlake.visible import escape_surrogates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "sessionlake_archive"
DDL = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, file string, member string, start bigint, damage string, "
    "detail string"
)
"""Columns of the stream. A row is a message, or stands for a damaged member; only then `damage` is not null."""
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_SCHEMA = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("timestamp_type", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS),
    ("file", pa.string()), ("member", pa.string()), ("start", pa.int64()), ("damage", pa.string()),
    ("detail", pa.string()),
])  # fmt: skip
_ROWS, _BYTES = 2_000, 4 * 1024 * 1024
# Small members are read together in one task of at least this many bytes.
_SPLIT_BYTES = 8 * 1024 * 1024
SKIP = ".skip"
"""Ending that an operator appends to a file's name so that bronze skips the file, even in a planned batch."""
Position = dict[str, Any]
STREAM_START: Position = {"files": 0, "last": ""}


def find_next_position(folder: Path, position: Mapping[str, Any], limit: int) -> Position:
    """Returns the position at which the next batch ends; `position` if there are no new files.

    Args:
        folder: The folder of archives.
        position: The position at which the previous batch ended. Its files may be gone.
        limit: The batch ends with the file that reaches this number of bytes. It has at least one file.

    Raises:
        LakeError: A file was added whose name sorts before files that were read already.
    """
    names = _list_names(folder)
    new = [name for name in names if name > position["last"]]
    old, expected = len(names) - len(new), position.get("there", position["files"])  # old positions lack "there"
    if old > expected:
        raise LakeError(
            f"bronze: a file was added to {folder} with a name that sorts before {position['last']}, "
            f"which bronze has read already (files up to that name: {expected} before, {old} now)",
            why="Files are read in the order of their names, so bronze would never read the added file",
            fix=f"Rename the added file so that its name sorts after {position['last']}, and run bronze again",
        )
    mine = list(_list_files_within(folder, new, limit))
    if not mine:
        return dict(position)
    return {"files": position["files"] + len(mine), "last": mine[-1], "there": old + len(mine)}


def plan_tasks(folder: Path, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Member]]:
    """Returns the members that a batch reads, grouped by task.

    Args:
        folder: The folder of archives.
        start: Position at which the batch starts.
        end: Position at which the batch ends.

    Raises:
        LossError: Files of the batch are gone or were added since it was planned. Skipped files count as present.
    """
    mine = [name for name in _list_names(folder) if start["last"] < name <= end["last"]]
    skipped = {file.stem for file in folder.glob(f"*{SKIP}") if start["last"] < file.stem <= end["last"]} - {*mine}
    expected = end["files"] - start["files"]
    if not len(mine) <= expected <= len(mine) + len(skipped):
        raise LossError(
            f"bronze: a batch was planned with {expected} files in {folder} up to {end['last']}, but now there are "
            f"{len(mine)}",
            why="Bronze stopped during this batch, and must read the same files when it repeats it",
            fix="Put back files that are gone. If a file shall be skipped instead, create an empty file with its "
            f"name and {SKIP}. Rename files that were added later so that they sort after {end['last']}",
        )
    found = (member for n, name in enumerate(mine) for member in list_members(folder / name, start["files"] + n))
    return list(_split_into_tasks(found))


def read_rows(members: list[Member]) -> Iterator[pa.RecordBatch]:
    """Yields the messages of members, and one row for each damaged member.

    Each member is read twice, first to check it. None is held in memory.
    """
    with OpenArchives() as files:
        for member in members:
            for found in check_members(member, files):
                yield from _read_batches(found, files)


def _read_batches(checked_members: CheckedMember, files: OpenArchives) -> Iterator[pa.RecordBatch]:
    if checked_members.damage is not None:
        yield _build_batch([_build_damaged_row(checked_members)], checked_members.member)
        return
    rows = (_build_row(checked_members, message) for message in read_messages(checked_members, files))
    while part := list(_take_next_rows(rows)):
        yield _build_batch(part, checked_members.member)


def register_source(spark: SparkSession) -> None:
    """Registers the data source with a session.

    Its options are `path` (the folder), `position` (JSON of the position at which the stream resumes) and `limit`
    (bytes of files per batch).
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class FilesPartition(InputPartition):
        """The files that one task reads."""

        def __init__(self, members: list[Member]) -> None:
            super().__init__(len(members))
            self.members = members

    class Reader(DataSourceStreamReader):
        def __init__(self, folder: Path, end: Position, limit: int) -> None:
            self._folder, self._end, self._limit = folder, end, limit

        def initialOffset(self) -> Position:  # noqa: N802  (the name that Spark calls)
            return dict(STREAM_START)

        def latestOffset(self) -> Position:  # noqa: N802  (the name that Spark calls)
            self._end = find_next_position(self._folder, self._end, self._limit)
            return dict(self._end)

        def partitions(self, start: Position, end: Position) -> list[FilesPartition]:
            return [FilesPartition(members) for members in plan_tasks(self._folder, start, end)]

        def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
            return read_rows(partition.members)

    class Archives(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def streamReader(self, schema: object) -> Reader:  # noqa: N802  (the name that Spark calls)
            del schema
            asked = self.options
            return Reader(Path(asked["path"]), json.loads(asked["position"]), int(asked["limit"]))

    spark.dataSource.register(Archives)


def _list_files_within(folder: Path, names: list[str], limit: int) -> Iterator[str]:
    left = limit
    for name in names:
        if left <= 0:
            return
        yield name
        left -= (folder / name).stat().st_size if (folder / name).is_file() else 0


def _list_names(folder: Path) -> list[str]:
    """Returns the sorted names of complete files. Names that start with a dot or underscore are still being written."""
    found = (file.name for file in folder.iterdir() if file.suffix in SUFFIXES and file.name[0] not in "._")
    return sorted(found)


def _split_into_tasks(members: Iterator[Member]) -> Iterator[list[Member]]:
    mine: list[Member] = []
    size = 0
    for member in members:
        mine.append(member)
        size += _SPLIT_BYTES if member.size is None else member.size
        if size >= _SPLIT_BYTES:
            yield mine
            mine, size = [], 0
    if mine:
        yield mine


def _take_next_rows(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in islice(rows, _ROWS):
        yield row
        size += len(row["value"] or b"")
        if size >= _BYTES:
            return


def _build_batch(rows: list[dict[str, Any]], member: Member) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, _SCHEMA)
    for name, value in (("file", escape_surrogates(member.path)), ("member", member.name or str(member.number))):
        batch = batch.set_column(_SCHEMA.get_field_index(name), _SCHEMA.field(name), pa.repeat(value, len(rows)))
    return batch


def _build_row(checked_member: CheckedMember, message: Message) -> dict[str, Any]:
    header = checked_member.header
    return {
        "topic": header and header.topic,
        "partition": header and header.partition,
        "offset": message.offset,
        "timestamp": message.timestamp * 1000,
        "timestamp_type": message.timestamp_type,
        "key": message.key,
        "value": message.value,
        "headers": None if message.headers is None else [{"key": k, "value": v} for k, v in message.headers],
    }


def _build_damaged_row(checked_member: CheckedMember) -> dict[str, Any]:
    header, member = checked_member.header, checked_member.member
    return {
        "topic": header and header.topic,
        "partition": header and header.partition,
        "start": member.start,
        "damage": checked_member.damage,
        "detail": checked_member.why,
    }
