"""The JVM that a local Spark lives in, started by hand where that was tested.

pyspark's own way runs two shell scripts and a second JVM that only composes the command line, and asks for an
incubating module that Spark SQL does not use and the JVM warns about. Starting `SparkSubmit` directly saves both, but
rests on what Spark promises nobody: its class, the packages it needs opened, and how it tells port and secret. So it is
done with versions that it was tested with. Any other is started by pyspark, through public settings: slower, and right.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sessionlake.errors import MachineError
from sessionlake.local.java import java_environment

TESTED_SPARK = ("4.0.2",)
"""Versions of pyspark whose JVM is started here; `tests/spark/test_session.py` is what tests it."""

START_SECONDS = 120.0
STOP_SECONDS = 10.0
GIVE_UP_SECONDS = 1.0
_POLL_SECONDS = 0.02
_LENGTH = struct.Struct("!i")

# What Spark 4.0 reaches into, as its launcher opens it.
_OPENED = {
    "java.base": (
        "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
        "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
    ),
    "java.security.jgss": "sun.security.krb5",
}
_FLAGS = (
    *(f"--add-opens={module}/{name}=ALL-UNNAMED" for module, names in _OPENED.items() for name in names.split()),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)


@dataclass(frozen=True)
class Jvm:
    """A JVM to be started.

    Attributes:
        java: the program.
        memory: the most that its heap takes, as in `2g`.
        flags: its other options.
        spark: folder of Spark's own jars.
        jars: folder of those that Spark is to have besides.
        output: file for what the JVM itself prints.
    """

    java: Path
    memory: str
    flags: Sequence[str]
    spark: Path
    jars: Path
    output: Path


def starting(jvm: Jvm) -> tuple[Mapping[str, str], AbstractContextManager[None]]:
    """How the JVM of the installed pyspark is started.

    Returns:
        What the session's builder must be given for it, and a context in which the session is to be made.
    """
    found = version("pyspark")
    if found in TESTED_SPARK:
        return {}, _started(jvm)
    tested = ", ".join(TESTED_SPARK)
    sys.stderr.write(f"sessionlake: pyspark {found} starts Spark itself, which takes longer (tested: {tested})\n")
    settings = {
        "spark.driver.memory": jvm.memory,
        "spark.driver.extraJavaOptions": shlex.join(jvm.flags),
        "spark.driver.extraClassPath": f"{jvm.jars}/*",
    }
    return settings, nullcontext()


@contextmanager
def _started(jvm: Jvm) -> Iterator[None]:
    """Starts the JVM; inside the block pyspark finds it and makes its session there.

    Ctrl-C does not reach it, so that Python stops Spark in order; it ends with this process however that ends,
    since it reads from a pipe that only this process holds.

    Raises:
        MachineError: it did not start, or gave no answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="sessionlake-") as folder:
        answer = Path(folder) / "gateway"
        jars = os.pathsep.join(f"{folder}/*" for folder in (jvm.spark, jvm.jars))
        options = [f"-Xmx{jvm.memory}", *jvm.flags, *_FLAGS, "-cp", jars]
        command = [str(jvm.java), *options, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
        with _given_up_if_interrupted():
            with ThreadPoolExecutor(1) as beside:  # where nothing interrupts it between the process and its handle
                process = beside.submit(_start, command, jvm.output, answer).result()
            port, secret = _connection(process, jvm.output, answer)
    told = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(told)
    try:
        with _given_up_if_interrupted():
            yield
    finally:
        for name in told:
            os.environ.pop(name, None)


@contextmanager
def _given_up_if_interrupted() -> Iterator[None]:
    """Ends a JVM whose start is interrupted: in the middle of it, it would not notice for seconds."""
    try:
        yield
    except KeyboardInterrupt:
        while _running:
            jvm = _running.pop()
            jvm.terminate()
            try:
                jvm.wait(GIVE_UP_SECONDS)
            except subprocess.TimeoutExpired:
                jvm.kill()
                jvm.wait()
        raise


def end_jvm(foreign: subprocess.Popen[bytes] | None = None) -> None:
    """Ends the JVM and waits until it is gone; Spark must have been stopped before.

    Args:
        foreign: the one that pyspark has started, if it has.
    """
    if foreign is not None:
        _running.append(foreign)
    while _running:
        jvm = _running.pop()
        if jvm.stdin is not None:
            jvm.stdin.close()
        try:
            jvm.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()


# The handles keep the pipes open that the JVMs live by.
_running: list[subprocess.Popen[bytes]] = []
_outputs: dict[int, Path] = {}
_NOTICED_SECONDS = 2.0


def death_of_jvm() -> str | None:
    """How the JVM has ended, if it has: its signal or exit code, what it said, and the file that has it all."""
    for jvm in _running:
        with suppress(subprocess.TimeoutExpired):  # its sockets close before the process is gone
            code = jvm.wait(_NOTICED_SECONDS)
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            output = _outputs.get(jvm.pid)
            return f"{how}; {_reason(output)}: see {output}" if output is not None and output.exists() else how
    return None


def _start(command: Sequence[str], output: Path, answer: Path) -> subprocess.Popen[bytes]:
    environment = dict(java_environment()) | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer), "SPARK_CONNECT_MODE": "0"}
    with output.open("wb") as out:
        jvm = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    _running.append(jvm)
    _outputs[jvm.pid] = output
    return jvm


def _connection(jvm: subprocess.Popen[bytes], output: Path, answer: Path) -> tuple[int, str]:
    """Port and secret of the gateway, which Spark writes to a file and renames into place."""
    end = time.monotonic() + START_SECONDS
    while not answer.exists():
        if jvm.poll() is not None:
            raise MachineError(f"Spark's JVM did not start ({_reason(output)}): see {output}")
        if time.monotonic() > end:
            jvm.kill()
            raise MachineError(f"Spark's JVM gave no answer within {START_SECONDS:.0f} seconds: see {output}")
        time.sleep(_POLL_SECONDS)
    content = answer.read_bytes()
    (port,), (length,) = _LENGTH.unpack_from(content), _LENGTH.unpack_from(content, _LENGTH.size)
    return port, content[2 * _LENGTH.size :][:length].decode()


def _reason(output: Path) -> str:
    """The line of a JVM's output that says what is wrong: the first that names an error, else the last."""
    said = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    telling = (line for line in said if "Error" in line or "Exception" in line)
    return next(telling, said[-1] if said else "no reason given")[:300]
