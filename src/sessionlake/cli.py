"""The command line. Answers go to standard output, all else to standard error.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 integrity violation, 130 interrupted.
What a command needs is imported when it runs, so that `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from sessionlake.commands.show import Format
from sessionlake.commands.simulate import every_fault, with_scenario_options
from sessionlake.errors import SessionlakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.config import Settings
    from sessionlake.lake.reading import Reader
    from sessionlake.laptop.broker import BrokerStatus

DEBUG = "SESSIONLAKE_DEBUG"
INTERRUPTED = 130
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
T = TypeVar("T")


class Layers(StrEnum):
    """What `run` takes: the words of `pipeline.Layer`, without importing it."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    PROCESSOR = "processor"
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


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Kafka captures in, exact session tables and live analytics out, as Delta tables.",
)
broker_app = typer.Typer(no_args_is_help=True, help="The embedded Kafka broker of this home.")
rebuild_app = typer.Typer(no_args_is_help=True, help="Build a layer once more from what it was made of.")
verify_app = typer.Typer(no_args_is_help=True, help="Compare a layer with what it was made of.")
state_app = typer.Typer(no_args_is_help=True, help="What silver's state store remembers.")
session_app = typer.Typer(no_args_is_help=True, help="One capture session.")
app.add_typer(broker_app, name="broker")
app.add_typer(session_app, name="session")
app.add_typer(state_app, name="state")
app.add_typer(rebuild_app, name="rebuild")
app.add_typer(verify_app, name="verify")

Config = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file [SESSIONLAKE_CONFIG, else sessionlake.yml in the home or here]"),
]
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


def _say_version(wanted: bool) -> None:
    if wanted:
        from sessionlake import __version__

        typer.echo(__version__)
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
    _GIVEN.clear()
    if config is not None:
        _GIVEN["config"] = config


@app.command()
def run(
    layers: Annotated[Layers, typer.Argument(help="One layer or processor, or all in one process.")],
    name: Annotated[str | None, typer.Argument(help="Which processor.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Take in what is there now, then end.")] = False,
    config: Config = None,
) -> None:
    """Run layers until stopped: bronze (Kafka in), silver (session tables), gold (analytics), a processor of yours."""
    settings = _settings(config)
    from sessionlake import pipeline
    from sessionlake.commands.run import narrowed
    from sessionlake.runtime.signals import StopFlag
    from sessionlake.runtime.spark import spark_session, stop_spark

    layer = pipeline.Layer(layers)
    settings = narrowed(settings, layer, name)
    pipeline.preflight(settings, layer)
    with StopFlag() as stop:
        try:
            with stop.raising():
                spark = spark_session(settings, lasting=True)
            stop.take()
            if once:
                say("done" if pipeline.run_once(spark, settings, layer, stop) else "stopped")
                return
            parts = ", ".join(pipeline.parts_of(settings, layer))
            say(f"running {parts} into {settings.catalog or settings.home}; Ctrl-C stops")
            pipeline.run_live(spark, settings, layer, stop, on_failure=lambda error: say(f"error: {error}"))
            say("stopped")
        finally:
            stop_spark()


@app.command()
def status(form: Form = Format.TABLE, config: Config = None) -> None:
    """What each layer has done, and how far it is behind."""
    settings = _settings(config)
    from sessionlake.commands.show import show
    from sessionlake.history.status import COLUMNS, layer_statuses

    found = _with_reader(settings, lambda reader: layer_statuses(reader, settings))
    show(COLUMNS, [layer.row() for layer in found], form)


@app.command()
def trace(
    topic: Annotated[str, typer.Argument(help="Kafka topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.", min=0, max=INT32_MAX)],
    offset: Annotated[int, typer.Argument(help="The message's offset there.", min=0, max=INT64_MAX)],
    form: Form = Format.TABLE,
    config: Config = None,
) -> None:
    """Where one Kafka message is: bronze commit, silver batch, what became of it and why, the row changes it made."""
    settings = _settings(config)
    from sessionlake.commands.trace import show_trace
    from sessionlake.history.trace import trace as find

    show_trace(_with_reader(settings, lambda reader: find(reader, settings, topic, partition, offset)), form)


