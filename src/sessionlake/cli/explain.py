"""`sessionlake explain`: what a figure of gold was computed from, as lines for people or objects for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sessionlake.cli.context import print_to_stderr
from sessionlake.cli.show import (
    OutputFormat,
    convert_to_json_value,
    create_console,
    create_escaped_rich_text,
    show_rows,
)
from sessionlake.history.explain import ExplainedGoldRow, explain
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN_BATCHES = 5


def show_explained_rows(
    spark: SparkSession, settings: Settings, table: str, where: str, message: tuple[int, int] | None, form: OutputFormat
) -> None:
    """Prints which messages, batches and formula the rows of a gold table come from.

    Args:
        spark: The Spark session.
        settings: The configuration.
        table: Name of the gold table.
        where: A SQL condition that selects rows; empty for all.
        message: Partition and offset of a message. The output then says whether it is part of each row; None: it does
            not.
        form: The format of the output.
    """
    figures, more = explain(spark, settings, table, where, message=message)
    if more:
        print_to_stderr(
            f"these are the first; more rows of {table} meet the condition: select them by their keys in --where"
        )
    if form is not OutputFormat.TABLE:
        rows = [asdict(figure) for figure in figures]
        show_rows(list(rows[0]), [list(row.values()) for row in rows], form)
        return
    from rich.table import Table

    console = create_console(sys.stdout)
    for figure in figures:
        console.print(
            create_escaped_rich_text(f"{figure.table}: ").append_text(
                create_escaped_rich_text(_join_names_and_values(figure.key), "bold")
            )
        )
        grid = Table.grid(padding=(0, 2))
        for name, text in _describe_explained_row(figure, has_message=message is not None):
            grid.add_row(create_escaped_rich_text(f"  {name}", "dim"), create_escaped_rich_text(text))
        console.print(grid)


def _describe_explained_row(figure: ExplainedGoldRow, *, has_message: bool) -> Iterator[tuple[str, str]]:
    yield "figures", _join_names_and_values(figure.figures)
    yield "made of", f"{figure.events:,} values{' that still exist' if figure.gone_before else ''}"
    if figure.gone_before:
        removed = f"maintain.retention has removed changes from before {convert_to_json_value(figure.gone_before)}"
        yield "removed", f"{removed}: the figure may be made of more values"
    for span in figure.offsets:
        has_all = span.last - span.first + 1 == span.messages
        count = "" if has_all else f", {span.messages:,} of them"
        yield "offsets", f"{span.topic}, partition {span.partition}: {span.first} to {span.last}{count}"
    for batch in figure.batches[:_SHOWN_BATCHES]:
        first, last = batch.silver_batches
        silver = f"silver's batch {first}" if first == last else f"silver's batches {first} to {last}"
        name = "gold batches up to" if batch.with_earlier else "gold batch"
        committed = convert_to_json_value(batch.committed_at)
        yield name, f"{batch.batch}, from {silver}, committed {committed}, by {batch.code_version}"
    if len(figure.batches) > _SHOWN_BATCHES:
        yield "", f"and {len(figure.batches) - _SHOWN_BATCHES:,} more batches: --format json lists all"
    if figure.logic:
        yield "logic", figure.logic
    if has_message and figure.holds is None:
        yield "message", "unknown: its changes are not among those that still exist"
    elif has_message:
        yield "message", "is part of the figure" if figure.holds else "is not part of the figure"


def _join_names_and_values(values: Any) -> str:
    return ", ".join(f"{name} {convert_to_json_value(value)}" for name, value in values.items() if value is not None)
