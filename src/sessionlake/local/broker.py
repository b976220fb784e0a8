"""The embedded broker: a single-node Kafka (KRaft) in a background process, with its data in the home folder.

The process continues after the command that started it ends. Its folder `home/kafka` has the pid file, the
configuration (written at each start), the log and the data.
"""

from __future__ import annotations

import base64
import fcntl
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from sessionlake.errors import BrokerError, UsageError
from sessionlake.local.broker_config import DATA, build_kafka_server_properties
from sessionlake.local.home import create_home_folder
from sessionlake.local.jars import fetch_broker_jars
from sessionlake.local.java import build_java_environment, build_logging_flags, require_java
from sessionlake.local.probe import does_broker_answer, is_loopback, parse_bootstrap_servers
from sessionlake.settings.model import Settings

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1

State = Literal["running", "starting", "stopped", "foreign", "outside"]


@dataclass(frozen=True)
class BrokerStatus:
    """State of the configured broker.

    Attributes:
        state: `running`, `starting` (its process runs but does not answer yet) or `stopped` for the embedded broker of
            this home; `foreign` if another process uses the port; `outside` if an external broker is configured.
        bootstrap_servers: Address that clients connect to.
        pid: Process id of the embedded broker; None if it does not run.
        folder: Folder with the embedded broker's data, configuration and log.
    """

    state: State
    bootstrap_servers: str
    pid: int | None
    folder: Path

    @property
    def log_file(self) -> Path:
        """Path of the embedded broker's log file."""
        return self.folder / "broker.log"


def start_broker(settings: Settings) -> BrokerStatus:
    """Starts the embedded broker unless it already runs, and waits until it answers.

    Raises:
        UsageError: The configuration names an external broker, so there is nothing to start.
        BrokerError: The port is in use, or the broker stopped or did not answer in time.
        MachineSetupError: Java or the jars are missing, or the home cannot be written.
    """
    host, port = _read_embedded_broker_address(settings)
    folder = create_home_folder(settings, "kafka") / "kafka"
    with _lock_broker_folder(folder):
        process = _find_running_broker(folder)
        if process is None:
            _require_free_port(host, port)
            process = _start_broker_process(settings, folder, host, port)
        else:
            _require_running_broker_at_configured_address(settings, folder)
        _wait_until_broker_answers(settings, folder, process)
    return BrokerStatus("running", settings.kafka.bootstrap_servers, process.pid, folder)


def stop_broker(settings: Settings) -> bool:
    """Stops the embedded broker of this home and waits until its process has ended.

    Returns:
        True if a broker was running.
    """
    folder = settings.home / "kafka"
    if not folder.is_dir():
        return False
    with _lock_broker_folder(folder):
        process = _find_running_broker(folder)
        if process is not None:
            _stop_broker_process(process)
        _get_pid_file(folder).unlink(missing_ok=True)
    return process is not None


def read_broker_status(settings: Settings) -> BrokerStatus:
    """Returns the current state of the configured broker. Changes nothing."""
    folder, servers = settings.home / "kafka", settings.kafka.bootstrap_servers
    process = _find_running_broker(folder)
    if process is not None:
        config = {"bootstrap.servers": _read_recorded_broker_address(folder) or servers}
        state: State = "running" if does_broker_answer(config, 2.0) else "starting"
        return BrokerStatus(state, config["bootstrap.servers"], process.pid, folder)
    where = parse_bootstrap_servers(settings)
    if len(where) != 1 or not is_loopback(where[0][0]):
        return BrokerStatus("outside", servers, None, folder)
    return BrokerStatus("stopped" if _is_free_port(*where[0]) else "foreign", servers, None, folder)


def _read_embedded_broker_address(settings: Settings) -> tuple[str, int]:
    where = parse_bootstrap_servers(settings)
    if len(where) != 1 or not is_loopback(where[0][0]):
        raise UsageError(
            f"kafka.bootstrap_servers is {settings.kafka.bootstrap_servers}, which is an external broker",
            why="The embedded broker listens only at addresses of this machine, so there is none to start",
            fix="To use the embedded broker, set one loopback address, such as 127.0.0.1:9092",
        )
    return where[0]


