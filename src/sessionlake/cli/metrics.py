"""`sessionlake metrics`: shows aggregates over a range of event time, and the tables that they were read from."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, call_with_spark_if_needed, load_config, print_to_stderr
from sessionlake.cli.options import parse_time
from sessionlake.cli.show import OutputFormat, show_table
from sessionlake.errors import UsageError

if TYPE_CHECKING:
    from sessionlake.gold.query import MetricsAnswer

_Values = list[str] | None


def metrics(
    since: Annotated[
        str, typer.Option("--from", help="Start of the range: a whole minute in ISO 8601, in UTC without a time zone.")
    ],
    until: Annotated[str, typer.Option("--to", help="End of the range, exclusive, in the same form.")],
    by: Annotated[
        _Values,
        typer.Option(
            "--by", help="Group by this key: topic, session_id, row_id or metric. Can be repeated [default: by all]."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", help="Split the range into steps of this length, such as '1 hour' [default: one step]."),
    ] = None,
    topic: Annotated[_Values, typer.Option("--topic", help="Only this topic. Can be repeated.")] = None,
    session: Annotated[_Values, typer.Option("--session", help="Only this session id. Can be repeated.")] = None,
    row: Annotated[_Values, typer.Option("--row", help="Only this row id. Can be repeated.")] = None,
    metric: Annotated[
        _Values, typer.Option("--metric", help="Only values of this declared column. Can be repeated.")
    ] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Aggregate values over any range of event time.

    Shows the number of points, minimum, maximum, sum, average and variance. They are computed from gold's tables of
    days, hours and minutes.
    """
    settings = load_config(config)
    from sessionlake.gold import query

    chosen = {"topic": topic, "session_id": session, "row_id": row, "metric": metric}
    of = {name: values for name, values in chosen.items() if values}
    begin, end, length = parse_time("--from", since), parse_time("--to", until), _parse_step_length(step)
    figures = call_with_spark_if_needed(
        settings,
        lambda spark: query.metrics(settings, begin, end, spark=spark, by=by or query.KEYS, of=of, step=length),
    )
    show_table(figures.rows, form)
    print_to_stderr(_describe_rows_and_files_read(figures))


def _describe_rows_and_files_read(figures: MetricsAnswer) -> str:
    """Returns a sentence that says how many rows and files of each table were read."""
    parts = []
    for table, rows in figures.read.items():
        files = figures.files[table]
        parts.append(f"{rows:,} rows of {table}" + (f" in {files[0]:,} of {files[1]:,} files" if files else ""))
    return f"read {', '.join(parts)}"


def _parse_step_length(text: str | None) -> timedelta | None:
    from pydantic import TypeAdapter, ValidationError

    from sessionlake.settings.section import Duration

    if text is None:
        return None
    try:
        return TypeAdapter[timedelta](Duration).validate_python(text)
    except ValidationError as error:
        raise UsageError(
            f"metrics: --step {text!r} is not a length of time: {error.errors()[0]['msg']}",
            fix="Write a number and a unit, as in --step '15 minutes'",
        ) from None
