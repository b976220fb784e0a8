"""The command line. Answers go to standard output, all else to standard error.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 integrity violation, 130 interrupted.
What a command needs is imported when it runs, so that `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sessionlake.commands.show import Format
from sessionlake.commands.simulate import every_fault, with_scenario_options
from sessionlake.errors import SessionlakeError

if TYPE_CHECKING:
    from sessionlake.config import Settings
    from sessionlake.local.broker import BrokerStatus

DEBUG = "SESSIONLAKE_DEBUG"
INTERRUPTED = 130


class Layers(StrEnum):
    """What `run` takes."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    ALL = "all"


class Mode(StrEnum):
    """How `simulate` keeps time."""

    LIVE = "live"
    BURST = "burst"
    BENCH = "bench"


class _Group(TyperGroup):
    """Turns whatever a command raises into one text and an exit code."""

    def invoke(self, ctx: Any) -> Any:
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
            _explain(error, f"unexpected {type(error).__name__}: {_first_line(error)} ({DEBUG}=1 shows where)")
            raise typer.Exit(1) from error


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.info.help = "Kafka captures in, exact session tables and live analytics out, as Delta tables."
broker_app = typer.Typer(no_args_is_help=True, help="The embedded Kafka broker of this home.")
session_app = typer.Typer(no_args_is_help=True, help="One capture session.")
app.add_typer(broker_app, name="broker")
app.add_typer(session_app, name="session")

Config = Annotated[Path | None, typer.Option("--config", help="YAML file [SESSIONLAKE_CONFIG, else ./sessionlake.yml]")]
Form = Annotated[Format, typer.Option("--format", help="How the answer is written.")]


def main() -> None:
    """Runs the command line: returns if all went well, else exits with the code that says what did not."""
    try:
        app()
    except SystemExit as end:
        if end.code:  # a Databricks job takes any SystemExit for a failure
            raise


def say(text: str) -> None:
    """One message to the person at the terminal."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@app.callback()
def options(config: Config = None, version: Annotated[bool, typer.Option("--version", help="Say it and end.")] = False) -> None:
    """What stands before the command."""
    del config
    if version:
        from sessionlake import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    layers: Annotated[Layers, typer.Argument(help="One layer, or all in one process.")],
    once: Annotated[bool, typer.Option("--once", help="Take in what is there now, then end.")] = False,
    config: Config = None,
) -> None:
    """Run layers until stopped: bronze (Kafka in), silver (session tables), gold (analytics)."""
    settings = _settings(config)
    from sessionlake.runtime import pipeline
    from sessionlake.runtime.signals import StopFlag
    from sessionlake.runtime.spark import spark_session, stop_spark

    wanted = list(pipeline.LAYERS) if layers is Layers.ALL else [layers.value]
    pipeline.preflight(settings, wanted)
    with StopFlag() as stop:
        try:
            spark = spark_session(settings)
            stop.take()
            if not once:
                say(f"running {', '.join(wanted)} into {settings.catalog or settings.home}; Ctrl-C stops")
            done = pipeline.run(spark, settings, wanted, once=once, stop=stop)
            say("stopped" if stop.is_set() else f"done: {', '.join(done)}")
        finally:
            stop_spark()


@app.command()
def status(form: Form = Format.TABLE, config: Config = None) -> None:
    """What each layer has done, and how far it is behind."""
    settings = _settings(config)
    from sessionlake.commands.show import show
    from sessionlake.lake.status import COLUMNS, layer_statuses

    found = _with_spark(settings, lambda spark: layer_statuses(spark, settings))
    show(COLUMNS, [layer.row() for layer in found], form)
