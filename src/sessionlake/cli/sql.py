"""The command `sessionlake query`: its arguments. Module `query` does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, call_with_spark, load_config, print_to_stderr
from sessionlake.cli.engines.interface import EngineName
from sessionlake.cli.show import OutputFormat
from sessionlake.errors import UsageError

if TYPE_CHECKING:
    from sessionlake.settings.model import Settings

_LOCAL_CATALOG = "spark_catalog"


def query(
    sql: Annotated[str, typer.Argument(help='One SQL statement that reads, such as "SELECT * FROM silver.sessions".')],
    batch: Annotated[
        int | None,
        typer.Option("--as-of-batch", help="Read silver's tables as they were after this batch of silver.", min=0),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="The text of the parameter :NAME. May be repeated."),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine",
            help="auto: on a laptop Sail if it runs the statement as Spark does, else Spark; for tables in a workspace "
            "its SQL warehouse.",
        ),
    ] = EngineName.AUTO,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Run a SQL query over the lake's tables.

    With --format json each row is one JSON object on its own line.
    """
    settings = load_config(config)
    from sessionlake.cli.query import print_query_result, require_existing_tables, run_query

    arguments = _parse_param_options(param or [])
    if engine is EngineName.WAREHOUSE or (engine is EngineName.AUTO and _are_tables_only_in_workspace(settings)):
        if batch is not None or arguments:
            raise UsageError(
                "query: --as-of-batch and --param do not work with a SQL warehouse",
                fix="Write values into the statement; for a batch, TABLE VERSION AS OF N (N: see ops.ledger.outputs)",
            )
        from sessionlake.cli.remote import show_remote_query

        show_remote_query(settings, sql, form)
        return
    require_existing_tables(settings, sql)
    if batch is None:
        result = run_query(
            settings, sql, arguments, engine, lambda work: call_with_spark(settings, work), print_to_stderr
        )
        print_query_result(result, form, print_to_stderr)
        return
    if engine is EngineName.SAIL:
        raise UsageError("query: Sail cannot read tables as of a batch", fix="Leave out --engine")
    _print_result_as_of_batch(settings, sql, arguments, batch, form)


def _print_result_as_of_batch(
    settings: Settings, sql: str, arguments: Mapping[str, str], batch: int, form: OutputFormat
) -> None:
    from sessionlake.cli.query import show_query_result_as_of

    read = call_with_spark(
        settings, lambda spark: show_query_result_as_of(spark, settings, sql, batch, form, arguments)
    )
    if read != batch:
        print_to_stderr(f"shown as of batch {read}: the last merge up to batch {batch} ended with it")


def _are_tables_only_in_workspace(settings: Settings) -> bool:
    """Returns True if the tables are in a catalog that Spark on this machine cannot read."""
    from sessionlake.spark.session import is_on_databricks

    return settings.catalog not in {None, _LOCAL_CATALOG} and not is_on_databricks()


def _parse_param_options(given: list[str]) -> dict[str, str]:

    arguments = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise UsageError(f"query: --param {one} is not NAME=VALUE", fix="Write it as in --param topic=orders")
        arguments[name] = text
    return arguments
