"""Writes archives from messages: for `sessionlake archive`, and for your own programs that have a capture."""

from __future__ import annotations

import itertools
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sessionlake.bronze.archive.lines import (
    ArchivedMessage,
    encode_footer_line,
    encode_header_line,
    encode_message_line,
)
from sessionlake.bronze.archive.members import encode_gzip_member
from sessionlake.protocol.types import TopicPartition

MEMBER_MESSAGES, MEMBER_BYTES = 50_000, 16 * 1024 * 1024
_Content = tuple[TopicPartition, int, bytes]


@dataclass(frozen=True)
class WrittenArchiveCounts:
    """How many messages and members were written into one or several archive files."""

    messages: int
    members: int


def write_archives(
    folder: Path, messages: Iterable[tuple[TopicPartition, ArchivedMessage]], suffix: str, limit: int
) -> WrittenArchiveCounts:
    """Writes a new folder of archive files, named `000001.zip` and so on. The folder appears when it is complete.

    Args:
        folder: The folder to create.
        messages: Messages with their topic and partition. Offsets must rise in each topic-partition.
        suffix: `.zip` or `.gz`.
        limit: A file ends after the member with which it reaches this number of bytes.

    Raises:
        FileExistsError: The folder exists already.
    """
    if folder.exists():
        raise FileExistsError(str(folder))
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    count = members = 0
    contents = _encode_members(messages)
    for number in itertools.count(1):
        made = _write_members_to_file(partial / f"{number:06d}{suffix}", contents, limit)
        count, members = count + made.messages, members + made.members
        if not made.members:
            break
    partial.rename(folder)
    return WrittenArchiveCounts(count, members)


def write_archive(file: Path, messages: Iterable[tuple[TopicPartition, ArchivedMessage]]) -> WrittenArchiveCounts:
    """Writes one archive file. The file appears when it is complete.

    Args:
        file: The file to create; its name ends with `.zip` or `.gz`.
        messages: Messages with their topic and partition. Offsets must rise in each topic-partition. A new member
            starts when the topic-partition changes, and after 50,000 messages or 16 MiB.

    Raises:
        FileExistsError: The file exists already.
        ValueError: The name ends neither with `.zip` nor with `.gz`.
    """
    if file.suffix not in {".zip", ".gz"}:
        raise ValueError(f"The name of an archive must end with .zip or .gz, and {file.name} does not")
    if file.exists():
        raise FileExistsError(str(file))
    return _write_members_to_file(file, _encode_members(messages), None)


def _write_members_to_file(file: Path, contents: Iterator[_Content], limit: int | None) -> WrittenArchiveCounts:
    """Writes the next members into a new archive file, until it has `limit` bytes or no members are left.

    If there are no members at all, an empty file is written only if `limit` is None.

    Args:
        file: The file to create.
        contents: The content, topic-partition and number of messages of each member.
        limit: The number of bytes; None to write all members.
    """
    partial = file.with_name(f".{file.name}.partial")
    count = members = 0
    with _create_archive_file(partial, zipped=file.suffix == ".zip") as add:
        for (topic, partition), number, content in contents:
            add(f"{topic}-{partition}-{members:06d}.jsonl", content)
            members, count = members + 1, count + number
            if limit is not None and partial.stat().st_size >= limit:
                break
    if members or limit is None:
        partial.rename(file)
    else:
        partial.unlink()
    return WrittenArchiveCounts(count, members)


@contextmanager
def _create_archive_file(path: Path, *, zipped: bool) -> Iterator[Callable[[str, bytes], object]]:
    """Creates a zip or gzip file. The block receives a function that adds a member, given its name and content.

    Args:
        path: The file to create.
        zipped: True for a zip file, False for a gzip file.
    """
    if zipped:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            yield archive.writestr
    else:
        with path.open("wb", buffering=0) as file:  # so that its size is known
            yield lambda _name, content: file.write(encode_gzip_member(content))


def _encode_members(messages: Iterable[tuple[TopicPartition, ArchivedMessage]]) -> Iterator[_Content]:
    """Yields the content of each member of an archive, with its topic-partition and its number of messages."""
    topic_partition: TopicPartition | None = None
    lines: list[bytes] = []
    size = 0
    for at, message in messages:
        if topic_partition is not None and (
            at != topic_partition or len(lines) >= MEMBER_MESSAGES or size >= MEMBER_BYTES
        ):
            yield topic_partition, len(lines), _encode_member_content(topic_partition, lines)
            lines, size = [], 0
        topic_partition = at
        lines.append(encode_message_line(message))
        size += len(lines[-1])
    if topic_partition is not None:
        yield topic_partition, len(lines), _encode_member_content(topic_partition, lines)


def _encode_member_content(topic_partition: TopicPartition, lines: list[bytes]) -> bytes:
    body = b"".join(lines)
    return encode_header_line(*topic_partition) + body + encode_footer_line(len(lines), zlib.crc32(body))
