"""Whatever is in this folder starts a broker, whether or not it takes the shared one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sessionlake.cli import app as cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("broker")


@pytest.fixture
def ask(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What a command that only reads answers, under an environment: it must end well, and shares the tests' session."""
    monkeypatch.setattr("sessionlake.spark.session.stop_spark", lambda: None)

    def answer(environment: Mapping[str, str], *words: str) -> str:
        done = CliRunner().invoke(cli.app, words, env=environment)
        assert (done.exit_code, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
        return done.stdout

    yield answer
    for schema in ("bronze", "silver", "gold", "ops"):  # `query` has given this home's tables their names there
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