@app.command()
def doctor(form: Form = Format.TABLE, config: Config = None) -> None:
    """Check this machine, Kafka, and that the tables account for every message."""
    from sessionlake.commands.doctor import Level, examine
    from sessionlake.commands.show import show
    from sessionlake.runtime.spark import stop_spark

    try:
        findings = examine(config or _config_before_command())
    finally:
        stop_spark()
    show(("level", "check", "found"), [(item.level, item.what, item.detail) for item in findings], form)
    if any(item.level is Level.FAIL for item in findings):
        raise typer.Exit(1)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help='One statement, as in "SELECT * FROM silver.sessions".')],
    batch: Annotated[
        int | None, typer.Option("--as-of-batch", help="Silver's tables as of one of its batches.", min=0)
    ] = None,
    form: Form = Format.TABLE,
    config: Config = None,
) -> None:
    """Ask the tables in SQL; json gives one object a line."""
    settings = _settings(config)
    from sessionlake.commands.query import answer, check

    check(settings, sql)
    if batch is None:
        _with_spark(settings, lambda spark: answer(spark, settings, sql, form))
        return
    from sessionlake.commands.query_as_of import answer_as_of

    read = _with_spark(settings, lambda spark: answer_as_of(spark, settings, sql, batch, form))
    if read != batch:
        say(f"as of batch {read}: the last merge at or before batch {batch} ended with it")


@app.command()
def publish(
    table: Annotated[str, typer.Argument(help="The table, as in silver.session_rows.")],
    topic: Annotated[str, typer.Option("--topic", help="Where to; made, compacted, if there is none.")],
    once: Annotated[bool, typer.Option("--once", help="Send what is there now, then end.")] = False,
    config: Config = None,
) -> None:
    """Send a table's changes on to Kafka: an upsert or tombstone by its key for every row that changes."""
    settings = _settings(config)
    from sessionlake.commands import publish as command
    from sessionlake.publish.job import Publication
    from sessionlake.runtime.signals import StopFlag
    from sessionlake.runtime.spark import spark_session, stop_spark

    publication = Publication(table, topic)
    command.preflight(settings, publication)
    with StopFlag() as stop:
        try:
            with stop.raising():
                spark = spark_session(settings, app="publish", lasting=not once)
            stop.take()
            command.publish(spark, settings, publication, stop, once=once, say=say)
        finally:
            stop_spark()


@session_app.command("show")
def session_show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")] = None,
    form: Form = Format.TABLE,
    config: Config = None,
) -> None:
    """The rows of one session's table, now."""
    settings = _settings(config)
    from sessionlake.commands.session import show_session

    _with_reader(settings, lambda reader: show_session(reader, settings, session, topic, form))


@session_app.command("as-of")
def session_as_of(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    ts: Annotated[str | None, typer.Option("--ts", help="Stream time (Kafka's): ISO 8601, or milliseconds.")] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", help="After the message with this seq.", min=0, max=INT64_MAX)
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", help="After the message at this Kafka offset.", min=0, max=INT64_MAX)
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")] = None,
    form: Form = Format.TABLE,
    config: Config = None,
) -> None:
    """The rows of one session's table at any moment of its history."""
    settings = _settings(config)
    from sessionlake.commands.session import moment_of, show_session_as_of

    moment = moment_of(ts, seq, offset)
    _with_reader(settings, lambda reader: show_session_as_of(reader, settings, session, topic, moment, form))


@app.command()
def resolve(
    session: Annotated[str, typer.Option("--session", help="The session's id.")],
    accept_gap: Annotated[bool, typer.Option("--accept-gap", help="Apply the message all the same.")] = False,
    isolate: Annotated[bool, typer.Option("--isolate", help="Break the session until its next snapshot.")] = False,
    skip_message: Annotated[
        int | None, typer.Option("--skip-message", metavar="OFFSET", min=0, help="As if it had not arrived.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take a decision back that none has followed.")] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="The place [where silver stopped].")] = None,
    why: Annotated[str | None, typer.Option("--why", help="Kept with the decision.")] = None,
    config: Config = None,
) -> None:
    """Decide about the place at which a session broke its class under `fail`, so that silver passes it, once."""
    settings = _settings(config)
    from sessionlake.commands import resolve as deciding

    decision = deciding.chosen(accept_gap=accept_gap, isolate=isolate, skip=skip_message, withdrawn=withdraw)
    place = offset if skip_message is None else skip_message

    def work(spark: SparkSession | None) -> str:
        return str(deciding.resolve(spark, settings, session, decision, offset=place, topic=topic, why=why))

    say(work(None) if settings.catalog is None else _with_spark(settings, work))


@app.command()
@with_scenario_options
def simulate(
    mode: Annotated[Mode, typer.Option("--mode", help="live keeps to the clock; burst and bench do not.")] = Mode.LIVE,
    messages: Annotated[int | None, typer.Option("--messages", help="How many in all, instead of a duration.")] = None,
    every: Annotated[float | None, typer.Option("--faults", help="Share of every fault not given by itself.")] = None,
    truth: Annotated[Path | None, typer.Option("--truth", help="Folder for what silver must then hold.")] = None,
    form: Form = Format.JSON,
    config: Config = None,
    **scenario: Any,
) -> None:
    """Send plausible captures to Kafka, the same from the same seed, with faults on request."""
    settings = _settings(config)
    from sessionlake.commands.show import show
    from sessionlake.commands.simulate import ProgressLine
    from sessionlake.lab.simulate import run_simulation
    from sessionlake.runtime.signals import StopFlag

    told = every_fault(every, scenario | {"messages": messages})
    line = ProgressLine()
    with StopFlag() as stop:
        report = run_simulation(settings, mode=mode.value, truth=truth, stop=stop, on_progress=line, **told)
    line.end()
    found = report.to_dict()
    show(list(found), [list(found.values())], form)


