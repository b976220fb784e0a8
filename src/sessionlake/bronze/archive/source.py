"""Archives as a stream of Spark's: a Python data source whose offsets are the files taken, in the order of their names.

What decides what a batch has is in the offsets alone, `{"files": 12, "last": "2026-11-22.zip", "there": 5}`: how many
were ever taken, the last one's name, and how many of them were there then. A batch that is made once more reads the
same files, under the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.bronze.archive.files import Files
from sessionlake.bronze.archive.lines import Message
from sessionlake.bronze.archive.members import SUFFIXES, Checked, Member, checked, members_of, messages_of
from sessionlake.errors import LakeError, LossError
from sessionlake.visible import encodable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "sessionlake_archive"
DDL = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, file string, member string, start bigint, damage string, "
    "detail string"
)
"""Of the stream: messages, and members that cannot be used, which have a `damage`."""
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_SCHEMA = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("timestamp_type", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS),
    ("file", pa.string()), ("member", pa.string()), ("start", pa.int64()), ("damage", pa.string()),
    ("detail", pa.string()),
])  # fmt: skip
_ROWS, _BYTES = 2_000, 4 * 1024 * 1024
# A task reads members of at least so many bytes together, if there are so many: small ones would be a task each.
_SPLIT_BYTES = 8 * 1024 * 1024
SKIP = ".skip"
"""Behind the name of a file: it is not to be taken, though a batch was planned with it."""
Taken = dict[str, Any]
NOTHING: Taken = {"files": 0, "last": ""}


def taken(folder: Path, before: Mapping[str, Any], limit: int) -> Taken:
    """Where the stream ends with the next batch.

    Args:
        before: where it ends before. Files that it has may be gone.
        limit: bytes of files that the batch is to have, and one file at least.

    Raises:
        LakeError: a file came under a name that lies before those of files that were taken already.
    """
    names = _names(folder)
    new = [name for name in names if name > before["last"]]
    old, expected = len(names) - len(new), before.get("there", before["files"])  # offsets of before do not say it
    if old > expected:
        raise LakeError(
            f"bronze: a file came into {folder} under a name that lies before {before['last']}, which was taken "
            f"already: files are taken in the order of their names. Up to that one there were {expected}, and there "
            f"are {old}: give the late one a name behind it"
        )
    mine = list(_within(folder, new, limit))
    if not mine:
        return dict(before)
    return {"files": before["files"] + len(mine), "last": mine[-1], "there": old + len(mine)}


def planned(folder: Path, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Member]]:
    """What a batch reads, by task: the members of the files between two offsets.

    Raises:
        LossError: they are not as many as when the batch was planned, less those that were named `SKIP` since.
    """
    mine = [name for name in _names(folder) if start["last"] < name <= end["last"]]
    skipped = {file.stem for file in folder.glob(f"*{SKIP}") if start["last"] < file.stem <= end["last"]} - {*mine}
    expected = end["files"] - start["files"]
    if not len(mine) <= expected <= len(mine) + len(skipped):
        raise LossError(
            f"bronze: a batch was planned of {expected} files in {folder} up to {end['last']}, {len(mine)} are there",
            fix=f"Put back those that are gone. Instead of one that is not to be read, put an empty "
            f"file with its name and {SKIP}. Move those that came later to names behind that one",
        )
    found = (member for n, name in enumerate(mine) for member in members_of(folder / name, start["files"] + n))
    return list(_split(found))


def rows_of(members: list[Member]) -> Iterator[pa.RecordBatch]:
    """Messages of members, and a row for each member that cannot be used; each is read twice, and none is held."""
    with Files() as files:
        for member in members:
            for found in checked(member, files):
                yield from _batches(found, files)


def _batches(found: Checked, files: Files) -> Iterator[pa.RecordBatch]:
    if found.damage is not None:
        yield _batch([_damaged(found)], found.member)
        return
    rows = (_row(found, message) for message in messages_of(found, files))
    while part := list(_few(rows)):
        yield _batch(part, found.member)


def register(spark: SparkSession) -> None:
    """Makes the format known to a session.

    Its options: `path`, a folder; `taken`, where its stream has got to; `limit`, bytes of a batch's files.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Part(InputPartition):
        def __init__(self, members: list[Member]) -> None:
            super().__init__(len(members))
            self.members = members

    class Reader(DataSourceStreamReader):
        def __init__(self, folder: Path, end: Taken, limit: int) -> None:
            self._folder, self._end, self._limit = folder, end, limit

        def initialOffset(self) -> Taken:  # noqa: N802  (the name that Spark calls)
            return dict(NOTHING)

        def latestOffset(self) -> Taken:  # noqa: N802  (the name that Spark calls)
            self._end = taken(self._folder, self._end, self._limit)
            return dict(self._end)

        def partitions(self, start: Taken, end: Taken) -> list[Part]:
            return [Part(members) for members in planned(self._folder, start, end)]

        def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
            return rows_of(partition.members)

    class Archives(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return DDL

        def streamReader(self, schema: object) -> Reader:  # noqa: N802  (the name that Spark calls)
            del schema
            asked = self.options
            return Reader(Path(asked["path"]), json.loads(asked["taken"]), int(asked["limit"]))

    spark.dataSource.register(Archives)


def _within(folder: Path, names: list[str], limit: int) -> Iterator[str]:
    left = limit
    for name in names:
        if left <= 0:
            return
        yield name
        left -= (folder / name).stat().st_size if (folder / name).is_file() else 0


def _names(folder: Path) -> list[str]:
    """Files that are complete: what is being written bears a name that begins with a dot or an underscore."""
    found = (file.name for file in folder.iterdir() if file.suffix in SUFFIXES and file.name[0] not in "._")
    return sorted(found)


def _split(members: Iterator[Member]) -> Iterator[list[Member]]:
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


def _few(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    size = 0
    for row in islice(rows, _ROWS):
        yield row
        size += len(row["value"] or b"")
        if size >= _BYTES:
            return


def _batch(rows: list[dict[str, Any]], member: Member) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, _SCHEMA)
    for name, value in (("file", encodable(member.path)), ("member", member.name or str(member.number))):
        batch = batch.set_column(_SCHEMA.get_field_index(name), _SCHEMA.field(name), pa.repeat(value, len(rows)))
    return batch


def _row(found: Checked, message: Message) -> dict[str, Any]:
    header = found.header
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


def _damaged(found: Checked) -> dict[str, Any]:
    header, member = found.header, found.member
    return {
        "topic": header and header.topic,
        "partition": header and header.partition,
        "start": member.start,
        "damage": found.damage,
        "detail": found.why,
    }
