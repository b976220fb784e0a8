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

from sessionlake.bronze.archive.files import LastOpenedZip
from sessionlake.bronze.archive.lines import ArchivedMessage
from sessionlake.bronze.archive.members import (
    SUFFIXES,
    ArchiveMember,
    CheckedMember,
    list_members,
    read_and_check_members,
    read_member_messages,
)
from sessionlake.errors import DataLossError, LakeError
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


def find_position_after_next_batch(folder: Path, position: Mapping[str, Any], max_bytes: int) -> Position:
    """Returns the position up to which the next batch reads a folder of archives; `position` if there are no new files.

    A position names the last file that was read, and the number of files up to it.

    Args:
        folder: The folder of archives.
        position: The position up to which earlier batches have read. Its files may be gone.
        max_bytes: The batch ends with the file with which it reaches this number of bytes. It has at least one file.

    Raises:
        LakeError: A file was added whose name sorts before files that were read already.
    """
    names = _list_complete_files(folder)
    new = [name for name in names if name > position["last"]]
    old, expected = len(names) - len(new), position.get("there", position["files"])  # old positions lack "there"
    if old > expected:
        raise LakeError(
            f"bronze: a file was added to {folder} with a name that sorts before {position['last']}, "
            f"which bronze has read already (files up to that name: {expected} before, {old} now)",
            why="Files are read in the order of their names, so bronze would never read the added file",
            fix=f"Rename the added file so that its name sorts after {position['last']}, and run bronze again",
        )
    mine = list(_list_files_up_to_size(folder, new, max_bytes))
    if not mine:
        return dict(position)
    return {"files": position["files"] + len(mine), "last": mine[-1], "there": old + len(mine)}


def plan_archive_members_by_task(
    folder: Path, start: Mapping[str, Any], end: Mapping[str, Any]
) -> list[list[ArchiveMember]]:
    """Returns the members of archive files that a batch reads: a list for each Spark task.

    Args:
        folder: The folder of archives.
        start: Position after which the batch starts: the last file read before.
        end: Position up to which the batch reads.

    Raises:
        DataLossError: Files of the batch are gone or were added since it was planned. Files that the operator has
            marked to be skipped count as present.
    """
    mine = [name for name in _list_complete_files(folder) if start["last"] < name <= end["last"]]
    skipped = {file.stem for file in folder.glob(f"*{SKIP}") if start["last"] < file.stem <= end["last"]} - {*mine}
    expected = end["files"] - start["files"]
    if not len(mine) <= expected <= len(mine) + len(skipped):
        raise DataLossError(
            f"bronze: a batch was planned with {expected} files in {folder} up to {end['last']}, but now there are "
            f"{len(mine)}",
            why="Bronze stopped during this batch, and must read the same files when it repeats it",
            fix="Put back files that are gone. If a file shall be skipped instead, create an empty file with its "
            f"name and {SKIP}. Rename files that were added later so that they sort after {end['last']}",
        )
    found = (member for n, name in enumerate(mine) for member in list_members(folder / name, start["files"] + n))
    return list(_group_members_by_task(found))


def read_members_as_record_batches(members: list[ArchiveMember]) -> Iterator[pa.RecordBatch]:
    """Yields the messages of members as rows of the stream, and one row for each damaged member.

    Each member is read twice, first to check it. None is read into memory as a whole.
    """
    with LastOpenedZip() as files:
        for member in members:
            for found in read_and_check_members(member, files):
                yield from _read_member_record_batches(found, files)


def _read_member_record_batches(checked_member: CheckedMember, files: LastOpenedZip) -> Iterator[pa.RecordBatch]:
    if checked_member.damage is not None:
        yield _build_record_batch([_build_damaged_row(checked_member)], checked_member.member)
        return
    rows = (_build_message_row(checked_member, message) for message in read_member_messages(checked_member, files))
    while part := list(_take_rows_of_next_batch(rows)):
        yield _build_record_batch(part, checked_member.member)


def register_archive_source(spark: SparkSession) -> None:
    """Registers the streaming data source that reads a folder of archives with a Spark session.

    Its options are `path` (the folder), `position` (JSON of the position at which the stream resumes) and `limit`
    (bytes of files per batch).
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class ArchiveMembersPartition(InputPartition):
        """The members of archive files that one Spark task reads."""

        def __init__(self, members: list[ArchiveMember]) -> None:
            super().__init__(len(members))
            self.members = members

    class ArchiveStreamReader(DataSourceStreamReader):
        def __init__(self, folder: Path, end: Position, limit: int) -> None:
            self._folder, self._end, self._limit = folder, end, limit

        def initialOffset(self) -> Position:  # noqa: N802  (the name that Spark calls)
            return dict(STREAM_START)

        def latestOffset(self) -> Position:  # noqa: N802  (the name that Spark calls)
            self._end = find_position_after_next_batch(self._folder, self._end, self._limit)
            return dict(self._end)

        def partitions(self, start: Position, end: Position) -> list[ArchiveMembersPartition]:
            return [
                ArchiveMembersPartition(members) for members in plan_archive_members_by_task(self._folder, start, end)
            ]

        def read(self, partition: ArchiveMembersPartition) -> Iterator[pa.RecordBatch]:
            return read_members_as_record_batches(partition.members)

    class ArchiveDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def streamReader(self, schema: object) -> ArchiveStreamReader:  # noqa: N802  (the name that Spark calls)
            del schema
            asked = self.options
            return ArchiveStreamReader(Path(asked["path"]), json.loads(asked["position"]), int(asked["limit"]))

    spark.dataSource.register(ArchiveDataSource)


def _list_files_up_to_size(folder: Path, names: list[str], limit: int) -> Iterator[str]:
    left = limit
    for name in names:
        if left <= 0:
            return
        yield name
        left -= (folder / name).stat().st_size if (folder / name).is_file() else 0


def _list_complete_files(folder: Path) -> list[str]:
    """Returns the sorted names of the complete archive files in a folder.

    Names that start with a dot or underscore are left out: these files are still being written.
    """
    found = (file.name for file in folder.iterdir() if file.suffix in SUFFIXES and file.name[0] not in "._")
    return sorted(found)


def _group_members_by_task(members: Iterator[ArchiveMember]) -> Iterator[list[ArchiveMember]]:
    mine: list[ArchiveMember] = []
    size = 0
    for member in members:
        mine.append(member)
        size += _SPLIT_BYTES if member.size is None else member.size
        if size >= _SPLIT_BYTES:
            yield mine
            mine, size = [], 0
    if mine:
        yield mine


def _take_rows_of_next_batch(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in islice(rows, _ROWS):
        yield row
        size += len(row["value"] or b"")
        if size >= _BYTES:
            return


def _build_record_batch(rows: list[dict[str, Any]], member: ArchiveMember) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, _SCHEMA)
    for name, value in (("file", escape_surrogates(member.path)), ("member", member.name or str(member.number))):
        batch = batch.set_column(_SCHEMA.get_field_index(name), _SCHEMA.field(name), pa.repeat(value, len(rows)))
    return batch


def _build_message_row(checked_member: CheckedMember, message: ArchivedMessage) -> dict[str, Any]:
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
