"""`sessionlake export`: writes a table's rows as Parquet, CSV or JSON Lines, for programs that do not read Delta."""

from __future__ import annotations

from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sessionlake.cli.context import Config, call_with_spark, load_config, print_to_stderr
from sessionlake.cli.options import parse_time
from sessionlake.cli.show import write_line
from sessionlake.errors import LakeError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.delta.export import ExportResult
    from sessionlake.delta.lake import Lake
    from sessionlake.settings.model import Settings


class ExportFormat(StrEnum):
    """The file formats of an export. They repeat `delta.export.FileFormat`, whose import would be slow."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def export(
    table: Annotated[str, typer.Argument(help="The table, for example gold.metrics_1h.")],
    path: Annotated[str, typer.Argument(help="The folder to create, on any storage that Spark can write to.")],
    form: Annotated[ExportFormat, typer.Option("--format", help="The format of the files.")] = ExportFormat.PARQUET,
    max_file_size: Annotated[str, typer.Option("--max-file-size", help="The largest size of a file.")] = "128MB",
    where: Annotated[
        str | None, typer.Option("--where", help="SQL condition that selects rows [default: all].")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Export this version of the table [default: the latest].", min=0)
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="Export the table as it was at this time: ISO 8601, in UTC without a time zone."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in the folder.")] = False,
    config: Config = None,
) -> None:
    """Write a table's rows as Parquet, CSV or JSON Lines files.

    If anything fails, no files are left.
    """
    settings = load_config(config)
    limit, point = parse_number_of_bytes(max_file_size), create_time_travel_option(version, as_of)
    require_exportable_table(settings, table, point)
    from sessionlake.delta.export import FileFormat
    from sessionlake.delta.export import export_frame as write

    def export_rows(spark: SparkSession) -> ExportResult:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from sessionlake.streaming.errors import explain_sql_error

        rows = select_exported_rows(spark, settings, table, where, point)
        try:
            return write(rows, path, FileFormat(form), limit, overwrite=overwrite)
        except (PySparkException, Py4JError) as error:  # some conditions only fail when Spark computes them
            refusal = explain_sql_error("export", error)
            raise (LakeError(str(refusal)) if isinstance(refusal, UsageError) else refusal) from error

    exported = call_with_spark(settings, export_rows)
    print_to_stderr(f"{exported.rows:,} rows of {table} in {exported.files:,} files of {exported.bytes:,} bytes")
    write_line(path)


def parse_number_of_bytes(text: str) -> int:
    """Returns the number of bytes of a size in words, such as `128MB` or `1GiB`.

    Raises:
        UsageError: The text is not a size, or less than one byte.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size < 1:
        raise UsageError(
            f"export: --max-file-size {text!r} is not a size",
            fix="Write a number and a unit, as in 500kB, 128MB or 1GiB",
        )
    return size


def create_time_travel_option(version: int | None, as_of: str | None) -> dict[str, Any]:
    """Returns the option with which Delta reads a past version or time; empty for the latest version.

    Args:
        version: The version; None if no version is wanted.
        as_of: An ISO 8601 time; None if no time is wanted.

    Raises:
        UsageError: Both are given, or the time cannot be parsed.
    """
    if version is not None and as_of is not None:
        raise UsageError(
            "export: --version and --as-of both choose a version of the table, so they cannot be combined",
            fix="Give only one of them",
        )
    if version is not None:
        return {"versionAsOf": version}
    if as_of is None:
        return {}
    return {"timestampAsOf": f"{parse_time('--as-of', as_of).astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"}


def require_exportable_table(settings: Settings, table: str, time_travel_option: dict[str, Any]) -> None:
    """Checks that a table can be exported, before Spark is started.

    Args:
        settings: The configuration.
        table: Name of a table or view.
        time_travel_option: Delta's read option for a past version or time; empty for the latest version.

    Raises:
        UsageError: The lake has no table of this name, or a past version of a view is requested.
        LakeError: The table, or the table that a view reads, has not been created yet.
    """
    from sessionlake.cli.query import list_table_names, list_view_sources
    from sessionlake.delta.lake import Lake

    views = list_view_sources(settings)
    if table not in list_table_names(settings):
        raise UsageError(
            f"export: {table} is not a table of the lake", fix=f"Name one of {', '.join(list_table_names(settings))}"
        )
    if time_travel_option and table in views:
        raise UsageError(
            f"export: {table} is a view, and only tables have versions",
            fix="Leave out --version and --as-of to export the view as it is now, or name a table",
        )
    needed = views.get(table, table)
    if Lake(settings).is_known_missing(needed):
        raise LakeError(
            f"export: {needed} does not exist yet in {settings.location}",
            fix="Fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME",
        )


def select_exported_rows(
    spark: SparkSession, settings: Settings, table: str, where: str | None, time_travel_option: dict[str, Any]
) -> DataFrame:
    """Returns the rows of a table or view that meet a condition.

    All rows come from one version of the table, even if it gets commits meanwhile.

    Args:
        spark: The Spark session.
        settings: The configuration.
        table: Name of the table or view.
        where: A SQL condition; None for all rows.
        time_travel_option: Delta's read option for a past version or time; empty for the latest version.

    Raises:
        UsageError: Spark does not accept the condition, or the table or version does not exist.
    """
    from pyspark.errors import PySparkException

    from sessionlake.cli.query import list_view_sources
    from sessionlake.delta.lake import Lake
    from sessionlake.spark.reading_plan import require_own_columns_only
    from sessionlake.streaming.errors import explain_sql_error

    lake = Lake(settings)
    if where is not None:
        require_own_columns_only(spark, "export: --where", where)
    try:
        if table in list_view_sources(settings):
            rows = _read_view_as_stored_rows(spark, lake, table)
        else:
            rows = lake.storage.read(
                spark, table, time_travel_option or {"versionAsOf": lake.latest_version(spark, table)}
            )
        return rows if where is None else rows.where(where)
    except PySparkException as error:
        raise explain_sql_error("export", error) from error


def _read_view_as_stored_rows(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """Returns the rows of a view, which are stored on disk when first computed.

    A view has no versions, so it could not be read a second time with the same result.
    """
    from pyspark import StorageLevel

    from sessionlake.cli.query import create_lake_views
    from sessionlake.spark.frames import convert_variants_to_json

    create_lake_views(spark, lake, [name])
    rows = spark.table(lake.storage.create_view_schema_and_get_name(spark, name))
    return convert_variants_to_json(rows).persist(StorageLevel.DISK_ONLY)
