"""The demo as a person runs it: to its end, and interrupted."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def begun(tmp_path: Path):
    """Starts a short demo in a home of its own, which nothing may be left running in."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sessionlake", "demo", "--seconds", "10", "--rate", "300"],
        env=os.environ | {"SESSIONLAKE_HOME": str(tmp_path)}, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def left_running(home: Path) -> list[str]:
    """Command lines of processes that name the home."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(home) in line and process.pid != os.getpid():
            found.append(line)
    return found


def test_the_demo_verifies_every_session_and_the_commands_that_it_names_work(begun, tmp_path):
    out, said = begun.communicate(timeout=600)
    assert begun.returncode == 0, out + said
    assert re.search(
        r"40 of 40 session tables exact; \d+ duplicates dropped; \d+ sessions isolated", " ".join(out.split())
    )
    assert "Traceback" not in said
    assert left_running(tmp_path) == []
    named = [line.strip() for line in out.splitlines() if line.strip().startswith("SESSIONLAKE_HOME=")]
    assert len(named) == 3
    variable, *words = shlex.split(named[1])
    done = subprocess.run(
        words, env=os.environ | dict([variable.split("=")]), cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("seconds", [2, 20])
def test_an_interrupted_demo_leaves_nothing_running(begun, tmp_path, seconds):
    time.sleep(seconds)
    begun.send_signal(signal.SIGINT)
    out, said = begun.communicate(timeout=120)
    assert "Traceback" not in said
    assert (begun.returncode, "interrupted" in out + said) == (130, True)
    assert left_running(tmp_path) == []
