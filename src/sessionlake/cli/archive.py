"""`sessionlake archive`: what bronze holds as one file, from which bronze can be filled again, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, say, settings_of, with_spark
from sessionlake.cli.export import size_of
from sessionlake.cli.show import write_line
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.errors import LakeError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.bronze.archive.lines import Message
    from sessionlake.bronze.archive.writer import Archived
    from sessionlake.protocol.types import TopicPartition
    from sessionlake.settings.model import Settings


class Forms(StrEnum):
    """What an archive's files are."""

    ZIP = "zip"
    GZ = "gz"


def archive(
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    form: Annotated[Forms, typer.Option("--format", help="What its files are.")] = Forms.ZIP,
    max_file_size: Annotated[str, typer.Option("--max-file-size", help="About what each has at most.")] = "64MB",
    where: Annotated[str | None, typer.Option("--where", help="Which messages, in SQL [all].")] = None,
    config: Config = None,
) -> None:
    """Write bronze's messages as archives, which `bronze.source: archive` reads: all of them, or nothing."""
    settings, limit = settings_of(config), size_of(max_file_size)
    from sessionlake.bronze.archive.writer import write_archives
    from sessionlake.delta.lake import Lake

    if folder.exists():
        raise UsageError(f"archive: {folder} is there already: name a new folder, or remove it")
    if Lake(settings).is_known_missing(MESSAGES):
        raise LakeError(f"archive: {MESSAGES} is not there yet in {settings.place}: `sessionlake run bronze` fills it")

    def work(spark: SparkSession) -> Archived:
        return write_archives(folder, messages_of(spark, settings, where), f".{form}", limit)

    made = with_spark(settings, work)
    say(f"{made.messages:,} messages in {made.members:,} members")
    write_line(str(folder))


def messages_of(
    spark: SparkSession, settings: Settings, where: str | None = None
) -> Iterator[tuple[TopicPartition, Message]]:
    """Bronze's messages of one version by topic, partition and offset, a few at a time.

    Raises:
        UsageError: Spark does not accept the condition.
    """
    from pyspark.errors import PySparkException

    from sessionlake.bronze.archive.lines import Message
    from sessionlake.delta.lake import Lake
    from sessionlake.ledger.silences import without_silences
    from sessionlake.spark.reading_plan import require_condition
    from sessionlake.streaming.errors import refused

    lake = Lake(settings)
    if where is not None:
        require_condition(spark, "archive: --where", where)
    order = ("topic", "partition", "offset")
    fields = ("unix_millis(timestamp) AS at", "timestamp_type", "key", "value", "headers")
    try:
        rows = without_silences(
            lake.storage.read(spark, MESSAGES, {"versionAsOf": lake.latest_version(spark, MESSAGES)})
        )
        chosen = rows if where is None else rows.where(where)
        found = chosen.selectExpr(*order, *fields).orderBy(*order).toLocalIterator()
    except PySparkException as error:
        raise refused("archive", error) from error
    for topic, partition, offset, at, kind, key, value, headers in found:
        own = None if headers is None else tuple((name, _bytes(held)) for name, held in headers)
        yield (topic, partition), Message(offset, at, _bytes(key), _bytes(value), kind or 0, own)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
