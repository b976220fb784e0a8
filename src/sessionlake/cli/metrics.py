"""Metrics over a range of time, and what was read for them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, say, settings_of, with_spark_if_needed
from sessionlake.cli.options import moment
from sessionlake.cli.show import OutputFormat, show_table
from sessionlake.errors import UsageError

if TYPE_CHECKING:
    from sessionlake.gold.query import Figures

_Values = list[str] | None


def metrics(
    since: Annotated[str, typer.Option("--from", help="A whole minute, ISO 8601; UTC unless it says otherwise.")],
    until: Annotated[str, typer.Option("--to", help="Likewise; not included.")],
    by: Annotated[_Values, typer.Option("--by", help="Keys of a row: topic, session_id, row_id, metric [all].")] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="A row for each, as in '1 hour' [the range is one].")
    ] = None,
    topic: Annotated[_Values, typer.Option("--topic", help="Only this one; may be repeated, as those below.")] = None,
    session: Annotated[_Values, typer.Option("--session", help="Only this session.")] = None,
    row: Annotated[_Values, typer.Option("--row", help="Only this row.")] = None,
    metric: Annotated[_Values, typer.Option("--metric", help="Only this column.")] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Points, min, max, sum, average and variance over any range of event time, out of days, hours and minutes."""
    settings = settings_of(config)
    from sessionlake.gold import query

    chosen = {"topic": topic, "session_id": session, "row_id": row, "metric": metric}
    of = {name: values for name, values in chosen.items() if values}
    begin, end, length = moment("--from", since), moment("--to", until), _length(step)
    found = with_spark_if_needed(
        settings,
        lambda spark: query.metrics(settings, begin, end, spark=spark, by=by or query.KEYS, of=of, step=length),
    )
    show_table(found.rows, form)
    say(_read(found))


def _read(found: Figures) -> str:
    """What was read, tier by tier."""
    told = []
    for table, rows in found.read.items():
        files = found.files[table]
        told.append(f"{rows:,} rows of {table}" + (f" in {files[0]:,} of {files[1]:,} files" if files else ""))
    return f"read {', '.join(told)}"


def _length(text: str | None) -> timedelta | None:
    from pydantic import TypeAdapter, ValidationError

    from sessionlake.settings.capture import Duration

    if text is None:
        return None
    try:
        return TypeAdapter[timedelta](Duration).validate_python(text)
    except ValidationError as error:
        raise UsageError(f"--step {text!r}: {error.errors()[0]['msg']}") from None
