"""`sessionlake archive`: writes bronze's messages into files that bronze can read again, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, call_with_spark, load_config, print_to_stderr
from sessionlake.cli.export import parse_number_of_bytes
from sessionlake.cli.show import write_line
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.errors import LakeError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.bronze.archive.lines import ArchivedMessage
    from sessionlake.bronze.archive.writer import WrittenArchiveCounts
    from sessionlake.protocol.types import TopicPartition
    from sessionlake.settings.model import Settings


class ArchiveFormat(StrEnum):
    """The file formats of an archive."""

    ZIP = "zip"
    GZ = "gz"


def archive(
    folder: Annotated[Path, typer.Argument(help="The folder to create.")],
    form: Annotated[ArchiveFormat, typer.Option("--format", help="The format of the files.")] = ArchiveFormat.ZIP,
    max_file_size: Annotated[
        str, typer.Option("--max-file-size", help="The approximate largest size of a file.")
    ] = "64MB",
    where: Annotated[
        str | None, typer.Option("--where", help="SQL condition that selects messages [default: all].")
    ] = None,
    config: Config = None,
) -> None:
    """Write bronze's messages into archive files.

    `bronze.source: archive` reads them again. If anything fails, no files are left.
    """
    settings, limit = load_config(config), parse_number_of_bytes(max_file_size)
    from sessionlake.bronze.archive.writer import write_archives
    from sessionlake.delta.lake import Lake

    if folder.exists():
        raise UsageError(
            f"archive: the folder {folder} exists already",
            why="An archive is written only into a new folder, so that no file is overwritten",
            fix="Name a new folder, or remove this one",
        )
    if Lake(settings).is_known_missing(MESSAGES):
        raise LakeError(
            f"archive: {MESSAGES} does not exist yet in {settings.location}",
            fix="Fill it with `sessionlake run bronze`, or name another home with SESSIONLAKE_HOME",
        )

    def write_messages_to_archive(spark: SparkSession) -> WrittenArchiveCounts:
        return write_archives(folder, iterate_bronze_messages(spark, settings, where), f".{form}", limit)

    made = call_with_spark(settings, write_messages_to_archive)
    print_to_stderr(f"{made.messages:,} messages in {made.members:,} members")
    write_line(str(folder))


def iterate_bronze_messages(
    spark: SparkSession, settings: Settings, where: str | None = None
) -> Iterator[tuple[TopicPartition, ArchivedMessage]]:
    """Yields bronze's messages with their topic and partition, sorted by topic, partition and offset.

    All come from one version of the table.

    Args:
        spark: The Spark session.
        settings: The configuration.
        where: A SQL condition that selects messages; None for all.

    Raises:
        UsageError: Spark does not accept the condition.
    """
    from pyspark.errors import PySparkException

    from sessionlake.bronze.archive.lines import ArchivedMessage
    from sessionlake.delta.lake import Lake
    from sessionlake.ledger.silences import drop_silences
    from sessionlake.spark.reading_plan import require_own_columns_only
    from sessionlake.streaming.errors import explain_sql_error

    lake = Lake(settings)
    if where is not None:
        require_own_columns_only(spark, "archive: --where", where)
    order = ("topic", "partition", "offset")
    fields = ("unix_millis(timestamp) AS at", "timestamp_type", "key", "value", "headers")
    try:
        rows = drop_silences(lake.storage.read(spark, MESSAGES, {"versionAsOf": lake.latest_version(spark, MESSAGES)}))
        chosen = rows if where is None else rows.where(where)
        messages = chosen.selectExpr(*order, *fields).orderBy(*order).toLocalIterator()
    except PySparkException as error:
        raise explain_sql_error("archive", error) from error
    for topic, partition, offset, at, kind, key, value, headers in messages:
        decoded = None if headers is None else tuple((name, _convert_to_bytes(held)) for name, held in headers)
        yield (
            (topic, partition),
            ArchivedMessage(offset, at, _convert_to_bytes(key), _convert_to_bytes(value), kind or 0, decoded),
        )


def _convert_to_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
