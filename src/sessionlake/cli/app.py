"""The command line: its commands, and what happens when one of them fails.

Answers go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 bad usage or
configuration, 3 integrity violation, 130 interrupted.

Commands import what they need inside their functions, so that `--help` and usage mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import redirect_stderr
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sessionlake.cli import options
from sessionlake.cli.archive import archive
from sessionlake.cli.context import (
    BEFORE_COMMAND,
    INT32_MAX,
    INT64_MAX,
    Config,
    Form,
    call_with_spark,
    call_with_spark_if_needed,
    call_with_table_reader,
    load_config,
    open_spark_session,
    print_to_stderr,
    read_config_before_command,
)
from sessionlake.cli.export import export
from sessionlake.cli.failures import INTERRUPTED, call_with_readable_errors
from sessionlake.cli.forget import forget
from sessionlake.cli.groups import GROUPS
from sessionlake.cli.metrics import metrics
from sessionlake.cli.reshard import reshard
from sessionlake.cli.show import OutputFormat, show_rows, write_line, write_text
from sessionlake.cli.sql import query
from sessionlake.cli.types import types
from sessionlake.errors import MachineSetupError, UsageError
from sessionlake.local.signals import record_interrupts_during_block
from sessionlake.visible import create_escaping_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Other packages add commands by entry points in this group. The entry point's name is the command's name.
_COMMANDS = "sessionlake.commands"


class _RootCommandGroup(TyperGroup):
    """The group of all commands. It prints the text of an error that a command raises, and exits with its code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(entry_points(group=_COMMANDS).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        added = entry_points(group=_COMMANDS)
        if cmd_name not in added.names:
            return None
        return typer.main.get_group(added[cmd_name].load()).get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        with redirect_stderr(create_escaping_stream(sys.stderr)):
            return call_with_readable_errors(lambda: TyperGroup.invoke(self, ctx))


app = typer.Typer(
    cls=_RootCommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Turns Kafka messages into exact session tables and live analytics, stored as Delta tables.",
)
for _command in (export, archive, forget, reshard, metrics, types):
    app.command()(_command)
app.command(cls=options.SqlCommand)(query)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Runs the command line. Returns if the command succeeded, otherwise exits with its exit code."""
    try:
        with record_interrupts_during_block():
            app()
    except KeyboardInterrupt:  # before the command's own work, or after it
        print_to_stderr("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code:  # Databricks counts a job that raises SystemExit as failed, even with code 0
            raise


def job_main() -> None:
    """Runs the command line inside a Databricks job. Exits with code 2 if jobs may not run this command."""
    from sessionlake.cli.job import explain_why_job_may_not_run

    if why := explain_why_job_may_not_run(typer.main.get_command(app), sys.argv[1:], os.environ):
        print_to_stderr(f"error: {why}")
        sys.exit(UsageError.exit_code)
    main()


def _print_version_and_exit(is_requested: bool) -> None:
    if is_requested:
        from sessionlake import __version__

        write_text(__version__)
        raise typer.Exit


@app.callback()
def read_options_before_command(
    config: Config = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version_and_exit, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Reads the options that are given before the command."""
    del version
    BEFORE_COMMAND.clear()
    if config is not None:
        BEFORE_COMMAND["config"] = config


@app.command()
def run(
    layers: Annotated[
        options.RunnableLayer, typer.Argument(help="What to run; `all`: every layer and processor in one process.")
    ],
    name: options.ProcessorName = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is available now, then exit.")] = False,
    config: Config = None,
) -> None:
    """Run layers or processors until you press Ctrl-C.

    Bronze copies messages from Kafka, silver rebuilds the session tables from them, gold computes figures from these.
    """
    begun, settings = time.monotonic(), load_config(config)
    from sessionlake.cli.once import run_once_and_report
    from sessionlake.cli.run import keep_only_named_processor, print_processor_error
    from sessionlake.local.signals import StopFlag
    from sessionlake.operations import pipeline

    layer = pipeline.Layer(layers)
    settings = keep_only_named_processor(settings, layer, name)
    pipeline.require_runnable_settings(settings, layer)
    with StopFlag() as stop, open_spark_session(settings, stop=stop, long_running=True) as spark:
        if once:
            run_once_and_report(spark, settings, layer, stop, begun)
            return
        parts = ", ".join(pipeline.list_layers_to_run(settings, layer))
        print_to_stderr(f"running {parts} into {settings.location}; Ctrl-C stops")
        pipeline.run_until_stopped(spark, settings, layer, stop, print_processor_error, on_wait=print_to_stderr)
        print_to_stderr("stopped")


@app.command()
def status(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """Show each layer's progress, and how far behind it is."""
    settings = load_config(config)
    from sessionlake.cli.status import show_layer_statuses
    from sessionlake.history.status import layer_statuses

    show_layer_statuses(call_with_table_reader(settings, lambda reader: layer_statuses(reader, settings)), form)


@app.command()
def report(
    output: options.ReportFile = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    config: Config = None,
) -> None:
    """Write one HTML page with an overview of the lake.

    It shows freshness, throughput, integrity, sessions, series of values and table sizes.
    """
    settings = load_config(config)
    import webbrowser

    from sessionlake.history.report.page import write_report
    from sessionlake.local.paths import convert_path_to_uri

    try:
        written = call_with_table_reader(settings, lambda reader: write_report(reader, settings, output))
    except OSError as error:
        raise MachineSetupError(
            f"report: the file {error.filename or output} cannot be written: {error.strerror}",
            fix="Make the folder writable, or name another file with --output",
        ) from error
    if show and not webbrowser.open(convert_path_to_uri(written)):
        print_to_stderr("no browser can be opened on this machine")
    write_line(str(written))


@app.command()
def trace(
    topic: Annotated[str, typer.Argument(help="The message's Kafka topic.")],
    partition: Annotated[int, typer.Argument(help="The message's partition.", min=0, max=INT32_MAX)],
    offset: Annotated[int, typer.Argument(help="The message's offset in the partition.", min=0, max=INT64_MAX)],
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Follow one Kafka message through the lake.

    Shows its bronze commit and silver batch, whether it was applied and why, and the row changes it made.
    """
    settings = load_config(config)
    from sessionlake.cli.trace import show_trace
    from sessionlake.history.trace import trace as find

    show_trace(call_with_table_reader(settings, lambda reader: find(reader, settings, topic, partition, offset)), form)


@app.command()
def doctor(
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Check only the Databricks bundle in the current folder.")
    ] = False,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Check this machine, Kafka, and the tables.

    Each check that fails says what to do. For the tables it checks that every message is accounted for.
    """
    from sessionlake.cli.doctor import CheckSeverity, check_databricks_bundle, run_doctor_checks
    from sessionlake.spark.session import stop_spark

    try:
        if bundle:
            findings = check_databricks_bundle(typer.main.get_command(app))
        else:
            findings = run_doctor_checks(config or read_config_before_command())
    finally:
        stop_spark()
    show_rows(("level", "check", "found"), [(item.level, item.check, item.detail) for item in findings], form)
    if any(item.level is CheckSeverity.FAIL for item in findings):
        raise typer.Exit(1)


@app.command()
def recover(
    lost: options.RecoveredLayer,
    shorten_gold: options.ShortenGold = False,
    config: Config = None,
) -> None:
    """Repair a layer, or the ledger, after data was lost.

    Finds a lost checkpoint, state or table file, and makes it again from what is left.
    """
    settings = load_config(config)
    from sessionlake.cli import recover as command
    from sessionlake.delta.lake import create_storage

    create_storage(settings).require_writable_storage()
    call_with_spark(
        settings, lambda spark: command.recover_layer(spark, settings, lost, print_to_stderr, shorten=shorten_gold)
    )


@app.command()
def explain(
    table: Annotated[str, typer.Argument(help="A table of gold, for example gold.metrics_1h.")],
    where: options.ExplainedRows = "",
    partition: options.ExplainedPartition = 0,
    offset: options.ExplainedOffset = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Show what a figure of gold was computed from.

    Lists the Kafka offsets, the batches and the formula behind rows of a gold table.
    """
    settings = load_config(config)
    from sessionlake.cli.explain import show_explained_rows

    message = None if offset is None else (partition, offset)
    call_with_spark(settings, lambda spark: show_explained_rows(spark, settings, table, where, message, form))


@app.command()
def publish(
    table: Annotated[str, typer.Argument(help="The table, for example silver.session_rows.")],
    topic: options.PublishedTopic,
    once: Annotated[bool, typer.Option("--once", help="Send the changes that exist now, then exit.")] = False,
    config: Config = None,
) -> None:
    """Send a table's changes to a Kafka topic.

    Each changed row becomes one message with the row's key: an upsert, or a tombstone if the row was deleted.
    """
    settings = load_config(config)
    from sessionlake.cli import publish as command
    from sessionlake.local.signals import StopFlag
    from sessionlake.publish.job import Publication

    publication = Publication(table, topic)
    command.require_publishable_table(settings, publication)
    with StopFlag() as stop, open_spark_session(settings, app="publish", stop=stop, long_running=not once) as spark:
        command.publish_changes(spark, settings, publication, stop, once=once, say=print_to_stderr)


@app.command()
def maintain(
    once: Annotated[bool, typer.Option("--once", help="Maintain each table once, show the result, then exit.")] = False,
    table: Annotated[str | None, typer.Option("--table", help="Maintain only this table [default: all].")] = None,
    purge_vectors: options.PurgeVectors = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Merge small files, and remove files no longer needed.

    Also removes rows older than `maintain.retention`. Runs until you press Ctrl-C. `run all` does the same work by
    itself.
    """
    settings = load_config(config)
    from sessionlake.cli import maintain as command
    from sessionlake.delta.lake import create_storage
    from sessionlake.local.signals import StopFlag

    create_storage(settings).require_writable_storage()
    if purge_vectors is not None:
        command.rewrite_files_with_deletion_vectors(settings, purge_vectors, form)
        return
    if once:
        call_with_spark(settings, lambda spark: command.maintain_once(spark, settings, table, form))
        return
    with StopFlag() as stop, open_spark_session(settings, app="maintain", stop=stop) as spark:
        command.maintain_until_stopped(spark, settings, table, stop, print_to_stderr)


@app.command()
@options.add_decision_options
def resolve(chosen: options.DecisionOptions, config: Config = None) -> None:
    """Decide about a message at which silver has stopped.

    Silver stops at an integrity violation under `on_violation: fail`. Your decision lets it continue past that message.
    """
    settings = load_config(config)
    from sessionlake.cli.resolve import parse_chosen_decision, record_or_withdraw_decision

    decision = parse_chosen_decision(chosen)
    place = chosen.offset if chosen.skip_message is None else chosen.skip_message

    def record_and_describe_decision(spark: SparkSession | None) -> str:
        decided = record_or_withdraw_decision(
            spark, settings, chosen.session, decision,
            offset=place, topic=chosen.topic, partition=chosen.partition, why=chosen.why,
        )  # fmt: skip
        return str(decided)

    print_to_stderr(call_with_spark_if_needed(settings, record_and_describe_decision))


if __name__ == "__main__":
    main()
