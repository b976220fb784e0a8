"""The embedded broker: a real single-node Kafka (KRaft) as a background process that keeps its data in the home.

The process outlives the command that started it. Its folder `home/kafka` holds the pid file, the configuration
written at each start, the log and the data.
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
from sessionlake.local.broker_config import DATA, server_properties
from sessionlake.local.home import require_home
from sessionlake.local.jars import broker_jars
from sessionlake.local.java import java_environment, logging_flags, require_java
from sessionlake.local.probe import addresses, answers, is_loopback
from sessionlake.settings.model import Settings

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1

State = Literal["running", "starting", "stopped", "foreign", "outside"]


@dataclass(frozen=True)
class BrokerStatus:
    """How the configured broker stands.

    Attributes:
        state: `running`, `starting` (alive, not answering yet) and `stopped` speak of this home's embedded broker;
            `foreign`: another process holds the port; `outside`: an outside broker is configured.
        bootstrap_servers: where clients find it.
        pid: of the embedded broker, while it lives.
        folder: its data, configuration and log.
    """

    state: State
    bootstrap_servers: str
    pid: int | None
    folder: Path

    @property
    def log(self) -> Path:
        """The broker's own log."""
        return self.folder / "broker.log"


def up(settings: Settings) -> BrokerStatus:
    """Starts the embedded broker unless it runs, and waits until it answers.

    Raises:
        UsageError: an outside broker is configured, so there is nothing to start.
        BrokerError: the port is taken, or the broker died or did not answer in time.
        MachineError: no Java, no jars, or no writable home.
    """
    host, port = _embedded_address(settings)
    folder = require_home(settings, "kafka") / "kafka"
    with _one_at_a_time(folder):
        process = _alive(folder)
        if process is None:
            _require_free(host, port)
            process = _start(settings, folder, host, port)
        else:
            _require_same_address(settings, folder)
        _wait_until_ready(settings, folder, process)
    return BrokerStatus("running", settings.kafka.bootstrap_servers, process.pid, folder)


def down(settings: Settings) -> bool:
    """Stops this home's embedded broker and waits until it is gone.

    Returns:
        Whether there was one to stop.
    """
    folder = settings.home / "kafka"
    if not folder.is_dir():
        return False
    with _one_at_a_time(folder):
        process = _alive(folder)
        if process is not None:
            _stop(process)
        _pid_file(folder).unlink(missing_ok=True)
    return process is not None


def status(settings: Settings) -> BrokerStatus:
    """How the configured broker stands now; changes nothing."""
    folder, servers = settings.home / "kafka", settings.kafka.bootstrap_servers
    process = _alive(folder)
    if process is not None:
        config = {"bootstrap.servers": _recorded_address(folder) or servers}
        state: State = "running" if answers(config, 2.0) else "starting"
        return BrokerStatus(state, config["bootstrap.servers"], process.pid, folder)
    where = addresses(settings)
    if len(where) != 1 or not is_loopback(where[0][0]):
        return BrokerStatus("outside", servers, None, folder)
    return BrokerStatus("stopped" if _bindable(*where[0]) else "foreign", servers, None, folder)


def _embedded_address(settings: Settings) -> tuple[str, int]:
    where = addresses(settings)
    if len(where) != 1 or not is_loopback(where[0][0]):
        raise UsageError(
            f"kafka.bootstrap_servers is {settings.kafka.bootstrap_servers}, an outside broker: there is nothing to "
            "start; for the embedded broker set one loopback address, as in 127.0.0.1:9092"
        )
    return where[0]


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pid_file(folder: Path) -> Path:
    return folder / "broker.pid"


def _config_file(folder: Path) -> Path:
    return folder / "server.properties"


def _alive(folder: Path) -> psutil.Process | None:
    """The process of the pid file, if it still is this home's broker: pids are reused, command lines tell."""
    try:
        pid = int(_pid_file(folder).read_text(encoding="ascii").split()[0])
        process = psutil.Process(pid)
        ours = str(_config_file(folder)) in process.cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return process if ours else None


def _recorded_address(folder: Path) -> str | None:
    try:
        return _pid_file(folder).read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return None


def _require_same_address(settings: Settings, folder: Path) -> None:
    recorded = _recorded_address(folder)
    if recorded != settings.kafka.bootstrap_servers:
        raise BrokerError(
            f"this home's broker already runs at {recorded}, but kafka.bootstrap_servers is "
            f"{settings.kafka.bootstrap_servers}: set the key back, or stop it first with `sessionlake broker down`"
        )


def _bindable(host: str, port: int) -> bool:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the broker does: closing connections are no user
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _require_free(host: str, port: int) -> None:
    if not _bindable(host, port):
        raise BrokerError(
            f"port {port} on {host} is in use by a process that is not this home's broker: stop that process, or "
            "choose another port with kafka.bootstrap_servers (SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:PORT)"
        )


def _start(settings: Settings, folder: Path, host: str, port: int) -> psutil.Process:
    config = _config_file(folder)
    config.write_text(server_properties(settings, host, port), encoding="ascii")
    java = _java_command(folder)
    output = folder / "broker.out"
    with output.open("wb") as out:
        if not (folder / DATA / "meta.properties").exists():
            _format([*java, "kafka.tools.StorageTool"], config, out.fileno(), output)
        # A session of its own: Ctrl-C in the terminal that started it must not stop it.
        started = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, env=java_environment(),
            start_new_session=True,
        )  # fmt: skip
    _started.append(started)
    partial = _pid_file(folder).with_suffix(".partial")
    partial.write_text(f"{started.pid} {settings.kafka.bootstrap_servers}\n", encoding="ascii")
    partial.replace(_pid_file(folder))
    return psutil.Process(started.pid)


# Kept so that Python does not complain of processes that are meant to outlive their handle.
_started: list[subprocess.Popen[bytes]] = []


def _java_command(folder: Path) -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in broker_jars())
    # A small heap and one collector thread: the cores are for Spark, and the page cache does the work.
    flags = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    return [str(require_java()), *flags, *logging_flags(folder / "broker.log"), "-cp", jars]


def _format(tool: list[str], config: Path, out: int, output: Path) -> None:
    cluster = "L" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # 22 characters, never a leading dash
    command = [*tool, "format", "--ignore-formatted", "--cluster-id", cluster, "--config", str(config)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=config.parent,
        env=java_environment(),
        check=False,
    )
    if done.returncode != 0:
        raise BrokerError(f"the broker's storage could not be prepared ({_last_line(output)}): see {output}")


def _wait_until_ready(settings: Settings, folder: Path, process: psutil.Process) -> None:
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    host, port = addresses(settings)[0]
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if not _runs(process):
            raise BrokerError(f"the broker stopped while starting ({_last_line(folder / 'broker.log')}): see {folder}")
        if not _bindable(host, port) and answers(config, 5.0):
            return
        time.sleep(_POLL_SECONDS)
    raise BrokerError(
        f"the broker (process {process.pid}) does not answer after {START_SECONDS:.0f} s: see {folder / 'broker.log'}, "
        "stop it with `sessionlake broker down` and try again"
    )


def _runs(process: psutil.Process) -> bool:
    # Not by the command line, which is empty for a moment while a process begins.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stop(process: psutil.Process) -> None:
    try:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    said = [line for line in lines if line and not line.startswith(("\t", " "))]
    return said[-1][:300] if said else "it left no log"
