"""Starts and stops the JVM of a local Spark session.

pyspark starts its JVM through two shell scripts and a second JVM that only composes the command line. It also asks for
an incubating module that Spark SQL does not use and that makes the JVM print a warning. Starting `SparkSubmit` directly
avoids the scripts, the second JVM and the warning. But it depends on Spark internals: the class's name, the packages
that must be opened, and the file with port and secret. So this module starts the JVM only for versions in
`TESTED_SPARK`. With other versions pyspark starts the JVM, which is slower but uses public settings only.
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

from sessionlake.errors import MachineSetupError
from sessionlake.local.java import build_java_environment

TESTED_SPARK = ("4.0.2",)
"""Versions of pyspark whose JVM this module starts directly. `tests/spark/test_session.py` tests it."""

START_SECONDS = 120.0
STOP_SECONDS = 10.0
GIVE_UP_SECONDS = 1.0
_POLL_SECONDS = 0.02
_LENGTH = struct.Struct("!i")

# JDK packages that Spark 4.0 accesses by reflection; its launcher opens the same ones.
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
class JvmOptions:
    """Options with which a JVM is started.

    Attributes:
        java: Path of the `java` program.
        memory: Maximum size of the heap, for example `2g`.
        flags: Other JVM options.
        spark: Folder of Spark's own jars.
        jars: Folder of additional jars.
        output: File to which the JVM's output is written.
    """

    java: Path
    memory: str
    flags: Sequence[str]
    spark: Path
    jars: Path
    output: Path


def prepare_jvm_start(jvm: JvmOptions) -> tuple[Mapping[str, str], AbstractContextManager[None]]:
    """Decides who starts the JVM: this module for tested versions of pyspark, otherwise pyspark itself.

    Returns:
        Settings for the session's builder, and a context manager in whose block the session must be built. For a tested
        version the context manager starts the JVM. For others it does nothing.
    """
    found = version("pyspark")
    if found in TESTED_SPARK:
        return {}, _start_jvm_for_session(jvm)
    tested = ", ".join(TESTED_SPARK)
    sys.stderr.write(f"sessionlake: pyspark {found} starts Spark itself, which takes longer (tested: {tested})\n")
    settings = {
        "spark.driver.memory": jvm.memory,
        "spark.driver.extraJavaOptions": shlex.join(jvm.flags),
        "spark.driver.extraClassPath": f"{jvm.jars}/*",
    }
    return settings, nullcontext()


@contextmanager
def _start_jvm_for_session(jvm: JvmOptions) -> Iterator[None]:
    """Starts the JVM that a session built in the block will use.

    Ctrl-C does not reach the JVM, so that Python can stop Spark in order. The JVM reads from a pipe that only this
    process holds open, so it ends when this process ends, even if this process is killed.

    Raises:
        MachineSetupError: The JVM did not start, or did not answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="sessionlake-") as folder:
        answer = Path(folder) / "gateway"
        jars = os.pathsep.join(f"{folder}/*" for folder in (jvm.spark, jvm.jars))
        options = [f"-Xmx{jvm.memory}", *jvm.flags, *_FLAGS, "-cp", jars]
        command = [str(jvm.java), *options, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
        with _stop_jvm_on_interrupt():
            # In a thread, Ctrl-C cannot come between the start of the process and the assignment of its handle.
            with ThreadPoolExecutor(1) as starter:
                process = starter.submit(_start_jvm_process, command, jvm.output, answer).result()
            port, secret = _wait_for_port_and_secret_of_spark(process, jvm.output, answer)
    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        with _stop_jvm_on_interrupt():
            yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextmanager
def _stop_jvm_on_interrupt() -> Iterator[None]:
    """Stops the JVM if Ctrl-C interrupts the block. A starting JVM would notice the closed pipe only after seconds."""
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


def stop_jvm(started_by_pyspark: subprocess.Popen[bytes] | None = None) -> None:
    """Stops the JVM and waits until its process has ended. Spark must have been stopped before.

    Args:
        started_by_pyspark: The JVM's process if pyspark started it; None if this module did.
    """
    if started_by_pyspark is not None:
        _running.append(started_by_pyspark)
    while _running:
        jvm = _running.pop()
        if jvm.stdin is not None:
            jvm.stdin.close()
        try:
            jvm.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()


# Each handle keeps a pipe open; a JVM ends when its pipe closes.
_running: list[subprocess.Popen[bytes]] = []
_outputs: dict[int, Path] = {}
_EXIT_SECONDS = 2.0


def describe_jvm_failure() -> str | None:
    """Returns how the JVM ended, with its error message and output file, as a text; None if it still runs."""
    for jvm in _running:
        with suppress(subprocess.TimeoutExpired):  # a JVM's sockets close before its process ends
            code = jvm.wait(_EXIT_SECONDS)
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            output = _outputs.get(jvm.pid)
            return (
                f"{how}; {_find_error_line_of_jvm_output(output)}: see {output}"
                if output is not None and output.exists()
                else how
            )
    return None


def _start_jvm_process(command: Sequence[str], output: Path, answer: Path) -> subprocess.Popen[bytes]:
    environment = dict(build_java_environment()) | {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
        "SPARK_CONNECT_MODE": "0",
    }
    with output.open("wb") as out:
        jvm = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    _running.append(jvm)
    _outputs[jvm.pid] = output
    return jvm


def _wait_for_port_and_secret_of_spark(jvm: subprocess.Popen[bytes], output: Path, answer: Path) -> tuple[int, str]:
    """Waits until Spark has written the file with its gateway's port and secret, and returns both.

    Args:
        jvm: The JVM's process.
        output: File with the JVM's output, for errors.
        answer: The file that Spark writes.

    Raises:
        MachineSetupError: The JVM ended, or did not answer in time.
    """
    end = time.monotonic() + START_SECONDS
    while not answer.exists():
        if jvm.poll() is not None:
            raise MachineSetupError(
                f"Spark's Java process did not start ({_find_error_line_of_jvm_output(output)})",
                fix=f"Look for the cause in {output}. `sessionlake doctor` checks Java",
            )
        if time.monotonic() > end:
            jvm.kill()
            raise MachineSetupError(
                f"Spark's Java process was started, but did not answer within {START_SECONDS:.0f} seconds",
                fix=f"Look for the cause in {output}. If the machine is busy, run the command again",
            )
        time.sleep(_POLL_SECONDS)
    content = answer.read_bytes()
    (port,), (length,) = _LENGTH.unpack_from(content), _LENGTH.unpack_from(content, _LENGTH.size)
    return port, content[2 * _LENGTH.size :][:length].decode()


def _find_error_line_of_jvm_output(output: Path) -> str:
    """Returns the first line of a JVM's output that names an error; without one, the last line."""
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = (line for line in lines if "Error" in line or "Exception" in line)
    return next(errors, lines[-1] if lines else "no reason given")[:300]
