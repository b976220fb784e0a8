"""The command `sessionlake query`: its arguments. `query.py` does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from sessionlake.cli.context import Config, Form, say, settings_of, with_spark
from sessionlake.cli.show import OutputFormat


def query(
    sql: Annotated[str, typer.Argument(help='One SQL statement that reads, such as "SELECT * FROM silver.sessions".')],
    batch: Annotated[
        int | None,
        typer.Option("--as-of-batch", help="Read silver's tables as they were after this batch of silver.", min=0),
    ] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Run a SQL query over the lake's tables.

    With --format json each row is one JSON object on its own line.
    """
    settings = settings_of(config)
    from sessionlake.cli.query import require_tables, write_query_result, write_query_result_as_of

    require_tables(settings, sql)
    if batch is None:
        with_spark(settings, lambda spark: write_query_result(spark, settings, sql, form))
        return
    read = with_spark(settings, lambda spark: write_query_result_as_of(spark, settings, sql, batch, form))
    if read != batch:
        say(f"shown as of batch {read}: the last merge up to batch {batch} ended with it")
