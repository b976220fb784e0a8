"""What every command takes and uses: the configuration, the form of the answer, Spark for as long as it works."""

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
    typer.Option("--config", help="YAML file [SESSIONLAKE_CONFIG, else sessionlake.yml in SESSIONLAKE_HOME or here]"),
]
Form = Annotated[OutputFormat, typer.Option("--format", help="How the answer is written.")]


def say(text: str) -> None:
    """One message to the person at the terminal."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def settings_of(config: Path | None) -> Settings:
    """The configuration that a command is to use: its own `--config`, else the one before the command.

    Raises:
        ConfigError: it cannot be used.
    """
    from sessionlake.settings.model import load_settings

    return load_settings(config or config_before_command())


def config_before_command() -> Path | None:
    """The file named before the command, as in `sessionlake --config FILE status`."""
    return GIVEN.get("config")


GIVEN: dict[str, Path] = {}


@contextmanager
def running_spark(
    settings: Settings, *, app: str = "sessionlake", stop: StopFlag | None = None, lasting: bool = False
) -> Iterator[SparkSession]:
    """A session that is stopped at the end of the block. What fails inside is read before that, while Spark answers.

    Args:
        app: names the log files in the home.
        stop: set by signals; one that comes while Spark starts interrupts that.
        lasting: whether it will work for many minutes.

    Raises:
        SessionlakeError: for whatever Spark, its JVM or the system raises inside.
    """
    from sessionlake.spark.session import spark_session, stop_spark
    from sessionlake.streaming.errors import read_at_once

    try:
        with read_at_once():
            with stop.raise_on_signal() if stop else nullcontext():
                spark = spark_session(settings, app=app, lasting=lasting)
            if stop:
                stop.install_handlers()
            yield spark
    finally:
        stop_spark()


def with_spark(settings: Settings, work: Callable[[SparkSession], T]) -> T:
    """Does the work with a session that is stopped afterwards."""
    with running_spark(settings) as spark:
        return work(spark)


def with_reader(settings: Settings, work: Callable[[TableReader], T]) -> T:
    """With what reads the tables: Spark only where they are in a catalog."""
    from sessionlake.delta.lake import Lake

    return with_spark_if_needed(settings, lambda spark: work(Lake(settings).reader(spark)))


def with_spark_if_needed(settings: Settings, work: Callable[[SparkSession | None], T]) -> T:
    """Does the work with a session where tables cannot be read without one."""
    from sessionlake.delta.lake import storage_of

    return with_spark(settings, work) if storage_of(settings).needs_spark else work(None)
