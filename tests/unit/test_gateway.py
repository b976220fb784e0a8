"""The JVM is started in a private way only with a Spark that this was tested with."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sessionlake.local import gateway
from sessionlake.local.gateway import TESTED_SPARK, JvmOptions, prepare_jvm_start
from sessionlake.spark.session import DATABRICKS_VARIABLE, stop_spark


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C as Python has it, whatever an earlier Spark session of this process has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def jvm(tmp_path: Path) -> JvmOptions:
    flags = ["-XX:+UseParallelGC", "-Dlog=/a home/it's.log"]
    return JvmOptions(Path("/java"), "2g", flags, tmp_path / "spark", tmp_path / "more", tmp_path / "out")


def test_the_installed_pyspark_is_one_that_the_launcher_was_tested_with():
    found = version("pyspark")
    assert found in TESTED_SPARK, (
        f"pyspark {found} is installed, and sessionlake.local.gateway was tested with {', '.join(TESTED_SPARK)}: make "
        "tests/spark/test_session.py pass with it in TESTED_SPARK, or leave it to pyspark's own, slower launcher"
    )


@pytest.mark.usefixtures("interrupts")
def test_after_spark_an_interrupt_is_pythons_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(*_: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    handler.__module__ = "pyspark.core.context"
    signal.signal(signal.SIGINT, handler)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.delenv(DATABRICKS_VARIABLE, raising=False)
    stop_spark()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_tested_version_is_started_by_hand_without_a_word(jvm, monkeypatch, capsys):
    monkeypatch.setattr(gateway, "version", lambda _: TESTED_SPARK[-1])
    conf, _ = prepare_jvm_start(jvm)
    assert (conf, capsys.readouterr().err) == ({}, "")


@pytest.mark.parametrize("found", ["4.0.3", "4.1.0", "3.5.1"])
def test_another_version_is_left_to_pyspark_with_the_same_options_and_that_is_reported(jvm, monkeypatch, capsys, found):
    monkeypatch.setattr(gateway, "version", lambda _: found)
    conf, context = prepare_jvm_start(jvm)
    with context:  # starts nothing: there is no such Java
        pass
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.driver.extraClassPath"] == f"{jvm.jars}/*"
    assert shlex.split(conf["spark.driver.extraJavaOptions"]) == jvm.flags
    said = capsys.readouterr().err
    assert f"pyspark {found} starts Spark itself" in said
    assert ", ".join(TESTED_SPARK) in said


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_between_a_jvm_and_its_handle_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            begun.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    java.chmod(0o755)
    monkeypatch.setattr(gateway, "_running", [])
    monkeypatch.setattr(gateway.subprocess, "Popen", Interrupted)
    jvm = gateway.JvmOptions(java, "1g", [], tmp_path, tmp_path, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), gateway._start_jvm_for_session(jvm):
        pass
    assert [process.poll() for process in begun] == [-signal.SIGTERM]
