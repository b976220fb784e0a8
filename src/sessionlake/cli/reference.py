"""`sessionlake reference`: writes rows into reference tables, and shows how many of them gold has used."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, call_with_spark, call_with_table_reader, load_config, print_to_stderr
from sessionlake.cli.show import OutputFormat, show_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.delta.storage.reading import TableReader
    from sessionlake.settings.model import Settings

_SHOWN = 3
_COLUMNS = ("reference", "rows", "state", "waiting", "resting", "why")

reference_app = typer.Typer(no_args_is_help=True, help="Load and list the reference tables that enrich gold.")


@reference_app.command("load")
def load_reference_table(
    name: Annotated[str, typer.Argument(help="The table's name under gold.references in the configuration.")],
    file: Annotated[
        Path,
        typer.Argument(help="A CSV or Parquet file with the table's columns; valid_from and valid_to are optional."),
    ],
    config: Config = None,
) -> None:
    """Write rows from a file into a reference table.

    Each row replaces the former one of its key, from its valid_from on, or from now on without one.
    """
    settings = load_config(config)
    from sessionlake.gold.declared.references import list_declared_references
    from sessionlake.gold.references.writing import find_declared_reference, read_reference_rows_file

    reference = find_declared_reference(list_declared_references(settings), name)
    rows = read_reference_rows_file(reference, file)

    def write_rows_to_reference_table(spark: SparkSession) -> None:
        from sessionlake.delta.lake import Lake
        from sessionlake.gold.declared.tables import build_declared_gold_schemas
        from sessionlake.gold.references.writing import write_reference_rows

        lake = Lake(settings, build_declared_gold_schemas(settings))
        if not lake.exists(spark, reference.table_name):
            lake.create_or_update_tables(spark, [reference.table_name])
        done = write_reference_rows(spark, lake, reference, rows, datetime.now(UTC))
        print_to_stderr(
            f"{reference.table_name}: {rows.num_rows} rows read, {done.rows} written, {done.removed} removed"
        )

    call_with_spark(settings, write_rows_to_reference_table)


@reference_app.command("list")
def list_reference_tables(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """List the reference tables, and how far gold has applied them.

    Also shows which keys have faulty rows, and why.
    """
    settings = load_config(config)
    call_with_table_reader(
        settings, lambda reader: show_rows(_COLUMNS, _describe_reference_tables(settings, reader), form)
    )


def _describe_reference_tables(settings: Settings, reader: TableReader) -> list[tuple[object, ...]]:
    from sessionlake.delta.lake import Lake
    from sessionlake.errors import LakeError
    from sessionlake.gold.declared.references import list_declared_references
    from sessionlake.gold.references.applied import find_unapplied_reference_difference

    rows_shown: list[tuple[object, ...]] = []
    for reference in list_declared_references(settings):
        if not reader.exists(reference.table_name) or not reader.exists(reference.applied_table_name):
            rows_shown.append((reference.name, None, "not there yet", None, None, "`sessionlake run gold` creates it"))
            continue
        rows = reader.read_size(reference.table_name).rows
        try:
            rest, faults = find_unapplied_reference_difference(Lake(settings), reader, reference)
        except LakeError as error:
            rows_shown.append((reference.name, rows, "rests", None, None, str(error)))
            continue
        why = "; ".join(map(str, faults[:_SHOWN])) or None
        rows_shown.append(
            (reference.name, rows, "waits for gold" if rest.row_count else "taken", rest.row_count, len(faults), why)
        )
    return rows_shown
