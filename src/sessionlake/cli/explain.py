"""A figure of gold and what it is made of: a few lines for people, one object a figure for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sessionlake.cli.context import say
from sessionlake.cli.show import OutputFormat, console_on, plain, show, text_of
from sessionlake.history.explain import Explained, explain
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN_BATCHES = 5


def show_explained(
    spark: SparkSession, settings: Settings, table: str, where: str, message: tuple[int, int] | None, form: OutputFormat
) -> None:
    """Writes what the figures that meet a condition are made of."""
    found, more = explain(spark, settings, table, where, message=message)
    if more:
        say(f"these are the first; further rows of {table} meet the condition: name their keys in --where")
    if form is not OutputFormat.TABLE:
        rows = [asdict(one) for one in found]
        show(list(rows[0]), [list(row.values()) for row in rows], form)
        return
    from rich.table import Table

    console = console_on(sys.stdout)
    for one in found:
        console.print(text_of(f"{one.table}: ").append_text(text_of(_told(one.key), "bold")))
        grid = Table.grid(padding=(0, 2))
        for name, said in _lines(one, asked=message is not None):
            grid.add_row(text_of(f"  {name}", "dim"), text_of(said))
        console.print(grid)


def _lines(one: Explained, *, asked: bool) -> Iterator[tuple[str, str]]:
    yield "figures", _told(one.figures)
    yield "made of", f"{one.events:,} values{' that are still there' if one.gone_before else ''}"
    if one.gone_before:
        yield "gone", f"changes from before {plain(one.gone_before)}, by maintain.retention: it may be made of more"
    for span in one.offsets:
        whole = span.last - span.first + 1 == span.messages
        between = "" if whole else f", not all between: {span.messages:,}"
        yield "offsets", f"{span.topic}, partition {span.partition}: {span.first} to {span.last}{between}"
    for batch in one.batches[:_SHOWN_BATCHES]:
        first, last = batch.silver_batches
        silver = f"silver's {first}" if first == last else f"silver's {first} to {last}"
        name = "gold batches up to" if batch.with_earlier else "gold batch"
        yield name, f"{batch.batch}, of {silver}, committed {plain(batch.committed_at)}, by {batch.code_version}"
    if len(one.batches) > _SHOWN_BATCHES:
        yield "", f"and {len(one.batches) - _SHOWN_BATCHES:,} batches more: --format json has all"
    if one.logic:
        yield "logic", one.logic
    if asked and one.holds is None:
        yield "message", "unknown whether it is in it: it is not among what is still there"
    elif asked:
        yield "message", "is in it" if one.holds else "is not in it"


def _told(values: Any) -> str:
    return ", ".join(f"{name} {plain(value)}" for name, value in values.items() if value is not None)