@state_app.command("show")
def state_show(
    session: Annotated[str, typer.Option("--session", help="The session's id.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")] = None,
    form: Form = Format.TABLE,
    config: Config = None,
) -> None:
    """One session: where its stream stands, which seqs are missing, what is held back."""
    settings = _settings(config)
    from sessionlake.commands.state import show_session_state

    _with_spark(settings, lambda spark: show_session_state(spark, settings, session, topic, form))


@state_app.command("stats")
def state_stats(form: Form = Format.TABLE, config: Config = None) -> None:
    """How many sessions and held-back messages each shard remembers, in how many bytes."""
    settings = _settings(config)
    from sessionlake.commands.state import show_state_stats

    _with_spark(settings, lambda spark: show_state_stats(spark, settings, form))


@rebuild_app.command("silver")
def rebuild_silver(
    from_bronze_version: Annotated[
        int | None, typer.Option("--from-bronze-version", min=0, help="The version to build from [the latest].")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only the sessions of this topic.")] = None,
    sessions: Annotated[
        list[str] | None, typer.Option("--sessions", help="Only this session; may be repeated.")
    ] = None,
    config: Config = None,
) -> None:
    """Build silver from bronze beside the live tables, then put it in their place."""
    settings = _settings(config)
    from sessionlake.commands import rebuild
    from sessionlake.silver.rebuild.replay import Selection

    wanted = Selection(topic, tuple(sessions or ()))
    _with_spark(settings, lambda spark: rebuild.rebuild_silver(spark, settings, from_bronze_version, wanted, say))


@verify_app.command("silver")
def verify_silver(config: Config = None) -> None:
    """Prove that silver is what bronze makes of it; exit code 1 and the first difference if not."""
    settings = _settings(config)
    from sessionlake.commands import rebuild

    if not _with_spark(settings, lambda spark: rebuild.verify_silver(spark, settings, say)):
        raise typer.Exit(1)


@broker_app.command("up")
def broker_up(config: Config = None) -> None:
    """Start it, unless it runs, and wait until it answers."""
    from sessionlake.laptop import broker

    _show_broker(broker.up(_settings(config)))


@broker_app.command("down")
def broker_down(config: Config = None) -> None:
    """Stop it; its data stays."""
    from sessionlake.laptop import broker

    say("the broker has stopped" if broker.down(_settings(config)) else "no broker of this home was running")


@broker_app.command("status")
def broker_status(config: Config = None) -> None:
    """Say how it stands; exit code 1 unless it runs."""
    from sessionlake.laptop import broker

    found = broker.status(_settings(config))
    _show_broker(found)
    if found.state != "running":
        raise typer.Exit(1)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=5, max=3600, help="How long the sensors send.")] = 45,
    rate: Annotated[float, typer.Option("--rate", min=10, max=20_000, help="Messages a second.")] = 1000,
    config: Config = None,
) -> None:
    """The whole pipeline on live Kafka input for a minute, in a home of its own, then verified."""
    settings = _settings(config)
    from sessionlake.commands.demo import run_demo

    code = run_demo(settings, seconds=seconds, rate=rate)
    if code:
        raise typer.Exit(code)


def _settings(config: Path | None) -> Settings:
    from sessionlake.config import load_settings

    return load_settings(config or _config_before_command())


def _config_before_command() -> Path | None:
    """The file named before the command, as in `sessionlake --config FILE status`."""
    return _GIVEN.get("config")


_GIVEN: dict[str, Path] = {}


def _with_spark(settings: Settings, work: Callable[[SparkSession], T]) -> T:
    from sessionlake.runtime.spark import spark_session, stop_spark

    try:
        return work(spark_session(settings))
    finally:
        stop_spark()


def _with_reader(settings: Settings, work: Callable[[Reader], T]) -> T:
    """With what reads the tables: Spark only where they are in a catalog."""
    from sessionlake.lake.reading import reader_for
    from sessionlake.lake.tables import Lake

    lake = Lake(settings)
    return work(reader_for(lake)) if lake.local else _with_spark(settings, lambda spark: work(reader_for(lake, spark)))


def _show_broker(found: BrokerStatus) -> None:
    meaning = {
        "stopped": "not running; `sessionlake broker up` starts it",
        "foreign": "another process holds the port",
        "outside": "an outside broker is configured: nothing to start here",
    }
    pid = f" (process {found.pid})" if found.pid else ""
    typer.echo(f"{found.bootstrap_servers}: {meaning.get(found.state, found.state)}{pid}")


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
