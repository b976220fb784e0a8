"""The command line. Answers go to standard output, all else to standard error.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 integrity violation, 130 interrupted.
What a command needs is imported when it runs, so that `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stderr
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sessionlake.cli.archive import archive
from sessionlake.cli.context import (
    GIVEN,
    INT32_MAX,
    INT64_MAX,
    Config,
    Form,
    config_before_command,
    running_spark,
    say,
    settings_of,
    with_reader,
    with_spark,
    with_spark_if_needed,
)
from sessionlake.cli.export import export
from sessionlake.cli.forget import forget
from sessionlake.cli.groups import GROUPS
from sessionlake.cli.metrics import metrics
from sessionlake.cli.options import DecisionOptions, Lost, ShortenGold, TakesSql, takes_decision
from sessionlake.cli.reshard import reshard
from sessionlake.cli.show import OutputFormat, write_line, write_text
from sessionlake.cli.sql import query
from sessionlake.cli.types import types
from sessionlake.errors import MachineError, SessionlakeError, UsageError
from sessionlake.visible import visible_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEBUG = "SESSIONLAKE_DEBUG"
INTERRUPTED = 130
# Entry points of this group name Typer apps of other packages: each adds the command that it is called after.
_COMMANDS = "sessionlake.commands"


class Layers(StrEnum):
    """What `run` takes: the words of `pipeline.Layer`, without importing it."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    PROCESSOR = "processor"
    ALL = "all"


