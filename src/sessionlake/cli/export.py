"""A table's rows as Parquet, CSV or JSON Lines, for whoever reads no Delta."""

from __future__ import annotations

from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sessionlake.cli.context import Config, say, settings_of, with_spark
from sessionlake.cli.options import moment
from sessionlake.cli.show import write_line
from sessionlake.errors import LakeError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.delta.export import Exported
    from sessionlake.delta.lake import Lake
    from sessionlake.settings.model import Settings


class Formats(StrEnum):
    """What `export` writes: the words of `delta.export.FileFormat`, without importing it."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def export(
    table: Annotated[str, typer.Argument(help="The table, as in gold.metrics_1h.")],
    path: Annotated[str, typer.Argument(help="The folder to make, on any store that Spark writes to.")],
    form: Annotated[Formats, typer.Option("--format", help="What the files are.")] = Formats.PARQUET,
    max_file_size: Annotated[str, typer.Option("--max-file-size", help="No file is larger.")] = "128MB",
    where: Annotated[str | None, typer.Option("--where", help="Which rows, in SQL [all].")] = None,
    version: Annotated[int | None, typer.Option("--version", help="As of a version of the table.", min=0)] = None,
    as_of: Annotated[str | None, typer.Option("--as-of", help="As of a time: ISO 8601, UTC unless it says.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export there.")] = False,
    config: Config = None,
) -> None:
    """Write a table's rows as plain files: all of them, or nothing."""
    settings = settings_of(config)
    limit, point = size_of(max_file_size), point_of(version, as_of)
    require_there(settings, table, point)
    from sessionlake.delta.export import FileFormat
    from sessionlake.delta.export import export as write

    def work(spark: SparkSession) -> Exported:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from sessionlake.streaming.errors import refused

        rows = rows_of(spark, settings, table, where, point)
        try:
            return write(rows, path, FileFormat(form), limit, overwrite=overwrite)
        except (PySparkException, Py4JError) as error:  # a condition fails, too, only when it is computed
            told = refused("export", error)
            raise (LakeError(str(told)) if isinstance(told, UsageError) else told) from error

    found = with_spark(settings, work)
    say(f"{found.rows:,} rows of {table} in {found.files:,} files of {found.bytes:,} bytes")
    write_line(path)


def size_of(text: str) -> int:
    """Bytes, of a text like 128MB or 1GiB.

    Raises:
        UsageError: it is none, or not one byte.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        found = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        found = 0
    if found < 1:
        raise UsageError(f"--max-file-size {text!r}: expected a size, as in 500kB, 128MB or 1GiB")
    return found


def point_of(version: int | None, as_of: str | None) -> dict[str, Any]:
    """Delta's option for the table as it was; none for the latest.

    Raises:
        UsageError: both are given, or the time is none.
    """
    if version is not None and as_of is not None:
        raise UsageError("export takes --version or --as-of, not both")
    if version is not None:
        return {"versionAsOf": version}
    if as_of is None:
        return {}
    return {"timestampAsOf": f"{moment('--as-of', as_of).astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"}


def require_there(settings: Settings, table: str, point: dict[str, Any]) -> None:
    """Refuses, before Spark is started, what is not there.

    Raises:
        UsageError: the lake has no such table, or a version is asked of a view.
        LakeError: it, or the table that a view is of, has not been created yet.
    """
    from sessionlake.cli.query import tables
    from sessionlake.delta.lake import Lake
    from sessionlake.gold.sql.views import DEFINITIONS

    if table not in tables(settings):
        raise UsageError(f"export: {table} is no table of the lake: there are {', '.join(tables(settings))}")
    if point and table in DEFINITIONS:
        raise UsageError(f"export: {table} is a view, which has no versions: leave out --version and --as-of")
    needed = DEFINITIONS[table].main if table in DEFINITIONS else table
    if Lake(settings).is_known_missing(needed):
        raise LakeError(f"export: {needed} is not there yet in {settings.place}: `sessionlake run all --once` fills it")


def rows_of(spark: SparkSession, settings: Settings, table: str, where: str | None, point: dict[str, Any]) -> DataFrame:
    """The rows of a table or view that meet a condition: of one version, whatever is committed meanwhile.

    Raises:
        UsageError: Spark does not accept the condition, or there is no such table or version.
    """
    from pyspark.errors import PySparkException

    from sessionlake.delta.lake import Lake
    from sessionlake.gold.sql.views import DEFINITIONS
    from sessionlake.spark.reading_plan import require_condition
    from sessionlake.streaming.errors import refused

    lake = Lake(settings)
    if where is not None:
        require_condition(spark, "export: --where", where)
    try:
        if table in DEFINITIONS:
            rows = _view(spark, lake, table)
        else:
            rows = lake.storage.read(spark, table, point or {"versionAsOf": lake.latest_version(spark, table)})
        return rows if where is None else rows.where(where)
    except PySparkException as error:
        raise refused("export", error) from error


def _view(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A view's rows, kept as they are first computed: it has no version that could be read again."""
    from pyspark import StorageLevel

    from sessionlake.gold.sql.views import create_views

    if not lake.storage.functions_persist:
        create_views(spark, lake, [name])
    return spark.table(lake.storage.prepare_view(spark, name)).persist(StorageLevel.DISK_ONLY)