@contextmanager
def _lock_broker_folder(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _get_pid_file(folder: Path) -> Path:
    return folder / "broker.pid"


def _get_config_file(folder: Path) -> Path:
    return folder / "server.properties"


def _find_running_broker(folder: Path) -> psutil.Process | None:
    """Returns the process of this home's running broker; None if it does not run.

    The system reuses pids, so the process's command line must name this home's configuration file.
    """
    try:
        pid = int(_get_pid_file(folder).read_text(encoding="ascii").split()[0])
        process = psutil.Process(pid)
        ours = str(_get_config_file(folder)) in process.cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return process if ours else None


def _read_recorded_broker_address(folder: Path) -> str | None:
    try:
        return _get_pid_file(folder).read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return None


def _require_running_broker_at_configured_address(settings: Settings, folder: Path) -> None:
    recorded = _read_recorded_broker_address(folder)
    if recorded != settings.kafka.bootstrap_servers:
        raise BrokerError(
            f"the embedded broker of this home already runs at {recorded}, but "
            f"kafka.bootstrap_servers is {settings.kafka.bootstrap_servers}",
            fix=f"Set kafka.bootstrap_servers to {recorded}, or first stop the broker with `sessionlake broker down`",
        )


def _is_free_port(host: str, port: int) -> bool:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # The broker sets this option too: connections that are closing do not keep the port from being used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _require_free_port(host: str, port: int) -> None:
    if not _is_free_port(host, port):
        raise BrokerError(
            f"port {port} on {host}, at which the embedded broker should listen, is in use by another program",
            fix="Stop that program, or choose another port with kafka.bootstrap_servers "
            "(SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:PORT)",
        )


def _start_broker_process(settings: Settings, folder: Path, host: str, port: int) -> psutil.Process:
    config = _get_config_file(folder)
    config.write_text(build_kafka_server_properties(settings, host, port), encoding="ascii")
    java = _build_broker_java_command(folder)
    output = folder / "broker.out"
    with output.open("wb") as out:
        if not (folder / DATA / "meta.properties").exists():
            _format_kafka_storage([*java, "kafka.tools.StorageTool"], config, out.fileno(), output)
        # A new process session: Ctrl-C in the terminal that started the broker must not stop it.
        started = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, env=build_java_environment(),
            start_new_session=True,
        )  # fmt: skip
    _started_processes.append(started)
    partial = _get_pid_file(folder).with_suffix(".partial")
    partial.write_text(f"{started.pid} {settings.kafka.bootstrap_servers}\n", encoding="ascii")
    partial.replace(_get_pid_file(folder))
    return psutil.Process(started.pid)


# These references stop Python from warning that a process still runs when its Popen object is collected.
_started_processes: list[subprocess.Popen[bytes]] = []


def _build_broker_java_command(folder: Path) -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in fetch_broker_jars())
    # A small heap and one garbage collector thread leave the cores to Spark. The page cache serves the reads.
    flags = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    return [str(require_java()), *flags, *build_logging_flags(folder / "broker.log"), "-cp", jars]


def _format_kafka_storage(tool: list[str], config: Path, out: int, output: Path) -> None:
    cluster = "L" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # 22 characters, never a leading dash
    command = [*tool, "format", "--ignore-formatted", "--cluster-id", cluster, "--config", str(config)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=config.parent,
        env=build_java_environment(),
        check=False,
        start_new_session=True,  # Ctrl-C must not leave the storage half formatted
    )
    if done.returncode != 0:
        raise BrokerError(
            f"the storage of the embedded broker could not be prepared ({_read_last_line_of_log(output)})",
            fix=f"Look for the cause in {output}, then run `sessionlake broker up` again",
        )


def _wait_until_broker_answers(settings: Settings, folder: Path, process: psutil.Process) -> None:
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    host, port = parse_bootstrap_servers(settings)[0]
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if not _is_process_running(process):
            raise BrokerError(
                f"the embedded broker stopped while it was starting ({_read_last_line_of_log(folder / 'broker.log')})",
                fix=f"Look for the cause in the logs in {folder}, then run `sessionlake broker up` again",
            )
        if not _is_free_port(host, port) and does_broker_answer(config, 5.0):
            return
        time.sleep(_POLL_SECONDS)
    raise BrokerError(
        f"the embedded broker (process {process.pid}) was started, but does not answer after {START_SECONDS:.0f} s",
        fix=f"Look for the cause in {folder / 'broker.log'}, stop the broker with `sessionlake broker "
        "down` and start it again with `sessionlake broker up`",
    )


def _is_process_running(process: psutil.Process) -> bool:
    # The command line cannot be compared here: it is empty for a moment after a process starts.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stop_broker_process(process: psutil.Process) -> None:
    try:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return


def _read_last_line_of_log(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    messages = [line for line in lines if line and not line.startswith(("\t", " "))]
    return messages[-1][:300] if messages else "it left no log"