class _Group(TyperGroup):
    """Turns whatever a command raises into one text and an exit code."""

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
        with redirect_stderr(visible_stream(sys.stderr)):
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SessionlakeError as error:
            _explain(error, str(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the answer has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if _is_usage(error):
                raise
            from sessionlake.streaming.errors import explained

            if (told := explained(error)) is not None:
                _explain(error, str(told))
                raise typer.Exit(told.exit_code) from error
            _explain(error, f"unexpected {type(error).__name__}: {_first_line(error)} ({DEBUG}=1 shows where)")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Kafka captures in, exact session tables and live analytics out, as Delta tables.",
)
for _command in (export, archive, forget, reshard, metrics, types):
    app.command()(_command)
app.command(cls=TakesSql)(query)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Runs the command line: returns if all went well, else exits with the code that says what did not."""
    try:
        app()
    except SystemExit as end:
        if end.code:  # a Databricks job takes any SystemExit for a failure
            raise


def job_main() -> None:
    """As `main`, for the runs of Databricks jobs: only what `cli.job` lists, exit code 2 for all else."""
    from sessionlake.cli.job import refusal

    if why := refusal(typer.main.get_command(app), sys.argv[1:], os.environ):
        say(f"error: {why}")
        sys.exit(UsageError.exit_code)
    main()


def _say_version(wanted: bool) -> None:
    if wanted:
        from sessionlake import __version__

        write_text(__version__)
        raise typer.Exit


@app.callback()
def options(
    config: Config = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say it and end.")
    ] = False,
) -> None:
    """What stands before the command."""
    del version
    GIVEN.clear()
    if config is not None:
        GIVEN["config"] = config


@app.command()
def run(
    layers: Annotated[Layers, typer.Argument(help="One layer or processor, or all in one process.")],
    name: Annotated[str | None, typer.Argument(help="Which processor [all].")] = None,
    once: Annotated[bool, typer.Option("--once", help="Take in what is there now, then end.")] = False,
    config: Config = None,
) -> None:
    """Run layers until stopped: bronze (Kafka in), silver (session tables), gold (analytics), a processor of yours."""
    settings = settings_of(config)
    from sessionlake.cli.run import narrowed, tell
    from sessionlake.local.signals import StopFlag
    from sessionlake.operations import pipeline

    layer = pipeline.Layer(layers)
    settings = narrowed(settings, layer, name)
    pipeline.preflight(settings, layer)
    with StopFlag() as stop, running_spark(settings, stop=stop, lasting=True) as spark:
        if once:
            say("done" if pipeline.run_once(spark, settings, layer, stop, tell) else "stopped")
            return
        parts = ", ".join(pipeline.parts_of(settings, layer))
        say(f"running {parts} into {settings.place}; Ctrl-C stops")
        pipeline.run_live(spark, settings, layer, stop, tell, on_wait=say)
        say("stopped")


@app.command()
def status(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """What each layer has done, and how far it is behind."""
    settings = settings_of(config)
    from sessionlake.cli.show import show
    from sessionlake.history.status import STATUS_COLUMNS, layer_statuses

    found = with_reader(settings, lambda reader: layer_statuses(reader, settings))
    show(STATUS_COLUMNS, [layer.row() for layer in found], form)


@app.command()
def report(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to [report.html in the home].")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    config: Config = None,
) -> None:
    """Write one HTML page that shows what the lake holds: freshness, throughput, integrity, sessions, series, sizes."""
    settings = settings_of(config)
    import webbrowser

    from sessionlake.history.report.page import write_report
    from sessionlake.local.paths import uri_of

    try:
        written = with_reader(settings, lambda reader: write_report(reader, settings, output))
    except OSError as error:
        raise MachineError(f"report: {error.filename or output} cannot be written: {error.strerror}") from error
    if show and not webbrowser.open(uri_of(written)):
        say("no browser could be opened here")
    write_line(str(written))


@app.command()
def trace(
    topic: Annotated[str, typer.Argument(help="Kafka topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.", min=0, max=INT32_MAX)],
    offset: Annotated[int, typer.Argument(help="The message's offset there.", min=0, max=INT64_MAX)],
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Where one Kafka message is: bronze commit, silver batch, what became of it and why, the row changes it made."""
    settings = settings_of(config)
    from sessionlake.cli.trace import show_trace
    from sessionlake.history.trace import trace as find

    show_trace(with_reader(settings, lambda reader: find(reader, settings, topic, partition, offset)), form)


@app.command()
def doctor(
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Check the Databricks bundle in this folder instead.")
    ] = False,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Check this machine, Kafka, and that the tables account for every message."""
    from sessionlake.cli.doctor import Level, examine, examine_bundle
    from sessionlake.cli.show import show
    from sessionlake.spark.session import stop_spark

    try:
        findings = examine_bundle(typer.main.get_command(app)) if bundle else examine(config or config_before_command())
    finally:
        stop_spark()
    show(("level", "check", "found"), [(item.level, item.what, item.detail) for item in findings], form)
    if any(item.level is Level.FAIL for item in findings):
        raise typer.Exit(1)


@app.command()
def recover(
    lost: Annotated[Lost, typer.Argument(metavar="LAYER", help="bronze, silver, gold, or the ledger of all.")],
    shorten_gold: ShortenGold = False,
    config: Config = None,
) -> None:
    """Make good what is lost of a layer: its checkpoint, its states, files of its tables; or `ops.ledger`."""
    settings = settings_of(config)
    from sessionlake.cli import recover as command
    from sessionlake.delta.lake import storage_of

    storage_of(settings).require_writable()
    with_spark(settings, lambda spark: command.recover(spark, settings, lost, say, shorten=shorten_gold))


@app.command()
def explain(
    table: Annotated[str, typer.Argument(help="A table of gold, as in gold.metrics_1h.")],
    where: Annotated[str, typer.Option("--where", help="Which of its rows, in SQL; three are explained.")] = "",
    partition: Annotated[int, typer.Option("--partition", help="Of the message.", min=0)] = 0,
    offset: Annotated[int | None, typer.Option("--offset", help="Is this message in the figures?", min=0)] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """What a figure of gold is made of: Kafka offsets, batches, logic."""
    settings = settings_of(config)
    from sessionlake.cli.explain import show_explained

    message = None if offset is None else (partition, offset)
    with_spark(settings, lambda spark: show_explained(spark, settings, table, where, message, form))


@app.command()
def publish(
    table: Annotated[str, typer.Argument(help="The table, as in silver.session_rows.")],
    topic: Annotated[str, typer.Option("--topic", help="Where to; made, compacted, if there is none.")],
    once: Annotated[bool, typer.Option("--once", help="Send what is there now, then end.")] = False,
    config: Config = None,
) -> None:
    """Send a table's changes on to Kafka: an upsert or tombstone by its key for every row that changes."""
    settings = settings_of(config)
    from sessionlake.cli import publish as command
    from sessionlake.local.signals import StopFlag
    from sessionlake.publish.job import Publication

    publication = Publication(table, topic)
    command.preflight(settings, publication)
    with StopFlag() as stop, running_spark(settings, app="publish", stop=stop, lasting=not once) as spark:
        command.publish(spark, settings, publication, stop, once=once, say=say)


@app.command()
def maintain(
    once: Annotated[bool, typer.Option("--once", help="Do what there is to do now, show it, then end.")] = False,
    table: Annotated[str | None, typer.Option("--table", help="Only this one [all].")] = None,
    purge_vectors: Annotated[
        str | None,
        typer.Option(
            "--purge-vectors", metavar="TABLE", help="Only rewrite this one once, so that all readers open it."
        ),
    ] = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Keep the tables small: merge small files, remove what no version in use needs. `run all` does so by itself."""
    settings = settings_of(config)
    from sessionlake.cli import maintain as command
    from sessionlake.delta.lake import storage_of
    from sessionlake.local.signals import StopFlag

    storage_of(settings).require_writable()
    if purge_vectors is not None:
        command.purge_vectors(settings, purge_vectors, form)
        return
    if once:
        with_spark(settings, lambda spark: command.maintain_once(spark, settings, table, form))
        return
    with StopFlag() as stop, running_spark(settings, app="maintain", stop=stop) as spark:
        command.maintain(spark, settings, table, stop, say)


@app.command()
@takes_decision
def resolve(asked: DecisionOptions, config: Config = None) -> None:
    """Decide about the place at which a session broke its class under `fail`, so that silver passes it, once."""
    settings = settings_of(config)
    from sessionlake.cli.resolve import chosen, resolve

    decision = chosen(asked)
    place = asked.offset if asked.skip_message is None else asked.skip_message

    def work(spark: SparkSession | None) -> str:
        told = resolve(
            spark, settings, asked.session, decision,
            offset=place, topic=asked.topic, partition=asked.partition, why=asked.why,
        )  # fmt: skip
        return str(told)

    say(with_spark_if_needed(settings, work))


def _explain(error: BaseException, text: str) -> None:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    say(f"error: {text}")


def _is_usage(error: Exception) -> bool:
    return hasattr(error, "format_message")  # Typer's own, which show themselves and exit with 2


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")[:400]


if __name__ == "__main__":
    main()
