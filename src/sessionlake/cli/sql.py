"""The command `query`: what it takes; what it does is in `query.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from sessionlake.cli.context import Config, Form, say, settings_of, with_spark
from sessionlake.cli.show import OutputFormat


def query(
    sql: Annotated[str, typer.Argument(help='One statement, as in "SELECT * FROM silver.sessions".')],
    batch: Annotated[
        int | None, typer.Option("--as-of-batch", help="Silver's tables as of one of its batches.", min=0)
    ] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Ask the tables in SQL; json gives one object a line."""
    settings = settings_of(config)
    from sessionlake.cli.query import answer, answer_as_of, check

    check(settings, sql)
    if batch is None:
        with_spark(settings, lambda spark: answer(spark, settings, sql, form))
        return
    read = with_spark(settings, lambda spark: answer_as_of(spark, settings, sql, batch, form))
    if read != batch:
        say(f"as of batch {read}: the last merge at or before batch {batch} ended with it")
