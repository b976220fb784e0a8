"""Ctrl-C at any moment of a command: it says so in one line, with no traceback and no other error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import typer

from sessionlake.cli.failures import INTERRUPTED, call_with_readable_errors
from sessionlake.errors import LakeError
from sessionlake.local.signals import StopFlag, record_interrupts_during_block


@pytest.fixture(autouse=True)
def a_command_that_records_ctrl_c() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    with record_interrupts_during_block():
        yield
    signal.signal(signal.SIGINT, before)


def exit_code_of(command: Callable[[], object]) -> int:
    with pytest.raises(typer.Exit) as ended:
        call_with_readable_errors(command)
    return ended.value.exit_code


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail_as_py4j_does() -> None:
    """The interrupt is lost inside a call of Java, and the caller gets another error."""
    with suppress(KeyboardInterrupt):
        press_ctrl_c()
    raise AttributeError("'NoneType' object has no attribute 'sc'")


def test_an_error_that_ctrl_c_has_caused_is_an_interruption(capsys):
    assert exit_code_of(fail_as_py4j_does) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_itself_is_an_interruption(capsys):
    assert exit_code_of(press_ctrl_c) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_without_ctrl_c_is_reported(capsys):
    def fail() -> None:
        raise LakeError("silver has stopped", fix="Run it again")

    assert exit_code_of(fail) == 1
    assert capsys.readouterr().err == "error: silver has stopped. Run it again\n"


def test_an_error_of_work_that_stops_in_order_is_reported(capsys):
    def stop_and_fail() -> None:
        with StopFlag() as stop:
            press_ctrl_c()
            assert stop.is_set()
            raise LakeError("the last batch failed")

    assert exit_code_of(stop_and_fail) == 1
    assert capsys.readouterr().err == "error: the last batch failed\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_error_that_a_signal_has_caused_while_spark_starts_is_an_interruption(number):
    def start() -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        raise AttributeError("the gateway is closed")

    with StopFlag() as stop, pytest.raises(KeyboardInterrupt), stop.raise_interrupt_on_signal():
        start()


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_a_command_begins_prints_no_traceback(seconds, tmp_path):
    code = "from sessionlake import __main__ as entry; print('begins', flush=True); entry.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "verify", "silver"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode in {-signal.SIGINT, INTERRUPTED}
