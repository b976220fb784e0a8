"""What commands share: the configuration, the output format, messages to the user, and Spark for their work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sessionlake.cli.show import OutputFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.delta.storage.reading import TableReader
    from sessionlake.local.signals import StopFlag
    from sessionlake.settings.model import Settings

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
T = TypeVar("T")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The configuration, a YAML file [default: $SESSIONLAKE_CONFIG, else sessionlake.yml in $SESSIONLAKE_HOME "
        "or the current folder].",
    ),
]
Form = Annotated[OutputFormat, typer.Option("--format", help="The format of the output.")]


def print_to_stderr(text: str) -> None:
    """Writes one message for the user to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def load_config(config: Path | None) -> Settings:
    """Returns the validated configuration for a command.

    The file is the one that the command's `--config` names, otherwise the one of the `--config` before the command.

    Raises:
        ConfigError: The configuration is invalid.
    """
    from sessionlake.settings.model import load_settings

    return load_settings(config or read_config_before_command())


def read_config_before_command() -> Path | None:
    """Returns the file of a `--config` before the command, as in `sessionlake --config FILE status`; else None."""
    return BEFORE_COMMAND.get("config")


BEFORE_COMMAND: dict[str, Path] = {}
"""The options given before the command, such as `config`, by name."""


@contextmanager
def open_spark_session(
    settings: Settings, *, app: str = "sessionlake", stop: StopFlag | None = None, long_running: bool = False
) -> Iterator[SparkSession]:
    """Starts a Spark session for a block, and stops it at the end of the block.

    Errors of Spark are turned into readable ones before the session stops, because only a running JVM can explain them.

    Args:
        settings: The configuration.
        app: Names the log files in the home.
        stop: Set by signals. A signal that arrives while Spark starts interrupts the start.
        long_running: True if the session works for many minutes.

    Raises:
        SessionlakeError: Spark, its JVM or the operating system raised an error inside the block.
    """
    from sessionlake.spark.session import get_or_start_spark_session, stop_spark
    from sessionlake.streaming.errors import raise_explained_errors

    try:
        with raise_explained_errors():
            with stop.raise_interrupt_on_signal() if stop else nullcontext():
                spark = get_or_start_spark_session(settings, app=app, long_running=long_running)
                if stop:
                    stop.install_signal_handlers()
            yield spark
    finally:
        stop_spark()


def call_with_spark(settings: Settings, work: Callable[[SparkSession], T]) -> T:
    """Starts Spark, calls a function with the session, stops Spark, and returns the function's result."""
    with open_spark_session(settings) as spark:
        return work(spark)


def call_with_table_reader(settings: Settings, work: Callable[[TableReader], T]) -> T:
    """Calls a function with a reader of the tables, returns its result. Starts Spark only for tables in a catalog."""
    from sessionlake.delta.lake import Lake

    return call_with_spark_if_needed(settings, lambda spark: work(Lake(settings).reader(spark)))


def call_with_spark_if_needed(settings: Settings, work: Callable[[SparkSession | None], T]) -> T:
    """Calls a function with a Spark session, or with None if tables can be read without it, and returns its result."""
    from sessionlake.delta.lake import create_storage

    return call_with_spark(settings, work) if create_storage(settings).needs_spark else work(None)
